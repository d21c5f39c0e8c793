"""What is told of a planted fault that did not act: why, and where it could."""

from __future__ import annotations

import pytest

from cpinfra.proof import run_findings
from cpinfra.proof.idle_faults import Ended
from cpinfra.proof.idle_faults import why_idle
from cpinfra.worker.injection import parse

WHOLE = Ended(calls={0: 18, 1: 18}, early=False, acted=())
OTHERS = "choose other checks with --only, or another fault"


def told(fault: str, *ended: Ended) -> tuple[str, str]:
    """Why, and what to do."""
    idle = why_idle(parse(fault, 2), ended)
    return idle.why, idle.remedy


def test_a_call_beyond_the_last_is_told_with_what_is_valid() -> None:
    """Got, the knob, and the calls that its rank makes."""
    assert told("kill:1@40", WHOLE) == (
        "kill:1@40 acts on call 40; rank 1 made 18 calls in the chosen checks",
        f"give a call of rank 1 after @ in kill:1@40 (valid are @1 to @18), or {OTHERS}",
    )


def test_calls_are_counted_in_each_set_of_ranks() -> None:
    """The most of them is what is valid."""
    why, remedy = told("kill:1@40", WHOLE, Ended(calls={1: 30}, early=False, acted=()))

    assert "18 and 30 calls in the 2 sets of ranks" in why
    assert "@1 to @30" in remedy


def test_a_call_that_it_does_not_change_is_not_called_missing() -> None:
    """There were calls, and none after its own that carry what it changes."""
    why, remedy = told("wrong-dtype:1@17", WHOLE)

    assert why.startswith("wrong-dtype:1@17: rank 1 made none that it changes from call 17 on")
    assert why.endswith("it made 18 calls in the chosen checks")
    assert remedy.startswith("give an earlier call after @ (valid are @1 to @18)")


def test_where_a_rank_makes_no_call_no_number_is_valid() -> None:
    """Only other checks help."""
    why, remedy = told("kill:1", Ended(calls={1: 0}, early=False, acted=()))

    assert "rank 1 made too few: 0 calls" in why
    assert remedy == OTHERS


@pytest.mark.parametrize("fault", ["wrong-chunk", "stall-teardown:1"])
def test_what_acts_on_no_call_has_no_number_to_choose(fault: str) -> None:
    """Other checks, or another fault."""
    assert told(fault, WHOLE) == (f"{fault} found nothing in the chosen checks that it changes", OTHERS)


@pytest.mark.parametrize(("fault", "where"), [("kill:1@40", " after call 7 of rank 1"), ("wrong-chunk", "")])
def test_ranks_that_were_ended_early_are_told_before_any_count(fault: str, where: str) -> None:
    """By the faults that acted in them."""
    cut = Ended(calls={1: 7}, early=True, acted=("skip:1@7", "stop:0"))

    why, remedy = told(fault, cut, WHOLE)
    assert why == f"the ranks were ended by skip:1@7, stop:0{where}, before {fault} could act"
    assert remedy.startswith("plant it alone")


def test_ranks_that_ended_of_themselves_are_to_be_mended_first() -> None:
    """No planted fault has done it."""
    why, remedy = told("kill:1@40", Ended(calls={1: 7}, early=True, acted=()))

    assert "a hang or death that nobody had planted" in why
    assert remedy.startswith("mend that first")


def test_several_faults_are_one_finding_with_each_remedy_once() -> None:
    """Each is named."""
    cut = Ended(calls={1: 7}, early=True, acted=("skip:1@7",))
    finding = run_findings.not_fired([why_idle(parse(fault, 2), [cut]) for fault in ("kill:1", "stop:0")])

    assert "kill:1" in finding.got
    assert "stop:0" in finding.got
    assert finding.remedy.count("plant it alone") == 1

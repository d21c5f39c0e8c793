"""Ranks that come late: who is called slow, with which figures, and who is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cpinfra.outcome import Severity
from cpinfra.proof import run_findings
from cpinfra.proof.pulse import Pulse
from cpinfra.proof.slowness import SLOW_S
from cpinfra.proof.slowness import Slow
from cpinfra.proof.slowness import Slowness
from cpinfra.worker import ledger
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import Ledger
from cpinfra.worker.ledger import Stage
from cpinfra.worker.ledger import records_per_rank
from cpinfra.worker.progress import Clock

WORLD = 4
CALL = {"check": "a.x", "site": "a.py:1", "operation": "all_reduce", "group": "world", "first": False}


class Ranks:
    """What four ranks record, and how long each has stood still."""

    def __init__(self, path: Path) -> None:
        ledger.create(path, WORLD)
        self.ledger = Ledger(path)
        self.pens = [self.ledger.pen(rank) for rank in range(WORLD)]
        self.calls = [0] * WORLD
        self.alive = set(range(WORLD))
        self.slowness = Slowness(1.0)
        for pen in self.pens:
            pen.stage(Stage.RUNNING)

    def enter(self, *ranks: int, **changes: Any) -> None:
        """Ranks enter their next call."""
        for rank in ranks:
            self.calls[rank] += 1
            call = {**CALL, "slowest_s": 0.004, **changes, "call": self.calls[rank]}
            self.pens[rank].write(Kind.ENTER, call)

    def leave(self, *ranks: int) -> None:
        """Ranks leave it."""
        for rank in ranks:
            self.pens[rank].write(Kind.LEAVE, {"call": self.calls[rank]})

    def look(self, still_s: float) -> list[Slow]:
        """Look at ranks that have all stood still for so long."""
        clocks = {rank: Clock() for rank in self.alive}
        for clock in clocks.values():
            clock.still_s = still_s
        pulses = {
            rank: Pulse(pid=0, head=self.ledger.head(rank), stage_at=0.0, still=clock)
            for rank, clock in clocks.items()
        }
        self.slowness.look(self.ledger, pulses)
        return self.slowness.slows


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """All of them have made one call."""
    four = Ranks(tmp_path / "ledger")
    four.enter(0, 1, 2, 3)
    four.leave(0, 1, 2, 3)
    yield four
    four.ledger.close()


def test_who_keeps_the_others_waiting_is_slow(ranks: Ranks) -> None:
    """Told when it comes, with the call that it came to and how long that usually takes."""
    ranks.enter(0, 1, 3, site="a.py:7")
    assert ranks.look(SLOW_S + 0.01) == []
    moment = time.monotonic() + 0.05
    while time.monotonic() < moment:
        pass
    ranks.enter(2)

    (slow,) = ranks.look(0.0)

    assert (slow.rank, slow.check, slow.operation, slow.group) == (2, "a.x", "all_reduce", "world")
    assert (slow.site, slow.usual_s) == ("a.py:7", 0.004)
    assert 0.05 <= slow.others_waited_s <= slow.late_s < 5.0


def test_of_two_latecomers_both_are_slow(ranks: Ranks) -> None:
    """Each once, whenever it comes."""
    ranks.enter(0, 1)
    ranks.look(SLOW_S + 0.01)
    ranks.enter(3)
    assert [slow.rank for slow in ranks.look(SLOW_S + 0.01)] == [3]
    ranks.enter(2)

    assert [slow.rank for slow in ranks.look(0.0)] == [3, 2]
    assert [slow.rank for slow in ranks.look(0.0)] == [3, 2]


def test_who_comes_in_time_is_not(ranks: Ranks) -> None:
    """The others have to wait for a while before anybody is suspected."""
    ranks.enter(0, 1, 3)
    ranks.look(SLOW_S - 0.01)
    ranks.enter(2)

    assert ranks.look(0.0) == []


@pytest.mark.parametrize("call", [{"first": True}, {"slowest_s": None}])
def test_an_operation_of_which_nothing_is_known_may_be_waited_for_longer(
    ranks: Ranks, call: dict[str, Any]
) -> None:
    """Ranks that do something for the first time are not equally fast."""
    ranks.enter(0, 1, 3, **call)
    ranks.look(1.5 * SLOW_S)
    ranks.enter(2, **call)
    assert ranks.look(0.0) == []

    ranks.leave(0, 1, 2, 3)
    ranks.enter(0, 1, 3, **call)
    ranks.look(2.5 * SLOW_S)
    ranks.enter(2, **call)

    assert [slow.rank for slow in ranks.look(0.0)] == [2]


def test_who_is_inside_as_well_is_not(ranks: Ranks) -> None:
    """An operation that takes long is nobody's fault."""
    ranks.enter(0, 1, 2, 3)
    ranks.look(5.0)
    ranks.leave(0, 1, 2, 3)
    ranks.enter(0, 1, 2, 3)

    assert ranks.look(0.0) == []


def test_who_has_left_the_operation_is_not(ranks: Ranks) -> None:
    """It has entered as many calls as those that are still inside: it waits for them, if for anybody."""
    ranks.enter(0, 1, 2, 3)
    ranks.leave(2)
    ranks.look(5.0)
    ranks.leave(0, 1, 3)
    ranks.enter(0, 1, 2, 3)

    assert ranks.look(0.0) == []


def test_who_is_behind_but_inside_an_earlier_operation_is_not(ranks: Ranks) -> None:
    """Around a ring, ranks stand in different calls: none of them is absent but who is outside of all."""
    ranks.enter(0, 1)
    ranks.leave(0)
    ranks.enter(0)
    ranks.enter(3)
    ranks.look(5.0)
    ranks.leave(1)
    ranks.enter(1)
    assert ranks.look(0.0) == []
    ranks.enter(2)

    assert [slow.rank for slow in ranks.look(0.0)] == [2]


def test_who_dies_or_goes_without_having_come_is_not(ranks: Ranks) -> None:
    """Of that others have more to say."""
    ranks.enter(0, 1)
    ranks.look(5.0)
    ranks.alive.remove(2)
    ranks.pens[3].stage(Stage.REPORTED)
    ranks.look(5.0)
    ranks.alive.add(2)
    ranks.enter(2)

    assert ranks.look(0.0) == []


def test_a_ring_that_went_round_since_tells_all_the_same(ranks: Ranks) -> None:
    """A rank may make more calls than are kept between two looks."""
    ranks.enter(0, 1, 3)
    ranks.look(5.0)
    for _ in range(records_per_rank(4)):
        ranks.enter(2)
        ranks.leave(2)

    (slow,) = ranks.look(0.0)

    assert (slow.rank, slow.operation) == (2, "all_reduce")
    assert 0 <= slow.others_waited_s <= slow.late_s < 5.0


def test_who_is_through_with_everything_since_was_slow_all_the_same(ranks: Ranks) -> None:
    """It came, made its last calls, reported and ended between two looks."""
    ranks.enter(0, 1, 3)
    ranks.look(5.0)
    ranks.enter(2)
    ranks.pens[2].stage(Stage.REPORTED)
    ranks.alive.clear()

    assert [slow.rank for slow in ranks.look(0.0)] == [2]


def test_the_first_call_is_late_since_its_rank_runs(tmp_path: Path) -> None:
    """There is no earlier record to count from."""
    four = Ranks(tmp_path / "ledger")
    four.enter(0, 1, 2)
    four.look(5.0)
    four.enter(3)

    (slow,) = four.look(0.0)

    assert slow.rank == 3
    assert 0 <= slow.others_waited_s <= slow.late_s < 5.0
    four.ledger.close()


def slow(rank: int, usual_s: float | None) -> Slow:
    """A rank that was slow."""
    return Slow(
        rank=rank,
        check="a.x",
        operation="all_reduce",
        group="world",
        site="a.py:1",
        late_s=0.714,
        others_waited_s=0.701,
        usual_s=usual_s,
    )


def test_the_finding_tells_each_with_its_figures() -> None:
    """It is a warning; of two ranks each has its own words."""
    finding = run_findings.slow([slow(2, 0.004), slow(0, None)])

    where = "late to all_reduce on world at a.py:1 in a.x: others waited 0.70 s"
    assert (finding.id, finding.severity) == ("slow", Severity.WARNING)
    assert finding.got == (
        f"rank 2 came 0.71 s {where} (the slowest before took 0.004 s); "
        f"rank 0 came 0.71 s {where} (none had completed before)"
    )
    assert "taskset" in finding.remedy

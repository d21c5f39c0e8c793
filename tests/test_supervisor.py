"""What the supervisor makes of generations that hang early, late, or not at all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import engine
from cpinfra.proof import deadlines

PAIR = (1, 2, 1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that take milliseconds on two ranks have two seconds."""
    for budget in (deadlines.DEVICE_S, deadlines.JOIN_S, deadlines.LEAVE_S):
        monkeypatch.setitem(budget, "cpu", 2.0)


def test_after_a_hang_before_any_check_ranks_are_forked_once_more(tmp_path: Path) -> None:
    """The fault is past: every check runs, and the hang stands."""
    ran = engine.prove(tmp_path, only="p2p.*", mesh=PAIR, faults=["never-join:1"])

    assert ran.outcomes() == {"p2p.ring": "pass"}
    assert [(hang.kind, hang.culprit_ranks, hang.check) for hang in ran.proof.hangs] == [
        ("never-joined", (1,), None)
    ]
    assert [told["generation"] for told in ran.named("forked")] == [1, 2]
    assert set(ran.proof.fired) == {"never-join:1"}
    assert 0 < ran.proof.told_at_s[""] - ran.proof.fired["never-join:1"][""] < 10


def test_ranks_that_never_join_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the second hang before any check no third set is forked; what did not run is unknown."""
    stalls = "\n\ndef _stall(self):\n    time.sleep(600)\n\n\nimport time\nDoor.join = _stall\n"
    engine.altered_worker(monkeypatch, tmp_path / "source", {"worker/comm.py": stalls})
    ran = engine.prove(tmp_path / "run", only="*", mesh=PAIR)

    assert set(ran.outcomes().values()) == {"unknown"}
    assert [told["generation"] for told in ran.named("forked")] == [1, 2]
    assert len(ran.proof.hangs) == 2
    assert all(result.reason and result.remedy for result in ran.proof.results.values())


def test_a_rank_that_comes_late_is_told_and_changes_no_outcome(tmp_path: Path) -> None:
    """Slow: an event while it happens, a warning at the end."""
    ran = engine.prove(tmp_path, only="p2p.*", mesh=PAIR, faults=["delay:1:0.7@6"])

    assert ran.outcomes() == {"p2p.ring": "pass"}
    assert ran.proof.hangs == []
    assert [told["rank"] for told in ran.named("slow")] == [1]
    assert [finding.id for finding in ran.proof.findings] == ["slow"]


def test_of_two_words_on_a_check_the_first_counts(tmp_path: Path) -> None:
    """A rank that comes late twice is noticed at the first time, and by that its detection is judged."""
    told_at_s = []

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "slow":
            told_at_s.append(time.monotonic())

    faults = ["delay:1:1.0@6", "delay:1:1.1@12"]
    ran = engine.prove(tmp_path, only="p2p.*", mesh=PAIR, faults=faults, on_event=take)

    assert len(told_at_s) == 2
    assert told_at_s[0] <= ran.proof.told_at_s["p2p.ring"] < told_at_s[1]


def test_a_stack_that_ranks_share_is_kept_for_each(tmp_path: Path) -> None:
    """Beside its log, under its own name."""
    ran = engine.prove(tmp_path, only="p2p.*", mesh=(1, 2, 2), faults=["stall-inside:2"])
    (hang,) = ran.proof.hangs
    ranks = {rank for names in hang.stacks for rank in names.split(",")}
    kept = {path.name for path in (tmp_path / "generation-1").glob("*.stack")}

    assert "2" in ranks
    assert len(ranks) > 1
    assert kept == {f"rank-{rank}.stack" for rank in ranks}

"""What the supervisor knows of a generation, message by message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpinfra.proof.generation import Generation
from cpinfra.worker import ledger
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import Ledger
from cpinfra.worker.ledger import Stage
from cpinfra.worker.spec import GenerationSpec


@pytest.fixture
def generation() -> Generation:
    """Two ranks that are still to be forked."""
    spec = GenerationSpec(
        generation=1,
        dp=1,
        cp0=1,
        cp1=2,
        device="cpu",
        backend="gloo",
        gpu_uuids=(),
        checks=("a.x", "a.y"),
        salt=1,
        faults=(),
        logs="",
        patience_s=60.0,
    )
    return Generation(spec=spec)


def answered(rank: int, check: str = "a.x", *, broken: bool = False, digest: str = "d1") -> dict[str, Any]:
    """A rank's answer, as far as it matters here."""
    return {
        "event": "answer",
        "check": check,
        "rank": rank,
        "broken": broken,
        "calls": {"count": 3, "digest": digest},
    }


def exited(rank: int, code: int | None = 0, signal: str | None = None) -> dict[str, Any]:
    """The zygote's word of a rank's end."""
    return {"event": "exited", "rank": rank, "code": code, "signal": signal}


def test_a_check_is_complete_when_every_rank_has_answered(generation: Generation) -> None:
    """Each check by itself; a rank that answers twice counts once; a broken answer completes nothing."""
    generation.absorb(answered(0), 0.0)
    generation.absorb(answered(0), 0.0)
    assert not generation.complete("a.x")

    generation.absorb(answered(1), 0.0)
    assert generation.complete("a.x")
    assert not generation.complete("a.y")

    generation.absorb(answered(0, "a.y"), 0.0)
    generation.absorb(answered(1, "a.y", broken=True), 0.0)
    assert not generation.complete("a.y")
    assert generation.broken
    assert [answer["rank"] for answer in generation.broken_answers()] == [1]


def test_only_a_released_rank_that_exits_with_zero_ended_well(generation: Generation) -> None:
    """Too early, with another code, or by a signal: the generation is broken."""
    generation.absorb(exited(0), 5.0)
    assert (generation.exits[0].expected, generation.broken) == (False, True)

    generation.exits.clear()
    generation.released = True
    generation.absorb(exited(0), 6.0)
    assert (generation.exits[0].expected, generation.broken) == (True, False)
    assert generation.exits[0].at == 6.0

    for code, signal, text in ((1, None, "exit code 1"), (None, "SIGKILL", "SIGKILL")):
        generation.absorb(exited(1, code, signal), 7.0)
        assert (generation.exits[1].expected, generation.broken) == (False, True)
        assert generation.exits[1].text == text


def test_all_are_gone_when_each_has_ended_or_none_was_forked(generation: Generation) -> None:
    """Exits may be told before the fork itself is; a refused generation has nobody to wait for."""
    generation.absorb(exited(0), 0.0)
    generation.absorb(exited(1), 0.0)
    unforked = generation.all_gone
    generation.pids = (10, 11)

    assert (unforked, generation.all_gone) == (False, True)

    for event in ("no-room", "fork-unsafe"):
        refused = Generation(spec=generation.spec)
        refused.absorb({"event": event, "text": "why"}, 0.0)
        assert refused.all_gone
        assert refused.refused == {"event": event, "text": "why"}


def test_after_the_judgement_only_ends_are_heard(generation: Generation) -> None:
    """What ranks say once they are being ended is about their ending."""
    generation.judged = True
    for message in (
        answered(0, broken=True),
        {"event": "reported", "rank": 0},
        {"event": "trouble", "rank": 1},
    ):
        generation.absorb(message, 0.0)
    generation.absorb(exited(1, 1), 0.0)

    assert (generation.answers, generation.reported, generation.troubles) == ({}, set(), {})
    assert set(generation.exits) == {1}


def test_news_are_changes_of_what_ranks_said_or_suffered(generation: Generation) -> None:
    """Each kind of message of a rank is news; hearing the same again is none."""
    seen = [generation.news]
    for message in (
        answered(0),
        answered(1),
        {"event": "trouble", "rank": 0},
        {"event": "reported", "rank": 1},
        exited(0),
    ):
        generation.absorb(message, 0.0)
        assert generation.news not in seen
        seen.append(generation.news)

    generation.absorb(answered(0), 0.0)
    assert generation.news == seen[-1]


def test_all_have_reported_only_with_the_last(generation: Generation) -> None:
    """Nobody may close its groups before."""
    generation.absorb({"event": "reported", "rank": 1}, 0.0)
    with_one = generation.all_reported
    generation.absorb({"event": "reported", "rank": 0}, 0.0)

    assert (with_one, generation.all_reported) == (False, True)


def test_the_ledger_is_read_from_the_fork_on(generation: Generation, tmp_path: Path) -> None:
    """Before there is none; after it every rank has a track; closed, there is none again."""
    assert generation.tracks() == {}
    ledger.create(tmp_path / "ledger", 2)
    generation.absorb({"event": "forked", "pids": [10, 11], "folder": str(tmp_path)}, 0.0)
    pen = Ledger(tmp_path / "ledger").pen(1)
    pen.stage(Stage.RUNNING)
    call = {"check": "a.x", "repetition": 1, "site": "a.py:1", "operation": "o", "group": "world"}
    pen.write(Kind.ENTER, {**call, "shape": [1], "dtype": "int64", "call": 1})

    tracks = generation.tracks()
    assert generation.pids == (10, 11)
    assert [track.stage for track in tracks.values()] == [Stage.FORKED, Stage.RUNNING]
    assert [call.left for call in tracks[1].calls] == [False]

    generation.close()
    generation.close()
    assert generation.tracks() == {}


def test_ranks_that_have_made_other_calls_by_the_end_of_a_check_have_diverged(generation: Generation) -> None:
    """Also where nothing blocked, and all answered: the check is not complete, the generation is broken."""
    generation.absorb(answered(0), 0.0)
    generation.absorb(answered(1), 0.0)
    assert (generation.diverged, generation.broken) == ("", False)

    generation.absorb(answered(0, "b.y"), 0.0)
    generation.absorb(answered(1, "b.y", digest="d2"), 0.0)

    assert (generation.diverged, generation.broken) == ("b.y", True)
    assert generation.complete("a.x")
    assert not generation.complete("b.y")


def test_a_rank_that_did_not_come_to_the_end_of_a_check_has_not_diverged(generation: Generation) -> None:
    """It raised, and has made fewer calls because of that."""
    generation.absorb(answered(0), 0.0)
    generation.absorb(answered(1, broken=True, digest="d2"), 0.0)

    assert generation.diverged == ""

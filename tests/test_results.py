"""From the answers of many ranks to one result: who said what, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cpinfra.outcome import BUG_REMEDY
from cpinfra.outcome import CheckResult
from cpinfra.outcome import Outcome
from cpinfra.proof import results
from cpinfra.proof.catalogue import CheckInfo
from cpinfra.proof.generation import Generation
from cpinfra.proof.hang import Culprit
from cpinfra.proof.hang import Hang
from cpinfra.worker.spec import GenerationSpec

CHECK = CheckInfo(id="collective.all_reduce", tier="smoke", claim="It sums.", min_ranks=1)
OTHER = CheckInfo(id="p2p.ring", tier="smoke", claim="It passes on.", min_ranks=2)
RERUN = "run it again by itself: cpinfra prove --only collective.all_reduce"


def answer(
    rank: int, outcome: str = "pass", reason: str = "", *, remedy: str = "", error: Any = None, **changes: Any
) -> dict[str, Any]:
    """What one rank answers; keywords change its evidence or its flags."""
    flags = {name: changes.pop(name, False) for name in ("bug", "broken")}
    evidence = {
        "dtypes": ["int64", "float32"],
        "absent": {},
        "shapes": [[1], [1021]],
        "forms": ["tensor"],
        "repetitions": 4,
        "trials": ["int64 tensor 4"],
        "comparisons": 4,
        "elements": 2044,
        "bytes_moved": 16352,
    }
    return {
        "check": CHECK.id,
        "rank": rank,
        "outcome": outcome,
        "reason": reason,
        "remedy": remedy or (f"remedy for {rank}" if outcome != "pass" else ""),
        "seconds": 0.5 + rank / 10,
        "error": error,
        "evidence": {**evidence, **changes},
        "calls": {"count": 4, "digest": "same on all ranks"},
        **flags,
    }


def generation(*answers: dict[str, Any], world: int = 4) -> Generation:
    """A generation in which these have come."""
    spec = GenerationSpec(
        generation=3,
        dp=1,
        cp0=1,
        cp1=world,
        device="cpu",
        backend="gloo",
        gpu_uuids=(),
        checks=(CHECK.id,),
        salt=1,
        faults=(),
        logs="",
        patience_s=60.0,
    )
    made = Generation(spec=spec)
    for each in answers:
        made.absorb({"event": "answer", "generation": 3, **each}, 0.0)
    return made


def judged(*answers: dict[str, Any], world: int = 4, hang: Hang | None = None) -> CheckResult:
    """The result over these answers."""
    return results.result_of(CHECK, "main", generation(*answers, world=world), hang)


def said(result: CheckResult) -> tuple[str, str, str]:
    """What a reader of the report sees first."""
    return result.outcome.value, result.reason, result.remedy


def hang(check: str | None, *culprits: int) -> Hang:
    """Ranks that died."""
    named = tuple(
        Culprit(
            rank=rank,
            kind="process-died",
            operation="all_reduce",
            group="world",
            site="collective.py:57",
            expected="all_reduce of int64[4] on world at collective.py:57",
            got="ended by SIGKILL",
        )
        for rank in culprits
    )
    return Hang(
        check=check,
        kind="process-died",
        culprits=named,
        waiting_ranks=(0,),
        stacks={"0": "a stack"},
        seconds_to_verdict=0.25,
    )


def test_all_ranks_must_pass() -> None:
    """One result: shared facts once, counts summed, the slowest rank's seconds, every rank named."""
    result = judged(*(answer(rank) for rank in (2, 0, 3, 1)))

    assert said(result) == ("pass", "", "")
    assert (result.id, result.tier, result.run) == (CHECK.id, "smoke", "main")
    assert result.ranks == (0, 1, 2, 3)
    assert result.seconds == 0.8
    assert result.evidence == {
        "world_size": 4,
        "device": "cpu",
        "backend": "gloo",
        "generation": 3,
        "dtypes": ["int64", "float32"],
        "absent": {},
        "shapes": [[1], [1021]],
        "forms": ["tensor"],
        "repetitions": 4,
        "trials": ["int64 tensor 4"],
        "comparisons": 16,
        "elements": 4 * 2044,
        "bytes_moved": 4 * 16352,
    }


def test_two_ranks_that_fail_for_different_reasons_are_both_told() -> None:
    """Each with its own reason, in rank order; the ranks that passed are not named."""
    result = judged(
        answer(0), answer(3, "fail", "late is wrong"), answer(2), answer(1, "fail", "early is wrong")
    )

    assert said(result) == ("fail", "rank 1: early is wrong; rank 3: late is wrong", "remedy for 1")
    assert result.ranks == (0, 1, 2, 3)


def test_ranks_with_the_same_reason_are_told_together() -> None:
    """A reason is said once, with all the ranks that gave it."""
    result = judged(
        answer(0, "fail", "A"), answer(1, "fail", "B"), answer(2, "fail", "A"), answer(3, "fail", "A")
    )

    assert result.reason == "ranks 0, 2, 3: A; rank 1: B"


def test_many_ranks_are_counted_and_not_listed() -> None:
    """A reason of 64 ranks stays one line."""
    result = judged(*(answer(rank, "fail", "A") for rank in range(64)), world=64)

    assert result.reason == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more: A"


def test_a_failing_rank_outweighs_missing_ones() -> None:
    """A contradiction stands, whether or not the others have answered."""
    assert said(judged(answer(1, "fail", "wrong"))) == ("fail", "rank 1: wrong", "remedy for 1")


def test_missing_ranks_are_unknown_and_named() -> None:
    """Three of four is no pass: a check passes only if every rank of the world reported."""
    assert said(judged(answer(0), answer(3))) == ("unknown", "no answer from ranks 1, 2 of 4", RERUN)
    assert said(judged(*map(answer, (0, 1, 2)))) == ("unknown", "no answer from rank 3 of 4", RERUN)


def test_no_answer_at_all_is_unknown() -> None:
    """Nothing heard is nothing known: no rank, no second, no evidence."""
    result = judged(world=2)

    assert said(result) == ("unknown", "no answer from ranks 0, 1 of 2", RERUN)
    assert (result.ranks, result.seconds, result.evidence) == ((), 0.0, {})


def test_an_answer_from_a_rank_beyond_the_world_does_not_fill_a_gap() -> None:
    """It is the ranks that count, not the number of answers."""
    assert judged(answer(0), answer(2), world=2).reason == "no answer from rank 1 of 2"


def test_our_own_bug_is_unknown_and_no_verdict_on_the_machine() -> None:
    """Two different exceptions of ours are both told; the peers' silence is not."""
    result = judged(
        answer(0, "unknown", "KeyError: 'a'", bug=True, broken=True),
        answer(2, "unknown", "ValueError: b", bug=True, broken=True, remedy="report it"),
        answer(1),
    )

    assert said(result) == ("unknown", "rank 0: KeyError: 'a'; rank 2: ValueError: b", BUG_REMEDY)


def test_a_contradiction_outweighs_our_own_bug() -> None:
    """Wrong data on one rank is wrong data, even if another rank met an error of ours."""
    result = judged(answer(0, "unknown", "KeyError", bug=True), answer(1, "fail", "wrong"))

    assert said(result) == ("fail", "rank 1: wrong", "remedy for 1")


def test_errors_are_kept_once_each_with_their_ranks() -> None:
    """Equal tracebacks are merged; different ones stay apart."""
    first = {"type": "KeyError", "text": "'a'", "traceback": "Traceback A", "site": ""}
    second = {"type": "ValueError", "text": "b", "traceback": "Traceback B", "site": "x.py:1"}
    result = judged(
        answer(0, "unknown", "A", bug=True, error=first),
        answer(1, "unknown", "B", bug=True, error=second),
        answer(3, "unknown", "A", bug=True, error=dict(first)),
        answer(2),
    )

    assert result.evidence["errors"] == [{**first, "ranks": [0, 3]}, {**second, "ranks": [1]}]


@pytest.mark.parametrize(
    ("fact", "theirs", "reason"),
    [
        ("dtypes", ["int64"], "ranks 0, 2, 3: int64, float32; rank 1: int64"),
        ("absent", {"float16": "port 4711"}, "ranks 0, 2, 3: none; rank 1: float16"),
        ("shapes", [[1], [7]], "ranks 0, 2, 3: [1], [1021]; rank 1: [1], [7]"),
        ("forms", [], "ranks 0, 2, 3: tensor; rank 1: none"),
        ("repetitions", 3, "ranks 0, 2, 3: 4; rank 1: 3"),
    ],
)
def test_ranks_that_tested_different_things_are_unknown(fact: str, theirs: Any, reason: str) -> None:
    """All passed, but not the same: the message says in what they differ, and who."""
    result = judged(answer(0), answer(1, **{fact: theirs}), answer(2), answer(3))

    assert said(result) == ("unknown", f"ranks disagree on {fact}: {reason}", RERUN)


def test_the_words_of_torch_for_what_is_absent_may_differ() -> None:
    """They hold ports and addresses; that the same things are absent is what counts."""
    result = judged(*(answer(rank, absent={"int16": f"peer 127.0.0.1:{rank}"}) for rank in range(4)))

    assert result.outcome is Outcome.PASS
    assert result.evidence["absent"] == {"int16": "peer 127.0.0.1:0"}


def test_ranks_with_different_outcomes_are_unknown() -> None:
    """One skipped what the others passed: nobody knows what that proves."""
    result = judged(
        answer(0), answer(1, "skip", "gloo lacks it"), answer(2), answer(3, "unknown", "nothing compared")
    )

    assert said(result) == (
        "unknown",
        (
            "ranks disagree on outcome: ranks 0, 2: pass; rank 1: skip: gloo lacks it; "
            "rank 3: unknown: nothing compared"
        ),
        RERUN,
    )


def test_ranks_that_skip_alike_skip() -> None:
    """A reason that all give is said once."""
    result = judged(
        *(answer(rank, "skip", "measured: gloo lacks it", remedy="newer torch") for rank in range(4))
    )

    assert said(result) == ("skip", "ranks 0, 1, 2, 3: measured: gloo lacks it", "newer torch")


def test_ranks_that_compared_nothing_are_unknown() -> None:
    """Zero results are never a pass; without a remedy of theirs there is ours."""
    answers = [answer(rank, "unknown", "no trial compared anything") for rank in range(2)]
    for each in answers:
        each["remedy"] = ""

    assert said(judged(*answers, world=2)) == (
        "unknown",
        "ranks 0, 1: no trial compared anything",
        RERUN,
    )


def test_a_hang_outranks_every_answer() -> None:
    """Both dead ranks are named with what was expected of them, whatever the others had said."""
    died = hang(CHECK.id, 1, 3)
    result = judged(answer(0, "fail", "lost its peer"), answer(2, "unknown", "KeyError", bug=True), hang=died)

    where = "all_reduce of int64[4] on world at collective.py:57"
    assert said(result) == (
        "fail",
        (
            f"process-died: rank 1: ended by SIGKILL, expected {where}; "
            f"rank 3: ended by SIGKILL, expected {where}; waiting: rank 0"
        ),
        died.remedy,
    )
    assert result.evidence["hang"] == died.as_json()
    assert result.evidence["hang"]["culprit_ranks"] == [1, 3]


@pytest.mark.parametrize("check", ["p2p.ring", None])
def test_a_hang_elsewhere_changes_nothing_here(check: str | None) -> None:
    """A check that all ranks had passed has passed, though a later one or the teardown hung."""
    result = judged(*map(answer, range(4)), hang=hang(check, 1))

    assert said(result) == ("pass", "", "")
    assert "hang" not in result.evidence


def test_a_hang_without_any_answer_is_a_fail_with_its_evidence() -> None:
    """The evidence holds the hang alone."""
    died = hang(CHECK.id, 2)
    result = judged(hang=died)

    assert result.outcome is Outcome.FAIL
    assert result.evidence == {"hang": died.as_json()}


def test_answers_of_another_check_do_not_count() -> None:
    """Each check has its own answers."""
    made = generation(*map(answer, range(4)))

    assert results.result_of(OTHER, "main", made, None).reason == "no answer from ranks 0, 1, 2, 3 of 4"


def trouble(rank: int, text: str, *, kind: str) -> dict[str, Any]:
    """An exception outside any check."""
    told = {
        "type": "DoorError" if kind == "door" else "Disagreement",
        "text": text,
        "traceback": f"Traceback of {rank}",
    }
    return {"event": "trouble", "generation": 3, "rank": rank, "kind": kind, **told}


def troubled(*troubles: dict[str, Any]) -> CheckResult:
    """The result of the first check of a generation in which these were raised before it."""
    by_rank: Mapping[int, dict[str, Any]] = {each["rank"]: each for each in troubles}
    return results.troubled(CHECK, "main", by_rank)


def test_torch_that_raises_before_a_check_fails_it() -> None:
    """Two ranks, two texts, both told; it is torch that spoke, so it is about the machine."""
    result = troubled(trouble(1, "no route", kind="door"), trouble(0, "refused", kind="door"))

    assert said(result) == (
        "fail",
        "rank 0: DoorError: refused; rank 1: DoorError: no route",
        "read the traceback in the check's evidence.errors in the report; it is in the rank's log too",
    )
    told = [(error["ranks"], error["traceback"]) for error in result.evidence["errors"]]
    assert told == [([0], "Traceback of 0"), ([1], "Traceback of 1")]


def test_one_traceback_of_several_ranks_before_a_check_is_kept_once() -> None:
    """With all its ranks, as that of ranks that raised in a check; one without a traceback by its text."""
    same = [{**trouble(rank, "no route", kind="door"), "traceback": "x"} for rank in (3, 1)]
    bare = trouble(2, "ended", kind="door")
    del bare["traceback"]
    first, second = troubled(*same, bare).evidence["errors"]

    assert (first["ranks"], first["text"], first["traceback"]) == ([1, 3], "no route", "x")
    assert second == {"kind": "door", "type": "DoorError", "text": "ended", "ranks": [2]}


def test_an_error_of_ours_before_a_check_is_unknown() -> None:
    """And says whose error it is; the same text of several ranks is told once."""
    result = troubled(trouble(0, "other plans", kind="ours"), trouble(2, "other plans", kind="ours"))

    assert result.outcome is Outcome.UNKNOWN
    assert result.reason == "ranks 0, 2: Disagreement: other plans"
    assert result.remedy == BUG_REMEDY


def test_what_torch_raised_outweighs_what_we_raised() -> None:
    """Only torch's own words are told as the reason."""
    result = troubled(trouble(0, "no digest from rank 1", kind="ours"), trouble(1, "no route", kind="door"))

    assert result.outcome is Outcome.FAIL
    assert result.reason == "rank 1: DoorError: no route"


def test_a_check_that_was_not_run_says_why() -> None:
    """An unknown result carries its reason and remedy."""
    result = results.unknown(CHECK, "main", "not run: interrupted", "run it again")

    assert said(result) == ("unknown", "not run: interrupted", "run it again")
    assert result.ranks == ()

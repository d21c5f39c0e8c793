"""Beside a death: who has gone wrong at a place to which nobody else has come."""

from __future__ import annotations

from typing import Any

import pytest

from cpinfra.proof import lone
from cpinfra.proof.timeline import Call
from cpinfra.proof.timeline import Signature
from cpinfra.proof.timeline import Track
from cpinfra.worker.ledger import Stage


def calls(*repetitions: int, **changes: Any) -> list[Call]:
    """One call in each of these repetitions, in this order; the last as changed."""
    made = [
        Call(
            place=("", number),
            check="p2p.ring",
            repetition=repetition,
            site="p2p.py:58",
            operation="exchange",
            group="world",
            signature=Signature(dtype="float32", shape=(6,), count=2),
            left=number < len(repetitions),
        )
        for number, repetition in enumerate(repetitions, start=1)
    ]
    *before, last = made
    fields = {name: getattr(last, name) for name in last.__dataclass_fields__}
    return [*before, Call(**{**fields, **changes})]


def judged(*of_ranks: list[Call]) -> list[tuple[int, str, str]]:
    """(rank, kind, expected) of those who are blamed."""
    tracks = {
        rank: Track(rank=rank, stage=Stage.RUNNING, since_ns=0, calls=tuple(made))
        for rank, made in enumerate(of_ranks)
    }
    return [(blame.rank, blame.kind, blame.expected) for blame in lone.gone_wrong(tracks)]


@pytest.mark.parametrize(
    ("planned", "kind"),
    [
        (Signature(dtype="float32", shape=(3,)), "mismatched-shape"),
        (Signature(dtype="int32", shape=(6,)), "mismatched-dtype"),
    ],
)
def test_who_passes_something_else_than_its_trial_says(planned: Signature, kind: str) -> None:
    """Named with the whole call that was due; one that passes what it should is not."""
    due = f"exchange of 2 x {planned} on world at p2p.py:58, repetition 3"

    assert judged(calls(1, 2), calls(1, 2, 3, planned=planned)) == [(1, kind, due)]
    assert judged(calls(1, 2), calls(1, 2, 3)) == []


def test_who_has_gone_over_a_repetition() -> None:
    """It has left the call out; where it made that one after all, it has swapped the two."""
    due = "the call of repetition 3, which was due"

    assert judged(calls(1, 2), calls(1, 2, 4)) == [(1, "never-entered", due)]
    assert judged(calls(1, 2), calls(1, 2, 4, 3)) == [(1, "mismatched-operation", due)]


def test_a_backend_that_refused_one_excuses_those_that_are_left_out() -> None:
    """What it lacks is not tried again."""
    before = calls(1, 2, raised="RuntimeError", left=True)
    further = [*before, calls(1, 2, 4)[-1]]

    assert judged(before, further) == []


def test_a_place_to_which_others_have_come_is_left_to_the_comparison() -> None:
    """Also where all of them do the same there."""
    assert judged(calls(1, 2, 4), calls(1, 2, 4)) == []


def test_where_no_check_or_no_call_before_is_known_nobody_is_blamed() -> None:
    """A program of the user's has no repetitions; a check may begin at any."""
    assert judged(calls(1, 2), calls(1, 2, 4, check="")) == []
    assert judged([], calls(3)) == []

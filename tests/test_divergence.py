"""Ranks that went separate ways: who is to blame, by the plan, else by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra.proof.divergence import Divergence
from cpinfra.proof.divergence import by_digest
from cpinfra.proof.divergence import first_divergence
from cpinfra.proof.timeline import Call
from cpinfra.proof.timeline import Signature
from cpinfra.proof.timeline import Track
from cpinfra.worker.ledger import Stage

CHECKS = ("collective.all_reduce", "dtensor.roundtrip")
PLAN = [
    *[("collective.all_reduce", repetition, "all_reduce") for repetition in range(1, 6)],
    ("dtensor.roundtrip", 1, "init_device_mesh"),
    *[("dtensor.roundtrip", r, name) for r in range(1, 4) for name in ("distribute_tensor", "full_tensor")],
]
"""(check, repetition, operation) of every call of a generation."""
SITES = {
    "all_reduce": "collective.py:53",
    "init_device_mesh": "dtensor.py:9",
    "distribute_tensor": "dtensor.py:20",
    "full_tensor": "dtensor.py:31",
}


def call(plan: int, *, known: bool = True) -> Call:
    """The call of this place in the plan, from 0 on; as a recorder without a plan shows it if not `known`."""
    check, repetition, operation = PLAN[plan]
    return Call(
        place=("", 0),
        check=check if known else "",
        repetition=repetition if known else 0,
        site=SITES[operation],
        operation=operation,
        group="world",
        signature=Signature(dtype="float32", shape=(1000 + plan, 3)),
    )


def track(rank: int, calls: Sequence[Call]) -> Track:
    """A rank that entered these calls and is inside of the last."""
    numbered = [
        replace(one, place=("", number), entered_ns=1000 * number + rank, left=number < len(calls))
        for number, one in enumerate(calls, start=1)
    ]
    return Track(rank=rank, stage=Stage.RUNNING, since_ns=0, calls=tuple(numbered))


def diverged(*ranks: Sequence[Call], checks: Sequence[str] = CHECKS) -> Divergence | None:
    """Where these ranks part."""
    return first_divergence({rank: track(rank, calls) for rank, calls in enumerate(ranks)}, checks)


def named(found: Divergence | None) -> list[tuple[int, str]]:
    """(rank, kind) of all who are to blame."""
    assert found is not None
    return sorted((blame.rank, blame.kind) for blame in found.blamed)


def of_plan(*places: int, known: bool = True) -> list[Call]:
    """The calls of these places of the plan."""
    return [call(place, known=known) for place in places]


def off(one: Call, *, dtype: str = "float32", shape: tuple[int, ...] | None = None) -> Call:
    """A call in which the rank passed something else than its trial says."""
    passed = Signature(dtype=dtype, shape=one.signature.shape if shape is None else shape)
    return replace(one, signature=passed, planned=one.signature)


@given(st.lists(st.integers(0, len(PLAN)), min_size=1, max_size=5))
def test_ranks_that_are_only_behind_have_not_diverged(lengths: list[int]) -> None:
    """However far each has come in the same plan."""
    assert diverged(*[of_plan(*range(length)) for length in lengths]) is None


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("place", range(len(PLAN) - 1))
def test_a_rank_that_left_a_call_out_never_entered_it(world: int, place: int) -> None:
    """With two ranks, too: the plan says which call was due, in a first repetition by the line."""
    plan = list(range(len(PLAN)))
    skipped = plan[:place] + plan[place + 1 : place + 2]
    found = diverged(*[of_plan(*plan[: place + 1])] * (world - 1), of_plan(*skipped))

    assert named(found) == [(world - 1, "never-entered")]
    assert found is not None
    (blame,) = found.blamed
    assert blame.call is not None
    assert blame.call.identity == call(place).identity
    assert str(call(place + 1)) in blame.got


def test_where_the_plan_says_nothing_of_two_lines_nobody_is_named() -> None:
    """In a first repetition, from two files."""
    other = replace(call(7), site="elsewhere.py:3")
    found = diverged(of_plan(5, 6), [*of_plan(5), other])

    assert found is not None
    assert (found.kind, found.blamed) == ("mismatched-operation", ())
    assert [side.ranks for side in found.sides] == [(0,), (1,)]


def test_most_ranks_outweigh_the_line() -> None:
    """A body may call what stands above it."""
    up = [replace(call(6), site="dtensor.py:100"), replace(call(7), site="dtensor.py:50")]
    found = diverged(up, up, up[1:], up)

    assert [rank for rank, _ in named(found)] == [2]


def test_the_check_is_that_of_the_call_that_was_due() -> None:
    """Where a rank leaves out the last call of a check it is in the next one, whichever rank it is."""
    for order in (
        [of_plan(0, 5), of_plan(0, 4), of_plan(0, 4)],
        [of_plan(0, 4), of_plan(0, 4), of_plan(0, 5)],
    ):
        found = diverged(*order)
        assert found is not None
        assert found.check == "collective.all_reduce"


def test_another_number_of_tensors_is_another_call() -> None:
    """Lists of different lengths."""
    two = replace(call(2), signature=replace(call(2).signature, count=2))
    found = diverged([call(2)], [call(2)], [two])

    assert [rank for rank, _ in named(found)] == [2]
    assert "2 x float32" in str(two)


def test_an_earlier_repetition_outweighs_the_line() -> None:
    """What calls from bottom to top in one repetition does so in the next."""
    up = {"distribute_tensor": "dtensor.py:31", "full_tensor": "dtensor.py:20"}
    calls = [
        replace(call(place), site=up.get(call(place).operation, SITES["init_device_mesh"]))
        for place in range(5, 10)
    ]

    assert named(diverged(calls[:4], [*calls[:3], calls[4]])) == [(1, "never-entered")]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_that_swapped_two_calls_mismatched_them(world: int) -> None:
    """It entered the one that was due, later."""
    found = diverged(*[of_plan(0, 1, 2)] * (world - 1), of_plan(0, 1, 3, 2))

    assert named(found) == [(world - 1, "mismatched-operation")]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_that_passed_something_else_than_its_trial_says_is_to_blame(world: int) -> None:
    """By its own plan, whatever the others did; the text says what it passed and what it should have."""
    shape = off(call(2), shape=(2004, 3))
    dtype = off(call(2), dtype="int32")
    right = [of_plan(0, 1, 2)] * (world - 1)
    longer, cast = diverged(*right, [*of_plan(0, 1), shape]), diverged(*right, [*of_plan(0, 1), dtype])

    assert named(longer) == [(world - 1, "mismatched-shape")]
    assert named(cast) == [(world - 1, "mismatched-dtype")]
    assert longer is not None
    (blame,) = longer.blamed
    assert blame.got == "entered all_reduce of float32[2004x3] on world at collective.py:53, repetition 3"
    assert blame.expected == "all_reduce of float32[1002x3] on world at collective.py:53, repetition 3"


def test_a_check_that_passes_something_else_on_all_ranks_blames_nobody() -> None:
    """Its trial says nothing of that call; nor of a rank that is alone there."""
    helper = off(call(2), shape=(8,))
    assert diverged([*of_plan(0, 1), helper], [*of_plan(0, 1), helper], of_plan(0, 1)) is None
    assert diverged(of_plan(0, 1), [*of_plan(0, 1), helper]) is None

    other = off(call(2), shape=(9,))
    assert named(diverged(*[[helper]] * 3, [other])) == [(3, "mismatched-shape")]


@pytest.mark.parametrize(("world", "blamed"), [(2, []), (3, [1]), (4, [1])])
@pytest.mark.parametrize("place", [0, 2, 10])
def test_a_rank_that_calls_the_same_again_is_to_blame(world: int, blamed: list[int], place: int) -> None:
    """Most ranks have gone on, or are through; of two nobody is named."""
    plan = of_plan(*range(place + 1))
    others = of_plan(*range(place + 2))
    found = diverged(others, [*plan, plan[-1]], *[others] * (world - 2))

    assert found is not None
    assert [rank for rank, _ in named(found)] == blamed
    assert found.kind == "mismatched-operation"


@pytest.mark.parametrize("repetition", [1, 3])
def test_a_call_that_no_other_rank_ever_makes_is_not_due(repetition: int) -> None:
    """After the last of a repetition, where the others are in the next; whatever its line."""
    extra = replace(call(0), operation="all_gather", site="collective.py:9", repetition=repetition)
    others = of_plan(*range(repetition + 1))
    found = diverged(others, others, [*others[:-1], extra], others)

    assert [rank for rank, _ in named(found)] == [2]


def test_who_is_through_has_entered_no_further_call() -> None:
    """One that is in a call which the others have not made is to blame, and one that left the last out."""
    everything = of_plan(*range(5))
    more = [*everything, everything[-1]]
    tracks = {rank: replace(track(rank, everything), stage=Stage.REPORTED) for rank in (0, 2)}
    found = first_divergence({**tracks, 1: track(1, more)}, CHECKS)
    assert named(found) == [(1, "mismatched-operation")]
    assert found is not None
    assert found.blamed[0].expected == "no further call"

    missing = replace(track(1, everything[:-1]), stage=Stage.REPORTED)
    found = first_divergence({0: track(0, everything), 1: missing}, CHECKS)
    assert named(found) == [(1, "never-entered")]


def test_another_operation_of_another_dtype_is_another_operation() -> None:
    """What it passed says less than what it called."""
    other = replace(off(call(2), dtype="float64"), operation="all_gather", site="collective.py:99")
    found = diverged(of_plan(0, 1, 2), of_plan(0, 1, 2), [*of_plan(0, 1), other])

    assert found is not None
    (blame,) = found.blamed
    assert (blame.rank, blame.kind) == (2, "mismatched-operation")
    assert blame.expected == str(call(2))


def test_two_faults_at_one_place_are_both_named() -> None:
    """Each for its own, also where the guilty are the most."""
    wrong = [*of_plan(0, 1), off(call(2), shape=(1, 3))]

    assert named(diverged(of_plan(0, 1, 2), wrong, of_plan(0, 1, 3))) == [
        (1, "mismatched-shape"),
        (2, "never-entered"),
    ]
    assert named(diverged(of_plan(0, 1, 2), of_plan(0, 1, 3), of_plan(0, 1, 3))) == [
        (1, "never-entered"),
        (2, "never-entered"),
    ]


def test_a_second_fault_at_a_later_place_is_named_too() -> None:
    """As long as the first left all in step: a wrong dtype of equal size blocks nobody."""
    cast = [*of_plan(0), off(call(1), dtype="int32"), call(2)]

    assert named(diverged(of_plan(0, 1, 2), of_plan(0, 1, 3), cast)) == [
        (1, "never-entered"),
        (2, "mismatched-dtype"),
    ]


@pytest.mark.parametrize(("world", "blamed"), [(2, []), (3, [2]), (4, [3])])
def test_without_a_plan_most_ranks_are_right(world: int, blamed: list[int]) -> None:
    """Of two that differ nobody is named, and both are shown."""
    first = of_plan(0, 1, 5, known=False)
    found = diverged(*[first] * (world - 1), of_plan(0, 1, 2, known=False), checks=())

    assert found is not None
    assert [rank for rank, _ in named(found)] == blamed
    assert found.kind == "mismatched-operation"
    assert [side.ranks for side in found.sides] == [tuple(range(world - 1)), (world - 1,)]


def test_without_a_plan_shape_and_dtype_are_told_apart() -> None:
    """Same operation, other tensors."""
    right = call(2, known=False)
    short = replace(right, signature=Signature(dtype="float32", shape=(7,)))
    cast = replace(right, signature=replace(right.signature, dtype="int32"))

    assert named(diverged([right], [right], [short], checks=())) == [(2, "mismatched-shape")]
    assert named(diverged([right], [right], [cast], checks=())) == [(2, "mismatched-dtype")]


def test_two_against_two_without_a_plan_blames_nobody() -> None:
    """Half is not most."""
    found = diverged(*[of_plan(2, known=False)] * 2, *[of_plan(5, known=False)] * 2, checks=())

    assert named(found) == []


def test_of_a_divergence_that_is_no_longer_kept_the_digests_tell() -> None:
    """Who stands against most of the others; nobody where it is even. In what they differ is not said."""
    assert named(by_digest({0: "a", 1: "b", 2: "a"})) == [(1, "diverged")]
    even = by_digest({0: "a", 1: "b"})
    assert (even.kind, even.blamed) == ("diverged", ())


def test_calls_in_words() -> None:
    """Operation, dtype, shape, group and place; what has no tensors says so with a dash."""
    assert str(call(0)) == "all_reduce of float32[1000x3] on world at collective.py:53, repetition 1"
    mesh = replace(call(5), signature=Signature(dtype="", shape=()), group="cp0,cp1", site="", repetition=0)
    assert str(mesh) == "init_device_mesh of -[-] on cp0,cp1"
    cut = replace(call(0), signature=Signature(dtype="float32", shape=(1, 2, "...", 9)))
    assert str(cut).startswith("all_reduce of float32[1x2x...x9] ")

"""Control twins: at which call, in which stage and on which rank they act, and what they do there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import forks
import processes
from cpinfra.worker import control
from cpinfra.worker.control import EXIT_CODE
from cpinfra.worker.control import Control
from cpinfra.worker.control import InjectedError
from cpinfra.worker.injection import CONTROL_TWINS
from cpinfra.worker.injection import DATA_TWINS
from cpinfra.worker.injection import FIRES_AT_CALL
from cpinfra.worker.injection import STAGE_TWINS
from cpinfra.worker.injection import parse
from cpinfra.worker.ledger import Stage
from cpinfra.worker.operations import Group
from cpinfra.worker.operations import Operation
from cpinfra.worker.progress import process_state

WORLD = 4


def operation(name: str, *shape: int, dtype: torch.dtype = torch.float32, check: str = "") -> Operation:
    """One that passes a tensor of this shape."""
    return Operation(
        name=name,
        group=Group(name="world", size=WORLD, rank=1),
        passed=[torch.ones(shape, dtype=dtype)],
        run=lambda *_: None,
        delivered=lambda _: [],
        check=check,
    )


MESH = Operation(
    name="mesh",
    group=Group(name="cp0,cp1", size=WORLD, rank=1),
    passed=[],
    run=lambda *_: None,
    delivered=lambda _: [],
)


class Rank:
    """A rank's control twins, and what they say when they fire."""

    def __init__(self, rank: int, *texts: str) -> None:
        self.told: list[tuple[str, str]] = []
        self.control = Control(
            [parse(text, WORLD) for text in texts],
            rank,
            lambda fault, check: self.told.append((fault, check)),
        )

    @property
    def fired(self) -> list[str]:
        """The faults."""
        return [fault for fault, _ in self.told]

    def call(self, called: Operation | None = None) -> Sequence[Operation]:
        """What is made of a call."""
        return self.control.on_call(called or operation("any", 2))

    def names(self, *names: str) -> list[list[str]]:
        """Of calls of these names: the names of what is made of each."""
        return [[made.name for made in self.call(operation(name, 2))] for name in names]


def test_a_control_twin_fires_once_at_its_call_on_its_rank() -> None:
    """Not before the group is known to work, not again later, and nowhere else."""
    planted, other = Rank(2, "raise:2", "shifted", "raise:1"), Rank(3, "raise:2", "shifted")
    for _ in range(FIRES_AT_CALL - 1):
        planted.call()
    assert planted.fired == []

    with pytest.raises(InjectedError, match=r"^planted fault raise:2$"):
        planted.call()
    assert planted.fired == ["raise:2"]

    for _ in range(5):
        planted.call()
        other.call()
    assert planted.fired == ["raise:2"]
    assert other.fired == []


@pytest.mark.parametrize("call", [1, 2, 7])
def test_a_control_twin_fires_at_the_call_that_is_asked_for(call: int) -> None:
    """Counted over all calls of the rank, from one on; with the check that the call belongs to."""
    planted = Rank(1, f"skip:1@{call}")

    made = [len(planted.call(operation("any", 2, check=f"check {n}"))) for n in range(1, 9)]

    assert made == [int(n != call) for n in range(1, 9)]
    assert planted.told == [(f"skip:1@{call}", f"check {call}")]


def test_two_twins_of_one_rank_both_act() -> None:
    """In the order in which they were given, at the same call."""
    planted = Rank(1, "delay:1:0", "raise:1")
    planted.call()
    planted.call()

    with pytest.raises(InjectedError):
        planted.call()
    assert planted.fired == ["delay:1:0", "raise:1"]


def test_one_twin_at_two_calls_acts_at_both() -> None:
    """Each by its own text."""
    planted = Rank(1, "skip:1", "skip:1@5")

    assert planted.names("a", "b", "c", "d", "e") == [["a"], ["b"], [], ["d"], []]
    assert planted.fired == ["skip:1", "skip:1@5"]


@pytest.mark.parametrize("name", ["skip", "swap-order", "wrong-shape", "wrong-dtype"])
def test_what_acts_on_tensors_waits_for_a_call_that_has_any(name: str) -> None:
    """A device mesh is not skipped: nothing could go on without."""
    planted = Rank(1, f"{name}:1@1")

    assert planted.call(MESH) == [MESH]
    assert [made.name for made in planted.call(operation("empty", 0, 3))] == ["empty"]
    first = operation("first", 2)
    assert list(planted.call(first)) != [first]


def test_calls_that_are_swapped_come_in_the_wrong_order_once() -> None:
    """The one that is put off after the next that is made."""
    planted = Rank(1, "swap-order:1@2")

    assert planted.names("a", "b") == [["a"], []]
    assert planted.fired == ["swap-order:1@2"]
    assert planted.names("c", "d") == [["c", "b"], ["d"]]
    assert planted.fired == ["swap-order:1@2"]


def test_a_call_that_is_put_off_waits_until_one_is_made() -> None:
    """What comes next may be skipped; a second one is not put off meanwhile."""
    planted = Rank(1, "swap-order:1@1", "skip:1@2", "swap-order:1@2")

    assert planted.names("a", "b", "c", "d", "e") == [[], [], ["c", "a"], [], ["e", "d"]]
    assert planted.fired == ["swap-order:1@1", "skip:1@2", "swap-order:1@2"]


def test_shape_and_dtype_can_both_be_wrong_at_one_call() -> None:
    """Each acts on what the other has made."""
    planted = Rank(1, "wrong-shape:1@1", "wrong-dtype:1@1")

    (made,) = planted.call(operation("both", 3, 2))
    assert (made.identity["shape"], made.identity["dtype"]) == ([6, 2], "int32")


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        (torch.float32, "int32"),
        (torch.int32, "float32"),
        (torch.bfloat16, "float16"),
        (torch.float16, "bfloat16"),
        (torch.int64, "float64"),
        (torch.float64, "int64"),
    ],
)
def test_another_dtype_has_the_same_size_and_bytes(dtype: torch.dtype, other: str) -> None:
    """So that a transport carries it without a word."""
    given = operation("any", 5, dtype=dtype)
    (made,) = Rank(1, "wrong-dtype:1@1").call(given)

    assert made.identity["dtype"] == other
    assert made.passed[0].view(dtype).equal(given.passed[0])
    assert made.passed[0].data_ptr() != given.passed[0].data_ptr()


class StalledError(Exception):
    """In place of a stall, which has no end."""


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall is an exception."""

    def stall() -> None:
        raise StalledError

    monkeypatch.setattr(control, "stall_for_ever", stall)


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("never-join", Stage.DEVICE),
        ("stall-init", Stage.JOINING),
        ("stall-teardown", Stage.LEAVING),
    ],
)
def test_a_rank_stalls_in_its_stage(stalls: None, name: str, stage: Stage) -> None:
    """In no other, outside of any check, and no other rank."""
    planted, other = Rank(1, f"{name}:1"), Rank(2, f"{name}:1")
    for each in Stage:
        other.control.in_stage(each)
        if each is not stage:
            planted.control.in_stage(each)
    assert planted.told == []

    with pytest.raises(StalledError):
        planted.control.in_stage(stage)
    assert planted.told == [(f"{name}:1", "")]
    assert other.told == []


def test_every_twin_that_acts_in_a_stage_has_one() -> None:
    """And only these: all others act on a call."""
    assert control._STAGES.keys() == set(STAGE_TWINS)
    assert set(STAGE_TWINS) < set(CONTROL_TWINS)
    assert not set(CONTROL_TWINS) & set(DATA_TWINS)


def do_at_first_call(text: str, write: int) -> None:
    """Make a call with this fault, which tells a pipe that it fires."""

    def fired(fault: str, _check: str) -> None:
        os.write(write, fault.encode())

    Control([parse(text, WORLD)], 0, fired).on_call(operation("any", 1))


@pytest.mark.parametrize(("text", "state"), [("kill:0@1", "Z"), ("stop:0@1", "T"), ("exit:0@1", "Z")])
def test_a_rank_says_so_before_it_is_ended_or_stopped(text: str, state: str) -> None:
    """The word that the fault fired leaves the rank first: the action may be its last."""
    read, write = os.pipe()

    with forks.forked(lambda: do_at_first_call(text, write)) as pid:
        assert os.read(read, 100).decode() == text
        processes.wait_until(lambda: process_state(pid) == state, f"state {state}")
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(("text", "status"), [("exit:0@1", EXIT_CODE), ("kill:0@1", -9)])
def test_how_a_rank_ends(text: str, status: int) -> None:
    """By a code of its own, or by the signal."""
    assert forks.wait(forks.fork(lambda: do_at_first_call(text, os.open(os.devnull, os.O_WRONLY)))) == status


def test_a_delay_sleeps_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """For as long as it was told, before the same call is made."""
    slept: list[Any] = []
    monkeypatch.setattr("time.sleep", slept.append)

    assert Rank(1, "delay:1:2.5@1").names("a") == [["a"]]
    assert slept == [2.5]

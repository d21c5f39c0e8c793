"""Planted faults: what `--inject` takes, how a rank acts on it, and the plan that carries it."""

from __future__ import annotations

import dataclasses
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forks
import processes
from cpinfra.worker.control import FIRES_AT_CALL
from cpinfra.worker.control import Control
from cpinfra.worker.control import InjectedError
from cpinfra.worker.injection import CONTROL_TWINS
from cpinfra.worker.injection import DATA_TWINS
from cpinfra.worker.injection import Injection
from cpinfra.worker.injection import InjectionError
from cpinfra.worker.injection import parse
from cpinfra.worker.progress import process_state
from cpinfra.worker.spec import GenerationSpec

WORLD = 4
SPEC = GenerationSpec(
    generation=2,
    dp=2,
    cp0=3,
    cp1=5,
    device="cpu",
    backend="gloo",
    gpu_uuids=(),
    checks=("p2p.ring", "collective.all_reduce"),
    salt=7,
    faults=("kill:1",),
    logs="/somewhere",
    patience_s=90.0,
)


@pytest.mark.parametrize("name", DATA_TWINS)
def test_allows_each_data_twin(name: str) -> None:
    """By its name alone; it acts on delivered data, on no particular rank."""
    fault = parse(name, WORLD)

    assert fault == Injection(text=name, name=name, rank=None, seconds=0.0)
    assert fault.is_data


@pytest.mark.parametrize(
    ("text", "rank", "seconds"),
    [
        ("raise:0", 0, 0.0),
        ("kill:3", 3, 0.0),
        ("stop:2", 2, 0.0),
        ("delay:1:0", 1, 0.0),
        ("delay:3:0.25", 3, 0.25),
        ("delay:0:3600", 0, 3600.0),
        ("delay:0:1e2", 0, 100.0),
    ],
)
def test_allows_control_twins(text: str, rank: int, seconds: float) -> None:
    """With the rank that they act on, from the first to the last of the world."""
    fault = parse(text, WORLD)

    assert fault == Injection(text=text, name=text.partition(":")[0], rank=rank, seconds=seconds)
    assert not fault.is_data


@pytest.mark.parametrize("text", ["", "wrong_chunk", "Kill:1", " kill:1", "slow:1", "ki", "--all"])
def test_rejects_what_does_not_exist(text: str) -> None:
    """The message quotes it and lists everything that there is, spelled as it must be."""
    with pytest.raises(InjectionError) as raised:
        parse(text, WORLD)

    known = ", ".join([*DATA_TWINS, "delay:RANK:SECONDS", "raise:RANK", "kill:RANK", "stop:RANK"])
    assert str(raised.value) == f"--inject {text!r}: no such fault; there are: {known}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shifted:1", "--inject 'shifted:1': shifted acts on data and takes no argument"),
        ("bit-flip:", "--inject 'bit-flip:': bit-flip acts on data and takes no argument"),
        ("kill", "--inject 'kill': expected kill:RANK"),
        ("kill:1:2", "--inject 'kill:1:2': expected kill:RANK"),
        ("delay:1", "--inject 'delay:1': expected delay:RANK:SECONDS"),
        ("delay:1:2:3", "--inject 'delay:1:2:3': expected delay:RANK:SECONDS"),
        ("stop:", "--inject 'stop:': expected a rank from 0 to 3, got ''"),
        ("stop:4", "--inject 'stop:4': expected a rank from 0 to 3, got '4'"),
        ("stop:-1", "--inject 'stop:-1': expected a rank from 0 to 3, got '-1'"),
        ("raise:one", "--inject 'raise:one': expected a rank from 0 to 3, got 'one'"),
        ("raise:1.0", "--inject 'raise:1.0': expected a rank from 0 to 3, got '1.0'"),
        ("raise:²", "--inject 'raise:²': expected a rank from 0 to 3, got '²'"),
        ("delay:4:1", "--inject 'delay:4:1': expected a rank from 0 to 3, got '4'"),
    ],
)
def test_rejects_wrong_arguments(text: str, message: str) -> None:
    """What was got, and how the fault is spelled or which ranks there are."""
    with pytest.raises(InjectionError) as raised:
        parse(text, WORLD)

    assert str(raised.value) == message


@pytest.mark.parametrize("seconds", ["", "x", "-1", "3601", "nan", "inf", "1s"])
def test_rejects_seconds_out_of_range(seconds: str) -> None:
    """A delay is a number of seconds up to an hour: nothing that would never end, or not be a time."""
    with pytest.raises(InjectionError) as raised:
        parse(f"delay:1:{seconds}", WORLD)

    assert str(raised.value) == (
        f"--inject 'delay:1:{seconds}': expected delay:RANK:SECONDS with 0 to 3600 seconds, got {seconds!r}"
    )


@given(
    st.text()
    | st.builds(":".join, st.lists(st.sampled_from([*DATA_TWINS, *CONTROL_TWINS]) | st.text(), max_size=4)),
    st.integers(1, 8),
)
def test_whatever_is_given_is_a_fault_or_one_refusal(text: str, world: int) -> None:
    """No text raises anything else, and a control twin that is taken acts on a rank of the world."""
    try:
        fault = parse(text, world)
    except InjectionError as error:
        assert str(error).startswith(f"--inject {text!r}: ")  # noqa: PT017 - refusal is one of two outcomes
        return
    assert fault.text == text
    assert fault.is_data == (fault.rank is None)
    assert fault.rank is None or 0 <= fault.rank < world


def test_a_number_with_thousands_of_digits_is_a_rank_that_is_not_there() -> None:
    """Python refuses to read such numbers; the message stays ours."""
    with pytest.raises(InjectionError, match="expected a rank from 0 to 3"):
        parse("kill:" + "9" * 5000, WORLD)


def control(rank: int, *texts: str) -> tuple[Control, list[str]]:
    """A rank's control twins, and where they say that they have fired."""
    told: list[str] = []
    faults = [parse(text, WORLD) for text in texts]
    return Control(faults, rank, told.append), told


def test_a_control_twin_fires_once_at_its_call_on_its_rank() -> None:
    """Not before the group is known to work, not again later, and nowhere else."""
    planted, told = control(2, "raise:2", "shifted", "raise:1")
    other, told_by_other = control(3, "raise:2", "shifted")
    for _ in range(FIRES_AT_CALL - 1):
        planted.before_call()
    assert told == []

    with pytest.raises(InjectedError, match=r"^planted fault raise:2$"):
        planted.before_call()
    assert told == ["raise:2"]

    for _ in range(5):
        planted.before_call()
        other.before_call()
    assert told == ["raise:2"]
    assert told_by_other == []


@pytest.mark.parametrize(("text", "state"), [("kill:0", "Z"), ("stop:0", "T")])
def test_a_rank_says_so_before_it_is_killed_or_stopped(text: str, state: str) -> None:
    """The word that the fault fired leaves the rank first: the action may be its last."""
    read, write = os.pipe()

    def fired(fault: str) -> None:
        os.write(write, fault.encode())

    def call_the_door() -> None:
        planted = Control([parse(text, WORLD)], 0, fired)
        for _ in range(FIRES_AT_CALL):
            planted.before_call()

    with forks.forked(call_the_door) as pid:
        assert os.read(read, 100).decode() == text
        processes.wait_until(lambda: process_state(pid) == state, f"state {state}")
    os.close(read)
    os.close(write)


def test_two_twins_of_one_rank_both_act() -> None:
    """In the order in which they were given, at the same call."""
    planted, told = control(1, "delay:1:0", "raise:1")
    planted.before_call()
    planted.before_call()

    with pytest.raises(InjectedError):
        planted.before_call()
    assert told == ["delay:1:0", "raise:1"]


def test_a_plan_crosses_the_pipe_unchanged() -> None:
    """What the supervisor sends as JSON is what every rank reads, tuples and all."""
    assert GenerationSpec.from_json(json.loads(json.dumps(SPEC.as_json()))) == SPEC
    assert SPEC.world == 30


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"faults": ("raise:2",)}, True),
        ({"logs": "/elsewhere"}, True),
        ({"salt": 8}, False),
        ({"checks": ("collective.all_reduce", "p2p.ring")}, False),
        ({"cp0": 5, "cp1": 3}, False),
        ({"generation": 3}, False),
        ({"backend": "nccl"}, False),
        ({"patience_s": 91.0}, False),
    ],
)
def test_the_digest_is_of_what_ranks_must_agree_on(change: dict[str, object], same: bool) -> None:
    """A planted fault and the place of the logs may differ; anything else means another plan."""
    other = dataclasses.replace(SPEC, **change)  # type: ignore[arg-type]

    assert len(SPEC.digest()) == 32
    assert (other.digest() == SPEC.digest()) is same
    assert GenerationSpec.from_json(json.loads(json.dumps(other.as_json()))).digest() == other.digest()

"""Planted faults: what `--inject` takes, and the plan that carries it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra.proof import faults
from cpinfra.worker.injection import CONTROL_TWINS
from cpinfra.worker.injection import DATA_TWINS
from cpinfra.worker.injection import FIRES_AT_CALL
from cpinfra.worker.injection import STAGE_TWINS
from cpinfra.worker.injection import Injection
from cpinfra.worker.injection import InjectionError
from cpinfra.worker.injection import parse
from cpinfra.worker.spec import GenerationSpec

WORLD = 4
A_CALL = "expected the number of a call from 1 to 999999999"
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


@pytest.mark.parametrize("name", CONTROL_TWINS)
def test_allows_each_control_twin_on_its_rank(name: str) -> None:
    """At the third call, unless another is asked for; what acts in a stage takes none."""
    text = CONTROL_TWINS[name].replace("RANK", "2").replace("SECONDS", "1")
    fault = parse(text, WORLD)

    assert (fault.name, fault.rank, fault.at_call) == (name, 2, FIRES_AT_CALL)
    if name not in STAGE_TWINS:
        for call in (1, 5, 999_999_999):
            assert parse(f"{text}@{call}", WORLD) == dataclasses.replace(
                fault, text=f"{text}@{call}", at_call=call
            )


def test_the_same_fault_at_two_calls_is_two_faults() -> None:
    """Only a text that is given twice is refused."""
    assert faults.mistakes(["skip:1", "skip:1@5", "skip:1@6"], WORLD) == []
    assert faults.mistakes(["skip:1@5", "skip:1@5"], WORLD) == [
        "--inject 'skip:1@5': given twice, and would undo itself; give it once"
    ]


@pytest.mark.parametrize(
    "text", ["", "wrong_chunk", "Kill:1", " kill:1", "slow:1", "slow:1@5", "@", "ki", "--all"]
)
def test_rejects_what_does_not_exist(text: str) -> None:
    """The message quotes it and lists everything that there is, spelled as it must be."""
    with pytest.raises(InjectionError) as raised:
        parse(text, WORLD)

    assert str(raised.value) == (
        f"--inject {text!r}: no such fault; there are: "
        "wrong-chunk, reversed-shard, first-element-only, shifted, swapped-slots, stale-buffer, "
        "swapped-axes, bit-flip, skip:RANK[@CALL], swap-order:RANK[@CALL], wrong-shape:RANK[@CALL], "
        "wrong-dtype:RANK[@CALL], delay:RANK:SECONDS[@CALL], raise:RANK[@CALL], exit:RANK[@CALL], "
        "kill:RANK[@CALL], stop:RANK[@CALL], never-join:RANK, stall-init:RANK, stall-inside:RANK[@CALL], "
        "stall-teardown:RANK"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shifted:1", "--inject 'shifted:1': shifted acts on data and takes no argument"),
        ("bit-flip:", "--inject 'bit-flip:': bit-flip acts on data and takes no argument"),
        ("bit-flip@2", "--inject 'bit-flip@2': bit-flip acts on data and takes no argument"),
        ("kill", "--inject 'kill': expected kill:RANK[@CALL]"),
        ("kill:1:2", "--inject 'kill:1:2': expected kill:RANK[@CALL]"),
        ("delay:1", "--inject 'delay:1': expected delay:RANK:SECONDS[@CALL]"),
        ("delay:1:2:3", "--inject 'delay:1:2:3': expected delay:RANK:SECONDS[@CALL]"),
        ("stop:", "--inject 'stop:': expected a rank from 0 to 3, got ''"),
        ("stop:4", "--inject 'stop:4': expected a rank from 0 to 3, got '4'"),
        ("stop:-1", "--inject 'stop:-1': expected a rank from 0 to 3, got '-1'"),
        ("raise:one", "--inject 'raise:one': expected a rank from 0 to 3, got 'one'"),
        ("raise:1.0", "--inject 'raise:1.0': expected a rank from 0 to 3, got '1.0'"),
        ("raise:²", "--inject 'raise:²': expected a rank from 0 to 3, got '²'"),
        ("delay:4:1", "--inject 'delay:4:1': expected a rank from 0 to 3, got '4'"),
        ("never-join:1:2", "--inject 'never-join:1:2': expected never-join:RANK"),
        ("stall-init:1@5", "--inject 'stall-init:1@5': expected stall-init:RANK; it acts on no call"),
        ("never-join:1@", "--inject 'never-join:1@': expected never-join:RANK; it acts on no call"),
        ("skip@5:1", f"--inject 'skip@5:1': {A_CALL}, got '5:1'"),
        ("skip:1@", f"--inject 'skip:1@': {A_CALL}, got ''"),
        ("skip:1@0", f"--inject 'skip:1@0': {A_CALL}, got '0'"),
        ("stop:1@-1", f"--inject 'stop:1@-1': {A_CALL}, got '-1'"),
        ("skip:1@2@3", f"--inject 'skip:1@2@3': {A_CALL}, got '2@3'"),
        ("exit:1@" + "1" * 10, f"--inject 'exit:1@{'1' * 10}': {A_CALL}, got '{'1' * 10}'"),
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
        f"--inject 'delay:1:{seconds}': expected delay:RANK:SECONDS[@CALL] with 0 to 3600 seconds, "
        f"got {seconds!r}"
    )


@given(
    st.text()
    | st.builds(":".join, st.lists(st.sampled_from([*DATA_TWINS, *CONTROL_TWINS]) | st.text(), max_size=4))
    | st.from_regex(r"\A(skip|delay|never-join):[0-9]{1,2}(:[0-9]+)?@[0-9]{0,11}\Z"),
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
    assert 1 <= fault.at_call <= 999_999_999


def test_a_number_with_thousands_of_digits_is_a_rank_that_is_not_there() -> None:
    """Python refuses to read such numbers; the message stays ours."""
    with pytest.raises(InjectionError, match="expected a rank from 0 to 3"):
        parse("kill:" + "9" * 5000, WORLD)
    with pytest.raises(InjectionError, match="expected the number of a call from 1 to 999999999"):
        parse("kill:1@" + "9" * 5000, WORLD)


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

"""The flight recorder: ranks that do not use the door tell what they have entered; dumps may be broken."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import processes
from cpinfra.proof import flight
from cpinfra.proof.attribution import attribute
from cpinfra.proof.evidence import Evidence
from cpinfra.proof.flight import Flight
from cpinfra.proof.generation import Generation
from cpinfra.proof.timeline import Call
from cpinfra.proof.timeline import Signature
from cpinfra.worker import flight as recorder
from cpinfra.worker.ledger import Stage
from cpinfra.worker.spec import GenerationSpec

WORLD = 3
PROGRAM = Path(__file__).with_name("flight_ranks.py")
WORLD_SEQUENCE = "gloo 0 [0, 1, 2]"
PAIR_SEQUENCE = "gloo 1 [0, 1]"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


# ------------------------------------------------------------------------------------- real ranks


@contextmanager
def ranks(scenario: str, folder: Path) -> Iterator[None]:
    """The ranks of a program that goes through a scenario."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(PROGRAM), scenario, str(WORLD), str(folder)]
    process = subprocess.Popen(command, env=environment)
    try:
        yield
    finally:
        process.kill()  # they end with it, stopped or not
        process.wait()


def collect(folder: Path) -> Flight:
    """What the recorders hold now."""
    return flight.collect(folder, range(WORLD), timeout_s=30)


def entered(found: Flight) -> dict[int, list[int]]:
    """Rank -> how many calls of the world and of the pair it has entered."""
    return {
        rank: [
            sum(call.place[0] == sequence for call in track.calls)
            for sequence in (WORLD_SEQUENCE, PAIR_SEQUENCE)
        ]
        for rank, track in found.tracks.items()
    }


def await_entered(folder: Path, wanted: dict[int, list[int]]) -> Flight:
    """The dumps once ranks have entered so much."""
    found = processes.wait_until(
        lambda: last if entered(last := collect(folder)) == wanted else None, f"{wanted}", within_s=60
    )
    assert isinstance(found, Flight)
    return found


def places(found: Flight) -> dict[tuple[str, int], dict[int, Call]]:
    """Place -> rank -> what it entered there."""
    by_place: dict[tuple[str, int], dict[int, Call]] = {}
    for rank, track in found.tracks.items():
        for call in track.calls:
            by_place.setdefault(call.place, {})[rank] = call
    return by_place


def what(call: Call) -> tuple[str, str, Signature]:
    """What ranks must agree on; not the line, which may be another on each."""
    return call.operation, call.group, call.signature


def parted(found: Flight) -> dict[tuple[str, int], dict[int, Call]]:
    """The places at which ranks entered different things."""
    return {place: calls for place, calls in places(found).items() if len(set(map(what, calls.values()))) > 1}


def judged(found: Flight) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Kind, culprits and who waits, of ranks that all stand still."""
    spec = GenerationSpec(
        generation=1,
        dp=1,
        cp0=1,
        cp1=WORLD,
        device="cpu",
        backend="gloo",
        gpu_uuids=(),
        checks=(),
        salt=1,
        faults=(),
        logs="",
        patience_s=60.0,
    )
    hang = attribute(
        Evidence(
            generation=Generation(spec=spec),
            tracks=found.tracks,
            members=found.members,
            states=dict.fromkeys(found.tracks, "S"),
            stuck=found.tracks.keys(),
            stacks={},
            now_ns=time.monotonic_ns(),
        )
    )
    assert hang is not None
    return hang.kind, hang.culprit_ranks, hang.waiting_ranks


def line_of(text: str) -> str:
    """Where a line of the program stands, as a site."""
    lines = PROGRAM.read_text().splitlines()
    return f"{PROGRAM}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


def test_a_rank_that_skips_a_collective_parts_at_that_place(tmp_path: Path) -> None:
    """Only the place of the skipped call differs; sites, times, groups and what is open are right."""
    before_ns = time.monotonic_ns()
    with ranks("skip", tmp_path):
        found = await_entered(tmp_path, {0: [2, 1], 1: [2, 1], 2: [2, 0]})
        now_ns = time.monotonic_ns()

    assert found.unavailable == {}
    assert found.members == {WORLD_SEQUENCE: (0, 1, 2), PAIR_SEQUENCE: (0, 1)}
    assert judged(found) == ("mismatched-operation", (1,), (0, 2))
    ((place, calls),) = parted(found).items()
    assert place == (WORLD_SEQUENCE, 2)
    all_reduce = ("all_reduce", "world", Signature(dtype="float32", shape=(2, 3)))
    broadcast = ("broadcast", "world", Signature(dtype="float32", shape=(5,)))
    assert {rank: what(call) for rank, call in calls.items()} == {0: all_reduce, 1: broadcast, 2: all_reduce}
    assert calls[1].site == line_of("dist.broadcast(torch.ones(5), src=0)")
    assert not any(call.left for call in calls.values())
    for track in found.tracks.values():
        assert track.stage is Stage.RUNNING
        assert all(call.left for call in track.calls if call.place != place)
        times = [before_ns, track.since_ns, *(call.entered_ns for call in track.calls), now_ns]
        assert times == sorted(times)


def test_members_of_a_group_that_have_not_come_can_be_told(tmp_path: Path) -> None:
    """A rank that is absent has nothing at the place where the others are, and does not part from them."""
    with ranks("absent", tmp_path):
        found = await_entered(tmp_path, {0: [2, 1], 1: [1, 1], 2: [2, 0]})

    assert judged(found) == ("never-entered", (1,), (0, 2))
    last = places(found)[WORLD_SEQUENCE, 2]
    assert parted(found) == {}
    assert set(found.members[WORLD_SEQUENCE]) - set(last) == {1}
    # torch's compiler is not imported there, and asking for frames would import it.
    assert {call.site for call in last.values()} == {""}


@pytest.mark.parametrize(
    ("scenario", "wanted", "got"),
    [
        ("shape", "broadcast of float32[2x3] on world", "broadcast of float32[2x4] on world"),
        ("dtype", "broadcast of float32[2x3] on world", "broadcast of bfloat16[2x3] on world"),
        ("operation", "all_reduce of float32[2x3] on world", "reduce of float32[2x3] on world"),
    ],
)
def test_another_shape_dtype_or_operation_shows(scenario: str, wanted: str, got: str, tmp_path: Path) -> None:
    """Rank 1 differs from the others at the second place of the world, and nowhere else."""
    first = [1, 1] if scenario in ("shape", "dtype") else [2, 1]
    with ranks(scenario, tmp_path):
        found = await_entered(tmp_path, {0: first, 1: [2, 1], 2: [2, 0]})

    ((place, calls),) = parted(found).items()
    assert place == (WORLD_SEQUENCE, 2)
    # Where the root has not come, nothing tells which of the two others is right.
    kind = f"mismatched-{scenario}"
    assert judged(found) == ((kind, (1,), (0, 2)) if scenario == "operation" else (kind, (), (0, 1, 2)))
    texts = {rank: str(call).partition(" at ")[0] for rank, call in calls.items()}
    assert texts.pop(1) == got
    assert set(texts.values()) == {wanted}


def test_what_may_differ_between_ranks_does_not(tmp_path: Path) -> None:
    """Roots of scatter and gather, uneven splits, other peers and several tensors look alike on all ranks."""
    with ranks("right", tmp_path):
        found = await_entered(tmp_path, {0: [6, 1], 1: [6, 1], 2: [6, 0]})

    assert parted(found) == {}
    texts = [str(call).partition(" at ")[0] for call in found.tracks[1].calls]
    assert texts == [
        "all_reduce of float32[4] on world",
        "all_reduce of int64[2] on pair (ranks 0, 1)",
        "scatter of float32[3] on world",
        "gather of float32[3] on world",
        "all_to_all of float32[-] on world",
        "all_reduce of float32[2, 3x1] on world",
        "barrier of -[-] on world",
    ]
    sites = {call.site.rpartition(":")[0] for track in found.tracks.values() for call in track.calls}
    assert sites == {str(PROGRAM)}


def test_operations_of_an_earlier_group_of_the_same_name_are_left_out(tmp_path: Path) -> None:
    """After all have left and joined anew, a rank that has entered nothing since stands at no old place."""

    def rejoined() -> Flight | None:
        """Not yet where a rank has left its old groups and not joined anew: it has entered nothing either."""
        found = await_entered(tmp_path, {0: [1, 0], 1: [0, 0], 2: [0, 0]})
        return found if {track.stage for track in found.tracks.values()} == {Stage.RUNNING} else None

    with ranks("again", tmp_path):
        found = processes.wait_until(rejoined, "that all ranks have joined anew", within_s=60)

    assert [what(call)[0] for call in found.tracks[0].calls] == ["broadcast"]


def test_a_rank_that_has_left_all_groups_says_so(tmp_path: Path) -> None:
    """It has no calls any more, and its stage is the last one."""

    def left() -> Flight | None:
        found = collect(tmp_path)
        return found if {track.stage for track in found.tracks.values()} == {Stage.LEFT} else None

    with ranks("leave", tmp_path):
        found = processes.wait_until(left, "the end of all groups", within_s=60)

    assert {len(track.calls) for track in found.tracks.values()} == {0}


def test_a_stopped_or_ended_rank_has_no_dump(tmp_path: Path) -> None:
    """One that never ran, one that cannot answer and one that is gone are told apart; others are read."""

    def is_told(found: Flight) -> bool:
        return found.unavailable == {
            0: "no answer in time: No such file or directory",
            2: "no reporter listens: No such device or address",
            3: "no reporter listens: No such file or directory",
        }

    with ranks("absent", tmp_path):
        await_entered(tmp_path, {0: [2, 1], 1: [1, 1], 2: [2, 0]})
        stopped, killed = (int((tmp_path / f"{rank}.pid").read_text()) for rank in (0, 2))
        os.kill(stopped, signal.SIGSTOP)
        os.kill(killed, signal.SIGKILL)
        # The threads of a killed rank end one by one, the reporter's in any order.
        found = processes.wait_until(
            lambda: last if is_told(last := flight.collect(tmp_path, range(4), timeout_s=0.3)) else None,
            "what became of each rank",
        )

    assert set(found.tracks) == {1}


# ----------------------------------------------------------------------------------- the reporter


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.5.1+cu124", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        ("2.7.1", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        ("2.8.0a0+gitabc", "TORCH_FR_BUFFER_SIZE"),
        ("2.13.0", "TORCH_FR_BUFFER_SIZE"),
        ("3.0.0", "TORCH_FR_BUFFER_SIZE"),
        ("a build of one's own", "TORCH_FR_BUFFER_SIZE"),
    ],
)
def test_only_the_variable_that_this_torch_knows_is_set(version: str, name: str) -> None:
    """The old name until 2.7, the new one since: torch warns of the other."""
    assert recorder.environment(version) == {name: "2000"}


def answer(folder: Path, torch: object, monkeypatch: pytest.MonkeyPatch) -> Flight:
    """What a reporter in this process tells of that torch."""
    monkeypatch.setitem(sys.modules, "torch", torch)
    recorder.Reporter(folder, 0).start()
    return flight.collect(folder, [0], timeout_s=30)


def fake_torch(**core: Callable[..., bytes]) -> SimpleNamespace:
    """A torch without groups, with these names in its private module."""
    dist = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    inner = SimpleNamespace(_distributed_c10d=SimpleNamespace(**core))
    return SimpleNamespace(__version__="2.1.0", __file__="/t/torch/__init__.py", distributed=dist, _C=inner)


def test_a_torch_without_a_recorder_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank is unavailable, and the reason names the version and what it lacks."""
    found = answer(tmp_path, fake_torch(), monkeypatch)

    assert found.unavailable == {0: "torch 2.1.0 has none of _dump_nccl_trace, _dump_fr_trace"}


def test_whatever_torch_raises_becomes_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread lives on, and answers the next request as well."""

    def broken(*arguments: bool) -> bytes:
        raise MemoryError("no room")

    assert answer(tmp_path, fake_torch(_dump_fr_trace=broken), monkeypatch).unavailable == {
        0: "MemoryError: no room"
    }
    assert flight.collect(tmp_path, [0], timeout_s=30).unavailable == {0: "MemoryError: no room"}


def test_a_program_that_has_not_imported_torch_has_entered_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stage is the first, and asking imports nothing."""
    found = answer(tmp_path, None, monkeypatch)

    assert found.tracks[0].stage is Stage.FORKED
    assert found.tracks[0].calls == ()


class _Group(SimpleNamespace):
    """A process group, which can be a key."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def test_a_recorder_that_is_off_is_no_empty_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a group has entered operations of which nothing is recorded, the rank is unavailable."""
    backend = SimpleNamespace(name=lambda: "gloo", _get_sequence_number_for_group=lambda: 3)
    group = _Group(_device_types=["cpu"], _get_backend=lambda device: backend)
    torch = fake_torch(_dump_fr_trace=lambda *arguments: b"}.")  # an empty dictionary, pickled
    torch.distributed.is_initialized = lambda: True
    torch.distributed.get_process_group_ranks = lambda group: [0]
    world = SimpleNamespace(pg_map=[group], pg_names=defaultdict(lambda: "0"))
    torch.distributed.distributed_c10d = SimpleNamespace(_world=world)

    found = answer(tmp_path, torch, monkeypatch)

    assert found.unavailable == {0: "torch 2.1.0 has recorded none of the operations that were entered"}


def test_a_later_rank_of_the_same_number_answers_in_place_of_the_earlier(tmp_path: Path) -> None:
    """Whatever a rank that is gone has left in the folder."""
    os.mkfifo(recorder.request_path(tmp_path, 0))

    recorder.Reporter(tmp_path, 0).start()

    assert list(flight.collect(tmp_path, [0], timeout_s=30).tracks) == [0]


def test_a_folder_that_cannot_be_written_stops_no_program(tmp_path: Path) -> None:
    """The reporter does not start, without an exception and without a thread."""
    before = threading.active_count()

    recorder.Reporter(tmp_path / "gone", 0).start()

    assert threading.active_count() == before


# -------------------------------------------------------------------------------- dumps, as read


def entry(number: int, name: str, **other: Any) -> dict[str, Any]:
    """One entry as NCCL records it."""
    return {
        "process_group": ["0", "default_pg"],
        "op_id": number,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "is_p2p": "->" in name or "<-" in name,
        "profiling_name": f"nccl:{name}",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "time_created_ns": 1000 + number,
        "state": "completed",
        "retired": True,
        "site": "",
        **other,
    }


def dump(rank: int, *entries: dict[str, Any], members: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    """A whole dump."""
    return {
        "rank": rank,
        "started_ns": 1,
        "clock_offset_ns": 900,
        "groups": {"0": list(members)},
        "recorded": len(entries),
        "entries": list(entries),
    }


def test_the_first_send_of_a_pair_meets_the_first_receive() -> None:
    """Whatever else either does between: by pair and direction, in the world's ranks, whatever the shape."""
    shapes = {"input_sizes": [[2, 2]], "output_sizes": [[2, 2]]}
    found = flight.tracks(
        {
            4: dump(4, entry(1, "send 0->2"), entry(2, "send 0->1", **shapes), members=(4, 5, 6)),
            5: dump(5, entry(1, "recv 1<-0"), entry(2, "recv 1<-0"), members=(4, 5, 6)),
        }
    )

    assert parted(found) == {}
    assert {place: sorted(calls) for place, calls in places(found).items()} == {
        ("nccl 0 [4, 5, 6] 4->6", 1): [4],
        ("nccl 0 [4, 5, 6] 4->5", 1): [4, 5],
        ("nccl 0 [4, 5, 6] 4->5", 2): [5],
    }
    assert found.members["nccl 0 [4, 5, 6] 4->5"] == (4, 5)
    assert str(found.tracks[4].calls[1]) == "send/recv 4->5 of float32[4] on world"


def test_the_end_of_a_batch_tells_the_state_of_its_transfers() -> None:
    """NCCL keeps that in an entry of its own, which is no operation and no step of the group."""
    transfer = {"collective_seq_id": 1, "state": "scheduled", "retired": False}
    batches = [
        entry(2, "send 0->1", p2p_seq_id=1, **transfer),
        entry(2, "coalesced", p2p_seq_id=1, **{**transfer, "state": "completed"}),
        entry(3, "send 0->1", p2p_seq_id=2, **transfer),
        entry(3, "coalesced", p2p_seq_id=2, **transfer),
    ]

    calls = flight.tracks({0: dump(0, entry(1, "all_reduce"), *batches)}).tracks[0].calls

    assert [(call.operation, call.left) for call in calls] == [
        ("all_reduce", True),
        ("send/recv 0->1", True),
        ("send/recv 0->1", False),
    ]


def test_what_nccl_has_retired_for_a_time_out_is_not_left() -> None:
    """Only what completed is; gloo keeps no state, there whatever is retired has been left."""
    entries = [
        entry(1, "all_reduce", state="started"),
        entry(1, "all_reduce", profiling_name="gloo:all_reduce", state="scheduled"),
    ]

    calls = flight.tracks({0: dump(0, *entries)}).tracks[0].calls

    assert [call.left for call in calls] == [False, True]


def test_a_ring_that_went_round_gives_only_what_can_be_counted() -> None:
    """Transfers are left out, and of collectives the oldest, of whose batch parts may be lost."""
    entries = [
        entry(7, "all_gather", collective_seq_id=5),
        entry(8, "send 0->1", collective_seq_id=5),
        entry(9, "all_reduce", collective_seq_id=6),
        entry(10, "broadcast", collective_seq_id=6),
    ]

    calls = flight.tracks({0: dump(0, *entries)}).tracks[0].calls

    assert [(call.place, call.operation) for call in calls] == [
        (("nccl 0 [0, 1]", 6), "all_reduce"),
        (("nccl 0 [0, 1] +1", 6), "broadcast"),
    ]


def test_operations_of_a_group_that_is_not_known_are_left_out() -> None:
    """Who should come to them cannot be told."""
    stranger = entry(1, "all_reduce", process_group=["9", "gone"])
    transfer = entry(1, "send 0->7")

    assert flight.tracks({0: dump(0, stranger, transfer)}).tracks[0].calls == ()


@pytest.mark.parametrize(
    ("description", "text"),
    [("default_pg", "world"), ("undefined", "ranks 0, 1"), ("", "ranks 0, 1"), ("cp0", "cp0 (ranks 0, 1)")],
)
def test_a_group_is_called_by_what_the_program_says(description: str, text: str) -> None:
    """And by its members, but for the world."""
    found = flight.tracks({0: dump(0, entry(1, "barrier", process_group=["0", description]))})

    assert found.tracks[0].calls[0].group == text


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (None, "got NoneType, expected an object with rank"),
        ([], "got list, expected an object with rank"),
        ({}, "rank: got NoneType, expected int"),
        ({"unavailable": "torch is too old"}, "torch is too old"),
        ({"unavailable": 3}, "unavailable: got int, expected str"),
        (dump(1), "got a dump of rank 1, expected rank 0"),
        ({**dump(0), "entries": {}}, "entries: got dict, expected list"),
        ({**dump(0), "entries": [3]}, "entries: got int in it, expected dict"),
        ({**dump(0), "groups": {"0": [True]}}, "0: got bool in it, expected int"),
        (dump(0, entry(1, "x", state=None)), "state: got NoneType, expected str"),
        (dump(0, entry(1, "x", process_group=["0"])), "process_group: got 1 texts, expected a name and a"),
        (dump(0, entry(1, "x", input_sizes=[])), "input_sizes: got 0, expected one for each of 1 dtypes"),
        (dump(0, entry(1, "x", output_sizes=[["4"]])), "output_sizes: got str in it, expected int"),
    ],
)
def test_what_is_no_dump_is_unavailable_with_a_reason(broken: object, reason: str) -> None:
    """The reason says what was got and expected, and the other rank's dump is read."""
    found = flight.tracks({0: broken, 1: dump(1, entry(1, "all_reduce"))})

    assert found.unavailable[0].startswith(reason)
    assert list(found.tracks) == [1]


@given(JSON)
def test_no_json_at_all_ends_in_an_exception(value: object) -> None:
    """Each dump is read or unavailable, never both."""
    found = flight.tracks({0: value})

    assert len(found.tracks) + len(found.unavailable) == 1


@given(st.data())
def test_no_dump_with_one_wrong_value_ends_in_an_exception(data: st.DataObject) -> None:
    """Whichever field of a whole dump, on whatever level, is replaced or missing."""
    broken = copy.deepcopy(dump(0, entry(1, "all_reduce"), entry(2, "send 0->1"), entry(2, "coalesced")))
    inside: Any = broken
    while True:
        keys = list(inside) if isinstance(inside, dict) else range(len(inside))
        key = data.draw(st.sampled_from(keys))
        if isinstance(inside[key], (dict, list)) and inside[key] and data.draw(st.booleans()):
            inside = inside[key]
        else:
            break
    inside[key] = data.draw(JSON)

    found = flight.tracks({0: broken})

    assert len(found.tracks) + len(found.unavailable) == 1


@pytest.mark.parametrize("text", ["", "{", json.dumps(dump(0))[:-5], "[" * 100_000, "\xff", "NaN"])
def test_a_file_that_is_no_json_is_unavailable(text: str, tmp_path: Path) -> None:
    """Truncated, nested without end, in no known encoding: whatever a dying process has left."""
    recorder.dump_path(tmp_path, 0).write_bytes(text.encode("latin-1"))

    found = flight.tracks({0: flight._read(tmp_path, 0)})

    assert list(found.unavailable) == [0]

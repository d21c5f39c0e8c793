"""Who is to blame: named from what ranks recorded, how they ended and what state they are in."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from cpinfra.proof.attribution import attribute
from cpinfra.proof.evidence import Evidence
from cpinfra.proof.generation import Generation
from cpinfra.proof.hang import OOM_REMEDY
from cpinfra.proof.hang import REMEDIES
from cpinfra.proof.hang import Hang
from cpinfra.proof.oom import OomKills
from cpinfra.proof.timeline import Track
from cpinfra.proof.timeline import from_ledger
from cpinfra.text import ranks_text
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import RankView
from cpinfra.worker.ledger import Record
from cpinfra.worker.ledger import Stage
from cpinfra.worker.signals import RANK_BUG_EXIT
from cpinfra.worker.spec import GenerationSpec

LOST = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:40402"
SECOND_NS = 1_000_000_000
NOW_NS = 1000 * SECOND_NS
TORCH = "/venv/lib/site-packages/torch"
IN_TORCH = """Current thread 0x00007f0000000001 (most recent call first):
  File "/venv/lib/site-packages/torch/distributed/distributed_c10d.py", line 3069 in all_reduce
  File "/site/_cpinfra_worker/worker/comm.py", line 180 in _run
"""
STACK = """Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 300 in wait

Current thread 0x00007f0000000001 (most recent call first):
  File "/site/_cpinfra_worker/worker/control.py", line 42 in <lambda>
  File "/site/_cpinfra_worker/worker/comm.py", line 180 in _run
"""


def entered(number: int, **changes: Any) -> dict[str, Any]:
    """What the door records when it enters its call of this number."""
    return {
        "check": "collective.all_reduce",
        "repetition": 2,
        "site": f"collective.py:{50 + number}",
        "operation": "all_reduce",
        "group": "world",
        "first": number == 1,
        "shape": [1021, 3],
        "dtype": "float32",
        "call": number,
        **changes,
    }


def view(
    stage: Stage = Stage.RUNNING, *, inside: int = 0, left: int = 0, ago_s: float = 2.0, **changes: Any
) -> RankView:
    """What a rank shows that is inside of, or has last left, the call of this number, so long ago."""
    last = inside or left
    time_ns = NOW_NS - int(ago_s * SECOND_NS)
    records = []
    for number in range(1, last + 1):
        records.append((Kind.ENTER, entered(number, **changes)))
        if number != inside:
            records.append((Kind.LEAVE, {"call": number}))
    return RankView(
        pid=100,
        stage=stage,
        stage_since_ns=time_ns - SECOND_NS,
        digest=bytes(32),
        written=len(records),
        records=tuple(
            Record(sequence=i + 1, time_ns=time_ns - len(records) + i + 1, kind=kind, call=call)
            for i, (kind, call) in enumerate(records)
        ),
    )


def ring(stuck: int, world: int, at: int) -> list[RankView]:
    """A ring of exchanges in which one rank stands inside of a call: who is further from it is further on."""
    distances = [min(abs(rank - stuck), world - abs(rank - stuck)) for rank in range(world)]
    return [view(inside=at + distance) for distance in distances]


def generation(
    world: int,
    *,
    released: bool = False,
    exits: Mapping[int, Any] | None = None,
    at: Mapping[int, float] | None = None,
) -> Generation:
    """A generation of which some ranks have ended, with an exit code or by a signal, all at once or `at`."""
    spec = GenerationSpec(
        generation=1,
        dp=1,
        cp0=1,
        cp1=world,
        device="cpu",
        backend="gloo",
        gpu_uuids=(),
        checks=("collective.all_reduce",),
        salt=1,
        faults=(),
        logs="",
        patience_s=60.0,
    )
    made = Generation(spec=spec, pids=tuple(range(100, 100 + world)), released=released)
    for rank, how in (exits or {}).items():
        ended = {"code": how, "signal": None} if isinstance(how, int) else {"code": None, "signal": how}
        made.absorb({"event": "exited", "rank": rank, **ended}, (at or {}).get(rank, 1000.0))
    return made


def raised_in(track: Track) -> Track:
    """The same rank, whose last call torch has ended by an exception."""
    *before, last = track.calls
    return replace(track, calls=(*before, replace(last, left=True, raised="RuntimeError")))


def judged(
    *views: RankView,
    exits: Mapping[int, Any] | None = None,
    released: bool = False,
    stuck: Collection[int] = (),
    states: Mapping[int, str] | None = None,
    stacks: Mapping[int, str] | None = None,
    at: Mapping[int, float] | None = None,
    raised: Mapping[int, str] | None = None,
    raised_outside: Mapping[int, str] | None = None,
    planted: tuple[str, ...] = (),
    **more: Any,
) -> Hang | None:
    """The judgement over one view a rank; what ranks raised in torch and outside, as texts."""
    made = generation(len(views), exits=exits, released=released, at=at)
    made.torch_path = TORCH
    made.spec = replace(made.spec, faults=planted)
    for site, texts in (("collective.py:53", raised), ("", raised_outside)):
        for rank, text in (texts or {}).items():
            error = {"type": "RuntimeError", "text": text, "site": site}
            answer = {"rank": rank, "broken": True, "bug": not site, "error": error, "calls": {"digest": "0"}}
            made.answers.setdefault("collective.all_reduce", {})[rank] = answer
    tracks = {rank: from_ledger(rank, one) for rank, one in enumerate(views)}
    for rank in raised or {}:
        if rank not in more.get("disturbed", ()):  # these stand where they were, as the watch gives them
            tracks[rank] = raised_in(tracks[rank])
    return attribute(
        Evidence(
            generation=made,
            tracks=tracks,
            states={**dict.fromkeys(range(len(views)), "S"), **(states or {})},
            stuck=stuck,
            stacks=stacks or {},
            now_ns=NOW_NS,
            **more,
        )
    )


def named(hang: Hang | None) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Kind, culprits, and who waits or was lost to it."""
    assert hang is not None
    assert {culprit.kind for culprit in hang.culprits} <= set(hang.kinds)
    assert all(REMEDIES[kind] in hang.remedy for kind in hang.kinds)
    assert not {*hang.waiting_ranks} & {*hang.victims}
    return hang.kind, hang.culprit_ranks, tuple(sorted([*hang.waiting_ranks, *hang.victims]))


def test_nobody_who_neither_died_nor_stood_still_is_blamed() -> None:
    """A generation in which somebody only raised, or nothing happened, has no hang."""
    assert judged(view(inside=1), view(inside=1)) is None
    assert judged(view(left=1), view(inside=1), raised={0: LOST}) is None
    assert judged(view(left=1), view(inside=1), raised_outside={0: "ours"}) is None
    assert judged(view(Stage.LEFT), view(Stage.LEFT), released=True, exits={0: 0, 1: 0}) is None


def test_a_rank_that_died_is_named_with_what_it_was_in() -> None:
    """By its signal; what was expected of it is the call that it was in; the others wait."""
    hang = judged(view(inside=3), view(inside=3, ago_s=1.5), view(inside=3), exits={1: "SIGSEGV"})

    assert named(hang) == ("process-died", (1,), (0, 2))
    assert hang is not None
    assert hang.check == "collective.all_reduce"
    assert hang.seconds_to_verdict == pytest.approx(1.5)
    where = "all_reduce of float32[1021x3] on world at collective.py:53, repetition 2"
    assert hang.sentence() == f"process-died: rank 1: ended by SIGSEGV, expected {where}; waiting: ranks 0, 2"


def test_a_rank_that_died_between_calls_was_expected_in_the_one_that_others_wait_in() -> None:
    """What the peers are inside of tells what the dead rank should have entered."""
    hang = judged(view(inside=4), view(left=3), exits={1: "SIGKILL"})

    assert hang is not None
    (culprit,) = hang.culprits
    assert culprit.expected == "all_reduce of float32[1021x3] on world at collective.py:54, repetition 2"
    assert (culprit.operation, culprit.group, culprit.site) == ("all_reduce", "world", "collective.py:54")


def test_two_ranks_that_died_are_both_named_each_with_its_own_end() -> None:
    """A signal and an exit code; also an exit with 0 that nobody had asked for."""
    hang = judged(view(inside=3), view(inside=3), view(left=2), view(left=2), exits={3: "SIGKILL", 2: 7})
    assert named(hang) == ("process-died", (2, 3), (0, 1))
    assert hang is not None
    assert [culprit.got for culprit in hang.culprits] == ["ended by exit code 7", "ended by SIGKILL"]

    early = judged(view(inside=1), view(left=1), exits={1: 0})
    assert early is not None
    assert early.culprits[0].got == "ended by exit code 0"


def test_a_death_while_leaving_belongs_to_no_check() -> None:
    """After the release an exit with 0 is as it must be; any other is a death at the end."""
    hang = judged(
        view(Stage.LEFT, left=5), view(Stage.LEAVING, left=5), released=True, exits={0: 0, 1: "SIGABRT"}
    )

    assert named(hang) == ("process-died", (1,), ())
    assert hang is not None
    assert hang.check is None
    assert hang.culprits[0].expected == "to run"


def test_a_death_before_any_call_belongs_to_no_check() -> None:
    """While ranks join, no check is running."""
    hang = judged(view(Stage.JOINING), view(Stage.DEVICE), exits={1: "SIGKILL"})

    assert named(hang) == ("process-died", (1,), (0,))
    assert hang is not None
    assert hang.check is None


def test_a_victim_that_raised_is_waiting_and_no_culprit() -> None:
    """A peer that lost the dead rank's connection raised because of it: it waited, as the others did."""
    hang = judged(view(inside=3), view(inside=3), view(left=3), exits={0: "SIGKILL"}, raised={2: LOST})

    assert named(hang) == ("process-died", (0,), (1, 2))


def test_a_victim_that_raised_is_not_called_absent_either() -> None:
    """It left its call by an exception, and so enters no more; the rank that stays away is another."""
    hang = judged(view(inside=4), view(left=3), view(left=3), stuck=[0, 1, 2], raised={2: LOST})

    assert named(hang) == ("never-entered", (1,), (0, 2))


@pytest.mark.parametrize(
    "text",
    [
        LOST,
        "Read error [127.0.0.1]:2048: Connection reset by peer",
        "writev [127.0.0.1]:2048: Broken pipe",
        "Timed out waiting 60000ms for recv operation to complete",
        "Application timeout caused pair closure",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
    ],
)
def test_the_words_of_a_lost_peer_are_known(text: str) -> None:
    """gloo's and NCCL's: who says them has lost the one that stays away."""
    hang = judged(view(inside=4), view(left=3), view(left=3), stuck=[1], raised={2: text})

    assert named(hang) == ("never-entered", (1,), (0, 2))


@pytest.mark.parametrize(
    "raised",
    [
        {"raised": {2: "CUDA error: an illegal memory access was encountered"}},
        {"raised_outside": {2: "KeyError: 'ours'"}},
        {"raised_outside": {2: LOST}},
        {"raised": {0: LOST}, "raised_outside": {2: "KeyError: 'ours'"}},
    ],
)
def test_an_exception_that_no_lost_peer_explains_outweighs_who_stays_away(raised: dict[str, Any]) -> None:
    """What was raised in torch for a reason of its own, and all that was raised outside, is no hang."""
    assert judged(view(inside=4), view(left=3), view(left=3), stuck=[0, 1], **raised) is None


def test_trouble_of_a_stage_counts_as_raised_too() -> None:
    """In the door or not: a rank that could not join is no latecomer, nor are those who wait for it."""
    stages = (Stage.JOINING, Stage.AGREEING, Stage.AGREEING)
    tracks = {rank: from_ledger(rank, view(stage)) for rank, stage in enumerate(stages)}
    states = dict.fromkeys(tracks, "S")
    for kind, text in (("door", LOST), ("door", "no such interface"), ("ours", "other plans")):
        made = generation(3)
        made.absorb({"event": "trouble", "rank": 0, "kind": kind, "type": "E", "text": text}, 1000.0)
        told = Evidence(generation=made, tracks=tracks, states=states, stuck=[1, 2], stacks={}, now_ns=NOW_NS)
        assert attribute(told) is None


def test_who_complains_of_a_lost_peer_where_nobody_is_behind_is_no_hang() -> None:
    """All that is known is what it raised."""
    assert judged(view(inside=4), view(inside=4), view(left=3), stuck=[0, 1], raised={2: LOST}) is None


@pytest.mark.parametrize("state", ["T", "t"])
def test_stopped_ranks_are_named_before_anything_else(state: str) -> None:
    """Both of two; a stopped rank could not have entered anything, so it is not called absent."""
    hang = judged(
        view(inside=4), view(left=3), view(left=3), view(left=3), stuck=[1, 2], states={1: state, 2: state}
    )

    assert named(hang) == ("process-stopped", (1, 2), (0,))
    assert hang is not None
    assert {culprit.got for culprit in hang.culprits} == {f"is stopped (state {state})"}
    assert {culprit.site for culprit in hang.culprits} == {"collective.py:54"}


def test_a_tracer_that_looks_at_a_rank_has_not_stopped_it() -> None:
    """State t counts only past the budget: here another rank stands still."""
    hang = judged(view(inside=4), view(inside=4), view(left=3), stuck=[2], states={1: "t"})

    assert named(hang) == ("never-entered", (2,), (0, 1))


def test_a_stop_outweighs_what_the_stopped_rank_does_to_others() -> None:
    """Its peers that abort, or give up, died of it: they had waited."""
    hang = judged(
        view(inside=3),
        view(left=2),
        view(inside=3),
        exits={0: "SIGABRT", 2: 1},
        at={0: 999.0, 2: 1000.0},
        states={1: "T"},
    )

    assert named(hang) == ("process-stopped", (1,), (0, 2))


def test_a_stop_outweighs_an_exception() -> None:
    """Of our own code, too: without it the stopped rank would still have stopped the others."""
    hang = judged(view(left=3), view(left=2), raised_outside={0: "KeyError"}, states={1: "T"})

    assert named(hang) == ("process-stopped", (1,), ())


def test_a_stop_and_a_death_of_their_own_are_both_named_each_for_its_own() -> None:
    """Neither explains the other; a rank that is stopped is named whether or not it has become stuck yet."""
    hang = judged(view(inside=3), view(left=2), view(inside=3), exits={0: "SIGKILL"}, states={1: "T"})

    assert named(hang) == ("process-stopped", (0, 1), (2,))
    assert hang is not None
    assert [culprit.kind for culprit in hang.culprits] == ["process-died", "process-stopped"]
    where = "all_reduce of float32[1021x3] on world at collective.py:53, repetition 2"
    assert hang.sentence() == (
        f"process-stopped: rank 1: is stopped (state T), expected {where}; "
        f"process-died: rank 0: ended by SIGKILL, expected {where}; waiting: rank 2"
    )
    stopped, died = REMEDIES["process-stopped"], REMEDIES["process-died"]
    assert hang.remedy == f"process-stopped: {stopped}; process-died: {died}"


def test_who_aborts_because_a_peer_was_killed_is_a_victim() -> None:
    """Whether it was heard of before or after: gloo aborts neighbours, and reaping knows no order."""
    views = [view(inside=3)] * 4
    for first in (1, 2, 3):
        hang = judged(*views, exits={2: "SIGKILL", 1: "SIGABRT", 3: "SIGABRT"}, at={first: 999.0})
        assert named(hang) == ("process-died", (2,), (0, 1, 3))


@pytest.mark.parametrize(
    "how", ["SIGKILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTERM", "signal 40", 0, 7]
)
def test_what_no_lost_peer_does_to_a_process_is_to_blame(how: str | int) -> None:
    """Before those who aborted, wrote to nobody, or gave up, though these died first."""
    hang = judged(
        *[view(inside=3)] * 4,
        exits={1: "SIGABRT", 0: how, 2: 1, 3: "SIGPIPE"},
        at={0: 1000.0, 1: 999.0, 2: 998.0, 3: 999.5},
    )

    assert named(hang) == ("process-died", (0,), (1, 2, 3))


@pytest.mark.parametrize(("later_s", "culprits"), [(0.0, (0, 2)), (0.049, (0, 2)), (0.051, (0,))])
def test_of_equal_deaths_the_first_is_to_blame_and_what_came_with_it(
    later_s: float, culprits: tuple[int, ...]
) -> None:
    """Two that crash together are both named; one that crashed later may have crashed of that."""
    exits = {0: "SIGSEGV", 2: "SIGBUS"}
    hang = judged(*[view(inside=3)] * 3, exits=exits, at={2: 1000.0 + later_s})

    assert named(hang) == ("process-died", culprits, tuple({0, 1, 2}.difference(culprits)))


@pytest.mark.parametrize("later_s", [0.003, 0.3, 30.0])
def test_every_rank_that_was_killed_is_named(later_s: float) -> None:
    """Somebody sent each SIGKILL, however far apart, also where a crash came first."""
    hang = judged(
        *[view(inside=3)] * 4,
        exits={0: "SIGKILL", 3: "SIGKILL", 1: "SIGSEGV"},
        at={0: 1000.0 + later_s, 3: 1000.0 + 2 * later_s},
    )

    assert named(hang) == ("process-died", (0, 1, 3), (2,))


@pytest.mark.parametrize("how", ["SIGABRT", 1])
def test_of_those_who_may_all_be_victims_the_first_is_named_alone(how: str | int) -> None:
    """It died of no other that we know of; those after it may have died of it."""
    exits = {0: how, 1: "SIGABRT", 3: "SIGABRT"}
    hang = judged(*[view(inside=3)] * 4, exits=exits, at={0: 999.0, 1: 999.01})

    assert named(hang) == ("process-died", (0,), (1, 2, 3))
    assert named(judged(*[view(inside=3)] * 2, exits={1: how})) == ("process-died", (1,), (0,))


def test_where_two_abort_at_once_nobody_is_named() -> None:
    """They were collected in one go: nothing tells which of them died of the other."""
    hang = judged(*[view(inside=3)] * 3, exits={0: "SIGABRT", 2: "SIGABRT"}, at={2: 1000.0002})

    assert named(hang) == ("process-died", (), (0, 1, 2))
    assert hang is not None
    assert hang.sentence() == (
        "process-died: nothing tells which rank is to blame; waiting: rank 1; "
        "lost to it: ranks 0, 2 (ended by SIGABRT)"
    )


def test_a_rank_that_stays_away_is_named_with_the_line_it_is_at() -> None:
    """The others are inside of the next call; the culprit's stack says where it is instead."""
    hang = judged(
        view(inside=4),
        view(left=3, ago_s=9.0),
        view(inside=4),
        stuck=[0, 1, 2],
        stacks={1: STACK, 0: "no stack"},
    )

    assert named(hang) == ("never-entered", (1,), (0, 2))
    assert hang is not None
    where = "all_reduce of float32[1021x3] on world at collective.py:54, repetition 2"
    got = "is at control.py:42 in <lambda>, running checks"
    assert hang.sentence() == f"never-entered: rank 1: {got}, expected {where}; waiting: ranks 0, 2"
    assert hang.check == "collective.all_reduce"
    assert hang.seconds_to_verdict == pytest.approx(9.0)


def test_two_ranks_that_stay_away_are_both_named() -> None:
    """What is expected of each is its next call; a stack that says nothing is said to say nothing."""
    hang = judged(view(inside=3), view(left=1), view(left=1), stuck=[0, 1, 2])

    assert named(hang) == ("never-entered", (1, 2), (0,))
    assert hang is not None
    assert hang.culprits[0].got == "is at an unknown place, running checks"
    assert {culprit.site for culprit in hang.culprits} == {"collective.py:52"}


def test_of_ranks_at_different_calls_only_the_last_can_be_what_all_wait_for() -> None:
    """A rank between two calls that is further than another is no reason for that other to wait."""
    hang = judged(view(inside=3), view(), view(left=1), stuck=[0, 1, 2])

    assert named(hang) == ("never-entered", (1,), (0,))


def test_where_all_are_inside_of_the_same_call_nobody_is_named() -> None:
    """Every rank waits in the backend: the message names no rank, and says so."""
    hang = judged(view(inside=3), view(inside=3), stuck=[0, 1])

    assert named(hang) == ("stuck-inside-backend", (), (0, 1))
    assert hang is not None
    assert hang.sentence() == (
        "stuck-inside-backend: nothing tells which rank is to blame; waiting: ranks 0, 1"
    )


@pytest.mark.parametrize(("stuck", "world"), [(3, 8), (0, 2), (1, 3), (2, 4)])
def test_in_a_ring_nobody_is_named_for_being_behind(stuck: int, world: int) -> None:
    """Unequal progress is normal around a ring: who is behind waits for a message, as all others do."""
    hang = judged(*ring(stuck, world, 5), stuck=range(world))

    assert named(hang) == ("stuck-inside-backend", (), tuple(range(world)))


def test_in_a_ring_who_has_not_entered_is_named_alone() -> None:
    """Of eight ranks on five levels; what is expected of it is its own next call, not the furthest one."""
    views = ring(3, 8, 5)
    views[3] = view(left=5)
    hang = judged(*views, stuck=range(8))

    assert named(hang) == ("never-entered", (3,), (0, 1, 2, 4, 5, 6, 7))
    assert hang is not None
    assert hang.culprits[0].site == "collective.py:56"


@pytest.mark.parametrize("state", ["D", "Z"])
def test_in_a_ring_who_is_behind_and_held_by_the_kernel_is_named(state: str) -> None:
    """No peer's message ends that; its stack says where, and its state why."""
    hang = judged(*ring(3, 8, 5), stuck=range(8), states={3: state}, stacks={3: STACK})

    assert named(hang) == ("stuck-inside-backend", (3,), (0, 1, 2, 4, 5, 6, 7))
    assert hang is not None
    (culprit,) = hang.culprits
    assert culprit.site == "collective.py:55"
    assert culprit.got == f"is at control.py:42 in <lambda>, running checks, process state {state}"


@pytest.mark.parametrize("states", [{2: "D"}, {3: "D", 2: "D"}, {3: "R"}])
def test_in_a_ring_a_state_that_tells_nothing_names_nobody(states: dict[int, str]) -> None:
    """Of a rank that is further, of more than the last, or one in which a rank may be for a moment."""
    hang = judged(*ring(3, 8, 5), stuck=range(8), states=states)

    assert named(hang) == ("stuck-inside-backend", (), tuple(range(8)))


def test_a_rank_that_is_still_inside_of_what_others_have_left_is_not_named_for_that() -> None:
    """The message that it waits for may have been lost by any of its peers."""
    views = [view(inside=4), view(inside=3), view(inside=4)]
    hang = judged(*views, stuck=[0, 1, 2], stacks=dict.fromkeys(range(3), IN_TORCH))

    assert named(hang) == ("stuck-inside-backend", (), (0, 1, 2))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_that_is_inside_and_does_not_wait_there_is_named(world: int) -> None:
    """Its stack is outside of torch, where those of the others are inside; alike it names nobody."""
    alike = dict.fromkeys(range(world), IN_TORCH)
    hang = judged(*[view(inside=4)] * world, stuck=range(world), stacks={**alike, 1: STACK})

    assert named(hang) == ("stuck-inside-backend", (1,), tuple({*range(world)} - {1}))
    assert hang is not None
    assert hang.stacks["1"] == STACK
    others = ",".join(str(rank) for rank in range(world) if rank != 1)
    head = f"ranks {others}: the same 2 frames" if world > 2 else "rank 0: 2 frames"
    frames = "torch/distributed/distributed_c10d.py:3069 in all_reduce\n  comm.py:180 in _run"
    assert hang.stacks[others] == f"{head}\n  {frames}"
    assert judged(*[view(inside=4)] * world, stuck=range(world), stacks=alike).culprits == ()  # type: ignore[union-attr]


def test_what_a_rank_raises_once_it_was_asked_for_its_stack_is_no_fault_of_its_own() -> None:
    """A signal interrupts system calls, which NCCL takes for an error while it connects."""
    views = [view(inside=4), view(inside=4)]
    raised = {0: "NCCL Error 2: unhandled system error"}
    asked = {"stuck": [0, 1], "stacks": {0: IN_TORCH, 1: STACK}}

    assert judged(*views, **asked, raised=raised) is None  # type: ignore[arg-type]
    hang = judged(*views, **asked, raised=raised, disturbed=[0])  # type: ignore[arg-type]
    assert named(hang) == ("stuck-inside-backend", (1,), (0,))
    both = judged(*views, **asked, raised={**raised, 1: raised[0]}, disturbed=[0, 1])  # type: ignore[arg-type]
    assert named(both) == ("stuck-inside-backend", (1,), (0,))


def test_in_a_stage_that_all_are_in_the_stacks_tell_who_does_not_wait() -> None:
    """While they join: all but one are in torch."""
    alike = dict.fromkeys(range(3), IN_TORCH)
    hang = judged(*[view(Stage.JOINING)] * 3, stuck=range(3), stacks={**alike, 2: STACK})

    assert named(hang) == ("stuck-in-init", (2,), (0, 1))


def test_ranks_that_compare_plans_are_not_named_for_where_they_stand() -> None:
    """They wait in code of ours, for the one that torch still holds."""
    agreeing = STACK.replace("control.py", "rank.py").replace("<lambda>", "_agree")
    views = [view(Stage.AGREEING), view(Stage.AGREEING), view(Stage.JOINING), view(Stage.AGREEING)]
    stood = {0: agreeing, 1: agreeing, 2: IN_TORCH, 3: agreeing}
    hang = judged(*views, stuck=range(4), stacks=stood)

    assert named(hang) == ("stuck-in-init", (2,), (0, 1, 3))


def test_a_folder_called_torch_is_not_torch() -> None:
    """Nor is a file of the user's that is called as our door."""
    stacks = dict.fromkeys(range(3), IN_TORCH)
    for file in ("/home/torch/runs/_cpinfra_worker/worker/control.py", "/home/torch/comm.py"):
        mine = STACK.replace("/site/_cpinfra_worker/worker/control.py", file)
        hang = judged(*[view(inside=4)] * 3, stuck=range(3), stacks={**stacks, 1: mine})
        assert named(hang) == ("stuck-inside-backend", (1,), (0, 2))


@pytest.mark.parametrize("innermost", ["", '  File "{}/ledger.py", line 187 in phase\n'])
def test_who_waits_for_its_gpu_waits_for_others(innermost: str) -> None:
    """The door does it, and asks the ledger meanwhile; what a ledger of the user's does is no wait."""
    worker = "/site/_cpinfra_worker/worker"
    frames = f'{{}}  File "{worker}/calls.py", line 180 in _wait_for_device\n'
    head, _, _ = IN_TORCH.partition("  File")
    views = [view(inside=4)] * 3
    waiting = head + frames.format(innermost.format(worker))
    hang = judged(*views, stuck=range(3), stacks={0: waiting, 1: STACK, 2: waiting})
    assert named(hang) == ("stuck-inside-backend", (1,), (0, 2))

    theirs = head + frames.format('  File "/home/ledger.py", line 187 in phase\n')
    hang = judged(*views, stuck=range(3), stacks={0: waiting, 1: theirs, 2: waiting})
    assert named(hang) == ("stuck-inside-backend", (1,), (0, 2))


def test_beside_an_exception_a_rank_that_sleeps_is_named_too() -> None:
    """Both are told: who hangs, and what was raised."""
    views = [view(left=2), view(inside=3), view(inside=3)]
    told = {"raised_outside": {0: "planted"}, "stacks": {1: STACK, 2: IN_TORCH}}
    hang = judged(*views, **told, asleep=[1, 2])  # type: ignore[arg-type]

    assert named(hang) == ("stuck-inside-backend", (1,), (2,))
    assert hang is not None
    assert hang.raised == {0: "RuntimeError: planted"}
    assert hang.as_json()["raised"] == {"0": "RuntimeError: planted"}


def test_ranks_that_part_are_named_before_all_others_and_with_them() -> None:
    """A wrong shape explains the neighbour that aborts, not one that was killed, nor one that is stopped."""
    views = [view(inside=3), view(inside=3), view(inside=3), view(inside=3)]
    wrong = view(inside=3)
    (*before, last) = wrong.records
    off = {**last.call, "shape": [2042, 3], "planned": {"dtype": "float32", "shape": [1021, 3]}}
    views[2] = replace(wrong, records=(*before, replace(last, call=off)))

    alone = judged(*views, exits={1: "SIGABRT"})
    assert named(alone) == ("mismatched-shape", (2,), (0, 1, 3))
    assert alone is not None
    (culprit,) = alone.culprits
    assert culprit.expected == "all_reduce of float32[1021x3] on world at collective.py:53, repetition 2"
    assert culprit.got.startswith("entered all_reduce of float32[2042x3]")
    assert [side.ranks for side in alone.sides] == [(0, 1, 3), (2,)]

    both = judged(*views, exits={1: "SIGABRT", 0: "SIGKILL"}, states={3: "T"})
    assert named(both) == ("mismatched-shape", (0, 2, 3), (1,))
    assert both is not None
    assert [culprit.kind for culprit in both.culprits] == [
        "process-died",
        "mismatched-shape",
        "process-stopped",
    ]


def test_what_torch_raises_where_ranks_part_is_no_fault_of_its_own() -> None:
    """Whatever its text; what a rank raises before it calls torch is, and is told beside."""
    views = [view(inside=3, repetition=2), view(inside=3, repetition=3), view(inside=3, repetition=2)]
    hang = judged(*views, raised={0: "op.preamble.length <= op.nbytes. 4084 vs 12"})
    assert named(hang) == ("never-entered", (1,), (0, 2))
    assert hang is not None
    assert hang.raised == {}

    views[2] = view(left=2)
    beside = judged(*views, raised_outside={2: "planted"})
    assert beside is not None
    assert (beside.culprit_ranks, beside.raised) == ((1,), {2: "RuntimeError: planted"})
    assert "; rank 2 raised RuntimeError: planted; waiting: rank 0" in beside.sentence()


def test_a_divergence_of_which_only_digests_are_left_is_one() -> None:
    """Every rank has answered, one with another digest of its calls than the others."""
    made = generation(3)
    answer = {"broken": False, "error": None}
    for rank in range(3):
        made.answers.setdefault("p2p.ring", {})[rank] = {
            **answer,
            "rank": rank,
            "calls": {"digest": "b" if rank == 1 else "a"},
        }
    tracks = {rank: from_ledger(rank, view(left=3)) for rank in range(3)}
    hang = attribute(Evidence(generation=made, tracks=tracks, states={}, stuck=[], stacks={}, now_ns=NOW_NS))

    assert named(hang) == ("diverged", (1,), ())
    assert hang is not None
    assert hang.check == "p2p.ring"


def test_where_nobody_is_named_and_nobody_waits_the_time_is_that_of_all_ranks() -> None:
    """Two ranks of other digests, of whom the later did something 2 s ago."""
    made = generation(2)
    for rank, digest in enumerate("ab"):
        answer = {"broken": False, "error": None, "rank": rank, "calls": {"digest": digest}}
        made.answers.setdefault("p2p.ring", {})[rank] = answer
    tracks = {rank: from_ledger(rank, view(left=3, ago_s=ago_s)) for rank, ago_s in enumerate((3.0, 2.0))}
    hang = attribute(Evidence(generation=made, tracks=tracks, states={}, stuck=[], stacks={}, now_ns=NOW_NS))

    assert named(hang) == ("diverged", (), ())
    assert hang is not None
    assert hang.seconds_to_verdict == pytest.approx(2.0)
    assert hang.sentence() == "diverged: nothing tells which rank is to blame"


def test_beside_a_death_a_rank_that_sleeps_in_code_of_its_own_is_named_too() -> None:
    """Inside of an operation or outside of any; not who shows a sign of life."""
    views = [view(inside=3), view(inside=3), view(left=2), view(inside=3)]
    stood = {"exits": {0: "SIGKILL"}, "stacks": {1: STACK, 2: STACK, 3: IN_TORCH}}

    hang = judged(*views, **stood, asleep=[1, 2, 3])  # type: ignore[arg-type]
    assert named(hang) == ("process-died", (0, 1, 2), (3,))
    assert hang is not None
    assert [culprit.kind for culprit in hang.culprits] == [
        "process-died",
        "stuck-inside-backend",
        "never-entered",
    ]
    assert named(judged(*views, **stood, asleep=[3])) == ("process-died", (0,), (1, 3))  # type: ignore[arg-type]


def test_ranks_that_are_through_or_have_raised_show_no_stack() -> None:
    """It would be that of waiting for the end; of one that crashed its last words hold the last one."""
    views = [view(inside=3), view(inside=3), view(left=3), view(Stage.REPORTED, left=3)]
    fatal = f"what(): enforce fail\nFatal Python error: Aborted\n\n{STACK}"
    stood = dict.fromkeys([0, 2, 3], IN_TORCH)
    hang = judged(*views, exits={1: "SIGABRT"}, raised={2: LOST}, stacks=stood, last_words={1: fatal})

    assert hang is not None
    assert hang.stacks.keys() == {"0", "1"}
    assert hang.stacks["1"] == fatal
    assert hang.culprits[0].got == "ended by SIGABRT; it printed last: 'what(): enforce fail'"


def test_an_out_of_memory_kill_is_named_as_such() -> None:
    """Only of a SIGKILL, and what a rank printed last is told."""
    said = "oom_kill 0 -> 1 in /sys/fs/cgroup/memory.events"
    oom = OomKills(number=1, says=said)
    killed = judged(view(inside=3), view(inside=3), exits={1: "SIGKILL"}, oom=oom)
    crashed = judged(
        view(inside=3), view(inside=3), exits={1: "SIGSEGV"}, oom=oom, last_words={1: "one\ntwo\n"}
    )

    assert killed is not None
    assert killed.culprits[0].got == f"ended by SIGKILL, of the kernel's out-of-memory killer ({said})"
    assert killed.remedy == OOM_REMEDY
    assert crashed is not None
    assert crashed.culprits[0].got == "ended by SIGSEGV; it printed last: 'two'"
    assert crashed.remedy == REMEDIES["process-died"]

    two = judged(*[view(inside=3)] * 3, exits={1: "SIGKILL", 2: "SIGKILL"}, oom=oom)
    assert two is not None
    texts = {culprit.got.partition(" (")[0] for culprit in two.culprits}
    assert texts == {"ended by SIGKILL, perhaps of the kernel's out-of-memory killer"}


def test_who_stays_away_outweighs_who_is_inside() -> None:
    """A rank inside of an earlier call may be waiting for the one that never entered it."""
    hang = judged(view(inside=4), view(inside=3), view(left=2), stuck=[0, 1, 2])

    assert named(hang) == ("never-entered", (2,), (0, 1))


def test_a_rank_that_stands_in_its_own_code_after_the_last_call_is_named() -> None:
    """The others have reported: nobody is missing from an operation, and yet one does not go on."""
    hang = judged(
        view(Stage.REPORTED, left=5), view(left=5), view(Stage.REPORTED, left=5), stuck=[1], stacks={1: STACK}
    )

    assert named(hang) == ("never-entered", (1,), ())
    assert hang is not None
    assert hang.culprits[0].expected == "to run"
    assert hang.culprits[0].got == "is at control.py:42 in <lambda>, running checks"


def test_a_rank_alone_that_stands_still_between_calls_is_named() -> None:
    """With one rank there is nobody else whom it could be waiting for."""
    assert named(judged(view(left=2), stuck=[0])) == ("never-entered", (0,), ())


@pytest.mark.parametrize(
    ("stage", "doing"), [(Stage.FORKED, "at its start"), (Stage.DEVICE, "setting up its device")]
)
def test_ranks_that_never_came_to_join_are_named(stage: Stage, doing: str) -> None:
    """While others wait in init; two are both named."""
    hang = judged(view(Stage.JOINING), view(stage), view(Stage.JOINING), view(stage), stuck=[1, 3])

    assert named(hang) == ("never-joined", (1, 3), (0, 2))
    assert hang is not None
    assert hang.check is None
    assert hang.culprits[0].got == f"is at an unknown place, {doing}"
    assert hang.seconds_to_verdict == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        (Stage.FORKED, "never-joined"),
        (Stage.DEVICE, "never-joined"),
        (Stage.JOINING, "stuck-in-init"),
        (Stage.AGREEING, "stuck-in-init"),
        (Stage.REPORTED, "stuck-in-teardown"),
        (Stage.LEAVING, "stuck-in-teardown"),
    ],
)
def test_where_all_stand_in_one_stage_nobody_is_named(stage: Stage, kind: str) -> None:
    """Nothing tells whose fault it is, in any stage alike; a rank alone has nobody else to wait for."""
    assert named(judged(view(stage), view(stage), stuck=[0, 1])) == (kind, (), (0, 1))
    assert named(judged(view(stage), stuck=[0])) == (kind, (0,), ())


def test_a_rank_that_stays_in_init_when_others_are_through_is_named() -> None:
    """Whether the others compare plans or run already."""
    hang = judged(view(Stage.AGREEING), view(Stage.JOINING), view(Stage.AGREEING), stuck=[1])
    assert named(hang) == ("stuck-in-init", (1,), (0, 2))

    hang = judged(view(Stage.AGREEING), view(inside=1), view(inside=1), stuck=[0])
    assert named(hang) == ("stuck-in-init", (0,), (1, 2))


@pytest.mark.parametrize(
    ("stage", "doing"),
    [
        (Stage.REPORTED, "through with its checks"),
        (Stage.LEAVING, "closing its groups"),
        (Stage.LEFT, "at its end"),
    ],
)
def test_a_rank_that_does_not_leave_is_named(stage: Stage, doing: str) -> None:
    """Released and still waiting, inside of the teardown, or through it and not ended: of no check."""
    hang = judged(
        view(Stage.LEFT, left=5),
        view(stage, left=5),
        released=True,
        exits={0: 0},
        stuck=[1],
        stacks={1: STACK},
    )

    assert named(hang) == ("stuck-in-teardown", (1,), ())
    assert hang is not None
    assert hang.check is None
    assert hang.culprits[0].got == f"is at control.py:42 in <lambda>, {doing}"


def test_who_has_not_begun_to_leave_is_to_blame_for_who_cannot_end_it() -> None:
    """A teardown may wait for the others."""
    hang = judged(view(Stage.LEAVING, left=5), view(Stage.REPORTED, left=5), released=True, stuck=[0, 1])

    assert hang is not None
    assert (hang.kind, hang.culprit_ranks) == ("stuck-in-teardown", (1,))


def test_who_ended_well_before_the_judgement_is_not_judged() -> None:
    """The last stuck rank has left by itself while stacks were gathered: no hang."""
    assert judged(view(Stage.LEFT), view(Stage.LEFT), released=True, exits={0: 0, 1: 0}, stuck=[1]) is None


def test_the_planted_fault_is_never_read() -> None:
    """With and without the word of what was planted, the judgement is the same."""
    views = [view(inside=4), view(left=3), view(inside=4)]

    assert judged(*views, stuck=[0, 1, 2], planted=("kill:2", "stop:0")) == judged(*views, stuck=[0, 1, 2])


def test_the_check_is_that_of_the_newest_call() -> None:
    """A culprit that died in the check before does not date the hang back."""
    hang = judged(view(inside=4, check="p2p.ring", ago_s=1.0), view(left=3, ago_s=3.0), stuck=[0, 1])

    assert hang is not None
    assert hang.check == "p2p.ring"


def test_a_rank_that_does_not_come_out_of_a_check_hangs_in_that() -> None:
    """The others wait in the next, which they have entered; it has answered for none of the two."""
    tracks = {rank: from_ledger(rank, view(inside=4)) for rank in (1, 2)}
    for rank, track in tracks.items():
        *before, last = track.calls
        tracks[rank] = replace(track, calls=(*before, replace(last, check="p2p.ring")))
    tracks[0] = from_ledger(0, view(left=3))
    made = generation(3)
    made.spec = replace(made.spec, checks=("collective.all_reduce", "p2p.ring"))
    answer = {"broken": False, "error": None, "calls": {"digest": "a"}}
    for rank in (1, 2):
        made.answers.setdefault("collective.all_reduce", {})[rank] = {**answer, "rank": rank}
    told = Evidence(
        generation=made,
        tracks=tracks,
        states=dict.fromkeys(range(3), "S"),
        stuck=[1, 2],
        stacks={},
        now_ns=NOW_NS,
    )

    hang = attribute(told)
    assert named(hang) == ("never-entered", (0,), (1, 2))
    assert hang is not None
    assert hang.check == "collective.all_reduce"


def test_a_rank_that_stalls_early_in_a_ring_is_named_though_others_are_late_before_it() -> None:
    """Those further round know how long the exchange takes, and so run out of time sooner."""
    alike = dict.fromkeys(range(4), IN_TORCH)
    still = dict.fromkeys(range(4), 1.2)
    hang = judged(*ring(1, 4, 2), stuck=[3], stacks={**alike, 1: STACK}, still_s=still)

    assert named(hang) == ("stuck-inside-backend", (1,), (0, 2, 3))


def test_who_has_not_come_as_far_is_named_only_where_his_time_is_up_and_he_does_not_wait() -> None:
    """In a stage before the others': who waits there in torch waits for the one that does not."""
    stood = {0: IN_TORCH, 1: IN_TORCH, 2: STACK}
    for earlier, later, kind in (
        (Stage.JOINING, Stage.AGREEING, "stuck-in-init"),
        (Stage.LEAVING, Stage.LEFT, "stuck-in-teardown"),
    ):
        hang = judged(view(later), view(earlier), view(earlier), stuck=[1, 2], stacks=stood)
        assert named(hang)[:2] == (kind, (2,))

    hang = judged(view(Stage.DEVICE), view(Stage.DEVICE), view(Stage.JOINING), stuck=[0])
    assert named(hang)[:2] == ("never-joined", (0,))
    together = judged(view(Stage.DEVICE), view(Stage.DEVICE), view(Stage.JOINING), stuck=[0, 1])
    assert named(together)[:2] == ("never-joined", (0, 1))


def test_a_rank_that_runs_checks_already_is_not_told_as_being_in_another_stage() -> None:
    """Others may still compare plans: what it stands in is an operation."""
    hang = judged(view(Stage.AGREEING), view(inside=1), stuck=[0, 1], stacks={0: IN_TORCH, 1: STACK})

    assert hang is not None
    assert {culprit.rank: culprit.kind for culprit in hang.culprits}[1] == "stuck-inside-backend"


def test_who_aborts_after_an_error_of_ours_is_no_culprit() -> None:
    """It has lost the rank in which our code failed, and that is no word on the machine."""
    dead = {0: RANK_BUG_EXIT, 1: "SIGABRT"}
    assert judged(view(inside=3), view(inside=3), view(inside=3), exits=dead) is None

    killed = judged(view(inside=3), view(inside=3), view(inside=3), exits={**dead, 2: "SIGKILL"})
    assert named(killed) == ("process-died", (2,), (1,))


def test_who_died_or_raised_of_it_is_told_apart_from_who_waits() -> None:
    """With how, and what it printed last."""
    hang = judged(
        view(inside=3),
        view(inside=3),
        view(inside=3),
        view(inside=3),
        exits={1: "SIGABRT"},
        last_words={1: "enforce fail\n"},
        raised={0: LOST},
        states={3: "T"},
    )

    assert hang is not None
    assert hang.waiting_ranks == (2,)
    assert hang.victims == {
        0: f"RuntimeError: {LOST}",
        1: "ended by SIGABRT; it printed last: 'enforce fail'",
    }
    assert hang.sentence().endswith(
        f"; waiting: rank 2; lost to it: rank 0 (RuntimeError: {LOST}), "
        "rank 1 (ended by SIGABRT; it printed last: 'enforce fail')"
    )
    assert hang.as_json()["victims"] == {str(rank): how for rank, how in hang.victims.items()}


def test_a_member_of_a_group_of_which_nothing_is_known_is_left_out() -> None:
    """Its dump could not be had: it is neither blamed nor looked for."""
    hang = judged(view(inside=4), view(left=3), stuck=[0, 1], members={"": [0, 1, 2]})

    assert named(hang) == ("never-entered", (1,), (0,))


def test_the_report_has_the_names_of_the_schema() -> None:
    """Everything is JSON, ranks in stacks as text, all culprits with all their fields."""
    hang = judged(view(inside=3), view(left=2), exits={1: "SIGKILL"}, stacks={0: STACK})

    assert hang is not None
    assert hang.as_json() == {
        "check": "collective.all_reduce",
        "kind": "process-died",
        "culprit_ranks": [1],
        "culprits": [
            {
                "rank": 1,
                "kind": "process-died",
                "operation": "all_reduce",
                "group": "world",
                "site": "collective.py:53",
                "expected": "all_reduce of float32[1021x3] on world at collective.py:53, repetition 2",
                "got": "ended by SIGKILL",
            }
        ],
        "waiting_ranks": [0],
        "raised": {},
        "victims": {},
        "sides": [],
        "stacks": {
            "0": "rank 0: 2 frames\n  control.py:42 in <lambda>\n  comm.py:180 in _run",
            "1": {"unavailable": "it had ended"},
        },
        "remedy": REMEDIES["process-died"],
        "seconds_to_verdict": 2.0,
    }


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([3, 0, 1], "ranks 0, 1, 3"),
        (range(8), "ranks 0, 1, 2, 3, 4, 5, 6, 7"),
        (range(64), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 56 more"),
    ],
)
def test_ranks_in_words(ranks: Collection[int], text: str) -> None:
    """In order; many are counted."""
    assert ranks_text(ranks) == text


def test_every_kind_that_can_come_has_a_remedy() -> None:
    """A reason never comes without what to do."""
    kinds = {
        "mismatched-operation",
        "mismatched-shape",
        "mismatched-dtype",
        "diverged",
        "process-died",
        "process-stopped",
        "never-entered",
        "stuck-inside-backend",
        "never-joined",
        "stuck-in-init",
        "stuck-in-teardown",
    }

    assert kinds == REMEDIES.keys()
    assert all(REMEDIES.values())

"""Who is to blame for a generation that did not end by itself.

Reads what ranks recorded, how processes ended and in what state they are; never which fault was planted.
In this order: ranks that are stopped; ranks that died of what no lost peer can do to a process; an
exception that no lost peer explains (which is no hang: its own text is the reason); ranks that have not
entered what others have; ranks that the kernel holds inside of an operation.

Nobody is named for waiting: not who stands in an operation whose peers lag behind or have gone on, not who
died after another. Where nothing tells one rank from the others, nobody is named at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any

from ..worker.ledger import Kind
from ..worker.ledger import RankView
from ..worker.ledger import Record
from ..worker.ledger import Stage
from . import stacks
from .generation import Exit
from .generation import Generation

REMEDIES = {
    "process-died": "see the rank's log; a SIGKILL that nobody sent is often the kernel's out-of-memory "
    "killer (dmesg, memory.events of the cgroup)",
    "process-stopped": "find who stopped it: a debugger, a scheduler (the run has ended it since)",
    "never-entered": "see its stack, rank-R.stack in the run folder; every rank must make the same calls in "
    "order",
    "stuck-inside-backend": "suspect the transport; rerun NCCL under NCCL_DEBUG=INFO",
    "never-joined": "see the rank's stack and log for what it does before it joins",
    "stuck-in-init": "ranks cannot reach each other: look at GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, and "
    "whether a sandbox blocks sockets or shared memory",
    "stuck-in-teardown": "see the rank's stack; the checks themselves had passed",
}

_DEATHS_OF_VICTIMS = ("SIGABRT", "SIGPIPE", "exit code 1")
"""How a process ends that has lost a peer: gloo aborts it, a write finds nobody, an error is given up on."""
_TOGETHER_S = 0.05
"""Deaths that are this close together count alike: their order says nothing of cause and effect."""
_ONE_BATCH_S = 0.001
"""Deaths that were heard of this close together were collected in one go, in any order."""

_LOST_PEER = re.compile(
    r"connection\b.*\b(closed|reset|refused|aborted)|closed by (the )?(remote )?peer|reset by peer"
    r"|broken pipe|socket|time[d ]*out|remote (process|error)|ncclremoteerror|network error",
    re.IGNORECASE,
)
"""What torch, gloo and NCCL say where a peer is gone or silent."""
_HELD = ("D", "Z")
"""Process states that no message of a peer ends: in the kernel or a driver, or no longer a process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """One rank to blame, and for what."""

    rank: int
    kind: str
    operation: str
    group: str
    site: str
    expected: str
    got: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """A hang, or the death of a rank."""

    check: str | None
    """The check during which it happened; None in the stages before and after."""
    kind: str
    """The first by precedence; each culprit has its own."""
    culprits: tuple[Culprit, ...]
    waiting_ranks: tuple[int, ...]
    stacks: Mapping[int, str]
    seconds_to_verdict: float

    @property
    def culprit_ranks(self) -> tuple[int, ...]:
        """Ranks to blame; empty where nothing tells."""
        return tuple(culprit.rank for culprit in self.culprits)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind, and those of culprits that are to blame for something else as well."""
        return tuple(dict.fromkeys((self.kind, *(culprit.kind for culprit in self.culprits))))

    @property
    def remedy(self) -> str:
        """What to do; about each kind by its name where there are several."""
        if len(self.kinds) == 1:
            return REMEDIES[self.kind]
        return "; ".join(f"{kind}: {REMEDIES[kind]}" for kind in self.kinds)

    def sentence(self) -> str:
        """One line: who, what, where, and who waits."""
        told = [f"{kind}: {self._blamed_for(kind)}" for kind in self.kinds]
        waiting = [f"waiting: {ranks_text(self.waiting_ranks)}"] if self.waiting_ranks else []
        return "; ".join([*told, *waiting])

    def _blamed_for(self, kind: str) -> str:
        named = [culprit for culprit in self.culprits if culprit.kind == kind]
        texts = [f"rank {culprit.rank}: {culprit.got}, expected {culprit.expected}" for culprit in named]
        return "; ".join(texts) or "nothing tells which rank is to blame"

    def as_json(self) -> dict[str, Any]:
        """The `hang` section of a report."""
        return {
            "check": self.check,
            "kind": self.kind,
            "culprit_ranks": list(self.culprit_ranks),
            "culprits": [asdict(culprit) for culprit in self.culprits],
            "waiting_ranks": list(self.waiting_ranks),
            "stacks": {str(rank): text for rank, text in self.stacks.items()},
            "seconds_to_verdict": round(self.seconds_to_verdict, 3),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """All that attribution may look at."""

    generation: Generation
    views: Mapping[int, RankView]
    states: Mapping[int, str]
    """Process states by rank, one letter of proc(5)."""
    stuck: Collection[int]
    """Ranks that stood still past their budget."""
    stacks: Mapping[int, str]
    now_ns: int
    """CLOCK_MONOTONIC at the judgement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Blame:
    """A rank, and what it is to blame for."""

    rank: int
    kind: str
    got: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Raise:
    """How a rank left by an exception."""

    in_torch: bool
    text: str

    @property
    def is_explained(self) -> bool:
        """Whether a lost peer would explain it."""
        return self.in_torch and _LOST_PEER.search(self.text) is not None


def attribute(evidence: Evidence) -> Hang | None:
    """Name the culprits, or return None: nobody hung or died, at most somebody raised."""
    ended = {rank: gone for rank, gone in evidence.generation.exits.items() if not gone.expected}
    stopped = _stopped(evidence)
    if stopped or ended:
        kind = "process-stopped" if stopped else "process-died"
        return _hang(evidence, kind, [*stopped, *_dead(ended, explained=bool(stopped))])
    raised = _raised(evidence.generation)
    stuck = [rank for rank in evidence.stuck if rank not in evidence.generation.exits and rank not in raised]
    if not stuck or not all(error.is_explained for error in raised.values()):
        return None
    kind, behind = _out_of_step(evidence, raised)
    if raised and not behind:
        return None  # nobody whom they could have lost: what they raised is all that is known
    return _hang(evidence, kind, [_behind(evidence, kind, rank) for rank in behind])


def _stopped(evidence: Evidence) -> list[_Blame]:
    """Ranks that a signal has stopped, stuck or not: no peer can do that to them."""
    living = {rank: state for rank, state in evidence.states.items() if rank not in evidence.generation.exits}
    # A tracer, such as a profiler, stops a process for moments: only past the budget that is a stop.
    ranks = [
        rank for rank, state in living.items() if state == "T" or (state == "t" and rank in evidence.stuck)
    ]
    return [
        _Blame(rank=rank, kind="process-stopped", got=f"is stopped (state {living[rank]})") for rank in ranks
    ]


def _dead(ended: Mapping[int, Exit], *, explained: bool) -> list[_Blame]:
    """Of the ranks that died, those to blame.

    Args:
        ended: ranks that ended when they should not have.
        explained: another rank is to blame already for what a lost peer does to a process.
    """
    own = {rank: gone for rank, gone in ended.items() if gone.text not in _DEATHS_OF_VICTIMS}
    ranks = _first_and_killed(own) or ([] if explained else _first_alone(ended))
    return [_Blame(rank=rank, kind="process-died", got=f"ended by {ended[rank].text}") for rank in ranks]


def _first_and_killed(own: Mapping[int, Exit]) -> list[int]:
    """Those that died first and together, and all SIGKILLs: somebody sent each of them."""
    first = min((gone.at for gone in own.values()), default=0.0)
    return [rank for rank, gone in own.items() if gone.text == "SIGKILL" or gone.at - first <= _TOGETHER_S]


def _first_alone(ended: Mapping[int, Exit]) -> list[int]:
    """The one that died first, as every other may have died of it; nobody where two came at once."""
    (first_at, first), *others = sorted((gone.at, rank) for rank, gone in ended.items())
    return [first] if all(at - first_at > _ONE_BATCH_S for at, _ in others) else []


def _raised(generation: Generation) -> dict[int, _Raise]:
    """Ranks that left a check or a stage by an exception."""
    troubles = {
        rank: _Raise(in_torch=trouble["kind"] == "door", text=trouble["text"])
        for rank, trouble in generation.troubles.items()
    }
    # An error without a site did not come out of the door.
    errors = {int(answer["rank"]): answer["error"] for answer in generation.broken_answers()}
    answers = {
        rank: _Raise(in_torch=bool(error["site"]), text=error["text"]) for rank, error in errors.items()
    }
    return {**troubles, **answers}


def _out_of_step(evidence: Evidence, raised: Collection[int]) -> tuple[str, list[int]]:
    """The kind of a hang in which none died, and the ranks that are behind the others; [] if none is."""
    gone = {*evidence.generation.exits, *raised}
    standing = {rank: view for rank, view in evidence.views.items() if rank not in gone}
    earliest = min(view.stage for view in standing.values())
    if Stage.RUNNING <= earliest < Stage.REPORTED:
        return _in_operations(evidence, standing)
    if earliest < Stage.JOINING:
        kind = "never-joined"
    else:
        kind = "stuck-in-init" if earliest < Stage.RUNNING else "stuck-in-teardown"
    return kind, _latecomers(evidence, standing, earliest)


def _latecomers(evidence: Evidence, standing: Mapping[int, RankView], earliest: Stage) -> list[int]:
    """Ranks in the earliest stage, if others have come further or ended well; else nobody is late."""
    exits, views = evidence.generation.exits, evidence.views
    ahead = [rank for rank, view in views.items() if rank in exits or view.stage > earliest]
    behind = [rank for rank, view in standing.items() if view.stage == earliest]
    return behind if ahead or len(views) == 1 else []  # a rank alone waits for nobody else


def _in_operations(evidence: Evidence, standing: Mapping[int, RankView]) -> tuple[str, list[int]]:
    """Only ranks that have entered the fewest calls can be what all others wait for, if these wait at all.

    Inside of operations unequal progress is normal: around a ring of exchanges every rank that stands
    further from the culprit has come further.
    """
    entered = {rank: _calls_entered(view) for rank, view in evidence.views.items()}
    fewest = min(entered[rank] for rank in standing)
    last = [rank for rank in standing if entered[rank] == fewest and standing[rank].stage is Stage.RUNNING]
    outside = [rank for rank in last if standing[rank].open_call is None]
    # Where none has gone on, only time tells: own code, after the last call that all have made, is not long.
    awaited = fewest < max(entered.values())
    absent = [rank for rank in outside if awaited or rank in evidence.stuck]
    if absent:
        return "never-entered", absent
    inside = [rank for rank in last if rank not in outside]
    return "stuck-inside-backend", _held(inside, standing, evidence.states)


def _held(inside: Collection[int], standing: Collection[int], states: Mapping[int, str]) -> list[int]:
    """Those that the kernel holds, if it holds none of the others."""
    held = [rank for rank in inside if states.get(rank) in _HELD]
    others = [states.get(rank) for rank in standing if rank not in held]
    return held if others and not any(state in _HELD for state in others) else []


def _calls_entered(view: RankView) -> int:
    return int(view.records[-1].call["call"]) if view.records else 0


def _behind(evidence: Evidence, kind: str, rank: int) -> _Blame:
    """Blame for a rank that is behind: where it is, by the innermost frame of its main thread."""
    place = stacks.place(evidence.stacks.get(rank, ""), depth=1) or "an unknown place"
    state = f", process state {evidence.states[rank]}" if evidence.states.get(rank) in _HELD else ""
    got = f"is at {place}, stage {evidence.views[rank].stage.name.lower()}{state}"
    return _Blame(rank=rank, kind=kind, got=got)


def _hang(evidence: Evidence, kind: str, blamed: Collection[_Blame]) -> Hang:
    culprits = sorted(blame.rank for blame in blamed)
    waiting = _waiting(evidence, culprits)
    entered = _calls_of(evidence.views, waiting)
    return Hang(
        check=_check_of(evidence.views, [*culprits, *waiting]),
        kind=kind,
        culprits=tuple(
            _culprit(blame, _expected(evidence.views[blame.rank], entered))
            for blame in sorted(blamed, key=lambda blame: blame.rank)
        ),
        waiting_ranks=tuple(waiting),
        stacks=evidence.stacks,
        seconds_to_verdict=_seconds_since(evidence, culprits or waiting),
    )


def _seconds_since(evidence: Evidence, ranks: Collection[int]) -> float:
    """Seconds since the last that these ranks recorded, the latest of them."""
    last_ns = [
        max(view.stage_since_ns, *(r.time_ns for r in view.records), 0) for view in _of(evidence, ranks)
    ]
    return (evidence.now_ns - max(last_ns, default=evidence.now_ns)) / 1e9


def _of(evidence: Evidence, ranks: Collection[int]) -> list[RankView]:
    return [evidence.views[rank] for rank in ranks if rank in evidence.views]


def _waiting(evidence: Evidence, culprits: Collection[int]) -> list[int]:
    """Ranks that are in an operation, or left one by an exception, or died after others: all had waited.

    Where nobody is named, also whoever stood still.
    """
    exits = evidence.generation.exits
    raised = [rank for rank, error in _raised(evidence.generation).items() if error.in_torch]
    victims = {rank for rank, gone in exits.items() if not gone.expected}
    inside = {rank for rank, view in evidence.views.items() if _is_inside(view) and rank not in exits}
    still = () if culprits else (rank for rank in evidence.stuck if rank not in exits)
    return sorted({*inside, *raised, *victims, *still}.difference(culprits))


def _is_inside(view: RankView) -> bool:
    return view.open_call is not None or view.stage in (Stage.JOINING, Stage.AGREEING, Stage.LEAVING)


def _calls_of(views: Mapping[int, RankView], ranks: Collection[int]) -> dict[int, Record]:
    """The calls that these ranks have entered, as far as their rings go back, by number."""
    records = [record for rank in ranks for record in views[rank].records if record.kind is Kind.ENTER]
    return {int(record.call["call"]): record for record in records}


def _expected(view: RankView, entered: Mapping[int, Record]) -> Record | None:
    """The operation that a rank is in; outside of any, the next one that those who wait have entered."""
    if view.open_call is not None:
        return view.open_call
    later = [number for number in entered if number > _calls_entered(view)]
    return entered[min(later)] if later else None


def _last_entered(view: RankView) -> Record | None:
    entered = [record for record in view.records if record.kind is Kind.ENTER]
    return entered[-1] if entered else None


def _culprit(blame: _Blame, expected: Record | None) -> Culprit:
    call: Mapping[str, Any] = expected.call if expected else {}
    return Culprit(
        rank=blame.rank,
        kind=blame.kind,
        operation=str(call.get("operation", "")),
        group=str(call.get("group", "")),
        site=str(call.get("site", "")),
        expected=call_text(call) if call else "to run",
        got=blame.got,
    )


def _check_of(views: Mapping[int, RankView], ranks: Collection[int]) -> str | None:
    """The check that these ranks were in, by the newest operation that any of them entered."""
    running = [views[rank] for rank in ranks if views[rank].stage is Stage.RUNNING]
    calls = [call for view in running if (call := _last_entered(view)) is not None]
    newest = max(calls, key=lambda record: record.time_ns, default=None)
    return str(newest.call["check"]) or None if newest else None


def call_text(call: Mapping[str, Any]) -> str:
    """One operation in words."""
    shape = "x".join(map(str, call.get("shape", ()))) or "-"
    what = f"{call['operation']} of {call.get('dtype') or '-'}[{shape}]"
    return f"{what} on {call.get('group')} at {call.get('site')}"


def ranks_text(ranks: Collection[int]) -> str:
    """`rank 3`, `ranks 0, 1, 3`, or the first few of many."""
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"

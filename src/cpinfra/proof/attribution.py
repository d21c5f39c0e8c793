"""Who is to blame for a generation that did not end by itself.

Reads what ranks recorded, how processes ended and in what state they are. It never reads which fault was
planted, never blames a rank that waits, and names nobody where nothing tells.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any

from ..worker.ledger import RankView
from ..worker.ledger import Record
from ..worker.ledger import Stage
from . import stacks
from .generation import Generation

REMEDIES = {
    "process-died": "see the rank's log; a SIGKILL that nobody sent is often the kernel's out-of-memory "
    "killer (dmesg, memory.events of the cgroup)",
    "process-stopped": "continue it (kill -CONT PID), or find who stopped it: a debugger, a scheduler",
    "never-entered": "see its stack for where it is instead; every rank must make the same calls in order",
    "stuck-inside-backend": "suspect the transport; rerun NCCL under NCCL_DEBUG=INFO",
    "never-joined": "see the rank's stack and log for what it does before it joins",
    "stuck-in-init": "ranks cannot reach each other: look at GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, and "
    "whether a sandbox blocks sockets or shared memory",
    "stuck-in-teardown": "see the rank's stack; the checks themselves had passed",
}


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
    culprits: tuple[Culprit, ...]
    waiting_ranks: tuple[int, ...]
    stacks: Mapping[int, str]
    seconds_to_verdict: float

    @property
    def culprit_ranks(self) -> tuple[int, ...]:
        """Ranks to blame; empty where nothing tells."""
        return tuple(culprit.rank for culprit in self.culprits)

    @property
    def remedy(self) -> str:
        """What to do."""
        return REMEDIES[self.kind]

    def sentence(self) -> str:
        """One line: who, what, where, and who waits."""
        who = "; ".join(f"rank {c.rank}: {c.got}, expected {c.expected}" for c in self.culprits)
        waiting = f"; waiting: {ranks_text(self.waiting_ranks)}" if self.waiting_ranks else ""
        return f"{self.kind}: {who or 'no rank is out of step'}{waiting}"

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


def attribute(evidence: Evidence) -> Hang | None:
    """Name the culprits, or return None: nobody hung or died, at most somebody raised."""
    died = {rank: gone.text for rank, gone in evidence.generation.exits.items() if not gone.expected}
    if died:
        return _hang(evidence, "process-died", {rank: f"ended by {text}" for rank, text in died.items()})
    stuck = [rank for rank in evidence.stuck if rank not in evidence.generation.exits]
    if not stuck:
        return None
    stopped = [rank for rank in stuck if evidence.states.get(rank) in ("T", "t")]
    if stopped:
        return _hang(evidence, "process-stopped", dict.fromkeys(stopped, "is stopped (state T)"))
    kind, culprits = _out_of_step(evidence, stuck)
    return _hang(evidence, kind, {rank: _whereabouts(evidence, rank) for rank in culprits})


def _out_of_step(evidence: Evidence, stuck: Collection[int]) -> tuple[str, list[int]]:
    """The kind of a hang in which none died, and the ranks that are behind the others; [] if none is."""
    views = {rank: view for rank, view in evidence.views.items() if rank not in evidence.generation.exits}
    earliest = min(view.stage for view in views.values())
    latest = max(view.stage for view in views.values())
    behind = [rank for rank, view in views.items() if view.stage == earliest]
    if earliest < Stage.JOINING:
        return "never-joined", behind
    if earliest < Stage.RUNNING:
        return "stuck-in-init", behind if latest > earliest else []
    if earliest >= Stage.REPORTED:
        return "stuck-in-teardown", behind
    return _in_operations(evidence, views, stuck)


def _in_operations(
    evidence: Evidence, views: Mapping[int, RankView], stuck: Collection[int]
) -> tuple[str, list[int]]:
    """Behind is who has not entered what others have, else who is still inside of what others have left."""
    outside = [rank for rank, view in views.items() if view.open_call is None and not _raised(evidence, rank)]
    entered = {rank: _calls_entered(view) for rank, view in views.items()}
    behind = [rank for rank, calls in entered.items() if calls < max(entered.values())]
    absent = [rank for rank in behind if rank in outside]
    if absent:
        return "never-entered", absent
    inside = [rank for rank in behind if views[rank].open_call is not None]
    idle = [rank for rank in stuck if rank in outside and views[rank].stage is Stage.RUNNING]
    # Nobody is awaited by an idle rank: it stands in its own code, after the last call that all have made.
    return ("never-entered", idle) if idle and not inside else ("stuck-inside-backend", inside)


def _calls_entered(view: RankView) -> int:
    return int(view.records[-1].call["call"]) if view.records else 0


def _hang(evidence: Evidence, kind: str, culprits: Mapping[int, str]) -> Hang:
    living = [
        rank for rank in evidence.views if rank not in evidence.generation.exits and rank not in culprits
    ]
    waiting = [rank for rank in living if _waits(evidence, rank)]
    awaited = _awaited_call(evidence.views, waiting)
    named = tuple(_culprit(evidence, kind, rank, got, awaited) for rank, got in sorted(culprits.items()))
    return Hang(
        check=_check_of(evidence.views, [*culprits, *waiting]),
        kind=kind,
        culprits=named,
        waiting_ranks=tuple(waiting),
        stacks=evidence.stacks,
        seconds_to_verdict=_seconds_since(evidence, [*culprits] or waiting),
    )


def _seconds_since(evidence: Evidence, ranks: Collection[int]) -> float:
    """Seconds since the last that these ranks recorded, the latest of them."""
    last_ns = [
        max(view.stage_since_ns, *(r.time_ns for r in view.records), 0) for view in _of(evidence, ranks)
    ]
    return (evidence.now_ns - max(last_ns, default=evidence.now_ns)) / 1e9


def _of(evidence: Evidence, ranks: Collection[int]) -> list[RankView]:
    return [evidence.views[rank] for rank in ranks if rank in evidence.views]


def _waits(evidence: Evidence, rank: int) -> bool:
    """Whether a rank is in an operation, or lost its peers in one: either way it was waiting for them."""
    view = evidence.views[rank]
    inside = view.open_call is not None or view.stage in (Stage.JOINING, Stage.AGREEING)
    return inside or _raised(evidence, rank)


def _raised(evidence: Evidence, rank: int) -> bool:
    """Whether a rank came out of a check by an exception."""
    by_check = evidence.generation.answers.values()
    return any(rank in by_rank and by_rank[rank]["broken"] for by_rank in by_check)


def _awaited_call(views: Mapping[int, RankView], waiting: Collection[int]) -> Record | None:
    """The operation that the waiting ranks are in."""
    calls = [_last_entered(views[rank]) for rank in waiting]
    return max((call for call in calls if call), key=lambda record: int(record.call["call"]), default=None)


def _last_entered(view: RankView) -> Record | None:
    entered = [record for record in view.records if "operation" in record.call]
    return entered[-1] if entered else None


def _culprit(evidence: Evidence, kind: str, rank: int, got: str, awaited: Record | None) -> Culprit:
    own = evidence.views[rank].open_call or awaited
    call: Mapping[str, Any] = own.call if own else {}
    return Culprit(
        rank=rank,
        kind=kind,
        operation=str(call.get("operation", "")),
        group=str(call.get("group", "")),
        site=str(call.get("site", "")),
        expected=call_text(call) if call else "to run",
        got=got,
    )


def _check_of(views: Mapping[int, RankView], ranks: Collection[int]) -> str | None:
    """The check that these ranks were in, by the newest operation that any of them entered."""
    running = [views[rank] for rank in ranks if views[rank].stage is Stage.RUNNING]
    calls = [call for view in running if (call := _last_entered(view)) is not None]
    newest = max(calls, key=lambda record: record.time_ns, default=None)
    return str(newest.call["check"]) or None if newest else None


def _whereabouts(evidence: Evidence, rank: int) -> str:
    """Where a rank is, by the innermost frame of its main thread."""
    place = stacks.place(evidence.stacks.get(rank, ""), depth=1) or "an unknown place"
    return f"is at {place}, stage {evidence.views[rank].stage.name.lower()}"


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

"""A hang, the death of a rank, or ranks that went separate ways: what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from ..text import ranks_text

REMEDIES = {
    "mismatched-operation": "make every rank enter the same operations in the same order: look at what "
    "decides there which operation comes next (a branch on the rank, an unordered set, a second thread)",
    "mismatched-shape": "make every rank pass the same shape: look at what decides it there (an uneven "
    "shard, a last batch, padding)",
    "mismatched-dtype": "make every rank pass the same dtype: look for a cast or an autocast that not every "
    "rank takes",
    "diverged": "run it again with that check alone (--only), so that more of its calls are kept: every rank "
    "must make the same calls, of the same shapes and dtypes, in the same order",
    "process-stopped": "find who stopped it: a debugger, a scheduler (the run has ended it since)",
    "process-died": "see what it printed (its log is in the run folder); where it printed nothing, find who "
    "sent the signal: dmesg, a scheduler, a person",
    "never-entered": "see what that rank does instead, by its line and its stack: every rank must make the "
    "same calls in the same order",
    "stuck-inside-backend": "see its stack; where it shows the backend, suspect the transport: on GPUs run "
    "again under NCCL_DEBUG=INFO, over gloo look at GLOO_SOCKET_IFNAME",
    "never-joined": "see its stack, and its log in the run folder, for what it does before it joins",
    "stuck-in-init": "ranks cannot reach each other: look at GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, and "
    "whether a sandbox blocks sockets or shared memory",
    "stuck-in-teardown": "see the rank's stack; the checks themselves had passed",
}
"""By kind."""
OOM_REMEDY = (
    "the kernel killed for want of memory: run fewer ranks there, or give the control group that is named, a "
    "container's or a job's, a higher limit"
)


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
class Side:
    """One of several calls that ranks entered where all had to enter the same."""

    ranks: tuple[int, ...]
    entered: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """A hang, the death of a rank, or a divergence."""

    check: str | None
    """The check during which it happened; None in the stages before and after."""
    kind: str
    """The first by precedence; each culprit has its own."""
    culprits: tuple[Culprit, ...]
    waiting_ranks: tuple[int, ...]
    stacks: Mapping[str, str]
    """Ranks, such as `2` or `0,1,3` -> the stack that they share: a culprit's whole, of others the frames."""
    seconds_to_verdict: float
    """Since the culprits last did anything; where none is named those who wait, where none waits all."""
    sides: tuple[Side, ...] = ()
    """Where ranks entered different calls at one place: who entered what."""
    raised: Mapping[int, str] = field(default_factory=dict)
    """What other ranks raised that this does not explain."""
    victims: Mapping[int, str] = field(default_factory=dict)
    """How ranks ended that had waited for the culprits, and died or raised of it."""
    no_stacks: Mapping[int, str] = field(default_factory=dict)
    """Culprit -> why there is no stack of it."""
    out_of_memory: bool = False
    """Whether the kernel has killed for want of memory, and a culprit died of a SIGKILL."""

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
        if self.out_of_memory and self.kinds == ("process-died",):
            return OOM_REMEDY
        if len(self.kinds) == 1:
            return REMEDIES[self.kind]
        return "; ".join(f"{kind}: {REMEDIES[kind]}" for kind in self.kinds)

    def sentence(self) -> str:
        """One line: who, what, where, and who waits."""
        told = [f"{kind}: {self._blamed_for(kind)}" for kind in self.kinds]
        raised = [f"rank {rank} raised {text}" for rank, text in sorted(self.raised.items())]
        waiting = [f"waiting: {ranks_text(self.waiting_ranks)}"] if self.waiting_ranks else []
        victims = [f"lost to it: {victims_text(self.victims)}"] if self.victims else []
        return "; ".join([*told, *raised, *waiting, *victims])

    def _blamed_for(self, kind: str) -> str:
        named = [culprit for culprit in self.culprits if culprit.kind == kind]
        texts = [f"rank {culprit.rank}: {culprit.got}, expected {culprit.expected}" for culprit in named]
        sides = [f"{ranks_text(side.ranks)} entered {side.entered}" for side in self.sides]
        return "; ".join(texts) or "; ".join(["nothing tells which rank is to blame", *sides])

    def as_json(self) -> dict[str, Any]:
        """The `hang` section of a report."""
        return {
            "check": self.check,
            "kind": self.kind,
            "culprit_ranks": list(self.culprit_ranks),
            "culprits": [asdict(culprit) for culprit in self.culprits],
            "waiting_ranks": list(self.waiting_ranks),
            "raised": {str(rank): text for rank, text in self.raised.items()},
            "victims": {str(rank): how for rank, how in self.victims.items()},
            "sides": [{"ranks": list(side.ranks), "entered": side.entered} for side in self.sides],
            "stacks": {**self.stacks, **_unavailable(self.no_stacks)},
            "remedy": self.remedy,
            "seconds_to_verdict": round(self.seconds_to_verdict, 3),
        }


def _unavailable(reasons: Mapping[int, str]) -> dict[str, Any]:
    return {str(rank): {"unavailable": why} for rank, why in reasons.items()}


def victims_text(victims: Mapping[int, str]) -> str:
    """`ranks 0, 2 (SIGABRT)`: those that ended alike together."""
    alike: dict[str, list[int]] = {}
    for rank, how in sorted(victims.items()):
        alike.setdefault(how, []).append(rank)
    return ", ".join(f"{ranks_text(ranks)} ({how})" for how, ranks in alike.items())

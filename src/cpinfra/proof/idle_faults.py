"""Why a planted fault did not act, and where it could: by what each set of ranks came to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from ..worker.injection import STAGE_TWINS
from ..worker.injection import Injection

_OTHERS = "choose other checks with --only, or another fault"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """One set of ranks that is over."""

    calls: Mapping[int, int]
    """Rank -> how many calls it had entered."""
    early: bool
    """Whether it broke or hung, rather than come to the end of its checks."""
    acted: tuple[str, ...]
    """Faults that acted in it for the first time in the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """A fault that did not act."""

    why: str
    """As a sentence that begins with the fault."""
    remedy: str


def why_idle(fault: Injection, ended: Sequence[Ended]) -> Idle:
    """Why a fault did not act.

    Args:
        fault: the fault.
        ended: every set of ranks in which it was planted.
    """
    early = [one for one in ended if one.early]
    if early:
        return _cut_short(fault, early[-1])
    if fault.rank is None or fault.name in STAGE_TWINS:
        return Idle(why=f"{fault.text} found nothing in the chosen checks that it changes", remedy=_OTHERS)
    made = [one.calls.get(fault.rank, 0) for one in ended]
    most = max(made, default=0)
    if most < 1:
        why = f"{fault.text} acts on call {fault.at_call}, and rank {fault.rank} made too few"
        return Idle(why=f"{why}: {_counts(made)}", remedy=_OTHERS)
    valid = f"valid are @1 to @{most}"
    if fault.at_call <= most:
        what = f"made none that it changes from call {fault.at_call} on: it made {_counts(made)}"
        return Idle(
            why=f"{fault.text}: rank {fault.rank} {what}",
            remedy=f"give an earlier call after @ ({valid}), or {_OTHERS}",
        )
    return Idle(
        why=f"{fault.text} acts on call {fault.at_call}; rank {fault.rank} made {_counts(made)}",
        remedy=f"give a call of rank {fault.rank} after @ in {fault.text} ({valid}), or {_OTHERS}",
    )


def _cut_short(fault: Injection, end: Ended) -> Idle:
    """Of a set of ranks that ended early nobody knows what else it would have done."""
    made = end.calls.get(fault.rank, 0) if fault.rank is not None else 0
    by = f"by {', '.join(end.acted)}" if end.acted else "by a hang or death that nobody had planted"
    where = f" after call {made} of rank {fault.rank}" if fault.rank is not None else ""
    alone = "plant it alone" if end.acted else "mend that first, then plant it again"
    return Idle(
        why=f"the ranks were ended {by}{where}, before {fault.text} could act",
        remedy=f"{alone}: its turn may not have come",
    )


def _counts(made: Sequence[int]) -> str:
    """How many calls, where there were several sets of ranks of each."""
    if len(made) < 2:
        return f"{sum(made)} call{'' if sum(made) == 1 else 's'} in the chosen checks"
    each = " and ".join(map(str, made))
    return f"{each} calls in the {len(made)} sets of ranks that ran the chosen checks, counted anew in each"

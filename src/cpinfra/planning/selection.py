"""Which checks run, which are left out and why, and which of them a proof requires.

Pure, standard library only.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass

from ..mesh import Mesh
from ..mesh import UsageProblem
from ..outcome import BY_ONLY
from ..outcome import BY_SKIP
from ..proof.catalogue import SEED
from ..proof.catalogue import TIERS
from ..proof.catalogue import CheckInfo


@dataclass(frozen=True, kw_only=True, slots=True)
class Omitted:
    """A check that does not run, and why that was known before."""

    check: CheckInfo
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """The checks of one run."""

    run: tuple[CheckInfo, ...]
    omitted: tuple[Omitted, ...]
    required: frozenset[str]
    """Ids that must pass; those among them that are omitted keep the report from being proven."""
    misfits: tuple[Omitted, ...] = ()
    """Of the omitted those that the mesh has no place for."""


def select(
    catalogue: Sequence[CheckInfo],
    *,
    tier: str,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Selection:
    """Choose by tier and globs, before the mesh is known.

    Args:
        catalogue: every check there is.
        tier: runs its checks and those of the tiers before it.
        only: globs; what they match is required and nothing else runs.
        skip: globs; what they match does not run.

    Raises:
        UsageProblem: the tier has no check of its own, or a glob matches nothing.
    """
    tiers = TIERS[: TIERS.index(tier) + 1]
    candidates = [check for check in catalogue if check.tier in tiers]
    ids = [check.id for check in candidates]
    globs = [("--only", glob) for glob in only] + [("--skip", glob) for glob in skip]
    messages = [_unmatched(option, glob, ids) for option, glob in globs if not _match([glob], ids)]
    if not any(check.tier == tier for check in candidates):
        there = ", ".join(name for name in TIERS if any(check.tier == name for check in catalogue))
        messages.insert(0, f"--tier {tier}: this tier has no check yet; valid are {there or 'none'}")
    if messages:
        raise UsageProblem(messages)
    named, left_out = _match(only, ids), _match(skip, ids)
    omitted = [_omitted(check, named, left_out, only) for check in candidates]
    if all(omitted):
        raise UsageProblem([f"--only and --skip leave no check; there are: {', '.join(ids)}"])
    return Selection(
        run=tuple(check for check, leave in zip(candidates, omitted, strict=True) if leave is None),
        omitted=tuple(leave for leave in omitted if leave is not None),
        required=frozenset(named) if only else frozenset(ids) | frozenset(SEED),
    )


def fitted(selection: Selection, mesh: Mesh) -> Selection:
    """The same with the checks omitted that this mesh has no place for."""
    misfits = [(check, _misfit(check, mesh)) for check in selection.run]
    omitted = tuple(misfit for _, misfit in misfits if misfit is not None)
    return Selection(
        run=tuple(check for check, misfit in misfits if misfit is None),
        omitted=selection.omitted + omitted,
        required=selection.required,
        misfits=omitted,
    )


def _match(globs: Sequence[str], ids: Sequence[str]) -> set[str]:
    return {name for name in ids for glob in globs if fnmatch.fnmatchcase(name, glob)}


def _unmatched(option: str, glob: str, ids: Sequence[str]) -> str:
    return f"{option} {glob!r}: matches no check; there are: {', '.join(ids)}"


def _omitted(
    check: CheckInfo, named: Collection[str], left_out: Collection[str], only: Sequence[str]
) -> Omitted | None:
    if check.id in left_out:
        remedy = "leave out the --skip that matches it"
        return Omitted(check=check, reason=BY_SKIP, remedy=remedy)
    if only and check.id not in named:
        remedy = "leave out --only, or name it as well"
        return Omitted(check=check, reason=BY_ONLY, remedy=remedy)
    return None


def _misfit(check: CheckInfo, mesh: Mesh) -> Omitted | None:
    obstacle = check.obstacle(world=mesh.world_size, cp0=mesh.cp0, cp1=mesh.cp1)
    return Omitted(check=check, reason=obstacle.reason, remedy=obstacle.remedy) if obstacle else None

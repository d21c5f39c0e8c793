"""The register of checks: what `@check` records, and how the files in `checks/` are found.

Standard library only. The supervisor has no torch and reads the same declarations with `ast`, so every
argument of `@check` but `trials` is a literal.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from .trials import Trial
from .trials import TrialSpace

if TYPE_CHECKING:
    from .check_run import CheckRun

Body = Callable[["CheckRun", Trial], None]


class RegistryError(Exception):
    """A check is declared twice, in the wrong file, or asked for and not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    """Why a check cannot run on a mesh, and on which it can."""

    reason: str
    remedy: str


def obstacle(check_id: str, *, mesh: str, min_ranks: int, world: int, cp0: int, cp1: int) -> Obstacle | None:
    """What keeps a check from running: the one rule, for the supervisor and for the ranks.

    Args:
        check_id: the check, whose `mesh` and `min_ranks` these are.
        mesh: see `Check`.
        min_ranks: see `Check`.
        world: ranks of the run.
        cp0: of these along cp0.
        cp1: of these along cp1.
    """
    if mesh == "square" and not cp0 == cp1 >= 2:
        return Obstacle(
            reason=f"{check_id} needs a square mesh with cp0 = cp1 >= 2, got cp0={cp0}, cp1={cp1}",
            remedy="give a number of ranks that holds a square, such as 4, 8 or 9 (--ranks 4 --cp 2x2)",
        )
    if world < min_ranks:
        return Obstacle(
            reason=f"{check_id} needs at least {min_ranks} ranks, got {world}",
            remedy=f"run it with more ranks: --ranks {min_ranks}",
        )
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One claim that is tested on ranks."""

    id: str
    """File and name, such as `collective.all_reduce`, which lives in `checks/collective.py`."""
    tier: str
    """`smoke`, `patterns` or `full`."""
    claim: str
    """One sentence: what a pass means."""
    needs: tuple[str, ...]
    """Modules that are imported before the ranks are forked."""
    mesh: str
    """`any`, or `square`: needs cp0 == cp1 >= 2."""
    min_ranks: int
    """The smallest world size it is for: there, too, it must fail if its operation does nothing."""
    twins: tuple[str, ...]
    """Data faults that it must catch."""
    immune: Mapping[str, str]
    """Each other data fault, which cannot act on it -> why, in one sentence."""
    trials: Callable[[TrialSpace], Sequence[Trial]]
    """What it tries: the same list on every rank, from the space alone."""
    body: Body
    """One trial on one rank."""

    def obstacle(self, *, world: int, cp0: int, cp1: int) -> Obstacle | None:
        """Why the check cannot run on this mesh; None when it can."""
        return obstacle(self.id, mesh=self.mesh, min_ranks=self.min_ranks, world=world, cp0=cp0, cp1=cp1)


_registered: dict[str, tuple[str, Check]] = {}


def check(
    id: str,  # noqa: A002 - the word of the whole project for it
    *,
    tier: str,
    claim: str,
    trials: Callable[[TrialSpace], Sequence[Trial]],
    min_ranks: int,
    needs: tuple[str, ...] = (),
    mesh: str = "any",
    twins: tuple[str, ...] = (),
    immune: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Body], Body]:
    """Register the decorated function as the body of a check; see `Check` for the arguments.

    Raises:
        RegistryError: the id is taken, or does not begin with the name of the file it is declared in.
    """

    def register(body: Body) -> Body:
        _refuse(id, body.__module__)
        made = Check(
            id=id,
            tier=tier,
            claim=claim,
            needs=needs,
            mesh=mesh,
            min_ranks=min_ranks,
            twins=twins,
            immune=immune,
            trials=trials,
            body=body,
        )
        _registered[id] = (body.__module__, made)
        return body

    return register


def _refuse(check_id: str, module: str) -> None:
    """Raise unless this file may register this id."""
    file_name = module.rpartition(".")[2]
    # The prefix names the file, so that one check can be loaded without importing the needs of the others.
    if check_id.partition(".")[0] != file_name:
        raise RegistryError(f"check {check_id!r} is declared in {file_name}.py: its id must say so")
    if check_id in _registered:
        first = _registered[check_id][0]
        raise RegistryError(f"check {check_id!r} is declared twice: in {first} and in {module}")


def load(ids: Collection[str] | None = None) -> dict[str, Check]:
    """Import the files of `checks/` and return what they declare, by id.

    Args:
        ids: the checks that are wanted; only their files are imported (a file costs its imports:
            `torch.distributed.tensor` is half a second). None: every file.

    Raises:
        RegistryError: an id is not declared in the file that its prefix names.
    """
    package = importlib.import_module(".checks", __package__)
    inside = f"{package.__name__}."
    present = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    wanted = set(present) if ids is None else {check_id.partition(".")[0] for check_id in ids}
    for name in present:
        if name in wanted:
            importlib.import_module(f".{name}", package.__name__)
    known = {key: found for key, (module, found) in _registered.items() if module.startswith(inside)}
    if ids is None:
        return known
    missing = sorted(set(ids) - set(known))
    if missing:
        raise RegistryError(f"no such check: {', '.join(missing)}; files of checks: {', '.join(present)}")
    return {check_id: known[check_id] for check_id in ids}

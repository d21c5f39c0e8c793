"""The catalogue of checks, read without torch.

A check is one decorated function in a file of `worker/checks/`. Importing those files needs torch, which
the supervisor does not have, so the decorator's literal arguments are read from the source.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import cache
from typing import Any

from ..worker import checks
from ..worker import registry

SEED = (
    "collective.all_reduce",
    "collective.all_gather",
    "collective.reduce_scatter",
    "p2p.ring",
    "dtensor.roundtrip",
)
"""The seed: the five checks that every proof requires, whatever the tier. They cover what 2D context
parallelism stands on."""

TIERS = ("smoke", "patterns", "full")
"""Each tier holds the ones before it."""


class CatalogueError(RuntimeError):
    """A check's declaration cannot be read, or there is none: a bug in a check file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckInfo:
    """What the supervisor knows of a check: see `worker/registry.py`."""

    id: str
    tier: str
    claim: str
    min_ranks: int
    needs: tuple[str, ...] = ()
    mesh: str = "any"
    twins: tuple[str, ...] = ()
    immune: Mapping[str, str] = field(default_factory=dict)
    file: str = ""

    def obstacle(self, *, world: int, cp0: int, cp1: int) -> registry.Obstacle | None:
        """Why the check cannot run on this mesh, in the words in which the ranks would say it."""
        return registry.obstacle(
            self.id, mesh=self.mesh, min_ranks=self.min_ranks, world=world, cp0=cp0, cp1=cp1
        )


@cache
def catalogue() -> tuple[CheckInfo, ...]:
    """All checks, in the order in which they run: by tier, then those that need least."""
    found: dict[str, tuple[str, CheckInfo]] = {}
    for name, source in _sources():
        for where, info in _declared(name, source):
            if info.id in found:
                raise CatalogueError(f"{where}: {info.id} is declared already, in {found[info.id][0]}")
            found[info.id] = where, info
    if not found:
        raise CatalogueError("worker/checks/: expected at least one function with @check, got none")
    infos = (info for _, info in found.values())
    return tuple(sorted(infos, key=lambda info: (TIERS.index(info.tier), bool(info.needs), info.file)))


def _sources() -> Iterator[tuple[str, str]]:
    """(module name, source) of each file in the checks package, also inside a zip."""
    for module in pkgutil.iter_modules(checks.__path__):
        spec = module.module_finder.find_spec(module.name, None)
        loader: Any = spec.loader if spec is not None else None
        source = loader.get_source(loader.name if hasattr(loader, "name") else module.name)
        yield module.name, source


def _declared(name: str, source: str) -> Iterator[tuple[str, CheckInfo]]:
    """(file:line, check) of each declaration in one file."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and _called(decorator) == "check":
                    where = f"worker/checks/{name}.py:{decorator.lineno}"
                    yield where, _info(where, name, decorator)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _info(where: str, name: str, decorator: ast.Call) -> CheckInfo:
    named = [(word.arg or "**", word.value) for word in decorator.keywords]
    given = [*(("id", value) for value in decorator.args), *named]
    try:
        literals = {key: ast.literal_eval(value) for key, value in given if key != "trials"}
        info = CheckInfo(file=name, **literals)
    except (ValueError, TypeError) as error:
        raise CatalogueError(
            f"{where}: all arguments of @check but `trials` must be literals: {error}"
        ) from error
    if info.tier not in TIERS:
        raise CatalogueError(f"{where}: got tier {info.tier!r}, expected one of {', '.join(TIERS)}")
    return info

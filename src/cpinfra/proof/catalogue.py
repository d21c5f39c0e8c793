"""The catalogue of checks, read without torch.

A check is one decorated function in a file of `worker/checks/`. Importing those files needs torch, which
the supervisor does not have, so the decorator's literal arguments are read from the source.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..worker import checks

SEED = (
    "collective.all_reduce",
    "collective.all_gather",
    "collective.reduce_scatter",
    "p2p.ring",
    "dtensor.roundtrip",
)
"""The checks that every proof requires, whatever the tier."""

TIERS = ("smoke", "patterns", "full")
"""Each tier holds the ones before it."""


class CatalogueError(RuntimeError):
    """A check's declaration cannot be read: a bug in a check file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckInfo:
    """What the supervisor knows of a check: see `worker/registry.py`."""

    id: str
    tier: str
    claim: str
    needs: tuple[str, ...] = ()
    mesh: str = "any"
    min_ranks: int = 1
    twins: tuple[str, ...] = ()
    file: str = ""


@cache
def catalogue() -> tuple[CheckInfo, ...]:
    """All checks, in the order in which they run: by tier, then those that need least."""
    found = [info for name, source in _sources() for info in _declared(name, source)]
    ids = [info.id for info in found]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice or not found:
        raise CatalogueError(f"{len(found)} checks found; declared twice: {twice}")
    return tuple(sorted(found, key=lambda info: (TIERS.index(info.tier), bool(info.needs), info.file)))


def _sources() -> Iterator[tuple[str, str]]:
    """(module name, source) of each file in the checks package, also inside a zip."""
    for module in pkgutil.iter_modules(checks.__path__):
        spec = module.module_finder.find_spec(module.name, None)
        loader: Any = spec.loader if spec is not None else None
        source = loader.get_source(loader.name if hasattr(loader, "name") else module.name)
        yield module.name, source


def _declared(name: str, source: str) -> Iterator[CheckInfo]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and _called(decorator) == "check":
                    yield _info(name, decorator)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _info(name: str, decorator: ast.Call) -> CheckInfo:
    fields = {word.arg: word.value for word in decorator.keywords if word.arg not in (None, "trials")}
    try:
        literals = {key: ast.literal_eval(value) for key, value in fields.items()}
        return CheckInfo(id=ast.literal_eval(decorator.args[0]), file=name, **literals)
    except (ValueError, TypeError, IndexError) as error:
        line = f"worker/checks/{name}.py:{decorator.lineno}"
        raise CatalogueError(
            f"{line}: all arguments of @check but `trials` must be literals: {error}"
        ) from error

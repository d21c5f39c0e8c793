"""Which faults can be planted, for those who may not look into the worker."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence

from ..worker import injection

NAMES = (*injection.DATA_TWINS, *injection.CONTROL_TWINS)
"""Of all faults, in the order in which a self-test plants them."""
_ANY_WORLD = 1 << 30


def matching(globs: Sequence[str]) -> tuple[str, ...]:
    """The names that match any of these; all of them where there is none."""
    if not globs:
        return NAMES
    return tuple(name for name in NAMES if any(fnmatch.fnmatchcase(name, glob) for glob in globs))


def mistakes(faults: Sequence[str], world: int | None) -> list[str]:
    """What is wrong with each of these faults, as `--inject` spells them: messages that name what is valid.

    Args:
        faults: as written.
        world: number of ranks; None where it is not known yet.
    """
    told = [_mistake(fault, _ANY_WORLD if world is None else world) for fault in faults]
    twice = [fault for fault, number in Counter(faults).items() if number > 1]
    told += [f"--inject {fault!r}: given twice, and would undo itself; give it once" for fault in twice]
    return [message for message in dict.fromkeys(told) if message]


def _mistake(fault: str, world: int) -> str:
    try:
        injection.parse(fault, world)
    except injection.InjectionError as error:
        return str(error).replace(f"a rank from 0 to {_ANY_WORLD - 1}", "the number of a rank, from 0 on")
    return ""

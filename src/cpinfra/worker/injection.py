"""Faults that can be planted: their names and how `--inject` spells them.

Standard library only: the supervisor refuses what does not exist before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass

DATA_TWINS = (
    "wrong-chunk",
    "reversed-shard",
    "first-element-only",
    "shifted",
    "swapped-slots",
    "stale-buffer",
    "swapped-axes",
    "bit-flip",
)
"""Faults in what an operation delivered, on every rank unless their text says otherwise."""

CONTROL_TWINS = {
    "delay": "delay:RANK:SECONDS",
    "raise": "raise:RANK",
    "kill": "kill:RANK",
    "stop": "stop:RANK",
}
"""Faults in one rank's conduct: name and spelling."""


class InjectionError(ValueError):
    """A fault that does not exist, or whose rank or seconds are off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """One planted fault."""

    text: str
    """As `--inject` spells it."""
    name: str
    rank: int | None = None
    """The rank that a control twin acts on; None for a data twin."""
    seconds: float = 0.0

    @property
    def is_data(self) -> bool:
        """Whether it acts on delivered data, rather than on a rank's conduct."""
        return self.name in DATA_TWINS


def parse(text: str, world: int) -> Injection:
    """Read one `--inject` value.

    Raises:
        InjectionError: with what was got, expected, and what exists.
    """
    name, *arguments = text.split(":")
    if name in DATA_TWINS and not arguments:
        return Injection(text=text, name=name)
    if name in DATA_TWINS:
        raise InjectionError(f"--inject {text!r}: {name} acts on data and takes no argument")
    if name not in CONTROL_TWINS:
        known = ", ".join([*DATA_TWINS, *CONTROL_TWINS.values()])
        raise InjectionError(f"--inject {text!r}: no such fault; there are: {known}")
    return _control(text, name, arguments, world)


def _control(text: str, name: str, arguments: list[str], world: int) -> Injection:
    spelling = CONTROL_TWINS[name]
    if len(arguments) != spelling.count(":"):
        raise InjectionError(f"--inject {text!r}: expected {spelling}")
    seconds = _seconds(text, spelling, arguments[1]) if len(arguments) == 2 else 0.0
    return Injection(text=text, name=name, rank=_rank(text, arguments[0], world), seconds=seconds)


def _rank(text: str, argument: str, world: int) -> int:
    # Nine digits: from 4300 on `int` raises an error of its own.
    if not (argument.isascii() and argument.isdecimal()) or len(argument) > 9 or int(argument) >= world:
        raise InjectionError(f"--inject {text!r}: expected a rank from 0 to {world - 1}, got {argument!r}")
    return int(argument)


def _seconds(text: str, spelling: str, argument: str) -> float:
    try:
        seconds = float(argument)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise InjectionError(
            f"--inject {text!r}: expected {spelling} with 0 to 3600 seconds, got {argument!r}"
        )
    return seconds

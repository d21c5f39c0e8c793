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
    "skip": "skip:RANK",
    "swap-order": "swap-order:RANK",
    "wrong-shape": "wrong-shape:RANK",
    "wrong-dtype": "wrong-dtype:RANK",
    "delay": "delay:RANK:SECONDS",
    "raise": "raise:RANK",
    "exit": "exit:RANK",
    "kill": "kill:RANK",
    "stop": "stop:RANK",
    "never-join": "never-join:RANK",
    "stall-init": "stall-init:RANK",
    "stall-inside": "stall-inside:RANK",
    "stall-teardown": "stall-teardown:RANK",
}
"""Faults in one rank's conduct: name and spelling. What they do is in `control.py`."""

STAGE_TWINS = ("never-join", "stall-init", "stall-teardown")
"""Control twins that act in a stage of a rank's life; all others act on a call, and may be given `@CALL`."""

FIRES_AT_CALL = 3
"""The call of the door at which a control twin acts, if not told otherwise: late enough that the group is
known to work."""

_MOST_DIGITS = 9  # from 4300 on `int` raises an error of its own


class InjectionError(ValueError):
    """A fault that does not exist, or whose rank, seconds or call are off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Injection:
    """One planted fault."""

    text: str
    """As `--inject` spells it."""
    name: str
    rank: int | None = None
    """The rank that a control twin acts on; None for a data twin."""
    seconds: float = 0.0
    at_call: int = FIRES_AT_CALL
    """Which of its rank's calls through the door a twin acts on that acts on a call, from 1 on."""

    @property
    def is_data(self) -> bool:
        """Whether it acts on delivered data, rather than on a rank's conduct."""
        return self.name in DATA_TWINS


def parse(text: str, world: int) -> Injection:
    """Read one `--inject` value.

    Raises:
        InjectionError: with what was got, expected, and what exists.
    """
    fault, at, call = text.partition("@")
    name, *arguments = fault.split(":")
    if name in DATA_TWINS and not (arguments or at):
        return Injection(text=text, name=name)
    if name in DATA_TWINS:
        raise InjectionError(f"--inject {text!r}: {name} acts on data and takes no argument")
    if name not in CONTROL_TWINS:
        known = ", ".join([*DATA_TWINS, *map(_spelling, CONTROL_TWINS)])
        raise InjectionError(f"--inject {text!r}: no such fault; there are: {known}")
    if at and name in STAGE_TWINS:
        raise InjectionError(f"--inject {text!r}: expected {_spelling(name)}; it acts on no call")
    return _control(text, name, arguments, _call(text, call) if at else FIRES_AT_CALL, world)


def _spelling(name: str) -> str:
    return CONTROL_TWINS[name] if name in STAGE_TWINS else f"{CONTROL_TWINS[name]}[@CALL]"


def _control(text: str, name: str, arguments: list[str], at_call: int, world: int) -> Injection:
    if len(arguments) != CONTROL_TWINS[name].count(":"):
        raise InjectionError(f"--inject {text!r}: expected {_spelling(name)}")
    seconds = _seconds(text, name, arguments[1]) if len(arguments) == 2 else 0.0
    rank = _rank(text, arguments[0], world)
    return Injection(text=text, name=name, rank=rank, seconds=seconds, at_call=at_call)


def _rank(text: str, argument: str, world: int) -> int:
    if not _is_number(argument) or int(argument) >= world:
        raise InjectionError(f"--inject {text!r}: expected a rank from 0 to {world - 1}, got {argument!r}")
    return int(argument)


def _call(text: str, argument: str) -> int:
    if not _is_number(argument) or int(argument) < 1:
        most = 10**_MOST_DIGITS - 1
        raise InjectionError(
            f"--inject {text!r}: expected the number of a call from 1 to {most}, got {argument!r}"
        )
    return int(argument)


def _is_number(argument: str) -> bool:
    return argument.isascii() and argument.isdecimal() and len(argument) <= _MOST_DIGITS


def _seconds(text: str, name: str, argument: str) -> float:
    try:
        seconds = float(argument)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise InjectionError(
            f"--inject {text!r}: expected {_spelling(name)} with 0 to 3600 seconds, got {argument!r}"
        )
    return seconds

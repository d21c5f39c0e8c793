"""How a command line that makes no sense is told."""

from __future__ import annotations

import sys

import click

from ..text import one_line
from .lines import columns
from .lines import styled
from .lines import wrapped
from .output import Output

_PREFIX = "Error: "
"""What click puts before a message."""


class Mistakes(click.UsageError):
    """Everything that is wrong with the command line, at once."""

    def __init__(self, messages: tuple[str, ...], ctx: click.Context) -> None:
        self._shown = [one_line(message) for message in messages]
        listed = "".join(f"\n  - {message}" for message in self._shown)
        one = len(self._shown) == 1
        super().__init__(self._shown[0] if one else f"{len(self._shown)} mistakes:{listed}", ctx)

    def format_message(self) -> str:
        """The message, its lines broken between words where the terminal is too narrow."""
        lines = [styled(line, hang=6) for line in f"{_PREFIX}{self.message}".split("\n")]
        found = "\n".join(line.text for line in wrapped(lines, columns(Output(sys.stderr))))
        return found.removeprefix(_PREFIX)

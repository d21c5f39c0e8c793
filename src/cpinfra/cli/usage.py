"""How a command line that makes no sense is told."""

from __future__ import annotations

import click

from ..text import one_line


class Mistakes(click.UsageError):
    """Everything that is wrong with the command line, at once."""

    def __init__(self, messages: tuple[str, ...], ctx: click.Context) -> None:
        shown = [one_line(message) for message in messages]
        listed = "".join(f"\n  - {message}" for message in shown)
        super().__init__(shown[0] if len(shown) == 1 else f"{len(shown)} mistakes:{listed}", ctx)

"""What a person sees of a proof: progress while it runs, and the summary at its end.

On a terminal a live table; off it one line per event, without colour. Whatever comes from other programs is
shown with its control characters escaped. Nothing here ends a run: a stream that breaks is given up.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any
from typing import TextIO

from ..node.words import line_of
from ..node.words import numbers
from ..node.words import sentence
from ..node.words import word
from ..node.words import worth_a_line
from ..text import one_line
from . import summary
from .lines import columns
from .lines import wrapped
from .output import LOST
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.console import RenderableType
    from rich.live import Live

    from ..judging.selftest import SelfTestAnswer
    from ..judging.store import Answer
    from ..node.reporter import Reporter
    from .lines import Line

__all__ = ["LiveReporter", "PlainReporter", "Screen", "line_of", "sentence", "worth_a_line"]

_REFRESH_PER_S = 8
_NOTED = ("hang", "slow", "fired", "interrupted")
"""Events that stay on the screen."""


class Screen:
    """Where a proof is shown: on stdout, or on stderr where stdout is for the JSON document."""

    def __init__(self, stdout: TextIO | None, stderr: TextIO | None, *, as_json: bool) -> None:
        self._document = Output(stdout) if as_json else None
        self._people = Output(stderr if as_json else stdout)
        self._trouble = Output(stderr)
        live = self._people.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._live = LiveReporter(self._people) if live else None
        self.reporter: Reporter = self._live or PlainReporter(self._people)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.close()

    @property
    def brief(self) -> bool:
        """Whether only the end of a summary is wanted, as the document holds the rest."""
        return self._document is not None

    def finish(self, answer: Answer | SelfTestAnswer, summarised: Callable[[bool], list[Line]]) -> int:
        """Show what it came to, the document first; returns the exit code, as the summary's end says it.

        A program that asked for the document and did not get it must not read success in a 0.

        Args:
            answer: the report, and where it lies.
            summarised: makes its summary, knowing whether the exit code says that the document was lost.
        """
        code, is_lost = int(answer.exit_code), False
        if self._document is not None:
            self._document.write(answer.report.text())
            is_lost = bool(self._document.lost) and code == 0
        fitting = wrapped(summarised(is_lost), columns(self._people))
        if self._live is not None:
            self._live.show(fitting)
        else:
            self._people.write("".join(f"{line.text}\n" for line in fitting))
        output = self._document or self._people
        if output.lost:
            where = answer.report_path or "nowhere: no folder could take it"
            self._trouble.write(f"cpinfra: output lost ({output.lost}); the report lies at {where}\n")
        return LOST if is_lost else code


class PlainReporter:
    """One line per event."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def announce(self, text: str) -> None:
        """One line without a time."""
        self._output.write(one_line(text) + "\n")

    def engine_started(self) -> None:
        """Nothing to prepare."""

    def event(self, event: dict[str, Any]) -> None:
        """One line, if it is worth one."""
        if worth_a_line(event):
            self._output.write(line_of(event) + "\n")


class LiveReporter:
    """A table that grows, and below it what goes on, with the time."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._console: Console | None = None
        self._live: Live | None = None
        self._checks: list[Mapping[str, Any]] = []
        self._notes: list[str] = []
        self._doing = "starting"

    def announce(self, text: str) -> None:
        """Plain: rich is not imported yet."""
        self._output.write(one_line(text) + "\n")

    def engine_started(self) -> None:
        """Import rich and start to draw."""
        from rich.live import Live

        self._live = Live(
            get_renderable=self._picture,
            console=self._rich(),
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def event(self, event: dict[str, Any]) -> None:
        """Remember it; the next picture shows it."""
        if event.get("event") == "check":
            self._checks.append(event)
        elif event.get("event") in _NOTED or event.get("right") is False or event.get("false_alarms"):
            self._notes.append(sentence(event))
        elif worth_a_line(event):
            self._doing = sentence(event)

    def close(self) -> None:
        """Stop drawing and remove the picture."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, lines: list[Line]) -> None:
        """Print lines in colour."""
        from rich.text import Text

        for line in lines:
            self._rich().print(Text.assemble(*line.spans), soft_wrap=True)

    def _rich(self) -> Console:
        if self._console is None:
            self._console = _console(self._output)
        return self._console

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2))
        for check in list(self._checks):
            words = {key: word(value) for key, value in check.items()}
            outcome = words.get("outcome", "")
            style = summary.STYLES.get(outcome, "")
            table.add_row(words.get("id", ""), Text(outcome, style=style), numbers(words))
        notes = [Text(note, style="red") for note in list(self._notes)]
        return Group(
            table, *notes, Spinner("line", text=Text(self._doing, overflow="ellipsis", no_wrap=True))
        )


def _console(output: Output) -> Console:
    """A terminal whose cursor stays visible: whoever is killed could not show it again."""
    from rich.console import Console

    class Steady(Console):
        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002 - rich's signature
            return False

    return Steady(file=_as_file(output), force_terminal=True, markup=False, highlight=False, emoji=False)


def _as_file(output: Output) -> Any:
    """An `Output` has all that rich asks of a file."""
    return output

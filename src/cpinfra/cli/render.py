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

from ..outcome import ExitCode
from ..text import one_line
from . import summary
from .output import Output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.console import RenderableType
    from rich.live import Live

    from ..build import Reporter
    from ..conclude import ProveAnswer
    from .summary import Line

_REFRESH_PER_S = 8
_REASON_LIMIT = 400
_BRIEF = 120
"""Of a reason in the timeline; the summary says more and the report all."""


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

    def finish(self, answer: ProveAnswer) -> int:
        """Show what the proof came to; returns the exit code.

        A program that asked for the document and did not get it must not read success in a 0.
        """
        found = summary.of(answer, brief=self._document is not None)
        if self._live is not None:
            self._live.show(found)
        else:
            self._people.write("".join(f"{line.text}\n" for line in found))
        output = self._people
        if self._document is not None:
            output = self._document
            output.write(answer.report.text())
        if output.lost:
            where = answer.report_path or "nowhere: no folder could take it"
            self._trouble.write(f"cpinfra: output lost ({output.lost}); the report lies at {where}\n")
        lost = self._document is not None and self._document.lost
        return int(answer.exit_code) or (int(ExitCode.NOT_PROVEN) if lost else 0)


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
        elif event.get("event") in ("hang", "fired", "interrupted"):
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
            words = {key: _word(value) for key, value in check.items()}
            outcome = words.get("outcome", "")
            style = summary.STYLES.get(outcome, "")
            table.add_row(words.get("id", ""), Text(outcome, style=style), _numbers(words))
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


def line_of(event: Mapping[str, Any]) -> str:
    """One event as one line: its time and a sentence."""
    seconds = event.get("t")
    time = f"{seconds:9.3f} s" if isinstance(seconds, int | float) else " " * 11
    return f"{time}  {sentence(event)}"


def sentence(event: Mapping[str, Any]) -> str:
    """One event in words, on one line; an event that is not known shows all that it holds."""
    words = {key: _word(value) for key, value in event.items()}
    say = _SENTENCES.get(words.get("event", ""))
    try:
        if say is not None:
            return say(words)
    except KeyError:
        pass  # an event with other facts than expected is shown as it is
    facts = [f"{key}={value}" for key, value in words.items() if key not in ("t", "event")]
    return " ".join([words.get("event", "event"), *facts])


def worth_a_line(event: Mapping[str, Any]) -> bool:
    """Whether an event tells a person anything: ranks that end as they should, by the dozen, do not."""
    name = event.get("event")
    if name == "exited":
        return event.get("code") != 0 and not event.get("by_us")
    if name == "imported":
        return bool(event.get("modules", True))
    return name != "end" or bool(event.get("processes_left", True))


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return one_line(shown, limit=_REASON_LIMIT)


def _check(words: Mapping[str, str]) -> str:
    reason = f": {one_line(words['reason'], limit=_BRIEF)}" if words.get("reason") else ""
    return f"{words['id']} {words['outcome']}{reason} ({_numbers(words)})"


def _exited(words: Mapping[str, str]) -> str:
    how = words["signal"] if words["signal"] != "None" else f"exit code {words['code']}"
    return f"rank {words['rank']} ended by {how}"


_SENTENCES: dict[str, Callable[[Mapping[str, str]], str]] = {
    "start": "starting {python} for {world_size} rank(s) on {device}".format_map,
    "software": "torch {torch} is imported (Python {python_version}, {seconds} s)".format_map,
    "forked": "generation {generation} of ranks is forked ({seconds} s)".format_map,
    "imported": "imported {modules} ({seconds} s)".format_map,
    "fired": "planted fault {fault} acts on rank {rank}".format_map,
    "exited": _exited,
    "check": _check,
    "hang": "{sentence}".format_map,
    "interrupted": "interrupted by {signal}: ending all ranks".format_map,
    "end": "these processes do not die: {processes_left}".format_map,
}


def _numbers(words: Mapping[str, str]) -> str:
    return f"{words.get('seconds', 'unknown')} s, {words.get('comparisons', 'unknown')} comparisons"

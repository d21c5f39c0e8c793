"""The table at the end of a self-test, as lines of styled text. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..text import one_line
from . import exit_codes
from .lines import Line
from .lines import styled
from .summary import findings
from .summary import paragraph
from .summary import report_line
from .summary import sentence

if TYPE_CHECKING:
    from ..judging.selftest import SelfTestAnswer
    from ..report import Control
    from ..report import SelfTestRow
    from ..report import Told

STYLES = {"right": "green", "missed": "bold red", "unknown": "yellow"}
_REASON_LIMIT = 300
_MARKS = {True: "yes", False: "NO", None: "-"}
_HEAD = ("fault", "check", "result", "acted", "noticed", "rank", "kind", "seconds")
"""Short, and one blank apart: the table is to fit into 80 columns."""
_OF_TOLD = "rank, kind: whether the right ones were told"
_OF_DATA = "-: a fault in what is delivered is no rank's, and no kind of hang is told of it"
_OF_SECONDS = "seconds: from the fault to the word on it"
_OF_SLOWEST = "; where a line stands for several checks, on the slowest of them"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """One line of the table, in its columns."""

    cells: tuple[str, ...]
    row: SelfTestRow
    """The one it shows, or one of those."""


def of(answer: SelfTestAnswer, *, brief: bool = False, lost: bool = False) -> list[Line]:
    """The table, what was missed, and the end.

    Args:
        answer: the report, and where it lies.
        brief: whether only the end of it is wanted.
        lost: whether the exit code says that the document was lost.
    """
    made = answer.report
    rows = made.selftest
    found = [] if brief else [*_not_planted(rows), *_table(rows), *_alarms(made.control), *findings(made)]
    return [*found, *_end(answer, exit_codes.told(int(answer.exit_code), exit_codes.SELFTEST, lost=lost))]


def _not_planted(rows: Sequence[SelfTestRow]) -> Iterator[Line]:
    """Which faults cannot act on which checks, and why: those that have one reason together."""
    of_twin: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status == "n/a":
            of_twin.setdefault((row.twin, row.reason), []).append(_place(row))
    alike: dict[tuple[str, str], list[str]] = {}
    for (twin, reason), checks in of_twin.items():
        alike.setdefault((", ".join(checks), reason), []).append(twin)
    if alike:
        yield styled(("Not planted (n/a)", "bold"))
    for (places, reason), twins in alike.items():
        why = one_line(f"{reason[:1].lower()}{reason[1:].rstrip('.')}", limit=_REASON_LIMIT)
        yield styled(f"  {one_line(', '.join(twins))} on {one_line(places)}: {why}", hang=6)


def _table(rows: Sequence[SelfTestRow]) -> Iterator[Line]:
    """What was told right, the checks of one fault in data together; then each row that was not."""
    planted = [row for row in rows if row.status != "n/a"]
    if not planted:
        return
    entries = [*_right(planted), *(_entry(row) for row in planted if row.status != "right")]
    widths = [max(len(entry.cells[place]) for entry in entries) for place in range(len(_HEAD))]
    widths = [max(width, len(name)) for width, name in zip(widths, _HEAD, strict=True)]
    yield styled(("Faults", "bold"))
    yield styled((f" {_padded(_HEAD, widths)}", "bold"))
    for entry in entries:
        before, after = _padded(entry.cells[:2], widths), _padded(entry.cells[3:], widths[3:])
        result = (f" {entry.cells[2]:<{widths[2]}}", STYLES[entry.row.status])
        yield styled(" ", before, result, after)
        if entry.row.status != "right":
            yield from _told(entry.row)
    yield from _legend(planted, several=len(entries) < len(planted))


def _legend(planted: Sequence[SelfTestRow], *, several: bool) -> Iterator[Line]:
    """What the columns say.

    Args:
        planted: the rows.
        several: whether a line stands for several of them.
    """
    of_data = [_OF_DATA] if any(row.culprit_right is None for row in planted) else []
    for text in (_OF_TOLD, *of_data, _OF_SECONDS + (_OF_SLOWEST if several else "")):
        yield styled((f"  {text}", "dim"), hang=6)


def _padded(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f" {cell:<{width}}" for cell, width in zip(cells, widths, strict=False))


def _right(planted: Sequence[SelfTestRow]) -> Iterator[_Entry]:
    """A fault in data has one line for all its checks, with the longest of its times."""
    shown = set()
    for row in planted:
        of_data = row.culprit_right is None
        if row.status != "right" or (of_data and row.twin in shown):
            continue
        shown.add(row.twin)
        alike = [one for one in planted if one.twin == row.twin]
        if not of_data or len(alike) == 1:
            yield _entry(row)
            continue
        right = [one for one in alike if one.status == "right"]
        slowest = max(right, key=lambda one: one.seconds or 0.0)
        yield _entry(slowest, place=f"{len(right)} of {len(alike)} checks")


def _entry(row: SelfTestRow, *, place: str = "") -> _Entry:
    marks = (_MARKS[mark] for mark in (row.fired, row.detected, row.culprit_right, row.kind_right))
    took = f"{row.seconds:7.3f}" if row.seconds is not None else f"{'-':>7}"
    return _Entry(cells=(row.fault, place or _place(row), row.status, *marks, took), row=row)


def _place(row: SelfTestRow) -> str:
    return row.check or "(no check)"


def _told(row: SelfTestRow) -> Iterator[Line]:
    if row.status == "unknown":
        yield from paragraph("reason", one_line(row.reason))
        return
    got = _text(row.got)
    yield from paragraph("got", got if row.fired else f"it did not act; {got}")
    yield from paragraph("expected", _text(row.expected))


def _text(told: Told | None) -> str:
    return told.text if told is not None else ""


def _alarms(control: Control | None) -> Iterator[Line]:
    for alarm in control.false_alarms if control is not None else ():
        yield styled("  ", ("false alarm", "bold red"))
        yield from paragraph("got", alarm)
        yield from paragraph("expected", "no word without a fault that does it")


def _end(answer: SelfTestAnswer, exit_code: str) -> Iterator[Line]:
    from ..record import words

    yield from sentence("Self-test", words.selftest(answer.report))
    yield from sentence("Not reached", words.not_reached(answer.report))
    yield from sentence("Left out", words.left_out(answer.report))
    yield from sentence("Exit code", exit_code)
    yield report_line(answer.report_path)

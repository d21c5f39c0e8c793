"""The table at the end of a self-test, as lines of styled text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..text import one_line
from .summary import Line
from .summary import findings
from .summary import paragraph
from .summary import report_line
from .summary import styled

if TYPE_CHECKING:
    from ..judging.selftest import SelfTestAnswer
    from ..report import ControlRow
    from ..report import Detection

STYLES = {"right": "green", "missed": "bold red", "n/a": "dim"}
EXIT_CODES = {
    0: "every fault was noticed and blamed right, no false alarm",
    1: "a miss or a false alarm",
    3: "could not run, or not to its end",
    130: "interrupted",
}
_MARKS = {True: "yes", False: "NO", None: "-"}
_OUTSIDE = "(outside of checks)"


def of(answer: SelfTestAnswer, *, brief: bool = False) -> list[Line]:
    """The table, what was missed, and the end; only the end where `brief`."""
    made = answer.report
    rows = made.selftest
    found = [] if brief else [*_table(rows), *_missed(rows), *_alarms(made.control), *findings(made)]
    return [*found, *_end(answer)]


def _table(rows: Sequence[Detection]) -> Iterator[Line]:
    if not rows:
        return
    twins = max(len(row.twin) for row in rows)
    checks = max(len(row.check or _OUTSIDE) for row in rows)
    head = f"  {'twin':<{twins}}  {'check':<{checks}}  status  fired  detected  culprit  kind  seconds"
    yield styled((head, "bold"))
    for row in rows:
        place = f"  {row.twin:<{twins}}  {row.check or _OUTSIDE:<{checks}}  "
        status = (f"{row.status:<8}", STYLES[row.status])
        yield styled(place, status, one_line(row.reason) if row.status == "n/a" else _marks(row))


def _marks(row: Detection) -> str:
    told = f"{row.seconds:7.3f}" if row.seconds is not None else f"{'-':>7}"
    marks = (_MARKS[mark] for mark in (row.fired, row.detected, row.culprit_right, row.kind_right))
    return "{:<5}  {:<8}  {:<7}  {:<4}  {}".format(*marks, told)


def _missed(rows: Sequence[Detection]) -> Iterator[Line]:
    for row in rows:
        if row.status == "missed":
            yield styled("  ", (f"missed: {row.fault}", "bold red"), f" on {row.check or _OUTSIDE}")
            yield from paragraph("got", row.got if row.fired else f"it did not act; {row.got}")
            yield from paragraph("expected", row.expected)


def _alarms(control: ControlRow | None) -> Iterator[Line]:
    for alarm in control.false_alarms if control is not None else ():
        yield styled("  ", ("false alarm", "bold red"))
        yield from paragraph("got", alarm)
        yield from paragraph("expected", "no word without a fault that does it")


def _end(answer: SelfTestAnswer) -> Iterator[Line]:
    made = answer.report
    number = Counter(row.status for row in made.selftest)
    alarms = len(made.control.false_alarms) if made.control is not None else 0
    counts = f"{number['right']} right, {number['missed']} missed, {alarms} false alarm(s)"
    yield styled(("Self-test", "bold"), f": {counts}; {number['n/a']} n/a")
    code = int(answer.exit_code)
    yield styled(("Exit code", "bold"), f": {code} ({EXIT_CODES[code]})")
    yield report_line(answer.report_path)

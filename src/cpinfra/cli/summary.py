"""The summary at the end of a proof, as lines of styled text. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..outcome import MEANINGS
from ..proof.stacks import of_program
from ..text import lines
from ..text import one_line
from ..text import ranks_text
from . import exit_codes
from .lines import Line
from .lines import styled

if TYPE_CHECKING:
    from ..judging.store import Answer
    from ..report import Check
    from ..report import Culprit
    from ..report import FindingFacts
    from ..report import Hang
    from ..report import Report
    from ..report import Unavailable

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "unknown": "yellow",
    "skip": "dim",
    "info": "dim",
    "warning": "yellow",
    "blocking": "bold red",
    "proven": "bold green",
    "rehearsed": "bold green",
    "not-proven": "bold yellow",
    "failed": "bold red",
}
_LIMIT = 480
_FINDING_LIMIT = 300
_FRAMES_OF_OTHERS = 4
"""At each end of their stacks."""
_NAME = 6
_TEXT = _NAME + 10
"""Where a paragraph has its name, and its text."""


def of(
    answer: Answer, *, brief: bool = False, codes: Mapping[int, str] = exit_codes.PROVE, lost: bool = False
) -> list[Line]:
    """The summary.

    Args:
        answer: the report, and where it lies.
        brief: whether only the end of it is wanted.
        codes: what the exit codes of the command mean.
        lost: whether the exit code says that the document was lost.
    """
    report = answer.report
    found = [] if brief else [*_checks(report.checks), *findings(report), *_hang(report.hang)]
    return [*found, *_end(answer, exit_codes.told(int(answer.exit_code), codes, lost=lost))]


def _checks(checks: Sequence[Check]) -> Iterator[Line]:
    """Each check but those that the user left out, then why some did not pass."""
    from ..record import words

    chosen = [check for check in checks if not words.by_choice(check)]
    width = max((len(check.id) for check in chosen), default=0)
    several = len({check.run for check in checks}) > 1
    yield styled(("Checks", "bold"))
    for number, check in enumerate(chosen):
        comparisons = check.evidence.get("comparisons", 0)
        numbers = f"{check.seconds:9.3f} s  {one_line(comparisons):>8} comparisons"
        outcome = (f"{check.outcome:<8}", STYLES[check.outcome])
        if several and check.run not in {one.run for one in chosen[:number]}:
            yield styled(f"  run {one_line(check.run)}")
        yield styled(f"  {one_line(check.id):<{width}}  ", outcome, numbers)
    for alike in words.alike(checks):
        ids = ", ".join(one_line(check.id) for check in alike)
        ids += f" in run {one_line(alike[0].run)}" if several else ""
        first = alike[0]
        yield styled("  ", (ids, "bold"), ": ", (first.outcome, STYLES[first.outcome]), hang=_NAME)
        yield from paragraph("reason", first.reason)
        yield from paragraph("remedy", first.remedy)


def paragraph(name: str, text: str, *, limit: int = _LIMIT) -> Iterator[Line]:
    """A text under its name; nothing where there is none. A command stays in one piece, to be copied."""
    hang = None if name == "command" else _TEXT
    shown = text if len(text) <= limit else text[:limit] + " ... (all of it is in the report)"
    for number, line in enumerate(lines(shown)):
        yield styled(f"{'':{_NAME}}{name + ':' if number == 0 else '':<{_TEXT - _NAME}}{line}", hang=hang)


def findings(report: Report) -> Iterator[Line]:
    """What was noticed of the machine, the software and the run."""
    from ..record import words

    for number, finding in enumerate(words.findings(report)):
        if number == 0:
            yield styled(("Findings", "bold"))
        yield from _finding(finding)


def _finding(finding: FindingFacts) -> Iterator[Line]:
    severity = (finding.severity, STYLES[finding.severity])
    yield styled("  ", severity, f" {one_line(finding.id)}: {one_line(finding.what)}", hang=_NAME)
    if finding.severity != "info":
        yield from paragraph("got", one_line(finding.got, limit=_FINDING_LIMIT))
        yield from paragraph("expected", one_line(finding.expected, limit=_FINDING_LIMIT))
        yield from paragraph("remedy", finding.remedy)
        yield from paragraph("command", finding.command)


def _hang(hang: Hang | None) -> Iterator[Line]:
    from ..record import words

    if hang is None:
        return
    took = hang.seconds_to_verdict
    told = f"told after {took:.2f} s" if isinstance(took, float | int) else "told"
    kinds = ", ".join(dict.fromkeys([hang.kind, *(culprit.kind for culprit in hang.culprits)]))
    title = (words.hang_title(hang), "bold")
    yield styled(title, f": {one_line(kinds)} {one_line(words.where(hang))}, {told}", hang=2)
    for culprit in hang.culprits:
        what = one_line(culprit.kind) + words.place(culprit, one_line)
        yield styled("  ", (f"rank {culprit.rank}", "bold red"), f": {what}", hang=_NAME)
        yield from paragraph("got", _said(culprit.got))
        yield from paragraph("expected", _said(culprit.expected))
    if not hang.culprits:
        yield styled("  no rank is to blame by what was recorded; the stacks are in the report", hang=_NAME)
        for side in hang.sides:
            text = f"  {one_line(ranks_text(side.ranks))} entered {one_line(side.entered)}"
            yield styled(text, hang=_NAME)
    if hang.waiting_ranks:
        yield styled(f"  waiting: {', '.join(map(str, hang.waiting_ranks))}", hang=_NAME)
    for rank, how in hang.victims.items():
        yield styled(f"  lost to it: rank {one_line(rank)}: {one_line(_said(how), limit=_LIMIT)}", hang=_NAME)
    for rank, raised in hang.raised.items():
        yield styled(f"  rank {one_line(rank)} raised {one_line(_said(raised), limit=_LIMIT)}", hang=_NAME)
    yield from paragraph("remedy", hang.remedy)
    yield from _stacks(hang)


def _stacks(hang: Hang) -> Iterator[Line]:
    """Every frame of a culprit, or why there is none; of the others each distinct stack once, in part."""
    found = dict(hang.stacks)
    for culprit in hang.culprits:
        yield from _stack(culprit, found.pop(str(culprit.rank), ""))
    for stack in found.values():
        head, *frames = lines(_plain(stack)) or [""]
        yield styled(f"  {head}", hang=_NAME)
        yield from map(_frame, _without_middle([frame.strip() for frame in frames]))


def _stack(culprit: Culprit, stack: str | Unavailable) -> Iterator[Line]:
    """Where a culprit stands."""
    name = (f"rank {culprit.rank}", "bold red")
    if isinstance(stack, str) and stack:
        yield styled("  ", (f"{name[0]} stands at", name[1]))
        yield from map(_frame, list(map(str, of_program(stack))) or lines(stack))
    else:
        yield styled("  ", name, f": no stack: {_said(stack) or 'it was not recorded'}", hang=_NAME)


def _frame(frame: str) -> Line:
    return styled(f"    {one_line(frame)}", hang=8)


def _without_middle(found: list[str]) -> list[str]:
    """Where it stands, and the lines of the check from which it came there."""
    if len(found) <= 2 * _FRAMES_OF_OTHERS:
        return found
    left_out = len(found) - 2 * _FRAMES_OF_OTHERS
    return [*found[:_FRAMES_OF_OTHERS], f"... {left_out} more", *found[-_FRAMES_OF_OTHERS:]]


def _said(value: str | Unavailable) -> str:
    """A text of the report, or why there is none, on one line."""
    return one_line(_plain(value))


def _plain(value: str | Unavailable) -> str:
    return value if isinstance(value, str) else value.unavailable


def _end(answer: Answer, exit_code: str) -> Iterator[Line]:
    from ..record import words

    verdict = answer.verdict.value
    scope = f", scope {answer.scope.value}" if answer.scope is not None else ""
    meaning = f"{scope}: {MEANINGS[verdict]}"
    yield styled(("Verdict", "bold"), ": ", (verdict, STYLES[verdict]), meaning, hang=2)
    yield from sentence("Left out", words.left_out(answer.report))
    yield from sentence("Exit code", exit_code)
    yield report_line(answer.report_path)
    if answer.docs_path is not None:
        yield styled(("Document", "bold"), f": {one_line(answer.docs_path)}")


def sentence(name: str, text: str) -> Iterator[Line]:
    """A text behind its name; nothing where there is none."""
    if text:
        yield styled((name, "bold"), f": {text}", hang=2)


def report_line(path: Path | None) -> Line:
    """Where the report lies."""
    if path is None:
        return styled(("Report", "bold"), ": no folder could take it; see the findings")
    return styled(("Report", "bold"), f": {one_line(path)}")

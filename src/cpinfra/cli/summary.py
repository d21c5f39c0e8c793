"""The summary at the end of a proof, as lines of styled text. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from ..outcome import MEANINGS
from ..proof.hang import ranks_text
from ..proof.stacks import of_program
from ..text import lines
from ..text import one_line

if TYPE_CHECKING:
    from ..judging.store import Answer
    from ..report import Check
    from ..report import Culprit
    from ..report import FindingFacts
    from ..report import Hang
    from ..report import Report

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
EXIT_CODES = {
    0: "proven, or rehearsed where that was asked for or there is no GPU",
    1: "failed",
    3: "not proven",
    130: "interrupted",
}
_LIMIT = 480
_FINDING_LIMIT = 300
_FRAMES_OF_OTHERS = 4
"""At each end of their stacks."""
_TITLES = {
    "process-died": "Death",
    "mismatched-operation": "Divergence",
    "mismatched-shape": "Divergence",
    "mismatched-dtype": "Divergence",
    "diverged": "Divergence",
}
"""What is no hang."""
_OUTSIDE = {
    "never-joined": "before the checks",
    "stuck-in-init": "before the checks",
    "stuck-in-teardown": "after the checks",
}
_MISSED = ("never-entered", "mismatched-operation")
"""Kinds of a rank that is not in the operation that is told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line, in spans of (text, style)."""

    spans: tuple[tuple[str, str], ...]

    @property
    def text(self) -> str:
        """The line without its styles."""
        return "".join(text for text, _ in self.spans).rstrip()


def of(answer: Answer, *, brief: bool = False) -> list[Line]:
    """The summary; only its end where `brief`."""
    report = answer.report
    found = [] if brief else [*_checks(report.checks), *findings(report), *_hang(report.hang)]
    return [*found, *_end(answer)]


def styled(*spans: str | tuple[str, str]) -> Line:
    """One line of texts, each with its style or without."""
    return Line(spans=tuple((span, "") if isinstance(span, str) else span for span in spans))


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
        yield styled("  ", (ids, "bold"), ": ", (first.outcome, STYLES[first.outcome]))
        yield from paragraph("reason", first.reason)
        yield from paragraph("remedy", first.remedy)


def paragraph(name: str, text: str, *, limit: int = _LIMIT) -> Iterator[Line]:
    """A text under its name; nothing where there is none."""
    shown = text if len(text) <= limit else text[:limit] + " ... (all of it is in the report)"
    for number, line in enumerate(lines(shown)):
        yield styled(f"      {name + ':' if number == 0 else '':<10}{line}")


def findings(report: Report) -> Iterator[Line]:
    """What was noticed of the machine, the software and the run."""
    fits = getattr(report.software, "consistency", None)
    parts = [getattr(part, "findings", []) for part in (report.host, report.hardware, fits)]
    for number, finding in enumerate([*(one for part in parts for one in part), *report.findings]):
        if number == 0:
            yield styled(("Findings", "bold"))
        yield from _finding(finding)


def _finding(finding: FindingFacts) -> Iterator[Line]:
    severity = (finding.severity, STYLES[finding.severity])
    yield styled("  ", severity, f" {one_line(finding.id)}: {one_line(finding.what)}")
    if finding.severity != "info":
        yield from paragraph("got", one_line(finding.got, limit=_FINDING_LIMIT))
        yield from paragraph("expected", one_line(finding.expected, limit=_FINDING_LIMIT))
        yield from paragraph("remedy", finding.remedy)
        yield from paragraph("command", finding.command)


def _hang(hang: Hang | None) -> Iterator[Line]:
    if hang is None:
        return
    took = hang.seconds_to_verdict
    told = f"told after {took:.2f} s" if isinstance(took, float | int) else "told"
    kinds = ", ".join(dict.fromkeys([hang.kind, *(culprit.kind for culprit in hang.culprits)]))
    title = (_TITLES.get(hang.kind, "Hang"), "bold")
    yield styled(title, f": {one_line(kinds)} {_where(hang)}, {told}")
    for culprit in hang.culprits:
        what = one_line(culprit.kind) + _place(culprit)
        yield styled("  ", (f"rank {culprit.rank}", "bold red"), f": {what}")
        yield from paragraph("got", _said(culprit.got))
        yield from paragraph("expected", _said(culprit.expected))
    if not hang.culprits:
        yield styled("  no rank is to blame by what was recorded; the stacks are in the report")
        for side in hang.sides:
            yield styled(f"  {one_line(ranks_text(side.ranks))} entered {one_line(side.entered)}")
    if hang.waiting_ranks:
        yield styled(f"  waiting: {', '.join(map(str, hang.waiting_ranks))}")
    for rank, how in hang.victims.items():
        yield styled(f"  lost to it: rank {one_line(rank)}: {one_line(how, limit=_LIMIT)}")
    yield from paragraph("remedy", hang.remedy)
    yield from _stacks(hang)


def _where(hang: Hang) -> str:
    if hang.check:
        return f"in {one_line(hang.check)}"
    return _OUTSIDE.get(hang.kind, "outside of the checks")


def _stacks(hang: Hang) -> Iterator[Line]:
    """Every frame of a culprit; of the others each distinct stack once, without its middle."""
    culprits = {str(rank) for rank in hang.culprit_ranks}
    for ranks, stack in hang.stacks.items():
        text = str(getattr(stack, "unavailable", stack))
        if ranks in culprits:
            yield styled("  ", (f"rank {ranks} stands at", "bold red"))
            found = list(map(str, of_program(text))) or lines(text)
        else:
            head, *found = lines(text)
            yield styled(f"  {head}")
            found = _without_middle([frame.strip() for frame in found])
        yield from (styled(f"    {one_line(frame)}") for frame in found)


def _without_middle(found: list[str]) -> list[str]:
    """Where it stands, and the lines of the check from which it came there."""
    if len(found) <= 2 * _FRAMES_OF_OTHERS:
        return found
    left_out = len(found) - 2 * _FRAMES_OF_OTHERS
    return [*found[:_FRAMES_OF_OTHERS], f"... {left_out} more", *found[-_FRAMES_OF_OTHERS:]]


def _place(culprit: Culprit) -> str:
    """The operation and its line, as far as they were recorded: where it is, or which was due."""
    known = (("", culprit.operation), ("at ", culprit.site))
    text = " ".join(f"{word}{one_line(value)}" for word, value in known if isinstance(value, str))
    if not text:
        return ""
    return f", where {text} was due" if culprit.kind in _MISSED else f" in {text}"


def _said(value: Any) -> str:
    """A text of the report, or why there is none."""
    return one_line(getattr(value, "unavailable", value))


def _end(answer: Answer) -> Iterator[Line]:
    from ..record import words

    verdict = answer.verdict.value
    scope = f", scope {answer.scope.value}" if answer.scope is not None else ""
    yield styled(("Verdict", "bold"), ": ", (verdict, STYLES[verdict]), f"{scope}: {MEANINGS[verdict]}")
    left_out = words.left_out(answer.report)
    if left_out:
        yield styled(("Left out", "bold"), f": {left_out}")
    code = int(answer.exit_code)
    yield styled(("Exit code", "bold"), f": {code} ({EXIT_CODES[code]})")
    yield report_line(answer.report_path)
    if answer.docs_path is not None:
        yield styled(("Document", "bold"), f": {one_line(answer.docs_path)}")


def report_line(path: Path | None) -> Line:
    """Where the report lies."""
    if path is None:
        return styled(("Report", "bold"), ": no folder could take it; see the findings")
    return styled(("Report", "bold"), f": {one_line(path)}")

"""The end of `smoke` for a person: a table of checks, what weighs, the verdict, where the logs lie. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ..outcome import CheckResult
from ..outcome import Finding
from ..outcome import Outcome
from ..outcome import Severity
from ..text import one_line
from .smoke import LOUD
from .smoke import Smoked

_LIMIT = 300


def end(smoked: Smoked) -> list[str]:
    """Its lines."""
    return [one_line(line) for line in _lines(smoked)]


def _lines(smoked: Smoked) -> Iterator[str]:
    checks = smoked.judged.checks
    width = max((len(check.id) for check in checks), default=0)
    for check in checks:
        yield f"{check.outcome.value:<8} {check.id:<{width}} {check.seconds:9.3f} s  {_why(check)}".rstrip()
    for finding in smoked.judged.all_findings:
        if finding.severity is not Severity.INFO:
            yield from _finding(finding)
    if smoked.learnt.hang is not None:
        yield f"hang: {smoked.learnt.hang.sentence()}"
    if smoked.settled.device.kind == "cpu":
        yield LOUD
    yield f"verdict: {smoked.sentence}"
    yield f"logs: {smoked.folder}"


def _why(check: CheckResult) -> str:
    if check.outcome is Outcome.PASS:
        return f"{check.evidence.get('comparisons', 0)} comparisons"
    return one_line(f"{check.reason}; {check.remedy}", limit=_LIMIT)


def _finding(finding: Finding) -> Iterator[str]:
    yield f"{finding.severity.value} {finding.id}: {finding.what}"
    yield f"    got {one_line(finding.got, limit=_LIMIT)}; expected {finding.expected}; {finding.remedy}"

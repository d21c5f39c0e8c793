"""From what was learnt to a verdict and its report on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from .. import outcome
from .. import report
from ..node.learnt import Learnt
from ..outcome import ExitCode
from ..outcome import Finding
from ..outcome import Scope
from ..outcome import Severity
from ..outcome import Verdict
from ..planning.settle import Settled
from ..proof import findings
from ..proof.run_folder import RunFolder
from ..record import docs
from .judge import UNFINISHED
from .judge import judge
from .sections import report_of

REPORT = "report.json"
_REWRITES = 3
"""How often the documents are written anew because of what happened while they were written, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a proof came to."""

    verdict: Verdict
    scope: Scope | None
    exit_code: ExitCode
    report: report.Report
    report_path: Path | None
    """Where the report lies; None if no folder could take it."""
    docs_path: Path | None = None
    """Where `build` put the document; None where that was not asked for, or failed."""


def interim(settled: Settled, folder: RunFolder, learnt: Learnt) -> None:
    """Renew the report in the run folder: what is known survives the death of anybody.

    Raises:
        OSError: it takes no more; another place is sought for the last report only.
    """
    judged = judge(settled, learnt, [UNFINISHED])
    report_of(settled, folder.path, learnt, judged).write(folder.path / REPORT)


def conclude(settled: Settled, folder: RunFolder, learnt: Learnt) -> Answer:
    """Judge, and put the report into the run folder, or, if that takes it no more, where there is room."""

    def make(unwritable: Sequence[Finding]) -> report.Report:
        return report_of(settled, folder.path, learnt, judge(settled, learnt, unwritable))

    made, path = put(folder.path, make)
    verdict = Verdict(made.verdict)
    code = ExitCode.INTERRUPTED if learnt.interrupted else outcome.exit_code(verdict)
    scope = Scope(made.scope) if made.scope is not None else None
    return Answer(verdict=verdict, scope=scope, exit_code=code, report=made, report_path=path)


def put(
    folder: Path, make: Callable[[Sequence[Finding]], report.Report]
) -> tuple[report.Report, Path | None]:
    """Write a report into a folder or, where that takes it no more, where there is room.

    Args:
        folder: the run's.
        make: makes the report, with what went wrong in writing it among its findings.

    Returns:
        The report, and where it lies; None: no folder could take it.
    """
    troubles: list[str] = []
    errnos: list[int | None] = []
    for path in _places(folder):
        made = make([_unwritable(folder, troubles, errnos)] if troubles else [])
        try:
            made.write(path)
        except OSError as error:
            troubles.append(f"{path}: {error.strerror or error}")
            errnos.append(error.errno)
            continue
        return made, path
    return make([_unwritable(folder, troubles, errnos)]), None


def record(settled: Settled, folder: RunFolder, learnt: Learnt, where: Path) -> Answer:
    """The same, and put the documents into the docs folder, or say why they are not there."""
    answer = conclude(settled, folder, learnt)
    written = docs.write(answer.report, where)
    for _ in range(_REWRITES):
        new = [finding for finding in written.findings if finding not in learnt.findings]
        if not new:
            break
        learnt.findings += new
        answer = conclude(settled, folder, learnt)
        if written.json_path is None:
            break
        written = docs.write(answer.report, where)  # so that the documents say it too
    return replace(answer, docs_path=written.markdown_path)


def _places(folder: Path) -> Iterator[Path]:
    """Where the report may lie, best first; each is thought of only where those before it take nothing."""
    yield folder / REPORT
    try:
        yield Path(tempfile.mkdtemp(prefix="cpinfra-report-")) / REPORT
    except OSError:
        return  # no temporary folder can be written, and it tried several


def _unwritable(folder: Path, troubles: Sequence[str], errnos: Sequence[int | None]) -> Finding:
    return Finding(
        id="run-folder-unwritable",
        severity=Severity.BLOCKING,
        what="the report could not be written into the run folder",
        got="; ".join(troubles),
        expected=f"room for it in {folder}",
        remedy=findings.unwritten_remedy(errnos[:1]),
    )

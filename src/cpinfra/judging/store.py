"""From what was learnt to a verdict and its report on disk."""

from __future__ import annotations

import tempfile
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
from ..proof.run_folder import RunFolder
from ..record import docs
from .judge import UNFINISHED
from .judge import Judged
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
    troubles: list[str] = []
    for path in _places(folder.path):
        unwritable = [_unwritable(folder.path, troubles)] if troubles else []
        judged = judge(settled, learnt, unwritable)
        made = report_of(settled, folder.path, learnt, judged)
        try:
            made.write(path)
        except OSError as error:
            troubles.append(f"{path}: {error.strerror or error}")
            continue
        return _answer(learnt, judged, made, path)
    judged = judge(settled, learnt, [_unwritable(folder.path, troubles)])
    return _answer(learnt, judged, report_of(settled, folder.path, learnt, judged), None)


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


def _answer(learnt: Learnt, judged: Judged, made: report.Report, path: Path | None) -> Answer:
    code = ExitCode.INTERRUPTED if learnt.interrupted else outcome.exit_code(judged.verdict)
    return Answer(verdict=judged.verdict, scope=judged.scope, exit_code=code, report=made, report_path=path)


def _unwritable(folder: Path, troubles: Sequence[str]) -> Finding:
    return Finding(
        id="run-folder-unwritable",
        severity=Severity.BLOCKING,
        what="the report could not be written into the run folder",
        got="; ".join(troubles),
        expected=f"room for it in {folder}",
        remedy="free some space, or give another folder with --run-dir",
    )

"""From what a self-test found out to its report on disk and its exit code."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path

from .. import report
from ..node.selftest import SelfTestJob
from ..outcome import BY_ONLY
from ..outcome import ExitCode
from ..outcome import Finding
from ..outcome import Outcome
from ..outcome import Severity
from ..planning.settle import Settled
from ..proof.detection import Control
from ..proof.detection import Row
from ..proof.expectations import Told
from ..proof.faults import NAMES
from ..proof.run_folder import RunFolder
from ..proof.selftest import Tested
from ..proof.selftest import plantings
from .judge import UNFINISHED
from .sections import SILENT
from .sections import run_made
from .store import REPORT
from .store import put

_NOT_ASKED = "not asked by selftest"
_NOTHING_PLANTED = Finding(
    id="nothing-planted",
    severity=Severity.BLOCKING,
    what="no fault could be planted, so nothing is known of whether any would be noticed",
    got="no fault that can act on the chosen checks with this mesh",
    expected="at least one",
    remedy="choose other checks with --only, other faults with --fault, or another number of ranks",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTestAnswer:
    """What a self-test came to."""

    exit_code: ExitCode
    report: report.Report
    report_path: Path | None
    """Where the report lies; None if no folder could take it."""


def interim(settled: Settled, folder: RunFolder, job: SelfTestJob) -> None:
    """Renew the report in the run folder.

    Raises:
        OSError: it takes no more.
    """
    report_of(settled, job, [UNFINISHED]).write(folder.path / REPORT)


def conclude(settled: Settled, folder: RunFolder, job: SelfTestJob) -> SelfTestAnswer:
    """Judge, and put the report into the run folder, or where there is room."""
    more = _interrupted(job.tested)
    if job.tested.finished and not _planted(job.tested):
        more.append(_NOTHING_PLANTED)
    made, path = put(folder.path, lambda unwritable: report_of(settled, job, [*more, *unwritable]))
    blocked = any(finding.severity == Severity.BLOCKING.value for finding in made.findings)
    return SelfTestAnswer(exit_code=_exit_code(job.tested, blocked), report=made, report_path=path)


def _interrupted(tested: Tested) -> list[Finding]:
    if not tested.interrupted:
        return []
    finding = Finding(
        id="interrupted",
        severity=Severity.BLOCKING,
        what="the self-test was interrupted",
        got=tested.interrupted,
        expected="every fault planted",
        remedy="run it again",
    )
    return [finding]


def _planted(tested: Tested) -> list[Row]:
    return [row for row in tested.rows if not row.not_applicable]


def _exit_code(tested: Tested, blocked: bool) -> ExitCode:
    if tested.interrupted:
        return ExitCode.INTERRUPTED
    if tested.misses or tested.false_alarms:
        return ExitCode.FAILED
    return ExitCode.OK if tested.finished and not blocked else ExitCode.NOT_PROVEN


def _blocking(settled: Settled, tested: Tested) -> list[Finding]:
    """What keeps it from being known how faults are told, and is no word on that: see docs/verdicts.md."""
    control = tested.control
    unpassed = [_unpassed(settled, control)] if control is not None and control.unpassed else []
    return [*unpassed, *([_untold(tested.untold)] if tested.untold else [])]


def _unpassed(settled: Settled, control: Control) -> Finding:
    """Checks that do not pass without a fault, those that say the same together."""
    alike: dict[str, list[str]] = {}
    for check, said in control.unpassed.items():
        alike.setdefault(said, []).append(check)
    told = [f"{', '.join(checks)}: {said}" for said, checks in alike.items()]
    number = f"{len(control.unpassed)} of {len(control.outcomes)} checks"
    return Finding(
        id="clean-run-not-passed",
        severity=Severity.BLOCKING,
        what=f"{number} do not pass here without a fault, so nothing is known of how faults in them are told",
        got="; ".join([*told, *control.beside]),
        expected="that each check passes as long as no fault is planted",
        remedy="find out why they do not pass, and mend that first: the command makes the same run by itself",
        command=_prove(settled),
    )


def _prove(settled: Settled) -> str:
    """The command that makes the run without a fault by itself: with the same ranks, torch and checks."""
    (run,) = settled.runs
    command = ["cpinfra", "prove", "--device", run.device, "--ranks", str(run.mesh.world_size)]
    command += ["--python", settled.target.python, "--tier", settled.numbers.tier]
    if any(omitted.reason == BY_ONLY for omitted in run.selection.omitted):
        command += [word for check in run.selection.run for word in ("--only", check.id)]
    return shlex.join(command)


def _untold(rows: Sequence[Row]) -> Finding:
    """Faults of which it is not known whether they would be told."""
    told = [f"{row.fault}{f' on {row.check}' if row.check else ''}: {row.untold}" for row in rows]
    return Finding(
        id="fault-could-not-be-told",
        severity=Severity.BLOCKING,
        what=f"of {len(rows)} planted fault(s) it is not known whether they would be told",
        got="; ".join(told),
        expected="that ranks start beside a fault, their devices work, and cpinfra has no error of its own",
        remedy="an error of cpinfra is a bug: report it with the run folder; else mend what the reasons "
        "name; then run it again",
    )


def report_of(settled: Settled, job: SelfTestJob, more: Sequence[Finding]) -> report.Report:
    """The partial report of a self-test."""
    tested = job.tested
    proof = tested.proof
    software = (proof.software if proof is not None else None) or {}
    ran = settled.runs if proof is not None and (proof.forked or tested.control is not None) else ()
    obstacle = settled.device.obstacle
    known = [*([obstacle] if obstacle is not None else []), *job.findings]
    findings = [*known, *_blocking(settled, tested), *more]
    return report.Report.made(
        software=report.software_from(
            settled.target.python, software, missing=_NOT_ASKED if software else SILENT
        ),
        runs=[run_made(run, software) for run in ran],
        selftest=[_row(row) for row in tested.rows],
        control=_control(settled, tested),
        findings=[report.finding_from(finding) for finding in findings],
    )


def _row(row: Row) -> report.SelfTestRow:
    return report.SelfTestRow(
        twin=row.twin,
        check=row.check,
        status=row.status,
        fault=row.fault,
        fired=row.fired,
        detected=row.detected,
        culprit_right=row.culprit_right,
        kind_right=row.kind_right,
        seconds=row.seconds,
        reason=report.plain(row.not_applicable or (row.untold if row.status == "unknown" else "")),
        expected=_told(row.expected),
        got=_told(row.got),
    )


def _told(told: Told | None) -> report.Told | None:
    return report.Told.model_validate(report.plain(asdict(told))) if told is not None else None


def _control(settled: Settled, tested: Tested) -> report.Control:
    chosen = settled.selection
    misfits = [omitted.check.id for omitted in chosen.misfits]
    checks = [one.check.id for one in chosen.omitted if one.check.id not in misfits]
    return report.Control(
        clean=tested.control is not None and tested.control.clean,
        outcomes=tested.control.outcomes if tested.control is not None else {},
        false_alarms=report.plain(tested.false_alarms),
        left_out=[*checks, *(name for name in NAMES if name not in settled.twins)],
        not_reached=_not_reached(settled, tested),
    )


def _not_reached(settled: Settled, tested: Tested) -> list[str]:
    """Faults of which rows are missing; of those that cannot act here none is."""
    if tested.finished:
        return []
    if tested.control is None:
        return list(settled.twins)
    there = {(row.twin, row.check) for row in tested.rows}
    missing = {twin for twin, check in _places(settled, tested.control) if (twin, check) not in there}
    return [name for name in settled.twins if name in missing]


def _places(settled: Settled, control: Control) -> Iterator[tuple[str, str | None]]:
    """Each fault that can act, with each check that it is planted on; None outside of any."""
    for run in settled.runs:
        able = [check for check in run.selection.run if control.outcomes.get(check.id) == Outcome.PASS.value]
        for planting in plantings(able, run.mesh.world_size, load=1.0):
            for check in [None] if planting.in_stage else [check.id for check in planting.checks]:
                yield planting.twin, check

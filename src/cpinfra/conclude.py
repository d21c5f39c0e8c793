"""From a proof to its verdict and its report on disk. Imports pydantic: import this one late."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import mesh as meshes
from . import outcome
from . import placement
from . import report
from .hardware.gpus import Unavailable
from .mesh import Mesh
from .outcome import CheckResult
from .outcome import ExitCode
from .outcome import Finding
from .outcome import Outcome
from .outcome import Scope
from .outcome import Severity
from .outcome import Verdict
from .placement import Device
from .proof.catalogue import SEED
from .proof.catalogue import CheckInfo
from .proof.catalogue import catalogue
from .proof.contract import Proof
from .proof.environment import Told
from .proof.run_folder import RunFolder
from .settle import Settled

REPORT = "report.json"
_NOT_ASKED = "not asked by prove"
_NOT_RUN = "no run was made"
_UNFINISHED = Finding(
    id="run-unfinished",
    severity=Severity.BLOCKING,
    what="the run was still going on when this report was written",
    got="a report of what was known by then",
    expected="a run that came to its end",
    remedy="if cpinfra runs no more it was killed: run it again",
)
_LOGS = {
    "events.jsonl": "what happened, in order",
    "stages.jsonl": "the stages that were begun",
    "zygote.log": "output of the target interpreter",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProveAnswer:
    """What a proof came to."""

    verdict: Verdict
    scope: Scope | None
    exit_code: ExitCode
    report: report.ProveReport
    report_path: Path | None
    """Where the report lies; None if no folder could take it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    checks: list[CheckResult]
    findings: list[Finding]
    """Of the run; those of the hardware come beside them."""
    hardware: list[Finding]
    verdict: Verdict
    scope: Scope | None


def conclude(settled: Settled, folder: RunFolder, proof: Proof | None, *, final: bool = True) -> ProveAnswer:
    """Judge and write the report.

    Args:
        settled: what was asked.
        folder: where the report goes.
        proof: what has been learnt; None where nothing could be run.
        final: whether nothing more will be learnt; before, what has no result yet is unknown.
    """
    answer = _stored(settled, folder, proof) if final else _interim(settled, folder, proof)
    if proof is None or not proof.interrupted:
        return answer
    return replace(answer, exit_code=ExitCode.INTERRUPTED)


def _judge(settled: Settled, proof: Proof | None, more: Sequence[Finding] = ()) -> _Judged:
    hardware = list(placement.findings(settled.device))
    of_run = [*_environment(settled.told), *proof.findings] if proof is not None else []
    findings = [*_planted(settled.faults), *of_run, *more]
    checks = [_of_planted(result, settled.faults) for result in results(settled, proof, more)]
    return _Judged(
        checks=checks,
        findings=findings,
        hardware=hardware,
        verdict=outcome.verdict(
            [settled.facts] if proof is not None else [],
            checks,
            required=settled.selection.required,
            broken=proof is not None and (proof.hang is not None or proof.broken_outside),
            findings=[*hardware, *findings],
        ),
        scope=outcome.scope(
            settled.facts if proof is not None else None,
            checks,
            must_pass=settled.selection.required | frozenset(SEED),
        ),
    )


def _planted(faults: Sequence[str]) -> list[Finding]:
    if not faults:
        return []
    finding = Finding(
        id="fault-planted",
        severity=Severity.WARNING,
        what="faults were planted in this run, so its checks are expected to fail",
        got=", ".join(faults),
        expected="no --inject in a run whose result is to be relied on",
        remedy="run it without --inject",
    )
    return [finding]


def _of_planted(result: CheckResult, faults: Sequence[str]) -> CheckResult:
    """A failure that was asked for condemns no machine."""
    if not faults or result.outcome is not Outcome.FAIL:
        return result
    remedy = f"a fault was planted ({', '.join(faults)}): this failure says that it was noticed, and no more"
    return replace(result, remedy=remedy)


def _environment(told: Told) -> list[Finding]:
    """What the user's environment changed of the proof, and the proof of it."""
    found = []
    if told.replaced:
        was = "; ".join(
            f"{name}={theirs!r} became {ours!r}" for name, (theirs, ours) in told.replaced.items()
        )
        found.append(
            Finding(
                id="environment-overrides",
                severity=Severity.INFO,
                what=f"in the ranks another value than yours was in force of: {', '.join(told.replaced)}",
                got=was,
                expected="the values under which ranks can be forked and watched",
                remedy="nothing to do; recipe.env lists what was in force, to run your program alike",
            )
        )
    if told.restricting:
        found.append(_restricted(told))
    return found


def _restricted(told: Told) -> Finding:
    return Finding(
        id="transport-restricted",
        severity=Severity.WARNING,
        what="your environment switches transports of NCCL off: what passes has passed without them",
        got=", ".join(f"{name}={value}" for name, value in told.restricting.items()),
        expected="NCCL free to choose, or a program that always runs under the same variables",
        remedy=f"unset {', '.join(told.restricting)} and run it again, unless your program needs them",
        command=f"env {' '.join(f'-u {name}' for name in told.restricting)} cpinfra prove",
    )


def results(settled: Settled, proof: Proof | None, more: Sequence[Finding] = ()) -> list[CheckResult]:
    """One result for every check of the tier, in the catalogue's order."""
    run = settled.facts.id if proof is not None else ""
    given = dict(proof.results) if proof is not None else {}
    reason, remedy = _why_unknown(settled.device, [*(proof.findings if proof is not None else ()), *more])
    for check in settled.selection.run:
        given.setdefault(check.id, _bare(check, run, Outcome.UNKNOWN, reason, remedy))
    for omitted in settled.selection.omitted:
        given[omitted.check.id] = _bare(omitted.check, run, Outcome.SKIP, omitted.reason, omitted.remedy)
    order = {check.id: place for place, check in enumerate(catalogue())}
    return sorted(given.values(), key=lambda result: order.get(result.id, len(order)))


def _bare(check: CheckInfo, run: str, said: Outcome, reason: str, remedy: str) -> CheckResult:
    return CheckResult(id=check.id, tier=check.tier, run=run, outcome=said, reason=reason, remedy=remedy)


def _why_unknown(device: Device, findings: Sequence[Finding]) -> tuple[str, str]:
    """(reason, remedy) of a check without a result."""
    if device.obstacle is not None:
        return f"not run: {device.obstacle.what}: {device.obstacle.got}", device.obstacle.remedy
    if findings:
        return f"not run: {findings[-1].what}", findings[-1].remedy
    return "the engine gave no result for it", outcome.BUG_REMEDY


def _interim(settled: Settled, folder: RunFolder, proof: Proof | None) -> ProveAnswer:
    """Renew the report in the run folder.

    Raises:
        OSError: it takes no more; another place is sought for the last report only.
    """
    judged = _judge(settled, proof, [_UNFINISHED])
    made = _report(settled, folder, proof, judged)
    made.write(folder.path / REPORT)
    return _answer(judged, made, folder.path / REPORT)


def _stored(settled: Settled, folder: RunFolder, proof: Proof | None) -> ProveAnswer:
    """Put the report into the run folder, or, if that takes it no more, where there is room."""
    troubles: list[str] = []
    for path in _places(folder.path):
        judged = _judge(settled, proof, [_unwritable(folder.path, troubles)] if troubles else [])
        made = _report(settled, folder, proof, judged)
        try:
            made.write(path)
        except OSError as error:
            troubles.append(f"{path}: {error.strerror or error}")
            continue
        return _answer(judged, made, path)
    judged = _judge(settled, proof, [_unwritable(folder.path, troubles)])
    return _answer(judged, _report(settled, folder, proof, judged), None)


def _places(folder: Path) -> Iterator[Path]:
    """Where the report may lie, best first; each is thought of only where those before it take nothing."""
    yield folder / REPORT
    try:
        yield Path(tempfile.mkdtemp(prefix="cpinfra-report-")) / REPORT
    except OSError:
        return  # no temporary folder can be written, and it tried several


def _answer(judged: _Judged, made: report.ProveReport, path: Path | None) -> ProveAnswer:
    return ProveAnswer(
        verdict=judged.verdict,
        scope=judged.scope,
        exit_code=outcome.exit_code(judged.verdict),
        report=made,
        report_path=path,
    )


def _unwritable(folder: Path, troubles: Sequence[str]) -> Finding:
    return Finding(
        id="run-folder-unwritable",
        severity=Severity.BLOCKING,
        what="the report could not be written into the run folder",
        got="; ".join(troubles),
        expected=f"room for it in {folder}",
        remedy="free some space, or give another folder with --run-dir",
    )


def _report(settled: Settled, folder: RunFolder, proof: Proof | None, judged: _Judged) -> report.ProveReport:
    device = settled.device
    software = proof.software if proof is not None else None
    missing = (
        _NOT_ASKED if software is not None else (_NOT_RUN if proof is None else "torch did not get to say")
    )
    return report.ProveReport(
        verdict=judged.verdict.value,
        scope=judged.scope.value if judged.scope is not None else None,
        created=report.now(),
        tool=report.tool(),
        plan=_plan(device),
        hardware=_hardware(device, judged.hardware),
        software=report.software_from(settled.target.python, software or {}, missing=missing),
        runs=[_run(settled, software or {})] if proof is not None else [],
        checks=[report.check_from(result) for result in judged.checks],
        hang=report.hang_from(proof.hang.as_json()) if proof is not None and proof.hang is not None else None,
        recipe=report.recipe_from(settled.told.in_force) if proof is not None else _unavailable(_NOT_RUN),
        findings=[report.finding_from(finding) for finding in judged.findings],
        blocking=report.blocking_from([*judged.hardware, *judged.findings]),
        logs=_logs(folder.path),
    )


def _unavailable(why: str) -> report.Unavailable:
    return report.Unavailable(unavailable=report.plain(why))


def _or_unavailable(value: int | str | Unavailable) -> Any:
    return _unavailable(value.why) if isinstance(value, Unavailable) else value


def _mesh(mesh: Mesh) -> dict[str, int]:
    return {"dp": mesh.dp, "cp0": mesh.cp0, "cp1": mesh.cp1, "world_size": mesh.world_size}


def _config(config: meshes.Config) -> report.PlanConfig:
    return report.PlanConfig.model_validate({**_mesh(config.mesh), "integration": config.integration})


def _plan(device: Device) -> report.Plan:
    answer = device.answer
    if answer is None or answer.state in ("no-driver", "hung", "error"):
        why = _unavailable(answer.reason if answer is not None else "not asked: --device cpu")
        return report.Plan(gpus_free=why, configs=[], chosen=None, slots=why)
    free = len(answer.gpus)
    choice = meshes.chosen(free)
    return report.Plan(
        gpus_free=free,
        configs=[_config(config) for config in meshes.configs(free)],
        chosen=_config(choice) if choice is not None else None,
        slots=meshes.slots(free),
    )


def _hardware(device: Device, findings: Sequence[Finding]) -> report.Hardware | report.Unavailable:
    if device.answer is None:
        return _unavailable("not asked: --device cpu")
    gpus = [
        report.GpuFacts(
            index=gpu.index,
            uuid=report.plain(gpu.uuid),
            name=report.plain(gpu.name),
            memory_total_mib=_or_unavailable(gpu.memory_total_mib),
            memory_used_mib=_or_unavailable(gpu.memory_used_mib),
        )
        for gpu in device.answer.gpus
    ]
    return report.Hardware(
        driver_version=_or_unavailable(device.answer.driver_version),
        gpus=gpus,
        findings=[report.finding_from(finding) for finding in findings],
    )


def _run(settled: Settled, software: dict[str, Any]) -> report.Run:
    facts = settled.facts
    on_gpus = facts.device == "cuda"
    loaded = (software.get("nccl") or {}).get("loaded") if on_gpus else None
    why = "the loaded library did not say its version" if on_gpus else "the run used gloo"
    return report.Run(
        id=facts.id,
        role=facts.role.value,
        mesh=report.MeshFacts.model_validate(_mesh(settled.mesh)),
        device="cuda" if on_gpus else "cpu",
        backend="nccl" if on_gpus else "gloo",
        nccl=loaded or _unavailable(why),
    )


def _logs(folder: Path) -> list[report.Log]:
    """The run's files; the logs of a generation's ranks as one entry, their folder."""
    try:
        found = {path.name: path for path in folder.iterdir()}
    except OSError:
        found = {}  # the folder itself has gone
    paths = [found[name] for name in _LOGS if name in found and found[name].is_file()]
    paths += [
        path for name, path in sorted(found.items()) if name.startswith("generation-") and path.is_dir()
    ]
    return [
        report.Log(
            what=_LOGS.get(path.name, f"logs of the ranks, {path.name.replace('-', ' ')}"),
            path=report.plain(str(path)),
            bytes=_size_bytes(path),
        )
        for path in paths
    ]


def _size_bytes(path: Path) -> int | report.Unavailable:
    """Bytes of a file, or of all files in a folder; what vanishes meanwhile has none."""
    if path.is_dir():
        inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        return sum(size for size in map(_size_bytes, inside) if isinstance(size, int))
    try:
        return path.stat().st_size
    except OSError as error:
        return _unavailable(error.strerror or str(error))

"""The report's sections, from what was learnt and what it came to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import mesh as meshes
from .. import outcome
from .. import report
from ..hardware import host as hosts
from ..hardware.gpus import Unavailable
from ..mesh import Mesh
from ..node.learnt import Learnt
from ..outcome import Finding
from ..outcome import Severity
from ..planning.asked import Wishes
from ..planning.placement import OBSTACLES
from ..planning.placement import UNANSWERED
from ..planning.placement import Device
from ..planning.settle import PlannedRun
from ..planning.settle import Settled
from ..record import next_steps
from ..record import recipe
from ..record import summary
from ..software.models import ModelResult
from .judge import Judged

_NOT_ASKED = "not asked by prove"
_REPEATS = ("docs-unwritable", "transport-restricted")
"""Findings whose command makes the same runs again."""
_NOT_RUN = "no run was made"
SILENT = "torch did not get to say"
_LOGS = {
    "events.jsonl": "what happened, in order",
    "stages.jsonl": "the stages that were begun",
    "zygote.log": "output of the target interpreter",
}


def report_of(settled: Settled, folder: Path, learnt: Learnt, judged: Judged) -> report.Report:
    """The report of a run: for `build` with all sections, for `prove` with its own."""
    if settled.wishes is None:
        return report.Report.made(**_proof_sections(settled, folder, learnt, judged))
    judged, mesh = _about_the_same(judged, settled.wishes), _asked_mesh(settled)
    made = report.Report.made(
        **_proof_sections(settled, folder, learnt, judged),
        host=_host(learnt, judged.host),
        summary="",
        next=[],
    )
    asking = made.model_copy(update={"blocking": _with_questions(made, mesh)})
    wishes = settled.wishes
    steps = next_steps.next_steps(asking, str(wishes.docs), wishes.again, wishes.same, mesh)
    following = asking.model_copy(update={"next": steps})
    return following.model_copy(update={"summary": summary.summary(following)})


def _about_the_same(judged: Judged, wishes: Wishes) -> Judged:
    """The same with commands that name the interpreter, models and folders of this build."""

    def told(findings: Sequence[Finding]) -> list[Finding]:
        commands = [next_steps.again(one.command, _handed_on(one, wishes)) for one in findings]
        return [
            replace(one, command=command, remedy=_naming(one, command))
            for one, command in zip(findings, commands, strict=True)
        ]

    return replace(
        judged,
        host=told(judged.host),
        hardware=told(judged.hardware),
        software=told(judged.software),
        findings=told(judged.findings),
    )


def _handed_on(finding: Finding, wishes: Wishes) -> next_steps.Options:
    """What its command gets of this build; to rehearse where GPUs are lacking takes its mesh too."""
    if finding.id in _REPEATS:
        return wishes.same
    return {**wishes.mesh, **wishes.again} if finding.id in OBSTACLES else wishes.again


def _naming(finding: Finding, command: str) -> str:
    """Its remedy, with the command that was completed where it ends in the bare one."""
    bare = finding.command
    return (
        finding.remedy.removesuffix(bare) + command if finding.remedy.endswith(f" {bare}") else finding.remedy
    )


def _asked_mesh(settled: Settled) -> next_steps.AskedMesh:
    """What this build was asked to prove: the grid may be given, or the number of ranks, or neither."""
    numbers, options = settled.numbers, settled.wishes.mesh if settled.wishes is not None else {}
    cp0, cp1 = numbers.cp or (2, 2)
    grid = cp0 * cp1
    is_fixed = numbers.ranks is not None or numbers.dp is not None
    gpus = numbers.ranks or grid * (numbers.dp or 1)
    full = max(2 * grid, next_steps.FULL_GPUS)
    return next_steps.AskedMesh(gpus=gpus, gpus_full=full, is_fixed=is_fixed, options=options)


def _with_questions(made: report.Report, mesh: next_steps.AskedMesh) -> list[report.Blocking]:
    """What has to be asked of the user, at the obstacle that only the user can move: the lack of GPUs."""
    questions, movable = next_steps.questions(made, mesh), (*OBSTACLES, next_steps.SCOPE_TOO_NARROW)
    return [
        blocking.model_copy(update={"needs_from_user": questions}) if blocking.id in movable else blocking
        for blocking in made.blocking or ()
    ]


def _proof_sections(settled: Settled, folder: Path, learnt: Learnt, judged: Judged) -> dict[str, Any]:
    made = [run for run in settled.runs if learnt.has_ranks(run.id)]
    hang = learnt.hang
    return {
        "verdict": judged.verdict.value,
        "scope": judged.scope.value if judged.scope is not None else None,
        "plan": plan(settled.device),
        "hardware": hardware(settled.device, judged.hardware),
        "software": _software(settled, learnt, judged),
        "runs": [run_made(run, learnt.software) for run in made],
        "checks": [report.check_from(result) for result in judged.checks],
        "hang": report.hang_from(hang.as_json()) if hang is not None else None,
        "recipe": _recipe(settled, learnt, judged, made) if made else _unavailable(_NOT_RUN),
        "findings": [report.finding_from(finding) for finding in judged.findings],
        "blocking": report.blocking_from(judged.all_findings),
        "logs": _logs(folder),
    }


def _software(settled: Settled, learnt: Learnt, judged: Judged) -> report.Software:
    facts = dict(learnt.software)
    if settled.wishes is None:
        missing = _NOT_ASKED
    else:
        missing = "the target interpreter did not say"
        facts["kernels"] = _kernels(settled, learnt) or {"unavailable": _why_no_kernels(settled, learnt)}
        facts["cuda_driver"] = facts.get("cuda_driver") or _cuda_driver(settled)
        if learnt.models:
            facts["models"] = [_model(result) for result in learnt.models]
        facts["consistency"] = {
            "consistent": judged.consistent
            if judged.consistent is not None
            else _unknown(learnt, judged.software),
            "findings": [report.finding_from(finding).model_dump() for finding in judged.software],
        }
    if not learnt.software:
        missing = SILENT if learnt.proofs else _NOT_RUN
    return report.software_from(settled.target.python, facts, missing=missing)


def _unknown(learnt: Learnt, findings: Sequence[Finding]) -> dict[str, str]:
    """Why it could not be told whether everything fits."""
    heavy = [finding.what for finding in findings if finding.severity is not Severity.INFO]
    if not learnt.software:
        return {"unavailable": "torch did not get to say what it is"}
    return {"unavailable": "; ".join(heavy) or "not every model has been tried yet"}


def _cuda_driver(settled: Settled) -> Any:
    """What the driver itself said, where the target interpreter had no use for it; None: it was not asked."""
    said = settled.device.answer.cuda_driver if settled.device.answer is not None else None
    return {"unavailable": said.why} if isinstance(said, Unavailable) else said


def _why_no_kernels(settled: Settled, learnt: Learnt) -> str:
    if not any(run.device == "cuda" and run.id in learnt.proofs for run in settled.runs):
        return "no run on GPUs was made"
    return "the run on GPUs ended before they were through"


def _kernels(settled: Settled, learnt: Learnt) -> list[dict[str, Any]] | None:
    """What kernels said, by GPU; None where none were run."""
    for run in settled.runs:
        told = learnt.proofs[run.id].kernels if run.id in learnt.proofs else None
        if told is not None:
            return [_kernel(answer, run.gpus[answer["index"]].uuid) for answer in told]
    return None


def _kernel(answer: Mapping[str, Any], uuid: str) -> dict[str, Any]:
    right, seconds = answer["right"], answer["seconds"]
    return {
        "uuid": uuid,
        "right": right if right is not None else {"unavailable": answer["error"]},
        "kernels": answer["kernels"],
        "error": answer["error"],
        "seconds": seconds if seconds is not None else {"unavailable": "it did not come to an end"},
    }


def _model(result: ModelResult) -> dict[str, Any]:
    requires = [*result.requires_dist]
    if result.requires_python:
        requires.insert(0, f"Python {result.requires_python}")
    error = "\n".join(part for part in (result.error, result.traceback) if part)
    return {
        "name": result.name,
        "imported": result.imported if result.imported is not None else {"unavailable": result.error},
        "error": error,
        "path": result.path or {"unavailable": "the module was not found"},
        "distribution": result.distribution or {"unavailable": "no installed distribution provides it"},
        "requires": requires,
        "seconds": result.seconds if result.seconds is not None else {"unavailable": "it did not end"},
    }


def _recipe(settled: Settled, learnt: Learnt, judged: Judged, made: Sequence[PlannedRun]) -> report.Recipe:
    """For the mesh that ran: of two, the square one."""
    run = made[-1]
    proven = run.device == "cuda" and judged.verdict is outcome.Verdict.PROVEN
    return recipe.recipe(
        recipe.Launch(
            interpreter=settled.target.python,
            workdir=_workdir(settled),
            dp=run.mesh.dp,
            cp0=run.mesh.cp0,
            cp1=run.mesh.cp1,
            device="cuda" if run.device == "cuda" else "cpu",
            env=run.told.in_force,
            proven=proven,
            run_words=f"{run.mesh} run over {'nccl' if run.device == 'cuda' else 'gloo'}; the verdict: "
            f"{judged.verdict.value}",
            pythonpath=tuple(
                str(Path(entry).absolute()) for entry in os.environ.get("PYTHONPATH", "").split(":") if entry
            ),
            gpu_uuids=tuple(gpu.uuid for gpu in run.gpus),
            torch=learnt.software.get("torch"),
        )
    )


def _workdir(settled: Settled) -> str | None:
    """An absolute path: the launch script may be called from anywhere."""
    asked = settled.wishes.workdir if settled.wishes is not None else None
    try:
        return str(hosts.workdir(asked, os.environ).absolute())
    except OSError:
        return None  # the current folder has been removed


def _unavailable(why: str) -> report.Unavailable:
    return report.Unavailable(unavailable=report.plain(why))


def _or_unavailable(value: int | str | Unavailable) -> Any:
    return _unavailable(value.why) if isinstance(value, Unavailable) else value


def _mesh(mesh: Mesh) -> dict[str, int]:
    return {"dp": mesh.dp, "cp0": mesh.cp0, "cp1": mesh.cp1, "world_size": mesh.world_size}


def _config(config: meshes.Config) -> report.PlanConfig:
    return report.PlanConfig.model_validate({**_mesh(config.mesh), "integration": config.integration})


def plan(device: Device) -> report.Plan:
    """Which meshes the free GPUs can test."""
    answer = device.answer
    if answer is None or answer.state in UNANSWERED:
        why = _unavailable(answer.reason if answer is not None else "not asked: --device cpu")
        return report.Plan(gpus_free=why, configs=[], chosen=None, slots=why)
    return plan_of(len(answer.gpus))


def plan_of(gpus_free: int) -> report.Plan:
    """The same for a number of GPUs."""
    choice = meshes.chosen(gpus_free)
    return report.Plan(
        gpus_free=gpus_free,
        configs=[_config(config) for config in meshes.configs(gpus_free)],
        chosen=_config(choice) if choice is not None else None,
        slots=meshes.slots(gpus_free),
    )


def hardware(device: Device, findings: Sequence[Finding]) -> report.Hardware | report.Unavailable:
    """The GPUs and their driver."""
    answer = device.answer
    if answer is None:
        return _unavailable("not asked: --device cpu")
    return report.Hardware(
        driver_version=_or_unavailable(answer.driver_version),
        gpus=[report.GpuFacts.model_validate(report.plain(gpu.facts())) for gpu in answer.shown],
        topology=_unavailable("not asked by this version"),
        findings=[report.finding_from(finding) for finding in findings],
    )


def host(facts: Mapping[str, Any], findings: Sequence[Finding]) -> report.Host:
    """The machine without its GPUs."""
    found = [report.finding_from(finding) for finding in findings]
    return report.Host.model_validate({**report.plain(facts), "findings": found})


def _host(learnt: Learnt, findings: Sequence[Finding]) -> report.Host | report.Unavailable:
    if learnt.host is None:
        return _unavailable("not looked at yet")
    return host(learnt.host, findings)


def run_made(run: PlannedRun, software: Mapping[str, Any]) -> report.Run:
    """A run, with the NCCL that the target interpreter had loaded."""
    on_gpus = run.device == "cuda"
    loaded = (software.get("nccl") or {}).get("loaded") if on_gpus else None
    why = "the loaded library did not say its version" if on_gpus else "the run used gloo"
    return report.Run(
        id=run.id,
        role=run.role.value,
        mesh=report.MeshFacts.model_validate(_mesh(run.mesh)),
        device="cuda" if on_gpus else "cpu",
        backend="nccl" if on_gpus else "gloo",
        nccl=loaded or _unavailable(why),
    )


def _logs(folder: Path) -> list[report.Log]:
    """The run's files; the logs of a generation's ranks as one entry, their folder."""
    parts = (folder, folder / "rehearsal")
    found = [path for path in (part / name for name in _LOGS for part in parts) if path.is_file()]
    found += [path for part in parts for path in sorted(part.glob("generation-*")) if path.is_dir()]
    return [
        report.Log(
            what=_LOGS.get(path.name, f"logs of the ranks, {path.name.replace('-', ' ')}")
            + (" (rehearsal)" if path.parent != folder else ""),
            path=report.plain(str(path)),
            bytes=_size_bytes(path),
        )
        for path in found
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

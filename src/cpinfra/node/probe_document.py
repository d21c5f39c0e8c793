"""The flat document of `probe`, from what was learnt."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import asdict
from math import isqrt
from typing import Any

from ..hardware import host as hosts
from ..hardware.gpus import GpuAnswer
from ..hardware.gpus import ShownGpu
from ..hardware.gpus import Unavailable
from ..outcome import Finding
from ..outcome import Outcome
from ..outcome import Severity
from ..planning import placement
from ..planning.settle import PROBE_CHECK
from ..planning.settle import Settled
from ..proof.contract import Proof
from ..software.models import ModelResult
from ..text import one_line
from ..text import plain
from . import fit
from .learnt import Learnt

_NOTE_MAX = 600
_COUNTED = ("gpus", "none", "absent", "hidden")
"""What the driver must have said for the GPUs to be counted."""


class _Notes:
    """What the values of the document do not say; above all why one of them is null."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        """Add it, once."""
        line = one_line(text, limit=_NOTE_MAX)
        if line not in self.texts:
            self.texts.append(line)

    def known(self, name: str, value: Any, why: str) -> Any:
        """The value, or null with a note that says why; `why` is for a value that is simply absent."""
        if isinstance(value, Unavailable):
            why, value = value.why, None
        elif isinstance(value, Mapping) and "unavailable" in value:
            why, value = str(value["unavailable"]), None
        if value is None:
            self.add(f"{name}: {why}")
        return value

    def finding(self, finding: Finding) -> None:
        """A finding in one line."""
        remedy = f"; {finding.remedy}" if finding.severity is not Severity.INFO else ""
        self.add(
            f"{finding.id}: {finding.what}: got {one_line(finding.got, limit=240)}, "
            f"expected {finding.expected}{remedy}"
        )


def document(settled: Settled, learnt: Learnt, of_model: fit.OfModel) -> dict[str, Any]:
    """The document; every value in it is JSON."""
    notes = _Notes()
    proof = learnt.proofs.get(settled.runs[0].id, Proof())
    answer = settled.device.answer or GpuAnswer(state="error", reason="the driver was not asked")
    fits, contradictions = fit.judge(settled, learnt, of_model)
    flat = {
        **_torch(settled, learnt, proof, notes),
        **_gpus(answer, notes),
        **_disk(learnt, notes),
        "recommend_disk_GiB": hosts.RECOMMENDED_DISK_GIB,
    }
    _note_findings(settled, learnt, proof, contradictions, notes)
    consistency = _consistency(flat, learnt, proof, fits, notes)
    whole = {
        **flat,
        "self_consistency": consistency,
        "recommended_cp": _recommended(answer, notes),
        "software": _software(settled, learnt, contradictions),
        "host": learnt.host,
    }
    consistency["notes"] = notes.texts
    return dict(plain(whole))


# ------------------------------------------------------------------------------- torch and CUDA


def _torch(settled: Settled, learnt: Learnt, proof: Proof, notes: _Notes) -> dict[str, Any]:
    software = learnt.software
    error = _torch_error(learnt, proof)
    why = "torch did not import, see torch_error" if error else "torch did not get to say"
    without = "this torch was built without" if software else why
    nccl = software.get("nccl") or {}
    return {
        "python": notes.known("python", _python(settled, learnt), why),
        "torch": notes.known("torch", software.get("torch"), why),
        "torch_error": error,
        "cuda_available": notes.known("cuda_available", *_usable(proof, settled, why)),
        "cuda_version": notes.known(
            "cuda_version", software.get("cuda_build"), f"{without} CUDA" if software else why
        ),
        "cuda_driver_api": notes.known("cuda_driver_api", *_cuda_driver(settled, software)),
        "nccl_version": notes.known(
            "nccl_version",
            nccl.get("loaded") or nccl.get("compiled"),
            f"{without} NCCL" if software else why,
        ),
    }


def _python(settled: Settled, learnt: Learnt) -> str | None:
    """The version of the target interpreter, by its own word."""
    told = learnt.software.get("python_version") or (learnt.why or {}).get("python_version")
    if told is None and settled.target.python == sys.executable:
        return platform.python_version()
    return told


def _torch_error(learnt: Learnt, proof: Proof) -> str | None:
    """Why there is no torch, the first word on it first; None where there is one."""
    if learnt.software:
        return None
    found = [finding for finding in proof.findings if finding.severity is Severity.BLOCKING]
    texts = [one_line(f"{one.what}: {one.got}", limit=_NOTE_MAX) for one in found]
    return "; ".join(texts) or None


def _usable(proof: Proof, settled: Settled, why: str) -> tuple[bool | None, str]:
    """(torch's opinion on CUDA, why there is none)."""
    if proof.cuda_usable is not None:
        return proof.cuda_usable["usable"], proof.cuda_usable["error"]
    if proof.software is None:
        return None, why
    if proof.software.get("cuda_build", "") is None:
        return False, ""  # whatever there is, a build without CUDA does not use it
    answer = settled.device.answer
    if proof.obstacle is not None or answer is None:
        return None, f"torch was not asked: {proof.obstacle.what if proof.obstacle is not None else why}"
    return None, f"torch was not asked, as no GPU could be shown to it: {answer.reason}"


def _cuda_driver(settled: Settled, software: Mapping[str, Any]) -> tuple[Any, str]:
    """(CUDA version of the driver, why it is not known): torch's process knows it, else NVML may."""
    told = software.get("cuda_driver")
    answer = settled.device.answer
    if isinstance(told, str) or answer is None:
        return told, "no driver was found"
    return (told if isinstance(told, Mapping) else answer.cuda_driver), "no driver was found"


# ---------------------------------------------------------------------------------- GPUs and disk


def _gpus(answer: GpuAnswer, notes: _Notes) -> dict[str, Any]:
    counted = answer.state in _COUNTED
    if answer.reason:
        notes.add(f"gpus: {answer.reason}" + (f"; {answer.remedy}" if answer.remedy else ""))
    return {
        "gpus": [_gpu(gpu, notes) for gpu in answer.shown] if counted else None,
        "nvidia_driver": notes.known("nvidia_driver", answer.driver_version, answer.reason),
    }


def _gpu(gpu: ShownGpu, notes: _Notes) -> dict[str, Any]:
    at = f"gpus[{gpu.index}]"
    total = notes.known(f"{at}.mem_GiB", gpu.memory_total_mib, "")
    return {
        "index": gpu.index,
        "name": notes.known(f"{at}.name", gpu.name, ""),
        "capability": notes.known(f"{at}.capability", gpu.compute_capability, ""),
        "mem_GiB": round(total / 1024, 1) if total is not None else None,
    }


def _disk(learnt: Learnt, notes: _Notes) -> dict[str, Any]:
    disk = (learnt.host or {}).get("disk") or {"path": None, "free_gib": None, "total_gib": None}
    free, total = (
        notes.known(f"disk.{name}", disk[f"{name}_gib"], "not asked") for name in ("free", "total")
    )
    error = disk["free_gib"]["unavailable"] if isinstance(disk["free_gib"], Mapping) else None
    return {"disk": {"path": disk["path"], "free_GiB": free, "total_GiB": total, "error": error}}


# ------------------------------------------------------------------------------- does it all fit


def _consistency(
    flat: Mapping[str, Any], learnt: Learnt, proof: Proof, fits: bool | None, notes: _Notes
) -> dict[str, Any]:
    models = _models(learnt, notes)
    mesh = _mesh_check(proof, notes)
    consistent = False if flat["torch_error"] else fit.all_of([fits, mesh])
    if consistent is None:
        notes.add("consistent: not all of it could be told; the other notes say what")
    return {
        "cuda_usable": flat["cuda_available"],
        "torch_cuda_build": flat["cuda_version"],
        "cuda_driver_api": flat["cuda_driver_api"],
        "nvidia_driver": flat["nvidia_driver"],
        "model_import_check": models,
        "dtensor_mesh_check": mesh,
        "consistent": consistent,
        "notes": [],
    }


def _models(learnt: Learnt, notes: _Notes) -> bool | None:
    """Whether all models import."""
    if not learnt.models:
        notes.add("model_import_check: no model was named; name one with --model")
        return None
    answer = fit.all_of(result.imported for result in learnt.models)
    if answer is None:
        untold = [result for result in learnt.models if result.imported is None]
        notes.add("model_import_check: " + "; ".join(f"{result.name}: {result.error}" for result in untold))
    return answer


def _mesh_check(proof: Proof, notes: _Notes) -> bool | None:
    """Whether one rank has made a device mesh and brought a DTensor through it."""
    result = proof.results.get(PROBE_CHECK)
    if result is None or result.outcome in (Outcome.UNKNOWN, Outcome.SKIP):
        notes.add(f"dtensor_mesh_check: {result.reason if result is not None else 'it was not run'}")
        return None
    if result.outcome is Outcome.FAIL:
        notes.add(f"dtensor_mesh_check: {PROBE_CHECK} failed: {result.reason}")
    return result.outcome is Outcome.PASS


def _note_findings(
    settled: Settled, learnt: Learnt, proof: Proof, contradictions: Sequence[Finding], notes: _Notes
) -> None:
    """Everything that was noticed on the way, what weighs most first."""
    host = hosts.findings(learnt.host) if learnt.host is not None else []
    hardware = [one for one in placement.findings(settled.device) if one.id not in placement.OBSTACLES]
    found = [*proof.findings, *learnt.findings, *contradictions, *hardware, *host]
    weights = (Severity.BLOCKING, Severity.WARNING, Severity.INFO)
    for finding in sorted(found, key=lambda one: weights.index(one.severity)):
        notes.finding(finding)


# ---------------------------------------------------------------------------------- the rest


def _recommended(answer: GpuAnswer, notes: _Notes) -> dict[str, Any]:
    """The configuration for the GPUs that are free, by the rule that `largest_square` keeps."""
    if answer.state not in _COUNTED:
        notes.add("recommended_cp: the GPUs could not be counted")
        return dict.fromkeys(largest_square(0))
    if len(answer.gpus) != len(answer.shown):
        notes.add(f"recommended_cp: {len(answer.gpus)} of {len(answer.shown)} GPU(s) may be used")
    return largest_square(len(answer.gpus))


def largest_square(gpus: int) -> dict[str, Any]:
    """The largest square grid that so many GPUs hold, and what is suggested to be run.

    Not what `plan.chosen` of a report says, which is 2x2 with all the data parallelism that fits: that tests
    the most with the fewest GPUs. This one is what readers of `recommended_cp` have always been given; below
    four GPUs `dp` and `world_size` are 0, since no grid fits.
    """
    side = isqrt(gpus)
    size = side * side
    fits = size >= 4
    dp = gpus // size if fits else 0
    return {
        "gpu_count": gpus,
        "can_2d": fits,
        "cp2d": {"cp0": side, "cp1": side, "size_cp": size, "dp": dp, "world_size": size * dp},
        "can_integration": gpus >= 8,
        "suggested_world_size": size if fits else 0,
        "suggested_topology": "2d" if fits else "none-local (escalate to SLURM)",
    }


def _software(settled: Settled, learnt: Learnt, contradictions: Sequence[Finding]) -> dict[str, Any]:
    """What the target interpreter said, kernels by GPU, models, and what contradicts."""
    return {
        **learnt.software,
        "python": settled.target.python,
        "kernels": fit.kernels(settled, learnt),
        "models": [_model(result) for result in learnt.models],
        "findings": [{**asdict(one), "severity": one.severity.value} for one in contradictions],
    }


def _model(result: ModelResult) -> dict[str, Any]:
    names = ("name", "imported", "error", "path", "distribution", "version", "seconds", "requires_python")
    return {**{name: getattr(result, name) for name in names}, "requires_dist": list(result.requires_dist)}

"""What `smoke` found as JSON: a partial report of schema `cpinfra/1`, made without the typed one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..outcome import CheckResult
from ..outcome import Finding
from ..outcome import Severity
from ..planning.settle import PlannedRun
from ..text import plain
from .smoke import Smoked

SCHEMA = "cpinfra/1"

_NOT_TOLD = {"unavailable": "torch did not get to say"}
_NOT_ASKED = {"unavailable": "not asked by smoke"}
_TOLD = ("python_version", "torch", "torch_path", "cuda_build", "hip_build", "cuda_driver", "arch_list")
_WITHOUT = {"cuda_build": "CUDA", "hip_build": "ROCm", "arch_list": "CUDA", "nccl": "NCCL"}


def document(smoked: Smoked, version: str) -> dict[str, Any]:
    """The report's sections on the proof; those on host and hardware are not made."""
    made = [run for run in smoked.settled.runs if smoked.learnt.has_ranks(run.id)]
    hang = smoked.learnt.hang
    scope = smoked.judged.scope
    sections = {
        "schema": SCHEMA,
        "created": dt.datetime.now(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "tool": {"version": version},
        "verdict": smoked.judged.verdict.value,
        "scope": scope.value if scope is not None else None,
        "software": _software(smoked),
        "runs": [_run(run, smoked.learnt.software) for run in made],
        "checks": [_check(result) for result in smoked.judged.checks],
        "hang": _hang(hang.as_json()) if hang is not None else None,
        "findings": [_finding(finding) for finding in smoked.judged.all_findings],
        "blocking": [
            _blocking(one) for one in smoked.judged.all_findings if one.severity is Severity.BLOCKING
        ],
        "logs": [{"what": "the run's folder", "path": str(smoked.folder), "bytes": _NOT_ASKED}],
    }
    return dict(plain(sections))


def _software(smoked: Smoked) -> dict[str, Any]:
    facts = smoked.learnt.software
    said: dict[str, Any] = {name: _said(facts, name) for name in (*_TOLD, "backends", "files")}
    nccl = facts.get("nccl")
    unnamed = {**dict.fromkeys(("compiled", "loaded", "path", "sha256"), _NOT_TOLD)}
    known = {name: value for name, value in (nccl or {}).items() if value is not None}
    return {
        **said,
        "python": smoked.settled.target.python,
        "nccl": {**unnamed, **known} if nccl else _said(facts, "nccl"),
        "kernels": _NOT_ASKED,
        "models": [],
        "consistency": _NOT_ASKED,
    }


def _said(facts: Mapping[str, Any], name: str) -> Any:
    """A fact of the software; what is absent says why."""
    value = facts.get(name)
    if value not in (None, []):
        return value
    if facts and name in _WITHOUT:
        return {"unavailable": f"this torch was built without {_WITHOUT[name]}"}
    return _NOT_TOLD


def _run(run: PlannedRun, software: Mapping[str, Any]) -> dict[str, Any]:
    dp, cp0, cp1 = run.mesh.shape
    on_gpus = run.device == "cuda"
    loaded = (software.get("nccl") or {}).get("loaded") if on_gpus else None
    return {
        "id": run.id,
        "role": run.role.value,
        "mesh": {"dp": dp, "cp0": cp0, "cp1": cp1, "world_size": run.mesh.world_size},
        "device": run.device,
        "backend": "nccl" if on_gpus else "gloo",
        "nccl": loaded or (_NOT_TOLD if on_gpus else {"unavailable": "the run used gloo"}),
    }


def _check(result: CheckResult) -> dict[str, Any]:
    return {
        **{name: getattr(result, name) for name in ("id", "tier", "run", "reason", "remedy", "evidence")},
        "outcome": result.outcome.value,
        "ranks": sorted(result.ranks),
        "seconds": round(float(result.seconds), 6),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "severity": finding.severity.value}


def _blocking(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "what": f"{finding.what}: got {finding.got}, expected {finding.expected}",
        "remedy": finding.remedy,
        "command": finding.command,
        "needs_from_user": [],
    }


def _hang(words: Mapping[str, Any]) -> dict[str, Any]:
    """What is empty was not recorded."""
    culprits = [_recorded(culprit) for culprit in words["culprits"]]
    return {**words, "culprits": culprits, "stacks": _recorded(words["stacks"])}


def _recorded(words: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): {"unavailable": "not recorded"} if value == "" else value for k, value in words.items()}

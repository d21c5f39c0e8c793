"""Whether hardware, driver, torch and models fit each other. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from ..outcome import Finding
from ..outcome import Severity
from ..planning.settle import Settled
from ..software import consistency
from ..software import model_findings
from ..software.models import ModelResult
from ..text import one_line
from .learnt import Learnt

OfModel = Callable[[ModelResult], list[Finding]]
"""All that is to be said of one model."""

_UNTOLD = frozenset(
    ("model-requirement-unjudged", "model-requirement-unreadable", "model-requirements-uncompared")
)
"""Findings by which it could not be told whether a model has what it needs: no contradiction, and no fit."""
_CONTRADICTIONS = frozenset(
    ("model-requirement-missing", "model-requirement-version", "model-python-version")
)


def without_requirements(result: ModelResult) -> list[Finding]:
    """All that can be said of a model where `packaging`, which compares versions, may not be there."""
    told = [*model_findings.of_import(result), *model_findings.of_leftovers(result)]
    told += model_findings.of_origin(result)
    if result.requires_dist or result.requires_python:
        told.append(_uncompared(result))
    return told


def judge(
    settled: Settled, learnt: Learnt, of_model: OfModel = without_requirements
) -> tuple[bool | None, list[Finding]]:
    """(whether all of it fits, what contradicts or could not be told); `prove` does not ask for it.

    None where it could not be told: too, while not every model has been tried.
    """
    if settled.wishes is None:
        return None, []
    fits, found = _machine(settled, learnt) if learnt.software else (None, [])
    of_models = {result.name: of_model(result) for result in learnt.models}
    tried = [_fits(result, of_models[result.name]) for result in learnt.models]
    waiting = [None] * (len(settled.wishes.models) - len(tried))
    every = [finding for findings in of_models.values() for finding in findings]
    return all_of([fits, *tried, *waiting]), [*found, *every]


def _machine(settled: Settled, learnt: Learnt) -> tuple[bool | None, list[Finding]]:
    answer = settled.device.answer
    driver = answer.driver_version if answer is not None else None
    return consistency.judge(
        _software(learnt),
        _gpus(settled),
        driver_version=driver if isinstance(driver, str) else None,
        kernels=kernels(settled, learnt),
        wanted_device=_wanted(settled),
    )


def _software(learnt: Learnt) -> Mapping[str, Any]:
    """What the target interpreter said of itself, with torch's opinion on CUDA where that was asked."""
    opinions = [proof.cuda_usable for proof in learnt.proofs.values() if proof.cuda_usable is not None]
    return {**learnt.software, "cuda_usable": opinions[0]} if opinions else learnt.software


def _wanted(settled: Settled) -> str:
    """The device that must fit: of a probe the one that is there, though it may have had to do without."""
    if settled.probing or not settled.runs:
        return settled.device.kind
    return settled.runs[0].device


def _gpus(settled: Settled) -> list[dict[str, Any]]:
    """The GPUs that a run may use, or where there is none, all that the driver shows."""
    answer = settled.device.answer
    if answer is None:
        return []
    usable = {gpu.uuid for gpu in answer.gpus}
    return [gpu.facts() for gpu in answer.shown if not usable or gpu.uuid in usable]


def kernels(settled: Settled, learnt: Learnt) -> list[dict[str, Any]] | None:
    """What kernels said, each with its GPU; None where none were run."""
    for run in settled.runs:
        told = learnt.proofs[run.id].kernels if run.id in learnt.proofs else None
        if told is not None:
            return [{**answer, "uuid": run.gpus[answer["index"]].uuid} for answer in told]
    return None


def _fits(result: ModelResult, findings: Iterable[Finding]) -> bool | None:
    """Whether one model imports and has all that it declares to need."""
    if result.imported is not True:
        return result.imported
    told = {finding.id for finding in findings}
    if told & _CONTRADICTIONS:
        return False
    return None if told & _UNTOLD else True


def _uncompared(result: ModelResult) -> Finding:
    lines = [*result.requires_dist]
    if result.requires_python:
        lines.insert(0, f"Python {result.requires_python}")
    return Finding(
        id="model-requirements-uncompared",
        severity=Severity.WARNING,
        what=f"what {result.name} declares to need was not compared with what is installed",
        got=f"{len(lines)} line(s) of metadata, such as {one_line(lines[0], limit=80)}",
        expected="the package `packaging`, which knows the rules of versions",
        remedy="run `cpinfra probe --python PATH --model NAME` from an environment that has cpinfra",
    )


def all_of(answers: Iterable[bool | None]) -> bool | None:
    """False if any is, else None if any could not be told, else True."""
    known = list(answers)
    if False in known:
        return False
    return None if None in known else True

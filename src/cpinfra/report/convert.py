"""From what the engine and the inventory say to what the report holds."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from .. import outcome
from ..text import plain
from .advice import Blocking
from .base import FindingFacts
from .proof import Check
from .proof import Hang
from .stack import Nccl
from .stack import Software


def check_from(result: outcome.CheckResult) -> Check:
    """A check's result as the report holds it."""
    return Check(
        id=result.id,
        tier=result.tier,
        run=result.run,
        outcome=result.outcome.value,
        reason=plain(result.reason),
        remedy=plain(result.remedy),
        ranks=sorted(result.ranks),
        seconds=round(float(result.seconds), 6),
        evidence=plain(result.evidence),
    )


def finding_from(finding: outcome.Finding) -> FindingFacts:
    """A finding as the report holds it."""
    words = {key: getattr(finding, key) for key in ("id", "what", "got", "expected", "remedy", "command")}
    return FindingFacts(severity=finding.severity.value, **plain(words))


def blocking_from(findings: Iterable[outcome.Finding]) -> list[Blocking]:
    """The blocking ones among the findings, as the report lists them again."""
    return [
        Blocking(
            id=finding.id,
            what=plain(f"{finding.what}: got {finding.got}, expected {finding.expected}"),
            remedy=plain(finding.remedy),
            command=plain(finding.command),
            needs_from_user=[],
        )
        for finding in findings
        if finding.severity is outcome.Severity.BLOCKING
    ]


def software_from(python: str, facts: Mapping[str, Any], *, missing: str) -> Software:
    """What the worker said of itself, as the report holds it.

    Args:
        python: the target interpreter, as it was started.
        facts: the worker's words; what is absent, None or an empty list is unavailable.
        missing: why what is absent is absent.
    """
    why = {"unavailable": missing}
    none = {
        "cuda_build": "this torch was built without CUDA",
        "hip_build": "this torch was built without ROCm",
        "arch_list": "this torch was built without CUDA",
        "nccl": "this torch was built without NCCL",
    }
    known = {name: why for name in Software.model_fields if name not in ("python", "models")}
    for name, value in facts.items():
        known[name] = plain(value) if value not in (None, []) else {"unavailable": none.get(name, missing)}
    if isinstance(facts.get("nccl"), Mapping):
        known["nccl"] = _nccl_words(facts["nccl"], missing)
    return Software.model_validate({"models": [], **known, "python": plain(python)})


def _nccl_words(facts: Mapping[str, Any], missing: str) -> dict[str, Any]:
    words = {name: {"unavailable": missing} for name in Nccl.model_fields}
    words["sha256"] = {"unavailable": "this version does not hash it"}
    return {**words, **{name: plain(value) for name, value in facts.items() if value is not None}}


def hang_from(facts: Mapping[str, Any] | None) -> Hang | None:
    """The engine's words on a hang, as the report holds them; what is empty was not recorded."""
    if facts is None:
        return None
    words = plain(facts)
    words["culprits"] = [_spoken(culprit) for culprit in words["culprits"]]
    words["stacks"] = _spoken(words["stacks"])
    return Hang.model_validate(words)


def _spoken(words: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {"unavailable": "not recorded"} if value == "" else value for key, value in words.items()}

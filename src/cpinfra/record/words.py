"""What both the Markdown and the summary say in the same words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .. import outcome
from .. import report

SCOPES = {
    "full": "full, 8 ranks or more with dp 2 or more, each on a GPU of its own",
    "limited": "limited, ranks on 4 GPUs or more, each on its own",
    "oversubscribed": "oversubscribed, ranks that shared GPUs: memory and speed are not proven",
    "rehearsal": "rehearsal, on the CPU",
    None: "none",
}

Standing = Literal["proven", "rehearsed", "passed on GPUs, not proven", "not proven"]


def meaning(verdict: str | None) -> str:
    """What a verdict says, in a sentence."""
    return outcome.MEANINGS[verdict] if verdict is not None else "no verdict was made"


def mesh(facts: report.MeshFacts) -> str:
    """A mesh in words."""
    ranks = "1 rank" if facts.world_size == 1 else f"{facts.world_size} ranks"
    return f"{ranks}, dp {facts.dp}, cp {facts.cp0}x{facts.cp1}"


def standing(made: report.Report, recipe: report.Recipe) -> Standing:
    """How far exactly the mesh that a recipe launches has been seen to work."""
    if made.verdict in ("failed", None):
        return "not proven"
    if recipe.proven:
        return "proven"
    same = [run for run in made.runs or () if run.mesh == recipe.mesh and run.role != "rerun"]
    passed = {run.device for run in same if all_passed(made, run.id)}
    if "cuda" in passed:
        return "passed on GPUs, not proven"
    return "rehearsed" if passed else "not proven"


def all_passed(made: report.Report, run: str) -> bool:
    """Whether every check of a run has passed, and there are any."""
    outcomes = {check.outcome for check in made.checks or () if check.run == run}
    return outcomes == {"pass"}


def alike(checks: Sequence[report.Check]) -> list[list[report.Check]]:
    """The checks that did not pass, those that say the same together."""
    groups: dict[tuple[str, str, str, str], list[report.Check]] = {}
    for check in checks:
        if check.outcome != "pass":
            groups.setdefault((check.run, check.outcome, check.reason, check.remedy), []).append(check)
    return list(groups.values())


def findings(made: report.Report) -> list[report.FindingFacts]:
    """Every finding of a report, wherever it stands, each once."""
    found = [*(made.findings or ())]
    for part in (made.host, made.hardware, made.software and made.software.consistency):
        found += getattr(part, "findings", [])
    return [finding for place, finding in enumerate(found) if finding not in found[:place]]


def where(hang: report.Hang) -> str:
    """The place of a hang in words."""
    return f"in {hang.check}" if hang.check else "outside of the checks"

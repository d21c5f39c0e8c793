"""What the Markdown, `show` and the end of a run say in the same words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence
from typing import Literal

from .. import outcome
from .. import report
from ..text import one_line

SCOPES = {
    "full": "full, 8 ranks or more with dp 2 or more, each on a GPU of its own",
    "limited": "limited, ranks on 4 GPUs or more, each on its own",
    "oversubscribed": "oversubscribed, ranks that shared GPUs: memory and speed are not proven",
    "rehearsal": "rehearsal, on the CPU",
    None: "none",
}

_TITLES = {
    "process-died": "Death",
    "mismatched-operation": "Divergence",
    "mismatched-shape": "Divergence",
    "mismatched-dtype": "Divergence",
    "diverged": "Divergence",
}
"""By kind, of what is no hang."""

_MISSED = ("never-entered", "mismatched-operation")
"""Kinds of a rank that is not in the operation that is told."""
_SILENCED = ("process-stopped", "process-died")
"""Kinds of a rank of which only the others tell where it was, in the operation or on its way to it."""

_OUTSIDE = {
    "never-joined": "before the checks",
    "stuck-in-init": "before the checks",
    "stuck-in-teardown": "after the checks",
}
"""By kind, of what happened in no check."""
_IN_PART = " (on the rest of its checks)"

Maker = Literal["build", "prove", "selftest", "part"]
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


def made_by(made: report.Report) -> Maker:
    """Which command wrote a report, by the sections that are its own; `part`: any other."""
    there = made.model_fields_set
    if there & {"selftest", "control"}:
        return "selftest"
    if "next" in there:
        return "build"
    return "prove" if "checks" in there and "host" not in there else "part"


def by_choice(check: report.Check) -> bool:
    """Whether the user left a check out."""
    return check.outcome == "skip" and check.reason in (outcome.BY_ONLY, outcome.BY_SKIP)


def selftest(made: report.Report) -> str:
    """What a self-test came to, in a sentence; of one that planted nothing why."""
    number = Counter(row.status for row in made.selftest)
    control = made.control
    planted = number["right"] + number["missed"] + number["unknown"]
    if control is None or not (planted or control.clean or control.false_alarms):
        blocking = [one for one in findings(made) if one.severity == "blocking"]
        return f"did not run: {one_line(blocking[0].what) if blocking else 'its report does not say why'}"
    alarms = len(control.false_alarms)
    told = f"{number['right']} right, {number['missed']} missed, {number['n/a']} n/a"
    told += f", {number['unknown']} unknown" if number["unknown"] else ""
    told += f", {_faults(control.not_reached)} not reached" if control.not_reached else ""
    told += f", {alarms} false alarm{'' if alarms == 1 else 's'}"
    return f"{told}; without a fault: {_clean(control)}"


def _clean(control: report.Control) -> str:
    unpassed = [said for said in control.outcomes.values() if said not in ("pass", "skip")]
    if unpassed:
        return f"{len(unpassed)} of {len(control.outcomes)} checks do not pass"
    return "clean" if control.clean else "not clean"


def not_reached(made: report.Report) -> str:
    """The faults for which a self-test that had begun ended too early; empty where there is none."""
    control = made.control
    if control is None or not control.not_reached or not (made.selftest or control.outcomes):
        return ""
    in_part = {row.twin for row in made.selftest}
    names = [f"{one_line(name)}{_IN_PART if name in in_part else ''}" for name in control.not_reached]
    return f"{_faults(names)}: {', '.join(names)}"


def _faults(names: Sequence[str]) -> str:
    return f"{len(names)} fault{'' if len(names) == 1 else 's'}"


def left_out(made: report.Report) -> str:
    """What was left out of a self-test or of a proof, in a sentence; empty where nothing was."""
    if made.control is not None:
        return ", ".join(map(one_line, made.control.left_out))
    names = _never_ran(made.checks)
    if not names:
        return ""
    told = f"{', '.join(names)}; nothing is said of what {'it tests' if len(names) == 1 else 'they test'}"
    reasons = {check.reason for check in made.checks}
    if made.verdict == "not-proven" and outcome.BY_SKIP in reasons and outcome.BY_ONLY not in reasons:
        told += "; what --skip leaves out keeps the verdict from being proven"
    return told


def _never_ran(checks: Sequence[report.Check]) -> list[str]:
    """Ids of the checks that were left out in every run."""
    ran = {check.id for check in checks if check.outcome != "skip"}
    return list(dict.fromkeys(one_line(check.id) for check in checks if check.id not in ran))


def alike(checks: Sequence[report.Check]) -> list[list[report.Check]]:
    """The checks that did not pass and were not left out by choice, those that say the same together."""
    groups: dict[tuple[str, str, str, str], list[report.Check]] = {}
    for check in checks:
        if check.outcome != "pass" and not by_choice(check):
            groups.setdefault((check.run, check.outcome, check.reason, check.remedy), []).append(check)
    return list(groups.values())


def findings(made: report.Report) -> list[report.FindingFacts]:
    """Every finding of a report, wherever it stands, each once."""
    found = [*(made.findings or ())]
    for part in (made.host, made.hardware, made.software and made.software.consistency):
        found += getattr(part, "findings", [])
    return [finding for place, finding in enumerate(found) if finding not in found[:place]]


def hang_title(hang: report.Hang) -> str:
    """What to call it: not all that is told in that section is a hang."""
    return _TITLES.get(hang.kind, "Hang")


def place(culprit: report.Culprit, show: Callable[[str], str]) -> str:
    """How a culprit stands to the operation that is told of it; empty where neither that nor a line is known.

    Args:
        culprit: the rank.
        show: makes text of others fit for where it will stand.
    """
    known = (("", culprit.operation), ("at ", culprit.site))
    operation = " ".join(f"{word}{show(value)}" for word, value in known if isinstance(value, str))
    if not operation:
        return ""
    if culprit.kind in _MISSED:
        return f", where {operation} was due"
    return f" in or before {operation}" if culprit.kind in _SILENCED else f" in {operation}"


def where(hang: report.Hang) -> str:
    """The place of a hang in words."""
    return f"in {hang.check}" if hang.check else _OUTSIDE.get(hang.kind, "outside of the checks")

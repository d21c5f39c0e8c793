"""Outcomes, findings, the verdict over a proof, and the exit code that follows from it.

Standard library only: the worker zip, the prover and the plugin import it.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from enum import Enum
from enum import IntEnum
from typing import Any


class Outcome(str, Enum):
    """What a check said. Only `PASS` comes without a reason and a remedy."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    SKIP = "skip"


class Severity(str, Enum):
    """How much a finding weighs: `BLOCKING` keeps a report from being proven."""

    INFO = "info"
    WARNING = "warning"
    BLOCKING = "blocking"


class Role(str, Enum):
    """Why a run was made. Only `MAIN` can prove; a `RERUN` decides nothing."""

    MAIN = "main"
    PARTIAL = "partial"
    REHEARSAL = "rehearsal"
    RERUN = "rerun"


class Verdict(str, Enum):
    """The answer over a whole report."""

    PROVEN = "proven"
    REHEARSED = "rehearsed"
    NOT_PROVEN = "not-proven"
    FAILED = "failed"


class Scope(str, Enum):
    """How far a verdict reaches, from the widest to the narrowest."""

    FULL = "full"
    LIMITED = "limited"
    OVERSUBSCRIBED = "oversubscribed"
    REHEARSAL = "rehearsal"


class ExitCode(IntEnum):
    """Exit codes of the commands that prove something."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_PROVEN = 3
    INTERRUPTED = 130


MEANINGS = {
    Verdict.PROVEN.value: "every required check passed on GPUs",
    Verdict.REHEARSED.value: "every required check passed on the CPU; nothing is proven about GPUs",
    Verdict.NOT_PROVEN.value: "not every required check passed, or something blocks the proof; nothing "
    "contradicted it",
    Verdict.FAILED.value: "a check was contradicted, or a rank hung or died",
}
"""What each verdict says, in a sentence."""

BY_SKIP = "left out by --skip"
BY_ONLY = "not named by --only"
"""Reasons of a check that the user left out."""

BUG_REMEDY = "this is a bug of cpinfra, not of your machine: please report it with the run folder"
"""What to do about an exception of our own code, which is never a verdict on hardware."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One observation about hardware, software or prerequisites."""

    id: str
    severity: Severity
    what: str
    got: str
    expected: str
    remedy: str
    command: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What one check established in one run."""

    id: str
    tier: str
    run: str
    outcome: Outcome
    reason: str = ""
    remedy: str = ""
    ranks: tuple[int, ...] = ()
    """The ranks that reported."""
    seconds: float = 0.0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.outcome is not Outcome.PASS and not (self.reason and self.remedy):
            raise ValueError(f"check {self.id}: outcome {self.outcome.value} needs a reason and a remedy")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What the verdict and its scope need to know of one run."""

    id: str
    role: Role
    device: str
    world_size: int
    dp: int
    cp0: int
    cp1: int
    distinct_gpus: int

    @property
    def square(self) -> bool:
        """Whether the mesh holds a square CP grid of side two or more."""
        return self.cp0 == self.cp1 >= 2


def verdict(
    runs: Collection[RunFacts],
    checks: Iterable[CheckResult],
    *,
    required: Collection[str],
    broken: bool,
    findings: Iterable[Finding] = (),
) -> Verdict:
    """Judge a report: see "Outcome, verdict, scope" in docs/verdicts.md.

    Args:
        runs: the runs that were made; only one of role `main` can prove.
        checks: their results; an absent required check counts as not passed.
        required: ids of the checks that must pass in the main run.
        broken: whether any rank hung, died, or was failed by torch, at any stage outside of a check too.
        findings: blocking ones keep the report from being proven.
    """
    results = list(checks)
    reruns = {run.id for run in runs if run.role is Role.RERUN}
    if broken or any(c.outcome is Outcome.FAIL and c.run not in reruns for c in results):
        return Verdict.FAILED
    main = next((run for run in runs if run.role is Role.MAIN), None)
    blocked = any(f.severity is Severity.BLOCKING for f in findings)
    if main is None or blocked or not required or not set(required) <= passed(main, results):
        return Verdict.NOT_PROVEN
    return Verdict.REHEARSED if main.device == "cpu" else Verdict.PROVEN


def passed(run: RunFacts, checks: Iterable[CheckResult]) -> set[str]:
    """Ids of the checks that have passed in a run, and have no other result in it."""
    outcomes: dict[str, set[Outcome]] = {}
    for check in checks:
        if check.run == run.id:
            outcomes.setdefault(check.id, set()).add(check.outcome)
    return {name for name, found in outcomes.items() if found == {Outcome.PASS}}


def scope(run: RunFacts | None, checks: Iterable[CheckResult], *, must_pass: Collection[str]) -> Scope | None:
    """How far a run reaches: the lesser of what its devices allow and what has passed on them.

    Args:
        run: the run that was made; None where none was.
        checks: the results.
        must_pass: ids of the checks without which GPUs have no scope, whoever asked for which.

    Returns:
        None when nothing ran, or when GPUs ran without a square mesh or without passing all of `must_pass`.
    """
    if run is None:
        return None
    if run.device == "cpu":
        return Scope.REHEARSAL
    if not run.square or not must_pass or not set(must_pass) <= passed(run, checks):
        return None
    if run.distinct_gpus < run.world_size:
        return Scope.OVERSUBSCRIBED
    return Scope.FULL if run.world_size >= 8 and run.dp >= 2 else Scope.LIMITED


def exit_code(answer: Verdict) -> ExitCode:
    """The exit code of a command that ends in this verdict."""
    codes = {
        Verdict.PROVEN: ExitCode.OK,
        Verdict.REHEARSED: ExitCode.OK,
        Verdict.FAILED: ExitCode.FAILED,
        Verdict.NOT_PROVEN: ExitCode.NOT_PROVEN,
    }
    return codes[answer]

"""The verdict over everything that was learnt. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from .. import outcome
from ..hardware import host as hosts
from ..outcome import CheckResult
from ..outcome import Finding
from ..outcome import Outcome
from ..outcome import Scope
from ..outcome import Severity
from ..outcome import Verdict
from ..planning import placement
from ..planning.settle import PlannedRun
from ..planning.settle import Settled
from ..proof.catalogue import SEED
from ..proof.catalogue import CheckInfo
from ..proof.catalogue import catalogue
from ..proof.contract import Proof
from ..proof.environment import Told
from ..proof.expectations import EXPECTED
from . import fit
from .learnt import Learnt

UNFINISHED = Finding(
    id="run-unfinished",
    severity=Severity.BLOCKING,
    what="the run was still going on when this report was written",
    got="a report of what was known by then",
    expected="a run that came to its end",
    remedy="if cpinfra runs no more it was killed: run it again",
)
_REACH = (None, Scope.REHEARSAL, Scope.OVERSUBSCRIBED, Scope.LIMITED, Scope.FULL)
"""Scopes from the narrowest to the widest."""
_GRIDS = {"full": 2, "limited": 1}
"""How many copies of the grid each takes; one of 2x2 where none was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What everything that was learnt comes to."""

    checks: list[CheckResult]
    findings: list[Finding]
    """Of the runs; those of host, hardware and software come beside them."""
    host: list[Finding]
    hardware: list[Finding]
    software: list[Finding]
    consistent: bool | None
    """Whether hardware, driver, torch and models fit each other; None where that could not be told."""
    verdict: Verdict
    scope: Scope | None

    @property
    def all_findings(self) -> list[Finding]:
        """Of every kind."""
        return [*self.host, *self.hardware, *self.software, *self.findings]


def judge(
    settled: Settled,
    learnt: Learnt,
    more: Sequence[Finding] = (),
    *,
    of_model: fit.OfModel = fit.without_requirements,
) -> Judged:
    """Judge what was learnt.

    Args:
        settled: what was asked.
        learnt: what is known.
        more: findings that arose in the writing of the report.
        of_model: all that is to be said of one model.
    """
    started = [run.facts for run in settled.runs if learnt.has_ranks(run.id)]
    checks = [_of_planted(result, settled.faults) for result in results(settled, learnt, more)]
    reached = outcome.scope(
        started[0] if started else None, checks, must_pass=settled.selection.required | frozenset(SEED)
    )
    consistent, software = fit.judge(settled, learnt, of_model)
    host = [] if learnt.host is None else hosts.findings(learnt.host)
    hardware = [*placement.findings(settled.device), *settled.findings]
    of_runs = [*_planted(settled.faults), *_of_runs(settled, learnt), *learnt.findings, *more]
    of_runs += _too_narrow(settled, reached)
    everything = [*host, *hardware, *software, *of_runs]
    required = settled.selection.required
    return Judged(
        checks=checks,
        findings=of_runs,
        host=host,
        hardware=hardware,
        software=software,
        consistent=consistent,
        verdict=outcome.verdict(
            started, checks, required=required, broken=learnt.broken, findings=everything
        ),
        scope=reached,
    )


def _of_runs(settled: Settled, learnt: Learnt) -> list[Finding]:
    """What the runs noticed, each thing once: two runs of one torch notice the same."""
    found: list[Finding] = []
    for run in settled.runs:
        if run.id in learnt.proofs:
            command = "cpinfra prove" if settled.wishes is None else "cpinfra build"
            found += [*_environment(run.told, command), *learnt.proofs[run.id].findings]
    return list(dict.fromkeys(found))


def _too_narrow(settled: Settled, reached: Scope | None) -> list[Finding]:
    """That the scope which `--require` asks for was not reached."""
    wanted = settled.wishes.require if settled.wishes is not None else None
    if wanted is None or _REACH.index(reached) >= _REACH.index(Scope(wanted)):
        return []
    cp0, cp1 = settled.numbers.cp or (2, 2)
    ranks = _GRIDS[wanted] * cp0 * cp1
    dp = " with dp 2" if wanted == "full" else ""
    cp = f" --cp {cp0}x{cp1}" if settled.numbers.cp else ""
    finding = Finding(
        id="scope-too-narrow",
        severity=Severity.BLOCKING,
        what="the proof does not reach as far as --require asks",
        got=f"scope {reached.value if reached is not None else 'none'}",
        expected=f"scope {wanted}",
        remedy=f"run it on more GPUs ({ranks} or more{dp}), or ask for less",
        command=f"cpinfra build {ranks} --require {wanted}{cp}",
    )
    return [finding]


def _planted(faults: Sequence[str]) -> list[Finding]:
    if not faults:
        return []
    expected = dict.fromkeys(_expected_of(fault.partition(":")[0]) for fault in faults)
    finding = Finding(
        id="fault-planted",
        severity=Severity.WARNING,
        what=f"faults were planted in this run, so it is expected that {' and '.join(expected)}",
        got=", ".join(faults),
        expected="no --inject in a run whose result is to be relied on",
        remedy="run it without --inject",
    )
    return [finding]


def _expected_of(twin: str) -> str:
    """What becomes of a run in which it is planted."""
    if EXPECTED[twin].slow:
        return "a rank comes late"
    if EXPECTED[twin].outcome is Outcome.PASS:
        return "a rank hangs outside of the checks"
    return "checks fail"


def _of_planted(result: CheckResult, faults: Sequence[str]) -> CheckResult:
    """A failure that was asked for condemns no machine."""
    if not faults or result.outcome is not Outcome.FAIL:
        return result
    remedy = f"a fault was planted ({', '.join(faults)}): this failure says that it was noticed, and no more"
    return replace(result, remedy=remedy)


def _environment(told: Told, command: str) -> list[Finding]:
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
                remedy="nothing to do; recipe.env lists what your program needs to run alike",
            )
        )
    if told.restricting:
        found.append(_restricted(told, command))
    return found


def _restricted(told: Told, command: str) -> Finding:
    return Finding(
        id="transport-restricted",
        severity=Severity.WARNING,
        what="your environment switches transports of NCCL off: what passes has passed without them",
        got=", ".join(f"{name}={value}" for name, value in told.restricting.items()),
        expected="NCCL free to choose, or a program that always runs under the same variables",
        remedy=f"unset {', '.join(told.restricting)} and run it again, unless your program needs them",
        command=f"env {' '.join(f'-u {name}' for name in told.restricting)} {command}",
    )


def results(settled: Settled, learnt: Learnt, more: Sequence[Finding] = ()) -> list[CheckResult]:
    """One result for every check of the tier in every run that was made, in the catalogue's order."""
    if not settled.runs or not learnt.proofs:
        return _of_run(settled, learnt, None, more)
    started = [run for run in settled.runs if run.id in learnt.proofs]
    return [result for run in started for result in _of_run(settled, learnt, run, more)]


def _of_run(
    settled: Settled, learnt: Learnt, run: PlannedRun | None, more: Sequence[Finding]
) -> list[CheckResult]:
    proof: Proof | None = learnt.proofs[run.id] if run is not None else None
    name = run.id if run is not None and learnt.has_ranks(run.id) else ""
    selection = run.selection if run is not None else settled.selection
    given = dict(proof.results) if proof is not None else {}
    reason, remedy = _why_unknown(settled, learnt, [*(proof.findings if proof is not None else ()), *more])
    for check in selection.run:
        given.setdefault(check.id, _bare(check, name, Outcome.UNKNOWN, reason, remedy))
    for omitted in selection.omitted:
        given[omitted.check.id] = _bare(omitted.check, name, Outcome.SKIP, omitted.reason, omitted.remedy)
    order = {check.id: place for place, check in enumerate(catalogue())}
    found = [replace(result, run=name) for result in given.values()]
    return sorted(found, key=lambda result: order.get(result.id, len(order)))


def _bare(check: CheckInfo, run: str, said: Outcome, reason: str, remedy: str) -> CheckResult:
    return CheckResult(id=check.id, tier=check.tier, run=run, outcome=said, reason=reason, remedy=remedy)


def _why_unknown(settled: Settled, learnt: Learnt, findings: Sequence[Finding]) -> tuple[str, str]:
    """(reason, remedy) of a check without a result."""
    if not learnt.proofs and learnt.interrupted_beside:
        return f"not run: interrupted by {learnt.interrupted_beside}", "run it again"
    obstacle = settled.device.obstacle
    if not settled.runs and obstacle is not None:
        return f"not run: {obstacle.what}: {obstacle.got}", obstacle.remedy
    blocking = [finding for finding in findings if finding.severity is Severity.BLOCKING]
    if blocking:
        return f"not run: {blocking[-1].what}", blocking[-1].remedy
    return "the engine gave no result for it", outcome.BUG_REMEDY

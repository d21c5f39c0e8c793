from __future__ import annotations

from collections.abc import Sequence

import pytest

from cpinfra import outcome
from cpinfra.outcome import CheckResult
from cpinfra.outcome import ExitCode
from cpinfra.outcome import Finding
from cpinfra.outcome import Outcome
from cpinfra.outcome import Role
from cpinfra.outcome import RunFacts
from cpinfra.outcome import Scope
from cpinfra.outcome import Severity
from cpinfra.outcome import Verdict

REQUIRED = ("a.one", "a.two")


def run(
    role: Role = Role.MAIN, *, device: str = "cuda", mesh: tuple[int, int, int] = (1, 2, 2), gpus: int = 4
) -> RunFacts:
    """A run of that role, whose id is the role's name."""
    dp, cp0, cp1 = mesh
    return RunFacts(
        id=role.value,
        role=role,
        device=device,
        world_size=dp * cp0 * cp1,
        dp=dp,
        cp0=cp0,
        cp1=cp1,
        distinct_gpus=gpus,
    )


def result(name: str, said: Outcome = Outcome.PASS, *, of: str = "main") -> CheckResult:
    """A check's result."""
    reason, remedy = ("", "") if said is Outcome.PASS else ("because", "do this")
    return CheckResult(id=name, tier="smoke", run=of, outcome=said, reason=reason, remedy=remedy)


def finding(severity: Severity) -> Finding:
    """A finding of that severity."""
    return Finding(id="x", severity=severity, what="w", got="g", expected="e", remedy="r")


def judge(
    checks: Sequence[CheckResult],
    *,
    runs: Sequence[RunFacts] | None = None,
    required: Sequence[str] = REQUIRED,
    hung: bool = False,
    findings: Sequence[Finding] = (),
) -> Verdict:
    """The verdict over a main run on GPUs, unless other runs are given."""
    return outcome.verdict(
        [run()] if runs is None else runs, checks, required=required, broken=hung, findings=findings
    )


BOTH = [result("a.one"), result("a.two")]


class TestVerdict:
    """Could not tell is never a pass, and contradicted is never could not tell."""

    def test_all_required_passed_on_gpus_is_proven(self) -> None:
        """The one way to proven."""
        assert judge(BOTH) is Verdict.PROVEN

    def test_all_required_passed_on_cpu_is_rehearsed(self) -> None:
        """A rehearsal can never yield a proof on hardware."""
        assert judge(BOTH, runs=[run(device="cpu", gpus=0)]) is Verdict.REHEARSED

    @pytest.mark.parametrize("said", [Outcome.UNKNOWN, Outcome.SKIP])
    def test_a_required_check_that_is_not_passed_is_not_proven(self, said: Outcome) -> None:
        """Unknown and skip are no pass."""
        assert judge([result("a.one"), result("a.two", said)]) is Verdict.NOT_PROVEN

    def test_an_absent_required_check_is_not_proven(self) -> None:
        """A required check without any result has not passed."""
        assert judge([result("a.one")]) is Verdict.NOT_PROVEN

    def test_nothing_at_all_is_not_proven(self) -> None:
        """Zero results, zero requirements and zero runs prove nothing."""
        assert judge([]) is Verdict.NOT_PROVEN
        assert judge(BOTH, required=()) is Verdict.NOT_PROVEN
        assert judge(BOTH, runs=[]) is Verdict.NOT_PROVEN

    def test_a_check_that_is_not_required_may_be_left_out(self) -> None:
        """Its skip or unknown changes nothing."""
        assert judge([*BOTH, result("b", Outcome.SKIP), result("c", Outcome.UNKNOWN)]) is Verdict.PROVEN

    def test_any_fail_is_failed_required_or_not(self) -> None:
        """A contradiction counts even where the check was not asked for."""
        assert judge([*BOTH, result("b", Outcome.FAIL)]) is Verdict.FAILED

    @pytest.mark.parametrize("role", [Role.MAIN, Role.PARTIAL, Role.REHEARSAL])
    def test_a_fail_in_any_deciding_run_is_failed(self, role: Role) -> None:
        """Main, partial and rehearsal all count."""
        runs = [run(), run(role)]

        assert judge([*BOTH, result("b", Outcome.FAIL, of=role.value)], runs=runs) is Verdict.FAILED

    def test_a_fail_in_a_rerun_decides_nothing(self) -> None:
        """A rerun explains; it is no evidence."""
        runs = [run(), run(Role.RERUN)]

        assert judge([*BOTH, result("a.one", Outcome.FAIL, of="rerun")], runs=runs) is Verdict.PROVEN

    @pytest.mark.parametrize("role", [Role.PARTIAL, Role.REHEARSAL, Role.RERUN])
    def test_only_a_main_run_proves(self, role: Role) -> None:
        """Passes in a run of another role are not enough, beside a main run that lacks them either."""
        passed = [result(name, of=role.value) for name in REQUIRED]

        assert judge(passed, runs=[run(role)]) is Verdict.NOT_PROVEN
        assert judge(passed, runs=[run(), run(role)]) is Verdict.NOT_PROVEN

    def test_a_hang_is_failed_whatever_passed(self) -> None:
        """A rank that hangs in the teardown, after every check passed, fails the report."""
        assert judge(BOTH, hung=True) is Verdict.FAILED

    @pytest.mark.parametrize(
        ("severity", "expected"),
        [
            (Severity.INFO, Verdict.PROVEN),
            (Severity.WARNING, Verdict.PROVEN),
            (Severity.BLOCKING, Verdict.NOT_PROVEN),
        ],
    )
    def test_only_blocking_findings_keep_from_proof(self, severity: Severity, expected: Verdict) -> None:
        """A warning, such as a slow rank, changes no outcome."""
        assert judge(BOTH, findings=[finding(severity)]) is expected

    def test_a_fail_outranks_a_blocking_finding(self) -> None:
        """What was contradicted is said, whatever else is missing."""
        checks = [result("a.one"), result("a.two", Outcome.FAIL)]

        assert judge(checks, findings=[finding(Severity.BLOCKING)]) is Verdict.FAILED


class TestScope:
    """How far a run reaches."""

    @pytest.mark.parametrize(
        ("facts", "expected"),
        [
            (run(mesh=(2, 2, 2), gpus=8), Scope.FULL),
            (run(mesh=(4, 2, 2), gpus=16), Scope.FULL),
            (run(mesh=(1, 2, 2), gpus=4), Scope.LIMITED),
            (run(mesh=(1, 3, 3), gpus=9), Scope.LIMITED),
            (run(mesh=(2, 2, 2), gpus=4), Scope.OVERSUBSCRIBED),
            (run(mesh=(1, 2, 2), gpus=1), Scope.OVERSUBSCRIBED),
            (run(mesh=(2, 2, 2), device="cpu", gpus=0), Scope.REHEARSAL),
            (run(mesh=(1, 5, 1), device="cpu", gpus=0), Scope.REHEARSAL),
            (run(mesh=(1, 5, 1), gpus=5), None),
            (run(Role.PARTIAL, mesh=(1, 2, 1), gpus=2), None),
        ],
    )
    def test_follows_from_mesh_and_gpus(self, facts: RunFacts, expected: Scope | None) -> None:
        """World 8, dp 2 on as many GPUs is full; two ranks on one GPU are oversubscribed; no square, none."""
        passed = [result("a.one", of=facts.id)]

        assert outcome.scope(facts, passed, must_pass=["a.one"]) is expected

    @pytest.mark.parametrize("said", [Outcome.FAIL, Outcome.UNKNOWN, Outcome.SKIP])
    def test_gpus_reach_no_further_than_what_passed(self, said: Outcome) -> None:
        """Eight GPUs on which one of the checks did not pass, or was not run, have no scope."""
        checks = [result("a.one"), result("a.two", said)]
        eight = run(mesh=(2, 2, 2), gpus=8)

        assert outcome.scope(eight, checks, must_pass=["a.one", "a.two"]) is None
        assert outcome.scope(eight, checks, must_pass=["a.one", "a.three"]) is None
        assert outcome.scope(eight, checks, must_pass=["a.one"]) is Scope.FULL

    def test_a_pass_in_another_run_does_not_count(self) -> None:
        """What passed on the CPU says nothing of how far GPUs reach."""
        checks = [result("a.one"), result("a.two", of="rehearsal")]

        assert outcome.scope(run(mesh=(2, 2, 2), gpus=8), checks, must_pass=["a.one", "a.two"]) is None

    def test_nothing_reaches_nowhere(self) -> None:
        """Without a run, or without a check that must pass, there is no scope on GPUs."""
        assert outcome.scope(None, [], must_pass=["a.one"]) is None
        assert outcome.scope(run(), [], must_pass=[]) is None


class TestResult:
    """A result explains itself."""

    @pytest.mark.parametrize("said", [Outcome.FAIL, Outcome.UNKNOWN, Outcome.SKIP])
    @pytest.mark.parametrize(("reason", "remedy"), [("", ""), ("r", ""), ("", "r")])
    def test_rejects_no_pass_without_reason_and_remedy(self, said: Outcome, reason: str, remedy: str) -> None:
        """All but a pass carry both."""
        with pytest.raises(ValueError, match=f"a.one: outcome {said.value} needs a reason and a remedy"):
            CheckResult(id="a.one", tier="smoke", run="main", outcome=said, reason=reason, remedy=remedy)

    def test_allows_a_pass_without(self) -> None:
        """A pass says nothing more."""
        assert result("a.one").reason == ""


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (Verdict.PROVEN, ExitCode.OK),
        (Verdict.REHEARSED, ExitCode.OK),
        (Verdict.FAILED, ExitCode.FAILED),
        (Verdict.NOT_PROVEN, ExitCode.NOT_PROVEN),
    ],
)
def test_exit_code_of_each_verdict(verdict: Verdict, code: ExitCode) -> None:
    """Every verdict has one exit code, and none is the code of a usage error."""
    assert outcome.exit_code(verdict) is code
    assert len(Verdict) == 4

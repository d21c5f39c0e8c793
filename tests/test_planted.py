"""Whether the faults of a proof were noticed, by what the proof has told."""

from __future__ import annotations

import pytest

from cpinfra.outcome import CheckResult
from cpinfra.outcome import Outcome
from cpinfra.proof.catalogue import catalogue
from cpinfra.proof.contract import Proof
from cpinfra.proof.contract import ProofRequest
from cpinfra.proof.hang import Hang
from cpinfra.proof.planted import Planted

RING = "p2p.ring"
OTHER = "collective.all_reduce"
HANG = Hang(
    check=None, kind="never-joined", culprits=(), waiting_ranks=(0,), stacks={}, seconds_to_verdict=1.0
)


def findings(fault: str, acted_in: str, proof: Proof) -> list[str]:
    """Ids of what is told of one fault that acted in one check, or outside of any."""
    checks = tuple(check for check in catalogue() if check.id in (RING, OTHER))
    request = ProofRequest(
        run="main",
        python="p",
        dp=1,
        cp0=2,
        cp1=2,
        device="cpu",
        gpu_uuids=(),
        checks=checks,
        faults=(fault,),
    )
    planted = Planted(request, 5.0)
    planted.note({"fault": fault, "check": acted_in})
    return [finding.id for finding in planted.findings(proof)]


def proof(failed: str = "", *, hangs: list[Hang] | None = None) -> Proof:
    """One in which a check failed and all others passed."""
    told = {Outcome.PASS: ("", ""), Outcome.FAIL: ("why", "do this")}
    results = {}
    for name in (RING, OTHER):
        outcome = Outcome.FAIL if name == failed else Outcome.PASS
        reason, remedy = told[outcome]
        results[name] = CheckResult(
            id=name, tier="smoke", run="main", outcome=outcome, reason=reason, remedy=remedy
        )
    return Proof(results=results, hangs=hangs or [])


@pytest.mark.parametrize("fault", ["raise:1", "kill:1", "skip:1", "delay:1:6"])
def test_a_failure_elsewhere_is_no_word_on_a_fault_in_conduct(fault: str) -> None:
    """The check in which it acted must fail, or a hang be told."""
    assert findings(fault, RING, proof(OTHER)) == ["fault-not-caught"]
    assert findings(fault, RING, proof()) == ["fault-not-caught"]
    assert findings(fault, RING, proof(RING)) == []
    assert findings(fault, RING, proof(hangs=[HANG])) == []


@pytest.mark.parametrize("fault", ["never-join:1", "stall-init:1", "stall-teardown:1"])
def test_a_fault_in_a_stage_is_noticed_by_a_hang_alone(fault: str) -> None:
    """It acts in no check, so none that fails is about it."""
    assert findings(fault, "", proof(RING)) == ["fault-not-caught"]
    assert findings(fault, "", proof(hangs=[HANG])) == []


def test_a_delay_within_the_budget_needs_no_word() -> None:
    """It is nothing to be caught."""
    assert findings("delay:1:0.05", RING, proof()) == []

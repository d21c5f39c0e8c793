"""The faults that were planted in a proof: which have acted, where, and whether they were noticed."""

from __future__ import annotations

from ..outcome import Finding
from ..outcome import Outcome
from ..worker.channel import Message
from ..worker.injection import DATA_TWINS
from ..worker.injection import parse
from . import run_findings
from .contract import Proof
from .contract import ProofRequest
from .generation import Generation
from .idle_faults import Ended
from .idle_faults import Idle
from .idle_faults import why_idle


class Planted:
    """Keeps account of the faults of one request."""

    def __init__(self, request: ProofRequest, operation_s: float) -> None:
        """Nothing has acted yet.

        Args:
            request: what is proven, and with which faults.
            operation_s: the budget of an operation; a delay within it is no fault to be caught.
        """
        self._request = request
        self._operation_s = operation_s
        self._acted: dict[str, set[str]] = {}
        """Fault -> checks in which it has changed something."""
        self._ended: list[tuple[tuple[str, ...], Ended]] = []
        """For each set of ranks that is over: what was planted in it, and what it came to."""

    def to_plant(self) -> tuple[str, ...]:
        """What the next generation gets: a fault in a rank's conduct acts once in a run."""
        return tuple(
            fault for fault in self._request.faults if fault in DATA_TWINS or fault not in self._acted
        )

    def ended(self, generation: Generation) -> None:
        """Take note of how far a generation came; while its ledger can still be read."""
        before = {fault for _, end in self._ended for fault in end.acted}
        acted = tuple(fault for fault in self._acted if fault not in before)
        end = Ended(calls=generation.calls_entered(), early=generation.judged, acted=acted)
        self._ended.append((generation.spec.faults, end))

    def note(self, message: Message) -> bool:
        """Take note that a fault acted; whether it did so for the first time."""
        is_first = message["fault"] not in self._acted
        self._acted.setdefault(message["fault"], set()).add(message["check"])
        return is_first

    def findings(self, proof: Proof) -> list[Finding]:
        """Faults that did not act, or that acted where nothing noticed them."""
        idle = [self._why(fault) for fault in self._request.faults if fault not in self._acted]
        found = [run_findings.not_fired(idle)] if idle else []
        missed = {fault: self._missed(fault, proof) for fault in self._acted}
        told = {fault: checks for fault, checks in missed.items() if checks is not None}
        return [*found, run_findings.not_caught(told)] if told else found

    def _why(self, fault: str) -> Idle:
        """Why a fault did not act."""
        ended = [end for planted, end in self._ended if fault in planted]
        return why_idle(parse(fault, self._request.world), ended)

    def _missed(self, fault: str, proof: Proof) -> set[str] | None:
        """The checks that should have caught a fault and passed; None where it was caught as it must be."""
        failed = {name for name, result in proof.results.items() if result.outcome is Outcome.FAIL}
        if fault in DATA_TWINS:
            noticed = proof.hang or failed
            return self._blind(fault, proof) or (None if noticed else self._acted[fault])
        planted = parse(fault, self._request.world)
        is_short = planted.name == "delay" and planted.seconds <= self._operation_s
        # A check that fails elsewhere is no word on this fault; one that acts in a stage can only be a hang.
        return None if is_short or proof.hang or failed & self._acted[fault] else set()

    def _blind(self, fault: str, proof: Proof) -> set[str]:
        """Checks that declare this twin, in which it acted, and that passed all the same."""
        passed = {name for name, result in proof.results.items() if result.outcome is Outcome.PASS}
        declared = {check.id for check in self._request.checks if fault in check.twins}
        return declared & self._acted[fault] & passed

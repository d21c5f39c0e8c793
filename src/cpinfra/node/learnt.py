"""What is known so far of one request. Light: it is there before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from ..outcome import Finding
from ..proof.contract import Proof
from ..proof.hang import Hang
from ..software.models import ModelResult


@dataclass(kw_only=True, slots=True)
class Learnt:
    """What is known so far; grows while the command runs."""

    proofs: dict[str, Proof] = field(default_factory=dict)
    """By run; those that were started."""
    host: Mapping[str, Any] | None = None
    """None where it was not asked."""
    models: tuple[ModelResult, ...] = ()
    why: Mapping[str, Any] | None = None
    """What the target interpreter said of why torch does not import; None where it was not asked."""
    findings: list[Finding] = field(default_factory=list)
    """What concerns no single run."""
    interrupted_beside: str = ""
    """Name of the signal that ended what goes on beside the runs."""

    @property
    def software(self) -> Mapping[str, Any]:
        """What the target interpreter said of itself, in whichever run it got so far; else empty."""
        told = (proof.software for proof in self.proofs.values() if proof.software is not None)
        return next(told, {})

    def has_ranks(self, run: str) -> bool:
        """Whether ranks were started in a run: without, it says nothing of any device."""
        proof = self.proofs.get(run)
        return proof is not None and proof.forked

    @property
    def hang(self) -> Hang | None:
        """The first one."""
        return next((proof.hang for proof in self.proofs.values() if proof.hang is not None), None)

    @property
    def broken(self) -> bool:
        """Whether any rank hung or died, or torch raised in one outside of the checks."""
        return self.hang is not None or any(proof.broken_outside for proof in self.proofs.values())

    @property
    def interrupted(self) -> bool:
        """Whether the user or the system ended it."""
        return bool(self.interrupted_beside) or any(proof.interrupted for proof in self.proofs.values())

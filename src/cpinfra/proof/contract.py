"""What a proof is asked for, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from ..outcome import CheckResult
from ..outcome import Finding
from ..outcome import Severity
from .catalogue import CheckInfo
from .hang import Hang
from .slowness import Slow

Progress = Callable[[dict[str, Any]], None]
"""Takes the events of a proof, each as it happens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofRequest:
    """What to prove, with which interpreter, on what."""

    run: str
    """Id of the run in the report."""
    python: str
    dp: int
    cp0: int
    cp1: int
    device: str
    gpu_uuids: tuple[str, ...]
    checks: tuple[CheckInfo, ...]
    faults: tuple[str, ...] = ()
    budget_s: float | None = None
    kernels: bool = False
    """Whether to run real kernels on each GPU before the ranks start, and to ask torch's opinion on CUDA,
    which without GPUs is all that is asked."""

    @property
    def world(self) -> int:
        """How many ranks."""
        return self.dp * self.cp0 * self.cp1

    @property
    def backend(self) -> str:
        """The process group's backend."""
        return "nccl" if self.device == "cuda" else "gloo"


@dataclass(kw_only=True, slots=True)
class Proof:
    """What has been learnt so far; whole once the supervisor's `run` has returned."""

    software: dict[str, Any] | None = None
    kernels: list[dict[str, Any]] | None = None
    """What kernels said, by visible GPU; None where none were asked for."""
    cuda_usable: dict[str, Any] | None = None
    """Whether torch takes CUDA for usable (`worker.kernels.cuda_usable`), asked beside the kernels."""
    findings: list[Finding] = field(default_factory=list)
    results: dict[str, CheckResult] = field(default_factory=dict)
    hangs: list[Hang] = field(default_factory=list)
    """Hangs, deaths of ranks and divergences, in the order in which they were told."""
    slows: list[Slow] = field(default_factory=list)
    """Ranks that came late to an operation, which is no hang."""
    fired: dict[str, dict[str, float]] = field(default_factory=dict)
    """Planted fault -> check, or nothing outside of any -> when it first acted there, by CLOCK_MONOTONIC."""
    told_at_s: dict[str, float] = field(default_factory=dict)
    """Check, or nothing outside of any -> when the first word on it was out, by the same clock: that a
    rank is slow, its hang, or its result."""
    forked: bool = False
    """Whether ranks were started at all."""
    broken_outside: bool = False
    """Whether torch raised in ranks outside of any check: while they closed their groups."""
    interrupted: str = ""
    """Name of the signal that ended the run early."""

    @property
    def hang(self) -> Hang | None:
        """The first one."""
        return self.hangs[0] if self.hangs else None

    @property
    def obstacle(self) -> Finding | None:
        """The newest finding that keeps the run from going on."""
        blocking = [finding for finding in self.findings if finding.severity is Severity.BLOCKING]
        return blocking[-1] if blocking else None

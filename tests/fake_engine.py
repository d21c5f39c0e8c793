"""The command line with an engine that starts nothing: its results follow from FAKE_ENGINE.

Run as a program, or installed into `cpinfra.node.job` by a test in this process. Values: `pass`, `two-fail`
(two checks contradicted, two culprits of a hang), `garbled` (control characters, undecodable bytes, NaN),
`no-torch`, `interrupted`, `bug`, `wrong-kernels` (of the last GPU), `lost` (a check without a result),
`unwritable` (no report can be written). With `@RUN` behind it a value holds for the run of that name alone,
and the others pass. On GPUs it has a torch for CUDA, whose kernels run right.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING
from typing import Any

from cpinfra.cli import main
from cpinfra.node import job
from cpinfra.outcome import CheckResult
from cpinfra.outcome import Finding
from cpinfra.outcome import Outcome
from cpinfra.outcome import Severity
from cpinfra.proof.catalogue import CheckInfo
from cpinfra.proof.contract import Progress
from cpinfra.proof.contract import Proof
from cpinfra.proof.contract import ProofRequest
from cpinfra.proof.hang import Culprit
from cpinfra.proof.hang import Hang
from cpinfra.proof.run_folder import RunFolder

if TYPE_CHECKING:
    import pytest

HEAVY = ("pydantic", "rich", "torch")
EVIL = "one\ntwo\x1b[31m\x07 \udcff \u202e [bold]é"
SOFTWARE: dict[str, Any] = {
    "python": "/elsewhere/python",
    "python_version": "3.12.1",
    "torch": "2.13.0",
    "torch_path": "/elsewhere/torch",
    "cuda_build": None,
    "hip_build": None,
    "arch_list": [],
    "nccl": None,
    "backends": {"gloo": True, "nccl": False},
}
CUDA_SOFTWARE: dict[str, Any] = {
    **SOFTWARE,
    "torch": "2.13.0+cu130",
    "cuda_build": "13.0",
    "cuda_driver": "13.0",
    "arch_list": ["sm_90", "sm_100"],
    "nccl": {"compiled": "2.28.9", "loaded": "2.28.9", "path": "/elsewhere/libnccl.so.2"},
    "backends": {"gloo": True, "nccl": True},
}
HANG = Hang(
    check="p2p.ring",
    kind="never-entered",
    culprits=(
        Culprit(
            rank=1,
            kind="never-entered",
            operation="exchange",
            group="world",
            site="p2p.py:10",
            expected="exchange",
            got="sleeps",
        ),
        Culprit(
            rank=3,
            kind="process-stopped",
            operation="",
            group="",
            site="",
            expected="to run",
            got="is stopped",
        ),
    ),
    waiting_ranks=(0, 2),
    stacks={"0": "File x", "1": "", "3": "File y"},
    seconds_to_verdict=1.25,
)


class FakeEngine:
    """Stands in for the engine: entered and left like it, without a process."""

    def __init__(
        self,
        request: ProofRequest,
        folder: RunFolder,
        progress: Progress,
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        self.request = request
        self.folder = folder
        self.beside = beside
        self._progress = progress

    def __enter__(self) -> FakeEngine:
        loaded = [name for name in HEAVY if name in sys.modules]
        if os.environ.get("FAKE_ENGINE_LIGHT") and loaded:
            raise RuntimeError(f"imported before the zygote was started: {loaded}")
        self.emit(
            "start", python=self.request.python, world_size=self.request.world, device=self.request.device
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.emit("end", processes_left=[])
        if os.environ.get("FAKE_ENGINE_STUMBLES"):
            raise OSError("stumbled at its end")

    def emit(self, event: str, **facts: Any) -> None:
        """Tell of something."""
        self._progress(self.folder.event(event, **facts))


class FakeSupervisor:
    """Stands in for the supervisor on the fake engine."""

    def __init__(self, engine: FakeEngine, request: ProofRequest) -> None:
        self.request = request
        self._engine = engine
        mode, _, run = os.environ.get("FAKE_ENGINE", "pass").partition("@")
        self._mode = mode if run in ("", request.run) else "pass"
        self.proof = Proof()

    def run(self) -> Proof:
        """What the mode says."""
        self._engine.beside()
        if self._mode == "bug":
            raise RuntimeError("two\nlines")
        if self._mode == "unwritable":
            (self._engine.folder.path / "report.json").unlink(missing_ok=True)
            (self._engine.folder.path / "report.json").mkdir()
        if self._mode == "no-torch":
            self.proof.findings.append(finding("torch-missing"))
            return self.proof
        software = CUDA_SOFTWARE if self.request.device == "cuda" else SOFTWARE
        proof = self.proof = Proof(software=dict(software), forked=True)
        self._engine.emit("software", seconds=1.5, **software)
        if self.request.kernels:
            proof.kernels = [self._kernels(index) for index in range(len(self.request.gpu_uuids))]
            proof.cuda_usable = {"usable": True, "device_count": 1, "warnings": [], "error": ""}
        if self._mode == "interrupted":
            proof.interrupted = "SIGTERM"
            self._engine.emit("interrupted", signal="SIGTERM")
            return proof
        if self._mode == "two-fail":
            proof.hangs.append(HANG)
            self._engine.emit("hang", check="p2p.ring", kind="never-entered", sentence=HANG.sentence())
        for check in self.request.checks[1:] if self._mode == "lost" else self.request.checks:
            proof.results[check.id] = self._settle(self._result(check))
        return proof

    def _kernels(self, index: int) -> dict[str, Any]:
        """Right, but where the mode is that the last GPU's are wrong."""
        wrong = self._mode == "wrong-kernels" and index == len(self.request.gpu_uuids) - 1
        error = "matmul: 3 of 9 values are wrong" if wrong else ""
        return {"index": index, "right": not wrong, "kernels": ["matmul"], "error": error, "seconds": 0.5}

    def _settle(self, result: CheckResult) -> CheckResult:
        facts = {"id": result.id, "outcome": result.outcome.value, "reason": result.reason}
        self._engine.emit(
            "check", **facts, seconds=result.seconds, comparisons=result.evidence["comparisons"]
        )
        return result

    def _result(self, check: CheckInfo) -> CheckResult:
        failing = {"two-fail": ("collective.all_gather", "p2p.ring"), "garbled": ("p2p.ring",)}
        fails = check.id in failing.get(self._mode, ())
        text = EVIL if self._mode == "garbled" else f"{check.id} was contradicted"
        return CheckResult(
            id=check.id,
            tier=check.tier,
            run=self.request.run,
            outcome=Outcome.FAIL if fails else Outcome.PASS,
            reason=text if fails else "",
            remedy=f"look at {check.id}" if fails else "",
            ranks=tuple(range(self.request.world)),
            seconds=0.25,
            evidence={"comparisons": 48, "rate": float("nan"), "shapes": [(2, 3)]},
        )


def finding(name: str, severity: Severity = Severity.BLOCKING) -> Finding:
    """A finding of the engine."""
    words = {key: f"{name} {key}" for key in ("what", "got", "expected", "remedy")}
    return Finding(id=name, severity=severity, **words)


def install() -> None:
    """Put the fakes into this process's `cpinfra.node.job`."""
    vars(job).update(Engine=FakeEngine, Supervisor=FakeSupervisor)


def put_in(
    monkeypatch: pytest.MonkeyPatch,
    *,
    engine: type[FakeEngine] = FakeEngine,
    supervisor: type[FakeSupervisor] = FakeSupervisor,
) -> None:
    """The same until the end of a test."""
    monkeypatch.setattr(job, "Engine", engine)
    monkeypatch.setattr(job, "Supervisor", supervisor)


if __name__ == "__main__":
    install()
    sys.exit(main())

"""The main path, read from top to bottom: what was asked, where it runs, the proof, the report.

Standard library only up to the start of the zygote; what is heavy is imported while the zygote imports torch.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

from .asked import ProveRequest
from .mesh import UsageProblem
from .outcome import Finding
from .outcome import Severity
from .proof import run_folder
from .proof.run_folder import RunFolder
from .proof.supervisor import Proof
from .proof.supervisor import ProofRequest
from .proof.supervisor import Supervisor
from .settle import Settled
from .settle import settle

if TYPE_CHECKING:
    from .conclude import ProveAnswer

__all__ = ["ProveRequest", "Reporter", "UsageProblem", "prove"]


class Reporter(Protocol):
    """Who tells the user, while it happens. Its methods never raise."""

    def announce(self, text: str) -> None:
        """Show a sentence before anything runs; must import nothing heavy."""

    def engine_started(self) -> None:
        """The zygote is importing torch: now is the time for heavy imports."""

    def event(self, event: dict[str, Any]) -> None:
        """One event of the engine: `t` in seconds, `event` its name. May come before `engine_started`."""


def prove(request: ProveRequest, reporter: Reporter) -> ProveAnswer:
    """Run the checks on ranks, judge them, and write the report.

    Raises:
        UsageProblem: the request makes no sense; it holds every mistake, and nothing was written.
    """
    settled = settle(request, os.environ)
    reporter.announce(f"device: {settled.device.says}")
    folder = _folder(settled.numbers.run_dir)
    try:
        if settled.device.obstacle is not None:
            return _nothing_run(settled, folder)
        reporter.announce(f"target interpreter: {settled.target.python} ({settled.target.why})")
        reporter.announce(f"ranks: {settled.mesh.world_size} ({settled.mesh}); run folder: {folder.path}")
        return _run(settled, folder, reporter)
    finally:
        folder.close()


def _folder(run_dir: Path | None) -> RunFolder:
    try:
        return run_folder.create(run_dir, os.environ)
    except run_folder.RunFolderError as error:
        raise UsageProblem([f"{error}; give a folder that can be written with --run-dir"]) from error


def _nothing_run(settled: Settled, folder: RunFolder) -> ProveAnswer:
    from .conclude import conclude

    return conclude(settled, folder, None)


def _run(settled: Settled, folder: RunFolder, reporter: Reporter) -> ProveAnswer:
    try:
        with Supervisor(_proof_request(settled), folder, reporter.event) as supervisor:
            reporter.engine_started()
            from .conclude import conclude

            # Written before the engine is torn down: what goes wrong then cannot take the report along.
            return conclude(settled, folder, supervisor.run())
    except Exception as error:  # noqa: BLE001 - an error of ours leaves a report too, and is no verdict on hardware
        from .conclude import conclude

        return conclude(settled, folder, Proof(findings=[_bug(error)]))


def _proof_request(settled: Settled) -> ProofRequest:
    dp, cp0, cp1 = settled.mesh.shape
    return ProofRequest(
        run=settled.facts.id,
        python=settled.target.python,
        dp=dp,
        cp0=cp0,
        cp1=cp1,
        device=settled.device.kind,
        gpu_uuids=tuple(gpu.uuid for gpu in settled.device.gpus[: settled.mesh.world_size]),
        checks=settled.selection.run,
        faults=settled.faults,
        budget_s=settled.numbers.budget_s,
    )


def _bug(error: Exception) -> Finding:
    return Finding(
        id="cpinfra-bug",
        severity=Severity.BLOCKING,
        what="cpinfra itself failed",
        got="".join(traceback.format_exception(error)),
        expected="no error of ours",
        remedy="this is an error of cpinfra, not of your machine: please report it with the run folder",
    )

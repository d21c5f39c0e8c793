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
from .outcome import BUG_REMEDY
from .outcome import Finding
from .outcome import Severity
from .proof import run_folder
from .proof.contract import Proof
from .proof.contract import ProofRequest
from .proof.run_folder import RunFolder
from .proof.supervisor import Supervisor
from .settle import Settled
from .settle import settle

if TYPE_CHECKING:
    from .conclude import ProveAnswer

__all__ = ["ProveRequest", "Reporter", "UsageProblem", "prove"]


_WORTH_KEEPING = ("forked", "check", "hang")
"""Events after which the report on disk is renewed: what is known survives the death of anybody."""


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
            return _conclude(settled, folder, None)
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


def _conclude(settled: Settled, folder: RunFolder, proof: Proof | None, *, final: bool = True) -> ProveAnswer:
    from .conclude import conclude  # imports pydantic: not before the zygote is started

    return conclude(settled, folder, proof, final=final)


def _run(settled: Settled, folder: RunFolder, reporter: Reporter) -> ProveAnswer:
    def take(event: dict[str, Any]) -> None:
        reporter.event(event)
        if event["event"] in _WORTH_KEEPING:
            _keep(settled, folder, supervisor.proof)

    supervisor = Supervisor(_proof_request(settled), folder, take)
    try:
        with supervisor:
            reporter.engine_started()
            _keep(settled, folder, supervisor.proof)  # also imports pydantic, while the zygote imports torch
            supervisor.run()
    except Exception as error:  # noqa: BLE001 - an error of ours leaves a report too, and is no verdict on hardware
        supervisor.proof.findings.append(_bug(error))
    return _conclude(settled, folder, supervisor.proof)  # once all has ended: what would not is in it


def _keep(settled: Settled, folder: RunFolder, proof: Proof) -> None:
    """Put what is known by now on disk; what goes wrong here must not end the run that it is about."""
    try:
        _conclude(settled, folder, proof, final=False)
    except Exception as error:  # noqa: BLE001 - said among the findings of the run
        folder.note(f"a report of the unfinished run: {type(error).__name__}: {error}")


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
        remedy=BUG_REMEDY,
    )

"""`selftest`, read from top to bottom: where it runs, every fault planted, the table.

Standard library only up to the start of the zygote, as in `build.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from typing import Any

from .mesh import UsageProblem
from .node.reporter import Reporter
from .node.reporter import folder_of_run
from .node.selftest import ROW_EVENTS
from .node.selftest import SelfTestJob
from .planning.asked import SelfTestRequest
from .planning.settle import Settled
from .planning.settle import settle_selftest
from .proof.interrupts import Interrupts
from .proof.run_folder import RunFolder

if TYPE_CHECKING:
    from .judging.selftest import SelfTestAnswer

__all__ = ["SelfTestRequest", "UsageProblem", "selftest"]


def selftest(request: SelfTestRequest, reporter: Reporter) -> SelfTestAnswer:
    """Plant every fault, look whether it is noticed, and write the report into the run folder.

    Raises:
        UsageProblem: the request makes no sense; it holds every mistake, and nothing was written.
    """
    settled = settle_selftest(request, os.environ)
    reporter.announce(f"device: {settled.device.says}")
    folder = folder_of_run(settled.numbers.run_dir, os.environ)
    try:
        for run in settled.runs:
            reporter.announce(f"target interpreter: {settled.target.python} ({settled.target.why})")
            ranks = f"{run.mesh.world_size} ({run.mesh}) on {run.device}"
            reporter.announce(f"ranks: {ranks}; run folder: {folder.path}")
        with Interrupts():  # a signal that comes after the ranks waits until what was learnt is on disk
            job = _run(settled, folder, reporter)
            from .judging import selftest as judging

            return judging.conclude(settled, folder, job)
    finally:
        folder.close()


def _run(settled: Settled, folder: RunFolder, reporter: Reporter) -> SelfTestJob:
    """Test; what is known goes to disk as it goes."""

    def take(event: dict[str, Any]) -> None:
        reporter.event(event)
        if event["event"] in ROW_EVENTS:
            _keep(settled, folder, job)

    def meanwhile() -> None:
        reporter.engine_started()
        _keep(settled, folder, job)  # also imports pydantic, while the zygote imports torch

    job = SelfTestJob(settled, folder, take, meanwhile)
    job.run()
    return job


def _keep(settled: Settled, folder: RunFolder, job: SelfTestJob) -> None:
    """Put what is known by now on disk; what goes wrong here must not end the test that it is about."""
    from .judging import selftest as judging

    try:
        judging.interim(settled, folder, job)
    except Exception as error:  # noqa: BLE001 - said among the findings of the test
        folder.note(f"a report of the unfinished self-test: {type(error).__name__}: {error}")

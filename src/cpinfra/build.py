"""The main path, read from top to bottom: what was asked, where it runs, the proof, the report.

Standard library only up to the start of the zygote; what is heavy is imported while the zygote imports torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from typing import Any

from .mesh import UsageProblem
from .node.job import Job
from .node.reporter import Reporter
from .node.reporter import folder_of_run
from .outcome import Role
from .planning.asked import BuildRequest
from .planning.asked import ProveRequest
from .planning.settle import Settled
from .planning.settle import settle
from .planning.settle import settle_build
from .proof.interrupts import Interrupts
from .proof.run_folder import RunFolder

if TYPE_CHECKING:
    from .judging.store import Answer
    from .node.learnt import Learnt

__all__ = ["BuildRequest", "ProveRequest", "Reporter", "UsageProblem", "build", "prove"]

_WORTH_KEEPING = ("forked", "check", "hang")
"""Events after which the report on disk is renewed: what is known survives the death of anybody."""
_FOR = {Role.PARTIAL: ", which proves nothing", Role.REHEARSAL: " as a rehearsal, for information"}
"""What a run that cannot prove is made for."""


def prove(request: ProveRequest, reporter: Reporter) -> Answer:
    """Run the checks on ranks, judge them, and write the report into the run folder.

    Raises:
        UsageProblem: the request makes no sense; it holds every mistake, and nothing was written.
    """
    return _carry_out(settle(request, os.environ), reporter)


def build(request: BuildRequest, reporter: Reporter) -> Answer:
    """The main job: inventory, plan, software, proof, and the record in the docs folder.

    Raises:
        UsageProblem: as for `prove`.
    """
    return _carry_out(settle_build(request, os.environ), reporter)


def _carry_out(settled: Settled, reporter: Reporter) -> Answer:
    reporter.announce(f"device: {settled.device.says}")
    folder = folder_of_run(settled.numbers.run_dir, os.environ)
    try:
        if settled.runs:
            reporter.announce(f"target interpreter: {settled.target.python} ({settled.target.why})")
            reporter.announce(f"ranks: {_runs(settled)}; run folder: {folder.path}")
        with Interrupts():  # a signal that comes after the ranks waits until what was learnt is on disk
            return _concluded(settled, folder, _learn(settled, folder, reporter))
    finally:
        folder.close()


def _runs(settled: Settled) -> str:
    return ", then ".join(
        f"{run.mesh.world_size} ({run.mesh}) on {run.device}{_FOR.get(run.role, '')}" for run in settled.runs
    )


def _learn(settled: Settled, folder: RunFolder, reporter: Reporter) -> Learnt:
    """Make the runs; what is known goes to disk as they go."""

    def take(event: dict[str, Any]) -> None:
        reporter.event(event)
        if event["event"] in _WORTH_KEEPING:
            _keep(settled, folder, job.learnt)

    def meanwhile() -> None:
        reporter.engine_started()
        from .judging import store  # noqa: F401 - without pydantic there is no use in going on

        _keep(settled, folder, job.learnt)  # also imports pydantic, while the zygote imports torch

    with Job(settled, folder, take, meanwhile) as job:
        job.run()
    return job.learnt


def _concluded(settled: Settled, folder: RunFolder, learnt: Learnt) -> Answer:
    from .judging import store

    if settled.wishes is None:
        return store.conclude(settled, folder, learnt)
    return store.record(settled, folder, learnt, settled.wishes.docs)


def _keep(settled: Settled, folder: RunFolder, learnt: Learnt) -> None:
    """Put what is known by now on disk; what goes wrong here must not end the run that it is about."""
    from .judging import store

    try:
        store.interim(settled, folder, learnt)
    except Exception as error:  # noqa: BLE001 - said among the findings of the run
        folder.note(f"a report of the unfinished run: {type(error).__name__}: {error}")

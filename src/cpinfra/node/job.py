"""One settled request on its way: the runs, the host, the models. What is learnt grows as it goes."""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Callable
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ..hardware import host
from ..outcome import BUG_REMEDY
from ..outcome import Finding
from ..outcome import Severity
from ..planning.settle import PlannedRun
from ..planning.settle import Settled
from ..proof import delivery
from ..proof.contract import Progress
from ..proof.contract import ProofRequest
from ..proof.engine import Engine
from ..proof.environment import zygote_environment
from ..proof.interrupts import Interrupted
from ..proof.interrupts import Interrupts
from ..proof.run_folder import RunFolder
from ..proof.supervisor import Supervisor
from ..software import why
from ..software.models import ModelImports
from ..software.models import ModelResult
from ..software.models import not_tried
from .learnt import Learnt

_LOST_AT_IMPORT = ("torch-import-died", "torch-import-hung")
"""Findings that do not say why."""
_NO_TORCH = (*_LOST_AT_IMPORT, "torch-import-failed", "torch-missing")
_MAY_BE_ASKED = ("gpus", "absent", "hidden", "no-driver")
"""What the driver must have said for torch to be asked about CUDA: in other cases it might hang as well, or
would answer for a machine whose GPUs were hidden from it because others use them."""
_REASONS_MAX = 12
"""Findings on why torch does not import, at most."""


class Job:
    """Carries out a settled request; leaving it ends everything that it started."""

    def __init__(
        self, settled: Settled, folder: RunFolder, progress: Progress, meanwhile: Callable[[], None]
    ) -> None:
        """Start nothing yet.

        Args:
            settled: what is to be done.
            folder: where logs go.
            progress: takes the events, as they happen.
            meanwhile: called once, while the first zygote imports torch.
        """
        self.learnt = Learnt()
        self._settled = settled
        self._folder = folder
        self._progress = progress
        self._callback = meanwhile
        self._models: ModelImports | None = None
        self._interrupts = Interrupts()

    def __enter__(self) -> Job:
        self._interrupts.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._models is not None:
                self._models.close()
        finally:
            self._interrupts.__exit__(kind, error, trace)

    def run(self) -> None:
        """One set of ranks after the other, then wait for the models; all until the user has had enough."""
        try:
            for planned in self._settled.runs:
                self._interrupts.raise_if_any()
                if not self.learnt.interrupted:
                    self._make(planned)
            self._await_models()
            self._interrupts.raise_if_any()
        except Interrupted as interrupt:
            self.learnt.interrupted_beside = interrupt.name
            self._tell("interrupted", signal=interrupt.name)
        self.learnt.models = self._model_results()

    def _make(self, planned: PlannedRun) -> None:
        first = not self.learnt.proofs
        folder = self._folder if first else self._folder.rehearsal()
        request = request_of(self._settled, planned)
        engine = Engine(request, folder, self._progress, self._beside)
        supervisor = Supervisor(engine, request)
        self.learnt.proofs[planned.id] = supervisor.proof
        try:
            with engine:
                if first:
                    self._meanwhile()
                self.learnt.proofs[planned.id] = supervisor.run()
        except Exception as error:  # noqa: BLE001 - an error of ours leaves a report too, and is no verdict on hardware
            self.learnt.proofs[planned.id].findings.append(bug(error))
        self._ask_why(planned)

    def _ask_why(self, planned: PlannedRun) -> None:
        """Where the import of torch ended or hung without a word: find out why, once."""
        found = self.learnt.proofs[planned.id].findings
        worth = _NO_TORCH if self._settled.probing else _LOST_AT_IMPORT
        if self.learnt.why is not None or self.learnt.interrupted or not {f.id for f in found} & set(worth):
            return
        uuids = tuple(gpu.uuid for gpu in planned.gpus)
        try:
            worker = delivery.stage(self._folder.path)
        except (OSError, delivery.DeliveryError):
            return  # the run has said so
        environment = zygote_environment(os.environ, secrets.token_hex(8), gpu_uuids=uuids)
        python, tick = self._settled.target.python, self._interrupts.raise_if_any
        try:
            self.learnt.why = why.ask(python, worker, environment=environment, tick=tick)
        except Interrupted as interrupt:
            self.learnt.interrupted_beside = interrupt.name
            return
        found += why.findings(self.learnt.why)[:_REASONS_MAX]

    def _meanwhile(self) -> None:
        """While the zygote imports torch: the host, and the start of the models."""
        wishes = self._settled.wishes
        if wishes is not None:
            self.learnt.host = host.describe(host.workdir(wishes.workdir, os.environ))
            self._start_models(wishes.models)
        self._callback()

    def _start_models(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            worker = delivery.stage(self._folder.path)
        except (OSError, delivery.DeliveryError):
            return  # the supervisor needs the same file, and says what is wrong with it
        self._models = ModelImports(
            names, python=self._settled.target.python, worker=worker, environment=os.environ
        )
        self._models.start()

    def _beside(self) -> None:
        """What goes on beside the ranks."""
        if self._models is not None:
            self._models.poll()

    def _await_models(self) -> None:
        if self._models is None or self.learnt.interrupted or self._models.poll():
            return
        self._tell("models", waiting=list(self._models.unfinished))
        self._models.wait(self._interrupts.raise_if_any)

    def _model_results(self) -> tuple[ModelResult, ...]:
        """One for each model that was asked for, tried or not."""
        if self._models is not None:
            return self._models.results()
        names = self._settled.wishes.models if self._settled.wishes is not None else ()
        return not_tried(names, self._settled.target.python)

    def _tell(self, event: str, **facts: Any) -> None:
        self._progress(self._folder.event(event, **facts))


def request_of(settled: Settled, planned: PlannedRun) -> ProofRequest:
    """What is asked of the engine for one run."""
    dp, cp0, cp1 = planned.mesh.shape
    return ProofRequest(
        run=planned.id,
        python=settled.target.python,
        dp=dp,
        cp0=cp0,
        cp1=cp1,
        device=planned.device,
        gpu_uuids=tuple(gpu.uuid for gpu in planned.gpus),
        checks=planned.selection.run,
        faults=settled.faults,
        budget_s=settled.numbers.budget_s,
        kernels=_wants_kernels(settled, planned),
    )


def _wants_kernels(settled: Settled, planned: PlannedRun) -> bool:
    """Also a probe without a GPU, for torch's opinion."""
    if settled.probing:
        answer = settled.device.answer
        return answer is not None and answer.state in _MAY_BE_ASKED
    return planned.device == "cuda" and settled.wishes is not None


def bug(error: Exception) -> Finding:
    """An exception of ours that left the engine."""
    return Finding(
        id="cpinfra-bug",
        severity=Severity.BLOCKING,
        what="cpinfra itself failed",
        got="".join(traceback.format_exception(error)),
        expected="no error of ours",
        remedy=BUG_REMEDY,
    )

"""The self-test of one machine: its engine, and what is told of it. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..outcome import Finding
from ..planning.settle import Settled
from ..proof.contract import Progress
from ..proof.engine import Engine
from ..proof.run_folder import RunFolder
from ..proof.selftest import SelfTest
from ..proof.selftest import Tested
from .job import bug
from .job import request_of

ROW_EVENTS = ("control", "twin")
_TOLD = ("start", "software", "imported", "interrupted", "end", *ROW_EVENTS)
"""Events that a person is told: what befalls ranks on purpose is not among them."""


class SelfTestJob:
    """Carries out a settled self-test."""

    def __init__(
        self, settled: Settled, folder: RunFolder, progress: Progress, meanwhile: Callable[[], None]
    ) -> None:
        """Start nothing yet.

        Args:
            settled: what is to be done.
            folder: where logs go.
            progress: takes the events that a person is told, as they happen.
            meanwhile: called once, while the zygote imports torch.
        """
        self.tested = Tested()
        self._settled = settled
        self._folder = folder
        self._progress = progress
        self._meanwhile = meanwhile
        self._engine: Engine | None = None
        self._bugs: list[Finding] = []

    @property
    def findings(self) -> list[Finding]:
        """What was noticed of the interpreter, what befell ranks and blocks, and errors of ours."""
        of_engine = self._engine.findings if self._engine is not None else ()
        return [*of_engine, *self.tested.findings, *self._bugs]

    def run(self) -> None:
        """Test, where there is anything to run on."""
        for planned in self._settled.runs:
            request = request_of(self._settled, planned)
            misfits = [(omitted.check, omitted.reason) for omitted in planned.selection.misfits]
            self._engine = Engine(request, self._folder, self._tell)
            try:
                with self._engine as engine:
                    self._meanwhile()
                    SelfTest(engine, request, misfits, self._settled.twins, self.tested).run()
            except Exception as error:  # noqa: BLE001 - an error of ours leaves a report too, and is no miss
                self._bugs.append(bug(error))

    def _tell(self, event: dict[str, Any]) -> None:
        if event["event"] in _TOLD:
            self._progress(event)

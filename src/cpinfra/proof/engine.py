"""The engine: one zygote with all that sets of ranks need of it, from its start to the end of everything.

It imports torch once; proofs are run on it one after the other, each by a `Supervisor`.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ..outcome import Finding
from ..outcome import Severity
from ..worker import children
from ..worker import node_local
from ..worker import processes
from ..worker.channel import ChannelError
from ..worker.channel import Message
from ..worker.spec import GenerationSpec
from . import delivery
from . import findings
from . import run_findings
from .catalogue import CheckInfo
from .contract import Progress
from .contract import Proof
from .contract import ProofRequest
from .deadlines import Patience
from .deadlines import budgets
from .environment import zygote_environment
from .generation import Generation
from .interrupts import Interrupts
from .run_folder import RunFolder
from .startup import StartFailure
from .startup import Startup
from .startup import output_of
from .startup import stack_of
from .zygote import ZygoteProcess

_TURN_S = 0.02
_KERNELS_GRACE_S = 30.0
"""Past the bound of the children themselves."""


class ZygoteLost(Exception):
    """The zygote is gone, or no longer speaks our protocol."""


class Engine:
    """Entering it starts the zygote; leaving it ends everything that was started."""

    def __init__(
        self,
        request: ProofRequest,
        folder: RunFolder,
        progress: Progress,
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            request: a proof that will be asked for: with which interpreter, on what, how many ranks.
            folder: where logs go.
            progress: takes the events, as they happen.
            beside: called at every turn, some tens of times a second, to look after what goes on beside.
        """
        self.request = request
        self.folder = folder
        self.budgets = budgets(request.world, request.device, request.budget_s)
        self.proof = Proof()
        """Takes what is learnt: the newest that was begun."""
        self._beside = beside
        self._progress = progress
        self._interrupts = Interrupts()
        self._process: ZygoteProcess | None = None
        self._adopted_before = False
        self.findings: list[Finding] = []
        """What was noticed of the interpreter and of what this engine runs on: it holds for every proof."""
        self._generations = 0
        self._ordered: set[str] = set()
        self._imported: set[str] = set()
        """Modules that the zygote was told to import, and those that it has imported."""
        self._salt = secrets.randbelow(1 << 30)

    def __enter__(self) -> Engine:
        self._interrupts.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._process is not None:
                left = self._process.close(hurry=self._interrupts.hurry)
                self.emit("end", processes_left=left)
                if left:
                    self.note(run_findings.processes_left(self.request.python, left))
            if self.folder.troubles:
                self.note(run_findings.logs_incomplete(self.folder.troubles, self.folder.errnos))
        finally:
            processes.adopt_orphans(self._adopted_before)
            self._interrupts.__exit__(kind, error, trace)

    def _start(self) -> None:
        """Start the zygote, so that it imports torch while the caller imports what it needs."""
        request = self.request
        node_local.sweep()
        self._adopted_before = processes.adopt_orphans(True)
        cookie = secrets.token_hex(8)
        environment = zygote_environment(os.environ, cookie, gpu_uuids=request.gpu_uuids)
        self.folder.mark("import")
        self.emit("start", python=request.python, world_size=request.world, device=request.device)
        try:
            worker = delivery.stage(self.folder.path)
        except (OSError, delivery.DeliveryError) as error:
            self.note(findings.not_staged(request.python, self.folder.path, error))
            return
        log = self.folder.path / "zygote.log"
        try:
            self._process = ZygoteProcess(request.python, worker, environment, cookie, log)
        except OSError as error:
            self.note(findings.not_executable(request.python, error))
            return
        self._process.wake_on(self._interrupts.fd)

    @property
    def zygote(self) -> ZygoteProcess:
        """The zygote.

        Raises:
            ZygoteLost: it could not be started.
        """
        if self._process is None:
            raise ZygoteLost("it was not started")
        return self._process

    @property
    def obstacle(self) -> Finding | None:
        """The newest finding that keeps every proof on this engine from going on."""
        blocking = [finding for finding in self.findings if finding.severity is Severity.BLOCKING]
        return blocking[-1] if blocking else None

    def begin(self) -> Proof:
        """A proof that knows what the engine knows; what is learnt from now on goes into it."""
        known = self.proof
        self.proof = Proof(
            software=known.software,
            kernels=known.kernels,
            cuda_usable=known.cuda_usable,
            findings=list(self.findings),
        )
        return self.proof

    def note(self, finding: Finding) -> None:
        """Take a finding that concerns every proof on this engine."""
        self.findings.append(finding)
        self.proof.findings.append(finding)

    def emit(self, event: str, **facts: Any) -> None:
        """Tell of something that happened."""
        self._progress(self.folder.event(event, **facts))

    def ready(self) -> bool:
        """Hear what torch the interpreter has, and try kernels; whether ranks may be started.

        Raises:
            Interrupted: by the user.
            ZygoteLost: the zygote is gone.
        """
        if self._process is None or self.obstacle is not None:
            return False
        if self.proof.software is None and self._hear_software():
            self._try_kernels()
        return self.obstacle is None

    def _hear_software(self) -> bool:
        tick = self._interrupts.raise_if_any
        request = self.request
        startup = Startup(zygote=self.zygote, python=request.python, budgets=self.budgets, tick=tick)
        try:
            answer = startup.software()
        except StartFailure as failure:
            self.note(failure.finding)
            return False
        self.proof.software = answer["software"]
        self.emit("software", seconds=answer["seconds"], **answer["software"])
        device, backend = request.device, request.backend
        for finding in findings.of_torch(request.python, answer["software"], device=device, backend=backend):
            self.note(finding)
        if answer["unsafe"]:
            self.note(run_findings.fork_unsafe(request.python, answer["unsafe"]))
        return self.obstacle is None

    def _try_kernels(self) -> None:
        """Run real kernels on each GPU before anything communicates, each in a child of its own."""
        if not self.request.kernels:
            return
        count = len(self.request.gpu_uuids)
        self.folder.mark("kernels")
        self.zygote.order("kernels", count=count, timeout_s=self.budgets.kernels_s)
        waves = -(-(count + 1) // children.AT_ONCE)  # one more child asks whether CUDA is usable
        deadline = time.monotonic() + waves * self.budgets.kernels_s + _KERNELS_GRACE_S
        while self.proof.kernels is None:
            self.hear()
            if time.monotonic() > deadline:
                raise ZygoteLost("it did not come back from running kernels")

    def has(self, modules: Sequence[str]) -> bool:
        """Whether the zygote has imported all of these."""
        return set(modules) <= self._imported

    def start_import(self, modules: Sequence[str]) -> None:
        """Have the zygote import what it has not been told to import yet."""
        new = [module for module in dict.fromkeys(modules) if module not in self._ordered]
        if new:
            self._ordered.update(new)
            self.zygote.order("import", modules=new)

    def await_import(self, modules: Sequence[str]) -> None:
        """Wait until the zygote has these, while it makes any progress; a finding where it does not.

        Raises:
            Interrupted: by the user.
            ZygoteLost: the zygote is gone.
        """
        limits = self.budgets
        patience = Patience(self.zygote.pid, idle_s=limits.import_idle_s, max_s=limits.import_max_s)
        while self.obstacle is None:
            self.hear()
            if self.has(modules):
                return
            if patience.is_out():
                what, stack = ", ".join(modules), stack_of(self.zygote)
                waited_s, idle = patience.waited_s, patience.idle
                self.note(findings.import_hung(self.request.python, what, waited_s, idle, stack))

    def fork(self, request: ProofRequest, checks: Sequence[CheckInfo], faults: tuple[str, ...]) -> Generation:
        """Have the zygote fork a set of ranks for some of a request's checks."""
        self._generations += 1
        number = self._generations
        spec = GenerationSpec(
            generation=number,
            dp=request.dp,
            cp0=request.cp0,
            cp1=request.cp1,
            device=request.device,
            backend=request.backend,
            gpu_uuids=request.gpu_uuids,
            checks=tuple(check.id for check in checks),
            salt=self._salt + number,
            faults=faults,
            logs=str(self.folder.generation_logs(number)),
            patience_s=self.budgets.patience_s,
        )
        self.folder.mark(f"generation {number}")
        self.zygote.order("fork", spec=spec.as_json())
        return Generation(spec=spec, torch_path=str((self.proof.software or {}).get("torch_path", "")))

    def hear(self) -> list[Message]:
        """What the zygote and its ranks say within a turn; what is about the zygote itself is taken in.

        Raises:
            Interrupted: by the user.
            ZygoteLost: the zygote is gone.
        """
        self._interrupts.raise_if_any()
        self._beside()
        how = self.zygote.exit()  # asked first: of one that has ended, all that it said is in the pipe
        try:
            messages = self.zygote.hear(_TURN_S)
        except ChannelError as error:
            raise ZygoteLost(str(error)) from error
        if how is not None and not messages:
            raise ZygoteLost(f"it ended by {how}")
        for message in messages:
            self._take(message)
        return messages

    def _take(self, message: Message) -> None:
        event, python = message["event"], self.request.python
        if event == "bug":
            bug = run_findings.worker_bug(python, message["traceback"])
            self.note(findings.unless_gone(bug, self.zygote.worker))
        elif event == "import-failed":
            self.note(findings.import_failed(python, message))
        elif event == "kernels":
            self._note_kernels(message)
        elif event == "imported":
            self._imported.update(message["modules"])
            self.emit(**message)

    def _note_kernels(self, message: Message) -> None:
        answers = message["answers"]
        self.proof.kernels, self.proof.cuda_usable = answers, message["cuda_usable"]
        seconds = max((answer["seconds"] or 0.0 for answer in answers), default=0.0)
        right = sum(answer["right"] is True for answer in answers)
        self.emit("kernels", gpus=len(answers), right=right, seconds=seconds)
        stuck = [self.request.gpu_uuids[answer["index"]] for answer in answers if answer.get("stuck")]
        if stuck:  # no rank is put on a GPU that does not answer
            self.note(run_findings.kernels_hung(self.request.python, stuck))

    def lost(self, how: str) -> None:
        """Note that the zygote is gone; an error of ours that ended it has been noted already."""
        if all(finding.id not in (findings.BUG, findings.GONE) for finding in self.findings):
            output = output_of(self._process) if self._process is not None else ""
            self.note(run_findings.zygote_died(self.request.python, how, output))

"""The supervisor: starts the zygote, runs generations of ranks, and knows at every moment what holds.

It shares no fate with the ranks: it has no torch, waits for nothing without a bound, and what it has
learnt is on disk as it goes.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from ..outcome import CheckResult
from ..worker import children
from ..worker import node_local
from ..worker import processes
from ..worker.channel import ChannelError
from ..worker.channel import Message
from ..worker.ledger import LedgerError
from ..worker.progress import process_state
from ..worker.spec import GenerationSpec
from . import delivery
from . import findings
from . import results
from . import run_findings
from .attribution import Hang
from .catalogue import CheckInfo
from .contract import Progress
from .contract import Proof
from .contract import ProofRequest
from .deadlines import Patience
from .deadlines import budgets
from .environment import zygote_environment
from .generation import Generation
from .interrupts import Interrupted
from .interrupts import Interrupts
from .planted import Planted
from .run_folder import RunFolder
from .startup import StartFailure
from .startup import Startup
from .startup import output_of
from .startup import stack_of
from .watch import Watch
from .zygote import ZygoteDeaf
from .zygote import ZygoteProcess

_TURN_S = 0.02
_KERNELS_GRACE_S = 30.0
"""Past the bound of the children themselves."""


class ZygoteLost(Exception):
    """The zygote is gone, or no longer speaks our protocol."""


class Supervisor:
    """Runs one proof. Entering starts the zygote; leaving ends everything that was started."""

    def __init__(
        self,
        request: ProofRequest,
        folder: RunFolder,
        progress: Progress,
        beside: Callable[[], object] = lambda: None,
    ) -> None:
        """Start nothing yet.

        Args:
            request: what to prove.
            folder: where logs go.
            progress: takes the events, as they happen.
            beside: called at every turn, some tens of times a second, to look after what goes on beside.
        """
        self.request = request
        self._beside = beside
        self.proof = Proof()
        self._folder = folder
        self._progress = progress
        self._budgets = budgets(request.world, request.device, request.budget_s)
        self._interrupts = Interrupts()
        self._zygote: ZygoteProcess | None = None
        self._adopted_before = False
        self._generations = 0
        self._imported = False
        """Whether the zygote has what the later checks need."""
        self._stillborn = ""
        """How the ranks of a generation failed to start, if they did: another one would fare no better."""
        self._planted = Planted(request, self._budgets.operation_s)
        self._salt = secrets.randbelow(1 << 30)

    def __enter__(self) -> Supervisor:
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
            if self._zygote is not None:
                left = self._zygote.close(hurry=self._interrupts.hurry)
                self._emit("end", processes_left=left)
                if left:
                    self.proof.findings.append(run_findings.processes_left(self.request.python, left))
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
        self._folder.mark("import")
        self._emit("start", python=request.python, world_size=request.world, device=request.device)
        try:
            worker = delivery.stage(self._folder.path)
        except (OSError, delivery.DeliveryError) as error:
            self.proof.findings.append(findings.not_staged(request.python, error))
            return
        try:
            self._zygote = ZygoteProcess(
                request.python, worker, environment, cookie, self._folder.path / "zygote.log"
            )
        except OSError as error:
            self.proof.findings.append(findings.not_executable(request.python, error))
            return
        self._zygote.wake_on(self._interrupts.fd)

    def run(self) -> Proof:
        """Run every check of the request; never raises for what a machine or a rank can do."""
        try:
            if self._zygote is not None and self._hear_software(self._zygote):
                self._try_kernels(self._zygote)
                if self._may_go_on:
                    self._run_batches(self._zygote)
        except Interrupted as interrupt:
            self.proof.interrupted = interrupt.name
            self._emit("interrupted", signal=interrupt.name)
        except (ZygoteLost, ZygoteDeaf, ChannelError) as lost:
            if all(finding.id != findings.BUG for finding in self.proof.findings):  # one would have ended it
                died = run_findings.zygote_died(self.request.python, str(lost), self._output())
                self.proof.findings.append(died)
        self._fill_unknown()
        if self.proof.obstacle is None and not self.proof.interrupted:
            self.proof.findings += self._planted.findings(self.proof)
        if self._folder.troubles:
            self.proof.findings.append(run_findings.logs_incomplete(self._folder.troubles))
        return self.proof

    def _hear_software(self, zygote: ZygoteProcess) -> bool:
        tick = self._interrupts.raise_if_any
        startup = Startup(zygote=zygote, python=self.request.python, budgets=self._budgets, tick=tick)
        try:
            answer = startup.software()
        except StartFailure as failure:
            self.proof.findings.append(failure.finding)
            return False
        self.proof.software = answer["software"]
        self._emit("software", seconds=answer["seconds"], **answer["software"])
        self.proof.findings += findings.of_torch(
            self.request.python,
            answer["software"],
            device=self.request.device,
            backend=self.request.backend,
        )
        if answer["unsafe"]:
            self.proof.findings.append(run_findings.fork_unsafe(self.request.python, answer["unsafe"]))
        return self.proof.obstacle is None

    def _try_kernels(self, zygote: ZygoteProcess) -> None:
        """Run real kernels on each GPU before anything communicates, each in a child of its own."""
        if not self.request.kernels:
            return
        count = len(self.request.gpu_uuids)
        self._folder.mark("kernels")
        zygote.order("kernels", count=count, timeout_s=self._budgets.kernels_s)
        waves = -(-(count + 1) // children.AT_ONCE)  # one more child asks whether CUDA is usable
        deadline = time.monotonic() + waves * self._budgets.kernels_s + _KERNELS_GRACE_S
        while self.proof.kernels is None:
            for message in self._hear(zygote, _TURN_S):
                self._take(None, message)
            if time.monotonic() > deadline:
                raise ZygoteLost("it did not come back from running kernels")

    def _run_batches(self, zygote: ZygoteProcess) -> None:
        """The checks that need nothing more first, while the zygote imports what the others need."""
        early = [check for check in self.request.checks if not check.needs]
        late = [check for check in self.request.checks if check.needs]
        modules = list(dict.fromkeys(module for check in late for module in check.needs))
        first = self._fork(zygote, early) if early else None
        if modules:
            zygote.order("import", modules=modules)
        self._run_all(zygote, early, first)
        if late and self._may_go_on:
            self._await_import(zygote, modules)
            self._run_all(zygote, late)

    def _run_all(
        self, zygote: ZygoteProcess, checks: Sequence[CheckInfo], generation: Generation | None = None
    ) -> None:
        """Run checks in one generation, and what a broken one leaves in another."""
        left = list(checks)
        while left and self._may_go_on:
            left = self._run_generation(zygote, generation or self._fork(zygote, left), left)
            generation = None

    @property
    def _may_go_on(self) -> bool:
        """Whether another generation could do better: not after one whose ranks could not even start."""
        return self.proof.obstacle is None and not self._stillborn

    def _await_import(self, zygote: ZygoteProcess, modules: Sequence[str]) -> None:
        """Wait until the zygote has what the later checks need, while it makes any progress."""
        budgets = self._budgets
        patience = Patience(zygote.pid, idle_s=budgets.import_idle_s, max_s=budgets.import_max_s)
        while self._may_go_on:
            for message in self._hear(zygote, _TURN_S):
                self._take(None, message)
            if self._imported:
                return
            if patience.is_out():
                what, stack = ", ".join(modules), stack_of(zygote)
                hung = findings.import_hung(
                    self.request.python, what, patience.waited_s, patience.idle, stack
                )
                self.proof.findings.append(hung)

    def _fork(self, zygote: ZygoteProcess, checks: Sequence[CheckInfo]) -> Generation:
        request = self.request
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
            faults=self._planted.to_plant(),
            logs=str(self._folder.generation_logs(number)),
            patience_s=self._budgets.patience_s,
        )
        self._folder.mark(f"generation {number}")
        zygote.order("fork", spec=spec.as_json())
        return Generation(spec=spec)

    def _run_generation(
        self, zygote: ZygoteProcess, generation: Generation, checks: Sequence[CheckInfo]
    ) -> list[CheckInfo]:
        """Watch one generation to its end; returns the checks that it left and that another may run."""
        watch = Watch(generation, self._budgets, zygote.order, lambda: process_state(zygote.pid))
        try:
            while not watch.over:
                for message in self._hear(zygote, _TURN_S):
                    self._take(generation, message)
                    self._judge_complete(generation, checks)
                watch.look(time.monotonic())
                self._tell_hang(watch)
        finally:
            generation.close()
        if watch.stopped:
            self.proof.findings.append(run_findings.zygote_stopped(self.request.python, watch.stopped))
            return []
        if watch.lost:
            raise ZygoteLost(watch.lost)
        return self._conclude(generation, checks, watch)

    def _tell_hang(self, watch: Watch) -> None:
        """Say who is to blame as soon as it is known, before the ranks are ended."""
        hang = watch.hang
        if hang is not None and not watch.told:
            watch.told = True
            self.proof.hang = self.proof.hang or hang
            self._keep_stacks(hang)
            self._emit("hang", **{**hang.as_json(), "stacks": None}, sentence=hang.sentence())

    def _keep_stacks(self, hang: Hang) -> None:
        """Beside the ranks' logs, where a person can read them."""
        for rank, text in hang.stacks.items():
            self._folder.write(f"generation-{self._generations}/rank-{rank}.stack", text)

    def _hear(self, zygote: ZygoteProcess, timeout_s: float) -> list[Message]:
        self._interrupts.raise_if_any()
        self._beside()
        how = zygote.exit()  # asked first: of one that has ended, all that it said is in the pipe
        try:
            messages = zygote.hear(timeout_s)
        except ChannelError as error:
            raise ZygoteLost(str(error)) from error
        if how is not None and not messages:
            raise ZygoteLost(f"it ended by {how}")
        return messages

    def _take(self, generation: Generation | None, message: Message) -> None:
        if generation is not None and message.get("generation") == generation.spec.generation:
            try:
                generation.absorb(message, time.monotonic())
            except (OSError, LedgerError) as error:
                raise ZygoteLost(f"the ledger of its ranks cannot be read: {error}") from error
        event, found = message["event"], self.proof.findings
        if event == "bug":
            found.append(run_findings.worker_bug(self.request.python, message["traceback"]))
        elif event == "import-failed":
            found.append(findings.import_failed(self.request.python, message))
        elif event == "kernels":
            self._note_kernels(message)
        elif event == "exited":
            self._emit(**message, by_us=generation is not None and generation.judged)
        else:
            self._note_progress(message)

    def _note_progress(self, message: Message) -> None:
        """What goes as it should, a planted fault that acts among it."""
        self._imported |= message["event"] == "imported"
        self.proof.forked |= message["event"] == "forked"
        is_first = message["event"] == "fired" and self._planted.note(message)
        if is_first or message["event"] in ("forked", "imported"):
            self._emit(**message)

    def _note_kernels(self, message: Message) -> None:
        answers = message["answers"]
        self.proof.kernels, self.proof.cuda_usable = answers, message["cuda_usable"]
        seconds = max((answer["seconds"] or 0.0 for answer in answers), default=0.0)
        right = sum(answer["right"] is True for answer in answers)
        self._emit("kernels", gpus=len(answers), right=right, seconds=seconds)
        stuck = [self.request.gpu_uuids[answer["index"]] for answer in answers if answer.get("stuck")]
        if stuck:  # no rank is put on a GPU that does not answer
            self.proof.findings.append(run_findings.kernels_hung(self.request.python, stuck))

    def _judge_complete(self, generation: Generation, checks: Sequence[CheckInfo]) -> None:
        """Judge each check as soon as the last rank has answered."""
        for check in checks:
            if check.id not in self.proof.results and generation.complete(check.id):
                self._settle(results.result_of(check, self.request.run, generation, None))

    def _settle(self, result: CheckResult) -> None:
        self.proof.results[result.id] = result
        facts = {"id": result.id, "outcome": result.outcome.value, "reason": result.reason}
        comparisons = result.evidence.get("comparisons", 0)
        self._emit("check", **facts, seconds=result.seconds, comparisons=comparisons)

    def _conclude(self, generation: Generation, checks: Sequence[CheckInfo], watch: Watch) -> list[CheckInfo]:
        """Judge what a broken generation leaves, and say what is still to be run."""
        if generation.refused is not None:
            refused = run_findings.refused(self.request.python, self.request.world, generation.refused)
            self.proof.findings.append(refused)
            return []
        left = [check for check in checks if check.id not in self.proof.results]
        if not left:
            self._note_troubles(generation)
            return []
        if not generation.answers and (watch.hang is None or watch.hang.check is None):
            return self._note_stillborn(left[0], generation, watch)
        first = next((check for check in left if watch.hang and check.id == watch.hang.check), left[0])
        self._settle(results.result_of(first, self.request.run, generation, watch.hang))
        return [check for check in left if check is not first]

    def _note_troubles(self, generation: Generation) -> None:
        """What ranks raised when all checks had been answered: no check can say it any more."""
        troubles = generation.troubles
        self.proof.findings += run_findings.after_all_checks(self.request.python, troubles)
        self.proof.broken_outside |= any(trouble["kind"] == "door" for trouble in troubles.values())

    def _note_stillborn(self, check: CheckInfo, generation: Generation, watch: Watch) -> list[CheckInfo]:
        """No rank got as far as a check: one result says why, the rest was not run."""
        if watch.hang is not None:
            self._stillborn = watch.hang.sentence()
            result = results.unknown(check, self.request.run, self._stillborn, watch.hang.remedy)
        else:
            result = results.troubled(check, self.request.run, generation.troubles)
            self._stillborn = result.reason
        self._settle(result)
        return []

    def _fill_unknown(self) -> None:
        """Every check asked for has a result: what did not run says why."""
        reason, remedy = results.why_not_run(self.proof, self._stillborn)
        for check in self.request.checks:
            if check.id not in self.proof.results:
                self.proof.results[check.id] = results.unknown(check, self.request.run, reason, remedy)

    def _output(self) -> str:
        return output_of(self._zygote) if self._zygote else ""

    def _emit(self, event: str, **facts: Any) -> None:
        self._progress(self._folder.event(event, **facts))

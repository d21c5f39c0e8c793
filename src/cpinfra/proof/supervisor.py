"""The supervisor: runs the generations of ranks of one proof, and knows at every moment what holds.

It shares no fate with the ranks: it has no torch, waits for nothing without a bound, and what it has
learnt is on disk as it goes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from ..outcome import CheckResult
from ..worker.channel import ChannelError
from ..worker.channel import Message
from ..worker.ledger import LedgerError
from ..worker.progress import process_state
from . import results
from . import run_findings
from .catalogue import CheckInfo
from .contract import Proof
from .contract import ProofRequest
from .engine import Engine
from .engine import ZygoteLost
from .generation import Generation
from .hang import Hang
from .interrupts import Interrupted
from .planted import Planted
from .watch import Watch
from .zygote import ZygoteDeaf

_SPARE_STARTS = 1
"""How many generations may hang before any check without being the last: a fault may pass."""


class Supervisor:
    """Runs one proof on an engine that has been entered."""

    def __init__(self, engine: Engine, request: ProofRequest) -> None:
        """Start nothing yet.

        Args:
            engine: where the ranks come from.
            request: what to prove: with the engine's interpreter and device.
        """
        self.request = request
        self.proof = engine.begin()
        self._engine = engine
        self._stillborn = ""
        """How the ranks of a generation failed to start, if they did: another one would fare no better."""
        self._spare_starts = _SPARE_STARTS
        self._planted = Planted(request, engine.budgets.operation_s)

    def run(self) -> Proof:
        """Run every check of the request; never raises for what a machine or a rank can do."""
        try:
            if self._engine.ready():
                self._run_batches()
        except Interrupted as interrupt:
            self.proof.interrupted = interrupt.name
            self._engine.emit("interrupted", signal=interrupt.name)
        except (ZygoteLost, ZygoteDeaf, ChannelError) as lost:
            self._engine.lost(str(lost))
        self._fill_unknown()
        if self.proof.obstacle is None and not self.proof.interrupted:
            self.proof.findings += self._planted.findings(self.proof)
        return self.proof

    def _run_batches(self) -> None:
        """The checks that need nothing more first, while the zygote imports what the others need."""
        early = [check for check in self.request.checks if self._engine.has(check.needs)]
        late = [check for check in self.request.checks if check not in early]
        modules = [module for check in late for module in check.needs]
        first = self._fork(early) if early else None
        self._engine.start_import(modules)
        self._run_all(early, first)
        if late and self._may_go_on:
            self._engine.await_import(modules)
            self._run_all(late)

    def _run_all(self, checks: Sequence[CheckInfo], generation: Generation | None = None) -> None:
        """Run checks in one generation, and what a broken one leaves in another."""
        left = list(checks)
        while left and self._may_go_on:
            left = self._run_generation(generation or self._fork(left), left)
            generation = None

    @property
    def _may_go_on(self) -> bool:
        """Whether another generation could do better: not after those whose ranks could not even start."""
        return self.proof.obstacle is None and not self._stillborn

    def _fork(self, checks: Sequence[CheckInfo]) -> Generation:
        return self._engine.fork(self.request, checks, self._planted.to_plant())

    def _run_generation(self, generation: Generation, checks: Sequence[CheckInfo]) -> list[CheckInfo]:
        """Watch one generation to its end; returns the checks that it left and that another may run."""
        zygote = self._engine.zygote
        watch = Watch(generation, self._engine.budgets, zygote.order, lambda: process_state(zygote.pid))
        try:
            while not watch.over:
                for message in self._engine.hear():
                    self._take(generation, message)
                    self._judge_complete(generation, checks)
                watch.look(time.monotonic())
                self._tell_slow(watch)
                self._tell_hang(generation, watch)
            self._planted.ended(generation)
        finally:
            generation.close()
        if watch.slows:
            self.proof.findings.append(run_findings.slow(watch.slows))
        if watch.stopped:
            self._engine.note(run_findings.zygote_stopped(self.request.python, watch.stopped))
            return []
        if watch.lost:
            raise ZygoteLost(watch.lost)
        return self._conclude(generation, checks, watch)

    def _tell_slow(self, watch: Watch) -> None:
        for slow in watch.slows:
            if slow not in self.proof.slows:
                self.proof.slows.append(slow)
                self._engine.emit("slow", **asdict(slow))
                self._told(slow.check)

    def _tell_hang(self, generation: Generation, watch: Watch) -> None:
        """Say who is to blame as soon as it is known, before the ranks are ended."""
        hang = watch.hang
        if hang is not None and not watch.told:
            watch.told = True
            self.proof.hangs.append(hang)
            self._keep_stacks(generation, hang)
            self._engine.emit("hang", **{**hang.as_json(), "stacks": None}, sentence=hang.sentence())
            self._told(hang.check)

    def _keep_stacks(self, generation: Generation, hang: Hang) -> None:
        """Beside the ranks' logs, where a person can read them; ranks that share one get it each."""
        for ranks, text in hang.stacks.items():
            for rank in ranks.split(","):
                name = f"generation-{generation.spec.generation}/rank-{rank}.stack"
                self._engine.folder.write(name, text)

    def _take(self, generation: Generation, message: Message) -> None:
        if message.get("generation") != generation.spec.generation:
            return
        try:
            generation.absorb(message, time.monotonic())
        except (OSError, LedgerError) as error:
            raise ZygoteLost(f"the ledger of its ranks cannot be read: {error}") from error
        event = message["event"]
        if event == "exited":
            self._engine.emit(**message, by_us=generation.judged)
        elif event == "forked":
            self.proof.forked = True
            self._engine.emit(**message)
        elif event == "fired":
            self._note_fired(message)

    def _note_fired(self, message: Message) -> None:
        """Take note that a planted fault acts; only the first time is told."""
        self.proof.fired.setdefault(message["fault"], {}).setdefault(
            message["check"], message.get("at_s", time.monotonic())
        )
        if self._planted.note(message):
            self._engine.emit(**message)

    def _judge_complete(self, generation: Generation, checks: Sequence[CheckInfo]) -> None:
        """Judge each check as soon as the last rank has answered."""
        for check in checks:
            if check.id not in self.proof.results and generation.complete(check.id):
                self._settle(results.result_of(check, self.request.run, generation, None))

    def _settle(self, result: CheckResult) -> None:
        self.proof.results[result.id] = result
        facts = {"id": result.id, "outcome": result.outcome.value, "reason": result.reason}
        comparisons = result.evidence.get("comparisons", 0)
        self._engine.emit("check", **facts, seconds=result.seconds, comparisons=comparisons)
        self._told(result.id)

    def _told(self, check: str | None) -> None:
        """Remember when the first word on a check was out: its hang or late rank, else its result."""
        self.proof.told_at_s.setdefault(check or "", time.monotonic())

    def _conclude(self, generation: Generation, checks: Sequence[CheckInfo], watch: Watch) -> list[CheckInfo]:
        """Judge what a broken generation leaves, and say what is still to be run."""
        if generation.refused is not None:
            self._engine.note(
                run_findings.refused(self.request.python, self.request.world, generation.refused)
            )
            return []
        left = [check for check in checks if check.id not in self.proof.results]
        if not left:
            self._note_troubles(generation)
            return []
        if not generation.answers and (watch.hang is None or watch.hang.check is None):
            return self._after_stillborn(left, generation, watch.hang)
        first = next((check for check in left if watch.hang and check.id == watch.hang.check), left[0])
        self._settle(results.result_of(first, self.request.run, generation, watch.hang))
        return [check for check in left if check is not first]

    def _note_troubles(self, generation: Generation) -> None:
        """What ranks raised when all checks had been answered: no check can say it any more."""
        troubles = generation.troubles
        self.proof.findings += run_findings.after_all_checks(self.request.python, troubles)
        self.proof.broken_outside |= any(trouble["kind"] == "door" for trouble in troubles.values())

    def _after_stillborn(
        self, left: list[CheckInfo], generation: Generation, hang: Hang | None
    ) -> list[CheckInfo]:
        """No rank got as far as a check: after a hang others may; else one result says why, the last."""
        if hang is not None and self._spare_starts:
            self._spare_starts -= 1
            return left
        if hang is not None:
            self._stillborn = hang.sentence()
            result = results.unknown(left[0], self.request.run, self._stillborn, hang.remedy)
        else:
            result = results.troubled(left[0], self.request.run, generation.troubles)
            self._stillborn = result.reason
        self._settle(result)
        return []

    def _fill_unknown(self) -> None:
        """Every check asked for has a result: what did not run says why."""
        reason, remedy = results.why_not_run(self.proof, self._stillborn)
        for check in self.request.checks:
            if check.id not in self.proof.results:
                self.proof.results[check.id] = results.unknown(check, self.request.run, reason, remedy)

"""Watches one generation: when to release it, when it is broken or stuck, and how it is ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from ..worker.ledger import Phase
from ..worker.progress import process_state
from . import stacks
from .attribution import attribute
from .deadlines import Budgets
from .evidence import Evidence
from .generation import Generation
from .hang import Hang
from .oom import OomWatch
from .pulse import Pulses
from .slowness import Slow
from .slowness import Slowness

_LOOK_EVERY_S = 0.05
_SETTLE_S = 0.3
"""After something broke: how long to hear nothing new from the others before judging."""
_SETTLE_MAX_S = 2.0
_STACKS_MAX_S = 0.5
_ASLEEP_S = 0.2
"""Beside a fault that is known, a rank that sleeps in an operation for this long is no accident; between
operations one that does for as long as these get at least, else it might only be late."""
_STACK_MAX_BYTES = 65536
_WORDS_MAX_BYTES = 8192
_GRACE_S = 0.3
"""Between asking ranks to leave and killing them: a GPU client should leave by itself if it can."""
_END_MAX_S = 10.0

Order = Callable[..., None]
Step = Callable[[float], None]


class Watch:
    """The supervisor's eye on one generation.

    Each `look` takes one step of: live, then over; or settle, stacks, judge, grace, kill, and over.
    """

    def __init__(
        self, generation: Generation, budgets: Budgets, order: Order, zygote_state: Callable[[], str]
    ) -> None:
        """Watch from now on.

        Args:
            generation: what is watched.
            budgets: how long each stage may take.
            order: sends an order to the zygote.
            zygote_state: the zygote's process state, one letter of proc(5).
        """
        self.over = False
        self.hang: Hang | None = None
        self.told = False
        self.lost = ""
        """Why the zygote must be given up: it did not do as ordered."""
        self.stopped = ""
        """Process state of a zygote that is stopped: then nothing can be said of its ranks."""
        self._generation = generation
        self._budgets = budgets
        self._order = order
        self._zygote_state = zygote_state
        self._stack_sizes: dict[int, int] = {}
        """What the ranks' files of stacks held before the last ones were asked for, in bytes."""
        self._asked_while_whole = False
        """Whether no rank had raised or died when stacks were asked for."""
        self._pulses = Pulses(generation, budgets)
        self._slowness = Slowness(budgets.load)
        self._oom = OomWatch()
        self._stuck: set[int] = set()
        self._step: Step = self._live
        self._since = time.monotonic()
        self._looked_at = 0.0
        self._news: tuple[int, ...] = ()
        self._news_at = 0.0

    @property
    def slows(self) -> list[Slow]:
        """Ranks that came late to an operation; of one that hung since, its hang says enough."""
        blamed = self.hang.culprit_ranks if self.hang else ()
        return [slow for slow in self._slowness.slows if slow.rank not in blamed]

    def look(self, now: float) -> None:
        """Take the step that is due, if any."""
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._take_pulses(now)
        self._step(now)

    def _take_pulses(self, now: float) -> None:
        self._looked_at = now
        self._pulses.look(now)
        if self._generation.ledger is not None:
            self._slowness.look(self._generation.ledger, self._pulses.by_rank)
            self._pulses.somebody_was_late = bool(self._slowness.slows)

    def _enter(self, step: Step, now: float) -> None:
        self._step, self._since = step, now

    def _live(self, now: float) -> None:
        generation = self._generation
        if generation.refused is not None:
            self.over = True
        elif not generation.pids:
            self._await_fork(now)
        elif generation.broken:
            self._news_at = now
            self._enter(self._settle, now)
        elif generation.all_gone:
            self._take_pulses(now)  # what came since the last look
            self.over = True
        else:
            self._release_if_done()
            self._look_for_stuck(now)

    def _await_fork(self, now: float) -> None:
        """Forking is milliseconds a rank, and nothing else was ordered before it."""
        if now - self._since > self._budgets.fork_s:
            self.lost = f"it did not fork the ranks within {self._budgets.fork_s:.0f} s"
            self.over = True

    def _release_if_done(self) -> None:
        """Once all have reported, let them close their groups; not before: peers would fail."""
        generation = self._generation
        if generation.all_reported and not generation.released and generation.ledger is not None:
            generation.released = True
            generation.ledger.phase = Phase.RELEASE

    def _look_for_stuck(self, now: float) -> None:
        if now > self._looked_at:
            return
        self._stuck = self._pulses.stuck()
        if self._stuck:
            self._ask_stacks(now)

    def _settle(self, now: float) -> None:
        """Let the others say what happened to them: who died first is not always who is to blame."""
        news = self._generation.news
        if news != self._news:
            self._news, self._news_at = news, now
        load = self._budgets.load
        quiet = now - self._news_at > _SETTLE_S * load and not self._is_somebody_late()
        if quiet or now - self._since > _SETTLE_MAX_S * load:
            self._ask_stacks(now)

    def _is_somebody_late(self) -> bool:
        """Whether a rank sleeps between operations, and not for so long that it will not come."""
        late = [rank for rank in self._pulses.between if rank not in self._generation.raised]
        idle_s = self._pulses.idle_s
        return any(idle_s[rank] < self._budgets.operation_least_s for rank in self._states(late, "S"))

    def _ask_stacks(self, now: float) -> None:
        self._stack_sizes = {rank: self._stack_size(rank) for rank in range(self._generation.world)}
        self._asked_while_whole = not self._generation.broken
        self._order("stacks", generation=self._generation.spec.generation)
        self._enter(self._await_stacks, now)

    def _await_stacks(self, now: float) -> None:
        complete = all(stacks.is_whole(self._stack(rank)) for rank in self._answering())
        if complete or now - self._since > _STACKS_MAX_S * self._budgets.load:
            self._judge(now)

    def _living(self) -> list[int]:
        return [rank for rank in range(self._generation.world) if rank not in self._generation.exits]

    def _answering(self) -> list[int]:
        """Living ranks that can run a signal handler and have opened their file."""
        return [rank for rank in self._states(self._living(), "RSD") if self._stack_file(rank).exists()]

    def _states(self, ranks: list[int], wanted: str) -> dict[int, str]:
        states = {rank: process_state(self._generation.pids[rank]) for rank in ranks}
        return {rank: state for rank, state in states.items() if state and state in wanted}

    def _judge(self, now: float) -> None:
        generation = self._generation
        if (state := self._zygote_state()) in ("T", "t"):
            self.stopped, self.over = state, True
            return
        self._take_pulses(now)
        disturbed = self._disturbed()
        # Who raised of the signal has moved, and is where it was all the same.
        self._stuck = (self._pulses.stuck() | (self._stuck & disturbed)) if self._stuck else set()
        if not self._stuck and not generation.broken:
            self._enter(self._live, now)  # late, but it moved while its stack was asked for
            return
        self.hang = attribute(self._evidence(disturbed))
        generation.judged = True
        if generation.ledger is not None:
            generation.ledger.phase = Phase.ABORT
        self._enter(self._grace, now)

    def _disturbed(self) -> set[int]:
        """Ranks in which torch raised after all of them, whole by then, had been asked for their stacks."""
        return set(self._generation.raised_in_torch) if self._asked_while_whole else set()

    def _evidence(self, disturbed: set[int]) -> Evidence:
        generation, states = self._generation, self._states(self._living(), "RSDTtZ")
        return Evidence(
            generation=generation,
            tracks={
                rank: track.reopened if rank in disturbed and track.calls else track
                for rank, track in generation.tracks().items()
            },
            states=states,
            stuck=self._stuck,
            stacks={rank: text for rank in range(generation.world) if (text := self._stack(rank))},
            now_ns=time.monotonic_ns(),
            still_s=self._pulses.still_s,
            asleep=self._asleep(),
            disturbed=disturbed,
            last_words={rank: self._last_words(rank) for rank in generation.exits},
            oom=self._oom.kills(),
        )

    def _asleep(self) -> list[int]:
        """Ranks that sleep, and for too long to be on their way anywhere."""
        between, least_s = self._pulses.between, self._budgets.operation_least_s
        asleep_s = {
            rank: least_s if rank in between else _ASLEEP_S * self._budgets.load for rank in self._living()
        }
        idle_s = self._pulses.idle_s
        return [rank for rank in self._states(self._living(), "S") if idle_s.get(rank, 0.0) >= asleep_s[rank]]

    def _last_words(self, rank: int) -> str:
        """The end of a rank's log; empty where it has none."""
        try:
            with (Path(self._generation.spec.logs) / f"rank-{rank}.log").open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _WORDS_MAX_BYTES))
                return log.read().decode(errors="replace")
        except OSError:
            return ""

    def _stack(self, rank: int) -> str:
        """The stack that was asked for last: faulthandler appends, and a rank may have been late before."""
        try:
            written = self._stack_file(rank).read_bytes()
        except OSError:
            return ""
        return written[self._stack_sizes.get(rank, 0) :][:_STACK_MAX_BYTES].decode(errors="replace")

    def _stack_size(self, rank: int) -> int:
        try:
            return self._stack_file(rank).stat().st_size
        except OSError:
            return 0

    def _stack_file(self, rank: int) -> Path:
        return Path(self._generation.folder or os.devnull) / f"rank-{rank}.stacks"

    def _grace(self, now: float) -> None:
        if self._generation.all_gone or now - self._since > _GRACE_S:
            self._order("kill", generation=self._generation.spec.generation)
            self._enter(self._killed, now)

    def _killed(self, now: float) -> None:
        if self._generation.all_gone:
            self.over = True
        elif now - self._since > _END_MAX_S:
            self.lost = f"its ranks did not end within {_END_MAX_S:.0f} s of being killed"
            self.over = True

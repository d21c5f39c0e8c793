"""How long each rank of a generation has stood still, and whether that is too long."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from ..worker.ledger import Head
from ..worker.ledger import Stage
from ..worker.progress import CLOCK_STEP_MAX_S
from ..worker.progress import Clock
from ..worker.progress import Starvation
from ..worker.progress import disk_reads_of
from ..worker.progress import process_state
from ..worker.progress import progress_of
from .deadlines import COMPUTING_TIMES
from .deadlines import PROGRESS_TIMES
from .deadlines import STOPPED_S
from .deadlines import Budgets
from .generation import Generation

_NOTICED_AFTER_S = 0.1
"""A rank that has stood still for this long is worth a look at its process and at who has no CPU."""

_TOGETHER = 0.9
"""Who has stood in a stage for this part of its budget came into it together with one whose time is up."""
_ASKED_EVERY_S_A_RANK = 0.003
"""The kernel is asked for every thread of every rank: the more there are, the less often."""


@dataclass(kw_only=True, slots=True)
class Pulse:
    """One rank, as the last look found it."""

    pid: int
    head: Head
    stage_at: float
    """When it was first seen in its stage, CLOCK_MONOTONIC seconds."""
    still: Clock = field(default_factory=Clock)
    """Since its last record."""
    idle: Clock = field(default_factory=Clock)
    """Since its last record, or other sign of life where one counts."""

    def look(self, released: bool, now: float, share: float) -> None:
        """Let the clocks go on, or begin again."""
        state = (self.head.stage, self.head.written, released)
        still_s = self.still.look(state, now, share)
        signs = self._signs() if still_s > _NOTICED_AFTER_S else ()
        self.idle.look((state, signs), now, share)

    def _signs(self) -> tuple[int, ...]:
        """Before it runs checks, a disk that it waits for; between operations, whatever it does.

        In an operation there is none: one that spins there for ever hangs too.
        """
        if self.head.stage < Stage.RUNNING:
            return disk_reads_of(self.pid)
        outside = self.head.stage is Stage.RUNNING and not self.head.inside
        return progress_of(self.pid) if outside else ()

    def is_past(self, budget_s: float) -> bool:
        """Whether it has stood still for too long."""
        times = COMPUTING_TIMES if self.head.stage is Stage.RUNNING else PROGRESS_TIMES
        return self.idle.still_s > budget_s or self.still.still_s > times * budget_s

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped, wherever it stands; that needs little patience."""
        return self.still.still_s > STOPPED_S and process_state(self.pid) in ("T", "t")


class Pulses:
    """Those of all living ranks."""

    def __init__(self, generation: Generation, budgets: Budgets) -> None:
        self.by_rank: dict[int, Pulse] = {}
        self._generation = generation
        self._budgets = budgets
        self._through_s: dict[Stage, float] = {}
        """Stage -> how long the slowest took of those that have left it."""
        self.somebody_was_late = False
        """Whether what an operation took may have been the wait for one rank."""
        self._slowest_s = 0.0
        """The slowest completed of those operations that ranks are in."""
        self._starvation = Starvation()
        self._share_now = 1.0
        self._asked_at = 0.0
        self._released = False
        """Whether the ranks had been told to leave at the last look."""

    @property
    def still_s(self) -> dict[int, float]:
        """How long each living rank has recorded nothing, in seconds that it could have used."""
        return {rank: pulse.still.still_s for rank, pulse in self.by_rank.items()}

    @property
    def idle_s(self) -> dict[int, float]:
        """How long each living rank has shown no sign of life, by the same clock."""
        return {rank: pulse.idle.still_s for rank, pulse in self.by_rank.items()}

    @property
    def between(self) -> set[int]:
        """Living ranks that run checks and are in no operation."""
        heads = {rank: pulse.head for rank, pulse in self.by_rank.items()}
        return {rank for rank, head in heads.items() if head.stage is Stage.RUNNING and not head.inside}

    def look(self, now: float) -> None:
        """See where every rank is, and how much of the time since the last look counts."""
        ledger = self._generation.ledger
        if ledger is None:
            return
        self._released = self._generation.released
        self._bury(now)
        share = self._share(now)
        for rank, pid in enumerate(self._generation.pids):
            if rank not in self._generation.exits:
                self._see(rank, pid, ledger.head(rank), now)
                self.by_rank[rank].look(self._released, now, share)
        heads = [pulse.head for pulse in self.by_rank.values() if pulse.head.inside]
        known = [head.slowest_s for head in heads if head.slowest_s is not None]
        # Who comes last waits for nobody: it alone has measured the operation itself.
        self._slowest_s = (min if self.somebody_was_late else max)(known, default=0.0)

    def stuck(self) -> set[int]:
        """Ranks that have stood still past their budget.

        If one of them is in an operation, so are those that have been in one for half of theirs: they came
        later, and waiting for them would tell no more. In a stage, those that came into it just after.
        """
        past = {rank for rank in self.by_rank if self._is_past(rank)}
        inside = any(self.by_rank[rank].head.inside for rank in past)
        stages = {self.by_rank[rank].head.stage for rank in past} - {Stage.RUNNING}
        for rank, pulse in self.by_rank.items():
            if (inside and pulse.head.inside and self._is_past(rank, part=0.5)) or (
                pulse.head.stage in stages and self._is_past(rank, part=_TOGETHER)
            ):
                past.add(rank)
        return past

    def _is_past(self, rank: int, part: float = 1.0) -> bool:
        pulse = self.by_rank[rank]
        if pulse.still.still_s <= 0:
            return False
        waits = (
            pulse.head.stage is Stage.REPORTED and rank in self._generation.reported and not self._released
        )
        return pulse.is_stopped or (not waits and pulse.is_past(self._budget_s(pulse) * part))

    def _budget_s(self, pulse: Pulse) -> float:
        """An operation's by what was slowest for any rank that is in one now: they are in it together."""
        head = pulse.head
        if head.inside and head.slowest_s is not None:
            head = replace(head, slowest_s=self._slowest_s)
        through_s = self._through_s.get(head.stage)
        return self._budgets.of(head, through_s=through_s)

    def _share(self, now: float) -> float:
        """Asked of the kernel only while somebody stands still: else nobody's clock counts anything."""
        if all(still_s <= _NOTICED_AFTER_S for still_s in self.still_s.values()):
            self._starvation, self._share_now, self._asked_at = Starvation(), 1.0, 0.0
        elif now - self._asked_at >= min(len(self.by_rank) * _ASKED_EVERY_S_A_RANK, CLOCK_STEP_MAX_S):
            pids = [pulse.pid for pulse in self.by_rank.values()]
            self._share_now, self._asked_at = self._starvation.share(pids, now), now
        return self._share_now

    def _see(self, rank: int, pid: int, head: Head, now: float) -> None:
        pulse = self.by_rank.setdefault(rank, Pulse(pid=pid, head=head, stage_at=now))
        if head.stage is not pulse.head.stage:
            self._leave_stages(pulse, head.stage, now)
            pulse.stage_at = now
        pulse.head = head

    def _bury(self, now: float) -> None:
        """Ranks that ended have no pulse; who ended well is through with all stages."""
        for rank, gone in self._generation.exits.items():
            pulse = self.by_rank.pop(rank, None)
            if pulse is not None and gone.expected:
                self._leave_stages(pulse, Stage.LEFT + 1, now)

    def _leave_stages(self, pulse: Pulse, upto: int, now: float) -> None:
        """Note how long the stages took that a rank is through with; between two looks, several."""
        took_s = now - pulse.stage_at
        for number in range(pulse.head.stage, upto):
            stage = Stage(number)
            self._through_s[stage] = max(took_s, self._through_s.get(stage, 0.0))

"""How long each stage may take, and how long to wait for one process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from ..worker.ledger import Head
from ..worker.ledger import Stage
from ..worker.progress import Clock
from ..worker.progress import progress_of

HELLO_IDLE_S = 20.0
HELLO_MAX_S = 60.0
IMPORT_IDLE_S = 20.0
IMPORT_MAX_S = 300.0
FORK_S = 30.0
KERNELS_S = 60.0
DEVICE_S = {"cpu": 5.0, "cuda": 60.0}
JOIN_S = {"cpu": 5.0, "cuda": 60.0}
LEAVE_S = {"cpu": 5.0, "cuda": 20.0}
SOON_S = 5.0
"""A stage that another rank is through with does not get less than this, however fast that one was."""
OUTSIDE_S = 5.0
OPERATION_LEAST_S = 1.0
FIRST_LEAST_S = {"cpu": 3.0, "cuda": 10.0}
"""NCCL connects its ranks and loads its kernels in the first operation."""
OPERATION_MOST_S = 60.0

TIMES_THE_SLOWEST = 20
"""How many times as long as the slowest that was seen something may take."""
TIMES_FIRST = 3
PROGRESS_TIMES = 6
"""How many times its budget a rank may stand where it is, as long as it shows signs of life."""
COMPUTING_TIMES = 3
"""The same where it runs checks: their own code, between operations, does not compute for long."""
STOPPED_S = 1.0
"""A rank in state T moves no more by itself; it is called stopped after this long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budgets:
    """Seconds without any progress after which a stage counts as hung."""

    hello_idle_s: float
    """Of an interpreter that has not said its first word, and neither computes nor reads."""
    hello_max_s: float
    import_idle_s: float
    """Of an import that neither computes nor reads: a cold file cache does, and is waited for."""
    import_max_s: float
    fork_s: float
    kernels_s: float
    """Of kernels on a GPU, the creation of its context included."""
    device_s: float
    join_s: float
    leave_s: float
    soon_s: float
    """Of a stage that another rank has left already, at least."""
    operation_s: float
    """Of a rank that runs checks and is in no operation; `--budget`, if given, for every operation."""
    is_fixed: bool
    """Whether the user gave `operation_s`: then nothing that was measured changes it."""
    operation_least_s: float
    first_least_s: float
    """At least this for a group's first operation, and for one of which none has completed yet."""
    operation_most_s: float
    load: float
    """How many times what a CPU carries well the ranks are; 1 at least."""

    def of(self, head: Head, *, through_s: float | None) -> float:
        """The budget of a rank where it stands.

        Args:
            head: where it is.
            through_s: how long the slowest rank took that has left this stage; None where none has.
        """
        if head.stage is Stage.RUNNING:
            return self._operation(head) if head.inside else self.operation_s
        base_s = self._stage(head.stage)
        if through_s is None:
            return base_s
        return min(base_s, max(self.soon_s, TIMES_THE_SLOWEST * through_s))

    def _stage(self, stage: Stage) -> float:
        if stage < Stage.JOINING:
            return self.device_s
        return self.join_s if stage < Stage.RUNNING else self.leave_s

    def _operation(self, head: Head) -> float:
        """Of the operation that a rank is in, by the slowest of the same that it has completed."""
        if self.is_fixed:
            return self.operation_s
        unknown = head.first or head.slowest_s is None
        times = TIMES_THE_SLOWEST * (TIMES_FIRST if head.first else 1)
        usual_s = times * (head.slowest_s or 0.0)
        return min(
            max(usual_s, self.first_least_s if unknown else self.operation_least_s), self.operation_most_s
        )

    @property
    def patience_s(self) -> float:
        """How long ranks wait by themselves: past every budget, so that the supervisor speaks first."""
        longest_s = max(self.device_s, self.join_s, self.operation_s)
        return max(PROGRESS_TIMES * longest_s, self.operation_most_s) + 60


def budgets(world: int, device: str, operation_s: float | None) -> Budgets:
    """The budgets of a run; those of ranks grow with the number of ranks that a CPU has to carry.

    Args:
        world: number of ranks.
        device: `cpu` or `cuda`.
        operation_s: the user's `--budget`, for one operation.
    """
    load = max(1.0, world / (4 * len(os.sched_getaffinity(0))))
    return Budgets(
        hello_idle_s=HELLO_IDLE_S,
        hello_max_s=HELLO_MAX_S,
        import_idle_s=IMPORT_IDLE_S,
        import_max_s=IMPORT_MAX_S,
        fork_s=FORK_S * load,
        kernels_s=KERNELS_S,
        device_s=DEVICE_S[device] * load,
        join_s=JOIN_S[device] * load,
        leave_s=LEAVE_S[device] * load,
        soon_s=SOON_S * load,
        operation_s=OUTSIDE_S * load if operation_s is None else operation_s,
        is_fixed=operation_s is not None,
        operation_least_s=OPERATION_LEAST_S * load,
        first_least_s=FIRST_LEAST_S[device] * load,
        operation_most_s=OPERATION_MOST_S * load,
        load=load,
    )


class Patience:
    """With one process: it may be slow as long as it does anything, but not for ever."""

    def __init__(self, pid: int, *, idle_s: float, max_s: float) -> None:
        self._pid = pid
        self._idle_s = idle_s
        self._max_s = max_s
        self._started = time.monotonic()
        self._clock = Clock()
        self.waited_s = 0.0
        self.idle = False
        """Whether it is out because the process neither computed nor read anything."""

    def is_out(self) -> bool:
        """Look at the process; whether there is nothing to wait for any more."""
        now = time.monotonic()
        self.waited_s = now - self._started
        self.idle = self._clock.look(progress_of(self._pid), now) > self._idle_s
        return self.idle or self.waited_s > self._max_s

"""How long each stage may take, and how long to wait for one process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from ..worker.ledger import Stage
from ..worker.progress import Clock
from ..worker.progress import progress_of

HELLO_IDLE_S = 20.0
HELLO_MAX_S = 60.0
IMPORT_IDLE_S = 20.0
IMPORT_MAX_S = 300.0
FORK_S = 30.0
KERNELS_S = 60.0
DEVICE_S = {"cpu": 10.0, "cuda": 60.0}
JOIN_S = {"cpu": 20.0, "cuda": 60.0}
OPERATION_S = 10.0
LEAVE_S = 20.0

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
    operation_s: float
    first_operation_s: float
    """Of a group's first operation, which connects its ranks."""
    leave_s: float

    def of(self, stage: Stage, *, first: bool, released: bool) -> float | None:
        """The budget of a rank in this stage; None where it waits for others by design.

        Args:
            stage: where the rank is.
            first: whether it is in a group's first operation.
            released: whether all have reported and were told to leave; the last of them may not do so.
        """
        running = self.first_operation_s if first else self.operation_s
        return {
            Stage.FORKED: self.device_s,
            Stage.DEVICE: self.device_s,
            Stage.JOINING: self.join_s,
            Stage.AGREEING: self.join_s,
            Stage.RUNNING: running,
            Stage.REPORTED: self.leave_s if released else None,
            Stage.LEAVING: self.leave_s,
            Stage.LEFT: self.leave_s,
        }[stage]

    @property
    def patience_s(self) -> float:
        """How long ranks wait by themselves: past every budget, so that the supervisor speaks first."""
        return 3 * max(self.device_s, self.join_s, self.operation_s, self.first_operation_s) + 60


def budgets(world: int, device: str, operation_s: float | None) -> Budgets:
    """Fixed budgets that grow with the number of ranks a CPU has to carry.

    Args:
        world: number of ranks.
        device: `cpu` or `cuda`.
        operation_s: the user's `--budget`, for one operation.
    """
    load = max(1.0, world / (4 * len(os.sched_getaffinity(0))))
    operation = operation_s if operation_s is not None else OPERATION_S * load
    return Budgets(
        hello_idle_s=HELLO_IDLE_S,
        hello_max_s=HELLO_MAX_S,
        import_idle_s=IMPORT_IDLE_S,
        import_max_s=IMPORT_MAX_S,
        fork_s=FORK_S * load,
        kernels_s=KERNELS_S,
        device_s=DEVICE_S[device] * load,
        join_s=JOIN_S[device] * load,
        operation_s=operation,
        first_operation_s=operation if operation_s is not None else 3 * operation,
        leave_s=LEAVE_S * load,
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

"""Control twins: planted faults in one rank's conduct, acting before the ledger hears of the call."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from collections.abc import Iterable

from .injection import Injection

FIRES_AT_CALL = 3
"""The call of the door at which a control twin acts: late enough that the group is known to work."""


class InjectedError(RuntimeError):
    """What the twin `raise` raises in place of the operation."""


class Control:
    """The control twins of one rank; each fires once."""

    def __init__(self, faults: Iterable[Injection], rank: int, fired: Callable[[str], None]) -> None:
        self._waiting = [fault for fault in faults if fault.rank == rank]
        self._fired = fired
        self._calls = 0

    def before_call(self) -> None:
        """Act, if this is the call to act at.

        Raises:
            InjectedError: the twin is `raise`.
        """
        self._calls += 1
        if self._calls != FIRES_AT_CALL:
            return
        for fault in self._waiting:
            self._fired(fault.text)  # said first: the action may be the last thing that this rank does
            _ACTIONS[fault.name](fault)


def _raise(fault: Injection) -> None:
    raise InjectedError(f"planted fault raise:{fault.rank}")


_ACTIONS: dict[str, Callable[[Injection], None]] = {
    "delay": lambda fault: time.sleep(fault.seconds),
    "raise": _raise,
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
}

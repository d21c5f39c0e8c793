"""Control twins: planted faults in one rank's conduct, acting before the ledger hears of the call.

On a call, all on the one rank that they name:

- `skip`: the call is not made; the rank goes on with what lies in its buffers;
- `swap-order`: the call is put off, and made after the rank's next one;
- `wrong-shape`, `wrong-dtype`: the call is made with tensors twice as long in dim 0, or with the same bytes
  as another dtype of their size;
- `delay`, `raise`, `exit`, `kill`, `stop`: before the call the rank sleeps, raises, exits with code 3, or
  sends itself SIGKILL or SIGSTOP;
- `stall-inside`: the call is entered in the ledger, and torch is never called.

In a stage: `never-join` stalls before it joins the others, `stall-init` and `stall-teardown` in place of
making and of closing the groups.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import replace

from .injection import STAGE_TWINS
from .injection import Injection
from .ledger import Stage
from .operations import Operation

Fired = Callable[[str, str], None]
"""Hears that a fault acts: its text, and the check; empty outside of any."""

EXIT_CODE = 3
"""Of a rank that the twin `exit` ends."""

_STAGES = {
    "never-join": Stage.DEVICE,
    "stall-init": Stage.JOINING,
    "stall-teardown": Stage.LEAVING,
}
_NEED_DATA = ("skip", "swap-order", "wrong-shape")
"""They wait for a call that carries data: without the mesh that another call makes nothing could go on."""


class InjectedError(RuntimeError):
    """What the twin `raise` raises in place of the operation."""


class Control:
    """The control twins of one rank; each fires once."""

    def __init__(self, faults: Iterable[Injection], rank: int, fired: Fired) -> None:
        own = [fault for fault in faults if fault.rank == rank]
        self._waiting = [fault for fault in own if fault.name not in STAGE_TWINS]
        self._in_stages = [fault for fault in own if fault.name in STAGE_TWINS]
        self._fired = fired
        self._calls = 0
        self._put_off: Operation | None = None

    def in_stage(self, stage: Stage) -> None:
        """Stall, if a twin acts in this stage; for ever, then."""
        for fault in self._in_stages:
            if _STAGES[fault.name] is stage:
                self._fired(fault.text, "")
                stall_for_ever()

    def on_call(self, operation: Operation) -> Sequence[Operation]:
        """Act, if this is a call to act at; returns the operations to make in its place.

        The first of them gives the result. Of several all are to be posted before any is waited for.

        Raises:
            InjectedError: the twin is `raise`.
        """
        self._calls += 1
        put_off = self._put_off
        operations: Sequence[Operation] = [operation]
        while operations and (fault := self._due(operations[0])) is not None:
            operations = self._act(fault, operations[0])
        if put_off is None or not operations:
            return operations
        self._put_off = None
        return [*operations, put_off]

    def _due(self, operation: Operation) -> Injection | None:
        """The next twin that acts at this call, which waits no longer then."""
        for fault in self._waiting:
            if fault.at_call <= self._calls and self._can_act(fault, operation):
                self._waiting.remove(fault)
                return fault
        return None

    def _can_act(self, fault: Injection, operation: Operation) -> bool:
        """Whether this fault can act on this call; else it waits for the next."""
        if fault.name == "swap-order" and self._put_off is not None:
            return False
        if fault.name == "wrong-dtype":
            return operation.has_dtype_of_equal_size
        return operation.carries_data or fault.name not in _NEED_DATA

    def _act(self, fault: Injection, operation: Operation) -> Sequence[Operation]:
        if fault.name == "swap-order":
            self._fired(fault.text, operation.check)  # also where no call comes after it
            self._put_off = operation
            return []
        if fault.name == "stall-inside":
            return [replace(operation, run=lambda *_: self._stall(fault, operation))]
        # Said first: the action may be the last thing that this rank does.
        self._fired(fault.text, operation.check)
        if fault.name in _CHANGES:
            return _CHANGES[fault.name](operation)
        _ACTIONS[fault.name](fault)
        return [operation]

    def _stall(self, fault: Injection, operation: Operation) -> None:
        self._fired(fault.text, operation.check)
        stall_for_ever()


def stall_for_ever() -> None:
    """Do nothing until the supervisor ends this process."""
    while True:
        time.sleep(60)


def _raise(fault: Injection) -> None:
    raise InjectedError(f"planted fault {fault.text}")


_CHANGES: dict[str, Callable[[Operation], Sequence[Operation]]] = {
    "skip": lambda _: [],
    "wrong-shape": lambda operation: [operation.longer()],
    "wrong-dtype": lambda operation: [operation.in_other_dtype()],
}

_ACTIONS: dict[str, Callable[[Injection], object]] = {
    "delay": lambda fault: time.sleep(fault.seconds),
    "raise": _raise,
    "exit": lambda _: os._exit(EXIT_CODE),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
}

"""What happens in a call of the door.

In this order: a control fault acts on the call, and may make another one of it, none or two; the ledger
records what is really passed to torch; torch runs, and a call is *left* only when it has completed on the
device; a data fault acts on what torch delivered. Whatever torch raises comes out as `DoorError`, so that
the failure of an operation is never mistaken for an error of ours.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading
import time
import zlib
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import faults
from .control import Control
from .control import Fired
from .control import InjectedError
from .ledger import Kind
from .ledger import Ledger
from .ledger import Pen
from .ledger import Phase
from .operations import Group
from .operations import Operation

_POLL_MIN_S = 20e-6
_POLL_MAX_S = 1e-3
_POSTED_S = 0.05
"""How long an operation over gloo, which blocks its caller, is given to be posted before the next one."""


class DoorError(RuntimeError):
    """torch raised inside an operation; `__cause__` is its own exception."""

    def __init__(self, operation: str, site: str, text: str) -> None:
        super().__init__(f"{operation} ({site}): {text}")
        self.operation = operation
        self.site = site


class Aborted(RuntimeError):
    """The supervisor is ending this generation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entered:
    """An operation that the ledger knows of."""

    operation: Operation
    call: int
    first: bool
    """Of its group on this rank: it connects the ranks, and takes longer."""
    at_s: float


class Caller:
    """Makes the calls of one rank, one after the other."""

    def __init__(self, rank: int, device: torch.device, ledger: Ledger, pen: Pen) -> None:
        self.entered = 0
        """How many operations this rank has entered."""
        self._device = device
        self._ledger = ledger
        self._pen = pen
        self._digest = 0
        self._slowest_s: dict[str, float] = {}
        """By operation; first ones of a group not counted."""
        self._used: set[str] = set()
        self._control = Control((), rank, lambda *_: None)
        self._faults: tuple[faults.DataFault, ...] = ()
        self._fired: Fired = lambda *_: None

    @property
    def history(self) -> dict[str, Any]:
        """See `Door.history`."""
        return {"count": self.entered, "digest": f"{self._digest:08x}"}

    def plant(self, control: Control, data: Sequence[faults.DataFault], fired: Fired) -> None:
        """See `Door.plant`."""
        self._control = control
        self._faults = tuple(data)
        self._fired = fired

    def call(self, operation: Operation) -> Any:
        """One call, in the order that the module's text gives.

        Raises:
            DoorError: torch raised.
            Aborted: the supervisor ends the generation.
        """
        is_kept = self._faults and operation.into
        before = [slot.clone() for slot in operation.delivered(None)] if is_kept else []
        try:
            operations = self._control.on_call(operation)
        except InjectedError as error:
            raise DoorError(operation.name, operation.site, str(error)) from error
        result = self._make(operations) if operations else operation.instead()
        for fault in self._faults:
            if fault.apply(_delivery(operation, operation.delivered(result), before)):
                self._fired(fault.name, operation.check)
        return result

    def _make(self, operations: Sequence[Operation]) -> Any:
        """Make one or more operations, all posted before any is waited for; returns the first's result."""
        *ahead, last = [self._enter(operation) for operation in operations]
        begun = [(entered, self._begin(entered.operation)) for entered in ahead]
        result = self._finish(last, last.operation.make)
        results = [self._finish(entered, outcome) for entered, outcome in begun]
        return [*results, result][0]

    def _begin(self, operation: Operation) -> Callable[[], Any]:
        """Post an operation; returns what waits for it, and gives its result or raises what it raised."""
        outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def work() -> None:
            try:
                outcome.set_result(operation.make())
            except Exception as error:  # noqa: BLE001 - raised again where the outcome is asked for
                outcome.set_exception(error)

        if self._device.type == "cuda":
            work()
        else:
            threading.Thread(target=work, daemon=True).start()
            concurrent.futures.wait([outcome], timeout=_POSTED_S)
        return outcome.result  # waits no longer than this process lives, which the supervisor ends

    def _enter(self, operation: Operation) -> _Entered:
        """Record that an operation is entered."""
        self.entered += 1
        name, group, identity = operation.name, operation.group.name, operation.identity
        first = group not in self._used
        self._used.add(group)
        self._digest = zlib.crc32(json.dumps(identity).encode(), self._digest)
        slowest = {"slowest_s": round(self._slowest_s[name], 6)} if name in self._slowest_s else {}
        known = {**identity, **operation.contradiction, **slowest}
        self._pen.write(Kind.ENTER, {**known, "first": first, "call": self.entered})
        return _Entered(operation=operation, call=self.entered, first=first, at_s=time.monotonic())

    def _finish(self, entered: _Entered, run: Callable[[], Any]) -> Any:
        """Run what was entered, wait until it has completed, and record that it was left."""
        operation = entered.operation
        try:
            result = run()
            self._wait_for_device()
        except Aborted:
            raise
        except Exception as error:
            self._pen.write(Kind.LEAVE, {"call": entered.call, "raised": type(error).__name__})
            raise DoorError(operation.name, operation.site, f"{type(error).__name__}: {error}") from error
        self._pen.write(Kind.LEAVE, {"call": entered.call})
        if not entered.first:
            took_s = time.monotonic() - entered.at_s
            self._slowest_s[operation.name] = max(took_s, self._slowest_s.get(operation.name, 0.0))
        return result

    def _wait_for_device(self) -> None:
        """Wait until the device has done the work, asleep: a rank never waits in the driver for its peers."""
        if self._device.type != "cuda":
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        pause_s = _POLL_MIN_S
        while not event.query():  # type: ignore[no-untyped-call]
            if self._ledger.phase is Phase.ABORT:
                raise Aborted
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MAX_S)


def _delivery(operation: Operation, slots: list[Tensor], before: list[Tensor]) -> faults.Delivery:
    group = operation.group
    return faults.Delivery(
        operation=operation.name,
        slots=slots,
        before=before,
        rank=group.rank,
        world=group.size,
        grid=operation.grid,
        whole=operation.whole,
        exchange=partial(_gather_all, group),
    )


def _gather_all(group: Group, tensor: Tensor) -> list[Tensor]:
    """Every rank's `tensor`, for faults alone: past the ledger, never part of a check."""
    parts = [torch.empty_like(tensor) for _ in range(group.size)]
    dist.all_gather(parts, tensor.contiguous(), group.handle)
    return parts

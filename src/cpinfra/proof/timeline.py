"""What each rank did, as a list of events: the one form that attribution reads, whoever recorded them.

Two adapters make it: of the ledger here, of torch's flight recorder in `flight.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

from ..worker.ledger import Kind
from ..worker.ledger import RankView
from ..worker.ledger import Stage

Shape = tuple[int | str, ...]
"""Of a tensor; a text in it stands for sizes that did not fit into a record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What of a tensor all ranks of an operation must agree on."""

    dtype: str
    shape: Shape
    count: int = 1
    """How many tensors of this kind are passed."""

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "-"
        times = f"{self.count} x " if self.count > 1 else ""
        return f"{times}{self.dtype or '-'}[{shape}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One operation that a rank entered."""

    place: tuple[str, int]
    """(sequence, number): two ranks that entered calls at one place must have entered the same call.

    The ledger knows one sequence, of all calls that a rank makes: every rank of a check makes the same ones
    in the same order, each over its own group of the axis. The flight recorder has one for each group.
    """
    check: str
    """Empty where no check is known."""
    repetition: int
    site: str
    operation: str
    group: str
    """Empty where it stands for the end of all calls."""
    signature: Signature
    planned: Signature | None = None
    """What the plan of the check says of this call, where the rank passed something else."""
    entered_ns: int = 0
    """CLOCK_MONOTONIC."""
    left: bool = False
    raised: str = ""
    """Type of the exception that torch raised in it; empty where none."""

    @property
    def number(self) -> int:
        """Which call of its sequence, from 1 on."""
        return self.place[1]

    @property
    def identity(self) -> tuple[object, ...]:
        """By which two ranks' calls are the same.

        Where no check is known the site does not count: a program may call from different lines.
        """
        where = (self.check, self.site, self.repetition) if self.check else ()
        return (*where, self.operation, self.group, self.signature)

    @property
    def as_planned(self) -> Call:
        """The same call with what the plan of the check says of it."""
        if self.planned is None:
            return self
        planned = replace(self.planned, count=self.signature.count)  # which the plan does not say
        return replace(self, signature=planned, planned=None)

    def __str__(self) -> str:
        if not self.group:
            return self.operation
        where = f" at {self.site}" if self.site else ""
        repetition = f", repetition {self.repetition}" if self.repetition else ""
        return f"{self.operation} of {self.signature} on {self.group}{where}{repetition}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Track:
    """What one rank did."""

    rank: int
    stage: Stage
    since_ns: int
    """CLOCK_MONOTONIC of the stage's begin."""
    calls: tuple[Call, ...]
    """In the order of entering, as far back as was kept."""

    @property
    def open_calls(self) -> tuple[Call, ...]:
        """Entered and not left: one, unless several were posted at once."""
        return tuple(call for call in self.calls if not call.left)

    @property
    def reopened(self) -> Track:
        """The same rank before torch raised in its last call, as if it stood there still."""
        *before, last = self.calls
        return replace(self, calls=(*before, replace(last, left=False, raised="")))

    def entered(self, sequence: str = "") -> int:
        """How many calls of a sequence it has entered."""
        return max((call.number for call in self.calls if call.place[0] == sequence), default=0)

    @property
    def last_ns(self) -> int:
        """When it last recorded that it entered something."""
        return max([self.since_ns, *(call.entered_ns for call in self.calls)])


def from_ledger(rank: int, view: RankView) -> Track:
    """The events of one rank's region of the ledger."""
    left = {int(record.call["call"]): record for record in view.records if record.kind is Kind.LEAVE}
    calls = [
        _call(record.call, record.time_ns, left.get(int(record.call["call"])))
        for record in view.records
        if record.kind is Kind.ENTER
    ]
    return Track(rank=rank, stage=view.stage, since_ns=view.stage_since_ns, calls=tuple(calls))


def _call(words: Mapping[str, Any], entered_ns: int, leave: Any) -> Call:
    """From one record that enters, and the one that leaves, if it is there."""
    planned = words.get("planned")
    return Call(
        place=("", int(words["call"])),
        check=str(words["check"]),
        repetition=int(words["repetition"]),
        site=str(words["site"]),
        operation=str(words["operation"]),
        group=str(words["group"]),
        signature=_signature(words),
        planned=_signature(planned) if planned else None,
        entered_ns=entered_ns,
        left=leave is not None,
        raised=str(leave.call.get("raised", "")) if leave is not None else "",
    )


def _signature(words: Mapping[str, Any]) -> Signature:
    return Signature(dtype=str(words["dtype"]), shape=tuple(words["shape"]), count=int(words.get("count", 1)))

"""Ranks that kept others waiting and then came: no hang, but worth a word."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..worker.ledger import Kind
from ..worker.ledger import Ledger
from ..worker.ledger import RankView
from ..worker.ledger import Record
from ..worker.ledger import Stage
from .pulse import Pulse

SLOW_S = 0.4
"""How long a rank must have stood in an operation, by its clock, before the absent are suspected."""
_TIMES_UNKNOWN = 2
"""Where nothing says how long the operation takes, or it connects its ranks, this many times as long."""
_NS_PER_S = 1e9


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """One rank that came late to one operation."""

    rank: int
    check: str
    operation: str
    group: str
    site: str
    late_s: float
    """From its last record to this operation."""
    others_waited_s: float
    """The one that waited longest."""
    usual_s: float | None
    """The slowest same operation that a rank which waited has completed before; None where there was none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Suspect:
    """A rank that others wait for."""

    number: int
    """Which call it has not entered."""
    call: Mapping[str, Any]
    """Of a rank that waits."""
    since_ns: int
    waited_since_ns: int
    usual_s: float | None


class Slowness:
    """Watches over who waits for whom."""

    def __init__(self, load: float) -> None:
        """Suspect nobody.

        Args:
            load: how many times what a CPU carries well the ranks are; patience grows with it.
        """
        self.slows: list[Slow] = []
        self._slow_s = SLOW_S * load
        self._suspects: dict[int, _Suspect] = {}

    def look(self, ledger: Ledger, pulses: Mapping[int, Pulse]) -> None:
        """Note suspects that have come, then whom ranks wait for now.

        A suspect may have come, and be through with everything, since the last look.
        """
        running = {rank: pulse for rank, pulse in pulses.items() if pulse.head.stage is Stage.RUNNING}
        for rank in list(self._suspects):
            if _entered(ledger.view(rank, last=1)) >= self._suspects[rank].number:
                self._note(rank, ledger.view(rank))
        self._suspects = {rank: suspect for rank, suspect in self._suspects.items() if rank in running}
        waiting = [rank for rank, pulse in running.items() if self._has_waited(pulse)]
        if waiting:
            self._suspect(running, waiting, {rank: ledger.view(rank, last=1) for rank in running})

    def _has_waited(self, pulse: Pulse) -> bool:
        head = pulse.head
        times = _TIMES_UNKNOWN if head.first or head.slowest_s is None else 1
        return head.inside and pulse.still.still_s > times * self._slow_s

    def _suspect(
        self, running: Mapping[int, Pulse], waiting: list[int], views: Mapping[int, RankView]
    ) -> None:
        """Ranks outside of any operation that have entered the fewest calls, fewer than those who wait."""
        fewest = min(_entered(view) for view in views.values())
        calls = {rank: call for rank in waiting if (call := views[rank].open_call) is not None}
        ahead = {rank: call for rank, call in calls.items() if call.call["call"] > fewest}
        if not ahead:
            return
        first = min(ahead, key=lambda rank: (ahead[rank].call["call"], ahead[rank].time_ns))
        for rank, view in views.items():
            if _entered(view) == fewest and view.open_call is None and rank not in self._suspects:
                usual_s = running[first].head.slowest_s
                self._suspects[rank] = _suspected(view, fewest + 1, ahead[first], usual_s)

    def _note(self, rank: int, view: RankView) -> None:
        """Where the ring has gone round since it came, now is as good a moment as can be had."""
        suspect = self._suspects.pop(rank)
        came = [record for record in view.records if _enters(record, suspect.number)]
        came_ns = came[0].time_ns if came else time.monotonic_ns()
        call = suspect.call
        self.slows.append(
            Slow(
                rank=rank,
                check=str(call["check"]),
                operation=str(call["operation"]),
                group=str(call["group"]),
                site=str(call["site"]),
                late_s=(came_ns - suspect.since_ns) / _NS_PER_S,
                others_waited_s=(came_ns - suspect.waited_since_ns) / _NS_PER_S,
                usual_s=suspect.usual_s,
            )
        )


def _suspected(view: RankView, number: int, awaited: Record, usual_s: float | None) -> _Suspect:
    last_ns = view.records[-1].time_ns if view.records else 0
    return _Suspect(
        number=number,
        call=awaited.call,
        since_ns=max(last_ns, view.stage_since_ns),
        waited_since_ns=awaited.time_ns,
        usual_s=usual_s,
    )


def _entered(view: RankView) -> int:
    """How many calls a rank has entered."""
    return int(view.records[-1].call["call"]) if view.records else 0


def _enters(record: Record, number: int) -> bool:
    return record.kind is Kind.ENTER and record.call["call"] == number

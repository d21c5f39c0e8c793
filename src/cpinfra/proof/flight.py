"""What torch's flight recorder holds, as the event lists that attribution reads: the second adapter.

Every group is a sequence of its own: its members enter the same collectives in the same order, and torch
numbers them. Sends and receives are no such sequence, as each rank has other peers: they count by pair and
direction, where the first send matches the first receive. That holds only as long as the recorder has kept
the very first ones; from a rank whose ring went round they are left out. So are gloo's, which torch does not
record, and operations of groups that the rank has left.

Dumps come from processes that may be broken: what is no dump is *unavailable*, with a reason.

Used by launch, once programs are launched.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from typing import TypeVar

from ..text import ranks_text
from ..worker import flight
from ..worker.ledger import Stage
from .timeline import Call
from .timeline import Shape
from .timeline import Signature
from .timeline import Track

Value = TypeVar("Value")

_POLL_S = 0.005
_TRANSFER = re.compile(r"(send|recv) (\d+)(?:->|<-)(\d+)")
_DTYPES = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
"""C++ names that are not the Python name with a capital."""
_UNEVEN = ("all_to_all", "all_to_allv")
"""Each rank may pass a shape of its own."""
_OUT_OF = "scatter"
"""Only the root passes an input."""
_BATCH_END = "coalesced"
"""No operation: it tells the state of a batch whose own entries tell none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Flight:
    """What the flight recorders of all ranks hold."""

    tracks: Mapping[int, Track]
    members: Mapping[str, tuple[int, ...]]
    """Sequence, the first of a call's `place` -> the ranks that all must come to each of its places."""
    unavailable: Mapping[int, str]
    """Ranks of which nothing is known, and why."""


class BrokenDump(ValueError):
    """A dump that is none; the text says what was got and expected."""


def collect(folder: Path, ranks: Collection[int], *, timeout_s: float) -> Flight:
    """Ask the reporters of these ranks, and wait for those that have one, at most that long."""
    asked = {rank: _ask(folder, rank) for rank in ranks}
    waiting = [flight.dump_path(folder, rank) for rank, refused in asked.items() if not refused]
    deadline = time.monotonic() + timeout_s
    while not all(path.exists() for path in waiting) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return tracks({rank: refused or _read(folder, rank) for rank, refused in asked.items()})


def _ask(folder: Path, rank: int) -> dict[str, str]:
    """Request a dump; returns what stands for one where nobody will answer, else {}."""
    try:
        flight.dump_path(folder, rank).unlink(missing_ok=True)
        fd = os.open(flight.request_path(folder, rank), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return {"unavailable": f"no reporter listens: {error.strerror}"}
    try:
        os.write(fd, b"?")
    except BlockingIOError:
        pass  # full of requests: the reporter will answer, if it lives
    except OSError as error:
        return {"unavailable": f"the reporter has gone: {error.strerror}"}
    finally:
        os.close(fd)
    return {}


def _read(folder: Path, rank: int) -> object:
    try:
        return json.loads(flight.dump_path(folder, rank).read_bytes())
    except OSError as error:
        return {"unavailable": f"no answer in time: {error.strerror}"}
    except (ValueError, RecursionError) as error:
        return {"unavailable": f"got no JSON: {error}"}


def tracks(dumps: Mapping[int, object]) -> Flight:
    """The events of each rank; whatever is no dump of that rank is unavailable."""
    read: dict[int, Track] = {}
    members: dict[str, tuple[int, ...]] = {}
    unavailable: dict[int, str] = {}
    for rank, dump in dumps.items():
        try:
            recorded = _Recorded(rank, dump)
            read[rank] = recorded.track()
            members.update(recorded.members)
        except BrokenDump as error:
            unavailable[rank] = str(error)
    return Flight(tracks=read, members=members, unavailable=unavailable)


def _get(words: object, name: str, kind: type[Value]) -> Value:
    """A field of exactly this type.

    Raises:
        BrokenDump: it is not there, or of another type.
    """
    if not isinstance(words, dict):
        raise BrokenDump(f"got {type(words).__name__}, expected an object with {name}")
    value = words.get(name)
    if type(value) is not kind:  # a bool is no number
        raise BrokenDump(f"{name}: got {type(value).__name__}, expected {kind.__name__}")
    return value


def _items(words: object, name: str, kind: type[Value]) -> list[Value]:
    """A list whose items are all exactly of this type.

    Raises:
        BrokenDump: it is not.
    """
    items: list[Any] = _get(words, name, list)
    if wrong := [item for item in items if type(item) is not kind]:
        raise BrokenDump(f"{name}: got {type(wrong[0]).__name__} in it, expected {kind.__name__}")
    return items


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """One operation as torch has recorded it."""

    number: int
    """Of all operations of the group, transfers too, from 1 on."""
    group: str
    description: str
    backend: str
    operation: str
    collective: int
    """Which collective of the group; of a transfer, the last one before it."""
    batch: int
    is_transfer: bool
    inputs: tuple[Signature, ...]
    outputs: tuple[Signature, ...]
    created_ns: int
    """CLOCK_REALTIME."""
    is_completed: bool
    site: str

    @property
    def recorder(self) -> tuple[str, str]:
        """Numbers of collectives are those of a group on a backend."""
        return self.group, self.backend

    @property
    def step(self) -> tuple[str, str, int, int]:
        """The same for the entries of one batch and the one that ends it."""
        return *self.recorder, self.collective, self.batch

    @cached_property
    def transfer(self) -> tuple[int, int] | None:
        """Ranks in the group that send and receive; None of what is no transfer, or does not tell."""
        found = _TRANSFER.fullmatch(self.operation)
        if not self.is_transfer or found is None:
            return None
        first, second = int(found[2]), int(found[3])
        return (first, second) if found[1] == "send" else (second, first)

    def signature(self) -> Signature:
        """What all ranks must pass alike."""
        passed = self.outputs if self.operation == _OUT_OF else self.inputs or self.outputs
        if self.transfer is not None:  # sent in one shape and received in another is right
            passed = tuple(Signature(dtype=one.dtype, shape=(_elements(one.shape),)) for one in passed)
        if self.operation in _UNEVEN:
            passed = tuple(Signature(dtype=one.dtype, shape=()) for one in passed)
        if len(passed) == 1:
            return passed[0]
        dtypes, shapes = {one.dtype: None for one in passed}, [_sizes(one.shape) for one in passed]
        return Signature(dtype=", ".join(dtypes), shape=(", ".join(shapes),) if shapes else ())


def _sizes(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "-"


def _elements(shape: Shape) -> int:
    return math.prod(size for size in shape if isinstance(size, int))


def _entry(words: object) -> _Entry:
    """One entry of a dump.

    Raises:
        BrokenDump: it is none.
    """
    names = _items(words, "process_group", str)
    if len(names) != 2:
        raise BrokenDump(f"process_group: got {len(names)} texts, expected a name and a description")
    backend, _, operation = _get(words, "profiling_name", str).partition(":")
    # gloo keeps no state. NCCL retires also what has timed out.
    is_retired = _get(words, "retired", bool) and backend == "gloo"
    return _Entry(
        number=_get(words, "op_id", int),
        group=names[0],
        description=names[1],
        backend=backend,
        operation=operation,
        collective=_get(words, "collective_seq_id", int),
        batch=_get(words, "p2p_seq_id", int),
        is_transfer=_get(words, "is_p2p", bool),
        inputs=_signatures(words, "input"),
        outputs=_signatures(words, "output"),
        created_ns=_get(words, "time_created_ns", int),
        is_completed=_get(words, "state", str) == "completed" or is_retired,
        site=_get(words, "site", str),
    )


def _signatures(words: object, side: str) -> tuple[Signature, ...]:
    """Of each tensor that was passed."""
    sizes = _items(words, f"{side}_sizes", list)
    dtypes = _items(words, f"{side}_dtypes", str)
    if len(sizes) != len(dtypes):
        raise BrokenDump(f"{side}_sizes: got {len(sizes)}, expected one for each of {len(dtypes)} dtypes")
    shapes = [tuple(_items({f"{side}_sizes": shape}, f"{side}_sizes", int)) for shape in sizes]
    return tuple(
        Signature(dtype=_DTYPES.get(dtype, dtype.lower()), shape=shape)
        for dtype, shape in zip(dtypes, shapes, strict=True)
    )


class _Recorded:
    """One rank's dump.

    Raises:
        BrokenDump: it is none, or says itself that this torch cannot tell.
    """

    def __init__(self, rank: int, dump: object) -> None:
        if isinstance(dump, dict) and "unavailable" in dump:
            raise BrokenDump(_get(dump, "unavailable", str))
        if (got := _get(dump, "rank", int)) != rank:
            raise BrokenDump(f"got a dump of rank {got}, expected rank {rank}")
        self._rank = rank
        self._since_ns = _get(dump, "started_ns", int)
        self._offset_ns = _get(dump, "clock_offset_ns", int)
        self._recorded = _get(dump, "recorded", int)
        groups = _get(dump, "groups", dict)
        self._groups = {str(name): tuple(_items(groups, name, int)) for name in groups}
        self._entries = [_entry(words) for words in _items(dump, "entries", dict)]
        self.members: dict[str, tuple[int, ...]] = {}
        """Of each sequence in which there is a call."""

    def track(self) -> Track:
        """What this rank has entered."""
        calls = [*self._collectives(), *self._transfers()]
        return Track(
            rank=self._rank,
            stage=self._stage(),
            since_ns=self._since_ns,
            calls=tuple(sorted(calls, key=lambda call: call.entered_ns)),
        )

    def _stage(self) -> Stage:
        """Only a rank that has joined has groups; one that has none any more has left."""
        if self._groups:
            return Stage.RUNNING
        return Stage.LEFT if self._recorded else Stage.FORKED

    def _collectives(self) -> Iterable[Call]:
        position: dict[tuple[tuple[str, str], int], int] = {}
        for entry in self._entries:
            if entry.is_transfer or entry.operation == _BATCH_END or entry.group not in self._groups:
                continue
            if self._cut.get(entry.recorder) == entry.collective:
                continue
            key = (entry.recorder, entry.collective)
            position[key] = position.get(key, -1) + 1
            sequence = self._sequence(entry, f" +{position[key]}" if position[key] else "")
            self.members[sequence] = self._groups[entry.group]
            operation = "all_to_all" if entry.operation in _UNEVEN else entry.operation
            yield self._call(entry, (sequence, entry.collective), operation, entry.is_completed)

    @cached_property
    def _cut(self) -> dict[tuple[str, str], int]:
        """Where the ring has lost a group's first entries, the oldest collective: it may lack parts too."""
        first: dict[tuple[str, str], _Entry] = {}
        for entry in self._entries:
            first.setdefault(entry.recorder, entry)
        return {
            recorder: entry.collective
            for recorder, entry in first.items()
            if entry.number > 1 and (entry.collective > 1 or entry.is_transfer)
        }

    def _transfers(self) -> Iterable[Call]:
        ended = {entry.step: entry.is_completed for entry in self._entries if entry.operation == _BATCH_END}
        count: dict[str, int] = {}
        for entry in self._entries:
            pair = self._pair(entry)
            if pair is None or entry.recorder in self._cut:
                continue
            sequence = self._sequence(entry, f" {pair[0]}->{pair[1]}")
            count[sequence] = count.get(sequence, 0) + 1
            self.members[sequence] = pair
            left = entry.is_completed or ended.get(entry.step, False)
            yield self._call(entry, (sequence, count[sequence]), f"send/recv {pair[0]}->{pair[1]}", left)

    def _pair(self, entry: _Entry) -> tuple[int, int] | None:
        """The ranks that send and receive in a transfer, where it can be told."""
        members = self._groups.get(entry.group, ())
        if entry.transfer is None or max(entry.transfer) >= len(members):
            return None
        return members[entry.transfer[0]], members[entry.transfer[1]]

    def _sequence(self, entry: _Entry, which: str) -> str:
        return f"{entry.backend} {entry.group} {list(self._groups[entry.group])}{which}"

    def _call(self, entry: _Entry, place: tuple[str, int], operation: str, left: bool) -> Call:
        return Call(
            place=place,
            check="",
            repetition=0,
            site=entry.site,
            operation=operation,
            group=_group_text(entry.description, self._groups[entry.group]),
            signature=entry.signature(),
            entered_ns=entry.created_ns - self._offset_ns,
            left=left,
        )


def _group_text(description: str, members: tuple[int, ...]) -> str:
    """What a reader calls a group: torch's own words for the world and for no description are no help."""
    if description == "default_pg":
        return "world"
    return (
        ranks_text(members) if description in ("", "undefined") else f"{description} ({ranks_text(members)})"
    )

"""The ledger: shared memory in which every rank records the operation it enters and leaves.

One file, mapped by the supervisor and by each rank; one region and one writer per rank. It stays readable
whatever happens to the rank: blocked in the backend, stopped, killed. Layout, little endian:

    file    header (4096 bytes): magic, version, world, records per rank, phase, then the regions
    region  head (128 bytes): pid, stage, stage's time; plan digest and its checksum; records written
            then the ring
    record  sequence, time, checksum, kind, length, JSON (never a pickle)

A record's payload is written before its sequence number, and the count of records last; the reader accepts
a record whose sequence number and checksum agree in two reads. No field is ever written twice for one
change: `struct.pack_into` clears what it is about to fill, and a reader, or a signal that stops the writer
for good, could come in between.

Standard library only: the supervisor reads it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

_FILE_HEADER = struct.Struct("<8sIIII")
_FILE_HEADER_BYTES = 4096
_MAGIC = b"cpledger"
_VERSION = 1
_PHASE_OFFSET = _FILE_HEADER.size - 4

_WHERE = struct.Struct("<IIQ")
_DIGEST = struct.Struct("<32sI")
_DIGEST_OFFSET = _WHERE.size
_COUNT = struct.Struct("<Q")
_COUNT_OFFSET = 56  # aligned, so that it is written and read in one piece
_HEAD_BYTES = 128
_RECORD = struct.Struct("<QQIHH")
RECORD_BYTES = 384
_PAYLOAD_MAX_BYTES = RECORD_BYTES - _RECORD.size
_RECORDS = ((4, 1024), (16, 512), (256, 256))
"""(up to so many ranks, records of each): a ring holds a whole proof, whose trials shrink with the world."""
_RECORDS_BEYOND = 128
_LOOKS_MAX = 1000


class Phase(IntEnum):
    """What the supervisor wants of a generation; the only word that it writes."""

    RUN = 0
    RELEASE = 1
    """All have reported: close the groups and exit."""
    ABORT = 2
    """Leave as soon as you can: the generation is being ended."""


class Stage(IntEnum):
    """Where a rank is in its life."""

    FORKED = 0
    DEVICE = 1
    """Creating the device context."""
    JOINING = 2
    """In `init_process_group`."""
    AGREEING = 3
    """Comparing the plan's digest with the other ranks'."""
    RUNNING = 4
    REPORTED = 5
    LEAVING = 6
    """In `destroy_process_group`."""
    LEFT = 7


class Kind(IntEnum):
    """What a record says."""

    ENTER = 1
    LEAVE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One entry of a rank's ring."""

    sequence: int
    time_ns: int
    """CLOCK_MONOTONIC, the same for all processes of the host."""
    kind: Kind
    call: Mapping[str, Any]
    """Of one that enters: the operation's identity (check, site, repetition, operation, group, shape, dtype,
    count of several tensors), its number `call`, whether it is the `first` of its group, `slowest_s` (the
    slowest completed same operation of this rank, its group's first not counted; absent while there is
    none), and `planned` (dtype, shape) where the plan of the check says something else than what is passed.
    Of one that leaves: `call`, and the type of what torch `raised`, if it did.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class RankView:
    """What the supervisor sees of one rank."""

    pid: int
    stage: Stage
    stage_since_ns: int
    digest: bytes
    written: int
    records: tuple[Record, ...]

    @property
    def open_call(self) -> Record | None:
        """The operation that was entered and not left, if any."""
        last = self.records[-1] if self.records else None
        return last if last is not None and last.kind is Kind.ENTER else None


def records_per_rank(world: int) -> int:
    """How many records of each of `world` ranks are kept: two for every call that it makes.

    A rank that parts from the others without blocking them goes on, and is judged when it has made all of
    its calls: by then nothing of them may be lost. 4 ranks take 1.5 MiB together, 1024 take 48.
    """
    return next((records for ranks, records in _RECORDS if world <= ranks), _RECORDS_BEYOND)


def size_bytes(world: int) -> int:
    """Size of the ledger of a generation of `world` ranks."""
    return _region(world, records_per_rank(world))


def create(path: Path, world: int) -> None:
    """Make the file and allocate all of it, so that no rank meets a full disk as SIGBUS.

    Every rank is `FORKED` from now on, until it says more.

    Raises:
        OSError: no room (ENOSPC), or the folder cannot be written.
    """
    records = records_per_rank(world)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes(world))
        for rank in range(world):
            os.pwrite(fd, _WHERE.pack(0, Stage.FORKED, time.monotonic_ns()), _region(rank, records))
        header = _FILE_HEADER.pack(_MAGIC, _VERSION, world, records, Phase.RUN)
        os.pwrite(fd, header, 0)
    finally:
        os.close(fd)


def _region(rank: int, records: int) -> int:
    """Where a rank's region begins, if each has room for so many records."""
    return _FILE_HEADER_BYTES + rank * (_HEAD_BYTES + records * RECORD_BYTES)


def _slot(region: int, sequence: int, records: int) -> int:
    """Where the record of this number lies in a region."""
    return region + _HEAD_BYTES + (sequence - 1) % records * RECORD_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The part of a rank's region that is cheap to look at."""

    stage: Stage
    written: int
    first: bool
    """Whether the newest record enters the first operation of a group."""
    inside: bool
    """Whether the newest record enters an operation."""
    slowest_s: float | None
    """The slowest completed operation of the kind that the newest record enters; None while there is none."""


class LedgerError(RuntimeError):
    """The file is no ledger of this version, or not all of one."""


class Ledger:
    """A mapped ledger. The supervisor reads regions and sets the phase; a rank asks for its `Pen`."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.world, self.records_per_rank = _sizes(path, fd)
            self._map = mmap.mmap(fd, self._region(self.world))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Unmap."""
        self._map.close()

    @property
    def phase(self) -> Phase:
        """What the supervisor wants."""
        (phase,) = struct.unpack_from("<I", self._map, _PHASE_OFFSET)
        return Phase(phase)

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._map[_PHASE_OFFSET : _PHASE_OFFSET + 4] = struct.pack("<I", phase)

    def pen(self, rank: int) -> Pen:
        """The writer of one rank's region: one per region, in the rank itself."""
        return Pen(self._map, self._region(rank), self.records_per_rank)

    def _region(self, rank: int) -> int:
        return _region(rank, self.records_per_rank)

    def digest(self, rank: int) -> bytes:
        """The plan digest that a rank has published; zeros before."""
        digest, checksum = _DIGEST.unpack_from(self._map, self._region(rank) + _DIGEST_OFFSET)
        return digest if zlib.crc32(digest) == checksum else bytes(32)

    def head(self, rank: int) -> Head:
        """Where a rank is, at a glance."""
        _, stage, _ = _WHERE.unpack_from(self._map, self._region(rank))
        records = self._newest(rank, 1)
        newest = records[0] if records else None
        call: Mapping[str, Any] = newest.call if newest else {}
        return Head(
            stage=Stage(stage),
            written=newest.sequence if newest else 0,
            first=bool(call.get("first")),
            inside=newest is not None and newest.kind is Kind.ENTER,
            slowest_s=call.get("slowest_s"),
        )

    def view(self, rank: int, *, last: int | None = None) -> RankView:
        """What a rank has written: its newest records, oldest first, without a gap.

        Args:
            rank: whose.
            last: how many of them at most; None: all that are kept.
        """
        pid, stage, since = _WHERE.unpack_from(self._map, self._region(rank))
        records = self._newest(
            rank, self.records_per_rank if last is None else min(last, self.records_per_rank)
        )
        return RankView(
            pid=pid,
            stage=Stage(stage),
            stage_since_ns=since,
            digest=self.digest(rank),
            written=records[0].sequence if records else 0,
            records=tuple(reversed(records)),
        )

    def _newest(self, rank: int, most: int) -> list[Record]:
        """The newest records, newest first, up to the first that is being overwritten.

        Empty also where a stranger wrote over the newest: it stays unreadable however often we look.
        """
        region = self._region(rank)
        for _ in range(_LOOKS_MAX):
            (written,) = _COUNT.unpack_from(self._map, region + _COUNT_OFFSET)
            records: list[Record] = []
            for sequence in range(written, max(0, written - most), -1):
                record = self._record(region, sequence)
                if record is None:
                    break
                records.append(record)
            if records or not written:
                return records
            # The ring went round between two lines of ours: look again.
        return []

    def _record(self, region: int, sequence: int) -> Record | None:
        slot = _slot(region, sequence, self.records_per_rank)
        raw = self._map[slot : slot + RECORD_BYTES]
        number, time_ns, checksum, kind, length = _RECORD.unpack_from(raw)
        payload = raw[_RECORD.size : _RECORD.size + length]
        again = self._map[slot : slot + _RECORD.size]
        whole = checksum == _checksum(number, time_ns, kind, payload)
        if number != sequence or again != raw[: _RECORD.size] or not whole:
            return None  # being overwritten: the ring went round while we read
        return Record(sequence=number, time_ns=time_ns, kind=Kind(kind), call=json.loads(payload))


class Pen:
    """Writes one rank's region. Not for threads: a rank records from its main thread alone."""

    def __init__(self, memory: mmap.mmap, start: int, records: int) -> None:
        self._map = memory
        self._start = start
        self._records = records
        self._written = 0

    def stage(self, stage: Stage) -> None:
        """Say where this rank is now."""
        self._put(self._start, _WHERE.pack(os.getpid(), stage, time.monotonic_ns()))

    def publish_digest(self, digest: bytes) -> None:
        """Show the plan's SHA-256 to the other ranks."""
        self._put(self._start + _DIGEST_OFFSET, _DIGEST.pack(digest, zlib.crc32(digest)))

    def _put(self, start: int, data: bytes) -> None:
        self._map[start : start + len(data)] = data

    def write(self, kind: Kind, call: Mapping[str, Any]) -> None:
        """Append one record to the ring."""
        payload = _payload(call)
        number = self._written + 1
        slot = _slot(self._start, number, self._records)
        now = time.monotonic_ns()
        self._put(slot + _RECORD.size, payload)
        self._put(slot, _RECORD.pack(number, now, _checksum(number, now, kind, payload), kind, len(payload)))
        self._written = number
        self._put(self._start + _COUNT_OFFSET, _COUNT.pack(number))


def _sizes(path: Path, fd: int) -> tuple[int, int]:
    """The number of ranks of an open ledger, and of the records that each has room for.

    Raises:
        LedgerError: it is none.
    """
    header = os.pread(fd, _FILE_HEADER.size, 0)
    if len(header) < _FILE_HEADER.size:
        raise LedgerError(f"{path}: got a file of {len(header)} bytes, expected a ledger")
    magic, version, world, records, _ = _FILE_HEADER.unpack(header)
    if (magic, version) != (_MAGIC, _VERSION):
        raise LedgerError(f"{path}: got {magic!r} version {version}, expected {_MAGIC!r} version {_VERSION}")
    if not records:
        raise LedgerError(f"{path}: got room for 0 records a rank, expected at least 1")
    size, expected = os.fstat(fd).st_size, _region(world, records)
    if size < expected:
        raise LedgerError(
            f"{path}: got {size} bytes, expected {expected} for {world} ranks with {records} records each"
        )
    return int(world), int(records)


def _checksum(number: int, time_ns: int, kind: int, payload: bytes) -> int:
    """Of all that a record says."""
    return zlib.crc32(payload, zlib.crc32(struct.pack("<QQH", number, time_ns, kind)))


def _payload(call: Mapping[str, Any]) -> bytes:
    """JSON of a call; long texts and shapes give way, all alike, so that a record always fits."""
    for kept in (None, 40, 16, 4, 2):
        payload = json.dumps({key: _cut(value, kept) for key, value in call.items()}, separators=(",", ":"))
        if len(payload) <= _PAYLOAD_MAX_BYTES:
            return payload.encode()
    raise ValueError(f"a call of {len(call)} fields does not fit into a record: {', '.join(call)}")


def _cut(value: Any, kept: int | None) -> Any:
    """A text or a list with only that much of it, half of each end: a site's line number is its last."""
    if isinstance(value, Mapping):
        return {key: _cut(item, kept) for key, item in value.items()}
    if kept is None or not isinstance(value, (str, list)) or len(value) <= kept:
        return value
    begin, end = value[: kept // 2], value[-(kept // 2) :]
    return f"{begin}...{end}" if isinstance(value, str) else [*begin, "...", *end]

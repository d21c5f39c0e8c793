"""Whether a process does anything, and a clock that counts only time in which it could have.

Standard library only: the supervisor looks at what runs in the target interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from collections.abc import Iterator

CLOCK_STEP_MAX_S = 0.25
"""Between two looks the clock gains at most this: a supervisor that was suspended or late blames nobody."""
SHARE_MIN = 0.05
"""What a clock counts at least of the time that passes: who spins on a busy machine is found all the same."""
_DEBT_MAX_S = 0.5
_FILE_MAX_BYTES = 4096
_NS_PER_S = 1e9


class Clock:
    """Seconds since something last changed, not counting time that the supervisor or a rank had no CPU."""

    def __init__(self) -> None:
        self.still_s = 0.0
        self._seen: object = None
        self._looked_at: float | None = None

    def look(self, state: object, now: float, share: float = 1.0) -> float:
        """Take note of a state at a time; returns how long it has stood still.

        Args:
            state: anything that is equal as long as nothing happens.
            now: CLOCK_MONOTONIC, in seconds.
            share: of the time since the last look, how much counts (0 to 1).
        """
        step = 0.0 if self._looked_at is None else min(now - self._looked_at, CLOCK_STEP_MAX_S)
        self._looked_at = now
        self.still_s = 0.0 if state != self._seen else self.still_s + step * share
        self._seen = state
        return self.still_s


class Starvation:
    """How much of the time that passes processes can use: the rest they are runnable and get no CPU.

    The kernel adds up for every thread how long it waited for a CPU (schedstat), and does so when the wait
    is over: what exceeds the time between two looks is owed, and taken off at the next ones.
    """

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._waited_ns: dict[str, int] = {}
        self._owed_s = 0.0
        self._counts = False
        """Whether this kernel has ever counted a wait."""
        self._ticks: dict[int, int] = {}

    def share(self, pids: Collection[int], now: float) -> float:
        """Of the time since the last look, what the thread that waited longest had: `SHARE_MIN` to 1."""
        waited_ns = {tid: ns for pid in pids for tid, ns in _waits_ns(pid)}
        gained_ns = max((ns - self._waited_ns.get(tid, ns) for tid, ns in waited_ns.items()), default=0)
        self._counts |= any(waited_ns.values())
        step_s = min(now - self._looked_at, CLOCK_STEP_MAX_S) if self._looked_at is not None else 0.0
        self._waited_ns, self._looked_at = waited_ns, now
        if not self._counts:
            return SHARE_MIN if self._is_kept_waiting(pids) else 1.0
        self._owed_s = min(self._owed_s + gained_ns / _NS_PER_S, _DEBT_MAX_S)
        lost_s = min(self._owed_s, step_s * (1 - SHARE_MIN))
        self._owed_s -= lost_s
        return 1 - lost_s / step_s if step_s else 1.0

    def _is_kept_waiting(self, pids: Collection[int]) -> bool:
        """Where the kernel does not count: whether one is runnable and used no CPU since the last look."""
        before, self._ticks = self._ticks, {}
        found = False
        for pid in pids:
            fields = _stat_fields(pid)
            if fields:
                self._ticks[pid] = _ticks(fields)
                found |= fields[0] == b"R" and before.get(pid) == self._ticks[pid]
        return found


def _waits_ns(pid: int) -> Iterator[tuple[str, int]]:
    """Each thread with the nanoseconds that it was runnable and waited; none where that is not told."""
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)  # noqa: PTH208 - a Path for each would cost more than the reading
    except OSError:
        return
    for tid in threads:
        fields = _read(f"{folder}/{tid}/schedstat").split()
        if len(fields) == 3:
            yield tid, int(fields[1])


def disk_reads_of(pid: int) -> tuple[int, ...]:
    """Numbers that grow while a process waits for a disk: major faults, bytes read."""
    fields = _stat_fields(pid)
    return (int(fields[9]), _bytes_read(pid)) if fields else ()


def progress_of(pid: int) -> tuple[int, ...]:
    """Numbers that grow while a process does anything: CPU ticks, major faults, bytes read."""
    fields = _stat_fields(pid)
    if not fields:
        return ()
    # proc(5): state is field 3, majflt 12, utime 14, stime 15
    return int(fields[9]), _ticks(fields), _bytes_read(pid)


def _ticks(fields: list[bytes]) -> int:
    return int(fields[11]) + int(fields[12])


def _bytes_read(pid: int) -> int:
    """What the process has read so far; 0 where the kernel does not count or does not tell."""
    lines = _read(f"/proc/{pid}/io").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(b"rchar:")), 0)


def process_state(pid: int) -> str:
    """The one-letter state of proc(5); empty when there is no such process."""
    fields = _stat_fields(pid)
    return fields[0].decode() if fields else ""


def _stat_fields(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the state on; empty when there is no such process.

    Bytes: the name before them is cut at 15 bytes, in the middle of a character too.
    """
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    """A file of /proc, as cheaply as can be; empty where it is not there, or not for us to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _FILE_MAX_BYTES)
    except OSError:
        return b""  # the process ended meanwhile
    finally:
        os.close(fd)

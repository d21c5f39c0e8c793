"""Whether a process does anything, and a clock that counts only time in which it could have.

Standard library only: the supervisor looks at what runs in the target interpreter.
"""

from __future__ import annotations

from pathlib import Path

CLOCK_STEP_MAX_S = 0.25
"""Between two looks the clock gains at most this: a supervisor that was suspended or late blames nobody."""


class Clock:
    """Seconds since something last changed, not counting time that the supervisor itself lost."""

    def __init__(self) -> None:
        self.still_s = 0.0
        self._seen: object = None
        self._looked_at: float | None = None

    def look(self, state: object, now: float) -> float:
        """Take note of a state at a time; returns how long it has stood still."""
        step = 0.0 if self._looked_at is None else min(now - self._looked_at, CLOCK_STEP_MAX_S)
        self._looked_at = now
        self.still_s = 0.0 if state != self._seen else self.still_s + step
        self._seen = state
        return self.still_s


def progress_of(pid: int) -> tuple[int, ...]:
    """Numbers that grow while a process does anything: CPU ticks, major faults, bytes read."""
    fields = _stat_fields(pid)
    if not fields:
        return ()
    # proc(5): state is field 3, majflt 12, utime 14, stime 15
    return int(fields[9]), int(fields[11]) + int(fields[12]), _bytes_read(pid)


def _bytes_read(pid: int) -> int:
    """What the process has read so far; 0 where the kernel does not count or does not tell."""
    try:
        lines = Path(f"/proc/{pid}/io").read_bytes().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(b"rchar:")), 0)


def process_state(pid: int) -> str:
    """The one-letter state of proc(5); empty when there is no such process."""
    fields = _stat_fields(pid)
    return fields[0].decode() if fields else ""


def _stat_fields(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the state on; empty when there is no such process.

    Bytes: the name before them is cut at 15 bytes, in the middle of a character too.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return []

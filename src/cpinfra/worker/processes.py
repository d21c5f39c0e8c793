"""The few system calls that the worker needs beyond the standard library: prctl, cookies, ends.

Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from collections.abc import Iterator
from pathlib import Path

COOKIE_VARIABLE = "CPINFRA_COOKIE"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; exit if the parent is gone already.

    The request is lost on fork, so each rank makes it itself, and it races with the parent's death:
    hence the look at getppid afterwards (prctl(2), PR_SET_PDEATHSIG).
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans(adopt: bool = True) -> None:
    """Make this process the parent of descendants whose own parent dies (PR_SET_CHILD_SUBREAPER)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")


def with_cookie(cookie: str) -> Iterator[int]:
    """Processes of this user whose environment carries our cookie, without this one.

    A process that cleared its environment cannot be told from a stranger and is left alone.
    """
    needle = f"{COOKIE_VARIABLE}={cookie}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if needle in environment.split(b"\0"):
            yield int(entry.name)


def kill_family(cookie: str, timeout_s: float, known: Iterable[int] = ()) -> list[int]:
    """SIGKILL all processes with our cookie until none is left, and collect those that we have adopted.

    Args:
        cookie: what the family carries in its environment.
        timeout_s: how long to go on.
        known: members that are known by pid; one that has ended already may wait to be collected.

    Returns:
        pids that would not die in time.
    """
    deadline = time.monotonic() + timeout_s
    uncollected = set(known)
    while True:
        living = set(with_cookie(cookie))  # a zombie has no environment any more
        for pid in living:
            kill(pid, signal.SIGKILL)
        uncollected = {pid for pid in uncollected | living if not _collected(pid)}
        left = living | uncollected
        if not left or time.monotonic() > deadline:
            return sorted(left)
        time.sleep(0.005)


def _collected(pid: int) -> bool:
    """Collect an ended child; True also for what is no child of ours, which another has to collect."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def kill(pid: int, number: int) -> None:
    """Send a signal; a process that is gone already is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended: (pid, wait status)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))

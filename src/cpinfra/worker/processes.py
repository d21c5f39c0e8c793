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

_PRCTL = ctypes.CDLL(None, use_errno=True).prctl
"""Looked up here: where `die_with_parent` runs between fork and exec a lock of the linker could be held."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; exit if the parent is gone already.

    The request is lost on fork, so each rank makes it itself, but not on exec; and it races with the
    parent's death: hence the look at getppid afterwards (prctl(2), PR_SET_PDEATHSIG). What counts as that
    death is the end of the thread that has forked.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans(adopt: bool) -> bool:
    """Whether to become the parent of descendants whose own parent dies; returns what held before."""
    before = ctypes.c_int()
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))
    return bool(before.value)


def _prctl(option: int, value: int) -> None:
    if _PRCTL(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")


def with_cookie(cookie: str) -> Iterator[int]:
    """Processes of this user whose environment carries our cookie, without this one.

    A process that cleared its environment cannot be told from a stranger and is left alone.
    """
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _carries(int(entry.name), cookie):
            yield int(entry.name)


def _carries(pid: int, cookie: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{COOKIE_VARIABLE}={cookie}".encode() in environment.split(b"\0")


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
    family = set(known)
    while True:
        living = set(with_cookie(cookie))  # a zombie has no environment any more
        for pid in living:
            _kill_member(pid, cookie)
        family |= living
        # Each is tried until none lives: an orphan is ours to collect only once its own parent has died.
        left = living | {pid for pid in family if not _collected(pid)}
        if not left or time.monotonic() > deadline:
            return sorted(left)
        time.sleep(0.005)


def _kill_member(pid: int, cookie: str) -> None:
    """SIGKILL through a pidfd that was opened before the cookie is looked at again: never a stranger.

    Kernels before 5.3 have none, nor have Pythons that were built on older headers (conda's); there the
    moment between the look and the signal has to do.
    """
    fd = _pidfd(pid)
    if fd is None:
        kill(pid, signal.SIGKILL)
        return
    try:
        if _carries(pid, cookie):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def _pidfd(pid: int) -> int | None:
    """A descriptor of the process, or None where there are none, or where it is gone."""
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


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


def reap(pids: Iterable[int]) -> list[tuple[int, int]]:
    """Collect those of these children that have ended: (pid, wait status).

    Never others: what a module starts while it is imported is for that module to wait for.
    """
    ended = []
    for pid in pids:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue  # collected by a handler that has interrupted this one
        if found:
            ended.append((pid, status))
    return ended


def reap_all() -> None:
    """Collect every child that has ended, adopted ones too, in a process where nobody else waits for any."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass  # none is left

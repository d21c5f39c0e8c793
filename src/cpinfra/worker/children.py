"""Forked children that do one thing each, say what they do on a pipe, and are never waited for without bound.

For what may block or crash inside a library: a driver, a loader, a kernel. Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import NoReturn

from .processes import die_with_parent
from .signals import RANK_BUG_EXIT

AT_ONCE = 16
"""Children that live at the same time."""

HUNG = "hung"
FLOODED = "flooded"
UNDYING = "undying"
TAKEN = "collected by another part of this program"

_DEATH_S = 2.0
_LOOK_EVERY_S = 0.002
_CHUNK_BYTES = 1 << 16
_MAX_BYTES = 1 << 20
"""What one child may say; one that says more is killed."""

Say = Callable[[dict[str, Any]], None]
"""Hands one JSON object to the parent."""

Work = Callable[[Say], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What became of one child."""

    said: tuple[dict[str, Any], ...]
    """What it said, in order; also of one that died later."""
    how: str
    """Empty where it ended by itself with status 0; a signal's name, `exit code N`, `hung` (past its bound,
    killed), `flooded` (said too much, killed) or `undying` (still there after SIGKILL)."""
    seconds: float


@dataclass(kw_only=True, slots=True)
class _Child:
    number: int
    pid: int
    fd: int
    started: float
    heard: bytearray = field(default_factory=bytearray)


def ask(works: Sequence[Work], timeout_s: float) -> list[Ended]:
    """Do each work in a forked child of its own, up to `AT_ONCE` at a time.

    Call it from the main thread. Handlers of SIGCHLD wait meanwhile, so that none collects these children;
    in a process with other threads the kernel may hand the signal to one of those.

    Args:
        works: what to do; each gets a function that says one JSON object to the parent.
        timeout_s: bound of one child.

    Returns:
        How each ended, in the order of the works.
    """
    waiting = list(enumerate(works))[::-1]
    living: dict[int, _Child] = {}
    ended: dict[int, Ended] = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        while waiting or living:
            while waiting and len(living) < AT_ONCE:
                child = _fork(*waiting.pop())
                living[child.fd] = child
            for child, how in _finished(living, timeout_s):
                del living[child.fd]
                ended[child.number] = _end(child, how)
    finally:
        for child in living.values():  # an interruption
            _end(child, HUNG)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return [ended[number] for number in range(len(works))]


def _fork(number: int, work: Work) -> _Child:
    read_fd, write_fd = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(read_fd)
        _live(parent, write_fd, work)
    os.close(write_fd)
    os.set_blocking(read_fd, False)
    return _Child(number=number, pid=pid, fd=read_fd, started=time.monotonic())


def _live(parent: int, write_fd: int, work: Work) -> NoReturn:
    """In the child: work and be gone, without the exit handlers of what the parent has imported."""
    status = RANK_BUG_EXIT
    try:
        die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        work(lambda said: _write(write_fd, json.dumps(said).encode() + b"\n"))
        status = 0
    except BaseException:  # noqa: BLE001 - to the log; it must not climb into the parent's frames
        traceback.print_exc()
    finally:
        os._exit(status)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _finished(living: dict[int, _Child], timeout_s: float) -> list[tuple[_Child, str]]:
    """Wait for news; (child, why it must be killed, empty if it ends by itself) for each that is through."""
    first = min(child.started for child in living.values())
    ready, _, _ = select.select(list(living), [], [], max(0.0, first + timeout_s - time.monotonic()))
    heard = [(living[fd], _hear(living[fd])) for fd in ready]
    late = time.monotonic() - timeout_s
    hung = [child for fd, child in living.items() if fd not in ready and child.started < late]
    return [(child, how) for child, how in heard if how is not None] + [(child, HUNG) for child in hung]


def _hear(child: _Child) -> str | None:
    """Take what a child says: None while more may come, empty at its end, `flooded` where it is too much."""
    data = os.read(child.fd, _CHUNK_BYTES)
    child.heard += data
    if not data:
        return ""
    return FLOODED if len(child.heard) > _MAX_BYTES else None


def _end(child: _Child, how: str) -> Ended:
    """Collect a child; one that has a reason to be killed, or does not end by itself, is killed."""
    os.close(child.fd)
    try:
        how = _ending(child, how)
    except ChildProcessError:
        how = TAKEN
    seconds = time.monotonic() - child.started
    return Ended(said=_objects(bytes(child.heard)), how=how, seconds=seconds)


def _ending(child: _Child, how: str) -> str:
    """How it ended.

    Raises:
        ChildProcessError: somebody else has collected it; its number may be another process's by now.
    """
    status = None if how else _collected(child.pid)
    if status is not None:
        return _how(status)
    os.kill(child.pid, signal.SIGKILL)
    return (how or HUNG) if _collected(child.pid) is not None else UNDYING


def _collected(pid: int) -> int | None:
    """The wait status of a child, or None where it does not end in time."""
    deadline = time.monotonic() + _DEATH_S
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == pid:
            return status
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_EVERY_S)


def _how(status: int) -> str:
    if not os.WIFSIGNALED(status):
        code = os.WEXITSTATUS(status)
        return f"exit code {code}" if code else ""
    number = os.WTERMSIG(status)
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def _objects(heard: bytes) -> tuple[dict[str, Any], ...]:
    """The whole lines that were said; a line that was cut off counts as not said."""
    return tuple(json.loads(line) for line in heard.split(b"\n")[:-1])

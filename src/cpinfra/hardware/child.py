"""Ask something of a child process that may never answer.

A call into a driver can block where no signal arrives. So it is made in a child of its own session, with a
deadline; past it the whole group is killed, and a child that does not even die is left behind, never
waited for without bound. Whatever ends this process meanwhile, SIGKILL too, ends the child.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

_PRCTL = ctypes.CDLL(None).prctl  # looked up here: between fork and exec a lock of the linker could be held
_PR_SET_PDEATHSIG = 1
_TICK_S = 0.01
_DEATH_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildAnswer:
    """What became of the child, and what it wrote up to then."""

    state: str
    """`exited`, `hung` (past the deadline), `flooded` (more output than allowed), `unstartable`."""
    stdout: bytes = b""
    stderr: bytes = b""
    returncode: int | None = None
    """Exit status; -N where signal N ended it; None unless it exited."""
    reason: str = ""
    """Why it could not be started."""
    left_behind: int | None = None
    """The pid of a child that SIGKILL did not end in time."""

    @property
    def died_by(self) -> str:
        """Name of the signal that ended it, else empty."""
        if self.returncode is None or self.returncode >= 0:
            return ""
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"signal {-self.returncode}"


def ask(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout_s: float,
    limit_bytes: int = 1 << 20,
) -> ChildAnswer:
    """Run `argv` to its end or to the deadline, and take what it wrote.

    Args:
        argv: the program, by its path, and its arguments.
        environment: all of its environment.
        timeout_s: deadline for the child to exit, in seconds.
        limit_bytes: it is killed once one of its streams holds more.
    """
    try:
        process = _started(argv, environment)
    except OSError as error:
        return ChildAnswer(state="unstartable", reason=str(error))
    streams = _Streams(process, limit_bytes)
    state = "interrupted"
    try:
        state = _watch(process, streams, time.monotonic() + timeout_s)
    finally:
        # While it is not reaped its number, and its group's, cannot have become another's.
        left_behind = _end(process)
        streams.close()
    return ChildAnswer(
        state=state,
        stdout=bytes(streams.taken["stdout"]),
        stderr=bytes(streams.taken["stderr"]),
        returncode=process.returncode if state == "exited" else None,
        left_behind=left_behind,
    )


def _started(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own, which may be killed as a whole.

    What runs between fork and exec is two system calls: it imports nothing and takes no lock, so that it
    is safe even in a process with threads.

    Raises:
        OSError: the program cannot be executed.
    """
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
        preexec_fn=partial(_die_with_parent, os.getpid()),  # noqa: PLW1509 - see above
    )


def _die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process with its parent, which may be gone already; exec keeps the request.

    As `worker/processes.py` has it, which is not for this package to import.
    """
    _PRCTL(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)


class _Streams:
    """Takes what a child writes, without ever blocking on it."""

    def __init__(self, process: subprocess.Popen[bytes], limit_bytes: int) -> None:
        self.taken = {"stdout": bytearray(), "stderr": bytearray()}
        self._limit_bytes = limit_bytes
        self._selector = selectors.DefaultSelector()
        self._files: list[IO[bytes]] = []
        for name, file in (("stdout", process.stdout), ("stderr", process.stderr)):
            if file is not None:
                os.set_blocking(file.fileno(), False)
                self._files.append(file)
                self._selector.register(file, selectors.EVENT_READ, name)

    def take(self, wait_s: float) -> bool:
        """Read what is there; whether anything came."""
        if not self._selector.get_map():
            time.sleep(wait_s)
            return False
        came = False
        for key, _ in self._selector.select(wait_s):
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
            self.taken[key.data] += data
            came = came or bool(data)
        return came

    @property
    def flooded(self) -> bool:
        """Whether one stream is over the limit."""
        return any(len(data) > self._limit_bytes for data in self.taken.values())

    def close(self) -> None:
        """Close the pipes."""
        self._selector.close()
        for file in self._files:
            file.close()


def _watch(process: subprocess.Popen[bytes], streams: _Streams, deadline: float) -> str:
    while time.monotonic() < deadline:
        ended = _has_ended(process.pid)
        streams.take(0 if ended else _TICK_S)
        while ended and not streams.flooded and streams.take(0):
            pass  # a descendant may keep the pipes open, so the end of the child ends the reading
        if streams.flooded:
            return "flooded"
        if ended:
            return "exited"
    return "hung"


def _has_ended(pid: int) -> bool:
    """Whether a child of ours has ended; it stays unreaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """Kill the child's group and reap the child; its pid if it does not die."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing of it is left
    except PermissionError:
        pass  # it changed its user: left behind below
    try:
        process.wait(timeout=_DEATH_S)
    except subprocess.TimeoutExpired:
        return process.pid
    return None

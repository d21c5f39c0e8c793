"""The process in which one model is imported: started, watched, and ended with all that it started.

Standard library only.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..worker import processes
from ..worker.processes import COOKIE_VARIABLE
from ..worker.progress import Clock
from ..worker.progress import progress_of
from ..worker.signals import STACKS_SIGNAL

KEPT_BYTES = 8192
"""Of what a model prints, so much is kept of its beginning and of its end."""

ANSWER_MAX_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 16
_CHUNKS_A_POLL = 64
_LOOK_EVERY_S = 0.2
_STACK_WAIT_S = 0.3
_EXIT_WAIT_S = 1.0
"""For an interpreter that has answered, to hand on what it printed and to exit."""
_DEATH_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """What became of the process."""

    why: str
    """`exited` by itself, `answered` and was ended, `hung`, `overdue`, `closed` by the caller."""
    answer: bytes
    output: str
    """What it printed, without the middle of much."""
    stack: str
    """Where it stood when it had hung, by faulthandler; empty where that does not answer."""
    returncode: int | None
    """Exit status; -N where signal N ended it; None unless it exited by itself."""
    seconds: float
    """Since its start."""
    left: tuple[int, ...]
    """pids of its family that SIGKILL did not end."""


class Kept:
    """The beginning and the end of an output of any length."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._head = b""
        self._tail = b""
        self._total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take what was printed next."""
        self._total_bytes += len(data)
        room = self._limit_bytes - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-self._limit_bytes :]

    def text(self) -> str:
        """What was kept, and how much was not."""
        cut_bytes = self._total_bytes - len(self._head) - len(self._tail)
        cut = f"\n... {cut_bytes} bytes cut ...\n".encode() if cut_bytes else b""
        return (self._head + cut + self._tail).decode(errors="replace")


class _Patience:
    """With one import: it may be slow as long as its family does anything, but not for ever."""

    def __init__(self, pid: int, cookie: str, *, timeout_s: float, idle_s: float) -> None:
        self._pid = pid
        self._cookie = cookie
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._idle = Clock()
        self._total = Clock()
        self._looked_at = float("-inf")

    def is_out(self, now: float) -> str:
        """Look at the family, not at every call; `hung` or `overdue`, else empty."""
        if now - self._looked_at < _LOOK_EVERY_S:
            return ""
        self._looked_at = now
        # Time in which nobody looked does not count: who was suspended cannot say that it took long.
        watched_s = self._total.look("started", now)
        if self._idle.look(self._progress(), now) > self._idle_s:
            return "hung"
        return "overdue" if watched_s > self._timeout_s else ""

    def _progress(self) -> frozenset[tuple[int, tuple[int, ...]]]:
        """What the process and its descendants do: one that waits for a compiler does not hang."""
        family = {self._pid, *processes.with_cookie(self._cookie)}
        return frozenset((pid, progress_of(pid)) for pid in family)


class ImportProcess:
    """See the module's text."""

    def __init__(
        self,
        name: str,
        *,
        python: str,
        worker: Path,
        environment: Mapping[str, str],
        timeout_s: float,
        idle_s: float,
    ) -> None:
        """Start it.

        Raises:
            OSError: the interpreter cannot be executed.
        """
        self._cookie = secrets.token_hex(8)
        self._output = Kept()
        self._stack = Kept()
        self._answer = b""
        self._out_of_patience = ""
        self._wait_until = float("inf")
        self._started = time.monotonic()
        self._answer_fd, answer_in = os.pipe()
        self._output_fd, output_in = os.pipe()
        self._open = {self._answer_fd, self._output_fd}
        argv = [python, str(worker), "model", "--name", name, "--result", str(answer_in)]
        try:
            self._process = _started(
                argv, {**environment, COOKIE_VARIABLE: self._cookie}, output_in, answer_in
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(answer_in)
            os.close(output_in)
        for fd in self._open:
            os.set_blocking(fd, False)
        self._patience = _Patience(self._process.pid, self._cookie, timeout_s=timeout_s, idle_s=idle_s)

    @property
    def readable_fds(self) -> set[int]:
        """Descriptors that tell when there is something to read; those at their end are not among them."""
        return set(self._open)

    def poll(self) -> Ended | None:
        """Take what it wrote and look how it is; what became of it once it has ended, or had to be."""
        has_ended = _has_ended(self._process.pid)  # asked first: all that it wrote is then in the pipes
        self._take(_CHUNKS_A_POLL)
        if has_ended:
            return self._end("exited" if not self._out_of_patience else self._out_of_patience)
        self._judge(time.monotonic())
        if time.monotonic() < self._wait_until:
            return None
        return self._end(self._out_of_patience or "answered")

    def close(self) -> Ended:
        """End it, whatever it is doing."""
        return self._end("closed")

    def _judge(self, now: float) -> None:
        """Set how long it is still waited for, if its end is in sight."""
        if self._wait_until != float("inf"):
            return
        if len(self._answer) > ANSWER_MAX_BYTES:
            self._wait_until = now
        elif self._answer.count(b"\n") > 1:  # both pieces
            self._wait_until = now + _EXIT_WAIT_S
        else:
            self._out_of_patience = self._patience.is_out(now)
            if self._out_of_patience:
                self._wait_until = now + _STACK_WAIT_S
                self._process.send_signal(STACKS_SIGNAL)

    def _take(self, chunks: int) -> None:
        """Read what is there, at most so many chunks of each pipe."""
        for fd in tuple(self._open):
            for _ in range(chunks):
                try:
                    data = os.read(fd, _CHUNK_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    self._open.discard(fd)
                    break
                self._keep(fd, data)

    def _keep(self, fd: int, data: bytes) -> None:
        if fd == self._output_fd:
            (self._stack if self._out_of_patience else self._output).add(data)
        elif len(self._answer) <= ANSWER_MAX_BYTES:
            self._answer += data

    def _end(self, why: str) -> Ended:
        """Kill the process, its group and all that carry its cookie; then hear out the pipes."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # not reaped yet: the number is still its own
        except (ProcessLookupError, PermissionError):
            pass  # nothing of the group is left, or it changed its user and is told below
        try:
            returncode: int | None = self._process.wait(timeout=_DEATH_S)
        except subprocess.TimeoutExpired:
            returncode = None
        seconds = time.monotonic() - self._started
        left = set(processes.kill_family(self._cookie, timeout_s=_DEATH_S))
        if returncode is None and self._process.poll() is None:
            left.add(self._process.pid)
        self._take(_CHUNKS_A_POLL)  # no writer is left, so what is there is bounded
        self._close_pipes()
        return Ended(
            why=why,
            answer=self._answer,
            output=self._output.text(),
            stack=self._stack.text(),
            returncode=returncode if why == "exited" else None,
            seconds=seconds,
            left=tuple(sorted(left)),
        )

    def _close_pipes(self) -> None:
        os.close(self._answer_fd)
        os.close(self._output_fd)
        self._open.clear()


def _started(
    argv: Sequence[str], environment: Mapping[str, str], output: int, inherited: int
) -> subprocess.Popen[bytes]:
    """In a session of its own: the terminal's Ctrl-C is the supervisor's to handle."""
    return subprocess.Popen(
        [*argv, "--parent", str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(inherited,),
        start_new_session=True,
        env=dict(environment),
    )


def _has_ended(pid: int) -> bool:
    """Whether a child of ours has ended; it stays unreaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

"""The supervisor's side of the zygote: starts it, hears it and its ranks, orders it, ends it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..worker import node_local
from ..worker import processes
from ..worker.channel import ChannelError
from ..worker.channel import Message
from ..worker.channel import Reader
from ..worker.channel import order_line
from .environment import unused_caches

OUTPUT_MAX_BYTES = 1 << 20
TAIL_BYTES = 4096
_CHUNK_BYTES = 1 << 16
_TICK_S = 0.01
_DEAF_AFTER_S = 5.0


class ZygoteDeaf(Exception):
    """The zygote lives and does not take its orders; the text says for how long."""


class ZygoteProcess:
    """One zygote process and the pipes to it."""

    def __init__(
        self, python: str, worker: Path, environment: Mapping[str, str], cookie: str, log: Path
    ) -> None:
        """Start it.

        Raises:
            OSError: the interpreter cannot be executed at all.
        """
        self.cookie, self.worker = cookie, worker
        self.ranks: set[int] = set()
        """pids of all ranks that it said it forked: ours to collect if it dies first."""
        self.closed_cleanly = False
        self.output_tail = b""
        self._output_left = OUTPUT_MAX_BYTES
        self._log = log
        self._wake_fd: int | None = None
        self._put_back: list[Message] = []
        self._reader = Reader()
        self._selector = selectors.DefaultSelector()
        self._events_fd, events_out = os.pipe()
        orders_in, self._orders_fd = os.pipe()
        self._output_fd, output_in = os.pipe()
        argv = [python, str(worker), "zygote", "--events", str(events_out), "--orders", str(orders_in)]
        try:
            argv += ["--parent", str(os.getpid())]
            made = {**environment, **unused_caches(log.parent)}
            self._process = _start(argv, made, output_in, (events_out, orders_in))
        except OSError:
            self._selector.close()
            for fd in (self._events_fd, self._orders_fd, self._output_fd):
                os.close(fd)
            raise
        finally:
            for fd in (events_out, orders_in, output_in):
                os.close(fd)
        os.set_blocking(self._orders_fd, False)
        for fd in (self._events_fd, self._output_fd):
            os.set_blocking(fd, False)
            self._selector.register(fd, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wake_on(self, fd: int) -> None:
        """Return from `hear` also when this descriptor becomes readable."""
        self._wake_fd = fd
        self._selector.register(fd, selectors.EVENT_READ)

    def hear(self, timeout_s: float) -> list[Message]:
        """Messages of the zygote and its ranks; empty when none came in time.

        Raises:
            ChannelError: something that is not our worker writes on the pipe.
        """
        messages, self._put_back = self._put_back, []
        for key, _ in self._selector.select(0 if messages else timeout_s):
            if key.fd == self._events_fd:
                messages += self._reader.feed(self._read(key.fd))
                self.ranks.update(pid for message in messages for pid in message.get("pids", ()))
            elif key.fd == self._output_fd:
                self._keep_output(self._read(key.fd))
        return messages

    def put_back(self, messages: list[Message]) -> None:
        """Messages that were heard with one that was waited for, and are somebody else's to take."""
        self._put_back += messages

    def _read(self, fd: int) -> bytes:
        """What is there; a pipe that has ended is not asked again."""
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            self._selector.unregister(fd)
        return data

    def _keep_output(self, data: bytes) -> None:
        """Log what the process prints, up to a limit; its end is kept for messages."""
        self.output_tail = (self.output_tail + data)[-TAIL_BYTES:]
        kept, self._output_left = data[: self._output_left], max(0, self._output_left - len(data))
        try:
            with self._log.open("ab") as file:
                file.write(kept)
        except OSError:
            pass  # a full disk: the tail in memory serves the messages

    def order(self, order: str, **facts: Any) -> None:
        """Send one order; a zygote that is gone is noticed by its exit, not here.

        Raises:
            ZygoteDeaf: the pipe stays full, since a stopped zygote reads nothing.
            ChannelError: as in `hear`.
        """
        left = order_line({"order": order, **facts})
        deadline = time.monotonic() + _DEAF_AFTER_S
        while left:
            try:
                left = left[os.write(self._orders_fd, left) :]
            except BrokenPipeError:
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ZygoteDeaf(f"it has taken no orders for {_DEAF_AFTER_S:g} s") from None
                self.put_back(self.hear(0))  # it may itself wait for us to read
                time.sleep(_TICK_S)

    def exit(self) -> str | None:
        """How it ended ("exit code 3", "SIGKILL"), or None while it lives."""
        code = self._process.poll()
        if code is None:
            return None
        return exit_text(code if code >= 0 else None, _signal_name(-code) if code < 0 else None)

    def signal(self, number: int) -> None:
        """Signal the zygote itself: it is our child, so its pid is its own until we have waited for it."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def close(self, *, hurry: bool) -> list[int]:
        """End it, its ranks and all descendants, and remove the node-local folder; never without bound.

        Returns:
            pids of ours that would not die (a process in the kernel's D state).
        """
        if self._wake_fd is not None:
            self._selector.unregister(self._wake_fd)  # nobody drains it any more
        os.close(self._orders_fd)  # the end of orders is the order to end
        if not self._await_exit(0.3 if hurry else 3.0):
            self.signal(signal.SIGKILL)
            self._await_exit(2.0)
        left: list[int] = []
        if not self.closed_cleanly:
            left = processes.kill_family(self.cookie, timeout_s=2.0, known=self.ranks)
            node_local.remove(self.cookie)
        self._selector.close()
        os.close(self._events_fd)
        os.close(self._output_fd)
        return left

    def _await_exit(self, timeout_s: float) -> bool:
        """Wait for its end while hearing it out."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                for message in self.hear(_TICK_S):
                    self.closed_cleanly |= message["event"] == "closed" and not message["left"]
            except ChannelError:
                pass
            if self._process.poll() is not None:
                return True
        return False


def _start(
    argv: Sequence[str], environment: Mapping[str, str], output: int, inherited: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """In a session of its own: the terminal's Ctrl-C is the supervisor's to handle.

    The kernel ends it with us from before its first instruction on: an interpreter that hangs before it
    comes to our code, or that is none, could not ask for that itself. The worker takes it back once it has
    something to clean up. What runs between fork and exec is two system calls: it imports nothing and
    takes no lock, so that it is safe even in a caller's process with threads.
    """
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=inherited,
        start_new_session=True,
        cwd=_folder_that_exists(),
        env=dict(environment),
        preexec_fn=partial(processes.die_with_parent, os.getpid()),  # noqa: PLW1509 - see above
    )


def _folder_that_exists() -> str | None:
    """None for the caller's; in one that was removed libraries of torch cannot be loaded."""
    try:
        Path.cwd()
    except OSError:
        return "/"
    return None


def exit_text(code: int | None, signal_name: str | None) -> str:
    """How a process ended, in words."""
    return signal_name if signal_name is not None else f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""Signals that end a run, turned into a question that the supervisor's loop asks.

No exception is thrown into the middle of a clean-up: the handlers only count, and wake the loop.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from types import TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The user, the terminal or the system wants this run to end."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Interrupts:
    """Counts SIGINT, SIGTERM and SIGHUP while it is entered. An ignored SIGHUP (nohup) stays ignored."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self._before: dict[signal.Signals, Any] = {}
        self.fd = -1
        self._write_fd = -1

    @property
    def hurry(self) -> bool:
        """Asked twice: clean up at once, without grace."""
        return len(self.received) > 1

    def raise_if_any(self) -> None:
        """Raise `Interrupted` once a signal has come."""
        if self.received:
            raise Interrupted(self.received[0])

    def __enter__(self) -> Interrupts:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
            if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
                # A caller that ignores its children's ends would have us lose how the zygote ended.
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not set from Python, which Python cannot put back.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(self.fd)
        os.close(self._write_fd)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number).name)
        try:
            os.write(self._write_fd, b"!")
        except BlockingIOError:
            pass  # the loop has enough to read

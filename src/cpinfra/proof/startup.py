"""From the start of the target interpreter to torch's answer, each step within its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..outcome import Finding
from ..worker.channel import ChannelError
from ..worker.channel import Message
from ..worker.signals import STACKS_SIGNAL
from . import findings
from .deadlines import Budgets
from .deadlines import Clock
from .deadlines import progress_of
from .zygote import Zygote

_TICK_S = 0.05
_STACK_WAIT_S = 0.3


class StartFailure(Exception):
    """The target interpreter cannot be used; carries the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.got)
        self.finding = finding


@dataclass(frozen=True, kw_only=True, slots=True)
class Startup:
    """Waits for one zygote to say what torch it has."""

    zygote: Zygote
    python: str
    budgets: Budgets
    tick: Callable[[], None]
    """Called at every turn; may raise to interrupt."""

    def software(self) -> dict[str, Any]:
        """The `software` event, once `hello` and the import are through.

        Raises:
            StartFailure: it is no usable interpreter.
        """
        self._await_hello()
        return self._await_import()

    def _await_hello(self) -> None:
        started = time.monotonic()
        while (waited := time.monotonic() - started) < self.budgets.hello_s:
            for message in self._hear():
                if message["event"] == "too-old":
                    raise StartFailure(findings.too_old(self.python, message))
                if message["event"] == "hello":
                    return
            how = self.zygote.exit()
            if how is not None:
                raise StartFailure(findings.not_python(self.python, f"it ended by {how}", self._output()))
        raise StartFailure(
            findings.not_python(self.python, f"it said nothing for {waited:.0f} s", self._output())
        )

    def _await_import(self) -> dict[str, Any]:
        started, clock = time.monotonic(), Clock()
        while True:
            for message in self._hear():
                if message["event"] == "software":
                    return message
                if message["event"] in ("import-failed", "bug"):
                    raise StartFailure(_failure(self.python, message))
            if (how := self.zygote.exit()) is not None:
                raise StartFailure(findings.import_died(self.python, how, self._output()))
            now = time.monotonic()
            idle = clock.look(progress_of(self.zygote.pid), now) > self.budgets.import_idle_s
            if idle or now - started > self.budgets.import_max_s:
                raise StartFailure(findings.import_hung(self.python, now - started, idle, self._stack()))

    def _hear(self) -> list[Message]:
        """What the zygote says next; noise on the pipe means that it is not our worker."""
        self.tick()
        try:
            return self.zygote.hear(_TICK_S)
        except ChannelError as error:
            raise StartFailure(findings.not_python(self.python, str(error), self._output())) from error

    def _stack(self) -> str:
        """Where the import stands, as faulthandler prints it."""
        self.zygote.signal(STACKS_SIGNAL)
        deadline = time.monotonic() + _STACK_WAIT_S
        while time.monotonic() < deadline:
            self.zygote.hear(_TICK_S)
        return self._output()

    def _output(self) -> str:
        """The end of what the interpreter printed, what is still in the pipe included."""
        try:
            self.zygote.hear(0)
        except ChannelError:
            pass
        return self.zygote.output_tail.decode(errors="replace")


def _failure(python: str, message: Message) -> Finding:
    if message["event"] == "bug":
        return findings.worker_bug(python, message["traceback"])
    return findings.import_failed(python, message)

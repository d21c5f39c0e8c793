"""From the start of the target interpreter to torch's answer, each step within its deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..outcome import Finding
from ..worker.channel import ChannelError
from ..worker.channel import Message
from ..worker.progress import process_state
from ..worker.signals import STACKS_SIGNAL
from . import findings
from . import run_findings
from .deadlines import Budgets
from .deadlines import Patience
from .zygote import ZygoteProcess

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

    zygote: ZygoteProcess
    python: str
    budgets: Budgets
    tick: Callable[[], None]
    """Called at every turn; may raise to interrupt."""

    def software(self) -> dict[str, Any]:
        """The `software` event, once `hello` and the import are through.

        Raises:
            StartFailure: it is no usable interpreter, or was left without the worker.
        """
        try:
            self._await_hello()
            return self._await_import()
        except StartFailure as failure:
            told = findings.unless_gone(failure.finding, self.zygote.worker)
            raise StartFailure(told) from failure

    def _await_hello(self) -> None:
        patience = Patience(self.zygote.pid, idle_s=self.budgets.hello_idle_s, max_s=self.budgets.hello_max_s)
        while not patience.is_out():
            how, messages = self._hear()
            for place, message in enumerate(messages):
                if message["event"] == "wrapped":
                    raise StartFailure(findings.wrapped(self.python))
                if message["event"] == "too-old":
                    raise StartFailure(findings.too_old(self.python, message))
                if message["event"] == "hello":
                    self.zygote.put_back(messages[place + 1 :])
                    return
            if how is not None and not messages:
                raise StartFailure(findings.not_python(self.python, f"it ended by {how}", self._output()))
        self._refuse_stopped()
        silence = f"it said nothing for {patience.waited_s:.0f} s"
        raise StartFailure(findings.not_python(self.python, silence, self._output()))

    def _await_import(self) -> dict[str, Any]:
        patience = Patience(
            self.zygote.pid, idle_s=self.budgets.import_idle_s, max_s=self.budgets.import_max_s
        )
        while not patience.is_out():
            how, messages = self._hear()
            for place, message in enumerate(messages):
                if message["event"] == "software":
                    self.zygote.put_back(messages[place + 1 :])
                    return message
                if message["event"] in ("import-failed", "bug"):
                    raise StartFailure(_failure(self.python, message))
            if how is not None and not messages:
                raise StartFailure(findings.import_died(self.python, how, self._output()))
        self._refuse_stopped()
        stack = stack_of(self.zygote)
        raise StartFailure(
            findings.import_hung(self.python, "torch", patience.waited_s, patience.idle, stack)
        )

    def _refuse_stopped(self) -> None:
        """Of one that somebody has stopped nothing else is to be told.

        Raises:
            StartFailure: it is stopped.
        """
        if (state := process_state(self.zygote.pid)) in ("T", "t"):
            raise StartFailure(run_findings.zygote_stopped(self.python, state))

    def _hear(self) -> tuple[str | None, list[Message]]:
        """(How it ended, if it has; what it says next). Noise on the pipe means that it is not our worker.

        Asked in this order: of one that has ended before, all that it said is in the pipe.
        """
        self.tick()
        how = self.zygote.exit()
        try:
            return how, self.zygote.hear(_TICK_S)
        except ChannelError as error:
            raise StartFailure(findings.not_python(self.python, str(error), self._output())) from error

    def _output(self) -> str:
        """The end of what the interpreter printed, what is still in the pipe included."""
        return output_of(self.zygote)


def stack_of(zygote: ZygoteProcess) -> str:
    """Where the zygote stands, as faulthandler prints it at the end of its output."""
    zygote.signal(STACKS_SIGNAL)
    deadline = time.monotonic() + _STACK_WAIT_S
    while time.monotonic() < deadline:
        output_of(zygote, _TICK_S)
    return output_of(zygote)


def output_of(zygote: ZygoteProcess, wait_s: float = 0.0) -> str:
    """The end of what the zygote has printed; its messages, if there are any, no longer matter."""
    try:
        zygote.hear(wait_s)
    except ChannelError:
        pass
    return zygote.output_tail.decode(errors="replace")


def _failure(python: str, message: Message) -> Finding:
    if message["event"] == "bug":
        return run_findings.worker_bug(python, message["traceback"])
    return findings.import_failed(python, message)

"""Signals that end a run: counted, never thrown into the middle of something, and handed back."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forks
from cpinfra.proof.interrupts import Interrupted
from cpinfra.proof.interrupts import Interrupts

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WITHIN_S = 10.0


def in_a_process(work: Callable[[], object]) -> int:
    """Run `work` in a process of its own, with the handlers that a fresh Python has; its exit code."""

    def fresh() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        work()

    return forks.wait(forks.fork(fresh))


def signal_self(*numbers: int) -> None:
    """As the terminal or the system would."""
    for number in numbers:
        os.kill(os.getpid(), number)


def readable(fd: int) -> bool:
    """Whether a wait on this descriptor would end now."""
    return bool(select.select([fd], [], [], 0)[0])


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_is_counted_and_asked_for(number: signal.Signals) -> None:
    """It interrupts nothing by itself; the loop wakes, asks, and learns the signal's name."""

    def work() -> None:
        with Interrupts() as interrupts:
            interrupts.raise_if_any()
            assert not readable(interrupts.fd)
            signal_self(number)
            assert readable(interrupts.fd)
            assert interrupts.received == [number.name]
            assert not interrupts.hurry
            with pytest.raises(Interrupted, match=f"^{number.name}$") as raised:
                interrupts.raise_if_any()
            assert raised.value.name == number.name

    assert in_a_process(work) == 0


def test_a_waiting_loop_is_woken() -> None:
    """A signal from outside ends the wait long before its time is up."""
    read, write = os.pipe()

    def work() -> None:
        with Interrupts() as interrupts:
            os.write(write, b"!")
            assert select.select([interrupts.fd], [], [], WITHIN_S)[0]
            assert interrupts.received == ["SIGTERM"]

    pid = forks.fork(work)
    assert os.read(read, 1) == b"!"
    os.kill(pid, signal.SIGTERM)
    assert forks.wait(pid) == 0
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("second", ENDING)
def test_asked_twice_it_hurries(second: signal.Signals) -> None:
    """The first one is the one that is told, whatever the second is."""

    def work() -> None:
        with Interrupts() as interrupts:
            signal_self(signal.SIGINT, second)
            assert interrupts.received == ["SIGINT", second.name]
            assert interrupts.hurry
            with pytest.raises(Interrupted, match=r"^SIGINT$"):
                interrupts.raise_if_any()

    assert in_a_process(work) == 0


def test_what_is_ignored_stays_ignored() -> None:
    """Under nohup a hang-up does not end the run; Ctrl-C still does; afterwards both are as before."""

    def work() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Interrupts() as interrupts:
            signal_self(signal.SIGHUP, signal.SIGHUP)
            interrupts.raise_if_any()
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal_self(signal.SIGINT)
            assert interrupts.received == ["SIGINT"]
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    assert in_a_process(work) == 0


PROGRAM = """
import os, signal
from cpinfra.proof.interrupts import Interrupts
with Interrupts() as interrupts:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    print(*interrupts.received)
"""


@pytest.mark.parametrize(
    ("ignored", "received"),
    [((), "SIGHUP SIGINT SIGTERM"), (("HUP",), "SIGINT SIGTERM"), (("INT",), "SIGHUP SIGTERM")],
)
def test_a_program_started_with_a_signal_ignored_respects_it(ignored: tuple[str, ...], received: str) -> None:
    """As nohup does with the hang-up, and a shell with Ctrl-C for what it starts in the background."""
    # The tests themselves may run in the background.
    prefix = ["env", "--default-signal=INT,TERM,HUP", *(f"--ignore-signal={name}" for name in ignored)]
    ended = subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{received}\n", "")


def test_the_handlers_of_before_are_back_afterwards() -> None:
    """Those of Python, of the caller, and the default."""

    def mine(number: int, frame: Any) -> None:
        raise AssertionError

    def work() -> None:
        signal.signal(signal.SIGTERM, mine)
        before = [signal.getsignal(number) for number in ENDING]
        with Interrupts() as interrupts:
            assert mine not in [signal.getsignal(number) for number in ENDING]
            signal_self(signal.SIGTERM)
            assert interrupts.received == ["SIGTERM"]
        assert [signal.getsignal(number) for number in ENDING] == before
        with pytest.raises(KeyboardInterrupt):
            signal_self(signal.SIGINT)
        with pytest.raises(AssertionError):
            signal_self(signal.SIGTERM)

    assert in_a_process(work) == 0


def test_they_are_back_after_an_error_too() -> None:
    """However the block is left: the next SIGTERM ends the program."""

    def work() -> None:
        with pytest.raises(KeyError), Interrupts():
            raise KeyError
        signal_self(signal.SIGTERM)

    assert in_a_process(work) == -signal.SIGTERM


def test_a_handler_that_python_does_not_know_becomes_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was installed from C cannot be put back; leaving the block is no error for it."""
    real = signal.signal

    def unknown(number: signal.Signals, handler: Any) -> Any:
        real(number, handler)
        return None

    def work() -> None:
        monkeypatch.setattr(signal, "signal", unknown)
        with Interrupts():
            pass
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    assert in_a_process(work) == 0


def test_a_storm_of_signals_neither_blocks_nor_raises() -> None:
    """More of them than the wake-up pipe has room for are still counted."""

    def work() -> None:
        with Interrupts() as interrupts:
            room = fcntl.fcntl(interrupts.fd, fcntl.F_SETPIPE_SZ, 4096)
            for _ in range(room + 10):
                signal_self(signal.SIGHUP)
            assert len(interrupts.received) == room + 10
            assert len(os.read(interrupts.fd, 1 << 20)) == room

    assert in_a_process(work) == 0


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    """A caller that runs a proof in a thread keeps its handlers, and gets no error."""

    def work() -> None:
        before = [signal.getsignal(number) for number in ENDING]
        seen: list[object] = []

        def thread() -> None:
            with Interrupts() as interrupts:
                interrupts.raise_if_any()
                seen.extend(signal.getsignal(number) for number in ENDING)

        running = threading.Thread(target=thread)
        running.start()
        running.join(WITHIN_S)
        assert seen == before

    assert in_a_process(work) == 0


def test_its_descriptors_are_its_own() -> None:
    """They do not block, no program inherits them, and they are closed at the end."""
    before = open_files()
    with Interrupts() as interrupts:
        assert not os.get_blocking(interrupts.fd)
        assert not os.get_inheritable(interrupts.fd)
        assert open_files() == before + 2

    assert open_files() == before

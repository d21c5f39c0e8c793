"""Whether this process may fork: threads, an open driver, and the word of a forked canary."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from cpinfra.worker import fork_safety

SOURCES = Path(fork_safety.__file__).parents[2]
_PR_SET_NAME = 15
CANARY_S = 0.3


@contextmanager
def thread(name: bytes) -> Iterator[None]:
    """A thread that has this name for the kernel, until the block ends."""
    named, end = threading.Event(), threading.Event()

    def idle() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name)
        named.set()
        end.wait(60)

    started = threading.Thread(target=idle)
    started.start()
    try:
        assert named.wait(10)
        yield
    finally:
        end.set()
        started.join()


def test_threads_beside_the_main_one_are_named() -> None:
    """Two of them, by what the kernel calls them, also where that is no text; gone with them."""
    with thread(b"first \xff"), thread(b"second"):
        (problem,) = fork_safety._other_threads()
    after = fork_safety._other_threads()

    assert "threads beside the main one: " in problem
    assert "first \N{REPLACEMENT CHARACTER}" in problem
    assert "second" in problem
    assert "second" not in " ".join(after)


def test_a_thread_that_is_just_ending_is_waited_for() -> None:
    """As faulthandler's, which is listed for a while after it was cancelled: no reason to refuse a fork."""
    code = (
        "import threading\n"
        "from cpinfra.worker import fork_safety\n"
        "threading.Timer(0.1, int).start()\n"
        "assert not fork_safety._other_threads()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


def test_a_thread_that_ends_while_it_is_looked_at_is_none(tmp_path: Path) -> None:
    """Its folder is gone when its name is read; one without a name is still one."""
    (tmp_path / "comm").write_text("\n")

    assert fork_safety._thread_name(tmp_path / "7") == ""
    assert fork_safety._thread_name(tmp_path) == "without a name"


@pytest.mark.parametrize(
    ("targets", "problems"),
    [
        (["/dev/null", "/dev/nvidia-uvm", "/dev/nvidia0"], ["/dev/nvidia-uvm is open"]),
        (["/dev/nvidiactl", "/dev/nvidia-uvm-tools"], []),
        ([], []),
    ],
)
def test_an_open_driver_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, targets: list[str], problems: list[str]
) -> None:
    """The file that comes with a context, and no other; a descriptor that closes meanwhile is passed over."""
    for fd, target in enumerate(targets):
        (tmp_path / str(fd)).symlink_to(target)
    (tmp_path / "99").touch()  # no link: to read it fails, as for one that is gone
    monkeypatch.setattr(fork_safety, "Path", {"/proc/self/fd": tmp_path}.__getitem__)

    assert fork_safety._driver_files() == problems


def die() -> bool:
    """End the child that asks, as a driver may."""
    os.kill(os.getpid(), signal.SIGKILL)
    return False


def hang() -> bool:
    """Keep the child that asks, as a lock may that nobody holds any more."""
    while True:
        signal.pause()


def raise_error() -> bool:
    """What a question does that this torch cannot answer."""
    raise RuntimeError("no driver")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pids of all children that are forked, under a short bound."""
    pids: list[int] = []
    real = os.fork

    def fork() -> int:
        pid = real()
        if pid:
            pids.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(fork_safety, "_CANARY_S", CANARY_S)
    return pids


NO_ANSWER = [f"a forked child died, or gave no answer within {CANARY_S:.0f} s"]


@pytest.mark.parametrize(
    ("question", "problems"),
    [
        (lambda: False, []),
        (lambda: True, ["a forked child finds CUDA initialised by its parent"]),
        (die, NO_ANSWER),
        (hang, NO_ANSWER),
        (raise_error, NO_ANSWER),
    ],
    ids=["good", "bad", "dead", "slow", "raises"],
)
def test_the_canary_says_whether_cuda_would_work_in_a_child(
    monkeypatch: pytest.MonkeyPatch,
    forked: list[int],
    question: Callable[[], bool],
    problems: list[str],
) -> None:
    """Its silence is a problem, too: it is waited for no longer than the bound, and never left behind."""
    monkeypatch.setattr(torch._C, "_cuda_isInBadFork", question, raising=False)
    started = time.monotonic()

    assert fork_safety._canary() == problems

    assert time.monotonic() - started < CANARY_S + 5
    (pid,) = forked
    assert not Path(f"/proc/{pid}").exists()


def test_a_cpu_build_has_no_such_question(monkeypatch: pytest.MonkeyPatch, forked: list[int]) -> None:
    """There is no CUDA to spoil: nothing is forked to ask."""
    monkeypatch.delattr(torch._C, "_cuda_isInBadFork", raising=False)

    assert fork_safety._canary() == []
    assert forked == []


def test_an_answer_comes_from_a_child(forked: list[int]) -> None:
    """What the question does to its process stays there; no answer is none."""
    done: list[int] = []

    def question() -> bytes:
        done.append(1)
        return str(os.getpid()).encode()

    assert fork_safety.ask_in_child(question) == str(forked[0]).encode()
    assert fork_safety.ask_in_child(lambda: b"") is None
    assert done == []


def test_all_problems_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they are looked for."""
    for name in ("_other_threads", "_driver_files", "_canary"):
        monkeypatch.setattr(fork_safety, name, lambda name=name: [name])

    assert fork_safety.problems() == ["_other_threads", "_driver_files", "_canary"]


def test_an_interpreter_that_has_just_imported_torch_is_safe() -> None:
    """As the zygote starts it: one thread for each library."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    code = "from cpinfra.worker import fork_safety; print(fork_safety.problems())"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, **single, "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.stdout == "[]\n", ended.stderr

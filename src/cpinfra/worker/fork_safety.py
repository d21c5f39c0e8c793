"""Whether this process may fork ranks: measured, not assumed.

`torch.cuda.is_initialized()` proves nothing: `is_available()` spoils a fork and leaves it False. A forked
canary asks CUDA's own opinion instead. Standard library, and torch where it is loaded already.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

_CANARY_S = 20.0
"""A child that asks a driver may have to wait for it; one that deadlocks must not be waited for."""

_ENDING_S = 1.0
"""A thread that was told to end, even joined, is still listed for some milliseconds on a busy machine."""
_LOOK_EVERY_S = 0.002


def problems() -> list[str]:
    """Why a fork from here would not be safe; empty when it is."""
    return [*_other_threads(), *_driver_files(), *_canary()]


def _other_threads() -> list[str]:
    """Threads but the main one: whatever lock they hold at the fork stays locked in the child.

    One that is just ending is waited for: faulthandler's, for example, outlives its own join.
    """
    deadline = time.monotonic() + _ENDING_S
    while (names := _thread_names()) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    return [f"{len(names)} threads beside the main one: {', '.join(names)}"] if names else []


def _thread_names() -> list[str]:
    """Names of the threads beside the main one."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != os.getpid()]
    return sorted(name for task in tasks if (name := _thread_name(task)))


def _thread_name(task: Path) -> str:
    """What the thread is called; empty if it has ended meanwhile."""
    try:
        return (task / "comm").read_bytes().decode(errors="replace").strip() or "without a name"
    except OSError:
        return ""


def _driver_files() -> list[str]:
    """An open /dev/nvidia-uvm means that this process has a CUDA context."""
    targets = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(fd.readlink()))
        except OSError:
            continue  # the descriptor that lists the folder
    return ["/dev/nvidia-uvm is open"] if "/dev/nvidia-uvm" in targets else []


def _canary() -> list[str]:
    """Fork a child that answers whether CUDA takes it for a bad fork; CPU builds have no such question."""
    question = getattr(torch._C, "_cuda_isInBadFork", None)
    if question is None:
        return []
    answer = ask_in_child(lambda: b"bad" if question() else b"good")
    if answer is None:
        return [f"a forked child died, or gave no answer within {_CANARY_S:.0f} s"]
    return ["a forked child finds CUDA initialised by its parent"] if answer != b"good" else []


def ask_in_child(question: Callable[[], bytes]) -> bytes | None:
    """What a function returns in a forked child, so that what it does to a process dies with the child.

    Returns:
        Its answer (at most a pipe's worth), or None if the child died or took too long.
    """
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        _answer(write_fd, question)
    os.close(write_fd)
    try:
        ready, _, _ = select.select([read_fd], [], [], _CANARY_S)
        answer = os.read(read_fd, select.PIPE_BUF) if ready else b""
    finally:
        os.close(read_fd)
        os.kill(pid, signal.SIGKILL)  # it has answered, or it never will
        os.waitpid(pid, 0)
    return answer or None


def _answer(write_fd: int, question: Callable[[], bytes]) -> NoReturn:
    """In the child: answer and be gone, without the exit handlers of what the parent imported."""
    try:
        os.write(write_fd, question())
    finally:
        os._exit(0)

"""Whether this process may fork ranks: measured, not assumed.

`torch.cuda.is_initialized()` proves nothing: `is_available()` spoils a fork and leaves it False. A forked
canary asks CUDA's own opinion instead. Standard library, and torch where it is loaded already.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch


def problems() -> list[str]:
    """Why a fork from here would not be safe; empty when it is."""
    return [*_other_threads(), *_driver_files(), *_canary()]


def _other_threads() -> list[str]:
    """Threads but the main one: whatever lock they hold at the fork stays locked in the child."""
    tasks = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != os.getpid()]
    names = sorted(name for task in tasks if (name := _thread_name(task)))
    return [f"{len(names)} threads beside the main one: {', '.join(names)}"] if names else []


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
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(1 if question() else 0)
        finally:
            os._exit(2)  # the question raised: a child must never return into its parent's frames
    _, status = os.waitpid(pid, 0)
    if status == 0:
        return []
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
        return ["a forked child finds CUDA initialised by its parent"]
    return [f"a forked child could not tell whether CUDA is initialised (wait status {status})"]

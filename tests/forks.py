"""Forks children for tests: none returns into the test's own frames, and none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cpinfra.worker.processes import die_with_parent

RAISED = 70

_MOUNT = """
import subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", sys.argv[2], "none", sys.argv[1]], check=True)
print("mounted", flush=True)
"""


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a child, which then exits with 0, or with `RAISED`; returns its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = RAISED
    try:
        die_with_parent(parent)
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - a child must never return into its parent's frames
        traceback.print_exc()
    finally:
        os._exit(status)


def wait(pid: int) -> int:
    """Wait for the end of a child that ends by itself; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """The pid of a child that runs `work` until the block ends."""
    pid = fork(work)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def ever(work: Callable[[], object]) -> Callable[[], None]:
    """`work` again and again."""

    def again() -> None:
        while True:
            work()

    return again


def idle() -> None:
    """Do nothing until a signal ends this process."""
    ever(signal.pause)()


def with_tmpfs(place: Path, options: str, program: str) -> str:
    """What a Python program prints that finds a tmpfs with these mount options at its first argument.

    The mount is seen by this program alone, and goes with it. Skips the test where none can be made.
    """
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", _MOUNT + program]
    ended = subprocess.run(
        [*command, str(place), options], capture_output=True, text=True, timeout=60, check=False
    )
    if not ended.stdout.startswith("mounted"):
        pytest.skip(f"a tmpfs cannot be mounted here: {ended.stderr.strip().splitlines()[-1:]}")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.removeprefix("mounted\n")

"""Clean runs raise no alarm, whatever else the machine does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import processes

RUNS = 30
BURN = "import os; os.nice(10)\nwhile True: pass"


@contextmanager
def burners(number: int) -> Iterator[None]:
    """So many processes that take all the CPU time they get, at a lower priority."""
    started = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(number)]
    try:
        yield
    finally:
        for burner in started:
            os.kill(burner.pid, signal.SIGKILL)
            burner.wait()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("batch", "beside"), enumerate([0, 0, 0, 0, 0, 2, 3, 4, 6, 8]), ids=str)
def test_clean_runs_raise_no_alarm(tmp_path: Path, batch: int, beside: int) -> None:
    """Thirty whole runs: each is rehearsed, names no hang, and finds nothing, not even a slow rank."""
    alarms = []
    with burners(beside):
        for number in range(RUNS):
            run = processes.Run(tmp_path / f"{batch}-{number}")
            code, _, _ = run.end()
            report = run.report()
            found = [finding["id"] for finding in report["findings"]]
            if (code, report["hang"], found) != (0, None, []):
                alarms.append((number, code, report["hang"], found))

    assert alarms == []

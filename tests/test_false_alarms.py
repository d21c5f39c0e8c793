"""Clean runs raise no alarm, whatever else the machine does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import processes

RUNS = 30
LOWER = 10
BURN = "import os; os.nice({nice})\nwhile True: pass"
BATCHES = [
    *((0, 0),) * 5,
    *((beside, LOWER) for beside in (2, 3, 4, 6, 8)),
    (4, 0),
]
"""How many burners run beside a batch, and by how much their priority is lower."""


@contextmanager
def burners(number: int, nice: int) -> Iterator[None]:
    """So many processes that take all the CPU time they get."""
    command = [sys.executable, "-c", BURN.format(nice=nice)]
    started = [subprocess.Popen(command) for _ in range(number)]
    try:
        yield
    finally:
        for burner in started:
            os.kill(burner.pid, signal.SIGKILL)
            burner.wait()


def alarms_of(folder: Path) -> list[Any]:
    """What a whole clean run tells that it must not: a code, a hang, a finding, even a slow rank."""
    run = processes.Run(folder)
    code, _, _ = run.end()
    report = run.report()
    found = [finding["id"] for finding in report["findings"]]
    return [] if (code, report["hang"], found) == (0, None, []) else [code, report["hang"], found]


def test_a_clean_run_beside_programs_of_its_priority_raises_no_alarm(tmp_path: Path) -> None:
    """As many as there are CPUs: each rank has half of one at most."""
    with burners(len(os.sched_getaffinity(0)), 0):
        assert alarms_of(tmp_path / "run") == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("batch", "beside", "nice"), [(n, *one) for n, one in enumerate(BATCHES)], ids=str)
def test_clean_runs_raise_no_alarm(tmp_path: Path, batch: int, beside: int, nice: int) -> None:
    """Thirty whole runs: each is rehearsed, names no hang, and finds nothing, not even a slow rank."""
    with burners(beside, nice):
        runs = {number: alarms_of(tmp_path / f"{batch}-{number}") for number in range(RUNS)}

    assert {number: told for number, told in runs.items() if told} == {}

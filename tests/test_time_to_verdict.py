"""The benchmark counts and judges rightly; what it measures is not tested here."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

from programs import BENCHMARKS
from programs import benchmark_named


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """The program, as a module."""
    return benchmark_named("time_to_verdict")


@pytest.mark.parametrize(
    ("value", "target", "judged"),
    [(0.2, 0.2, "| 0.2 | <= 0.2 | met |"), (0.21, 0.2, "**missed**"), (9.0, None, "| 9 | - | - |")],
)
def test_row_is_judged_by_its_target(
    benchmark: ModuleType, value: float, target: float | None, judged: str
) -> None:
    """The bound itself is met; without a target nothing is judged."""
    row = benchmark.Row(figure="f", value=value, unit="", target=target)

    assert judged in str(row)
    assert row.met is (target is None or value <= target)


def test_row_shows_counts_whole(benchmark: ModuleType) -> None:
    """1,152 comparisons are not 1.15e+03."""
    assert "| 1,152 |" in str(benchmark.Row(figure="f", value=1152, unit=""))


def test_stalls_are_inits_beyond_the_bound(benchmark: ModuleType) -> None:
    """Two runs, one of which lost a look-up."""
    side = benchmark.Straightforward(inits_s=[0.1, 0.9, 1.1, 0.2])

    assert side.stalls == 1


def test_span_reaches_from_the_order_to_the_last_exit(benchmark: ModuleType) -> None:
    """Of one generation, whatever the other one does at the time."""
    events = [
        {"t": 1.0, "event": "forked", "generation": 1, "seconds": 0.1},
        {"t": 2.0, "event": "exited", "generation": 1},
        {"t": 2.5, "event": "forked", "generation": 2, "seconds": 0.1},
        {"t": 2.8, "event": "exited", "generation": 2},
        {"t": 2.7, "event": "exited", "generation": 2},
        {"t": 9.9, "event": "end"},
    ]

    assert benchmark.span(events, 2) == pytest.approx(0.4)


def test_peak_counts_every_process_of_a_tree(benchmark: ModuleType) -> None:
    """A child of a child belongs to it; the watching process does not."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True) as process:
        found: set[int] = set()
        for _ in range(500):
            found = benchmark.descendants({process.pid})
            if len(found) == 2:
                break
        try:
            assert len(found) == 2
            assert process.pid in found
            assert os.getpid() not in found
            assert all(benchmark.kib(pid, "smaps_rollup", "Pss:") > 0 for pid in found)
        finally:
            process.communicate("\n")
    assert not benchmark.is_alive(process.pid)
    assert benchmark.kib(process.pid, "status", "VmHWM:") == 0


@pytest.mark.long
@pytest.mark.parametrize("script", ["collectives.py", "dtensor_smoke.py"])
def test_straightforward_side_does_what_it_is_compared_for(script: str) -> None:
    """Each operation once on each of 4 ranks, exactly."""
    command = [sys.executable, str(BENCHMARKS / "straightforward" / script), "--world-size", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    assert ended.returncode == 0, ended.stderr
    compared = [line for line in ended.stdout.splitlines() if line.startswith("compared: ")]
    assert {line: compared.count(line) for line in compared} == dict.fromkeys(compared, 4)
    assert len(compared) == {"collectives.py": 16, "dtensor_smoke.py": 8}[script]

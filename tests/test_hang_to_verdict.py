"""The benchmark of hangs plants what can act on its ranks, and says in one line why it cannot go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import processes
from cpinfra.worker.injection import CONTROL_TWINS
from cpinfra.worker.injection import STAGE_TWINS
from programs import BENCHMARKS
from programs import benchmark_named


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """The program, as a module."""
    return benchmark_named("hang_to_verdict")


@pytest.mark.parametrize(
    ("ranks", "dtensor"), [(2, "dtensor.roundtrip_1d"), (3, "dtensor.roundtrip_1d"), (4, "dtensor.roundtrip")]
)
def test_each_fault_but_a_delay_is_planted_where_it_fits(
    benchmark: ModuleType, ranks: int, dtensor: str
) -> None:
    """On one check of each family that these ranks can run, in turns; those of a stage once."""
    planned = [(one.twin, one.checks[0].id) for one in benchmark.plan([], ranks)]
    hosts = {"collective.all_reduce", "p2p.ring", dtensor}

    assert {twin for twin, _ in planned} == {*CONTROL_TWINS} - {"delay"}
    assert {check for twin, check in planned if twin == "kill"} == hosts
    twins = [twin for twin, check in planned if check == planned[0][1]]
    assert [twin for twin, _ in planned[: len(twins)]] == twins
    assert all([twin for twin, _ in planned].count(name) == 1 for name in STAGE_TWINS)
    assert {one.twin for one in benchmark.plan(["kill", "exit"], ranks)} == {"kill", "exit"}


def test_a_run_that_ends_otherwise_is_one_line(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its status and the end of what it printed, and status 2."""
    program = [sys.executable, "-c", "print('first'); print('last'); raise SystemExit(5)"]
    monkeypatch.setattr(benchmark, "command", lambda *_: program)

    assert benchmark.main(["--only", "kill", "--rounds", "1"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith("error: ")
    assert told[0].endswith("ended with status 5, expected 1: first\\nlast")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """The run that it meets is ended, and its folder removed after that."""
    program = [sys.executable, str(BENCHMARKS / "hang_to_verdict.py"), "--only", "stop", "--rounds", "9"]
    with subprocess.Popen(program, env={**os.environ, "TMPDIR": str(tmp_path)}) as benchmark:
        processes.wait_until(lambda: list(tmp_path.glob("*/run/events.jsonl")), "the first run")
        benchmark.send_signal(number)
        status = benchmark.wait(timeout=60)

    assert status == 130
    assert list(tmp_path.glob("cpinfra-benchmark-*")) == []


@pytest.mark.parametrize("words", [["--ranks", "1"], ["--rounds", "0"], ["--only", "delay"]])
def test_rejects_what_makes_no_sense(
    benchmark: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, before anything runs."""
    with pytest.raises(SystemExit) as ended:
        benchmark.main(words)

    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err

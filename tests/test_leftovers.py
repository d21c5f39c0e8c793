"""Whatever ends a run, nothing of it is left: no process, no node-local folder, a whole report."""

from __future__ import annotations

import json
import os
import pty
import random
import secrets
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import processes
from cpinfra.worker import node_local


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., processes.Run]]:
    """Starts runs and ends whatever a failed test leaves of them."""
    runs: list[processes.Run] = []

    def _start(*arguments: str, **options: Any) -> processes.Run:
        runs.append(processes.Run(tmp_path / f"run {len(runs)}", *arguments, **options))
        return runs[-1]

    yield _start
    for run in runs:
        run.kill()


def at_work(run: processes.Run) -> set[str]:
    """Wait until the first generation is at work; returns the run's cookie."""
    run.await_event("forked", generation=1)
    return run.cookies()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_130_and_a_report(start: Any, number: signal.Signals) -> None:
    """One Ctrl-C, SIGTERM or SIGHUP: exit 130, no traceback, the report says what was interrupted."""
    run = start("--json")
    cookies = at_work(run)
    run.signal(number)

    code, out, err = run.end()

    assert code == 130
    assert "Traceback" not in err
    run.assert_nothing_left(cookies)
    assert json.loads(out)["verdict"] == "not-proven"
    report = json.loads((run.folder / "report.json").read_text())
    assert any(number.name in check.get("reason", "") for check in report["checks"])


def test_two_quick_interrupts_still_clean_up(start: Any) -> None:
    """The second Ctrl-C makes it hurry, not leak."""
    run = start("--inject", "delay:0:600")
    cookies = at_work(run)
    run.signal(signal.SIGINT)
    run.signal(signal.SIGINT)

    code, _, err = run.end()

    assert code == 130
    assert "Traceback" not in err
    run.assert_nothing_left(cookies)


def test_nohup_is_respected(start: Any) -> None:
    """A SIGHUP that was ignored when cpinfra started does not end it."""
    run = start("--only", "collective.all_reduce", prefix=["/usr/bin/env", "--ignore-signal=HUP"])
    at_work(run)
    run.signal(signal.SIGHUP)

    code, _, _ = run.end()

    assert code == 0
    run.assert_nothing_left()


@pytest.mark.parametrize("moment", ["start", "software", "forked", "check", "imported"])
def test_a_killed_supervisor_takes_everything_along(start: Any, moment: str) -> None:
    """SIGKILL of the supervisor, in any stage: zygote and ranks end, the node-local folder goes."""
    run = start("--inject", "delay:0:600", "--inject", "delay:1:600") if moment == "forked" else start()
    run.await_event(moment)
    cookies = run.cookies()
    run.signal(signal.SIGKILL)
    run.end()

    run.assert_nothing_left(cookies)


def test_an_interpreter_that_runs_nothing_of_ours_is_taken_along(start: Any, tmp_path: Path) -> None:
    """SIGKILL of the supervisor while the target interpreter is not one at all."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    run = start("--python", str(program))
    processes.wait_until(lambda: b"sleep" in processes.command_of(run.zygote()), "the program", 60)

    run.signal(signal.SIGKILL)
    run.end()

    run.assert_nothing_left()


def test_an_interpreter_that_hangs_at_its_start_is_taken_along(start: Any, tmp_path: Path) -> None:
    """SIGKILL of the supervisor while a module of the user keeps its interpreter from our code."""
    hook = "import os, time\nif 'CPINFRA_COOKIE' in os.environ:\n"
    hook += f"    open({str(tmp_path / 'hangs')!r}, 'w').close()\n    time.sleep(600)\n"
    (tmp_path / "sitecustomize.py").write_text(hook)
    run = start(env={"PYTHONPATH": str(tmp_path)})
    processes.wait_until((tmp_path / "hangs").exists, "the interpreter", 60)

    run.signal(signal.SIGKILL)
    run.end()

    run.assert_nothing_left()


def test_what_was_known_survives_the_death_of_the_supervisor(start: Any) -> None:
    """The report on disk holds each check that had been judged, and calls the others unknown."""
    run = start()
    run.await_event("check", id="collective.all_gather")
    run.signal(signal.SIGKILL)
    run.end()

    report = json.loads((run.folder / "report.json").read_text())
    outcomes = {check["id"]: check["outcome"] for check in report["checks"]}
    assert outcomes["collective.all_reduce"] == "pass"
    assert outcomes["dtensor.roundtrip"] == "unknown"
    assert report["verdict"] == "not-proven"
    run.assert_nothing_left()


def test_a_killed_zygote_is_said_and_leaves_nothing(start: Any) -> None:
    """SIGKILL of the zygote: exit 3, the finding names the signal, no rank is left."""
    run = start("--inject", "delay:0:600")
    cookies = at_work(run)
    os.kill(run.zygote(), signal.SIGKILL)

    code, out, _ = run.end()

    assert code == 3
    assert "SIGKILL" in out
    run.assert_nothing_left(cookies)


def test_a_killed_rank_is_said_and_leaves_nothing(start: Any) -> None:
    """SIGKILL of a rank by a stranger: exit 1, the rank is named."""
    run = start("--inject", "delay:0:600")
    run.await_event("fired")
    forked = run.await_event("forked", generation=1)
    os.kill(forked["pids"][2], signal.SIGKILL)

    code, out, _ = run.end()

    assert code == 1
    assert "rank 2" in out
    assert "SIGKILL" in out
    run.assert_nothing_left()


def test_a_descendant_of_a_rank_is_ended_too(start: Any, tmp_path: Path) -> None:
    """A process that a rank has started, in a session of its own, does not outlive the run."""
    (tmp_path / "site").mkdir()
    hook = "import os, sys\nif os.environ.get('CPINFRA_COOKIE') and not os.environ.get('HOOKED'):\n"
    hook += "    import subprocess\n    subprocess.Popen(['sleep', '600'], start_new_session=True, "
    hook += "env={**os.environ, 'HOOKED': '1'})\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(hook)
    run = start("--only", "collective.all_reduce", env={"PYTHONPATH": str(tmp_path / "site")})
    at_work(run)

    code, _, _ = run.end()

    assert code == 0
    run.assert_nothing_left()


def test_leftovers_of_a_dead_run_are_swept_and_strangers_are_not_touched(start: Any) -> None:
    """An abandoned folder of ours goes with the next run; a held one and one without our lock stay."""
    cookies = [secrets.token_hex(8) for _ in range(3)]
    abandoned, lock = node_local.create(cookies[0], 4096)
    os.close(lock)
    held, held_lock = node_local.create(cookies[1], 4096)
    stranger = held.parent / node_local.name(cookies[2])
    stranger.mkdir()
    try:
        code, _, _ = start("--only", "collective.all_reduce").end()

        assert code == 0
        assert not abandoned.exists()
        assert held.exists()
        assert stranger.exists()
    finally:
        os.close(held_lock)
        for cookie in cookies:
            node_local.remove(cookie)


def test_the_temporary_folder_is_left_empty(start: Any, tmp_path: Path) -> None:
    """A whole rehearsal leaves nothing in TMPDIR, where torch puts what it compiles, nor elsewhere."""
    temporary, theirs = tmp_path / "temporary", tmp_path / "theirs"
    temporary.mkdir()
    run = start(env={"TMPDIR": str(temporary)})
    other = start(env={"TORCHINDUCTOR_CACHE_DIR": str(theirs)})

    assert (run.end()[0], other.end()[0]) == (0, 0)
    assert list(temporary.iterdir()) == []
    assert not theirs.exists()
    run.assert_nothing_left()


def test_a_closed_stdout_loses_nothing(start: Any) -> None:
    """With its reader gone the proof goes on: verdict's exit code, whole report, no traceback."""
    read, write = os.pipe()
    run = start("--only", "collective.*", stdout=write)
    os.close(write)
    os.close(read)

    code, _, err = run.end()

    assert code == 0
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
    assert json.loads((run.folder / "report.json").read_text())["verdict"] == "rehearsed"
    run.assert_nothing_left()


def test_a_full_output_device_loses_nothing(start: Any) -> None:
    """Writing to /dev/full: no traceback, the report is whole."""
    with Path("/dev/full").open("w") as full:
        run = start("--only", "collective.all_reduce", stdout=full)
        code, _, err = run.end()

    assert code == 0
    assert "Traceback" not in err
    run.assert_nothing_left()


def test_a_terminal_that_goes_away_ends_the_run_and_is_left_sane(tmp_path: Path) -> None:
    """The terminal's hang-up is a SIGHUP; and before that its modes are as they were."""
    run_folder = tmp_path / "run"
    leader, follower = pty.openpty()
    before = termios.tcgetattr(follower)
    command = [sys.executable, "-m", "cpinfra", "prove", "--device", "cpu", "--run-dir", str(run_folder)]
    program = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=follower, stdout=follower, stderr=follower
    )
    os.set_blocking(leader, False)

    def forked() -> bool:
        try:
            os.read(leader, 65536)
        except BlockingIOError:
            pass
        return '"forked"' in _text(run_folder / "events.jsonl")

    processes.wait_until(forked, "the first generation")
    assert termios.tcgetattr(follower) == before
    os.close(follower)
    os.close(leader)

    assert program.wait(30) != 0
    processes.wait_until(lambda: '"end"' in _text(run_folder / "events.jsonl"), "the end of the run")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
def test_random_kills_leave_nothing(start: Any, seed: int) -> None:
    """Anybody may be killed, or told to end, at any moment."""
    dice = random.Random(seed)
    run = start()
    moment = dice.uniform(0.0, 3.0)
    processes.wait_until(lambda: run.age_s > moment or run.process.poll() is not None, "the moment")
    cookies, members = run.cookies(), sorted(run.members())
    victim = dice.choice(members or [run.process.pid])
    number = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    try:
        os.kill(victim, number)
    except ProcessLookupError:
        pass

    code, _, err = run.end()

    assert code in (0, 1, 3, 130, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
    assert "Traceback" not in err or code < 0
    run.assert_nothing_left(cookies)

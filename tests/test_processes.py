"""System calls of the worker: who dies with whom, and which processes are ended."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from select import select
from typing import Any

import pytest

import engine
import forks
import processes as watched
from cpinfra.worker import processes
from cpinfra.worker.processes import COOKIE_VARIABLE
from cpinfra.worker.progress import process_state

COOKIE = secrets.token_hex(8)
WITHIN_S = 10.0


@pytest.fixture
def adopting() -> Iterator[None]:
    """This process becomes the parent of its orphaned descendants, so that no test leaves one."""
    before = processes.adopt_orphans(True)
    yield
    processes.adopt_orphans(before)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts programs with the cookie in their environment, and ends them."""
    started: list[subprocess.Popen[str]] = []

    def _start(*command: str, cookie: str | None = COOKIE, **more: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **more, **({COOKIE_VARIABLE: cookie} if cookie else {})}
        program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(program)
        return program

    yield _start
    for program in started:
        program.kill()
        program.communicate()


def told(program: subprocess.Popen[str], count: int) -> dict[str, int]:
    """So many pids that a shell prints, by name, one line each, in any order."""
    assert program.stdout is not None
    lines = (program.stdout.readline() for _ in range(count))
    return {name: int(pid) for name, pid in (line.split() for line in lines)}


def parent_of(pid: int) -> int:
    """The parent's pid."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


def end(pid: int) -> None:
    """End and collect an adopted orphan."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def family(in_child: Callable[[int], object]) -> tuple[int, int, int]:
    """A child and a grandchild that has run `in_child(its parent)`: their pids, and what it holds open."""
    read, write = os.pipe()

    def grandchild(parent: int) -> None:
        in_child(parent)
        os.write(write, f"{os.getpid()}\n".encode())
        forks.idle()

    def child() -> None:
        own = os.getpid()
        if os.fork() == 0:
            try:
                grandchild(own)
            finally:
                os._exit(forks.RAISED)
        os.close(write)
        forks.idle()

    pid = forks.fork(child)
    os.close(write)
    return pid, int(os.read(read, 100)), read


def test_a_rank_dies_with_its_parent() -> None:
    """The kernel kills it when the parent is killed; nothing has to notice."""
    child, _, open_in_grandchild = family(processes.die_with_parent)
    assert select([open_in_grandchild], [], [], 0) == ([], [], [])

    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    ready, _, _ = select([open_in_grandchild], [], [], WITHIN_S)
    assert ready
    assert os.read(open_in_grandchild, 1) == b""
    os.close(open_in_grandchild)


def test_a_stopped_rank_dies_with_its_parent_too(adopting: None) -> None:
    """SIGKILL reaches a process in state T."""
    child, grandchild, open_in_grandchild = family(processes.die_with_parent)
    os.kill(grandchild, signal.SIGSTOP)
    watched.wait_until(lambda: process_state(grandchild) == "T", "the stop")

    end(child)

    assert forks.wait(grandchild) == -signal.SIGKILL
    os.close(open_in_grandchild)


def test_a_rank_whose_parent_is_gone_already_exits() -> None:
    """The parent may have died before the request was made: then nothing else would ever end the rank."""

    def work() -> None:
        processes.die_with_parent(os.getppid() + 1)
        os._exit(3)

    assert forks.wait(forks.fork(work)) == 0


def test_the_request_can_be_taken_back(adopting: None) -> None:
    """A process that has something to clean up outlives its parent."""

    def both(parent: int) -> None:
        processes.die_with_parent(parent)
        processes.outlive_parent()

    child, grandchild, open_in_grandchild = family(both)
    end(child)

    assert parent_of(grandchild) == os.getpid()
    assert process_state(grandchild) in ("S", "R")
    end(grandchild)
    os.close(open_in_grandchild)


def test_orphans_are_adopted_only_while_that_is_asked_for(adopting: None) -> None:
    """An orphan's parent is this process; afterwards orphans go where they always went."""
    child, grandchild, open_in_grandchild = family(lambda parent: None)
    end(child)
    assert parent_of(grandchild) == os.getpid()
    end(grandchild)
    os.close(open_in_grandchild)

    assert processes.adopt_orphans(False) is True
    assert processes.adopt_orphans(False) is False
    child, grandchild, open_in_grandchild = family(lambda parent: None)
    end(child)
    assert parent_of(grandchild) != os.getpid()
    os.kill(grandchild, signal.SIGKILL)
    os.close(open_in_grandchild)


def test_a_refused_request_says_which() -> None:
    """The error holds the call and the kernel's reason."""
    with pytest.raises(OSError, match=r"prctl\(1, 9999\): Invalid argument"):
        processes._prctl(1, 9999)


def test_members_are_known_by_the_whole_cookie(start: Any) -> None:
    """Neither a longer nor a shorter cookie, nor the same text in another variable, makes a member."""
    member = start("sleep", "600")
    others = [
        start("sleep", "600", cookie=COOKIE + "0"),
        start("sleep", "600", cookie=COOKIE[:-1]),
        start("sleep", "600", cookie=None, OTHER=f"{COOKIE_VARIABLE}={COOKIE}"),
        start("sleep", "600", cookie=None),
    ]

    assert list(processes.with_cookie(COOKIE)) == [member.pid]
    assert all(other.poll() is None for other in others)


def test_nobody_is_a_member_of_its_own_search(start: Any) -> None:
    """A zygote that ends its family, the cookie in its own environment, does not end itself."""
    code = f"from cpinfra.worker.processes import *\nprint(kill_family({COOKIE!r}, 1.0))"
    program = start(sys.executable, "-c", code)
    out, _ = program.communicate(timeout=30)

    assert (program.returncode, out) == (0, "[]\n")


FAMILY = """
trap '' TERM
sleep 600 & echo child $!
setsid sleep 600 & echo session $!
sleep 600 & echo stopped $!; kill -STOP $!
sh -c 'sleep 600 & echo grandchild $!; wait' & echo shell $!
env -u CPINFRA_COOKIE sleep 600 & echo stranger $!
while :; do sleep 600; done
"""


def test_a_family_is_ended_with_all_its_generations_and_no_stranger(start: Any, adopting: None) -> None:
    """Grandchildren, other sessions, stopped ones, restarted ones: all go; one without the cookie stays."""
    program = start("sh", "-c", FAMILY)
    pids = told(program, 6)
    stranger = pids.pop("stranger")
    watched.wait_until(lambda: b"CPINFRA_COOKIE=" not in environ(stranger), "the stranger")

    assert processes.kill_family(COOKIE, WITHIN_S) == []

    assert set(pids) == {"child", "session", "stopped", "grandchild", "shell"}
    assert list(processes.with_cookie(COOKIE)) == []
    assert {process_state(pid) for pid in pids.values()} <= {"", "Z"}
    assert process_state(stranger) in ("S", "R")
    end(stranger)


def test_adopted_members_are_collected(start: Any, adopting: None) -> None:
    """A supervisor that lives on keeps no zombies of its runs."""
    program = start("sh", "-c", "sh -c 'sleep 600 & echo grandchild $!; wait' & echo child $!; wait")
    pids = told(program, 2)

    assert processes.kill_family(COOKIE, WITHIN_S) == []

    assert [process_state(pid) for pid in (program.pid, *pids.values())] == ["", "", ""]


def environ(pid: int) -> bytes:
    """The environment that a process was started with."""
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_a_family_that_is_gone_already_takes_no_time(start: Any) -> None:
    """Nothing to do is done at once."""
    started = time.monotonic()

    assert processes.kill_family(COOKIE, 600.0) == []
    assert time.monotonic() - started < WITHIN_S


def test_what_would_not_die_is_named_when_the_time_is_up(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in the kernel's D state ignores SIGKILL: the wait for it is bounded."""
    monkeypatch.setattr(processes, "_kill_member", lambda pid, cookie: None)
    two = sorted(start("sleep", "600").pid for _ in range(2))
    started = time.monotonic()

    assert processes.kill_family(COOKIE, 0.1) == two
    assert 0.1 <= time.monotonic() - started < WITHIN_S


def test_a_member_that_has_ended_already_is_collected() -> None:
    """A zombie has no environment to be known by; the pids that are known beforehand are."""
    pid = forks.fork(lambda: None)
    watched.wait_until(lambda: process_state(pid) == "Z", "its end")

    assert processes.kill_family(COOKIE, WITHIN_S, known=[pid]) == []
    assert process_state(pid) == ""


def test_somebody_elses_child_is_not_waited_for() -> None:
    """A known pid that is not ours to collect does not hold the clean-up."""
    started = time.monotonic()

    assert processes.kill_family(COOKIE, 600.0, known=[os.getppid()]) == []
    assert time.monotonic() - started < WITHIN_S


def test_a_signal_to_a_process_that_is_gone_is_no_error() -> None:
    """It may end between the look and the signal."""
    pid = forks.fork(lambda: None)
    forks.wait(pid)

    processes.kill(pid, signal.SIGTERM)


def test_reap_collects_those_asked_for_that_have_ended_and_no_other() -> None:
    """With their wait status; neither one that lives, nor one that is somebody else's, nor one twice."""
    code, killed, other = (forks.fork(work) for work in (lambda: os._exit(3), forks.idle, lambda: None))
    os.kill(killed, signal.SIGKILL)
    with forks.forked(forks.idle) as living:
        watched.wait_until(lambda: "".join(map(process_state, (code, killed, other))) == "ZZZ", "their ends")
        asked = [code, living, os.getppid(), killed]
        ended = dict(processes.reap(asked))
        assert processes.reap(asked) == []

    assert os.waitstatus_to_exitcode(ended.pop(code)) == 3
    assert os.waitstatus_to_exitcode(ended.pop(killed)) == -signal.SIGKILL
    assert ended == {}
    assert forks.wait(other) == 0


def test_reap_all_collects_every_child_that_has_ended() -> None:
    """Whoever started them; one that lives is not waited for; none at all is no error."""

    def work() -> None:
        ended = [forks.fork(lambda: None) for _ in range(2)]
        living = forks.fork(forks.idle)
        watched.wait_until(lambda: [process_state(pid) for pid in ended] == ["Z", "Z"], "their ends")
        processes.reap_all()
        assert [process_state(pid) for pid in ended] == ["", ""]
        end(living)
        processes.reap_all()

    assert forks.wait(forks.fork(work)) == 0


LATE = """
import os, subprocess, time
program = subprocess.Popen(["sh", "-c", "exit 7"])
time.sleep(0.3)
code = program.wait()
orphan = subprocess.run(["sh", "-c", "sleep 0 & echo $!"], capture_output=True, text=True).stdout
open(os.environ["TOLD"], "w").write(f"{code} {orphan}")
"""


def test_a_zygote_leaves_the_children_of_an_import_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adopting: None
) -> None:
    """A module that starts a program gets its exit code; an orphan that ended meanwhile is not left to us."""
    (tmp_path / "late_one.py").write_text(LATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))

    ran = engine.prove(tmp_path / "run", only="dtensor.roundtrip", late=["late_one"])

    assert ran.proof.findings == []
    code, orphan = (tmp_path / "told").read_text().split()
    assert code == "7"
    assert process_state(int(orphan)) == ""

"""How long a stage may take, and whether a process has moved."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forks
import processes
from cpinfra.proof.deadlines import budgets
from cpinfra.worker.ledger import Stage
from cpinfra.worker.progress import CLOCK_STEP_MAX_S
from cpinfra.worker.progress import Clock
from cpinfra.worker.progress import process_state
from cpinfra.worker.progress import progress_of


def test_a_clock_counts_how_long_nothing_changed() -> None:
    """From the first look on; a change sets it back; another value later too, and back again."""
    clock = Clock()

    assert clock.look(("running", 1), 100.0) == 0.0
    assert clock.look(("running", 1), 100.1) == pytest.approx(0.1)
    assert clock.look(("running", 1), 100.3) == pytest.approx(0.3)
    assert clock.look(("running", 2), 100.4) == 0.0
    assert clock.look(("running", 2), 100.5) == pytest.approx(0.1)
    assert clock.look(("running", 1), 100.6) == 0.0


def test_a_state_that_was_never_known_counts_too() -> None:
    """No answer at all, as from a process that cannot be read, is a state that does not change."""
    clock = Clock()

    assert clock.look((), 5.0) == 0.0
    assert clock.look((), 5.2) == pytest.approx(0.2)


def test_a_supervisor_that_was_suspended_blames_nobody() -> None:
    """Ctrl-Z for an hour adds one step at most, however long the next look was away."""
    clock = Clock()
    clock.look("state", 0.0)
    clock.look("state", 0.1)

    assert clock.look("state", 3600.0) == pytest.approx(0.1 + CLOCK_STEP_MAX_S)
    assert clock.look("state", 3600.1) == pytest.approx(0.2 + CLOCK_STEP_MAX_S)


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 2)), max_size=30))
def test_a_clock_never_runs_ahead(looks: list[tuple[float, int]]) -> None:
    """It shows no more than the time since the last change, and no more than a step for each look."""
    clock, now, changed_at, since, before = Clock(), 0.0, 0.0, 0, None
    for pause, state in looks:
        now += pause
        still = clock.look(state, now)
        since += 1
        if state != before:
            changed_at, since, before = now, 0, state
        assert 0 <= still <= now - changed_at + 1e-6
        assert still <= since * CLOCK_STEP_MAX_S + 1e-6


def test_every_stage_has_a_budget_but_the_wait_for_others() -> None:
    """A rank can hang anywhere: only one that has reported waits without limit, until all are released."""
    four = budgets(4, "cpu", None)

    unlimited = [
        (stage, released)
        for stage in Stage
        for released in (False, True)
        if four.of(stage, first=False, released=released) is None
    ]
    assert unlimited == [(Stage.REPORTED, False)]
    assert four.of(Stage.REPORTED, first=False, released=True) == four.leave_s
    assert four.of(Stage.LEFT, first=False, released=True) == four.leave_s


def test_the_first_operation_of_a_group_may_take_longer() -> None:
    """It connects the ranks."""
    four = budgets(4, "cpu", None)
    usual = four.of(Stage.RUNNING, first=False, released=False)

    assert usual == four.operation_s
    assert four.of(Stage.RUNNING, first=True, released=False) == 3 * four.operation_s


def test_the_users_budget_is_for_any_operation_and_for_nothing_else() -> None:
    """`--budget` fixes the first operation's too; start and end keep theirs."""
    given_one, usual = budgets(64, "cpu", 0.5), budgets(64, "cpu", None)

    assert (given_one.operation_s, given_one.first_operation_s) == (0.5, 0.5)
    assert (
        replace(given_one, operation_s=usual.operation_s, first_operation_s=usual.first_operation_s) == usual
    )


def test_more_ranks_than_processors_get_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From four ranks a processor on, in proportion; the import, which is done once, does not."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    few, many = budgets(8, "cpu", None), budgets(64, "cpu", None)

    assert few == budgets(1, "cpu", None)
    assert many.operation_s == 8 * few.operation_s
    assert many.join_s == 8 * few.join_s
    assert many.leave_s == 8 * few.leave_s
    assert (many.import_max_s, many.hello_max_s) == (few.import_max_s, few.hello_max_s)


@pytest.mark.parametrize("operation_s", [None, 0.1, 500.0])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("world", [1, 64, 1024])
def test_ranks_are_more_patient_than_the_supervisor(
    world: int, device: str, operation_s: float | None
) -> None:
    """Whatever the budgets are, the supervisor is the first to speak."""
    made = budgets(world, device, operation_s)
    longest = max(
        made.of(stage, first=True, released=False) or 0 for stage in Stage if stage < Stage.REPORTED
    )

    assert made.patience_s > longest + 30


def test_a_process_that_computes_progresses() -> None:
    """The numbers grow while it does anything."""
    with forks.forked(forks.ever(lambda: None)) as pid:
        before = progress_of(pid)
        assert len(before) == 3
        processes.wait_until(lambda: progress_of(pid) > before, "progress")


def test_a_process_that_reads_progresses() -> None:
    """A cold file cache costs no CPU time, but bytes are read."""
    read, write = os.pipe()
    with forks.forked(forks.ever(lambda: os.read(read, 1))) as pid:
        processes.wait_until(lambda: process_state(pid) == "S", "its first read")
        before = progress_of(pid)
        os.write(write, b"x" * 50)
        processes.wait_until(lambda: progress_of(pid)[2] >= before[2] + 50, "the bytes")
    os.close(read)
    os.close(write)


def test_a_stopped_process_makes_no_progress() -> None:
    """The same numbers at every look."""
    with forks.forked(forks.ever(lambda: None)) as pid:
        os.kill(pid, signal.SIGSTOP)
        processes.wait_until(lambda: process_state(pid) == "T", "the stop")
        assert progress_of(pid) == progress_of(pid)


def test_a_process_that_is_gone_has_no_progress_and_no_state() -> None:
    """An ended one that was not collected yet is a zombie; after that there is nothing, and no error."""
    pid = forks.fork(lambda: None)
    processes.wait_until(lambda: process_state(pid) == "Z", "its end")
    assert progress_of(pid) == progress_of(pid)
    forks.wait(pid)

    assert progress_of(pid) == ()
    assert process_state(pid) == ""


@pytest.mark.parametrize("name", [b"a) T 1 2 (b", ("é" * 8).encode()[:15], b"\xff\xfe\n", b"x y"])
def test_a_hostile_name_hides_nothing(name: bytes) -> None:
    """A process may be called anything; the kernel cuts its name at 15 bytes, inside of a letter too."""

    def work() -> None:
        Path("/proc/self/comm").write_bytes(name)
        forks.idle()

    with forks.forked(work) as pid:
        processes.wait_until(lambda: name in Path(f"/proc/{pid}/stat").read_bytes(), "its name")
        processes.wait_until(lambda: process_state(pid) == "S", "its sleep")
        assert len(progress_of(pid)) == 3


def test_a_kernel_that_does_not_tell_what_is_read_still_tells_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without /proc/PID/io CPU time alone is progress: an import that computes is not called hung."""
    real = Path.read_bytes

    def without_io(path: Path) -> bytes:
        if path.name == "io":
            raise PermissionError(13, "Permission denied")
        return real(path)

    with forks.forked(forks.ever(lambda: None)) as pid:
        monkeypatch.setattr(Path, "read_bytes", without_io)
        before = progress_of(pid)
        assert before[2] == 0
        processes.wait_until(lambda: progress_of(pid) > before, "progress")


def test_a_suspended_supervisor_in_earnest() -> None:
    """A process that was stopped while its clock ran shows one step more when it goes on."""
    read, write = os.pipe()

    def watch() -> None:
        clock = Clock()
        clock.look("state", time.monotonic())
        os.kill(os.getpid(), signal.SIGSTOP)
        os.write(write, repr(clock.look("state", time.monotonic())).encode())

    with forks.forked(watch) as pid:
        processes.wait_until(lambda: process_state(pid) == "T", "the stop")
        stopped_s = CLOCK_STEP_MAX_S + 0.1
        moment = time.monotonic() + stopped_s
        processes.wait_until(lambda: time.monotonic() > moment, "a while")
        os.kill(pid, signal.SIGCONT)
        shown = float(os.read(read, 100))
    os.close(read)
    os.close(write)

    assert shown == CLOCK_STEP_MAX_S

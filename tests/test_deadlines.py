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
from cpinfra.proof.deadlines import PROGRESS_TIMES
from cpinfra.proof.deadlines import Budgets
from cpinfra.proof.deadlines import budgets
from cpinfra.worker import progress
from cpinfra.worker.ledger import Head
from cpinfra.worker.ledger import Stage
from cpinfra.worker.progress import CLOCK_STEP_MAX_S
from cpinfra.worker.progress import SHARE_MIN
from cpinfra.worker.progress import Clock
from cpinfra.worker.progress import Starvation
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


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), max_size=30))
def test_a_clock_counts_no_more_than_the_share(looks: list[tuple[float, float]]) -> None:
    """Of each step what could be used of it, and never less than nothing."""
    clock, now, counted = Clock(), 0.0, 0.0
    clock.look("state", now)
    for pause, share in looks:
        now += pause
        counted += min(pause, CLOCK_STEP_MAX_S) * share
        assert clock.look("state", now, share) == pytest.approx(counted)


def head(stage: Stage, *, inside: bool = False, first: bool = False, slowest_s: float | None = None) -> Head:
    """Where a rank is."""
    return Head(stage=stage, written=1, first=first, inside=inside, slowest_s=slowest_s)


def of_operation(budgets: Budgets, *, first: bool = False, slowest_s: float | None = None) -> float:
    """The deadline of an operation that a rank is in."""
    where = head(Stage.RUNNING, inside=True, first=first, slowest_s=slowest_s)
    budget_s = budgets.of(where, through_s=None)
    assert budget_s is not None
    return budget_s


def test_every_stage_has_a_budget() -> None:
    """A rank can hang anywhere, also before it has said that it is through."""
    four = budgets(4, "cpu", None)

    assert {stage for stage in Stage if four.of(head(stage), through_s=None) <= 0} == set()
    assert four.of(head(Stage.REPORTED), through_s=None) == four.leave_s
    assert four.of(head(Stage.LEFT), through_s=None) == four.leave_s


@pytest.mark.parametrize(
    ("slowest_s", "expected_s"), [(0.001, 1.0), (0.05, 1.0), (0.1, 2.0), (1.0, 20.0), (30.0, 60.0)]
)
def test_an_operation_may_take_twenty_times_the_slowest_so_far(slowest_s: float, expected_s: float) -> None:
    """A second at least; and no more than a bound, however slow it was once."""
    assert of_operation(budgets(4, "cpu", None), slowest_s=slowest_s) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("device", "first", "slowest_s", "expected_s"),
    [
        ("cpu", False, None, 3.0),
        ("cpu", True, None, 3.0),
        ("cpu", True, 0.01, 3.0),
        ("cpu", True, 0.1, 6.0),
        ("cuda", True, None, 10.0),
        ("cuda", False, None, 10.0),
    ],
)
def test_an_operation_that_nobody_has_completed_may_take_longer(
    device: str, first: bool, slowest_s: float | None, expected_s: float
) -> None:
    """So may a group's first, which connects the ranks."""
    made = budgets(4, device, None)

    assert of_operation(made, first=first, slowest_s=slowest_s) == pytest.approx(expected_s)


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.booleans())
def test_who_was_slower_gets_no_less_time(one_s: float, other_s: float, first: bool) -> None:
    """And always a bounded one, of a second at least."""
    four = budgets(4, "cpu", None)
    shorter, longer = (of_operation(four, first=first, slowest_s=s) for s in sorted((one_s, other_s)))

    assert 1.0 <= shorter <= longer <= four.operation_most_s


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("slowest_s", [None, 100.0])
def test_the_users_budget_is_for_any_operation(inside: bool, first: bool, slowest_s: float | None) -> None:
    """`--budget` fixes it, whatever was measured; also of a rank that is on its way to one."""
    where = head(Stage.RUNNING, inside=inside, first=first, slowest_s=slowest_s)

    assert budgets(64, "cpu", 0.5).of(where, through_s=None) == 0.5


def test_the_users_budget_is_for_nothing_else() -> None:
    """Start and end keep theirs."""
    given_one, usual = budgets(64, "cpu", 0.5), budgets(64, "cpu", None)

    assert replace(given_one, operation_s=usual.operation_s, is_fixed=False) == usual


@pytest.mark.parametrize(
    ("through_s", "expected_s"), [(None, 60.0), (0.0, 5.0), (0.2, 5.0), (1.0, 20.0), (10.0, 60.0)]
)
def test_who_is_the_last_in_a_stage_gets_less_time(through_s: float | None, expected_s: float) -> None:
    """Twenty times what the slowest took that is through with it; never more than with nobody through."""
    four = budgets(4, "cuda", None)

    assert four.of(head(Stage.JOINING), through_s=through_s) == pytest.approx(expected_s)


def test_more_ranks_than_processors_get_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From four ranks a processor on, in proportion; the import, which is done once, does not."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    few, many = budgets(8, "cpu", None), budgets(64, "cpu", None)

    assert few == budgets(1, "cpu", None)
    assert of_operation(many) == 8 * of_operation(few)
    assert of_operation(many, slowest_s=0.0) == 8 * of_operation(few, slowest_s=0.0)
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
    """Whatever the budgets are, and as long as signs of life may extend them, the supervisor speaks first."""
    made = budgets(world, device, operation_s)
    stages = [made.of(head(stage), through_s=None) for stage in Stage]

    assert made.patience_s >= PROGRESS_TIMES * max(stages) + 30
    assert made.patience_s >= of_operation(made, first=True, slowest_s=1e6) + 30


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
    real = progress._read
    monkeypatch.setattr(progress, "_read", lambda path: b"" if path.endswith("/io") else real(path))

    with forks.forked(forks.ever(lambda: None)) as pid:
        before = progress_of(pid)
        assert before[2] == 0
        processes.wait_until(lambda: progress_of(pid) > before, "progress")


class Kernel:
    """What /proc says of the threads of process 7; a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tids: tuple[str, ...] = ("7",)) -> None:
        self.waited_ms = dict.fromkeys(tids, 1)
        self.state = "S"
        self.ticks = 1
        monkeypatch.setattr(os, "listdir", lambda folder: list(self.waited_ms))
        monkeypatch.setattr(progress, "_read", self._read)

    def _read(self, path: str) -> bytes:
        if path.endswith("schedstat"):
            return b"5 %d 1\n" % (self.waited_ms[path.split("/")[-2]] * 1_000_000)
        assert path == "/proc/7/stat"
        return f"7 (x) {self.state} {' 0' * 10} {self.ticks} 0".encode()


def test_time_without_a_processor_counts_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the time waited for a CPU: half of it counts. Of several threads the worst."""
    kernel, starvation = Kernel(monkeypatch, ("7", "8")), Starvation()
    assert starvation.share([7], 0.0) == 1.0
    assert starvation.share([7], 0.1) == 1.0

    kernel.waited_ms = {"7": 11, "8": 51}

    assert starvation.share([7], 0.2) == pytest.approx(0.5)
    assert starvation.share([7], 0.3) == 1.0


def test_a_long_wait_is_counted_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel adds it up late: then the next looks make up for those that counted too much."""
    kernel, starvation = Kernel(monkeypatch), Starvation()
    shares = [starvation.share([7], 0.0), starvation.share([7], 0.1), starvation.share([7], 0.2)]
    kernel.waited_ms = {"7": 201}
    shares += [starvation.share([7], now) for now in (0.3, 0.4, 0.5, 0.6)]

    assert shares[:3] == [1.0, 1.0, 1.0]
    assert sum(1 - share for share in shares) == pytest.approx(2.0)
    assert min(shares) == pytest.approx(SHARE_MIN)
    assert shares[-1] == 1.0


def test_some_time_counts_however_busy_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that spins for ever beside a hundred others is found in a bounded time."""
    kernel, starvation, clock, now = Kernel(monkeypatch), Starvation(), Clock(), 0.0
    while clock.still_s < 1.0:
        now += 0.05
        kernel.waited_ms["7"] += 50
        clock.look("state", now, starvation.share([7], now))

    assert now == pytest.approx(1 / SHARE_MIN, rel=0.05)


def test_after_starvation_a_hang_is_seen_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is owed is bounded: threads that waited in turns do not stop the clock for long after."""
    kernel, starvation = Kernel(monkeypatch, ("7", "8")), Starvation()
    for look in range(100):
        kernel.waited_ms["78"[look % 2]] += 1000
        starvation.share([7], look * 0.1)

    assert [starvation.share([7], 10.0 + look * 0.1) for look in range(10)][-1] == 1.0


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 9000)), max_size=30))
def test_a_share_is_a_share(steps: list[tuple[float, int]]) -> None:
    """Whatever the kernel says, and whenever it is asked."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        kernel, starvation, now = Kernel(monkeypatch), Starvation(), 0.0
        for pause, waited_ms in steps:
            now += pause
            kernel.waited_ms["7"] += waited_ms
            assert SHARE_MIN - 1e-9 <= starvation.share([7], now) <= 1.0


@pytest.mark.parametrize(("state", "ticks", "expected"), [("R", 1, SHARE_MIN), ("R", 2, 1.0), ("S", 1, 1.0)])
def test_a_kernel_that_does_not_count_waits(
    monkeypatch: pytest.MonkeyPatch, state: str, ticks: int, expected: float
) -> None:
    """Then a process that is runnable and used no CPU since the last look has none."""
    kernel, starvation = Kernel(monkeypatch), Starvation()
    kernel.waited_ms, kernel.state = {"7": 0}, state
    assert starvation.share([7], 0.0) == 1.0

    kernel.ticks = ticks

    assert starvation.share([7], 0.1) == expected


def test_a_kernel_that_hides_threads_starves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does a process that has ended meanwhile."""
    starvation = Starvation()
    pid = forks.fork(lambda: None)
    forks.wait(pid)

    assert [starvation.share([pid], now) for now in (0.0, 0.1, 0.2)] == [1.0, 1.0, 1.0]


def test_starvation_in_earnest() -> None:
    """Two that compute on one CPU: each waits about half of the time."""
    cpu = {min(os.sched_getaffinity(0))}

    def burn() -> None:
        os.sched_setaffinity(0, cpu)
        forks.ever(lambda: None)()

    with forks.forked(burn) as one, forks.forked(burn) as other:
        starvation, clock, started = Starvation(), Clock(), time.monotonic()
        processes.wait_until(lambda: min(progress_of(one), progress_of(other))[1] > 2, "their start")

        def seconds_counted() -> float:
            now = time.monotonic()
            return clock.look("state", now, starvation.share([one, other], now))

        processes.wait_until(lambda: seconds_counted() > 0.3, "a third of a second of those")
        assert time.monotonic() - started > 0.45


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

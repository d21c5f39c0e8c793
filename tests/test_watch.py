"""The watch over a generation: no wait of it is without a bound, whatever a rank does."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import forks
import processes
from cpinfra.proof import pulse
from cpinfra.proof import watch
from cpinfra.proof.attribution import attribute
from cpinfra.proof.deadlines import COMPUTING_TIMES
from cpinfra.proof.deadlines import PROGRESS_TIMES
from cpinfra.proof.deadlines import STOPPED_S
from cpinfra.proof.deadlines import budgets
from cpinfra.proof.evidence import Evidence
from cpinfra.proof.generation import Generation
from cpinfra.proof.hang import Hang
from cpinfra.proof.oom import OomKills
from cpinfra.proof.oom import OomWatch
from cpinfra.proof.watch import Watch
from cpinfra.worker import ledger
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import Ledger
from cpinfra.worker.ledger import Phase
from cpinfra.worker.ledger import Stage
from cpinfra.worker.progress import Starvation
from cpinfra.worker.progress import process_state
from cpinfra.worker.progress import progress_of
from cpinfra.worker.spec import GenerationSpec

BUDGETS = budgets(2, "cpu", None)
CALL = {
    "check": "a.x",
    "site": "a.py:1",
    "repetition": 0,
    "operation": "all_reduce",
    "group": "world",
    "shape": [4],
    "dtype": "float32",
    "first": False,
    "call": 1,
}


class Story:
    """Two ranks, a watch over them, and a time that only this test moves."""

    def __init__(self, folder: Path, pids: list[int]) -> None:
        ledger.create(folder / "ledger", 2)
        spec = GenerationSpec(
            generation=1,
            dp=1,
            cp0=1,
            cp1=2,
            device="cpu",
            backend="gloo",
            gpu_uuids=(),
            checks=("a.x",),
            salt=1,
            faults=(),
            logs="",
            patience_s=60.0,
        )
        self.generation = Generation(spec=spec)
        self.generation.absorb({"event": "forked", "pids": pids, "folder": str(folder)}, 0.0)
        self.pens = [Ledger(folder / "ledger").pen(rank) for rank in range(2)]
        self.orders: list[str] = []
        self._folder = folder
        self._place = ""
        self.told: Evidence | None = None
        """What the judgement was given."""
        self.zygote_state = "S"
        self.watch = Watch(self.generation, BUDGETS, self.order, lambda: self.zygote_state)
        self.now = time.monotonic()

    def order(self, name: str, **_facts: Any) -> None:
        """What the watch orders of the zygote."""
        self.orders.append(name)
        if name == "stacks" and self._place:
            with (self._folder / "rank-1.stacks").open("a") as stacks:
                stacks.write("Current thread 0x1 (most recent call first):\n")
                stacks.write(f'  File "{self._place}", line 1 in f\n')
        if name == "kill":
            for rank in {0, 1} - set(self.generation.exits):
                self.hear("exited", rank, code=None, signal="SIGKILL")

    def stands_at(self, file: str) -> None:
        """What the second rank's stack shows from now on, whenever it is asked for."""
        self._place = file

    def hear(self, event: str, rank: int, **facts: Any) -> None:
        """A message of a rank, or about it."""
        self.generation.absorb({"event": event, "rank": rank, **facts}, self.now)

    def report_all(self) -> None:
        """Both ranks are through with their checks."""
        for rank, pen in enumerate(self.pens):
            pen.stage(Stage.REPORTED)
            self.hear("reported", rank)

    def go_on(self, seconds: float) -> None:
        """Let time pass while the watch looks, until it is over."""
        for _ in range(round(seconds / 0.1)):
            if not self.watch.over:
                self.now += 0.1
                self.watch.look(self.now)

    def both_run(self) -> None:
        """Both ranks run checks, and have made one call."""
        for pen in self.pens:
            pen.stage(Stage.RUNNING)
            pen.write(Kind.ENTER, CALL)
            pen.write(Kind.LEAVE, {"call": 1})

    def waits(self, rank: int, **changes: Any) -> None:
        """A rank enters its next call, which usually takes a hundredth of a second."""
        self.pens[rank].write(Kind.ENTER, {**CALL, "call": 2, "slowest_s": 0.01, **changes})

    def comes_late(self) -> None:
        """The second rank lets the first wait in its next call, for longer than it usually takes."""
        self.both_run()
        self.go_on(0.2)
        self.waits(0)
        self.go_on(0.7)
        self.waits(1)

    def seconds_until(self, order: str, most_s: float) -> float:
        """How long it takes, on this story's clock, until something is ordered."""
        since = self.now
        while order not in self.orders and self.now < since + most_s:
            self.go_on(0.1)
        return self.now - since


@pytest.fixture(autouse=True)
def _a_machine_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel says of CPUs belongs to another time than a story's."""
    monkeypatch.setattr(Starvation, "share", lambda self, pids, now: 1.0)


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    """Ranks that sleep, which is what a healthy one does while it waits."""
    with forks.forked(forks.idle) as first, forks.forked(forks.idle) as second:
        told = Story(tmp_path, [first, second])

        def note(evidence: Evidence) -> Hang | None:
            told.told = evidence
            return attribute(evidence)

        monkeypatch.setattr(watch, "attribute", note)
        yield told


@pytest.fixture
def busy_story(tmp_path: Path) -> Iterator[Story]:
    """The second rank computes for ever."""
    with forks.forked(forks.idle) as first, forks.forked(forks.ever(lambda: None)) as second:
        yield Story(tmp_path, [first, second])


def stay_at(story: Story, stage: Stage) -> None:
    """The second rank stays in this stage; the first one goes on as far as it can without it."""
    if stage >= Stage.REPORTED:
        story.report_all()
        story.go_on(0.2)
        story.pens[0].stage(Stage.LEFT)
        story.hear("exited", 0, code=0, signal=None)
    else:
        story.pens[0].stage(min(Stage(stage + 1), Stage.RUNNING))
        story.pens[0].write(Kind.ENTER, CALL)
    story.pens[1].stage(stage)


KINDS = {
    Stage.FORKED: "never-joined",
    Stage.DEVICE: "never-joined",
    Stage.JOINING: "stuck-in-init",
    Stage.AGREEING: "stuck-in-init",
    Stage.RUNNING: "never-entered",
    Stage.REPORTED: "stuck-in-teardown",
    Stage.LEAVING: "stuck-in-teardown",
    Stage.LEFT: "stuck-in-teardown",
}


@pytest.mark.parametrize("stage", Stage)
def test_a_rank_that_stays_in_any_stage_is_noticed_and_named(story: Story, stage: Stage) -> None:
    """Also one that does not leave although all have reported: the watch ends within the budgets."""
    stay_at(story, stage)

    story.go_on(BUDGETS.patience_s)

    assert story.watch.over
    assert story.watch.lost == ""
    assert story.watch.hang is not None
    assert (story.watch.hang.kind, story.watch.hang.culprit_ranks) == (KINDS[stage], (1,))
    assert story.orders == ["stacks", "kill"]
    assert story.generation.exits[1].text == "SIGKILL"


def test_ranks_are_released_only_when_all_have_reported(story: Story) -> None:
    """One that waits for the others is not stuck, however long that takes; then both may go."""
    assert story.generation.ledger is not None
    story.pens[0].stage(Stage.REPORTED)
    story.hear("reported", 0)
    story.pens[1].stage(Stage.RUNNING)
    for number in range(1, 60):
        story.pens[1].write(Kind.ENTER, {**CALL, "call": number})
        story.go_on(1.0)
    assert story.watch.hang is None
    assert story.generation.ledger.phase is Phase.RUN

    story.report_all()
    story.go_on(0.2)

    assert Phase(story.generation.ledger.phase) is Phase.RELEASE
    assert story.orders == []
    for rank in range(2):
        story.hear("exited", rank, code=0, signal=None)
    story.go_on(1.0)
    assert story.watch.over
    assert story.watch.hang is None


def test_a_long_wait_for_the_last_report_does_not_count_after_the_release(story: Story) -> None:
    """The time to leave begins with the release, not with the report."""
    story.pens[0].stage(Stage.REPORTED)
    story.hear("reported", 0)
    story.pens[1].stage(Stage.RUNNING)
    for number in range(1, 40):
        story.pens[1].write(Kind.ENTER, {**CALL, "call": number})
        story.go_on(1.0)
    story.report_all()

    story.go_on(BUDGETS.leave_s - 1)

    assert story.watch.hang is None
    assert story.orders == []


def test_a_rank_that_does_not_say_that_it_is_through_is_named(story: Story) -> None:
    """It has left its last call, and the others wait for its word."""
    for pen in story.pens:
        pen.stage(Stage.REPORTED)
    story.hear("reported", 0)

    story.go_on(BUDGETS.leave_s + 2)

    assert story.watch.hang is not None
    assert (story.watch.hang.kind, story.watch.hang.culprit_ranks) == ("stuck-in-teardown", (1,))


def test_a_rank_that_is_stopped_while_it_waits_for_the_others_is_named_at_once(story: Story) -> None:
    """Though it may wait there without limit: it could never be released."""
    story.both_run()
    story.pens[1].stage(Stage.REPORTED)
    story.hear("reported", 1)
    os.kill(story.generation.pids[1], signal.SIGSTOP)
    processes.wait_until(lambda: process_state(story.generation.pids[1]) == "T", "the stop")

    assert story.seconds_until("stacks", 10.0) < STOPPED_S + 0.5
    story.go_on(2.0)
    assert story.watch.hang is not None
    assert (story.watch.hang.kind, story.watch.hang.culprit_ranks) == ("process-stopped", (1,))


def test_what_all_raise_when_they_are_asked_for_stacks_hides_no_hang(story: Story) -> None:
    """NCCL takes an interrupted system call for an error: who stood still before is judged all the same."""
    story.generation.torch_path = "/torch"
    story.stands_at("own_code.py")
    story.both_run()
    for rank in range(2):
        story.waits(rank)
    story.seconds_until("stacks", 5.0)
    for rank, pen in enumerate(story.pens):
        pen.write(Kind.LEAVE, {"call": 2, "raised": "DistBackendError"})
        error = {"type": "DistBackendError", "text": "NCCL Error 2", "site": "a.py:1"}
        calls = {"digest": "0", "count": 2}
        story.hear("answer", rank, check="a.x", broken=True, bug=False, error=error, calls=calls)
    story.go_on(2.0)

    assert story.told is not None
    assert story.told.disturbed == {0, 1}
    assert story.watch.hang is not None
    assert (story.watch.hang.kind, story.watch.hang.culprit_ranks) == ("stuck-inside-backend", (1,))
    assert story.watch.hang.waiting_ranks == (0,)


def test_a_supervisor_that_slept_blames_nobody(story: Story) -> None:
    """After an hour's suspension the ranks still have all of their time but one step."""
    story.pens[0].stage(Stage.RUNNING)
    story.pens[1].stage(Stage.RUNNING)
    story.go_on(1.0)
    story.now += 3600

    story.go_on(BUDGETS.operation_s - 2)
    assert story.orders == []

    story.go_on(4)
    assert story.orders == ["stacks", "kill"]


def test_a_generation_that_is_refused_is_over_at_once(story: Story) -> None:
    """There is nothing to wait for."""
    story.hear("no-room", -1, text="full")
    story.go_on(0.2)

    assert story.watch.over
    assert story.watch.hang is None


def test_a_zygote_that_does_not_fork_is_given_up(story: Story) -> None:
    """A fork is ordered only when nothing else is under way, so its bound is short."""
    story.generation.pids = ()
    story.go_on(BUDGETS.fork_s + 2)

    assert story.watch.over
    assert story.watch.lost == "it did not fork the ranks within 30 s"


def test_ranks_that_survive_being_killed_are_given_up(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in the kernel's D state does not hold the supervisor."""
    story.hear("exited", 0, code=None, signal="SIGSEGV")
    monkeypatch.setattr(story.watch, "_order", lambda name, **facts: None)
    story.go_on(30)

    assert story.watch.over
    assert story.watch.hang is not None
    assert story.watch.hang.culprit_ranks == (0,)
    assert story.watch.lost == "its ranks did not end within 10 s of being killed"


def test_a_stopped_zygote_makes_no_rank_guilty(story: Story) -> None:
    """Ranks that it should have collected look as if they hung: the watch ends, and blames nobody."""
    story.zygote_state = "T"
    stay_at(story, Stage.LEFT)

    story.go_on(BUDGETS.patience_s)

    assert (story.watch.over, story.watch.stopped, story.watch.hang) == (True, "T", None)


def test_the_stack_of_a_hang_is_not_that_of_an_earlier_delay(story: Story) -> None:
    """A rank was late, gave its stack, went on, and hangs elsewhere: only the last stack counts."""
    story.pens[0].stage(Stage.RUNNING)
    story.pens[0].write(Kind.ENTER, CALL)
    story.pens[1].stage(Stage.RUNNING)
    story.stands_at("old_place.py")
    for _ in range(600):
        if "stacks" in story.orders:
            break
        story.go_on(0.1)
    for call in (1, 2):
        story.pens[1].write(Kind.ENTER, {**CALL, "call": call})
        story.pens[1].write(Kind.LEAVE, {"call": call})
    story.pens[0].write(Kind.LEAVE, {"call": 1})
    story.go_on(1.0)
    assert (story.watch.hang, story.orders) == (None, ["stacks"])

    story.stands_at("new_place.py")
    story.go_on(60.0)

    assert story.watch.hang is not None
    assert "new_place" in story.watch.hang.stacks["1"]
    assert "old_place" not in story.watch.hang.stacks["1"]


@pytest.mark.parametrize(
    ("call", "expected_s"),
    [
        ({"slowest_s": 0.01}, 1.0),
        ({"slowest_s": 0.2}, 4.0),
        ({"slowest_s": None}, 3.0),
        ({"slowest_s": 0.1, "first": True}, 6.0),
    ],
)
def test_an_operation_is_given_the_time_that_its_like_have_taken(
    story: Story, call: dict[str, Any], expected_s: float
) -> None:
    """Twenty times the slowest, a second at least; more where nothing is known."""
    story.both_run()
    story.go_on(0.2)
    for rank in range(2):
        story.waits(rank, **call)

    assert story.seconds_until("stacks", 30.0) == pytest.approx(expected_s, abs=0.35)


def test_ranks_of_one_operation_are_given_the_same_time(story: Story) -> None:
    """What was slow for one of them once may be so again, for all that wait for it."""
    story.both_run()
    story.waits(0, slowest_s=0.01)
    story.waits(1, slowest_s=0.2)

    assert story.seconds_until("stacks", 30.0) == pytest.approx(4.0, abs=0.35)


def test_who_came_a_little_later_is_judged_with_the_others(story: Story) -> None:
    """It hangs as they do: which of them is to blame is not for the clocks to say."""
    story.both_run()
    story.waits(0)
    story.go_on(0.4)
    story.waits(1)
    story.go_on(2.0)

    assert story.told is not None
    assert story.told.stuck == {0, 1}


def test_who_has_just_come_is_not(story: Story) -> None:
    """It may still go on."""
    story.both_run()
    story.waits(0)
    story.go_on(0.9)
    story.waits(1)
    story.go_on(1.0)

    assert story.told is not None
    assert story.told.stuck == {0}


def test_a_rank_that_computes_on_its_own_is_given_more_time(busy_story: Story) -> None:
    """Between operations what it computes counts as progress, but not for ever: no wait is unbounded."""
    busy_story.both_run()
    moment = busy_story.now
    busy_story.pens[0].stage(Stage.REPORTED)
    busy_story.hear("reported", 0)
    while busy_story.now < moment + BUDGETS.operation_s + 5:
        busy_story.go_on(0.1)
        processes.wait_until(progressed(busy_story.generation.pids[1]), "progress")
    assert busy_story.orders == []

    busy_story.seconds_until("stacks", COMPUTING_TIMES * BUDGETS.operation_s + 1)

    assert busy_story.orders[0] == "stacks"
    assert busy_story.now - moment < COMPUTING_TIMES * BUDGETS.operation_s + 2


def progressed(pid: int) -> Callable[[], bool]:
    """Whether a process has done anything since this was called."""
    before = progress_of(pid)
    return lambda: progress_of(pid) > before


def test_a_rank_that_computes_inside_of_an_operation_is_given_none(busy_story: Story) -> None:
    """There it can spin for ever too."""
    busy_story.both_run()
    busy_story.waits(1)

    assert busy_story.seconds_until("stacks", 5.0) < 1.5


def test_a_cold_file_cache_raises_no_alarm(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before checks run, what is read from a disk is progress, in bounds: a disk may hang as well."""
    reads = itertools.count()
    monkeypatch.setattr(pulse, "disk_reads_of", lambda pid: (next(reads),))
    story.pens[0].stage(Stage.JOINING)
    story.pens[1].stage(Stage.JOINING)

    waited_s = story.seconds_until("stacks", 100.0)

    assert waited_s == pytest.approx(PROGRESS_TIMES * BUDGETS.join_s, rel=0.05)


def test_a_busy_machine_is_given_more_time(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ranks could not use of the time is not counted; what they could is."""
    monkeypatch.setattr(Starvation, "share", lambda self, pids, now: 0.1)
    story.both_run()
    story.waits(0)

    assert story.seconds_until("stacks", 30.0) == pytest.approx(9.0, rel=0.15)


def test_the_last_in_a_stage_is_given_less_time(tmp_path: Path, story: Story) -> None:
    """On a GPU it may take long to join, but not when the others took no time at all."""
    cuda = Watch(story.generation, budgets(2, "cuda", None), story.order, lambda: "S")
    story.watch = cuda
    story.pens[1].stage(Stage.JOINING)
    story.pens[0].stage(Stage.JOINING)
    story.go_on(0.4)
    story.pens[0].stage(Stage.AGREEING)

    assert story.seconds_until("stacks", 100.0) == pytest.approx(20 * 0.4, abs=0.5)


def test_who_came_late_is_slow_and_nothing_else(story: Story) -> None:
    """The others waited, nobody hung: no stack is asked for, and the generation goes on."""
    story.comes_late()
    story.go_on(0.2)

    (slow,) = story.watch.slows
    assert (slow.rank, slow.operation, slow.site, slow.usual_s) == (1, "all_reduce", "a.py:1", 0.01)
    assert (story.orders, story.watch.hang) == ([], None)


def test_who_came_late_and_ended_between_two_looks_is_slow(story: Story) -> None:
    """The last look is when all have gone."""
    story.comes_late()
    story.report_all()
    story.generation.released = True
    for rank in range(2):
        story.hear("exited", rank, code=0, signal=None)
    story.watch.look(story.now + 0.001)

    assert story.watch.over
    assert [slow.rank for slow in story.watch.slows] == [1]


def test_what_others_waited_for_one_is_not_what_the_operation_takes(story: Story) -> None:
    """Once a rank was late the deadline goes by the one that waited least: not 20 times 0.7 s."""
    story.comes_late()
    story.go_on(0.2)
    assert [slow.rank for slow in story.watch.slows] == [1]

    story.waits(0, call=3, slowest_s=0.7)
    story.waits(1, call=3)
    moment = story.now
    story.seconds_until("stacks", 2.0)
    assert story.now - moment < 1.5


def test_a_hang_says_more_than_that_the_rank_was_slow(story: Story) -> None:
    """Of a culprit only the hang is told."""
    story.comes_late()
    story.go_on(0.2)
    assert [slow.rank for slow in story.watch.slows] == [1]

    story.hear("exited", 1, code=None, signal="SIGKILL")
    story.go_on(5.0)

    assert story.watch.hang is not None
    assert story.watch.hang.culprit_ranks == (1,)
    assert story.watch.slows == []


def test_the_judgement_knows_who_stood_still_and_what_killed(
    story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long by the clocks, what the kernel counted, and what the dead rank printed last."""
    kills = OomKills(number=1, says="oom_kill 0 -> 1 in memory.events")
    monkeypatch.setattr(OomWatch, "kills", lambda self: kills)
    story.generation.spec = replace(story.generation.spec, logs=str(tmp_path))
    (tmp_path / "rank-1.log").write_text("x" * 5000 + "\nlast words\n")
    story.both_run()
    story.waits(0)
    story.go_on(0.6)
    story.hear("exited", 1, code=None, signal="SIGKILL")
    story.go_on(2.0)

    assert story.told is not None
    assert story.told.oom == kills
    assert list(story.told.still_s) == [0]
    assert list(story.told.asleep) == [0]
    assert 0.6 < story.told.still_s[0] < 1.6
    assert story.told.last_words[1].endswith("x\nlast words\n")
    assert len(story.told.last_words[1]) < 9000


def test_who_is_only_late_beside_a_death_is_waited_for(story: Story) -> None:
    """It comes to where its peers would have waited for it, and is judged there."""
    story.both_run()
    story.hear("exited", 0, code=None, signal="SIGKILL")
    story.go_on(0.6)
    assert story.orders == []
    story.waits(1)
    story.go_on(0.6)

    assert story.told is not None
    assert story.told.is_waiting(1)


def test_who_does_not_come_beside_a_death_is_asleep(story: Story) -> None:
    """After what an operation gets at least: its peers would have been late then."""
    story.both_run()
    story.hear("exited", 0, code=None, signal="SIGKILL")
    assert 1.0 < story.seconds_until("stacks", 5.0) < 1.5
    story.go_on(0.6)

    assert story.told is not None
    assert story.told.asleep == [1]


def test_who_raised_beside_a_death_is_not_waited_for(story: Story) -> None:
    """It is in no operation any more, and comes to none."""
    story.both_run()
    story.hear("trouble", 1, kind="door", type="RuntimeError", text="connection closed", site="a.py:1")
    story.hear("exited", 0, code=None, signal="SIGKILL")

    assert story.seconds_until("stacks", 5.0) < 0.6

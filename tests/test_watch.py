"""The watch over a generation: no wait of it is without a bound, whatever a rank does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forks
from cpinfra.proof.deadlines import budgets
from cpinfra.proof.generation import Generation
from cpinfra.proof.watch import Watch
from cpinfra.worker import ledger
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import Ledger
from cpinfra.worker.ledger import Phase
from cpinfra.worker.ledger import Stage
from cpinfra.worker.spec import GenerationSpec

BUDGETS = budgets(2, "cpu", None)
CALL = {"check": "a.x", "site": "a.py:1", "operation": "all_reduce", "group": "world", "call": 1}


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
        self.zygote_state = "S"
        self.watch = Watch(self.generation, BUDGETS, self._order, lambda: self.zygote_state)
        self.now = time.monotonic()

    def _order(self, name: str, **_facts: Any) -> None:
        self.orders.append(name)
        if name == "stacks" and self._place:
            with (self._folder / "rank-1.stacks").open("a") as stacks:
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
        end = self.now + seconds
        while self.now < end and not self.watch.over:
            self.now += 0.1
            self.watch.look(self.now)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    """Ranks that sleep, which is what a healthy one does while it waits."""
    with forks.forked(forks.idle) as first, forks.forked(forks.idle) as second:
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
        story.pens[1].write(Kind.ENTER, {"call": number})
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
        story.pens[1].write(Kind.ENTER, {"call": number})
        story.go_on(1.0)
    story.report_all()

    story.go_on(BUDGETS.leave_s - 1)

    assert story.watch.hang is None
    assert story.orders == []


def test_a_supervisor_that_slept_blames_nobody(story: Story) -> None:
    """After an hour's suspension the ranks still have all of their time but one step."""
    story.pens[0].stage(Stage.RUNNING)
    story.pens[1].stage(Stage.RUNNING)
    story.go_on(1.0)
    story.now += 3600

    story.go_on(BUDGETS.operation_s - 2)
    assert story.orders == []

    story.go_on(5)
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
    assert "new_place" in story.watch.hang.stacks[1]
    assert "old_place" not in story.watch.hang.stacks[1]

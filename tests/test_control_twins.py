"""Control twins on real ranks: each fires, and does on gloo what it says, as the ledger shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import engine
import subgroup
from cpinfra.outcome import Outcome
from cpinfra.proof.contract import Proof
from cpinfra.proof.generation import Generation
from cpinfra.worker.injection import CONTROL_TWINS
from cpinfra.worker.injection import STAGE_TWINS
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import RankView
from cpinfra.worker.ledger import Stage

ALL_REDUCE, RING, ROUNDTRIP = "collective.all_reduce", "p2p.ring", "dtensor.roundtrip"
ON_TENSORS = ("skip", "swap-order", "wrong-shape", "wrong-dtype", "stall-inside")


class Scene:
    """Four ranks in one zygote, and what their ledgers held in the end."""

    def __init__(self, bench: engine.Bench) -> None:
        self._bench = bench
        self.views: dict[int, dict[int, RankView]] = {}
        """By generation and rank."""
        self.fired: list[dict[str, Any]] = []

    def prove(self, check: str, *faults: str) -> Proof:
        """Run a check with these faults."""
        self.views.clear()
        before = len(self._bench.events)
        proof = self._bench.prove(check, *faults)
        self.fired = [event for event in self._bench.events[before:] if event["event"] == "fired"]
        return proof

    def entered(self, rank: int) -> list[dict[str, Any]]:
        """What a rank entered, in its order."""
        return [dict(record.call) for record in self.view(rank).records if record.kind is Kind.ENTER]

    def view(self, rank: int) -> RankView:
        """What a rank of the first generation, in which the fault acts, left."""
        return self.views[min(self.views)][rank]


@pytest.fixture(scope="module")
def patched() -> Iterator[pytest.MonkeyPatch]:
    """A monkeypatch that lasts as long as the ranks' zygote."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def bench(patched: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Bench]:
    """A zygote without asserts, whose worker has a check over groups of two."""
    patched.setenv("PYTHONOPTIMIZE", "1")
    altered = {"worker/checks/collective.py": subgroup.PAIRS}
    engine.altered_worker(patched, tmp_path_factory.mktemp("worker"), altered)
    with engine.Bench(tmp_path_factory.mktemp("run"), mesh=(1, 2, 2)) as made:
        yield made


@pytest.fixture
def scene(bench: engine.Bench, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The same, with the ledgers kept as they were when the ranks had gone."""
    made = Scene(bench)
    close = Generation.close

    def keep(generation: Generation) -> None:
        book = generation.ledger
        if book is not None:
            made.views[generation.spec.generation] = {rank: book.view(rank) for rank in range(book.world)}
        close(generation)

    monkeypatch.setattr(Generation, "close", keep)
    return made


def identity(call: dict[str, Any]) -> tuple[Any, ...]:
    """By which ranks' calls are compared."""
    words = ("check", "site", "repetition", "operation", "group", "shape", "dtype")
    return tuple(str(call[word]) for word in words)


def plan_of(scene: Scene, check: str) -> list[dict[str, Any]]:
    """What each rank enters where nothing is planted."""
    assert scene.prove(check).results[check].outcome is Outcome.PASS
    assert scene.fired == []
    return scene.entered(0)


def repetitions(calls: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Operations and repetitions alone."""
    return [(call["operation"], call["repetition"]) for call in calls]


def at_third_call(scene: Scene, check: str, fault: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(What rank 1 was to enter, what it entered), with a fault that acts at its third call."""
    plan = plan_of(scene, check)
    proof = scene.prove(check, fault)
    (fired,) = scene.fired
    assert (fired["fault"], fired["rank"], fired["check"]) == (fault, 1, check)
    assert isinstance(fired["at_s"], float)
    assert proof.results[check].outcome is Outcome.FAIL
    assert "in the code of" not in proof.results[check].reason  # that would be a bug of ours
    assert [finding.id for finding in proof.findings] == []
    return plan, scene.entered(1)


@pytest.mark.parametrize("check", [ALL_REDUCE, RING, ROUNDTRIP, subgroup.NAME])
def test_a_skipped_call_is_left_out(scene: Scene, check: str) -> None:
    """The rank goes on, and its next call takes the number of the one that it has not made."""
    plan, entered = at_third_call(scene, check, "skip:1")

    assert [identity(call) for call in entered[:2]] == [identity(call) for call in plan[:2]]
    assert identity(entered[2]) == identity(plan[3])
    assert entered[2]["call"] == 3


@pytest.mark.parametrize("check", [ALL_REDUCE, RING, ROUNDTRIP, subgroup.NAME])
def test_swapped_calls_are_both_entered_at_once(scene: Scene, check: str) -> None:
    """The fourth and then the third, before the first of them can have been left."""
    plan, entered = at_third_call(scene, check, "swap-order:1")

    assert [identity(call) for call in entered[:2]] == [identity(call) for call in plan[:2]]
    assert [identity(call) for call in entered[2:4]] == [identity(plan[3]), identity(plan[2])]
    kinds = [(record.kind, record.call["call"]) for record in scene.view(1).records]
    assert kinds.index((Kind.ENTER, 4)) == kinds.index((Kind.ENTER, 3)) + 1


@pytest.mark.parametrize("check", [ALL_REDUCE, RING, ROUNDTRIP, subgroup.NAME])
def test_a_wrong_shape_is_twice_as_long(scene: Scene, check: str) -> None:
    """In its first dim, as the ledger has it, beside what the plan says."""
    plan, entered = at_third_call(scene, check, "wrong-shape:1")
    right, wrong = plan[2], entered[2]

    assert wrong["planned"] == {"dtype": right["dtype"], "shape": right["shape"]}
    assert wrong["shape"] == [2 * right["shape"][0], *right["shape"][1:]]
    assert (wrong["dtype"], wrong["site"]) == (right["dtype"], right["site"])
    assert not any("planned" in call for rank in (0, 2, 3) for call in scene.entered(rank))


@pytest.mark.parametrize("check", [ALL_REDUCE, RING, ROUNDTRIP, subgroup.NAME])
def test_a_wrong_dtype_has_the_same_size(scene: Scene, check: str) -> None:
    """So that gloo carries it without a word, and only data and ledger tell."""
    plan, entered = at_third_call(scene, check, "wrong-dtype:1")
    right, wrong = plan[2], entered[2]

    assert wrong["planned"] == {"dtype": right["dtype"], "shape": right["shape"]}
    assert (wrong["shape"], wrong["site"]) == (right["shape"], right["site"])
    assert {right["dtype"], wrong["dtype"]} in [
        {"int64", "float64"},
        {"int32", "float32"},
        {"float16", "bfloat16"},
    ]


@pytest.mark.parametrize("check", [ALL_REDUCE, RING, ROUNDTRIP, subgroup.NAME])
def test_who_stalls_inside_has_entered(scene: Scene, check: str) -> None:
    """And never leaves."""
    plan, entered = at_third_call(scene, check, "stall-inside:1")

    assert [identity(call) for call in entered] == [identity(call) for call in plan[:3]]
    inside = scene.view(1).open_call
    assert inside is not None
    assert inside.call["call"] == 3


@pytest.mark.parametrize("fault", ["raise:1", "exit:1", "kill:1", "stop:1"])
def test_who_leaves_before_a_call_has_not_entered_it(scene: Scene, fault: str) -> None:
    """Whether it raised, ended or was stopped."""
    plan, entered = at_third_call(scene, ALL_REDUCE, fault)

    assert [identity(call) for call in entered] == [identity(call) for call in plan[:2]]


def test_a_delay_changes_no_call(scene: Scene) -> None:
    """The rank comes late, and does all the same."""
    plan = plan_of(scene, ALL_REDUCE)
    proof = scene.prove(ALL_REDUCE, "delay:1:0.2")

    assert [fired["fault"] for fired in scene.fired] == ["delay:1:0.2"]
    assert proof.results[ALL_REDUCE].outcome is Outcome.PASS
    assert [identity(call) for call in scene.entered(1)] == [identity(call) for call in plan]


@pytest.mark.parametrize(
    ("fault", "own", "others"),
    [
        ("never-join:1", Stage.DEVICE, Stage.JOINING),
        ("stall-init:1", Stage.JOINING, Stage.JOINING),
        ("stall-teardown:1", Stage.LEAVING, Stage.LEFT),
    ],
)
def test_who_stalls_in_a_stage_stays_there(scene: Scene, fault: str, own: Stage, others: Stage) -> None:
    """It says so outside of any check."""
    scene.prove(ALL_REDUCE, fault)

    assert [(fired["fault"], fired["rank"], fired["check"]) for fired in scene.fired] == [(fault, 1, "")]
    assert scene.view(1).stage is own
    assert {scene.view(rank).stage for rank in (0, 2, 3)} == {others}


def test_every_control_twin_is_tested_here() -> None:
    """A new one comes with a test of what it does on real ranks."""
    assert {*ON_TENSORS, *STAGE_TWINS, "delay", "raise", "exit", "kill", "stop"} == set(CONTROL_TWINS)


def test_several_fire_at_once(scene: Scene) -> None:
    """On one rank and on several, at their own calls; a data twin beside them."""
    faults = ("delay:0:0.05@2", "delay:0:0.05@4", "wrong-dtype:1@3", "skip:2@5", "shifted")
    scene.prove(ALL_REDUCE, *faults)

    assert {fired["fault"] for fired in scene.fired} == set(faults)
    assert "planned" in scene.entered(1)[2]
    assert [call["repetition"] for call in scene.entered(2)][:5] == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("call", [1, 5])
def test_the_call_that_is_asked_for_is_the_one(scene: Scene, call: int) -> None:
    """Counted from one on, the rank's own."""
    scene.prove(ALL_REDUCE, f"skip:1@{call}")

    assert [fired["fault"] for fired in scene.fired] == [f"skip:1@{call}"]
    skipped = [n for n in range(1, call + 1) if n != call]
    assert [entered["repetition"] for entered in scene.entered(1)][:call] == [*skipped, call + 1]


def test_a_call_beyond_the_last_never_fires(scene: Scene) -> None:
    """And is told as a fault that did not act, with the calls that there are; the last of them acts."""
    proof = scene.prove(ALL_REDUCE, "kill:1@1000")
    made = len(scene.entered(1))

    assert scene.fired == []
    (finding,) = proof.findings
    assert finding.id == "fault-not-fired"
    assert finding.got == f"kill:1@1000 acts on call 1000; rank 1 made {made} calls in the chosen checks"
    assert f"(valid are @1 to @{made})" in finding.remedy
    assert scene.prove(ALL_REDUCE, f"kill:1@{made}").findings == []
    assert len(scene.fired) == 1


def test_a_fault_whose_turn_did_not_come_names_the_one_that_ended_the_ranks(scene: Scene) -> None:
    """By its rank's calls nothing can be said of where it is valid."""
    proof = scene.prove(ALL_REDUCE, "raise:1@3", "raise:1@5", "stop:2@999")

    (finding,) = proof.findings
    assert finding.id == "fault-not-fired"
    first, second = finding.got.split("; ")
    assert first == "the ranks were ended by raise:1@3 after call 2 of rank 1, before raise:1@5 could act"
    assert second.startswith("the ranks were ended by raise:1@3 after call ")
    assert second.endswith(" of rank 2, before stop:2@999 could act")
    assert finding.remedy == "plant it alone: its turn may not have come"


@pytest.mark.parametrize("name", ["wrong-shape", "wrong-dtype"])
@pytest.mark.parametrize(
    ("check", "call"),
    [
        ("collective.all_gather", 3),
        ("collective.all_gather", 4),
        ("collective.reduce_scatter", 3),
        ("collective.reduce_scatter", 9),
        (ROUNDTRIP, 2),
    ],
)
def test_other_tensors_fit_into_every_form_of_an_operation(
    scene: Scene, check: str, call: int, name: str
) -> None:
    """What is received into changes with what is passed: the rank's own torch takes its call."""
    result = scene.prove(check, f"{name}:1@{call}").results[check]

    assert "planned" in scene.entered(1)[call - 1]
    assert result.outcome is Outcome.FAIL
    assert "in the code of" not in result.reason
    assert not {"ValueError", "TypeError"} & {
        record.call.get("raised") for record in scene.view(1).records if record.kind is Kind.LEAVE
    }


def test_groups_of_an_axis_are_their_own(scene: Scene) -> None:
    """The ledger names the axis, and each group of two reduces for itself."""
    plan = plan_of(scene, subgroup.NAME)

    assert repetitions(plan) == [("init_device_mesh", 1), *(("all_reduce", n) for n in range(1, 6))]
    assert {call["group"] for call in plan[1:]} == {"cp1"}
    assert [call["first"] for call in plan] == [True, True, False, False, False, False]

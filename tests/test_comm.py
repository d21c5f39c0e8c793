"""The door: in which order a call, the ledger, torch and planted faults come, and what leaves it how."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from typing import cast

import pytest
import torch

from cpinfra.worker import calls
from cpinfra.worker import injection
from cpinfra.worker.calls import Aborted
from cpinfra.worker.calls import DoorError
from cpinfra.worker.comm import Door
from cpinfra.worker.comm import Place
from cpinfra.worker.control import Control
from cpinfra.worker.control import InjectedError
from cpinfra.worker.faults import Delivery
from cpinfra.worker.injection import FIRES_AT_CALL
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import Ledger
from cpinfra.worker.ledger import Pen
from cpinfra.worker.ledger import Phase
from cpinfra.worker.operations import Operation
from cpinfra.worker.trials import Trial


@dataclass
class Scene:
    """A door among stand-ins, each of which writes down when it acts."""

    log: list[str] = field(default_factory=list)
    records: list[Mapping[str, Any]] = field(default_factory=list)
    phase: Phase = Phase.RUN
    device: str = "cpu"
    ledger_is_broken: bool = False

    def __post_init__(self) -> None:
        place = Place(
            rank=1,
            world=4,
            backend="gloo",
            device=torch.device(self.device),
            store=Path("store"),
            patience_s=1.0,
        )
        pen = cast(Pen, SimpleNamespace(write=self._write))
        self.door = Door(place, cast(Ledger, self), pen)

    def _write(self, kind: Kind, call: Mapping[str, Any]) -> None:
        if self.ledger_is_broken:
            raise ValueError(f"does not fit: {kind.name}")
        self.log.append(f"ledger: {kind.name.lower()}")
        self.records.append(call)

    def plant(self, *data: Any, conduct: Callable[[], None] = lambda: None) -> None:
        """Put these data faults in place, and a control fault that does this at every call."""

        def on_call(operation: Operation) -> list[Operation]:
            self.log.append("control fault")
            conduct()
            return [operation]

        control = cast(Control, SimpleNamespace(on_call=on_call))
        self.door.plant(control, data, lambda name, _: self.log.append(f"changed: {name}"))

    def plant_conduct(self, *texts: str) -> list[str]:
        """Put real control twins in place; returns where they say that they have fired."""
        fired: list[str] = []
        planted = [injection.parse(text, 4) for text in texts]
        self.door.plant(Control(planted, 1, lambda text, _: fired.append(text)), (), lambda *_: None)
        return fired

    def entered(self) -> list[tuple[Any, ...]]:
        """Repetition, dtype and shape of what the ledger has as entered."""
        entered = [record for record in self.records if "operation" in record]
        return [(record["repetition"], record["dtype"], record["shape"]) for record in entered]


@dataclass
class DataFault:
    """Writes down what was delivered, and over it."""

    scene: Scene
    name: str = "over"
    changes: bool = True
    delivered: list[Delivery] = field(default_factory=list)

    def apply(self, delivery: Delivery) -> bool:
        """See `faults.DataFault`."""
        self.scene.log.append(f"data fault on {delivery.slots[0].tolist()}")
        self.delivered.append(delivery)
        return self.changes


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A door whose all_reduce doubles."""
    made = Scene()

    def all_reduce(tensor: torch.Tensor, operation: object, group: object) -> None:
        made.log.append("torch")
        tensor.mul_(2)

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    return made


def trial(repetition: int, dtype: str, *shape: int) -> Trial:
    """One that all_reduces this."""
    return Trial(dtype=dtype, shape=shape, repetition=repetition, form="tensor", reduction="sum", salt=1)


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let torch's all_reduce raise."""

    def all_reduce(tensor: torch.Tensor, operation: object, group: object) -> None:
        raise error

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)


def test_a_call_goes_through_the_door_in_its_order(scene: Scene) -> None:
    """A control fault comes before the ledger hears of the call, a data fault after it has heard its end."""
    fault = DataFault(scene)
    scene.plant(fault, DataFault(scene, name="idle", changes=False))

    scene.door.all_reduce(torch.tensor([1, 2]))

    assert scene.log == [
        "control fault",
        "ledger: enter",
        "torch",
        "ledger: leave",
        "data fault on [2, 4]",
        "changed: over",
        "data fault on [2, 4]",
    ]
    assert [slot.tolist() for slot in fault.delivered[0].before] == [[1, 2]]
    assert (fault.delivered[0].rank, fault.delivered[0].world) == (1, 4)


def test_the_ledger_holds_what_is_passed_to_torch_and_where_it_was_called(scene: Scene) -> None:
    """Two calls: each with its number and its place of the plan, the first of its group marked as such."""
    scene.door.at("collective.all_reduce", trial(5, "bfloat16", 2, 3))
    scene.door.all_reduce(torch.zeros(2, 3, dtype=torch.bfloat16))
    scene.door.at("collective.all_reduce", trial(6, "float32", 7))
    scene.door.all_reduce(torch.zeros(7), reduction="max")

    first, left, second, _ = scene.records
    site = first["site"]
    assert site.startswith("test_comm.py:")
    assert first == {
        "check": "collective.all_reduce",
        "repetition": 5,
        "site": site,
        "operation": "all_reduce",
        "group": "world",
        "first": True,
        "shape": [2, 3],
        "dtype": "bfloat16",
        "call": 1,
    }
    assert left == {"call": 1}
    assert (second["repetition"], second["first"], second["shape"], second["call"]) == (6, False, [7], 2)


def test_what_torch_raises_comes_out_as_the_doors_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch's own as its cause; the call is left in the ledger by that, and no data fault acts."""
    raising(monkeypatch, ValueError("no such thing"))
    scene.plant(DataFault(scene))

    with pytest.raises(DoorError, match=r"all_reduce \(test_comm.py:\d+\): ValueError: no such") as raised:
        scene.door.all_reduce(torch.ones(1))

    assert isinstance(raised.value.__cause__, ValueError)
    assert raised.value.operation == "all_reduce"
    assert scene.log == ["control fault", "ledger: enter", "ledger: leave"]
    assert scene.records[-1] == {"call": 1, "raised": "ValueError"}


def test_the_planted_raise_comes_out_as_the_doors_error_too(scene: Scene) -> None:
    """At the call that it acts at, of which neither the ledger nor torch hears."""
    fired = scene.plant_conduct("raise:1")
    for _ in range(FIRES_AT_CALL - 1):
        scene.door.all_reduce(torch.ones(1))
    before = list(scene.log)

    with pytest.raises(DoorError, match="planted fault raise:1") as raised:
        scene.door.all_reduce(torch.ones(1))

    assert isinstance(raised.value.__cause__, InjectedError)
    assert fired == ["raise:1"]
    assert scene.log == before


def test_an_error_of_the_ledger_is_not_taken_for_one_of_torch(scene: Scene) -> None:
    """It is our own, and leaves the door as what it is; torch is not called."""
    scene.ledger_is_broken = True

    with pytest.raises(ValueError, match="does not fit: ENTER"):
        scene.door.all_reduce(torch.ones(1))
    assert scene.log == []


def test_an_error_of_a_fault_is_not_taken_for_one_of_torch(scene: Scene) -> None:
    """In conduct or in data: neither is what an operation said."""

    def broken() -> None:
        raise KeyError("conduct")

    scene.plant(conduct=broken)
    with pytest.raises(KeyError, match="conduct"):
        scene.door.all_reduce(torch.ones(1))

    def apply(delivery: Delivery) -> bool:
        raise KeyError("data")

    scene.plant(SimpleNamespace(name="broken", apply=apply))
    with pytest.raises(KeyError, match="data"):
        scene.door.all_reduce(torch.ones(1))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_what_is_no_error_passes_through(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """An interrupt is not an operation's failure."""
    raising(monkeypatch, error)

    with pytest.raises(type(error)):
        scene.door.all_reduce(torch.ones(1))


# ------------------------------------------------------------------------ what attribution relies on


def test_what_contradicts_the_plan_is_recorded_beside_the_plan(scene: Scene) -> None:
    """Its dtype or its shape; nothing where the two agree, or where no trial says what is to come."""
    scene.door.all_reduce(torch.zeros(9))
    scene.door.at("a.check", trial(1, "float32", 7))
    for tensor in (torch.zeros(7), torch.zeros(8), torch.zeros(7, dtype=torch.int32)):
        scene.door.all_reduce(tensor)

    entered = [record for record in scene.records if "operation" in record]
    expected = {"dtype": "float32", "shape": [7]}
    assert [record.get("planned") for record in entered] == [None, None, expected, expected]


def test_the_slowest_completed_operation_of_a_kind_is_recorded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not counting the first of a group, which connects it, nor one that torch raised in."""
    times = iter([0, 100, 102, 200, 205, 300, 400, 401])
    monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: next(times)))
    for _ in range(3):
        scene.door.all_reduce(torch.ones(1))
    with monkeypatch.context() as broken:
        raising(broken, ValueError("no"))
        with pytest.raises(DoorError):
            scene.door.all_reduce(torch.ones(1))
    scene.door.all_reduce(torch.ones(1))

    entered = [record for record in scene.records if "operation" in record]
    assert [record.get("slowest_s") for record in entered] == [None, None, 2, 5, 5]


def test_two_ranks_with_the_same_calls_have_the_same_history(scene: Scene) -> None:
    """Another number of calls, or another call at one place, is another history."""

    def history(*lengths: int) -> dict[str, Any]:
        door = Scene().door
        for length in lengths:
            door.all_reduce(torch.zeros(length))
        return door.history

    assert Scene().door.history == {"count": 0, "digest": "00000000"}
    assert history(3, 4) == history(3, 4)
    assert history(3, 4)["count"] == 2
    assert len({history(*each)["digest"] for each in [(), (3,), (3, 4), (4, 3), (3, 3)]}) == 5


# -------------------------------------------------------------------- control twins that change a call


def all_reduce_each(scene: Scene, *tensors: torch.Tensor) -> None:
    """One after the other, as trials 1, 2, 3, ..."""
    for place, tensor in enumerate(tensors, start=1):
        dtype = str(tensor.dtype).removeprefix("torch.")
        scene.door.at("a.check", trial(place, dtype, *tensor.shape))
        scene.door.all_reduce(tensor)


def test_a_call_that_is_skipped_is_heard_of_by_nobody(scene: Scene) -> None:
    """Neither ledger nor torch: the tensor stays as it was, and the next call has the next number."""
    fired = scene.plant_conduct("skip:1@2")
    tensors = [torch.ones(3), torch.ones(4), torch.ones(5)]

    all_reduce_each(scene, *tensors)

    assert fired == ["skip:1@2"]
    assert [int(tensor[0]) for tensor in tensors] == [2, 1, 2]
    assert scene.entered() == [(1, "float32", [3]), (3, "float32", [5])]
    assert [record["call"] for record in scene.records] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("text", "got"),
    [("wrong-shape:1@2", (2, "float32", [8])), ("wrong-dtype:1@2", (2, "int32", [4]))],
)
def test_another_tensor_is_passed_and_recorded_as_what_it_is(
    scene: Scene, text: str, got: tuple[Any, ...]
) -> None:
    """The caller's own is left alone, and what the plan says stands beside it."""
    fired = scene.plant_conduct(text)
    tensors = [torch.ones(4), torch.ones(4), torch.ones(4)]

    all_reduce_each(scene, *tensors)

    assert fired == [text]
    assert [tensor.tolist() for tensor in tensors] == [[2] * 4, [1] * 4, [2] * 4]
    assert scene.entered() == [(1, "float32", [4]), got, (3, "float32", [4])]
    assert scene.records[2]["planned"] == {"dtype": "float32", "shape": [4]}


def test_a_tensor_without_dims_becomes_one_of_two_elements(scene: Scene) -> None:
    """It has no first dim that could be longer."""
    scene.plant_conduct("wrong-shape:1@1")
    scene.door.all_reduce(torch.tensor(3))

    assert scene.entered() == [(0, "int64", [2])]


def test_a_twin_waits_for_a_call_that_it_can_act_on(scene: Scene) -> None:
    """An empty tensor cannot be longer, and not every dtype has another of its size."""
    fired = scene.plant_conduct("wrong-shape:1@1", "wrong-dtype:1@1")

    all_reduce_each(scene, torch.ones(0), torch.ones(2, dtype=torch.uint8), torch.ones(3))

    assert fired == ["wrong-shape:1@1", "wrong-dtype:1@1"]
    assert scene.entered() == [(1, "float32", [0]), (2, "uint8", [4]), (3, "int32", [3])]


def test_swapped_calls_are_both_entered_before_either_blocks(scene: Scene) -> None:
    """The later one first, each at its own place of the plan; both come to their own buffers."""
    fired = scene.plant_conduct("swap-order:1@2")
    first, second, third = torch.ones(2), torch.ones(3), torch.ones(4)

    all_reduce_each(scene, first, second)
    assert (fired, second.tolist()) == (["swap-order:1@2"], [1, 1, 1])

    scene.door.at("a.check", trial(3, "float32", 4))
    scene.door.all_reduce(third)

    assert fired == ["swap-order:1@2"]
    assert scene.entered() == [(1, "float32", [2]), (3, "float32", [4]), (2, "float32", [3])]
    assert scene.log[3:7] == ["ledger: enter", "ledger: enter", "torch", "torch"]
    assert [record["call"] for record in scene.records] == [1, 1, 2, 3, 3, 2]
    assert (second.tolist(), third.tolist()) == ([2] * 3, [2] * 4)


def test_what_torch_raises_in_a_swapped_call_is_its_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the call ran beside: it comes out of the door as that call's error."""
    scene.plant_conduct("swap-order:1@1")

    def all_reduce(tensor: torch.Tensor, operation: object, group: object) -> None:
        if len(tensor) == 3:
            raise ValueError("no such thing")

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    scene.door.all_reduce(torch.ones(2))

    with pytest.raises(DoorError, match="ValueError: no such thing"):
        scene.door.all_reduce(torch.ones(3))
    assert scene.records[-1] == {"call": 1, "raised": "ValueError"}


def test_who_stalls_inside_is_entered_and_never_calls_torch(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The word that it fired comes when the ledger knows of the call."""
    fired = scene.plant_conduct("stall-inside:1@1")

    def stall() -> None:
        scene.log.append(f"stall, fired: {fired}")

    monkeypatch.setattr("cpinfra.worker.control.stall_for_ever", stall)
    scene.door.all_reduce(torch.ones(2))

    assert scene.log == ["ledger: enter", "stall, fired: ['stall-inside:1@1']", "ledger: leave"]


# ------------------------------------------------------------------------------- waiting for the device


@dataclass
class Waited:
    """What a wait for a fake device did."""

    events: int = 0
    looks: int = 0
    pauses: list[float] = field(default_factory=list)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Scene, Waited]]:
    """A door on a GPU that is done at a look of this number; it asks `at_look` at each."""

    def _on_gpu(ready_at: float, at_look: Callable[[Scene, int], None]) -> tuple[Scene, Waited]:
        made, waited = Scene(device="cuda:0"), Waited()

        class Event:
            def __init__(self) -> None:
                waited.events += 1

            def record(self) -> None:
                made.log.append("event recorded")

            def query(self) -> bool:
                waited.looks += 1
                at_look(made, waited.looks)
                return waited.looks >= ready_at

        def all_reduce(tensor: torch.Tensor, operation: object, group: object) -> None:
            made.log.append("torch")

        monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
        monkeypatch.setattr("torch.cuda.Event", Event)
        clock = SimpleNamespace(sleep=waited.pauses.append, monotonic=time.monotonic)
        monkeypatch.setattr(calls, "time", clock)
        return made, waited

    return _on_gpu


def test_a_call_is_left_when_the_device_has_done_it(on_gpu: Callable[..., tuple[Scene, Waited]]) -> None:
    """Not when torch has returned: the event is polled asleep, ever more seldom up to a bound."""
    scene, waited = on_gpu(12, lambda scene, look: scene.log.append("look"))

    scene.door.all_reduce(torch.ones(1))

    assert scene.log == ["ledger: enter", "torch", "event recorded", *["look"] * 12, "ledger: leave"]
    assert waited.pauses == sorted(waited.pauses)
    assert (len(waited.pauses), waited.pauses[0], waited.pauses[-1]) == (11, 20e-6, 1e-3)


def test_on_a_device_swapped_calls_are_posted_before_either_is_waited_for(
    on_gpu: Callable[..., tuple[Scene, Waited]],
) -> None:
    """The host does not block in them, so no thread is needed; each is left when the device has done it."""
    scene, _ = on_gpu(1, lambda scene, look: None)
    scene.plant_conduct("swap-order:1@1")

    scene.door.all_reduce(torch.ones(1))
    scene.door.all_reduce(torch.ones(1))

    assert scene.log == [
        *["ledger: enter"] * 2,
        *["torch"] * 2,
        *["event recorded", "ledger: leave"] * 2,
    ]


def test_a_device_that_is_never_done_is_given_up_with_the_generation(
    on_gpu: Callable[..., tuple[Scene, Waited]],
) -> None:
    """The rank leaves the door by `Aborted`, no error of torch, and the ledger keeps the call open."""

    def end(scene: Scene, look: int) -> None:
        if look == 5:
            scene.phase = Phase.ABORT

    scene, waited = on_gpu(float("inf"), end)

    with pytest.raises(Aborted):
        scene.door.all_reduce(torch.ones(1))

    assert scene.log == ["ledger: enter", "torch", "event recorded"]
    assert (waited.looks, len(waited.pauses)) == (5, 4)


def test_an_error_that_the_device_reports_late_is_torchs(
    on_gpu: Callable[..., tuple[Scene, Waited]],
) -> None:
    """An asynchronous one comes out of the event; it belongs to the call that waits."""

    def fail(_scene: Scene, _look: int) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    scene, _ = on_gpu(1, fail)

    with pytest.raises(DoorError, match="illegal memory access"):
        scene.door.all_reduce(torch.ones(1))
    assert scene.records[-1] == {"call": 1, "raised": "RuntimeError"}


def test_on_a_cpu_there_is_no_device_to_wait_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA is not touched."""

    def event() -> None:
        raise AssertionError("an event on a CPU")

    monkeypatch.setattr("torch.cuda.Event", event)

    scene.door.all_reduce(torch.ones(1))

    assert scene.log == ["ledger: enter", "torch", "ledger: leave"]

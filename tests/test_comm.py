"""The door: in which order a call, the ledger, torch and planted faults come, and what leaves it how."""

from __future__ import annotations

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

from cpinfra.worker import comm
from cpinfra.worker import injection
from cpinfra.worker.comm import Aborted
from cpinfra.worker.comm import Door
from cpinfra.worker.comm import DoorError
from cpinfra.worker.comm import Place
from cpinfra.worker.control import FIRES_AT_CALL
from cpinfra.worker.control import Control
from cpinfra.worker.control import InjectedError
from cpinfra.worker.faults import Delivery
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import Ledger
from cpinfra.worker.ledger import Pen
from cpinfra.worker.ledger import Phase


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

        def before_call() -> None:
            self.log.append("control fault")
            conduct()

        control = cast(Control, SimpleNamespace(before_call=before_call))
        self.door.plant(control, data, lambda name: self.log.append(f"changed: {name}"))


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

    def all_reduce(tensor: torch.Tensor, operation: object) -> None:
        made.log.append("torch")
        tensor.mul_(2)

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    return made


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let torch's all_reduce raise."""

    def all_reduce(tensor: torch.Tensor, operation: object) -> None:
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
    scene.door.at("collective.all_reduce", 5)
    scene.door.all_reduce(torch.zeros(2, 3, dtype=torch.bfloat16))
    scene.door.at("collective.all_reduce", 6)
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
    fired: list[str] = []
    control = Control([injection.parse("raise:1", 4)], 1, fired.append)
    scene.door.plant(control, (), lambda _: None)
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

        def all_reduce(tensor: torch.Tensor, operation: object) -> None:
            made.log.append("torch")

        monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
        monkeypatch.setattr("torch.cuda.Event", Event)
        monkeypatch.setattr(comm, "time", SimpleNamespace(sleep=waited.pauses.append))
        return made, waited

    return _on_gpu


def test_a_call_is_left_when_the_device_has_done_it(on_gpu: Callable[..., tuple[Scene, Waited]]) -> None:
    """Not when torch has returned: the event is polled asleep, ever more seldom up to a bound."""
    scene, waited = on_gpu(12, lambda scene, look: scene.log.append("look"))

    scene.door.all_reduce(torch.ones(1))

    assert scene.log == ["ledger: enter", "torch", "event recorded", *["look"] * 12, "ledger: leave"]
    assert waited.pauses == sorted(waited.pauses)
    assert (len(waited.pauses), waited.pauses[0], waited.pauses[-1]) == (11, 20e-6, 1e-3)


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

"""The door: the only place that calls torch.distributed's operations.

Inside a call, in this order: a control fault acts on the call; the ledger records what is really passed
to torch; torch runs, and a call is *left* only when it has completed on the device; a data fault acts on
what torch delivered. Whatever torch raises comes out as `DoorError`, so that the failure of an operation
is never mistaken for an error of ours.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from typing import TypeVar
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh

from . import faults
from .control import Control
from .control import InjectedError
from .ledger import Kind
from .ledger import Ledger
from .ledger import Pen
from .ledger import Phase

Result = TypeVar("Result")

_POLL_MIN_S = 20e-6
_POLL_MAX_S = 1e-3

_REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


def _named(*names: str) -> Callable[..., Any]:
    """The first of these that this torch has: it deprecates names before it removes them."""
    for name in names:
        if hasattr(dist, name):
            found: Callable[..., Any] = getattr(dist, name)
            return found
    raise ImportError(f"torch {torch.__version__} has none of torch.distributed.{', '.join(names)}")


_all_gather_single = _named("all_gather_single", "all_gather_into_tensor")
_reduce_scatter_single = _named("reduce_scatter_single", "reduce_scatter_tensor")


class DoorError(RuntimeError):
    """torch raised inside an operation; `__cause__` is its own exception."""

    def __init__(self, operation: str, site: str, text: str) -> None:
        super().__init__(f"{operation} ({site}): {text}")
        self.operation = operation
        self.site = site


class Aborted(RuntimeError):
    """The supervisor is ending this generation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a rank joins: its rank, the world, and how they meet."""

    rank: int
    world: int
    backend: str
    device: torch.device
    store: Path
    """FileStore on this node: it asks no name server and needs no port."""
    patience_s: float


class Door:
    """One rank's way to the others."""

    def __init__(self, place: Place, ledger: Ledger, pen: Pen) -> None:
        self.rank = place.rank
        self.world = place.world
        self._place = place
        self._ledger = ledger
        self._pen = pen
        self._context: dict[str, Any] = {"check": "", "repetition": 0}
        self._calls = 0
        self._used: set[str] = set()
        self._meshes: dict[tuple[tuple[int, ...], tuple[str, ...]], DeviceMesh] = {}
        self._control = Control((), place.rank, lambda _: None)
        self._faults: tuple[faults.DataFault, ...] = ()
        self._changed: Callable[[str], None] = lambda _: None

    @property
    def calls(self) -> int:
        """How many operations this rank has entered."""
        return self._calls

    @property
    def check(self) -> str:
        """The check whose calls these are; empty outside of any."""
        return str(self._context["check"])

    def plant(
        self, control: Control, data: Sequence[faults.DataFault], changed: Callable[[str], None]
    ) -> None:
        """Put faults in place; `changed` hears the name of each data fault that has changed something."""
        self._control = control
        self._faults = tuple(data)
        self._changed = changed

    def at(self, check: str, repetition: int) -> None:
        """Say which place of the plan the next calls belong to."""
        self._context = {"check": check, "repetition": repetition}

    def join(self) -> None:
        """Meet the other ranks: `init_process_group`."""
        place = self._place
        store = dist.FileStore(str(place.store), place.world)  # type: ignore[attr-defined] # not in __all__
        bound = {"device_id": place.device} if place.device.type == "cuda" else {}
        timeout = dt.timedelta(seconds=place.patience_s)
        try:
            dist.init_process_group(
                place.backend,
                store=store,
                rank=place.rank,
                world_size=place.world,
                timeout=timeout,
                **bound,  # type: ignore[arg-type]
            )
        except Exception as error:
            raise DoorError("init_process_group", "join", str(error)) from error

    def leave(self) -> None:
        """Close all groups: `destroy_process_group`."""
        try:
            dist.destroy_process_group()
        except Exception as error:
            raise DoorError("destroy_process_group", "leave", str(error)) from error

    def all_reduce(self, tensor: Tensor, *, reduction: str = "sum") -> None:
        """Reduce `tensor` over all ranks, in place."""
        operation = _REDUCTIONS[reduction]
        self._call("all_reduce", [tensor], lambda: dist.all_reduce(tensor, operation), [tensor])

    def all_gather(self, output: Tensor, tensor: Tensor) -> None:
        """Gather each rank's `tensor` [n, ...] into `output` [world * n, ...], in rank order."""
        slots = list(output.chunk(self.world))
        self._call("all_gather", [tensor], lambda: _all_gather_single(output, tensor), slots)

    def all_gather_list(self, outputs: list[Tensor], tensor: Tensor) -> None:
        """Gather each rank's `tensor` into one output a rank."""
        self._call("all_gather_list", [tensor], lambda: dist.all_gather(outputs, tensor), outputs)

    def reduce_scatter(self, output: Tensor, tensor: Tensor, *, reduction: str = "sum") -> None:
        """Reduce `tensor` [world * n, ...] over all ranks and keep this rank's chunk in `output` [n, ...]."""
        operation = _REDUCTIONS[reduction]
        self._call(
            "reduce_scatter", [tensor], lambda: _reduce_scatter_single(output, tensor, operation), [output]
        )

    def reduce_scatter_list(self, output: Tensor, tensors: list[Tensor], *, reduction: str = "sum") -> None:
        """The same from one tensor a rank."""
        operation = _REDUCTIONS[reduction]
        self._call(
            "reduce_scatter_list", tensors, lambda: dist.reduce_scatter(output, tensors, operation), [output]
        )

    def exchange(self, sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]) -> None:
        """Send to and receive from peers in one batch.

        Even ranks post their sends first and odd ranks their receives, so that no pair could wait for
        each other where a transport does not buffer.
        """
        out = [dist.P2POp(dist.isend, tensor, peer) for peer, tensor in sends]
        into = [dist.P2POp(dist.irecv, tensor, peer) for peer, tensor in receives]
        batch = into + out if self.rank % 2 else out + into

        def post() -> None:
            for work in dist.batch_isend_irecv(batch):
                work.wait()

        self._call("exchange", [t for _, t in sends], post, [t for _, t in receives])

    def device_mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        """The device mesh of these axes; its groups are made once."""
        key = (shape, names)
        if key not in self._meshes:
            make = partial(init_device_mesh, self._place.device.type, shape, mesh_dim_names=names)
            self._meshes[key] = self._call("init_device_mesh", [], make, [], group=",".join(names))
        return self._meshes[key]

    def distribute(self, tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> Any:
        """`distribute_tensor`: rank 0's tensor, laid over the mesh; returns a DTensor."""
        from torch.distributed.tensor import distribute_tensor

        run = partial(distribute_tensor, tensor, mesh, list(placements))
        return self._call("distribute_tensor", [tensor], run, _tile, group=_axes(mesh), grid=_grid(mesh))

    def full_tensor(self, dtensor: Any) -> Tensor:
        """`DTensor.full_tensor`: the whole tensor on every rank."""
        mesh, run = dtensor.device_mesh, cast("Callable[[], Tensor]", dtensor.full_tensor)
        where: dict[str, Any] = {"group": _axes(mesh), "grid": _grid(mesh)}
        return self._call("full_tensor", _tile(dtensor), run, _whole, whole=True, **where)

    def _call(
        self,
        operation: str,
        passed: Sequence[Tensor],
        run: Callable[[], Result],
        slots: list[Tensor] | Callable[[Result], list[Tensor]],
        *,
        group: str = "world",
        grid: tuple[int, int] | None = None,
        whole: bool = False,
    ) -> Result:
        """One call, in the order that the module's text gives."""
        site = _site()
        before = [] if callable(slots) or not self._faults else [slot.clone() for slot in slots]
        result = self._run(operation, site, passed, run, group)
        for fault in self._faults:
            delivered = slots(result) if callable(slots) else slots
            if fault.apply(self._delivery(operation, delivered, before, grid, whole)):
                self._changed(fault.name)
        return result

    def _run(
        self, operation: str, site: str, passed: Sequence[Tensor], run: Callable[[], Result], group: str
    ) -> Result:
        try:
            self._control.before_call()
        except InjectedError as error:
            raise DoorError(operation, site, str(error)) from error
        self._enter(operation, site, passed, group)
        try:
            result = run()
            self._wait_for_device()
        except Aborted:
            raise
        except Exception as error:
            self._pen.write(Kind.LEAVE, {"call": self._calls, "raised": type(error).__name__})
            raise DoorError(operation, site, f"{type(error).__name__}: {error}") from error
        self._pen.write(Kind.LEAVE, {"call": self._calls})
        return result

    def _enter(self, operation: str, site: str, passed: Sequence[Tensor], group: str) -> None:
        self._calls += 1
        first = group not in self._used
        self._used.add(group)
        call = {**self._context, "site": site, "operation": operation, "group": group, "first": first}
        self._pen.write(Kind.ENTER, {**call, **_signature(passed), "call": self._calls})

    def _wait_for_device(self) -> None:
        """Wait until the device has done the work, asleep: a rank never waits in the driver for its peers."""
        if self._place.device.type != "cuda":
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        pause_s = _POLL_MIN_S
        while not event.query():  # type: ignore[no-untyped-call]
            if self._ledger.phase is Phase.ABORT:
                raise Aborted
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MAX_S)

    def _delivery(
        self,
        operation: str,
        slots: list[Tensor],
        before: list[Tensor],
        grid: tuple[int, int] | None,
        whole: bool,
    ) -> faults.Delivery:
        return faults.Delivery(
            operation=operation,
            slots=slots,
            before=before,
            rank=self.rank,
            world=self.world,
            grid=grid,
            whole=whole,
            exchange=_gather_all,
        )


def _tile(dtensor: Any) -> list[Tensor]:
    return [dtensor.to_local()]


def _whole(tensor: Tensor) -> list[Tensor]:
    return [tensor]


def _gather_all(tensor: Tensor) -> list[Tensor]:
    """Every rank's `tensor`, for faults alone: past the ledger, never part of a check."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return parts


def _signature(passed: Sequence[Tensor]) -> Mapping[str, Any]:
    """Shape and dtype of what is passed; a list of tensors is told by its first and its length."""
    if not passed:
        return {"shape": [], "dtype": ""}
    first = passed[0]
    many = {"count": len(passed)} if len(passed) > 1 else {}
    return {"shape": list(first.shape), "dtype": str(first.dtype).removeprefix("torch."), **many}


def _site() -> str:
    """`file:line` outside this module from which the door was called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _axes(mesh: DeviceMesh) -> str:
    return ",".join(mesh.mesh_dim_names or ())


def _grid(mesh: DeviceMesh) -> tuple[int, int] | None:
    """(cp0, cp1) of a mesh that has these axes."""
    names = mesh.mesh_dim_names or ()
    if "cp0" not in names or "cp1" not in names:
        return None
    return mesh.size(names.index("cp0")), mesh.size(names.index("cp1"))

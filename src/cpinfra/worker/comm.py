"""The door: the only place that calls torch.distributed's operations for a check.

Here is which operations there are, and how torch is called for each; `calls.py` is what happens in a call. It
has the one call that does not come from here: a fault in data that needs what the others passed gathers it,
past the ledger (`_gather_all`).
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh

from . import faults
from .calls import Caller
from .calls import DoorError
from .control import Control
from .control import Fired
from .ledger import Ledger
from .ledger import Pen
from .operations import Group
from .operations import Operation
from .operations import laid_out_alone
from .oracle import blank
from .trials import Trial

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
        self._everyone = Group(name="world", size=place.world, rank=place.rank)
        self._caller = Caller(place.rank, place.device, ledger, pen)
        self._check = ""
        self._trial: Trial | None = None
        self._meshes: dict[tuple[tuple[int, ...], tuple[str, ...]], DeviceMesh] = {}

    @property
    def calls(self) -> int:
        """How many operations this rank has entered."""
        return self._caller.entered

    @property
    def history(self) -> dict[str, Any]:
        """How many operations this rank has entered, and a digest of which; the same on ranks that agree."""
        return self._caller.history

    def plant(self, control: Control, data: Sequence[faults.DataFault], fired: Fired) -> None:
        """Put faults in place; `fired` hears of each data fault that has changed something."""
        self._caller.plant(control, data, fired)

    def at(self, check: str, trial: Trial) -> None:
        """Say which trial of a check the next calls belong to; until then they belong to none."""
        self._check, self._trial = check, trial

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

    def group(self, mesh: DeviceMesh, axis: str) -> Group:
        """This rank's group along one axis of a mesh."""
        handle = mesh.get_group(axis)
        rank, size = dist.get_rank(handle), dist.get_world_size(handle)
        return Group(name=axis, size=size, rank=rank, handle=handle)

    def all_reduce(self, tensor: Tensor, *, reduction: str = "sum", group: Group | None = None) -> None:
        """Reduce `tensor` over all ranks of the group, in place."""
        among, how = group or self._everyone, _REDUCTIONS[reduction]
        self._call(
            Operation(
                name="all_reduce",
                group=among,
                passed=[tensor],
                into=[tensor],
                run=lambda passed, _: dist.all_reduce(passed[0], how, among.handle),
                delivered=lambda _: [tensor],
            )
        )

    def all_gather(self, output: Tensor, tensor: Tensor, *, group: Group | None = None) -> None:
        """Gather each rank's `tensor` [n, ...] into `output` [ranks of the group * n, ...], in rank order."""
        among = group or self._everyone
        self._call(
            Operation(
                name="all_gather",
                group=among,
                passed=[tensor],
                into=[output],
                run=lambda passed, into: _all_gather_single(into[0], passed[0], among.handle),
                delivered=lambda _: list(output.chunk(among.size)),
            )
        )

    def all_gather_list(self, outputs: list[Tensor], tensor: Tensor) -> None:
        """Gather each rank's `tensor` into one output a rank."""
        self._call(
            Operation(
                name="all_gather_list",
                group=self._everyone,
                passed=[tensor],
                into=outputs,
                run=lambda passed, into: dist.all_gather(list(into), passed[0]),
                delivered=lambda _: outputs,
            )
        )

    def reduce_scatter(
        self, output: Tensor, tensor: Tensor, *, reduction: str = "sum", group: Group | None = None
    ) -> None:
        """Reduce `tensor` [ranks of the group * n, ...] and keep this rank's chunk in `output` [n, ...]."""
        among, how = group or self._everyone, _REDUCTIONS[reduction]
        self._call(
            Operation(
                name="reduce_scatter",
                group=among,
                passed=[tensor],
                into=[output],
                run=lambda passed, into: _reduce_scatter_single(into[0], passed[0], how, among.handle),
                delivered=lambda _: [output],
                chunks=among.size,
            )
        )

    def reduce_scatter_list(self, output: Tensor, tensors: list[Tensor], *, reduction: str = "sum") -> None:
        """The same over all ranks, from one tensor a rank."""
        how = _REDUCTIONS[reduction]
        self._call(
            Operation(
                name="reduce_scatter_list",
                group=self._everyone,
                passed=tensors,
                into=[output],
                run=lambda passed, into: dist.reduce_scatter(into[0], list(passed), how),
                delivered=lambda _: [output],
            )
        )

    def exchange(
        self,
        sends: list[tuple[int, Tensor]],
        receives: list[tuple[int, Tensor]],
        *,
        group: Group | None = None,
    ) -> None:
        """Send to and receive from peers, by their ranks in the group, in one batch."""
        among = group or self._everyone
        targets, sources = [peer for peer, _ in sends], [peer for peer, _ in receives]
        buffers = [tensor for _, tensor in receives]
        self._call(
            Operation(
                name="exchange",
                group=among,
                passed=[tensor for _, tensor in sends],
                into=buffers,
                run=lambda passed, into: _exchange(among, (targets, passed), (sources, into)),
                delivered=lambda _: buffers,
            )
        )

    def device_mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        """The device mesh of these axes; its groups are made once."""
        key = (shape, names)
        if key not in self._meshes:
            kind = self._place.device.type
            self._meshes[key] = self._call(
                Operation(
                    name="init_device_mesh",
                    group=self._over(",".join(names)),
                    passed=[],
                    run=lambda *_: init_device_mesh(kind, shape, mesh_dim_names=names),
                    delivered=lambda _: [],
                )
            )
        return self._meshes[key]

    def distribute(self, tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> Any:
        """`distribute_tensor`: rank 0's tensor, laid over the mesh; returns a DTensor."""
        from torch.distributed.tensor import distribute_tensor

        return self._call(
            Operation(
                name="distribute_tensor",
                group=self._over(_axes(mesh)),
                passed=[tensor],
                run=lambda passed, _: distribute_tensor(passed[0], mesh, list(placements)),
                instead=lambda: laid_out_alone(tensor, mesh, placements),
                delivered=lambda dtensor: [dtensor.to_local()],
                grid=_grid(mesh),
            )
        )

    def full_tensor(self, dtensor: Any) -> Tensor:
        """`DTensor.full_tensor`: the whole tensor on every rank."""
        mesh = dtensor.device_mesh
        whole = self._call(
            Operation(
                name="full_tensor",
                group=self._over(_axes(mesh)),
                passed=[dtensor],
                run=lambda passed, _: passed[0].full_tensor(),
                instead=lambda: blank(dtensor.shape, dtensor.dtype, dtensor.to_local().device),
                delivered=lambda tensor: [tensor],
                grid=_grid(mesh),
                whole=True,
            )
        )
        return cast(Tensor, whole)

    def _over(self, axes: str) -> Group:
        """All ranks, as the axes of a mesh."""
        return Group(name=axes, size=self.world, rank=self.rank)

    def _call(self, operation: Operation) -> Any:
        """Make one call at its place of the plan."""
        return self._caller.call(operation.at(self._check, self._trial, _site()))


_Messages = tuple[Sequence[int], Sequence[Tensor]]
"""Peers, and for each what it sends or gets."""


def _exchange(group: Group, sends: _Messages, receives: _Messages) -> None:
    """Post one batch, and wait for it.

    Even ranks post their sends first and odd ranks their receives, so that no pair could wait for
    each other where a transport does not buffer.
    """
    out = [_post(dist.isend, group, peer, tensor) for peer, tensor in zip(*sends, strict=True)]
    into = [_post(dist.irecv, group, peer, tensor) for peer, tensor in zip(*receives, strict=True)]
    batch = into + out if group.rank % 2 else out + into
    for work in dist.batch_isend_irecv(batch):
        work.wait()


def _post(how: Callable[..., Any], group: Group, peer: int, tensor: Tensor) -> dist.P2POp:
    """One message; torch wants the peer's rank among all."""
    if group.handle is None:
        return dist.P2POp(how, tensor, peer)
    return dist.P2POp(how, tensor, dist.get_global_rank(group.handle, peer), group.handle)


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

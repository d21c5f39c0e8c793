"""An operation as a value: what is passed, what is received into, and how torch is called with them.

The door describes each call so, which lets a control twin make another one of it before the ledger and
torch hear of it, and record what is really passed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from .trials import Trial

Run = Callable[[Sequence[Any], Sequence[Tensor]], Any]
"""Calls torch with what is passed and what is received into; returns what torch gives."""

_OF_EQUAL_SIZE = {
    torch.float32: torch.int32,
    torch.int32: torch.float32,
    torch.bfloat16: torch.float16,
    torch.float16: torch.bfloat16,
    torch.int64: torch.float64,
    torch.float64: torch.int64,
}


def _nothing() -> None:
    """What a rank gets that skips an operation which delivers into buffers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Ranks that communicate: all of them, or those along one axis of a mesh."""

    name: str
    """`world`, or the axes."""
    size: int
    rank: int
    """This rank's place in it."""
    handle: Any = None
    """torch's group; None for the one of all ranks."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operation:
    """One call of the door."""

    name: str
    group: Group
    passed: Sequence[Any]
    """The tensors that torch is given to send; of `full_tensor` the DTensor."""
    into: Sequence[Tensor] = ()
    """The buffers that it is given to receive into; none where torch makes the result."""
    run: Run
    instead: Callable[[], Any] = _nothing
    """What a rank gets that skips the operation, without communicating."""
    delivered: Callable[[Any], list[Tensor]]
    """Of the result, or of the buffers of whoever called: views of what arrived, one per source."""
    chunks: int = 1
    """How many chunks of a trial's shape each tensor holds that is passed, one after the other."""
    grid: tuple[int, int] | None = None
    """See `faults.Delivery`."""
    whole: bool = False
    """See `faults.Delivery`."""
    check: str = ""
    """The check that it belongs to; empty outside of any."""
    repetition: int = 0
    site: str = ""
    """`file:line` that called the door."""
    plan: Mapping[str, Any] | None = None
    """Dtype and shape that must be passed; None where no trial says."""

    @property
    def carries_data(self) -> bool:
        """Whether any element is passed."""
        return any(tensor.numel() for tensor in self.passed)

    @property
    def has_dtype_of_equal_size(self) -> bool:
        """Whether `in_other_dtype` can be asked for."""
        return self.carries_data and all(tensor.dtype in _OF_EQUAL_SIZE for tensor in self.passed)

    @property
    def identity(self) -> dict[str, Any]:
        """By which the calls of two ranks are the same."""
        return {
            "check": self.check,
            "repetition": self.repetition,
            "site": self.site,
            "operation": self.name,
            "group": self.group.name,
            **_signature(self.passed),
        }

    @property
    def contradiction(self) -> dict[str, Any]:
        """The plan, as `planned`, where it says something else than what is passed; else nothing."""
        passed = _signature(self.passed)
        agrees = self.plan is None or all(passed[key] == value for key, value in self.plan.items())
        return {} if agrees else {"planned": self.plan}

    def at(self, check: str, trial: Trial | None, site: str) -> Operation:
        """The same at its place in a check's plan."""
        repetition = 0 if trial is None else trial.repetition
        plan = None if trial is None or not self.passed else _plan(trial, self.chunks)
        return replace(self, check=check, repetition=repetition, site=site, plan=plan)

    def make(self) -> Any:
        """Call torch; returns what it gives."""
        return self.run(self.passed, self.into)

    def longer(self) -> Operation:
        """The same with tensors twice as long in their first dim."""
        return self._with(_longer)

    def in_other_dtype(self) -> Operation:
        """The same with the bytes of its tensors taken for another dtype of their size."""
        return self._with(_in_other_dtype)

    def _with(self, change: Callable[[Any], Any]) -> Operation:
        """The same with other tensors; those of whoever called stay as they are."""
        return replace(
            self, passed=[change(each) for each in self.passed], into=[change(each) for each in self.into]
        )


def _signature(passed: Sequence[Any]) -> dict[str, Any]:
    """Shape and dtype of what is passed; several tensors are told by the first and their count.

    Of a DTensor those of the whole: its tiles differ from rank to rank.
    """
    if not passed:
        return {"shape": [], "dtype": ""}
    first = passed[0]
    many = {"count": len(passed)} if len(passed) > 1 else {}
    return {"shape": list(first.shape), "dtype": str(first.dtype).removeprefix("torch."), **many}


def _plan(trial: Trial, chunks: int) -> dict[str, Any]:
    long = [size * chunks for size in trial.shape[:1]]
    return {"dtype": trial.dtype, "shape": [*long, *trial.shape[1:]]}


def _longer(tensor: Any) -> Any:
    if _is_dtensor(tensor):
        return _with_tile(tensor, _longer(tensor.to_local()))
    return torch.cat([tensor, tensor]) if tensor.dim() else tensor.repeat(2)


def _in_other_dtype(tensor: Any) -> Any:
    if _is_dtensor(tensor):
        tile = _in_other_dtype(tensor.to_local())
        return _with_tile(tensor, tile, shape=tensor.shape, stride=tensor.stride())
    return tensor.clone().view(_OF_EQUAL_SIZE[tensor.dtype])


def _is_dtensor(tensor: Any) -> bool:
    """Without importing its class, which costs half a second."""
    return hasattr(tensor, "device_mesh")


def _with_tile(dtensor: Any, tile: Tensor, **whole: Any) -> Any:
    """A DTensor laid out like another, with another tile on this rank."""
    return type(dtensor).from_local(tile, dtensor.device_mesh, dtensor.placements, run_check=False, **whole)


def laid_out_alone(tensor: Tensor, mesh: DeviceMesh, placements: Sequence[Any]) -> Any:
    """The DTensor of a rank that takes its tile of its own tensor and asks no other."""
    from torch.distributed.tensor import DTensor

    tile = tensor
    for axis, placement in enumerate(placements):
        if placement.is_shard():
            tile = _cut(tile, mesh.size(axis), mesh.get_local_rank(axis), placement.dim)
    whole: dict[str, Any] = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(tile.contiguous(), mesh, list(placements), run_check=False, **whole)


def _cut(tensor: Tensor, pieces: int, place: int, dim: int) -> Tensor:
    """One piece as `torch.chunk` cuts them, which may give fewer than were asked for."""
    cut = tensor.chunk(pieces, dim)
    return cut[place] if place < len(cut) else tensor.narrow(dim, 0, 0)

"""Data twins: planted faults in what an operation delivered, which the checks must catch by content.

Each acts on every rank, but for `bit-flip`. Control twins are in `control.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Protocol

import torch
from torch import Tensor

from .injection import DATA_TWINS
from .layout import Layout
from .oracle import bits
from .oracle import coordinates


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """What one operation delivered, as the door describes it."""

    operation: str
    slots: list[Tensor]
    """Views of the delivered buffers, one per source; one slot for a reduction, a tile, a whole tensor."""
    before: list[Tensor]
    """Copies of the same slots before the call; empty where the operation made its own result."""
    rank: int
    world: int
    grid: tuple[int, int] | None
    """(cp0, cp1) for DTensor over such a mesh, else None."""
    whole: bool
    """The one slot is a whole tensor, tiled over `grid`."""
    exchange: Callable[[Tensor], list[Tensor]]
    """All ranks' tensors of one shape, in rank order, past ledger and faults; every rank must call it."""

    def parts(self) -> list[Tensor]:
        """The slots; for a whole tensor over a grid its tiles, as views, by row."""
        if not self.whole or self.grid is None or self.slots[0].dim() != 2:
            return self.slots
        rows, columns = self.slots[0].shape
        layout = Layout(shape=(rows, columns), grid=self.grid)
        return [layout.tile(self.slots[0], i, j) for i, j in layout.places()]


class DataFault(Protocol):
    """A fault that can be planted in the door."""

    @property
    def name(self) -> str:
        """One of `DATA_TWINS`."""

    def apply(self, delivery: Delivery) -> bool:
        """Spoil what was delivered, in place; whether anything changed on this rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spoiler:
    """A fault that needs to know the delivery alone."""

    name: str
    act: Callable[[Delivery], None]

    def apply(self, delivery: Delivery) -> bool:
        """See `DataFault`."""
        # Making a device mesh delivers nothing.
        return bool(delivery.slots) and _changes(delivery, lambda: self.act(delivery))


@dataclass(frozen=True, kw_only=True, slots=True)
class _StaleBuffer:
    """Delivers an earlier delivery again: the last one of its shape and dtype.

    Where there was none, what lay in the buffer before the call, or, where torch made the buffer, the
    bytes of the last delivery of any shape, as an allocator that hands a block out again would.
    """

    name: str = "stale-buffer"
    _last: dict[tuple[object, ...], list[Tensor]] = field(default_factory=dict)
    _last_bytes: dict[str, Tensor] = field(default_factory=dict)

    def apply(self, delivery: Delivery) -> bool:
        """See `DataFault`."""
        if not delivery.slots:
            return False
        fresh = [slot.clone() for slot in delivery.slots]
        key = (delivery.operation, *((slot.shape, slot.dtype) for slot in fresh))
        changed = _changes(delivery, lambda: self._put_back(delivery, key))
        self._last[key] = fresh
        self._last_bytes[delivery.operation] = torch.cat([_as_bytes(slot) for slot in fresh])
        return changed

    def _put_back(self, delivery: Delivery, key: tuple[object, ...]) -> None:
        old = self._last.get(key) or delivery.before
        if not old and delivery.operation in self._last_bytes:
            old = _cut_to(self._last_bytes[delivery.operation], delivery.slots)
        for slot, previous in zip(delivery.slots, old, strict=False):
            slot.copy_(previous)


def _changes(delivery: Delivery, act: Callable[[], None]) -> bool:
    """Run `act`; whether any bit of the slots is another afterwards."""
    before = [slot.clone() for slot in delivery.slots]
    act()
    return any(not torch.equal(bits(old), bits(new)) for old, new in zip(before, delivery.slots, strict=True))


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


def _cut_to(stock: Tensor, slots: list[Tensor]) -> list[Tensor]:
    """Tensors like the slots from bytes, which begin again where they end; nothing without bytes."""
    if not stock.numel():
        return []
    cut = []
    for slot in slots:
        size = slot.numel() * slot.element_size()
        repeated = stock.repeat(size // stock.numel() + 1)[:size]
        cut.append(repeated.clone().view(slot.dtype).view(slot.shape))
    return cut


def _wrong_chunk(delivery: Delivery) -> None:
    """Each part gets what belongs to the next; a single slot that of the next rank."""
    parts = delivery.parts()
    if len(parts) > 1:
        _permute(parts, [(place + 1) % len(parts) for place in range(len(parts))])
    else:
        _take_from(delivery, (delivery.rank + 1) % delivery.world)


def _swapped_slots(delivery: Delivery) -> None:
    """The first part exchanges its content with the next one of its shape."""
    parts = delivery.parts()
    partner = next((k for k in range(1, len(parts)) if parts[k].shape == parts[0].shape), 0)
    order = list(range(len(parts)))
    order[0], order[partner] = partner, 0
    _permute(parts, order)


def _swapped_axes(delivery: Delivery) -> None:
    """Tile (i, j) becomes tile (j, i)."""
    if delivery.grid is None or delivery.grid[0] != delivery.grid[1]:
        return
    side = delivery.grid[0]
    mirrored = [j * side + i for i in range(side) for j in range(side)]
    if delivery.whole:
        _permute(delivery.parts(), mirrored)
    else:
        replica, place = divmod(delivery.rank, side * side)
        _take_from(delivery, replica * side * side + mirrored[place])


def _permute(parts: list[Tensor], sources: list[int]) -> None:
    """Part k becomes a copy of part sources[k], where their shapes agree."""
    copies = [part.clone() for part in parts]
    for part, source in zip(parts, sources, strict=True):
        if part.shape == copies[source].shape:
            part.copy_(copies[source])


def _take_from(delivery: Delivery, rank: int) -> None:
    """The one slot becomes that of another rank, if it has this shape. Every rank takes part."""
    slot = delivery.slots[0]
    # Tiles of uneven tensors differ in shape, and `exchange` wants one: shapes first, then padded content.
    shape = torch.tensor([slot.dim(), *slot.shape, *[0] * (8 - slot.dim())], device=slot.device)
    shapes = [every[1 : 1 + int(every[0])] for every in (other.cpu() for other in delivery.exchange(shape))]
    longest = max(1, *(int(other.prod()) for other in shapes))
    padded = torch.zeros(longest, dtype=slot.dtype, device=slot.device)
    padded[: slot.numel()] = slot.flatten()
    arrived = delivery.exchange(padded)[rank]
    if shapes[rank].tolist() == list(slot.shape):
        slot.copy_(arrived[: slot.numel()].view(slot.shape))


def _reversed_shard(delivery: Delivery) -> None:
    for part in delivery.parts():
        part.copy_(part.flatten().flip(0).view(part.shape))


def _first_element_only(delivery: Delivery) -> None:
    for part in delivery.parts():
        if part.numel():
            part.fill_(part.flatten()[0])


def _shifted(delivery: Delivery) -> None:
    for part in delivery.parts():
        part.copy_(part.flatten().roll(1).view(part.shape))


def _bit_flip(delivery: Delivery) -> None:
    """On the last rank alone, the lowest bit of one element in the middle of its last part."""
    last = delivery.parts()[-1]
    if delivery.rank != delivery.world - 1 or not last.numel():
        return
    bits(last)[coordinates(last.numel() // 2, last.shape)] ^= 1


_ACTS: dict[str, Callable[[Delivery], None]] = {
    "wrong-chunk": _wrong_chunk,
    "reversed-shard": _reversed_shard,
    "first-element-only": _first_element_only,
    "shifted": _shifted,
    "swapped-slots": _swapped_slots,
    "swapped-axes": _swapped_axes,
    "bit-flip": _bit_flip,
}


def data_fault(name: str) -> DataFault:
    """A fresh fault of this name; each rank has its own.

    Raises:
        ValueError: there is no such data twin.
    """
    if name == "stale-buffer":
        return _StaleBuffer()
    if name not in _ACTS:
        raise ValueError(f"no data twin {name!r}; valid: {', '.join(DATA_TWINS)}")
    return _Spoiler(name=name, act=_ACTS[name])

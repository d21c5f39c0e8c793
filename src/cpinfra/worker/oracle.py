"""What ranks send and what must arrive: computed from rank, chunk, index and repetition alone.

Expected values never pass through the code under test: they are computed in int64, on the CPU, and then
cast to the dtype of the trial, which every value fits exactly.

`Pattern` is for operations that move data. Each element says where it comes from: int64 and float64, and
int32 and float32 while they have the room, number (source rank, chunk, index, repetition) injectively,
in multiples of three, so that no flipped bit of an integer turns one element into another (one in a
float's exponent can); the others carry a hash, which decides on 64 elements and more. The data of another
repetition is wrong at *every* element: each element walks its own line `start + repetition * step` modulo
a prime.

`Contributions` is for operations that reduce. Every partial sum, in any order, stays exact in the dtype,
also when one contribution is counted twice. Contributions are positive, so one that is missing or counted
twice changes the sum wherever it counts. Where a dtype cannot hold a contribution of every rank
(bfloat16: sums up to 256), or where it would cost too much, each element adds up a window of the ranks,
and the windows go round: all ranks take part within ceil(ranks / window) elements.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from .trials import MAX_REPETITIONS
from .trials import Trial

Candidates = Iterator[tuple[str, Tensor]]
"""What else could have arrived: a name for it, and its content."""

DTYPES = {
    "int64": torch.int64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "int32": torch.int32,
}
EXACT = {
    torch.int64: 2**62,
    torch.float64: 2**53,
    torch.int32: 2**31 - 1,
    torch.float32: 2**24,
    torch.float16: 2048,
    torch.bfloat16: 256,
}
"""The largest n such that the dtype holds every whole number from 0 to n."""

MODULUS = {torch.int32: 2147483629, torch.float32: 16777213, torch.float16: 2039, torch.bfloat16: 251}
"""Primes below `EXACT`: how many values a hash has."""

_SPACING = 3
"""A flipped bit changes an integer by a power of two, which 3 never divides (an AN code)."""
_REPETITION_BITS = MAX_REPETITIONS.bit_length()
# Room for (source, chunk, index) beside the repetition.
_ROOM_BITS = {
    dtype: bits - _REPETITION_BITS - _SPACING.bit_length()
    for dtype, bits in {torch.int64: 62, torch.float64: 53, torch.int32: 31, torch.float32: 24}.items()
}
_WINDOW = {torch.bfloat16: 15, torch.float16: 31}
_CHEAP_ELEMENTS = 1 << 16
_BLOCK_ELEMENTS = 1 << 15

# Odd multipliers of splitmix64, as int64: torch's int64 arithmetic wraps.
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_LOW_32 = (1 << 32) - 1
_LOW_31 = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """The elements of one trial of an operation that moves data.

    Raises:
        ValueError: the repetition is out of range, or int64 or float64 could not number the elements.
    """

    dtype: torch.dtype
    sources: int
    chunks: int
    """Per source."""
    shape: tuple[int, ...]
    """Of one chunk."""
    repetition: int
    salt: int

    def __post_init__(self) -> None:
        if not 1 <= self.repetition <= MAX_REPETITIONS:
            raise ValueError(f"repetition {self.repetition}: the encodings hold 1 to {MAX_REPETITIONS}")
        if not self.injective and self.dtype not in MODULUS:
            sizes = f"{self.sources} sources x {self.chunks} chunks x {self.count} elements"
            raise ValueError(f"{self.dtype} cannot number {sizes}")

    @classmethod
    def of(cls, trial: Trial, *, sources: int, chunks: int = 1) -> Pattern:
        """The pattern of a trial in which each of `sources` ranks sends `chunks` chunks of its shape."""
        dtype = DTYPES[trial.dtype]
        ends = {"repetition": trial.repetition, "salt": trial.salt}
        return cls(dtype=dtype, sources=sources, chunks=chunks, shape=trial.shape, **ends)

    @property
    def count(self) -> int:
        """Elements per chunk."""
        return math.prod(self.shape)

    @property
    def injective(self) -> bool:
        """Whether each element can be decoded."""
        if self.dtype not in _ROOM_BITS:
            return False
        return self.sources * self.chunks * self.count <= 1 << _ROOM_BITS[self.dtype]

    def at(self, repetition: int) -> Pattern:
        """The same in another repetition."""
        return replace(self, repetition=repetition)

    def chunk(self, source: int, chunk: int = 0) -> Tensor:
        """One chunk of one source: [*shape]."""
        return self.table([(source, chunk)])[0]

    def table(self, places: Sequence[tuple[int, int]]) -> Tensor:
        """The chunks of several (source, chunk): [len(places), *shape]."""
        numbers = torch.tensor([[source * self.chunks + chunk] for source, chunk in places])
        values = self._numbered(numbers) if self.injective else self._hashed(numbers)
        return values.to(self.dtype).view(len(places), *self.shape)

    def _numbered(self, numbers: Tensor) -> Tensor:
        """[k, 1] to [k, count]: repetition, then source, chunk and index in mixed radix; never zero."""
        first = numbers * self.count + (self.repetition << _ROOM_BITS[self.dtype])
        return (first + _indices.first(self.count)).mul_(_SPACING)

    def _hashed(self, numbers: Tensor) -> Tensor:
        """[k, 1] to [k, count]: 1 to the modulus."""
        modulus = MODULUS[self.dtype]
        noise = _noise(_scramble(numbers + _seed(self.salt)), self.count)
        start = _scaled(noise, modulus)
        step = _scaled(noise * _SECOND, modulus - 1).add_(1)
        return step.mul_(self.repetition).add_(start).remainder_(modulus).add_(1)

    def describe(self, value: float) -> str:
        """What an element says of itself; the bare value where it says nothing."""
        if not self.injective:
            return str(value)
        if not float(value).is_integer() or int(value) % _SPACING:
            return f"{value} (no element of this trial)"
        repetition, place = divmod(int(value) // _SPACING, 1 << _ROOM_BITS[self.dtype])
        number, index = divmod(place, self.count)
        source, chunk = divmod(number, self.chunks)
        if source >= self.sources or not 1 <= repetition <= MAX_REPETITIONS:
            return f"{value} (no element of this trial)"
        where = index if len(self.shape) == 1 else coordinates(index, self.shape)
        return f"rank {source}, chunk {chunk}, index {where}, repetition {repetition}"

    def others(self, source: int, chunk: int, name: Callable[[int, int], str]) -> Candidates:
        """What could have arrived in place of a chunk: any other, and its own of earlier repetitions."""
        for other in range(self.sources):
            for piece in range(self.chunks):
                if (other, piece) != (source, chunk):
                    yield name(other, piece), self.chunk(other, piece)
        for repetition in range(self.repetition - 1, 0, -1):
            earlier = self.at(repetition).chunk(source, chunk)
            yield f"{name(source, chunk)} of repetition {repetition}", earlier


@dataclass(frozen=True, kw_only=True, slots=True)
class Contributions:
    """What each rank adds to one trial of an operation that reduces, and what must come out."""

    dtype: torch.dtype
    sources: int
    shape: tuple[int, ...]
    """Of one contribution."""
    reduction: str
    """`sum` or `max`."""
    repetition: int
    salt: int

    @classmethod
    def of(cls, trial: Trial, *, sources: int) -> Contributions:
        """The contributions of a trial."""
        ends = {"repetition": trial.repetition, "salt": trial.salt}
        dtype = DTYPES[trial.dtype]
        return cls(dtype=dtype, sources=sources, shape=trial.shape, reduction=trial.reduction, **ends)

    @property
    def count(self) -> int:
        """Elements per contribution."""
        return math.prod(self.shape)

    @property
    def window(self) -> int:
        """How many ranks contribute to each element."""
        if self.reduction == "max":
            return self.sources
        affordable = max(4, _CHEAP_ELEMENTS // max(1, self.count))
        return min(self.sources, _WINDOW.get(self.dtype, self.sources), affordable)

    @property
    def bits(self) -> int:
        """Contributions are 1 to 2**bits: the window's, and one of them again, add up to an exact sum."""
        most = 1 if self.reduction == "max" else self.window + 1
        return (EXACT[self.dtype] // most).bit_length() - 1

    def at(self, repetition: int) -> Contributions:
        """The same in another repetition."""
        return replace(self, repetition=repetition)

    def of_rank(self, source: int, chunk: int = 0) -> Tensor:
        """What one rank contributes to one chunk: [*shape]."""
        return self._cast(self._contributed(source, [chunk]))

    def to_all(self, source: int) -> Tensor:
        """What one rank contributes to the chunk of each rank: [sources, *shape]."""
        values = self._contributed(source, range(self.sources))
        return values.to(self.dtype).view(self.sources, *self.shape)

    def reduced(self, chunk: int = 0) -> Tensor:
        """What must come out for one chunk: [*shape]."""
        return self._cast(self._reduced(chunk))

    def others(self, source: int, chunk: int, chunks: int) -> Candidates:
        """What could have come out instead, on the rank `source`, for one of `chunks` chunks."""
        noun = "maximum" if self.reduction == "max" else "sum"
        yield f"rank {source}'s own contribution, not reduced", self.of_rank(source, chunk)
        for other in range(chunks):
            if other != chunk:
                yield f"the {noun} for rank {other}", self.reduced(other)
        for repetition in range(self.repetition - 1, 0, -1):
            yield f"the {noun} of repetition {repetition}", self.at(repetition).reduced(chunk)
        if self.reduction == "sum":
            yield from self._miscounts(chunk)

    def _miscounts(self, chunk: int) -> Candidates:
        whole = self._reduced(chunk)
        for rank in range(self.sources):
            part = self._contributed(rank, [chunk])[0]
            yield f"the sum without rank {rank}'s contribution", self._cast(whole - part)
            yield f"the sum with rank {rank}'s contribution twice", self._cast(whole + part)

    def _cast(self, values: Tensor) -> Tensor:
        return values.to(self.dtype).view(self.shape)

    def _keys(self, numbers: Tensor) -> Tensor:
        """One key per contribution, which has the number chunk * sources + source."""
        return _scramble(numbers + _seed(self.salt, self.repetition))

    def _draw(self, keys: Tensor) -> Tensor:
        """Keys that broadcast against [count], to contributions in int64."""
        mask = (1 << self.bits) - 1
        return _noise(keys, self.count).bitwise_right_shift_(63 - self.bits).bitwise_and_(mask).add_(1)

    def _contributed(self, source: int, chunks: Sequence[int]) -> Tensor:
        """[len(chunks), count] in int64; zero where the rank is outside the window."""
        numbers = torch.tensor([[chunk * self.sources + source] for chunk in chunks])
        values = self._draw(self._keys(numbers))
        if self.window < self.sources:
            starts = torch.arange(self.sources)
            takes_part = (source - starts).remainder_(self.sources) < self.window
            values *= takes_part[self._window_starts()]
        return values

    def _window_starts(self) -> Tensor:
        """The rank at which the window of each element begins, turned by the repetition: [count]."""
        turn = torch.arange(self.sources).mul_(self.window).add_(self.repetition).remainder_(self.sources)
        return turn.repeat(self.count // self.sources + 1)[: self.count]

    def _reduced(self, chunk: int) -> Tensor:
        keys = self._keys(_indices.first(self.sources) + chunk * self.sources)
        if self.window < self.sources:
            return self._summed_by_window(keys)
        rows = max(1, _BLOCK_ELEMENTS // max(1, self.count))
        blocks = (self._draw(block[:, None]) for block in torch.split(keys, rows))
        if self.reduction == "max":
            return torch.stack([block.amax(0) for block in blocks]).amax(0)
        total = torch.zeros(self.count, dtype=torch.int64)
        for block in blocks:
            total += block.sum(0)
        return total

    def _summed_by_window(self, keys: Tensor) -> Tensor:
        starts = self._window_starts()
        total = torch.zeros(self.count, dtype=torch.int64)
        for place in range(self.window):
            total += self._draw(keys.roll(-place)[starts])
        return total


def coordinates(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The position of a flat index in a shape."""
    places: list[int] = []
    for size in reversed(shape):
        index, place = divmod(index, size)
        places.insert(0, place)
    return tuple(places)


def sentinel(dtype: torch.dtype) -> float:
    """What no element ever is: NaN, or the least integer."""
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).min


def blank(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A buffer to receive into, full of the sentinel."""
    return torch.full(tuple(shape), sentinel(dtype), dtype=dtype, device=device)


def bits(tensor: Tensor) -> Tensor:
    """The same memory as whole numbers: NaN equals NaN, and nothing else is lost."""
    by_size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(by_size[tensor.element_size()])


def same(got: Tensor, expected: Tensor) -> bool:
    """Whether shape, dtype and every bit agree."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    return torch.equal(bits(got), bits(expected))


@lru_cache(maxsize=64)
def _seed(*parts: int) -> int:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class _Stock:
    """The longest tensor that was asked for so far, of which shorter ones are slices."""

    def __init__(self, make: Callable[[int], Tensor]) -> None:
        self._make = make
        self._longest: Tensor | None = None  # an import makes no tensor: it happens before the fork

    def first(self, count: int) -> Tensor:
        """The first `count` elements. Shared: never change them in place."""
        if self._longest is None or count > len(self._longest):
            self._longest = self._make(max(count, 4096))
        return self._longest[:count]


def _noise(keys: Tensor, count: int) -> Tensor:
    """64 random bits per key and index, of which the upper ones are good: keys broadcast against [count]."""
    return (_index_noise.first(count) ^ keys).mul_(_FIRST)


def _scramble(values: Tensor) -> Tensor:
    """Mix the bits of a fresh int64 tensor, in place (the finaliser of splitmix64)."""
    values.mul_(_FIRST)
    values ^= (values >> 32) & _LOW_32
    values.mul_(_SECOND)
    values ^= (values >> 32) & _LOW_32
    return values


_indices = _Stock(torch.arange)
_index_noise = _Stock(lambda size: _scramble(torch.arange(1, size + 1)))


def _scaled(noise: Tensor, size: int) -> Tensor:
    """The upper bits of noise as 0 to size - 1, without a division; `size` below 2**31."""
    return ((noise >> 33) & _LOW_31).mul_(size).bitwise_right_shift_(31)

"""What a check tries at a given world size: dtypes, sizes and forms, within a budget that shrinks.

Standard library only. Every rank makes the same list from the `TrialSpace` alone.

Sizes sit on both sides of the places where a transport changes its way of working. gloo: one element,
fewer elements than ranks, counts that no rank count divides, its 1 MiB segment. NCCL: LL (about 4 KiB and
less), LL128 (some 100 KiB), Simple (4 MiB and more).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

ITEMSIZE = {"int64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int32": 4}
"""Bytes per element of every dtype that is tried."""

HASHED = frozenset({"bfloat16", "float16"})
"""Dtypes too small to number elements in: they carry hashes, which only many elements together decide."""

LEAST_HASHED = 64
"""Elements per chunk from which on a hash decides."""

MAX_REPETITIONS = 63
"""What the encodings have room for (six bits)."""

# For up to 4 ranks, up to 16, and above. NCCL: comparisons a check makes. gloo: rounds
# of messages, since each costs 2 to 3 ms at 4 ranks on two cores whatever its size (docs/decisions/0006).
_BUDGETS = {"nccl": (48, 16, 6), "gloo": (18, 8, 6)}

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One repetition of a check."""

    dtype: str
    shape: tuple[int, ...]
    """Of one chunk or contribution; of the whole tensor for DTensor."""
    repetition: int
    """From 1, unique within the run of a check."""
    form: str
    """How the operation is called: `tensor`, `list`, `batch`, `tiles`, `rows`, `columns`."""
    reduction: str
    """`sum`, `max`, or empty where nothing is reduced."""
    salt: int
    """Of this run of this check; with the repetition it freshens the data."""

    @property
    def count(self) -> int:
        """Elements of `shape`."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSpace:
    """All that a list of trials may depend on."""

    world: int
    cp0: int
    cp1: int
    backend: str
    """`gloo` or `nccl`."""
    salt: int

    @property
    def budget(self) -> int:
        """What a check may spend: comparisons over NCCL, rounds of messages over gloo."""
        small, middle, large = _BUDGETS[self.backend]
        if self.world <= 4:
            return small
        return middle if self.world <= 16 else large


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A trial before it has its place in the list."""

    dtype: str
    shape: tuple[int, ...]
    form: str
    reduction: str = ""


def number(
    space: TrialSpace, check_id: str, drafts: Iterable[Draft], *, comparisons: int = 1, rounds: int = 1
) -> tuple[Trial, ...]:
    """The first drafts that the budget allows, numbered from 1, under a salt of this check's own.

    Args:
        space: where they are tried.
        check_id: the check.
        drafts: in the order of their worth.
        comparisons: how many results one trial judges: its cost over NCCL.
        rounds: how often the messages of one trial go round all ranks: its cost over gloo.

    No check gets fewer trials than there are dtypes, and up to 4 ranks two more: then a shape comes twice.
    """
    salt = _salt(space.salt, check_id)
    cost = rounds if space.backend == "gloo" else comparisons
    least = len(ITEMSIZE) + (2 if space.world <= 4 else 0)
    budget = max(least, space.budget // cost)
    return tuple(
        Trial(
            dtype=draft.dtype,
            shape=draft.shape,
            form=draft.form,
            reduction=draft.reduction,
            repetition=place,
            salt=salt,
        )
        for place, draft in enumerate(list(drafts)[:budget], start=1)
    )


def _salt(salt: int, check_id: str) -> int:
    """63 bits of `salt` and the check, so that no check takes the data of another for its own."""
    digest = hashlib.sha256(f"{salt}:{check_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# The first six: every dtype once, one element, a count that no rank count divides, and the one big size.
LEAD = (
    ("int64", "one"),
    ("bfloat16", "odd"),
    ("float64", "bulk"),
    ("float16", "odd"),
    ("float32", "few"),
    ("int32", "odd"),
)
# With these ten: up to 16 ranks.
SECOND = (
    ("float32", "middle"),
    # Once more, in the same form: here a buffer of the second repetition could pass for a new one.
    ("bfloat16", "odd"),
    ("float16", "middle"),
    ("int64", "odd"),
    ("float32", "one"),
    ("float64", "one"),
    ("bfloat16", "middle"),
    ("int64", "few"),
    ("float32", "odd"),
    ("bfloat16", "page"),
)
KINDS = ("one", "few", "least", "odd", "page", "middle")


def sequence(
    kinds: Sequence[str] = KINDS, lead: Sequence[tuple[str, str]] = LEAD + SECOND
) -> list[tuple[str, str]]:
    """(dtype, kind of size) in the order of their worth; longer than any budget.

    What `lead` has not got follows, and then everything again: a shape that comes twice in one dtype is
    where a buffer of an earlier repetition could pass for a new one.
    """
    every = [(dtype, kind) for kind in kinds for dtype in ITEMSIZE]
    return [*lead, *(pair for pair in every if pair not in lead), *every]


def flat(space: TrialSpace, dtype: str, kind: str, *, shares: int) -> tuple[int]:
    """Shape of one flat chunk.

    Args:
        space: where it is tried.
        dtype: of the elements.
        kind: `one`, `few` (fewer elements than ranks), `least`, `odd`, `page`, `middle`, `bulk`.
        shares: how many chunks of this size the operation moves together: 1, or the world size.
    """
    least = LEAST_HASHED if dtype in HASHED else 1
    if kind in _BYTES[space.backend]:
        wanted = _bytes(space, kind) // (ITEMSIZE[dtype] * shares)
        return (_indivisible(max(least, wanted), space.world),)
    counts = {"one": 1, "few": max(1, min(space.world, LEAST_HASHED) - 1), "least": LEAST_HASHED}
    return (max(least, counts[kind]) if kind in counts else _indivisible(LEAST_HASHED + 3, space.world),)


# Bytes of the whole operation, by kind; those of gloo up to 16 ranks.
_BYTES = {
    "gloo": {"page": 4 * KIB, "middle": 48 * KIB, "bulk": MIB},
    "nccl": {"page": 4 * KIB, "middle": 192 * KIB, "bulk": 4 * MIB},
}


def _bytes(space: TrialSpace, kind: str) -> int:
    """On a CPU an operation of 64 ranks costs 70 times that of 4, so there the big sizes shrink."""
    wanted = _BYTES[space.backend][kind]
    if space.backend != "gloo" or space.world <= 16:
        return wanted
    return min(wanted, 256 * KIB if space.world <= 64 else 64 * KIB)


def _indivisible(count: int, world: int) -> int:
    """The next count above `count` that is odd and that `world` does not divide."""
    count += 1
    while count % 2 == 0 or (world > 1 and count % world == 0):
        count += 1
    return count


GRID_KINDS = ("one", "even", "uneven", "rectangular", "page", "middle")
GRID_LEAD = (
    ("int64", "one"),
    ("bfloat16", "uneven"),
    ("float64", "bulk"),
    ("float16", "rectangular"),
    ("float32", "uneven"),
    ("int32", "even"),
    ("float32", "even"),
    ("bfloat16", "uneven"),
    ("bfloat16", "even"),
    ("int64", "rectangular"),
    ("float32", "one"),
    ("bfloat16", "middle"),
    ("float16", "uneven"),
    ("float64", "even"),
    ("float32", "page"),
    ("int32", "uneven"),
)
# Rows and columns of one tile: from 64 elements on, also where the last tile of an uneven tensor is short.
_TILES = {"even": (8, 8), "uneven": (10, 9), "rectangular": (5, 24)}


def grid(space: TrialSpace, dtype: str, kind: str, *, rows: int, columns: int) -> tuple[int, int]:
    """Shape of a matrix that is cut into `rows` x `columns` tiles.

    Args:
        space: where it is tried.
        dtype: of the elements.
        kind: `one` (element a tile), `even`, `uneven` (the last tile of a cut dim is one short),
            `rectangular`, `page`, `middle`, `bulk`.
        rows: how many shards the first dim is cut into.
        columns: how many the second.
    """
    if kind == "one" and dtype not in HASHED:
        return rows, columns
    high, wide = _TILES.get(kind) or _tile_of(space, dtype, kind, tiles=rows * columns)
    short = 1 if kind == "uneven" else 0
    return rows * high - (short if rows > 1 else 0), columns * wide - (short if columns > 1 else 0)


def _tile_of(space: TrialSpace, dtype: str, kind: str, *, tiles: int) -> tuple[int, int]:
    """Rows and columns of a tile such that all tiles have the bytes of `kind`; 8 x 8 where there is none."""
    if kind not in _BYTES[space.backend]:
        return _TILES["even"]
    elements = _bytes(space, kind) // (ITEMSIZE[dtype] * tiles) + 1
    high = max(8, math.isqrt(elements))
    return high, max(8, -(-elements // high))

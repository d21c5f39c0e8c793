from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from cpinfra.worker.faults import DataFault
from cpinfra.worker.faults import Delivery
from cpinfra.worker.faults import data_fault
from cpinfra.worker.injection import DATA_TWINS
from cpinfra.worker.oracle import DTYPES
from cpinfra.worker.oracle import Pattern
from cpinfra.worker.oracle import bits
from cpinfra.worker.oracle import blank
from cpinfra.worker.oracle import same


class World:
    """All ranks of a world in one process: a fault is applied to each, and `exchange` sees them all.

    A fault's exchanges are run in rounds: as each rank calls it for the n-th time, the n-th tensors of
    all ranks are known, since they are recorded first. Strict: ranks that exchange different shapes, or
    not equally often, are an error.
    """

    def __init__(self, deliveries: list[list[Tensor]]) -> None:
        self.slots = deliveries
        self.before: list[list[Tensor]] = [[] for _ in deliveries]
        self.grid: tuple[int, int] | None = None
        self.whole = False
        self.operation = "operation"
        self.faults: list[DataFault] = []

    def plant(self, name: str) -> World:
        """One fault a rank."""
        self.faults = [data_fault(name) for _ in self.slots]
        return self

    def apply(self) -> list[bool]:
        """Apply the faults; whether each changed anything."""
        rounds = 0
        known: list[list[Tensor]] = []
        # Each attempt gets one round of exchange further, on copies, until all ranks come through.
        while True:
            sent: list[Tensor] = []
            attempts = [self._attempt(rank, known, sent) for rank in range(len(self.slots))]
            if all(changed is not None for changed in attempts):
                return [bool(changed) for changed in attempts]
            assert len(sent) == len(self.slots), "not every rank exchanged equally often"
            assert len({(t.shape, t.dtype) for t in sent}) == 1, "ranks exchanged different shapes"
            known.append(sent)
            rounds += 1
            assert rounds < 4

    def _attempt(self, rank: int, known: list[list[Tensor]], sent: list[Tensor]) -> bool | None:
        saved = [slot.clone() for slot in self.slots[rank]]
        calls = 0

        def exchange(tensor: Tensor) -> list[Tensor]:
            nonlocal calls
            calls += 1
            if calls > len(known):
                sent.append(tensor.clone())
                raise _NotYetKnownError
            return [every.clone() for every in known[calls - 1]]

        try:
            return self.faults[rank].apply(self._delivery(rank, exchange))
        except _NotYetKnownError:
            for slot, old in zip(self.slots[rank], saved, strict=True):
                slot.copy_(old)
            return None

    def _delivery(self, rank: int, exchange: Callable[[Tensor], list[Tensor]]) -> Delivery:
        return Delivery(
            operation=self.operation,
            slots=self.slots[rank],
            before=self.before[rank],
            rank=rank,
            world=len(self.slots),
            grid=self.grid,
            whole=self.whole,
            exchange=exchange,
        )


class _NotYetKnownError(Exception):
    """A rank asks for what the others have not sent yet."""


def chunks(count: int, *, dtype: str = "int64", size: int = 8, repetition: int = 1) -> list[Tensor]:
    """As many different chunks."""
    made = Pattern(dtype=DTYPES[dtype], sources=count, chunks=1, shape=(size,), repetition=repetition, salt=5)
    return [made.chunk(source) for source in range(count)]


def gathered(world: int, **kind: object) -> World:
    """Every rank holds every chunk."""
    return World([chunks(world, **kind) for _ in range(world)])  # type: ignore[arg-type]


def scattered(world: int, **kind: object) -> World:
    """Every rank holds its own chunk."""
    return World([[chunk] for chunk in chunks(world, **kind)])  # type: ignore[arg-type]


def tiled(side: int, rows: int, columns: int, *, whole: bool) -> tuple[World, Tensor]:
    """Every rank holds its tile of a matrix, or all of it; and the matrix."""
    made = Pattern(dtype=torch.int64, sources=1, chunks=1, shape=(rows, columns), repetition=1, salt=5)
    matrix = made.chunk(0)
    tiles = [tile.clone() for band in matrix.chunk(side, 0) for tile in band.chunk(side, 1)]
    world = World([[matrix.clone()] for _ in tiles] if whole else [[tile] for tile in tiles])
    world.grid, world.whole = (side, side), whole
    return world, matrix


def test_there_are_the_eight_data_twins_and_each_is_made_by_its_name() -> None:
    """As `--inject` spells them."""
    assert sorted(DATA_TWINS) == [
        "bit-flip",
        "first-element-only",
        "reversed-shard",
        "shifted",
        "stale-buffer",
        "swapped-axes",
        "swapped-slots",
        "wrong-chunk",
    ]
    assert [data_fault(name).name for name in DATA_TWINS] == list(DATA_TWINS)


def test_rejects_a_twin_that_does_not_exist() -> None:
    """And says which do."""
    with pytest.raises(ValueError, match=r"no data twin 'bit-flop'; valid: .*bit-flip"):
        data_fault("bit-flop")


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_wrong_chunk_delivers_the_next_ranks(dtype: str) -> None:
    """In every slot of a gather; a single slot takes the next rank's."""
    many, single, right = gathered(4, dtype=dtype), scattered(4, dtype=dtype), chunks(4, dtype=dtype)

    assert many.plant("wrong-chunk").apply() == [True] * 4
    assert single.plant("wrong-chunk").apply() == [True] * 4
    for rank in range(4):
        assert all(same(many.slots[rank][slot], right[(slot + 1) % 4]) for slot in range(4))
        assert same(single.slots[rank][0], right[(rank + 1) % 4])


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("reversed-shard", lambda t: t.flip(0)),
        ("shifted", lambda t: t.roll(1)),
        ("first-element-only", lambda t: t[:1].repeat(len(t))),
    ],
)
def test_a_slot_is_spoiled_by_itself(name: str, change: Callable[[Tensor], Tensor], dtype: str) -> None:
    """Each slot on each rank, with its own data."""
    world, right = gathered(3, dtype=dtype), chunks(3, dtype=dtype)

    assert world.plant(name).apply() == [True] * 3
    for slots in world.slots:
        assert all(same(slots[slot], change(right[slot])) for slot in range(3))


def test_swapped_slots_exchanges_the_first_two() -> None:
    """And leaves the others alone."""
    world, right = gathered(4), chunks(4)

    assert world.plant("swapped-slots").apply() == [True] * 4
    assert all(same(got, right[k]) for got, k in zip(world.slots[2], (1, 0, 2, 3), strict=True))


def test_swapped_slots_leaves_a_single_slot_alone() -> None:
    """There is nothing to exchange."""
    assert scattered(4).plant("swapped-slots").apply() == [False] * 4


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("make", [gathered, scattered])
def test_bit_flip_changes_one_bit_on_the_last_rank(make: Callable[..., World], dtype: str) -> None:
    """The lowest bit of the middle element of its last slot, and nothing anywhere else."""
    world, untouched = make(3, dtype=dtype), make(3, dtype=dtype)

    assert world.plant("bit-flip").apply() == [False, False, True]
    for rank in range(3):
        for got, old in zip(world.slots[rank], untouched.slots[rank], strict=True):
            last = rank == 2 and got is world.slots[rank][-1]
            assert (bits(got) ^ bits(old)).tolist() == [0, 0, 0, 0, int(last), 0, 0, 0]


def test_stale_buffer_first_delivers_what_lay_there_before() -> None:
    """A receive buffer that was never written."""
    world = gathered(2)
    world.before = [[blank((8,), torch.int64, torch.device("cpu"))] * 2 for _ in range(2)]

    assert world.plant("stale-buffer").apply() == [True, True]
    assert all(bool((slot == torch.iinfo(torch.int64).min).all()) for slot in world.slots[0])


def test_stale_buffer_then_delivers_the_last_delivery_of_its_shape() -> None:
    """Also where other shapes came between; it was right once, so only its repetition is wrong."""
    world = gathered(2, repetition=1)
    world.plant("stale-buffer").apply()
    world.slots = [chunks(2, size=5, repetition=2) for _ in range(2)]
    world.apply()
    world.slots = [chunks(2, repetition=3) for _ in range(2)]

    assert world.apply() == [True, True]
    assert all(same(got, right) for got, right in zip(world.slots[1], chunks(2, repetition=1), strict=True))


def test_stale_buffer_without_a_buffer_delivers_the_bytes_of_the_last_delivery() -> None:
    """As an allocator that hands out the same block again: of whatever shape and dtype it was."""
    world = scattered(2, size=4)
    first = world.plant("stale-buffer").apply()
    world.slots = [[torch.ones(3, 6)] for _ in range(2)]

    assert (first, world.apply()) == ([False, False], [True, True])
    flat = world.slots[1][0].flatten().view(torch.int32)
    assert same(flat[:8], chunks(2, size=4)[1].view(torch.int32))
    assert same(flat[8:16], flat[:8])


def test_each_operation_has_a_stale_buffer_of_its_own() -> None:
    """An all_gather does not deliver what an exchange delivered."""
    world = scattered(2)
    world.plant("stale-buffer").apply()
    world.operation = "another"
    world.slots = [[chunk] for chunk in chunks(2, repetition=2)]

    assert world.apply() == [False, False]


@pytest.mark.parametrize(("side", "rows", "columns"), [(2, 4, 4), (2, 4, 10), (3, 9, 9), (3, 6, 12)])
def test_swapped_axes_moves_tile_ij_to_ji(side: int, rows: int, columns: int) -> None:
    """On the ranks that hold the tiles, and in the whole, where the tiles are even."""
    tiles, matrix = tiled(side, rows, columns, whole=False)
    wholes, _ = tiled(side, rows, columns, whole=True)
    off_diagonal = [i != j for i in range(side) for j in range(side)]

    assert tiles.plant("swapped-axes").apply() == off_diagonal
    assert wholes.plant("swapped-axes").apply() == [True] * side**2
    high, wide = rows // side, columns // side
    for i in range(side):
        for j in range(side):
            mirrored = matrix[j * high :, i * wide :][:high, :wide]
            assert same(tiles.slots[i * side + j][0], mirrored.contiguous())
            assert same(wholes.slots[0][0][i * high :, j * wide :][:high, :wide], mirrored)


def test_swapped_axes_stays_within_a_replica() -> None:
    """With dp = 2 each replica exchanges its own tiles."""
    world = scattered(8)
    world.grid = (2, 2)
    right = chunks(8)

    world.plant("swapped-axes").apply()

    expected = [0, 2, 1, 3, 4, 6, 5, 7]
    assert all(same(got[0], right[rank]) for got, rank in zip(world.slots, expected, strict=True))


@pytest.mark.parametrize("whole", [True, False])
def test_tiles_of_another_shape_are_left_alone(whole: bool) -> None:
    """Of 5 x 3 in a 2 x 2 grid no off-diagonal tiles are alike: nothing changes, on any rank."""
    world, matrix = tiled(2, 5, 3, whole=whole)

    assert world.plant("swapped-axes").apply() == [False] * 4
    assert not whole or same(world.slots[3][0], matrix)


@pytest.mark.parametrize("name", DATA_TWINS)
def test_uneven_tiles_can_be_exchanged_at_all(name: str) -> None:
    """Ranks whose tiles differ in shape still exchange equal shapes, equally often."""
    for whole in (True, False):
        world, _ = tiled(2, 5, 7, whole=whole)
        assert len(world.plant(name).apply()) == 4


@pytest.mark.parametrize("name", DATA_TWINS)
def test_nothing_is_delivered_nothing_is_spoiled(name: str) -> None:
    """No slots (a device mesh was made), empty tiles, and one rank alone."""
    assert World([[], []]).plant(name).apply() == [False, False]
    assert World([[torch.zeros(0, 4)] for _ in range(2)]).plant(name).apply() == [False, False]
    assert len(World([[torch.ones(1)]]).plant(name).apply()) == 1


@pytest.mark.parametrize("name", [name for name in DATA_TWINS if name not in {"stale-buffer", "bit-flip"}])
def test_a_slot_that_a_twin_cannot_change_is_reported_unchanged(name: str) -> None:
    """Constant data looks the same however it is moved: the fault says that it did nothing."""
    world = World([[torch.ones(6), torch.ones(6)] for _ in range(2)])

    assert world.plant(name).apply() == [False, False]


@given(
    name=st.sampled_from([name for name in DATA_TWINS if name != "swapped-axes"]),
    world=st.integers(2, 5),
    size=st.integers(2, 12),
    dtype=st.sampled_from(sorted(DTYPES)),
)
@settings(deadline=None)
def test_what_a_fault_says_is_what_it_did(name: str, world: int, size: int, dtype: str) -> None:
    """`apply` is true exactly on the ranks whose slots differ from what was delivered."""
    made, untouched = gathered(world, dtype=dtype, size=size), gathered(world, dtype=dtype, size=size)
    made.before = [[blank((size,), DTYPES[dtype], torch.device("cpu"))] * world for _ in range(world)]

    said = made.plant(name).apply()

    for rank, changed in enumerate(said):
        pairs = zip(made.slots[rank], untouched.slots[rank], strict=True)
        assert changed == any(not same(got, right) for got, right in pairs)
    assert any(said) or dtype in {"bfloat16", "float16"}

from __future__ import annotations

import math

import pytest

from cpinfra.worker import registry
from cpinfra.worker.trials import HASHED
from cpinfra.worker.trials import ITEMSIZE
from cpinfra.worker.trials import LEAST_HASHED
from cpinfra.worker.trials import MAX_REPETITIONS
from cpinfra.worker.trials import MIB
from cpinfra.worker.trials import Draft
from cpinfra.worker.trials import Trial
from cpinfra.worker.trials import TrialSpace
from cpinfra.worker.trials import number

WORLDS = (1, 2, 3, 4, 9, 16, 64, 256, 1024)
FLAT = ("collective.all_reduce", "collective.all_gather", "collective.reduce_scatter", "p2p.ring")
CHECKS = (*FLAT, "dtensor.roundtrip", "dtensor.roundtrip_1d")


def space(world: int, *, backend: str = "gloo", salt: int = 1) -> TrialSpace:
    """The space of a world, with its largest square grid."""
    side = math.isqrt(world) if math.isqrt(world) ** 2 == world else 1
    return TrialSpace(world=world, cp0=side, cp1=side, backend=backend, salt=salt)


def trials(check: str, where: TrialSpace) -> tuple[Trial, ...]:
    """What a check tries there."""
    return tuple(registry.load([check])[check].trials(where))


def total_bytes(check: str, trial: Trial, world: int) -> int:
    """What one operation moves or reduces, as one rank sees it."""
    shares = world if check in {"collective.all_gather", "collective.reduce_scatter"} else 1
    return trial.count * shares * ITEMSIZE[trial.dtype]


@pytest.mark.parametrize(
    ("backend", "world", "budget"),
    [
        ("gloo", 1, 18),
        ("gloo", 4, 18),
        ("gloo", 5, 8),
        ("gloo", 16, 8),
        ("gloo", 17, 6),
        ("gloo", 1024, 6),
        ("nccl", 4, 48),
        ("nccl", 16, 16),
        ("nccl", 17, 6),
    ],
)
def test_the_budget_shrinks_with_the_world(backend: str, world: int, budget: int) -> None:
    """What one round costs, and what one comparison costs, grows with the ranks."""
    where = space(world, backend=backend)

    assert where.budget == budget
    assert len(trials("collective.all_gather", where)) == budget
    assert len(trials("p2p.ring", where)) == budget


@pytest.mark.parametrize(
    ("check", "counts"),
    [
        ("collective.all_reduce", {"gloo": 9, "nccl": 48}),
        ("collective.reduce_scatter", {"gloo": 9, "nccl": 48}),
        ("dtensor.roundtrip", {"gloo": 8, "nccl": 24}),
        ("dtensor.roundtrip_1d", {"gloo": 9, "nccl": 24}),
    ],
)
def test_over_gloo_rounds_count_and_over_nccl_comparisons(check: str, counts: dict[str, int]) -> None:
    """Four ranks: a reduction goes round twice, a DTensor round trip judges two results."""
    assert {backend: len(trials(check, space(4, backend=backend))) for backend in counts} == counts


@pytest.mark.parametrize(("backend", "most"), [("gloo", 4), ("nccl", 16)])
def test_all_reduce_tries_maxima_where_its_budget_reaches_so_far(backend: str, most: int) -> None:
    """After eight sums: with few ranks over gloo, with more over NCCL, and in no larger world."""
    worlds = range(2, 20)
    reductions = {w: {t.reduction for t in trials(FLAT[0], space(w, backend=backend))} for w in worlds}

    assert [world for world, tried in reductions.items() if "max" in tried] == list(range(2, most + 1))
    assert all("sum" in tried for tried in reductions.values())


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("check", CHECKS)
def test_every_dtype_is_tried_in_every_world(check: str, world: int) -> None:
    """Even where the budget is six."""
    assert {trial.dtype for trial in trials(check, space(world))} == set(ITEMSIZE)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("check", FLAT)
def test_one_element_and_a_count_that_no_world_divides_are_always_tried(check: str, world: int) -> None:
    """One element, and an odd count that leaves a rest."""
    counts = {trial.count for trial in trials(check, space(world))}

    assert 1 in counts
    assert any(count % 2 and (world == 1 or count % world) for count in counts if count > 1)


@pytest.mark.parametrize("world", [w for w in WORLDS if w <= 16])
@pytest.mark.parametrize("check", CHECKS)
def test_up_to_16_ranks_one_operation_is_above_a_mebibyte(check: str, world: int) -> None:
    """gloo cuts its messages at 1 MiB; exactly one operation crosses that, since it is dear."""
    sizes = [total_bytes(check, trial, world) for trial in trials(check, space(world))]

    assert sum(size > MIB for size in sizes) == 1
    assert max(sizes) < 1.2 * MIB


@pytest.mark.parametrize(("world", "limit"), [(64, 300 * 1024), (256, 300 * 1024), (1024, 600 * 1024)])
@pytest.mark.parametrize("check", CHECKS)
def test_above_16_ranks_one_operation_is_big_and_the_rest_tiny(check: str, world: int, limit: int) -> None:
    """64 ranks on two cores need half a second for 256 KiB: what a run moves there is bounded."""
    sizes = sorted(total_bytes(check, trial, world) for trial in trials(check, space(world)))

    assert sizes[-1] <= limit
    if world == 64:
        assert sizes[-1] >= 256 * 1024
        assert sum(sizes[:-1]) < 128 * 1024


@pytest.mark.parametrize("world", [4, 16, 64])
@pytest.mark.parametrize("check", FLAT)
def test_nccl_is_tried_on_both_sides_of_its_protocols(check: str, world: int) -> None:
    """LL up to about 4 KiB, Simple from 4 MiB on, and LL128 between where the budget allows."""
    sizes = [total_bytes(check, trial, world) for trial in trials(check, space(world, backend="nccl"))]

    assert min(sizes) <= 4096
    assert max(sizes) > 4 * MIB
    if world <= 16:
        assert any(64 * 1024 <= size <= 512 * 1024 for size in sizes)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("check", CHECKS)
def test_a_hash_decides_on_enough_elements(check: str, world: int, backend: str) -> None:
    """A chunk, or the smallest tile, of a small dtype has at least 64 elements."""
    where = space(world, backend=backend)
    for trial in trials(check, where):
        if trial.dtype in HASHED:
            assert _smallest_piece(trial, where) >= LEAST_HASHED, trial


def _smallest_piece(trial: Trial, where: TrialSpace) -> int:
    grids = {"tiles": (where.cp0, where.cp1), "rows": (where.world, 1), "columns": (1, where.world)}
    piece = 1
    for size, shards in zip(trial.shape, grids.get(trial.form, (1,) * len(trial.shape)), strict=True):
        each = math.ceil(size / shards)
        piece *= size - each * (shards - 1)
    return piece


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("check", CHECKS)
def test_repetitions_count_from_one_and_fit_the_encoding(check: str, world: int) -> None:
    """Each is unique in its check, and there is room for it in six bits."""
    repetitions = [trial.repetition for trial in trials(check, space(world))]

    assert repetitions == list(range(1, len(repetitions) + 1))
    assert repetitions[-1] <= MAX_REPETITIONS


def test_the_same_space_gives_the_same_list_and_another_salt_other_data() -> None:
    """A list depends on the space alone, and no two runs or checks share a salt."""
    ours = trials("p2p.ring", space(4))

    assert ours == trials("p2p.ring", space(4))
    assert {t.salt for t in ours}.isdisjoint(t.salt for t in trials("p2p.ring", space(4, salt=2)))
    assert {t.salt for t in ours}.isdisjoint(t.salt for t in trials("collective.all_reduce", space(4)))


@pytest.mark.parametrize(("world", "times"), [(2, 1), (4, 1), (9, 1), (16, 1), (17, 0), (64, 0)])
def test_the_list_form_of_reduce_scatter_is_tried_once_and_not_above_16_ranks(world: int, times: int) -> None:
    """At 64 ranks that one operation takes 20 seconds on two cores."""
    forms = [trial.form for trial in trials("collective.reduce_scatter", space(world))]

    assert forms.count("list") == times


@pytest.mark.parametrize("world", [4, 16, 64])
def test_all_gather_is_tried_in_both_forms(world: int) -> None:
    """Half of the trials each."""
    forms = [trial.form for trial in trials("collective.all_gather", space(world))]

    assert forms.count("list") == forms.count("tensor")


@pytest.mark.parametrize("world", [4, 16])
def test_some_shape_comes_twice_in_one_dtype_and_form(world: int) -> None:
    """Only there could the buffer of an earlier repetition pass for a new one."""
    for check in CHECKS if world == 4 else ("collective.all_gather", "p2p.ring"):
        tried = [(trial.dtype, trial.shape, trial.form) for trial in trials(check, space(world))]
        assert len(set(tried)) < len(tried), check


def test_matrices_are_even_uneven_and_rectangular() -> None:
    """Tiles of one element, tiles that are all alike, and grids whose last row and column are short."""
    shapes = {trial.shape for trial in trials("dtensor.roundtrip", space(64))}

    assert (8, 8) in shapes
    assert any(rows % 8 and columns % 8 for rows, columns in shapes)
    assert any(columns > 2 * rows for rows, columns in shapes)


@pytest.mark.parametrize("world", [2, 3, 4, 9, 64])
def test_shards_are_tried_by_rows_and_by_columns(world: int) -> None:
    """Both forms, and no shard of any is empty."""
    found = trials("dtensor.roundtrip_1d", space(world))

    assert {trial.form for trial in found} == {"rows", "columns"}
    assert all(_smallest_piece(trial, space(world)) > 0 for trial in found)


def test_nothing_in_a_check_for_any_mesh_depends_on_the_grid() -> None:
    """The same world as 2x2, 4x1 or no grid at all gives the same trials."""
    grids = [TrialSpace(world=4, cp0=a, cp1=b, backend="gloo", salt=1) for a, b in ((2, 2), (4, 1), (1, 1))]
    for check in (*FLAT, "dtensor.roundtrip_1d"):
        assert len({trials(check, where) for where in grids}) == 1


def test_drafts_beyond_the_budget_are_left_out() -> None:
    """The first ones are the most worth."""
    drafts = [Draft(dtype="int64", shape=(place + 1,), form="tensor") for place in range(100)]

    assert [trial.shape for trial in number(space(64), "x.y", drafts)] == [(n,) for n in range(1, 7)]

"""DTensor: a tensor laid over the mesh as tiles, and put together again."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.distributed.tensor import Replicate
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import Placement

from ..check_run import CheckRun
from ..difference import Part
from ..layout import Layout
from ..oracle import Pattern
from ..oracle import blank
from ..registry import check
from ..trials import GRID_KINDS
from ..trials import GRID_LEAD
from ..trials import Draft
from ..trials import Trial
from ..trials import TrialSpace
from ..trials import grid
from ..trials import number
from ..trials import sequence

_COMPARISONS = 2
"""In one trial: the tile and the whole."""


def _tile_trials(space: TrialSpace) -> Sequence[Trial]:
    drafts = [
        Draft(dtype=dtype, shape=grid(space, dtype, kind, rows=space.cp0, columns=space.cp1), form="tiles")
        for dtype, kind in sequence(GRID_KINDS, GRID_LEAD)
    ]
    return number(
        space, "dtensor.roundtrip", drafts, comparisons=_COMPARISONS, rounds=4
    )  # two axes, there and back


@check(
    "dtensor.roundtrip",
    tier="smoke",
    claim="distribute_tensor puts tile (i, j) of a matrix at (cp0=i, cp1=j), and full_tensor restores it.",
    trials=_tile_trials,
    needs=("torch.distributed.tensor", "torch._dynamo"),
    mesh="square",
    min_ranks=4,
    twins=(
        "wrong-chunk",
        "reversed-shard",
        "first-element-only",
        "shifted",
        "swapped-slots",
        "stale-buffer",
        "swapped-axes",
        "bit-flip",
    ),
)
def roundtrip(run: CheckRun, trial: Trial) -> None:
    """Shard(0) over cp0, Shard(1) over cp1, the same tiles in every replica of dp."""
    axes: tuple[tuple[str, int, Placement], ...] = (
        ("dp", run.dp, Replicate()),
        ("cp0", run.cp0, Shard(0)),
        ("cp1", run.cp1, Shard(1)),
    )
    used = axes if run.dp > 1 else axes[1:]
    layout = Layout(shape=_matrix(trial), grid=(run.cp0, run.cp1))
    _roundtrip(run, trial, layout, used)


def _row_trials(space: TrialSpace) -> Sequence[Trial]:
    """Shards of rows and shards of columns in turn."""
    kinds = sequence(GRID_KINDS, GRID_LEAD)
    drafts = [_row_draft(space, *kind, by_rows=place % 2 == 0) for place, kind in enumerate(kinds)]
    return number(space, "dtensor.roundtrip_1d", drafts, comparisons=_COMPARISONS, rounds=2)  # there and back


def _row_draft(space: TrialSpace, dtype: str, kind: str, *, by_rows: bool) -> Draft:
    if by_rows:
        return Draft(dtype=dtype, shape=grid(space, dtype, kind, rows=space.world, columns=1), form="rows")
    return Draft(dtype=dtype, shape=grid(space, dtype, kind, rows=1, columns=space.world), form="columns")


@check(
    "dtensor.roundtrip_1d",
    tier="smoke",
    claim="distribute_tensor gives rank r shard r of a matrix, by rows and columns; full_tensor restores it.",
    trials=_row_trials,
    needs=("torch.distributed.tensor", "torch._dynamo"),
    min_ranks=1,  # at any world size; the only shard of one rank is the whole, so there it says little
    twins=("wrong-chunk", "reversed-shard", "first-element-only", "shifted", "stale-buffer", "bit-flip"),
    immune={
        "swapped-slots": "Each operation delivers one tensor, which has nothing to be exchanged with.",
        "swapped-axes": "Its mesh has one axis.",
    },
)
def roundtrip_1d(run: CheckRun, trial: Trial) -> None:
    """Shard(0) or Shard(1) over one axis of all ranks."""
    by_rows = trial.form == "rows"
    layout = Layout(shape=_matrix(trial), grid=(run.world, 1) if by_rows else (1, run.world))
    _roundtrip(run, trial, layout, (("ranks", run.world, Shard(0 if by_rows else 1)),))


def _roundtrip(
    run: CheckRun, trial: Trial, layout: Layout, axes: Sequence[tuple[str, int, Placement]]
) -> None:
    """Distribute rank 0's matrix, judge this rank's tile, gather, judge the whole."""
    names, sizes, placements = zip(*axes, strict=True)
    pattern = Pattern.of(trial, sources=1)
    expected = pattern.chunk(0)
    # Only rank 0's matrix may matter: every other rank passes one that would be seen.
    given = expected if run.rank == 0 else blank(trial.shape, pattern.dtype, expected.device)
    mesh = run.door.device_mesh(tuple(sizes), tuple(names))
    dtensor = run.door.distribute(given.to(run.device), mesh, placements)
    i, j = layout.place(run.rank)
    run.compare(
        dtensor.to_local(),
        layout.tile(expected, i, j),
        what=layout.name(i, j),
        hypotheses=lambda: layout.others(pattern, expected, i, j),
        describe=pattern.describe,
    )
    whole = run.door.full_tensor(dtensor)
    run.compare_parts(
        whole, expected, parts=lambda got: _tiles(layout, pattern, got, expected), describe=pattern.describe
    )


def _tiles(layout: Layout, pattern: Pattern, got: Tensor, expected: Tensor) -> list[Part]:
    """The whole as its tiles."""

    def part(i: int, j: int) -> Part:
        return Part(
            name=f"{layout.name(i, j)} of the whole",
            belongs=layout.name(i, j),
            got=layout.tile(got, i, j),
            expected=layout.tile(expected, i, j),
            others=lambda: layout.others(pattern, expected, i, j),
        )

    return [part(i, j) for i, j in layout.places()]


def _matrix(trial: Trial) -> tuple[int, int]:
    rows, columns = trial.shape
    return rows, columns

"""Collectives: each element that arrives is compared with where it must have come from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..check_run import CheckRun
from ..difference import Part
from ..oracle import Contributions
from ..oracle import Pattern
from ..oracle import blank
from ..registry import check
from ..trials import Draft
from ..trials import Trial
from ..trials import TrialSpace
from ..trials import flat
from ..trials import number
from ..trials import sequence

_ROUNDS = 2
"""gloo reduces in two rounds of messages, where it gathers in one."""
_MAX_DTYPES = ("float32", "bfloat16", "int64")


def _all_reduce_trials(space: TrialSpace) -> Sequence[Trial]:
    """Sums, and maxima from the ninth trial on: over NCCL up to 16 ranks, over gloo up to 4."""
    sums = [
        Draft(dtype=dtype, shape=flat(space, dtype, kind, shares=1), form="tensor", reduction="sum")
        for dtype, kind in sequence()
    ]
    extras = [Draft(dtype=dtype, shape=(1021,), form="tensor", reduction="max") for dtype in _MAX_DTYPES]
    drafts = [*sums[:8], *extras, *sums[8:]]
    return number(space, "collective.all_reduce", drafts, rounds=_ROUNDS)


@check(
    "collective.all_reduce",
    tier="smoke",
    claim="all_reduce gives every rank the sum over all ranks, at every element.",
    trials=_all_reduce_trials,
    min_ranks=2,  # the sum of one rank is what lies in the tensor already
    twins=("reversed-shard", "first-element-only", "shifted", "stale-buffer", "bit-flip"),
    immune={
        "wrong-chunk": "Every rank gets the same sum, so that of the next rank is the right one.",
        "swapped-slots": "It delivers one tensor, which has nothing to be exchanged with.",
        "swapped-axes": "What it delivers lies over no grid of tiles.",
    },
)
def all_reduce(run: CheckRun, trial: Trial) -> None:
    """One all_reduce, in place."""
    contributions = Contributions.of(trial, sources=run.world)
    tensor = contributions.of_rank(run.rank).to(run.device)
    run.door.all_reduce(tensor, reduction=trial.reduction)
    run.compare(
        tensor,
        contributions.reduced(),
        what=f"the {trial.reduction}",
        hypotheses=lambda: contributions.others(run.rank, 0, chunks=1),
    )


def _all_gather_trials(space: TrialSpace) -> Sequence[Trial]:
    """Both forms in turn; the big size in the tensor form."""
    drafts = [
        Draft(
            dtype=dtype,
            shape=flat(space, dtype, kind, shares=space.world),
            form="list" if place % 2 else "tensor",
        )
        for place, (dtype, kind) in enumerate(sequence())
    ]
    return number(space, "collective.all_gather", drafts)


@check(
    "collective.all_gather",
    tier="smoke",
    claim="all_gather puts the chunk of each rank into that rank's slot, each element in its place.",
    trials=_all_gather_trials,
    min_ranks=1,  # one rank's chunk still has to reach a buffer that was blank
    twins=(
        "wrong-chunk",
        "reversed-shard",
        "first-element-only",
        "shifted",
        "swapped-slots",
        "stale-buffer",
        "bit-flip",
    ),
    immune={"swapped-axes": "What it delivers lies over no grid of tiles."},
)
def all_gather(run: CheckRun, trial: Trial) -> None:
    """One all_gather, into one tensor or into a list of tensors."""
    pattern = Pattern.of(trial, sources=run.world)
    slots = blank((run.world, *trial.shape), pattern.dtype, run.device)
    chunk = pattern.chunk(run.rank).to(run.device)
    if trial.form == "list":
        run.door.all_gather_list(list(slots.unbind(0)), chunk)
    else:
        run.door.all_gather(slots.flatten(0, 1), chunk)
    expected = pattern.table([(source, 0) for source in range(run.world)])
    run.compare_parts(
        slots, expected, parts=lambda got: _slots(pattern, got, expected), describe=pattern.describe
    )


def _slots(pattern: Pattern, got: Tensor, expected: Tensor) -> list[Part]:
    """One part per slot of an all_gather: [world, n] each."""

    def part(slot: int) -> Part:
        return Part(
            name=f"slot {slot}",
            belongs=_chunk_name(slot),
            got=got[slot],
            expected=expected[slot],
            others=lambda: pattern.others(slot, 0, _chunk_name),
        )

    return [part(slot) for slot in range(len(got))]


def _chunk_name(source: int, _chunk: int = 0) -> str:
    return f"the chunk of rank {source}"


def _reduce_scatter_trials(space: TrialSpace) -> Sequence[Trial]:
    """The tensor form, and the list form once: at 64 ranks that one operation takes 20 s on two cores."""
    tensors = [
        Draft(
            dtype=dtype,
            shape=flat(space, dtype, kind, shares=space.world),
            form="tensor",
            reduction="sum",
        )
        for dtype, kind in sequence()
    ]
    listed = Draft(
        dtype="float32", shape=flat(space, "float32", "odd", shares=space.world), form="list", reduction="sum"
    )
    if space.world > 16:
        drafts = tensors
    elif space.world > 4:
        drafts = [*tensors[:4], listed, *tensors[5:]]  # in place of the lead's float32: six trials are all
    else:
        drafts = [*tensors[:8], listed, *tensors[8:]]
    return number(space, "collective.reduce_scatter", drafts, rounds=_ROUNDS)


@check(
    "collective.reduce_scatter",
    tier="smoke",
    claim="reduce_scatter gives each rank the sum over all ranks for its own chunk, at every element.",
    trials=_reduce_scatter_trials,
    min_ranks=1,  # as for all_gather
    twins=("wrong-chunk", "reversed-shard", "first-element-only", "shifted", "stale-buffer", "bit-flip"),
    immune={
        "swapped-slots": "It delivers one chunk, which has nothing to be exchanged with.",
        "swapped-axes": "What it delivers lies over no grid of tiles.",
    },
)
def reduce_scatter(run: CheckRun, trial: Trial) -> None:
    """One reduce_scatter, from one tensor or from a list of tensors."""
    contributions = Contributions.of(trial, sources=run.world)
    output = blank(trial.shape, contributions.dtype, run.device)
    given = contributions.to_all(run.rank).to(run.device)
    if trial.form == "list":
        run.door.reduce_scatter_list(output, list(given.unbind(0)), reduction=trial.reduction)
    else:
        run.door.reduce_scatter(output, given.flatten(0, 1), reduction=trial.reduction)
    run.compare(
        output,
        contributions.reduced(run.rank),
        what=f"the {trial.reduction} for rank {run.rank}",
        hypotheses=lambda: contributions.others(run.rank, run.rank, chunks=run.world),
    )

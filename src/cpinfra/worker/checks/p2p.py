"""Point to point: the exchange between neighbours that ring attention rests on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..check_run import CheckRun
from ..difference import Part
from ..oracle import Pattern
from ..oracle import blank
from ..registry import check
from ..trials import Draft
from ..trials import Trial
from ..trials import TrialSpace
from ..trials import flat
from ..trials import number
from ..trials import sequence

_DIRECTIONS = ("right", "left")
"""Chunk 0 of each rank goes right, chunk 1 goes left."""


def _ring_trials(space: TrialSpace) -> Sequence[Trial]:
    drafts = [
        Draft(dtype=dtype, shape=flat(space, dtype, kind, shares=1), form="batch")
        for dtype, kind in sequence()
    ]
    return number(space, "p2p.ring", drafts)


@check(
    "p2p.ring",
    tier="smoke",
    claim="In one batch each rank sends a message to each neighbour, and both arrive whole and not mixed up.",
    trials=_ring_trials,
    min_ranks=2,
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
def ring(run: CheckRun, trial: Trial) -> None:
    """Both directions at once; with two ranks both neighbours are one peer, and order tells them apart."""
    pattern = Pattern.of(trial, sources=run.world, chunks=2)
    right, left = (run.rank + 1) % run.world, (run.rank - 1) % run.world
    outgoing = pattern.table([(run.rank, 0), (run.rank, 1)]).to(run.device)
    incoming = blank((2, *trial.shape), pattern.dtype, run.device)
    sends = [(right, outgoing[0]), (left, outgoing[1])]
    receives = [(left, incoming[0]), (right, incoming[1])]
    run.door.exchange(sends, receives)
    sources = [(left, 0), (right, 1)]
    expected = pattern.table(sources)
    run.compare_parts(
        incoming,
        expected,
        parts=lambda got: _messages(pattern, sources, got, expected),
        describe=pattern.describe,
    )


def _messages(pattern: Pattern, sources: list[tuple[int, int]], got: Tensor, expected: Tensor) -> list[Part]:
    """The message from the left and the one from the right: [2, n] each."""

    def part(place: int, source: int, chunk: int) -> Part:
        side = "left" if chunk == 0 else "right"
        return Part(
            name=f"the message from the {side} (rank {source})",
            belongs=_message_name(source, chunk),
            got=got[place],
            expected=expected[place],
            others=lambda: pattern.others(source, chunk, _message_name),
        )

    return [part(place, source, chunk) for place, (source, chunk) in enumerate(sources)]


def _message_name(source: int, chunk: int) -> str:
    return f"what rank {source} sent to its {_DIRECTIONS[chunk]}"

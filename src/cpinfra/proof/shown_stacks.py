"""Which stacks of a hang are worth showing, and why a culprit has none."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping

from ..worker.ledger import Stage
from . import stacks
from .evidence import Evidence


def worth_showing(evidence: Evidence, culprits: Collection[int], raised: Collection[int]) -> dict[int, str]:
    """Rank -> stack; of ranks that have left by an exception, or are through, nothing is worth it.

    A rank that crashed has left its stack among its last words.

    Args:
        evidence: what is known.
        culprits: the ranks to blame.
        raised: those that have left by an exception.
    """
    gone = {*raised, *(rank for rank in evidence.tracks if _is_through(evidence, rank))}
    told = {rank: text for rank, text in evidence.stacks.items() if rank not in gone}
    crashed = {
        rank: text for rank, text in evidence.last_words.items() if rank in culprits and stacks.frames(text)
    }
    return {**crashed, **told}


def missing(
    evidence: Evidence, culprits: Collection[int], raised: Collection[int], shown: Mapping[int, str]
) -> dict[int, str]:
    """Culprit -> why nothing is shown of where it stands.

    Args:
        evidence: what is known.
        culprits: the ranks to blame.
        raised: those that have left by an exception.
        shown: the stacks that are.
    """
    return {rank: _why_none(evidence, rank, raised) for rank in culprits if not shown.get(rank)}


def _why_none(evidence: Evidence, rank: int, raised: Collection[int]) -> str:
    if rank in evidence.generation.exits:
        return "it had ended"
    if evidence.states.get(rank) in ("T", "t"):
        return "it was stopped, and could not answer"
    if rank in raised:
        return "it had left the operation by an exception"
    return "it was through with its checks" if _is_through(evidence, rank) else "it did not answer in time"


def _is_through(evidence: Evidence, rank: int) -> bool:
    return evidence.tracks[rank].stage is Stage.REPORTED

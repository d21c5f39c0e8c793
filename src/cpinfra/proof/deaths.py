"""Of ranks that were stopped or died: which of them are to blame, and which only lost a peer."""

from __future__ import annotations

from collections.abc import Mapping

from ..text import one_line
from .evidence import Blame
from .evidence import Evidence
from .generation import Exit

_DEATHS_OF_VICTIMS = ("SIGABRT", "SIGPIPE", "exit code 1")
"""How a process ends that has lost a peer: gloo aborts it, a write finds nobody, an error is given up on."""
_TOGETHER_S = 0.05
"""Deaths that are this close together count alike: their order says nothing of cause and effect."""
_ONE_BATCH_S = 0.001
"""Deaths that were heard of this close together were collected in one go, in any order."""
_WORDS_SHOWN = 240
_FATAL = "Fatal Python error"
"""Where faulthandler's own words begin; what was said before is the reason."""


def stopped(evidence: Evidence) -> list[Blame]:
    """Ranks that a signal has stopped, stuck or not: no peer can do that to them."""
    living = {rank: state for rank, state in evidence.states.items() if rank in evidence.living}
    # A tracer, such as a profiler, stops a process for moments: only past the budget that is a stop.
    ranks = [
        rank for rank, state in living.items() if state == "T" or (state == "t" and rank in evidence.stuck)
    ]
    return [
        Blame(rank=rank, kind="process-stopped", got=f"is stopped (state {living[rank]})") for rank in ranks
    ]


def dead(evidence: Evidence, *, explained: bool) -> list[Blame]:
    """Of the ranks that died, those to blame.

    Args:
        evidence: what is known.
        explained: another rank is to blame already for what a lost peer does to a process.
    """
    ended = {rank: evidence.generation.exits[rank] for rank in evidence.dead}
    own = {rank: gone for rank, gone in ended.items() if gone.text not in _DEATHS_OF_VICTIMS}
    ranks = _first_and_killed(own) or ([] if explained else _first_alone(ended))
    return [Blame(rank=rank, kind="process-died", got=how(evidence, rank)) for rank in ranks]


def _first_and_killed(own: Mapping[int, Exit]) -> list[int]:
    """Those that died first and together, and all that were meant: a SIGKILL is sent, an exit called."""
    first = min((gone.at for gone in own.values()), default=0.0)
    meant = [rank for rank, gone in own.items() if gone.text == "SIGKILL" or gone.text.startswith("exit")]
    return [rank for rank, gone in own.items() if rank in meant or gone.at - first <= _TOGETHER_S]


def _first_alone(ended: Mapping[int, Exit]) -> list[int]:
    """The one that died first, as every other may have died of it; nobody where two came at once."""
    if not ended:
        return []
    (first_at, first), *others = sorted((gone.at, rank) for rank, gone in ended.items())
    return [first] if all(at - first_at > _ONE_BATCH_S for at, _ in others) else []


def how(evidence: Evidence, rank: int) -> str:
    """How a rank ended; who sent the SIGKILL, if the kernel says so; what the rank printed last."""
    text = evidence.generation.exits[rank].text
    words = evidence.last_words.get(rank, "").partition(_FATAL)[0].strip().splitlines()
    said = f"; it printed last: {one_line(words[-1].strip(), limit=_WORDS_SHOWN)!r}" if words else ""
    return f"ended by {text}{_killer(evidence) if text == 'SIGKILL' else ''}{said}"


def _killer(evidence: Evidence) -> str:
    """Whether the kernel sent a SIGKILL for want of memory; where it sent fewer than there are, perhaps."""
    if evidence.oom is None:
        return ""
    killed = [gone for gone in evidence.generation.exits.values() if gone.text == "SIGKILL"]
    perhaps = "" if len(killed) <= evidence.oom.number else "perhaps "
    return f", {perhaps}of the kernel's out-of-memory killer ({evidence.oom.says})"

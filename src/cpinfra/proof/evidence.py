"""All that attribution may look at, and the form of its blame. Which faults were planted is not among it."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from ..worker.ledger import Stage
from .generation import Generation
from .oom import OomKills
from .timeline import Call
from .timeline import Track


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known of a generation at the moment of judgement."""

    generation: Generation
    tracks: Mapping[int, Track]
    states: Mapping[int, str]
    """Process states by rank, one letter of proc(5)."""
    stuck: Collection[int]
    """Ranks that stood still past their budget."""
    stacks: Mapping[int, str]
    now_ns: int
    """CLOCK_MONOTONIC at the judgement."""
    still_s: Mapping[int, float] = field(default_factory=dict)
    """How long each rank has recorded nothing, by its clock."""
    asleep: Collection[int] = ()
    """Ranks that sleep and have shown no sign of life for so long that they are not on their way anywhere."""
    last_words: Mapping[int, str] = field(default_factory=dict)
    """The end of what a rank that died has printed."""
    members: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Sequence of calls -> ranks that must come to all of them; all ranks, where it is not told."""
    disturbed: Collection[int] = ()
    """Ranks in which torch raised only after they had been asked for their stacks: the signal may have done
    that, and they count as standing where they were."""
    oom: OomKills | None = None
    """What a control group says of the kernel's out-of-memory killer since the ranks were forked."""

    @property
    def dead(self) -> list[int]:
        """Ranks that ended when they should not have."""
        return [rank for rank, gone in self.generation.exits.items() if not gone.expected]

    @property
    def living(self) -> dict[int, Track]:
        """Ranks that have not ended."""
        return {rank: track for rank, track in self.tracks.items() if rank not in self.generation.exits}

    def is_waiting(self, rank: int) -> bool:
        """Whether a rank is where it can only wait for others: inside of an operation or of a stage's."""
        track = self.tracks[rank]
        return bool(track.open_calls) or track.stage in (Stage.JOINING, Stage.AGREEING, Stage.LEAVING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """A rank, and what it is to blame for."""

    rank: int
    kind: str
    got: str
    expected: str = ""
    """Empty: the operation that it is in, or the next one that others have entered."""
    call: Call | None = None
    """The call that it is about; None: the same."""

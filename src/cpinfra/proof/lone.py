"""Beside a rank that died or is stopped: who has gone wrong at a place to which nobody else has come.

No other rank's call is there to compare with, so only the plan of the check can tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping

from .divergence import off_plan
from .evidence import Blame
from .timeline import Call
from .timeline import Track


def gone_wrong(tracks: Mapping[int, Track]) -> list[Blame]:
    """Blame for those whose calls, where they are alone, are not what the plan says."""
    found = (next(_wrong(tracks, track), None) for track in tracks.values())
    return [blame for blame in found if blame is not None]


def _wrong(tracks: Mapping[int, Track], track: Track) -> Iterator[Blame]:
    others = {call.place for other in tracks.values() if other is not track for call in other.calls}
    for number, call in enumerate(track.calls):
        if call.place in others or not call.check:
            continue
        if call.planned is not None:
            yield off_plan(track.rank, call)
        elif due := _left_out(track.calls[:number], call):
            yield _out_of_order(track, call, due)


def _left_out(before: tuple[Call, ...], call: Call) -> int:
    """The repetition over which a rank has gone, to be seen where it has just come out of the one before.

    A rank leaves repetitions out by right once its backend has refused one, by an exception.
    """
    same = [one for one in before if one.check == call.check]
    refused = any(one.raised for one in same)
    due = same[-1].repetition + 1 if same else 0
    return due if same and not refused and call.repetition > due else 0


def _out_of_order(track: Track, call: Call, due: int) -> Blame:
    """It has made the call of that repetition after this one, or not at all."""
    after = any(one.check == call.check and one.repetition == due for one in track.calls)
    return Blame(
        rank=track.rank,
        kind="mismatched-operation" if after else "never-entered",
        got=f"entered {call}",
        expected=f"the call of repetition {due}, which was due",
        call=call,
    )

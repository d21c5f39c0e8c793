"""Where ranks went separate ways: the first place at which two of them entered different calls.

A rank that only has not entered a call has not diverged. Of two that entered different ones the plan of the
check decides who is to blame: whoever passed something else than its trial says, and whoever entered a call
that comes later. Where the plan does not say, as for a program of the user's, most ranks are right. Where
that is even, nobody is named, and both sides are shown.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from ..worker.ledger import Stage
from .evidence import Blame
from .hang import Side
from .timeline import Call
from .timeline import Signature
from .timeline import Track

_NOTHING = "no further call"


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """Ranks that entered different calls where all had to enter the same."""

    kind: str
    """In what the calls differ; what a culprit is to blame for can be another."""
    blamed: tuple[Blame, ...]
    """None where nothing tells who is right."""
    entered: Mapping[int, Call]
    """What each rank entered at the place where they part; none where that is no longer kept."""

    def beside(self, later: Divergence) -> Divergence:
        """With those who are to blame at a later place, too."""
        known = {blame.rank for blame in self.blamed}
        more = [blame for blame in later.blamed if blame.rank not in known]
        return replace(self, blamed=(*self.blamed, *more))

    @property
    def check(self) -> str:
        """The check whose call was due; empty where no check is known."""
        due = [blame.call for blame in self.blamed if blame.call is not None]
        return next((call.check for call in [*due, *self.entered.values()]), "")

    @property
    def sides(self) -> tuple[Side, ...]:
        """Each distinct call, and who entered it."""
        by_identity = _by_identity(self.entered)
        return tuple(
            Side(ranks=tuple(sorted(ranks)), entered=str(self.entered[ranks[0]])) for ranks in by_identity
        )


def first_divergence(tracks: Mapping[int, Track], checks: Sequence[str] = ()) -> Divergence | None:
    """The first place at which two ranks entered different calls, and who is to blame.

    Where they differ in what they passed alone, all go on in step: then whoever parts later is named too.

    Args:
        tracks: by rank.
        checks: the plan's checks in their order.
    """
    plan = _Plan(tracks, checks)
    found: Divergence | None = None
    for entered in _places(tracks):
        if len(_by_identity(entered)) > 1 and not _is_over(entered):
            here = _judged(entered, plan)
            found = here if found is None else found.beside(here)
            if not _is_in_step(entered):
                break
    return found


def by_digest(answers: Mapping[int, str]) -> Divergence:
    """A divergence of which nothing is kept but that the digests of all calls differ: in what is not known.

    Args:
        answers: rank -> digest of the calls that it had made by the end of a check.
    """
    sides: dict[str, list[int]] = defaultdict(list)
    for rank, digest in answers.items():
        sides[digest].append(rank)
    most = max(sides.values(), key=len)
    wrong = [rank for rank in answers if rank not in most] if 2 * len(most) > len(answers) else []
    got, expected = "made other calls than the other ranks; what is kept does not tell which", "the same"
    kind = "diverged"
    blamed = tuple(Blame(rank=rank, kind=kind, got=got, expected=expected) for rank in wrong)
    return Divergence(kind=kind, blamed=blamed, entered={})


def _places(tracks: Mapping[int, Track]) -> Iterable[dict[int, Call]]:
    """Rank -> call for each place of the program, in the order in which the first rank came to it."""
    places: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    for rank, track in tracks.items():
        for call in [*track.calls, *_end(track)]:
            places[call.place][rank] = call
    return sorted(places.values(), key=lambda entered: min(call.entered_ns for call in entered.values()))


def _end(track: Track) -> list[Call]:
    """That a rank is through with all checks, as a call: whoever is in a further one has parted from it."""
    if track.stage < Stage.REPORTED or not track.calls or not track.calls[-1].check:
        return []
    last = track.calls[-1]
    return [
        Call(
            place=(last.place[0], last.number + 1),
            check=last.check,
            repetition=sys.maxsize,
            site="",
            operation=_NOTHING,
            group="",
            signature=Signature(dtype="", shape=()),
            entered_ns=track.since_ns,
            left=True,
        )
    ]


def _is_over(entered: Mapping[int, Call]) -> bool:
    """Whether all have come out of what no plan forbids: two shapes of one size may be meant so."""
    return all(call.left and not call.check for call in entered.values())


def _is_in_step(entered: Mapping[int, Call]) -> bool:
    """Whether calls differ in nothing but what is passed."""
    return len({call.identity[:-1] for call in entered.values()}) == 1


def _by_identity(entered: Mapping[int, Call]) -> list[list[int]]:
    """Ranks that entered the same call together."""
    sides: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for rank, call in entered.items():
        sides[call.identity].append(rank)
    return list(sides.values())


class _Plan:
    """What is known of the order in which calls should be entered."""

    def __init__(self, tracks: Mapping[int, Track], checks: Sequence[str]) -> None:
        self.tracks = tracks
        self._checks = {check: number for number, check in enumerate(checks)}

    def repetition(self, call: Call) -> tuple[int, int] | None:
        """Sorts calls by check and repetition; None where the plan knows nothing of a call."""
        if call.check not in self._checks or not call.repetition:
            return None
        return self._checks[call.check], call.repetition

    def earliest(self, calls: Sequence[Call]) -> Call | None:
        """Of calls that ranks entered at one place the one that was due; None where the plan does not say."""
        keys = [self.repetition(call) for call in calls]
        known = [key for key in keys if key is not None]
        if not known or len(known) < len(keys):
            return None
        due = [call for call, key in zip(calls, keys, strict=True) if key == min(known)]
        if len({call.identity for call in due}) == 1:
            return due[0]
        return _first_of(due, self._order_before(due[0]))

    def due(self, entered: Mapping[int, Call]) -> Call | None:
        """Of what ranks entered at one place the call that was due; None where nothing tells.

        Most ranks know better than the order of the plan where one calls again what it has called before, and
        where it calls what nobody else does.
        """
        calls, most = list(entered.values()), _majority(entered)
        if any(self._is_repeated(rank, call) for rank, call in entered.items()):
            return most
        due = self.earliest(calls)
        if due is None:
            return most or _first_of(calls, _order_in_file(calls))  # the order of lines is but a guess
        others = [rank for rank, call in entered.items() if call.identity != due.identity]
        return due if most is None or self._is_known(due, others) else most

    def _is_repeated(self, rank: int, call: Call) -> bool:
        """Whether a rank has entered the same call before."""
        earlier = [one for one in self.tracks[rank].calls if one.number < call.number]
        return any(one.identity == call.identity for one in earlier)

    def _is_known(self, call: Call, ranks: Iterable[int]) -> bool:
        """Whether any of these ranks ever enters this line of a check."""
        calls = (one for rank in ranks for one in self.tracks[rank].calls)
        return any((one.check, *_line(one)) == (call.check, *_line(call)) for one in calls)

    def is_later(self, call: Call, than: Call) -> bool:
        """Whether a call comes after another by the plan, else by its line; False where neither says."""
        first = self.earliest([call, than]) or _first_of([call, than], _order_in_file([call, than]))
        return first is not None and first.identity == than.identity

    def _order_before(self, call: Call) -> dict[tuple[str, str], int]:
        """The order of calls within a repetition, as an earlier one of the same check shows it."""
        for track in self.tracks.values():
            earlier = [one for one in track.calls if one.check == call.check and one.number < call.number]
            shown = [one for one in earlier if one.repetition == call.repetition - 1]
            if shown:
                return {_line(one): place for place, one in enumerate(shown)}
        return {}


def _first_of(calls: Sequence[Call], order: Mapping[tuple[str, str], int]) -> Call | None:
    """The first of these calls in an order, if it holds all of them."""
    if not calls or not all(_line(call) in order for call in calls):
        return None
    return min(calls, key=lambda call: order[_line(call)])


def _order_in_file(calls: Sequence[Call]) -> dict[tuple[str, str], int]:
    """A guess for a first repetition: a check calls from the top to the bottom of its one file."""
    sites = {_line(call): call.site.rpartition(":") for call in calls}
    files, numbers = {file for file, _, _ in sites.values()}, [number for _, _, number in sites.values()]
    if not all(call.check for call in calls) or len(files) != 1 or not all(map(str.isdecimal, numbers)):
        return {}
    order = {line: int(number) for line, number in zip(sites, numbers, strict=True)}
    return order if len(set(numbers)) == len(numbers) else {}


def _line(call: Call) -> tuple[str, str]:
    return call.operation, call.site


def _judged(entered: Mapping[int, Call], plan: _Plan) -> Divergence:
    """Who is to blame at the place where ranks part."""
    wrong = {rank for rank, call in entered.items() if call.planned is not None}
    if len(wrong) == len(entered):  # the check itself passes something else there
        wrong.clear()
    expected = plan.due({rank: call for rank, call in entered.items() if rank not in wrong})
    blamed = []
    for rank, call in entered.items():
        if rank in wrong and (expected is None or _is_in_step({0: call, 1: expected})):
            blamed.append(off_plan(rank, call))
        elif expected is not None and call.identity != expected.identity:
            blamed.append(_out_of_order(rank, call, expected, plan))
    kind = blamed[0].kind if blamed else _kind(*_two_of(entered))
    return Divergence(kind=kind, blamed=tuple(blamed), entered=entered)


def _majority(entered: Mapping[int, Call]) -> Call | None:
    """What more than half of the ranks have entered."""
    sides = sorted(_by_identity(entered), key=len)
    if not sides or 2 * len(sides[-1]) <= len(entered):
        return None
    return entered[sides[-1][0]]


def _two_of(entered: Mapping[int, Call]) -> tuple[Call, Call]:
    """Two calls that differ."""
    first, second, *_ = _by_identity(entered)
    return entered[first[0]], entered[second[0]]


def off_plan(rank: int, call: Call) -> Blame:
    """Blame for a rank that passed something else than its own trial says."""
    due = call.as_planned
    kind = "mismatched-shape" if call.signature.shape != due.signature.shape else "mismatched-dtype"
    return Blame(rank=rank, kind=kind, got=f"entered {call}", expected=str(due), call=due)


def _out_of_order(rank: int, call: Call, expected: Call, plan: _Plan) -> Blame:
    """Blame for a rank that entered another call than the one that was due.

    One that went on to a call which comes later, and never entered the one that was due, has left that out.
    """
    left_out = all(one.identity != expected.identity for one in plan.tracks[rank].calls)
    kind = _kind(call, expected)
    if left_out and call.planned is None and plan.is_later(call, expected):
        kind = "never-entered"
    return Blame(rank=rank, kind=kind, got=f"entered {call}", expected=str(expected), call=expected)


def _kind(call: Call, expected: Call) -> str:
    """In what two calls differ: what they are, else their shapes, else their dtypes."""
    if call.identity[:-1] != expected.identity[:-1]:
        return "mismatched-operation"
    return "mismatched-shape" if call.signature.shape != expected.signature.shape else "mismatched-dtype"

"""Who is to blame for a generation that did not end by itself.

Reads what ranks recorded, how processes ended, what state they are in and where they stand; never which
fault was planted. In this order: ranks that entered another call than the others at one place; ranks that
are stopped; ranks that died of what no lost peer can do to a process; an exception that nothing explains
(which is no hang: its own text is the reason); ranks that have not entered what others have; ranks that are
inside of an operation and do not wait there for anybody. Independent faults are all named.

Nobody is named for waiting: not who stands in an operation whose peers lag behind or have gone on, not who
died after another. Where nothing tells one rank from the others, nobody is named at all.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from ..text import one_line
from ..worker.ledger import Stage
from . import deaths
from . import lone
from . import shown_stacks
from . import stacks
from .divergence import Divergence
from .divergence import by_digest
from .divergence import first_divergence
from .evidence import Blame
from .evidence import Evidence
from .hang import Culprit
from .hang import Hang
from .timeline import Call
from .timeline import Track

_LOST_PEER = re.compile(
    r"connection\b.*\b(closed|reset|refused|aborted)|closed by (the )?(remote )?peer|reset by peer"
    r"|broken pipe|socket|time[d ]*out|remote (process|error)|ncclremoteerror|network error",
    re.IGNORECASE,
)
"""What torch, gloo and NCCL say where a peer is gone or silent."""
_HELD = ("D", "Z")
"""Process states that no message of a peer ends: in the kernel or a driver, or no longer a process."""
_DOING = {
    Stage.FORKED: "at its start",
    Stage.DEVICE: "setting up its device",
    Stage.JOINING: "joining the others",
    Stage.AGREEING: "comparing plans",
    Stage.RUNNING: "running checks",
    Stage.REPORTED: "through with its checks",
    Stage.LEAVING: "closing its groups",
    Stage.LEFT: "at its end",
}
_DUE = {
    "never-joined": "to join the others",
    "stuck-in-init": "to get through joining the others",
    "stuck-in-teardown": "to close its groups and end",
}
"""What is expected of a rank that is late in a stage."""
_TEXT_SHOWN = 240
_SURELY_STILL_S = 0.25
"""A rank that has recorded nothing for this long inside of an operation stands there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Raise:
    """How a rank left by an exception."""

    in_torch: bool
    text: str

    def is_explained(self, *, by_divergence: bool) -> bool:
        """Whether it may come of what another rank did: torch says that a peer is lost, or out of step."""
        return self.in_torch and (by_divergence or _LOST_PEER.search(self.text) is not None)


def attribute(evidence: Evidence) -> Hang | None:
    """Name the culprits, or return None: nobody hung, died or diverged, at most somebody raised."""
    raised = _raised(evidence)
    divergence = _divergence(evidence)
    blamed = list(divergence.blamed) if divergence is not None else []
    blamed += _further(blamed, deaths.stopped(evidence))
    ours = _is_error_of_ours(evidence)
    explained = divergence is not None or bool(blamed) or ours
    blamed += _further(blamed, deaths.dead(evidence, explained=explained))
    if blamed and divergence is None:
        blamed += _further(blamed, lone.gone_wrong(evidence.tracks))
    unexplained = {
        rank: error.text
        for rank, error in raised.items()
        if not error.is_explained(by_divergence=divergence is not None)
    }
    if blamed or divergence is not None or (evidence.dead and not ours):
        kind = divergence.kind if divergence is not None else "process-died"
        blamed += _further(blamed, _surely_absent(evidence, raised))
        return _hang(evidence, kind, blamed, divergence=divergence, raised=unexplained)
    stuck = [rank for rank in evidence.stuck if rank in evidence.living and rank not in raised]
    if unexplained:
        beside = _surely_absent(evidence, raised)
        return _hang(evidence, beside[0].kind, beside, raised=unexplained) if beside else None
    if not stuck:
        return None
    kind, behind = _out_of_step(evidence, raised)
    if raised and not behind:
        return None  # nobody whom they could have lost: what they raised is all that is known
    return _hang(evidence, kind, behind)


def _divergence(evidence: Evidence) -> Divergence | None:
    """Where ranks part, by what they recorded; by the digests alone where the ring has gone round since."""
    generation = evidence.generation
    found = first_divergence(evidence.tracks, generation.spec.checks)
    if found is None and generation.diverged:
        return by_digest(generation.histories(generation.diverged))
    return found


def _is_error_of_ours(evidence: Evidence) -> bool:
    """Whether our own code failed in a rank: its peers may have died of that, and it is no hang."""
    generation = evidence.generation
    return any(trouble["kind"] == "ours" for trouble in generation.troubles.values()) or any(
        answer["bug"] for answer in generation.broken_answers()
    )


def _further(blamed: Sequence[Blame], more: Sequence[Blame]) -> list[Blame]:
    """Blame for ranks that are not blamed yet."""
    ranks = {blame.rank for blame in blamed}
    return [blame for blame in more if blame.rank not in ranks]


def _raised(evidence: Evidence) -> dict[int, _Raise]:
    """Ranks that left a check or a stage by an exception of their own."""
    generation = evidence.generation
    troubles = {
        rank: _Raise(in_torch=trouble["kind"] == "door", text=f"{trouble['type']}: {trouble['text']}")
        for rank, trouble in generation.troubles.items()
    }
    errors = {int(answer["rank"]): answer["error"] for answer in generation.broken_answers()}
    answers = {
        rank: _Raise(in_torch=_raised_in_torch(evidence, rank), text=f"{error['type']}: {error['text']}")
        for rank, error in errors.items()
    }
    return {rank: how for rank, how in {**troubles, **answers}.items() if rank not in evidence.disturbed}


def _raised_in_torch(evidence: Evidence, rank: int) -> bool:
    """Whether the last operation that a rank recorded ended by an exception."""
    calls = evidence.tracks[rank].calls
    return bool(calls) and bool(calls[-1].raised)


def _surely_absent(evidence: Evidence, raised: Collection[int]) -> list[Blame]:
    """Beside others that are to blame: ranks that by their own state and stack do not come either."""
    asleep = {rank: track for rank, track in evidence.living.items() if rank in evidence.asleep}
    return [
        _behind(evidence, _kind_of(track), rank)
        for rank, track in asleep.items()
        if rank not in raised and track.stage is Stage.RUNNING and _waits(evidence, rank) is False
    ]


def _out_of_step(evidence: Evidence, raised: Collection[int]) -> tuple[str, list[Blame]]:
    """The kind of a hang in which none died, and blame for those that are behind; [] if nobody is."""
    standing = {rank: track for rank, track in evidence.living.items() if rank not in raised}
    earliest = min(track.stage for track in standing.values())
    if Stage.RUNNING <= earliest < Stage.REPORTED:
        return _in_operations(evidence, standing)
    late = _latecomers(evidence, standing, earliest)
    blamed = [_behind(evidence, _kind_of(standing[rank]), rank) for rank in late]
    return _kind_of(min(standing.values(), key=lambda track: track.stage)), blamed


def _kind_of(track: Track) -> str:
    """What a rank that stands where it is, and does not wait there, is told as."""
    if track.stage is Stage.RUNNING:
        return "stuck-inside-backend" if track.open_calls else "never-entered"
    if track.stage < Stage.JOINING:
        return "never-joined"
    return "stuck-in-init" if track.stage < Stage.RUNNING else "stuck-in-teardown"


def _latecomers(evidence: Evidence, standing: Mapping[int, Track], earliest: Stage) -> list[int]:
    """Ranks in the earliest stage, if others have come further or ended well; else nobody is late.

    Of several there, those whose time is up, and of these those that do not wait for others by their stacks:
    the rest may wait for them. And whoever does not wait where the others do, in the same stage or a later.
    """
    through, tracks = _through(evidence, earliest), evidence.tracks
    first = [rank for rank, track in standing.items() if track.stage == earliest and rank not in through]
    if len(tracks) == 1:  # a rank alone waits for nobody else
        return first
    ahead = [rank for rank, track in tracks.items() if rank in through or track.stage > earliest]
    stuck = [rank for rank in first if rank in evidence.stuck] or first
    behind = [rank for rank in stuck if _waits(evidence, rank) is not True] or stuck
    late = [rank for rank in standing if evidence.is_waiting(rank) and rank in (*evidence.stuck, *first)]
    return sorted({*(behind if ahead else []), *_not_waiting(evidence, late)})


def _through(evidence: Evidence, stage: Stage) -> set[int]:
    """Ranks that are through with a stage: those that ended, and of those that must be let go who said so."""
    generation = evidence.generation
    waits = stage is Stage.REPORTED and not generation.released
    return {*generation.exits, *(generation.reported if waits else ())}


def _not_waiting(evidence: Evidence, ranks: Collection[int]) -> list[int]:
    """Those that by their stacks do not wait for others, if the others do."""
    # Ranks that compare plans wait for the others in code of ours: of them no stack tells.
    asked = [rank for rank in ranks if evidence.tracks[rank].stage is not Stage.AGREEING]
    waits = {rank: _waits(evidence, rank) for rank in asked}
    idle = [rank for rank, waiting in waits.items() if waiting is False]
    return idle if len(idle) < len(waits) or len(waits) == 1 else []


def _stands(evidence: Evidence, rank: int) -> bool:
    """Whether a rank stands still, past its budget or surely on its way to that."""
    return rank in evidence.stuck or evidence.still_s.get(rank, 0.0) >= _SURELY_STILL_S


def _waits(evidence: Evidence, rank: int) -> bool | None:
    """Whether a rank waits for others by its stack; None where that cannot be told."""
    return stacks.waits_for_peers(evidence.stacks.get(rank, ""), evidence.generation.torch_path)


def _in_operations(evidence: Evidence, standing: Mapping[int, Track]) -> tuple[str, list[Blame]]:
    """Ranks that all others wait for, if these wait at all; else ranks that do not wait where they are."""
    absent = _absent(evidence, standing)
    inside = [rank for rank, track in standing.items() if track.open_calls and _stands(evidence, rank)]
    stalled = _not_waiting(evidence, inside) or _held(evidence, standing)
    blamed = [_behind(evidence, "never-entered", rank) for rank in absent]
    blamed += [_behind(evidence, "stuck-inside-backend", rank) for rank in stalled]
    return "never-entered" if absent else "stuck-inside-backend", blamed


def _absent(evidence: Evidence, standing: Mapping[int, Track]) -> list[int]:
    """Ranks outside of any operation that have entered the fewest, fewer than others.

    Inside of operations unequal progress is normal: around a ring of exchanges every rank that stands
    further from the culprit has come further.
    """
    found: set[int] = set()
    for sequence in {call.place[0] for track in evidence.tracks.values() for call in track.calls}:
        members = [
            rank for rank in evidence.members.get(sequence, evidence.tracks) if rank in evidence.tracks
        ]
        most = max(evidence.tracks[rank].entered(sequence) for rank in members)
        last = _last(sequence, [rank for rank in members if rank in standing], standing)
        outside = [rank for rank in last if not standing[rank].open_calls]
        # Where none has gone on, only time tells: own code, after the last call of all, is not long.
        found.update(
            rank for rank in outside if standing[rank].entered(sequence) < most or rank in evidence.stuck
        )
    return sorted(found)


def _last(sequence: str, ranks: Collection[int], standing: Mapping[int, Track]) -> list[int]:
    """Of these ranks those that have entered the fewest calls of a sequence."""
    entered = {rank: standing[rank].entered(sequence) for rank in ranks}
    return [rank for rank, number in entered.items() if number == min(entered.values())]


def _held(evidence: Evidence, standing: Mapping[int, Track]) -> list[int]:
    """Of those inside that are last the ones that the kernel holds, if it holds none of the others."""
    last = [rank for rank in _last("", standing, standing) if standing[rank].open_calls]
    held = [rank for rank in last if evidence.states.get(rank) in _HELD]
    others = [evidence.states.get(rank) for rank in standing if rank not in held]
    return held if others and not any(state in _HELD for state in others) else []


def _behind(evidence: Evidence, kind: str, rank: int) -> Blame:
    """Blame for a rank that is behind: where it is, by the innermost frame of its main thread."""
    place = stacks.place(evidence.stacks.get(rank, ""), depth=1) or "an unknown place"
    state = f", process state {evidence.states[rank]}" if evidence.states.get(rank) in _HELD else ""
    got = f"is at {place}, {_DOING[evidence.tracks[rank].stage]}{state}"
    return Blame(rank=rank, kind=kind, got=got)


def _hang(
    evidence: Evidence,
    kind: str,
    blamed: Collection[Blame],
    *,
    divergence: Divergence | None = None,
    raised: Mapping[int, str] | None = None,
) -> Hang:
    ranks = sorted(blame.rank for blame in blamed)
    waiting = _waiting(evidence, ranks)
    told = raised or {}
    victims = {rank: how for rank, how in _victims(evidence).items() if rank in waiting and rank not in told}
    entered = _calls_of(evidence.tracks, waiting)
    due = next((blame.expected for blame in blamed if blame.call is not None), "to run")
    culprits = [_culprit(blame, evidence.tracks[blame.rank], entered, due) for blame in blamed]
    left = _raised(evidence)
    shown = shown_stacks.worth_showing(evidence, ranks, left)
    return Hang(
        check=_check_of(evidence, ranks, waiting, divergence),
        kind=culprits[0].kind if culprits else kind,
        culprits=tuple(sorted(culprits, key=lambda culprit: culprit.rank)),
        waiting_ranks=tuple(rank for rank in waiting if rank not in victims and rank not in told),
        victims=victims,
        out_of_memory=evidence.oom is not None and _is_any_killed(evidence, ranks),
        stacks=stacks.clustered(shown, whole=ranks),
        no_stacks=shown_stacks.missing(evidence, ranks, left, shown),
        seconds_to_verdict=_seconds_since(evidence, ranks or waiting),
        sides=divergence.sides if divergence is not None else (),
        raised=told,
    )


def _seconds_since(evidence: Evidence, ranks: Collection[int]) -> float:
    """Seconds since the last that these ranks, or all where none is given, recorded: the latest of them."""
    last_ns = [evidence.tracks[rank].last_ns for rank in ranks or evidence.tracks if rank in evidence.tracks]
    return (evidence.now_ns - max(last_ns, default=evidence.now_ns)) / 1e9


def _waiting(evidence: Evidence, culprits: Collection[int]) -> list[int]:
    """Ranks that are in an operation, or left one by an exception, or died after others: all had waited.

    Where nobody is named, also whoever stood still.
    """
    raised = [rank for rank, error in _raised(evidence).items() if error.in_torch]
    inside = [rank for rank in evidence.living if evidence.is_waiting(rank)]
    still = () if culprits else (rank for rank in evidence.stuck if rank in evidence.living)
    return sorted({*inside, *raised, *evidence.dead, *still}.difference(culprits))


def _victims(evidence: Evidence) -> dict[int, str]:
    """How those ended, or what torch raised in those, that can have lost a peer."""
    raised = {
        rank: one_line(error.text.partition("\n")[0], limit=_TEXT_SHOWN)
        for rank, error in _raised(evidence).items()
    }
    return {**raised, **{rank: deaths.how(evidence, rank) for rank in evidence.dead}}


def _is_any_killed(evidence: Evidence, ranks: Collection[int]) -> bool:
    exits = evidence.generation.exits
    return any(rank in exits and exits[rank].text == "SIGKILL" for rank in ranks)


def _calls_of(tracks: Mapping[int, Track], ranks: Collection[int]) -> list[Call]:
    """The calls that these ranks have entered, as far as was kept, in the order of entering."""
    return sorted((call for rank in ranks for call in tracks[rank].calls), key=lambda call: call.entered_ns)


def _culprit(blame: Blame, track: Track, entered: Sequence[Call], due: str) -> Culprit:
    """What is told of a rank; `due` is what others were to do, where nobody waits in a call of its."""
    call = blame.call or _expected(track, entered)
    return Culprit(
        rank=blame.rank,
        kind=blame.kind,
        operation=call.operation if call else "",
        group=call.group if call else "",
        site=call.site if call else "",
        expected=blame.expected or (str(call) if call else _DUE.get(blame.kind, due)),
        got=blame.got,
    )


def _expected(track: Track, entered: Sequence[Call]) -> Call | None:
    """The operation that a rank is in; outside of any, the next one that those who wait have entered."""
    if track.open_calls:
        return track.open_calls[0].as_planned
    missing = (call.as_planned for call in entered if call.number > track.entered(call.place[0]))
    return next(missing, None)


def _check_of(
    evidence: Evidence, culprits: Collection[int], waiting: Collection[int], divergence: Divergence | None
) -> str | None:
    """The check in which it happened: of the calls that part, else of the newest that any of them entered."""
    if divergence is not None:
        return divergence.check or evidence.generation.diverged or None
    running = [rank for rank in culprits if evidence.tracks[rank].stage is Stage.RUNNING]
    if running and evidence.tracks[running[0]].calls:
        return _unanswered(evidence, running[0])
    tracks = [evidence.tracks[rank] for rank in (*culprits, *waiting)]
    calls = [track.calls[-1] for track in tracks if track.stage is Stage.RUNNING and track.calls]
    newest = max(calls, key=lambda call: call.entered_ns, default=None)
    return newest.check or None if newest else None


def _unanswered(evidence: Evidence, rank: int) -> str | None:
    """The first check that a rank has not answered unharmed: the one that it is in, or that it broke off."""
    answers = evidence.generation.answers
    for check in evidence.generation.spec.checks:
        answer = answers.get(check, {}).get(rank)
        if answer is None or answer["broken"]:
            return check
    return None

"""From a proof with a planted fault to the self-test's rows: was it noticed, and blamed right? Pure."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Literal

from ..outcome import BUG_REMEDY
from ..outcome import CheckResult
from ..outcome import Finding
from ..outcome import Outcome
from ..outcome import Severity
from ..worker.injection import DATA_TWINS
from .contract import Proof
from .expectations import EXPECTED
from .expectations import Expectation
from .expectations import Told
from .findings import BUG

_OF_PLANTING = frozenset({"fault-not-fired", "fault-not-caught"})
"""Findings about the fault itself: its row says them too."""
_NO_VERDICT = frozenset({BUG, "device-trouble"})
"""Findings of what befell ranks outside of checks and says nothing of how faults are told."""
_INJECTED = "InjectedError"
"""Type of what the twin `raise` raises, which is no error of ours, whatever it is taken for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What became of one twin on one check."""

    twin: str
    check: str | None
    """None: it acts outside of any check."""
    fault: str
    """As `--inject` spells it; empty where it was not planted."""
    fired: bool
    detected: bool
    culprit_right: bool | None
    """Whether its rank was blamed, and no other; None for a fault that has none."""
    kind_right: bool | None
    """Whether it was told as what it is; None for a fault in data, of which no kind is told."""
    seconds: float | None
    """From the fault to the word on it; None where there was either not."""
    not_applicable: str
    """Why it cannot act on this check; empty where it was planted."""
    expected: Told | None
    """None where it was not planted."""
    got: Told | None
    untold: str = ""
    """Why nothing is known of whether it would be told: an error of ours, a device that failed, ranks that
    could not start; empty where that is known."""

    @property
    def status(self) -> Literal["right", "missed", "unknown", "n/a"]:
        """In a word, as the report has it."""
        if self.not_applicable:
            return "n/a"
        if self.right:
            return "right"
        return "unknown" if self.untold else "missed"

    @property
    def right(self) -> bool:
        """Whether it acted, and all was told as it must be."""
        planted = not self.not_applicable
        return planted and self.fired and self.detected and False not in (self.culprit_right, self.kind_right)

    @property
    def missed(self) -> bool:
        """Whether it was planted, and what was told of it is amiss."""
        return self.status == "missed"

    def facts(self) -> dict[str, Any]:
        """For an event: what was told in words alone."""
        told = {name: one.text for name in ("expected", "got") if (one := getattr(self, name)) is not None}
        return {**asdict(self), **told, "right": self.right, "status": self.status}


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """The run without a fault."""

    outcomes: dict[str, str]
    """By check."""
    seconds: float
    """Of the checks, on the slowest rank."""
    false_alarms: list[str]
    """What was told though there was no fault and every check passed."""
    unpassed: dict[str, str] = field(default_factory=dict)
    """Outcome and reason by check, of those that ran and did not pass: no fault can be planted on them."""
    beside: list[str] = field(default_factory=list)
    """What else was told where checks did not pass: then it cannot be told from what ails the machine."""
    troubles: list[Finding] = field(default_factory=list)
    """What blocks and is no alarm: an error of ours, a device that failed, torch that raised at the end."""

    @property
    def clean(self) -> bool:
        """Whether every check passed that ran, and nothing else was told."""
        return not (self.false_alarms or self.unpassed or self.troubles)

    def facts(self) -> dict[str, Any]:
        """For an event."""
        return {
            "checks": len(self.outcomes),
            "seconds": self.seconds,
            "false_alarms": self.false_alarms,
            "unpassed": list(self.unpassed),
        }


def control_of(proof: Proof, known: Collection[Finding]) -> Control:
    """Judge the run without a fault.

    A word is a false alarm only where every check passed: a hang, a late rank, another warning. A check that
    fails or hangs without a fault is none, as a sick machine does the same and nothing tells them apart: of
    detection nothing is known there.

    Args:
        proof: that run.
        known: what was noticed of the interpreter, which is no alarm about ranks.
    """
    may = (Outcome.PASS, Outcome.SKIP)
    results = proof.results.values()
    unpassed = {one.id: f"{one.outcome.value}: {one.reason}" for one in results if one.outcome not in may}
    told = [hang.sentence() for hang in proof.hangs]
    told += [f"{one.id}: {one.got}" for one in _alarming(proof, known)]
    return Control(
        outcomes={one.id: one.outcome.value for one in results},
        seconds=round(sum(one.seconds for one in results), 4),
        false_alarms=[] if unpassed else [f"without a fault: {alarm}" for alarm in told],
        unpassed=unpassed,
        beside=[word for word in dict.fromkeys(told) if unpassed and not _is_in(word, unpassed.values())],
        troubles=troubles(proof, known),
    )


def _is_in(word: str, texts: Collection[str]) -> bool:
    return any(word in text for text in texts)


def troubles(proof: Proof, known: Collection[Finding]) -> list[Finding]:
    """What blocks and was told of ranks, beside a fault or without: it keeps a self-test from being whole.

    Args:
        proof: one of the self-test.
        known: what was noticed of the interpreter, and is told anyway.
    """
    found = [one for one in proof.findings if one not in known and one.id not in _OF_PLANTING]
    return [one for one in found if one.severity is Severity.BLOCKING]


def _alarming(proof: Proof, known: Collection[Finding]) -> list[Finding]:
    """Findings that must not be there where nothing does what they tell: those that do not block."""
    return [one for one in proof.findings if one not in known and one.severity is not Severity.BLOCKING]


def false_alarms(twin: str, proof: Proof, known: Collection[Finding]) -> list[str]:
    """What was told beside a planted fault that does not do it.

    Hangs where it changes data alone, and warnings: of hangs its row says whether they are right. What
    blocks is no word on a fault, and among the `troubles`.

    Args:
        twin: the name of the fault.
        proof: the one in which it was planted.
        known: what was noticed of the interpreter, which is no alarm about ranks.
    """
    hangs = [hang.sentence() for hang in proof.hangs] if twin in DATA_TWINS else []
    due = {*_OF_PLANTING, "slow"} if EXPECTED[twin].slow else _OF_PLANTING
    found = [f"{one.id}: {one.got}" for one in _alarming(proof, known) if one.id not in due]
    return [f"{twin}: {alarm}" for alarm in [*hangs, *found]]


def not_applicable(twin: str, check: str | None, reason: str) -> Row:
    """The row of a twin that was not planted."""
    return Row(
        twin=twin,
        check=check,
        fault="",
        fired=False,
        detected=False,
        culprit_right=None,
        kind_right=None,
        seconds=None,
        not_applicable=reason,
        expected=None,
        got=None,
    )


def rows_of(
    twin: str, fault: str, proof: Proof, *, checks: Sequence[str | None], rank: int | None
) -> list[Row]:
    """One row for each check.

    Args:
        twin: the name of the fault.
        fault: as `--inject` spells it.
        proof: the one in which it was planted.
        checks: those on which it was to act; None: outside of any.
        rank: the one on which it acts; None for a data twin.
    """
    return [_row(twin, fault, proof, check, rank) for check in checks]


def _row(twin: str, fault: str, proof: Proof, check: str | None, rank: int | None) -> Row:
    expected = EXPECTED[twin]
    return Row(
        twin=twin,
        check=check,
        fault=fault,
        fired=(check or "") in proof.fired.get(fault, {}),
        detected=_is_detected(twin, proof, check),
        culprit_right=None if rank is None else _blamed(expected, proof, check) == {rank},
        kind_right=None if twin in DATA_TWINS else _is_kind_right(expected, proof, check),
        seconds=_seconds(fault, proof, check),
        not_applicable="",
        expected=expected.told(rank, check),
        got=_got(proof, check),
        untold=_untold(fault, proof, check),
    )


def _untold(fault: str, proof: Proof, check: str | None) -> str:
    """Why nothing is known of whether a fault would be told, if it was not; empty where that is known."""
    results = [result for name, result in proof.results.items() if check in (None, name)]
    unborn = fault not in proof.fired and not proof.hangs
    unborn = unborn and not any(result.ranks for result in proof.results.values())
    reasons = [result.reason for result in results if unborn or _is_of_an_error(result)]
    reasons += [f"{one.what}: {one.got}" for one in proof.findings if one.id in _NO_VERDICT]
    return reasons[0] if reasons else ""


def _is_of_an_error(result: CheckResult) -> bool:
    """Whether a check could not be judged for an exception of ours, or for one of a device."""
    errors = [error for error in result.evidence.get("errors", ()) if error.get("type") != _INJECTED]
    return result.outcome is Outcome.UNKNOWN and (bool(errors) or result.remedy == BUG_REMEDY)


def _is_detected(twin: str, proof: Proof, check: str | None) -> bool:
    """Whether anything was told of it, right or wrong; a fault in data makes nobody hang."""
    if twin in DATA_TWINS:
        return not proof.hangs and _outcomes(proof, check) == {Outcome.FAIL}
    if EXPECTED[twin].slow:
        return bool(proof.slows or proof.hangs)
    return bool(proof.hangs) or Outcome.FAIL in _outcomes(proof, check)


def _is_kind_right(expected: Expectation, proof: Proof, check: str | None) -> bool:
    """Whether outcome, hang and slowness are as expected, both in this check, and nothing else was told."""
    told = [(kind, hang.check) for hang in proof.hangs for kind in hang.kinds]
    told += [("slow", slow.check) for slow in proof.slows]
    due = {(expected.kind, check)} if expected.kind is not None else set()
    return _outcomes(proof, check) == {expected.outcome} and set(told) == due and len(proof.hangs) <= 1


def _outcomes(proof: Proof, check: str | None) -> set[Outcome]:
    """Of the check; outside of any, of all."""
    return {result.outcome for name, result in proof.results.items() if check in (None, name)}


def _blamed(expected: Expectation, proof: Proof, check: str | None) -> set[int]:
    """The ranks that were named."""
    if expected.slow:
        return {slow.rank for slow in proof.slows}
    if expected.names_rank:
        return _raised(proof, check)
    return {rank for hang in proof.hangs for rank in hang.culprit_ranks}


def _raised(proof: Proof, check: str | None) -> set[int]:
    """The ranks that raised in a check."""
    result = proof.results.get(check or "")
    errors = result.evidence.get("errors", ()) if result is not None else ()
    return {rank for error in errors for rank in error["ranks"]}


def _seconds(fault: str, proof: Proof, check: str | None) -> float | None:
    """From the fault to the word on it."""
    fired_at = proof.fired.get(fault, {}).get(check or "")
    told_at = proof.told_at_s.get(check or "")
    if fired_at is None or told_at is None:
        return None
    return round(max(0.0, told_at - fired_at), 3)


def _got(proof: Proof, check: str | None) -> Told:
    """What was told."""
    kinds = [kind for hang in proof.hangs for kind in hang.kinds] or ["slow" for _ in proof.slows]
    ranks = {rank for hang in proof.hangs for rank in hang.culprit_ranks}
    ranks = ranks or {slow.rank for slow in proof.slows} or _raised(proof, check)
    result = proof.results.get(check or "")
    return Told(
        outcome=result.outcome.value if result is not None else None,
        kind=kinds[0] if kinds else None,
        ranks=tuple(sorted(ranks)),
        text=_words(proof, check),
    )


def _words(proof: Proof, check: str | None) -> str:
    told = [hang.sentence() for hang in proof.hangs] or ["no hang"]
    told += [f"rank {slow.rank} slow by {slow.late_s:.2f} s" for slow in proof.slows]
    for name, result in proof.results.items():
        if check in (None, name):
            reason = f" ({result.reason})" if result.reason and not proof.hangs else ""
            told.append(f"{name} {result.outcome.value}{reason}")
    return ", ".join(told)

"""From the ranks' answers to one result a check."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from ..outcome import BUG_REMEDY
from ..outcome import CheckResult
from ..outcome import Outcome
from ..text import ranks_text
from ..worker.channel import Message
from ..worker.exceptions import DEVICE_REMEDY
from .catalogue import CheckInfo
from .contract import Proof
from .generation import Answer
from .generation import Generation
from .hang import Hang

RERUN_REMEDY = "run it again by itself: cpinfra prove --only {check}"
RAISED_REMEDY = "read the traceback in the check's evidence.errors in the report; it is in the rank's log too"

_TROUBLE_REMEDIES = {
    "door": RAISED_REMEDY,
    "device": DEVICE_REMEDY,
    "ours": BUG_REMEDY,
}
_SHARED = ("absent", "dtypes", "shapes", "forms", "repetitions", "trials")
"""Evidence that must be the same on all ranks."""
_SUMMED = ("comparisons", "elements", "bytes_moved")


def result_of(check: CheckInfo, run: str, generation: Generation, hang: Hang | None) -> CheckResult:
    """Judge one check by what every rank of the world answered, and by what ended the generation."""
    answers = generation.answers.get(check.id, {})
    outcome, reason, remedy = _judged(check, generation, hang)
    return CheckResult(
        id=check.id,
        tier=check.tier,
        run=run,
        outcome=outcome,
        reason=reason,
        remedy=remedy,
        ranks=tuple(sorted(answers)),
        seconds=round(max((answer["seconds"] for answer in answers.values()), default=0.0), 4),
        evidence=_evidence(answers, generation, hang if hang and hang.check == check.id else None),
    )


def unknown(check: CheckInfo, run: str, reason: str, remedy: str) -> CheckResult:
    """The result of a check that could not be run to its end."""
    return CheckResult(
        id=check.id, tier=check.tier, run=run, outcome=Outcome.UNKNOWN, reason=reason, remedy=remedy
    )


def why_not_run(proof: Proof, stillborn: str) -> tuple[str, str]:
    """(reason, remedy) of checks that did not run; `stillborn`: how ranks failed to start, if they did."""
    if proof.interrupted:
        return f"not run: interrupted by {proof.interrupted}", "run it again"
    if proof.obstacle is not None:
        return f"not run: {proof.obstacle.what}", proof.obstacle.remedy
    reason = f"not run: the ranks could not start: {stillborn or 'for no reason that was told'}"
    return reason, "mend that first; then run it again"


def troubled(check: CheckInfo, run: str, troubles: Mapping[int, Message]) -> CheckResult:
    """The result of a check before which ranks raised: while they joined, say, or compared plans."""
    in_door = _of_kind(troubles, "door")
    told = in_door or _of_kind(troubles, "device") or troubles
    return CheckResult(
        id=check.id,
        tier=check.tier,
        run=run,
        outcome=Outcome.FAIL if in_door else Outcome.UNKNOWN,
        reason=_grouped(_trouble_texts(told).items()),
        remedy=_TROUBLE_REMEDIES[next(iter(told.values()))["kind"]],
        evidence={"errors": _trouble_errors(told)},
    )


def _of_kind(troubles: Mapping[int, Message], kind: str) -> dict[int, Message]:
    return {rank: trouble for rank, trouble in troubles.items() if trouble["kind"] == kind}


def _trouble_texts(troubles: Mapping[int, Message]) -> dict[int, str]:
    return {rank: f"{trouble['type']}: {trouble['text']}" for rank, trouble in troubles.items()}


def _trouble_errors(troubles: Mapping[int, Message]) -> list[dict[str, Any]]:
    """Each distinct traceback once, with its ranks; a rank that ended by an error of ours brings none."""
    seen: dict[str, dict[str, Any]] = {}
    for rank, trouble in sorted(troubles.items()):
        error: dict[str, Any] = {
            key: trouble[key] for key in ("kind", "type", "text", "traceback") if key in trouble
        }
        key = trouble.get("traceback") or f"{trouble['type']}: {trouble['text']}"
        seen.setdefault(key, {**error, "ranks": []})["ranks"].append(rank)
    return list(seen.values())


def _judged(check: CheckInfo, generation: Generation, hang: Hang | None) -> tuple[Outcome, str, str]:
    """(outcome, reason, remedy), by precedence: a hang or death, a contradiction, our own bug, a gap."""
    if hang is not None and hang.check == check.id:
        return Outcome.FAIL, hang.sentence(), hang.remedy
    answers = generation.answers.get(check.id, {})
    bugs = _bugs(answers, generation.troubles)
    failed = _with(answers, Outcome.FAIL)
    if bugs:  # who raised in an operation then may have lost a peer to our error; wrong data stays wrong
        failed = {rank: answer for rank, answer in failed.items() if not answer["broken"]}
    if failed:
        return Outcome.FAIL, _reasons(failed), failed[min(failed)]["remedy"]
    if bugs:
        return Outcome.UNKNOWN, _grouped(bugs.items()), BUG_REMEDY
    rerun = RERUN_REMEDY.format(check=check.id)
    missing = [rank for rank in range(generation.world) if rank not in answers]
    if missing:
        return Outcome.UNKNOWN, f"no answer from {ranks_text(missing)} of {generation.world}", rerun
    return _unanimous(answers, rerun)


def _unanimous(answers: Mapping[int, Answer], rerun: str) -> tuple[Outcome, str, str]:
    """All ranks answered and none complained: they must have tested the same things."""
    if len({answer["outcome"] for answer in answers.values()}) > 1:
        said = {
            rank: ": ".join(filter(None, (answer["outcome"], answer["reason"])))
            for rank, answer in answers.items()
        }
        return Outcome.UNKNOWN, f"ranks disagree on outcome: {_grouped(said.items())}", rerun
    for fact in _SHARED:
        told = {rank: _told(answer["evidence"][fact]) for rank, answer in answers.items()}
        if len(set(told.values())) > 1:
            return Outcome.UNKNOWN, f"ranks disagree on {fact}: {_grouped(told.items())}", rerun
    outcome = Outcome(answers[0]["outcome"])
    if outcome is Outcome.PASS:
        return outcome, "", ""
    return outcome, _reasons(answers), answers[0]["remedy"] or rerun


def _bugs(answers: Mapping[int, Answer], troubles: Mapping[int, Message]) -> dict[int, str]:
    """Errors of our own code, by rank."""
    ours = _of_kind(troubles, "ours")
    return {rank: answer["reason"] for rank, answer in answers.items() if answer["bug"]} | _trouble_texts(
        ours
    )


def _with(answers: Mapping[int, Answer], outcome: Outcome) -> dict[int, Answer]:
    return {rank: answer for rank, answer in answers.items() if answer["outcome"] == outcome.value}


def _told(fact: Any) -> str:
    """One piece of evidence as text; of what is absent only the names: torch's words hold ports."""
    if not isinstance(fact, (list, Mapping)):
        return str(fact)
    return ", ".join(map(str, sorted(fact) if isinstance(fact, Mapping) else fact)) or "none"


def _reasons(answers: Mapping[int, Answer]) -> str:
    return _grouped((rank, answer["reason"]) for rank, answer in answers.items())


def _grouped(told: Iterable[tuple[int, str]]) -> str:
    """Each distinct text once, with the ranks that gave it."""
    by_text: dict[str, list[int]] = defaultdict(list)
    for rank, text in sorted(told):
        by_text[text].append(rank)
    return "; ".join(f"{ranks_text(ranks)}: {text}" for text, ranks in by_text.items())


def _evidence(answers: Mapping[int, Answer], generation: Generation, hang: Hang | None) -> dict[str, Any]:
    """What was tested: shared facts once, counts summed over the ranks."""
    told = {"hang": hang.as_json()} if hang else {}
    if not answers:
        return told
    first: dict[str, Any] = dict(answers[min(answers)]["evidence"])
    sums = {key: sum(answer["evidence"][key] for answer in answers.values()) for key in _SUMMED}
    spec = generation.spec
    tested = {"world_size": spec.world, "device": spec.device, "backend": spec.backend}
    if spec.gpu_uuids:
        tested["gpu_uuids"] = [spec.gpu_uuids[rank % len(spec.gpu_uuids)] for rank in range(spec.world)]
    errors = _errors(answers.values())
    return {
        **tested,
        **first,
        **sums,
        "generation": spec.generation,
        **({"errors": errors} if errors else {}),
        **told,
    }


def _errors(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """Each distinct traceback once."""
    seen: dict[str, dict[str, Any]] = {}
    for answer in sorted(answers, key=lambda answer: int(answer["rank"])):
        if answer["error"]:
            error = seen.setdefault(answer["error"]["traceback"], {**answer["error"], "ranks": []})
            error["ranks"].append(answer["rank"])
    return list(seen.values())

"""What a person is told: events while ranks run, and what a verdict means. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from ..text import one_line

_REASON_LIMIT = 400
_BRIEF = 120
"""Of a reason in the timeline; the summary says more and the report all."""


def line_of(event: Mapping[str, Any]) -> str:
    """One event as one line: its time and a sentence."""
    seconds = event.get("t")
    time = f"{seconds:9.3f} s" if isinstance(seconds, int | float) else " " * 11
    return f"{time}  {sentence(event)}"


def sentence(event: Mapping[str, Any]) -> str:
    """One event in words, on one line; an event that is not known shows all that it holds."""
    words = {key: word(value) for key, value in event.items()}
    say = _SENTENCES.get(words.get("event", ""))
    try:
        if say is not None:
            return say(words)
    except KeyError:
        pass  # an event with other facts than expected is shown as it is
    facts = [f"{key}={value}" for key, value in words.items() if key not in ("t", "event")]
    return " ".join([words.get("event", "event"), *facts])


def worth_a_line(event: Mapping[str, Any]) -> bool:
    """Whether an event tells a person anything: ranks that end as they should, by the dozen, do not."""
    name = event.get("event")
    if name == "exited":
        return event.get("code") != 0 and not event.get("by_us")
    if name == "kernels":
        return bool(event.get("gpus", True))
    if name == "imported":
        return bool(event.get("modules", True))
    return name != "end" or bool(event.get("processes_left", True))


def word(value: Any) -> str:
    """One fact of an event, on one line."""
    if isinstance(value, float):
        return f"{value:.3f}"
    shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return one_line(shown, limit=_REASON_LIMIT)


def _check(words: Mapping[str, str]) -> str:
    reason = f": {one_line(words['reason'], limit=_BRIEF)}" if words.get("reason") else ""
    return f"{words['id']} {words['outcome']}{reason} ({numbers(words)})"


def _exited(words: Mapping[str, str]) -> str:
    how = words["signal"] if words["signal"] != "None" else f"exit code {words['code']}"
    return f"rank {words['rank']} ended by {how}"


def _fired(words: Mapping[str, str]) -> str:
    """A fault in data, whose text names no rank, acts on each; only the first is told."""
    acts = "acts" if ":" in words["fault"] else "first acts"
    return f"planted fault {words['fault']} {acts} on rank {words['rank']}"


def _control(words: Mapping[str, str]) -> str:
    told = f": FALSE ALARM: {words['false_alarms']}" if words["false_alarms"] else " passed"
    if words.get("unpassed"):
        told = f": these do not pass: {words['unpassed']}"
    return f"without a fault {words['checks']} check(s){told} ({words['seconds']} s)"


def _twin(words: Mapping[str, str]) -> str:
    where = "" if words["check"] == "None" else f" in {words['check']}"
    if words["right"] == "True":
        return f"{words['fault']}{where}: right, {words['seconds']} s after it"
    if words.get("status") == "unknown":
        return f"{words['fault']}{where}: could not be told: {one_line(words['untold'], limit=_BRIEF)}"
    expected = one_line(words["expected"], limit=_BRIEF)
    acted = "" if words["fired"] == "True" else "it did not act; "
    return f"{words['fault']}{where}: MISSED: {acted}expected {expected}"


_SENTENCES: dict[str, Callable[[Mapping[str, str]], str]] = {
    "start": "starting {python} for {world_size} rank(s) on {device}".format_map,
    "software": "torch {torch} is imported (Python {python_version}, {seconds} s)".format_map,
    "forked": "generation {generation} of ranks is forked ({seconds} s)".format_map,
    "kernels": "kernels ran right on {right} of {gpus} GPU(s) ({seconds} s)".format_map,
    "imported": "imported {modules} ({seconds} s)".format_map,
    "fired": _fired,
    "exited": _exited,
    "check": _check,
    "hang": "{sentence}".format_map,
    "slow": "rank {rank} came {late_s} s late to {operation} in {check}; others waited".format_map,
    "control": _control,
    "twin": _twin,
    "interrupted": "interrupted by {signal}: ending all that runs".format_map,
    "models": "waiting for the import of {waiting}".format_map,
    "end": "these processes do not die: {processes_left}".format_map,
}


def numbers(words: Mapping[str, str]) -> str:
    """How long a check took, and how much it compared."""
    return f"{words.get('seconds', 'unknown')} s, {words.get('comparisons', 'unknown')} comparisons"

"""What arrived instead: names the difference between what a rank got and what it should have got."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .oracle import bits
from .oracle import blank
from .oracle import coordinates
from .oracle import same

_NAMED_PARTS = 6
_DETAILED_PARTS = 2
_MOST_SHIFT = 8
# A hash of 251 values can agree by chance; on this many wrong elements it does not.
_DECISIVE_ELEMENTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One piece of a result that is judged by itself: a slot, a tile, a message, or the whole."""

    name: str
    """`slot 2`"""
    belongs: str
    """What belongs there, in the words of the candidates: `the chunk of rank 2`."""
    got: Tensor
    expected: Tensor
    others: Callable[[], Iterable[tuple[str, Tensor]]]
    """What else could have arrived there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cause:
    """What a wrong part turned out to hold."""

    phrase: str
    """`holds the chunk of rank 1`; empty where nothing explains it."""
    label: str = ""
    """The candidate's own name."""


def explain(parts: Iterable[Part], describe: Callable[[float], str] = str) -> str:
    """One line that names the wrong parts, what they hold, and the first wrong element of the first two.

    From the seventh wrong part on only their number is told.

    Args:
        parts: the pieces of one result; those that are right are passed over.
        describe: reads a single element (`Pattern.describe`).
    """
    wrong = [part for part in parts if not same(part.got, part.expected)]
    named = [(part, _cause(part)) for part in wrong[:_NAMED_PARTS]]
    sentences = [
        _sentence(part, cause, describe, detailed=place < _DETAILED_PARTS)
        for place, (part, cause) in enumerate(named)
    ]
    sentences += _exchanges(named)
    if len(wrong) > len(named):
        sentences.append(f"{len(wrong) - len(named)} more are wrong, up to {wrong[-1].name}")
    return "; ".join(sentences)


def _sentence(part: Part, cause: _Cause, describe: Callable[[float], str], *, detailed: bool) -> str:
    if part.got.dtype != part.expected.dtype:
        return f"{part.name}: dtype {part.got.dtype} instead of {part.expected.dtype}"
    if part.got.shape != part.expected.shape:
        return f"{part.name}: shape {tuple(part.got.shape)} instead of {tuple(part.expected.shape)}"
    wrong = _wrong(part).nonzero()
    head = f"{part.name} {cause.phrase or 'differs'} ({len(wrong)} of {part.got.numel()} elements wrong"
    if not detailed:
        return f"{head})"
    first = int(wrong[0])
    where = first if part.got.dim() <= 1 else coordinates(first, part.got.shape)
    expected, got = _value(part.expected, first, describe), _value(part.got, first, describe)
    return f"{head}; element {where}: expected {expected}; got {got})"


def _value(tensor: Tensor, index: int, describe: Callable[[float], str]) -> str:
    element = tensor.flatten()[index : index + 1]
    if same(element, _untouched(element)):
        return f"{element.item()} (never written)"
    return describe(element.item())


def _exchanges(named: Sequence[tuple[Part, _Cause]]) -> list[str]:
    """Pairs of parts that each hold what belongs to the other."""
    return [
        f"{one.name} and {other.name} are exchanged"
        for place, (one, found) in enumerate(named)
        for other, found_there in named[place + 1 :]
        if found.label and found.label == other.belongs and found_there.label == one.belongs
    ]


def _cause(part: Part) -> _Cause:
    """The first explanation that fits the whole part, else one that fits all its wrong elements."""
    if part.got.dtype != part.expected.dtype or part.got.shape != part.expected.shape:
        return _Cause(phrase="")
    for label, candidate in part.others():
        if same(part.got, candidate):
            return _Cause(phrase=f"holds {label}", label=label)
    for phrase in _of_itself(part.got.flatten(), part.expected.flatten()):
        return _Cause(phrase=phrase)
    return _cause_in_part(part)


def _of_itself(got: Tensor, expected: Tensor) -> Iterator[str]:
    """Explanations by the right data in the wrong place, and by one flipped bit."""
    if same(got, _untouched(got)):
        yield "was never written"
    if same(got, expected.flip(0)):
        yield "is reversed"
    if same(got, expected[:1].expand_as(got).contiguous()):
        yield "holds its first element everywhere"
    if not bits(got).any():
        yield "holds zeros"
    for shift in range(1, min(_MOST_SHIFT, len(got) // 2) + 1):
        if same(got[shift:], expected[:-shift]):
            yield f"is shifted by {shift} towards its end"
        if same(got[:-shift], expected[shift:]):
            yield f"is shifted by {shift} towards its beginning"
    flipped = (bits(got) ^ bits(expected)).nonzero()
    if len(flipped) == 1 and _is_one_bit(got, expected, int(flipped[0])):
        yield f"differs in one bit, at index {int(flipped[0])}"


def _is_one_bit(got: Tensor, expected: Tensor, index: int) -> bool:
    difference = int(bits(got)[index]) ^ int(bits(expected)[index])
    width = 8 * got.element_size()
    return (difference % (1 << width)).bit_count() == 1


def _cause_in_part(part: Part) -> _Cause:
    """What the wrong elements hold, where the others are right."""
    wrong = _wrong(part)
    got = part.got.flatten()[wrong]
    if same(got, _untouched(got)):
        return _Cause(phrase="was never written there")
    if len(got) < _DECISIVE_ELEMENTS:
        return _Cause(phrase="")
    for label, candidate in part.others():
        if candidate.shape == part.got.shape and same(got, candidate.flatten()[wrong]):
            return _Cause(phrase=f"holds {label} there")
    return _Cause(phrase="")


def _wrong(part: Part) -> Tensor:
    """Which elements wrong, flat."""
    return bits(part.got.flatten()) != bits(part.expected.flatten())


def _untouched(like: Tensor) -> Tensor:
    return blank(like.shape, like.dtype, torch.device("cpu"))

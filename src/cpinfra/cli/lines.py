"""Lines for people: in styled spans, broken between words where there is no room for them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass

from .output import Output

COLUMNS = 100
"""Off a terminal."""
_LEAST = 60
_USUAL = 80
"""Of a terminal that does not say how wide it is."""
_WORD = re.compile(r"\s*\S+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line, in spans of (text, style)."""

    spans: tuple[tuple[str, str], ...]
    hang: int | None = None
    """Columns by which the rest is indented where it is broken. None: it never is, as it stands in a table or
    is what a person copies, a path or a command."""

    @property
    def text(self) -> str:
        """The line without its styles."""
        return "".join(text for text, _ in self.spans).rstrip()


def styled(*spans: str | tuple[str, str], hang: int | None = None) -> Line:
    """One line of texts, each with its style or without."""
    return Line(spans=tuple((span, "") if isinstance(span, str) else span for span in spans), hang=hang)


def columns(output: Output) -> int:
    """How wide a line may be: as wide as the terminal, 60 at least; 100 where there is none."""
    if not output.isatty():
        return COLUMNS
    try:
        found = os.get_terminal_size(output.fileno()).columns
    except (OSError, ValueError):
        found = 0
    return max(_LEAST, found or _USUAL)


def wrapped(lines: Sequence[Line], width: int) -> list[Line]:
    """The lines, and those in several that are wider. No word is broken: a longer one stands out."""
    return [part for line in lines for part in _parts(line, width)]


def _parts(line: Line, width: int) -> Iterator[Line]:
    if line.hang is None:
        yield line
        return
    for start, end in _cuts(line.text, width, line.hang):
        indent = (" " * line.hang, "") if start else ("", "")
        yield Line(spans=(indent, *_between(line, start, end)))


def _cuts(text: str, width: int, hang: int) -> Iterator[tuple[int, int]]:
    """Where each part begins and ends."""
    start, end = 0, 0
    for word in _WORD.finditer(text):
        indent = hang if start else 0
        # What stands within the indent is the name of a paragraph: its first word is not torn from it.
        if indent + word.end() - start > width and end > max(start, hang):
            yield start, end
            start = word.end() - len(word[0].lstrip())
        end = word.end()
    yield start, end


def _between(line: Line, start: int, end: int) -> Iterator[tuple[str, str]]:
    """What of its spans lies there."""
    place = 0
    for text, style in line.spans:
        part = text[max(start - place, 0) : max(end - place, 0)]
        place += len(text)
        if part:
            yield part, style

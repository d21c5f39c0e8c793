"""Foreign text made safe to show: no control character reaches a terminal or a log. And ranks in words.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any

_RANKS_SHOWN = 8


def one_line(text: object, *, limit: int | None = None) -> str:
    """The text on one line: control, format and line-breaking characters are written as escapes.

    Args:
        text: anything; `str()` of it is shown.
        limit: characters to keep; a longer text ends in "...".
    """
    shown = "".join(map(_visible, str(text)))
    return shown if limit is None or len(shown) <= limit else shown[: max(0, limit - 3)] + "..."


def lines(text: object) -> list[str]:
    """The text line by line, each made safe; empty lines are dropped."""
    return [one_line(line.expandtabs(4)) for line in str(text).splitlines() if line.strip()]


def valid_unicode(text: str) -> str:
    """The text without lone surrogates (undecodable file names hold them), which no JSON can carry."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain(value: Any) -> Any:
    """Any value of ours as JSON that the report can hold.

    Tuples become lists, keys text, NaN and infinities unavailable, lone surrogates escapes. What is no JSON
    at all is shown by its `repr`.
    """
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"unavailable": f"the value is {value}"}
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return plain(repr(value))


def ranks_text(ranks: Collection[int]) -> str:
    """`rank 3`, `ranks 0, 1, 3`, or the first few of many."""
    shown = ", ".join(map(str, sorted(ranks)[:_RANKS_SHOWN]))
    more = f" and {len(ranks) - _RANKS_SHOWN} more" if len(ranks) > _RANKS_SHOWN else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")

"""Foreign text made safe to show: no control character reaches a terminal or a log.

Standard library only.
"""

from __future__ import annotations


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


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")

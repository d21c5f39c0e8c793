"""Foreign text made safe to stand in Markdown: on one line, and never more than the text that it is. Pure."""

from __future__ import annotations

import re

from ..text import lines
from ..text import one_line

CUT = " ... (cut: all of it is in cp_infra.json)"
_LIMIT = 600
_SPECIAL = re.compile(r"[\\`*\[\]<>|~$&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_AT_START = re.compile(r"#|[=+-](?=\s|$)|[=-][=\s-]*$|\d+(?=[.)](?:\s|$))", flags=re.ASCII)
"""What would begin a heading, a list or a line across the page."""
_SPACES = re.compile(r"^ +| +$|  +")


class Markdown(str):
    """Text that is Markdown already: only such may come into the document."""

    __slots__ = ()


def prose(value: object, *, limit: int = _LIMIT) -> Markdown:
    """A sentence of others, also in a cell of a table; lines are joined, of a traceback the last is kept."""
    text = _shortened(_sentence(value), limit)
    text = _SPECIAL.sub(lambda found: "\\" + found[0], text)
    if _AT_START.match(text):
        text = f"&#{ord(text[0])};{text[1:]}"
    return Markdown(_SPACES.sub(" ", text).strip())


def code(value: object, *, limit: int = _LIMIT) -> Markdown:
    """A name, path, number or command of others, outside of tables."""
    text = _shortened(one_line(value), limit)
    if not text.strip():
        return Markdown("(empty)")
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if text[0] in " `" or text[-1] in " `" else ""
    return Markdown(f"{fence}{pad}{text}{pad}{fence}")


def cell(value: object, *, limit: int = _LIMIT) -> Markdown:
    """The same in a cell of a table.

    There a bar ends the cell within code too, unless a backslash precedes it; one that the text itself
    has before a bar would be taken for that, so such a text is shown as prose.
    """
    if "\\|" in one_line(value):
        return prose(value, limit=limit)
    return Markdown(code(value, limit=limit).replace("|", "\\|"))


def _sentence(value: object) -> str:
    found = lines(value)
    if any(line.startswith("Traceback (most recent call last)") for line in found):
        found = found[-1:]
    return " / ".join(line.strip() for line in found)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[:limit] + CUT

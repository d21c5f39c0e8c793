"""Foreign text as one word of bash. Pure."""

from __future__ import annotations

import re
import shlex

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", flags=re.ASCII)


def word(text: str) -> str:
    """The text as one word of bash, on one line.

    Control characters and rows of backticks, which could end a block of Markdown, are written as escapes.
    """
    if text.isprintable() and "```" not in text:
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def is_name(text: str) -> bool:
    """Whether bash can export a variable of this name."""
    return _NAME.fullmatch(text) is not None


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character.isprintable() and character != "`":
        return character
    foreign = "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", foreign))

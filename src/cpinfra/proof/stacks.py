"""Reads what faulthandler prints: the frames of a thread, the innermost first."""

from __future__ import annotations

import re
from pathlib import PurePath

_HEADER = re.compile(r"^(?:Current thread|Thread) .*\(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)


def frames(text: str) -> list[str]:
    """`file.py:12 in function` for each frame of the thread that the text is about.

    That is the one called current, or the last of the others: faulthandler prints the main thread last.
    """
    headers = list(_HEADER.finditer(text))
    if not headers:
        return []
    current = [header for header in headers if header[0].startswith("Current")]
    start = (current or headers)[-1].end()
    end = next((header.start() for header in headers if header.start() > start), len(text))
    return [_frame(found) for found in _FRAME.finditer(text, start, end)]


def place(text: str, depth: int = 3) -> str:
    """The innermost frames in one line; empty when the text holds no stack."""
    return ", called from ".join(frames(text)[:depth])


def _frame(found: re.Match[str]) -> str:
    path = PurePath(str(found["file"]))
    where = f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name
    return f"{where}:{found['line']} in {found['name']}"

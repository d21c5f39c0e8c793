"""What the exit codes of a command mean: for its help, and for the end of its run.

Imports nothing that costs, as help does. docs/verdicts.md says the same, which a test holds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from .output import LOST

PROVE = {
    0: "proven, or rehearsed where that was asked for or there is no GPU",
    1: "failed",
    3: "not proven",
    130: "interrupted",
}
BUILD = {**PROVE, 0: "proven, or rehearsed with --rehearse"}
SELFTEST = {
    0: "every fault that was planted acted, was noticed, and was told with the right rank and kind; nothing "
    "else was told",
    1: "a miss, or a false alarm",
    2: "the command makes no sense: all of its mistakes are named, nothing was started, no report is written",
    3: "could not run, or not all of it, and there is neither a miss nor a false alarm",
    130: "interrupted; what was known by then is in the report",
}
_COLUMNS = 100


def told(code: int, meanings: Mapping[int, str], *, lost: bool) -> str:
    """An exit code and its meaning, for the end of a run.

    Args:
        code: what the run came to.
        meanings: of the command's codes.
        lost: whether the document that was asked for could not be written, so that it is another code.
    """
    return f"{LOST} (the document was lost, whatever it says)" if lost else f"{code} ({meanings[code]})"


def listed(codes: Mapping[int, str]) -> str:
    r"""A block for the end of a command's help, which click leaves as it is by the `\b` above it."""
    rows = [_row(code, meaning) for code, meaning in codes.items()]
    return "\n".join(["\b", "Exit codes:", *rows])


def _row(code: int, meaning: str) -> str:
    return textwrap.fill(
        meaning, _COLUMNS, initial_indent=f"  {code:<5}", subsequent_indent=" " * 7, break_on_hyphens=False
    )

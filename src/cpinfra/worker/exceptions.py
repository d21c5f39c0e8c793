"""An exception in words that fit into a message: whoever raised it, their text may be of any length.

Standard library only: the supervisor takes the remedy from here.
"""

from __future__ import annotations

import traceback
from types import TracebackType

TEXT_MAX = 2000
"""Characters of an exception's own text; of a longer one the middle is left out."""
TRACEBACK_MAX = 16000
"""Characters of a traceback; of a longer one the end is kept."""

DEVICE_REMEDY = (
    "free what is exhausted (look at nvidia-smi, free -m, ulimit -n, df), or look for a device that failed "
    "in the driver's log (`dmesg | grep -i -e xid -e nvrm`); then run it again"
)
"""What to do about one that `device.is_at_fault` takes for the device's own, in a check or outside of any."""


def text_of(error: BaseException) -> str:
    """What it says of itself."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - a foreign `__str__`
        return f"(its text cannot be had: {type(second).__name__})"
    half = TEXT_MAX // 2
    return text if len(text) <= TEXT_MAX else f"{text[:half]} ... {text[-half:]}"


def traceback_of(error: BaseException) -> str:
    """Its traceback, those of its causes before it."""
    return traceback_from(error, error.__traceback__)


def traceback_from(error: BaseException, trace: TracebackType | None) -> str:
    """The same, from another frame on."""
    return "".join(traceback.format_exception(type(error), error, trace))[-TRACEBACK_MAX:]

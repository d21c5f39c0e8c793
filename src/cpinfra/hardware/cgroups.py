"""What the control groups allow this process: CPU time and memory, by version 1 or 2 of them.

A limit of any ancestor holds for all below it, so the strictest counts.

Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path

from ..cgroup_tree import HiddenError
from ..cgroup_tree import place

UNLIMITED = "unlimited"
_HUGE_BYTES = 1 << 60  # version 1 writes "no limit" as the largest number of pages that it can count
_QUOTA_DIGITS = 3

Limits = list[int] | list[float]
"""What one folder says, on its own; empty where it sets no limit."""


def cpu_quota(root: Path = Path("/")) -> float | str | dict[str, str]:
    """CPUs' worth of time that this process may use; "unlimited", or unavailable with the reason.

    Args:
        root: where the file system starts.
    """
    limits = _strictest(root, "cpu", {1: _cpu_v1, 2: _cpu_v2})
    return round(limits, _QUOTA_DIGITS) if isinstance(limits, float) else limits


def memory_limit_bytes(root: Path = Path("/")) -> int | str | dict[str, str]:
    """Memory that this process's group may use, in bytes; "unlimited", or unavailable with the reason.

    Args:
        root: where the file system starts.
    """
    limit = _strictest(root, "memory", {1: _memory_v1, 2: _memory_v2})
    return int(limit) if isinstance(limit, float) else limit


def _strictest(
    root: Path, controller: str, readers: Mapping[int, Callable[[Path], Limits]]
) -> float | str | dict[str, str]:
    """The least limit of all groups above this process.

    Args:
        root: where the file system starts.
        controller: `cpu` or `memory`.
        readers: what reads the limits of one folder, by the version.
    """
    try:
        version, folders = place(root, controller)
        limits = [float(limit) for folder in folders for limit in readers[version](folder)]
    except HiddenError as error:
        return {"unavailable": str(error)}
    return min(limits, default=UNLIMITED)


def _setting(path: Path) -> str | None:
    """A file of a group; None where there is none: the controller sets no limit on that level.

    Raises:
        HiddenError: it is there and cannot be read.
    """
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise HiddenError(f"{path}: {error}") from None


def _number(text: str, path: Path) -> int:
    """A whole number.

    Raises:
        HiddenError: it is none.
    """
    if not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise HiddenError(f"{path} says {text[:80]!r}, which is no number")
    return int(text)


def _cpu_v2(folder: Path) -> Limits:
    """`cpu.max` is "QUOTA PERIOD" in microseconds, or "max PERIOD"."""
    path = folder / "cpu.max"
    text = _setting(path)
    words = ["max"] if text is None else text.split()
    if words[:1] == ["max"]:
        return []
    if len(words) != 2:
        raise HiddenError(f"{path} says {' '.join(words)[:80]!r}, expected a quota and a period")
    return _share(_number(words[0], path), _number(words[1], path), path)


def _cpu_v1(folder: Path) -> Limits:
    """A quota of -1 is none."""
    quota, period = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
    texts = _setting(quota), _setting(period)
    if texts[0] is None or texts[1] is None:
        return []
    return _share(_number(texts[0], quota), _number(texts[1], period), quota)


def _share(quota_us: int, period_us: int, path: Path) -> Limits:
    """Quota by period.

    Raises:
        HiddenError: no kernel sets such values.
    """
    if quota_us == 0 or period_us <= 0:
        raise HiddenError(f"{path}: a quota of {quota_us} us in {period_us} us means nothing")
    return [quota_us / period_us] if quota_us > 0 else []


def _memory_v2(folder: Path) -> Limits:
    path = folder / "memory.max"
    text = _setting(path)
    return [] if text in (None, "max") else _bounded(_number(str(text), path))


def _memory_v1(folder: Path) -> Limits:
    """With the strictest of all ancestors by the kernel's own account, which no namespace hides."""
    path, account = folder / "memory.limit_in_bytes", folder / "memory.stat"
    text = _setting(path)
    own = [] if text is None else _bounded(_number(text, path))
    total = re.search(r"^hierarchical_memory_limit (.*)$", _setting(account) or "", flags=re.MULTILINE)
    return own + (_bounded(_number(total[1], account)) if total else [])


def _bounded(limit_bytes: int) -> list[int]:
    return [limit_bytes] if 0 <= limit_bytes < _HUGE_BYTES else []

"""What the control groups allow this process: CPU time and memory, by version 1 or 2 of them.

A limit of any ancestor holds for all below it, so the strictest counts. Where this process stands is known
from /proc/self/cgroup; where that can be looked at, from the mounts in /proc/self/mountinfo. In a container
the two may not speak of the same tree: then a folder counts only if it lists this process.

Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = "unlimited"
_HUGE_BYTES = 1 << 60  # version 1 writes "no limit" as the largest number of pages that it can count
_QUOTA_DIGITS = 3

Limits = list[int] | list[float]
"""What one folder says, on its own; empty where it sets no limit."""


class _HiddenError(Exception):
    """A limit may be there and could not be seen; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """One line of /proc/self/cgroup."""

    hierarchy: int
    """0 is version 2."""
    controllers: tuple[str, ...]
    """Of version 1; empty for version 2."""
    path: str
    """From the root of the hierarchy, as the cgroup namespace shows it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """One mount of a hierarchy."""

    version: int
    root: str
    """Which group of the hierarchy the mount shows as its top."""
    point: str
    """Where it is mounted."""
    options: tuple[str, ...]
    """Of the file system: the controllers are among them in version 1."""


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


def memberships(text: str) -> list[Membership]:
    """The lines of /proc/self/cgroup; what is no such line is left out."""
    found = []
    for line in text.split("\n"):
        number, _, rest = line.partition(":")
        names, colon, path = rest.partition(":")
        if colon and path.startswith("/") and re.fullmatch(r"[0-9]{1,9}", number):
            controllers = tuple(name for name in names.split(",") if name)
            found.append(Membership(hierarchy=int(number), controllers=controllers, path=path))
    return found


def mounts(text: str) -> list[Mount]:
    """The mounts of hierarchies among the lines of /proc/self/mountinfo."""
    return [mount for line in text.split("\n") for mount in _mount(line)]


def _mount(line: str) -> Iterator[Mount]:
    before, _, after = line.partition(" - ")
    place, system = before.split(" "), after.split(" ")
    if len(place) >= 5 and len(system) >= 3 and system[0] in ("cgroup", "cgroup2"):
        yield Mount(
            version=2 if system[0] == "cgroup2" else 1,
            root=_unescaped(place[3]),
            point=_unescaped(place[4]),
            options=tuple(system[2].split(",")),
        )


def _unescaped(text: str) -> str:
    """Blanks, tabs, newlines and backslashes are written as three octal digits (proc(5))."""
    return re.sub(r"\\([0-3][0-7]{2})", lambda octal: chr(int(octal[1], 8)), text)


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
        version, folders = _place(root, controller)
        limits = [float(limit) for folder in folders for limit in readers[version](folder)]
    except _HiddenError as error:
        return {"unavailable": str(error)}
    return min(limits, default=UNLIMITED)


def _place(root: Path, controller: str) -> tuple[int, list[Path]]:
    """The version that the controller is bound to, and the folders from its mount down to this process.

    Raises:
        _HiddenError: the mounts do not show where this process stands.
    """
    own = memberships(_text(root / "proc/self/cgroup"))
    first = next((one for one in own if controller in one.controllers), None)
    mine = first or next((one for one in own if one.hierarchy == 0), None)
    if mine is None:
        return 2, []  # the kernel keeps no account of it, so nothing can limit it
    version = 1 if first else 2
    seen = [
        mount
        for mount in mounts(_text(root / "proc/self/mountinfo"))
        if mount.version == version and (version == 2 or controller in mount.options)
    ]
    if not seen:
        raise _HiddenError(f"cgroup v{version}, which controls {controller}, is not mounted here")
    for mount in seen:
        below = _below(mount, mine.path, root)
        if below is not None:
            base = _at(root, mount)
            return version, [base.joinpath(*below[:depth]) for depth in range(len(below) + 1)]
    points = " or ".join(mount.point for mount in seen)
    raise _HiddenError(f"{points} does not show the control group of this process ({mine.path})")


def _at(root: Path, mount: Mount) -> Path:
    return root / mount.point.lstrip("/")


def _below(mount: Mount, path: str, root: Path) -> Sequence[str] | None:
    """The way from the mount's top down to the process's group, None where it does not lead there.

    What does not match by name may be the same group all the same, under a mount from outside of the
    cgroup namespace: the part of its path that a folder here has too, if that folder lists this process.
    """
    base, parts, top = _at(root, mount), _parts(path), _parts(mount.root)
    if ".." not in (*parts, *top) and parts[: len(top)] == top and base.joinpath(*parts[len(top) :]).is_dir():
        return parts[len(top) :]
    named = [part for part in parts if part != ".."]
    suffixes = [named[start:] for start in range(len(named) + 1)]
    return next((suffix for suffix in suffixes if _lists_us(base.joinpath(*suffix))), None)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _lists_us(folder: Path) -> bool:
    try:
        return str(os.getpid()) in (folder / "cgroup.procs").read_text().split()
    except OSError:
        return False  # not there, or not to be read: nothing that would show it


def _text(path: Path) -> str:
    """A file that must be there.

    Raises:
        _HiddenError: it cannot be read.
    """
    try:
        return os.fsdecode(path.read_bytes())
    except OSError as error:
        raise _HiddenError(f"{path}: {error.strerror or error}") from None


def _setting(path: Path) -> str | None:
    """A file of a group; None where there is none: the controller sets no limit on that level.

    Raises:
        _HiddenError: it is there and cannot be read.
    """
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _HiddenError(f"{path}: {error}") from None


def _number(text: str, path: Path) -> int:
    """A whole number.

    Raises:
        _HiddenError: it is none.
    """
    if not re.fullmatch(r"-?[0-9]{1,20}", text):
        raise _HiddenError(f"{path} says {text[:80]!r}, which is no number")
    return int(text)


def _cpu_v2(folder: Path) -> Limits:
    """`cpu.max` is "QUOTA PERIOD" in microseconds, or "max PERIOD"."""
    path = folder / "cpu.max"
    text = _setting(path)
    words = ["max"] if text is None else text.split()
    if words[:1] == ["max"]:
        return []
    if len(words) != 2:
        raise _HiddenError(f"{path} says {' '.join(words)[:80]!r}, expected a quota and a period")
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
        _HiddenError: no kernel sets such values.
    """
    if quota_us == 0 or period_us <= 0:
        raise _HiddenError(f"{path}: a quota of {quota_us} us in {period_us} us means nothing")
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

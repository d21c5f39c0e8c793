"""Where a process stands in the control groups, of version 1 or 2.

Known from /proc/self/cgroup; where that can be looked at, from the mounts in /proc/self/mountinfo. In a
container the two may not speak of the same tree: then a folder counts only if it lists this process.

Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class HiddenError(Exception):
    """It may be there and could not be seen; the text says why."""


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


def place(root: Path, controller: str) -> tuple[int, list[Path]]:
    """The version that the controller is bound to, and the folders from its mount down to this process.

    Raises:
        HiddenError: the mounts do not show where this process stands.
    """
    own = memberships(_text(root / "proc/self/cgroup"))
    first = next((one for one in own if controller in one.controllers), None)
    mine = first or next((one for one in own if one.hierarchy == 0), None)
    if mine is None:
        return 2, []  # the kernel keeps no account of it
    version = 1 if first else 2
    seen = [
        mount
        for mount in mounts(_text(root / "proc/self/mountinfo"))
        if mount.version == version and (version == 2 or controller in mount.options)
    ]
    if not seen:
        raise HiddenError(f"cgroup v{version}, which controls {controller}, is not mounted here")
    for mount in seen:
        below = _below(mount, mine.path, root)
        if below is not None:
            base = _at(root, mount)
            return version, [base.joinpath(*below[:depth]) for depth in range(len(below) + 1)]
    points = " or ".join(mount.point for mount in seen)
    raise HiddenError(f"{points} does not show the control group of this process ({mine.path})")


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
        HiddenError: it cannot be read.
    """
    try:
        return os.fsdecode(path.read_bytes())
    except OSError as error:
        raise HiddenError(f"{path}: {error.strerror or error}") from None

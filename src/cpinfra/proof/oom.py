"""Whether the kernel killed for want of memory: what the control groups of this process count.

Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..cgroup_tree import HiddenError
from ..cgroup_tree import place

_COUNTED_IN = {1: "memory.oom_control", 2: "memory.events"}


@dataclass(frozen=True, kw_only=True, slots=True)
class OomKills:
    """Processes of one control group that the kernel has killed for want of memory."""

    number: int
    """Of whichever program: the group may hold others beside the ranks."""
    says: str
    """Where that is counted."""


class OomWatch:
    """Counts out-of-memory kills from now on, in this process's group and all above it.

    Ranks are in the group of the process that watches them. The groups above count what was killed beside
    them as well, so the innermost that has counted is the one to believe.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        """Look for the first time.

        Args:
            root: where the file system starts.
        """
        try:
            version, folders = place(root, "memory")
        except HiddenError:
            version, folders = 2, []
        files = [folder / _COUNTED_IN[version] for folder in reversed(folders)]
        found = {path: _kills(path) for path in files}
        self._before = {path: kills for path, kills in found.items() if kills is not None}

    def kills(self) -> OomKills | None:
        """What has been counted since the first look; None where nothing has."""
        for path, before in self._before.items():
            kills = _kills(path)
            if kills is not None and kills > before:
                return OomKills(number=kills - before, says=f"oom_kill {before} -> {kills} in {path}")
        return None


def _kills(path: Path) -> int | None:
    """How many processes of a group were killed; None where it does not count (the root, an old kernel)."""
    try:
        counted = re.search(rb"^oom_kill ([0-9]{1,20})$", path.read_bytes(), flags=re.MULTILINE)
    except OSError:
        return None
    return int(counted[1]) if counted else None

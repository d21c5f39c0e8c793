"""Measure the disk of a folder and write one JSON document: run as text, in a process that may be killed.

Imports nothing of cpinfra. Argument: the folder, which need not exist.

The document: `{"path": the nearest ancestor that exists, "free_bytes": n, "total_bytes": n}`, or
`{"path": what was asked, "error": text}`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def _nearest(path: Path) -> tuple[Path, os.statvfs_result]:
    """The folder itself or its nearest ancestor that exists; a link that leads nowhere is followed.

    Raises:
        OSError: one of them cannot be asked.
    """
    while True:
        try:
            return path, os.statvfs(path)
        except (FileNotFoundError, NotADirectoryError):
            above = Path(os.path.realpath(path)).parent
            if above == path:
                raise
            path = above


def measured(path: str) -> dict[str, Any]:
    """The document."""
    try:
        found, status = _nearest(Path(path).absolute())
    except OSError as error:
        return {"path": path, "error": error.strerror or str(error)}
    size_bytes = status.f_frsize
    return {
        "path": str(found),
        "free_bytes": status.f_bavail * size_bytes,
        "total_bytes": status.f_blocks * size_bytes,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(sys.argv[1])))

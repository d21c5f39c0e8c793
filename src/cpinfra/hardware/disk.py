"""The disk of a folder, asked in a process that may be killed: statvfs on a dead NFS mount never returns.

Standard library only.
"""

from __future__ import annotations

import json
import os
import pkgutil
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import child

TIMEOUT_S = 10.0
_GIB = 1 << 30


def describe(
    folder: Path,
    environment: Mapping[str, str],
    *,
    timeout_s: float = TIMEOUT_S,
    argv: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The section `host.disk` of the report.

    Args:
        folder: need not exist.
        environment: handed to the child.
        timeout_s: how long the file system may take to answer, in seconds.
        argv: the program that writes the document that disk_child.py describes; ours by default.
    """
    command = list(argv) if argv is not None else _command(folder)
    answer = child.ask(command, environment=environment, timeout_s=timeout_s)
    if answer.state == "hung":
        left = f"; process {answer.left_behind} does not even die" if answer.left_behind else ""
        return _unavailable(folder, f"the file system did not answer within {timeout_s:g} s{left}")
    if answer.state != "exited" or answer.returncode != 0:
        return _unavailable(folder, f"the process that asks the file system failed: {_how(answer)}")
    return _read(folder, answer.stdout)


def _command(folder: Path) -> list[str]:
    """Our child, handed over as text: in a zip it has no path of its own."""
    source = pkgutil.get_data(__package__, "disk_child.py") or b""
    return [sys.executable, "-I", "-S", "-c", source.decode(), os.fspath(folder)]


def _read(folder: Path, stdout: bytes) -> dict[str, Any]:
    try:
        document = json.loads(stdout)
        if "error" in document:
            return _unavailable(folder, f"{document['path']}: {document['error']}")
        path, free, total = (document[name] for name in ("path", "free_bytes", "total_bytes"))
        values = {"free_gib": round(free / _GIB, 1), "total_gib": round(total / _GIB, 1)}
    except (ValueError, KeyError, TypeError):
        words = stdout[:200].decode(errors="backslashreplace")
        return _unavailable(folder, f"the process that asks the file system wrote no answer: {words!r}")
    if not total:
        return _unavailable(folder, f"the file system of {path} names no size")
    return {"path": path, **values}


def _how(answer: child.ChildAnswer) -> str:
    words = answer.stderr.decode(errors="backslashreplace").strip().splitlines()
    ended = answer.reason or answer.died_by or f"{answer.state}, exit status {answer.returncode}"
    return f"{ended}: {words[-1][:300]}" if words else ended


def _unavailable(folder: Path, why: str) -> dict[str, Any]:
    return {"path": os.fspath(folder), "free_gib": {"unavailable": why}, "total_gib": {"unavailable": why}}

"""Files that are whole or not there. Standard library only."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a file by way of a neighbour that is renamed, so that no reader ever sees half of it.

    Args:
        path: what lies there is replaced.
        data: all that the file holds afterwards.
        durable: whether it must survive a crash of the machine, which takes time on a disk.

    Raises:
        OSError: the folder cannot be written; nothing is left behind.
    """
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    temporary = Path(name)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def _umask() -> int:
    """This process's umask, read without changing it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0o077
    match = re.search(r"^Umask:\s*([0-7]+)", status, flags=re.MULTILINE)
    return int(match[1], 8) if match else 0o077


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a crash of the machine, where the file system can."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return  # a folder that may be written but not read
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems cannot sync a folder
    finally:
        os.close(fd)

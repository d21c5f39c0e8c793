"""/dev/shm: its size, and what programs that have ended left in it. Nothing is ever removed.

That a file is unused is the kernel's word, not ours: it grants a lease for writing only while nobody else
has the file open or mapped, in whatever container and as whichever user (fcntl(2), "Leases"; on tmpfs since
Linux 5.3, before it refuses always). To read /proc/PID/maps of all processes instead would miss those of
other namespaces, and can block on a process that is stuck.

Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_RUN_FOLDER = re.compile(r"cpinfra-[0-9]+-[0-9a-f]+")  # what worker/node_local.py makes
_LOCK = "lock"
_TORCH = re.compile(r"torch_([0-9]{1,9})_.*")
_MIB = 1 << 20


def describe(root: Path = Path("/")) -> dict[str, Any]:
    """The section `host.shm` of the report.

    Args:
        root: where the file system starts.
    """
    folder = root / "dev/shm"
    try:
        status = os.statvfs(folder)
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        why = {"unavailable": f"{folder}: {error.strerror or error}"}
        return {"total_mib": why, "free_mib": why, "stale_segments": why}
    sizes = status.f_blocks * status.f_frsize // _MIB, status.f_bavail * status.f_frsize // _MIB
    unbounded = {"unavailable": f"the file system of {folder} names no size"}
    return {
        "total_mib": sizes[0] if status.f_blocks else unbounded,
        "free_mib": sizes[1] if status.f_blocks else unbounded,
        "stale_segments": [segment for name in names for segment in _stale(folder / name)],
    }


def _stale(path: Path) -> Iterator[dict[str, Any]]:
    """The segment, if it is certain that nobody uses it any more."""
    try:
        why = _why_stale(path)
        if why:
            yield {"name": path.name, "bytes": _size_bytes(path), "why": why}
    except OSError:
        return  # gone meanwhile, or not ours to look at: nothing is certain


def _why_stale(path: Path) -> str:
    """Why it is stale, empty where that is not certain.

    Raises:
        OSError: it cannot be looked at.
    """
    if _RUN_FOLDER.fullmatch(path.name) and _is_unlocked(path):
        return "a run folder of cpinfra whose lock nobody holds"
    torch = _TORCH.fullmatch(path.name)
    if torch and not _lives(int(torch[1])) and _is_unused(path):
        return f"no process {torch[1]}, which its name says made it, lives here, and nobody has it open"
    return ""


def _lives(pid: int) -> bool:
    """Whether there is such a process in this pid namespace; one that has not been reaped counts."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A regular file, for reading; never blocks, follows no link.

    Raises:
        OSError: it is something else, or may not be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{path} is no file")
        yield fd
    finally:
        os.close(fd)


def _is_unlocked(folder: Path) -> bool:
    """Whether nobody holds the lock of a run folder.

    Raises:
        OSError: it is no folder, or has no lock that may be looked at.
    """
    if not stat.S_ISDIR(folder.lstat().st_mode):
        return False
    with _opened(folder / _LOCK) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look are not in each other's way
        except BlockingIOError:
            return False
    return True


def _is_unused(path: Path) -> bool:
    """Whether nobody has it open or mapped; False too where the kernel does not say.

    Raises:
        OSError: it cannot be opened.
    """
    with _opened(path) as fd:
        # Whoever opens it in this very moment has the kernel signal us: one that is ignored, not SIGIO.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False  # in use (EAGAIN), another user's (EACCES), or no leases here (EINVAL)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return True


def _size_bytes(path: Path) -> int:
    """Of the file, or of all files of the folder.

    Raises:
        OSError: it went meanwhile.
    """
    if not path.is_dir():
        return path.lstat().st_size
    files = (Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    return sum(file.lstat().st_size for file in files)

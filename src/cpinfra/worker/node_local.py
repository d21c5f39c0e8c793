"""The node-local folder: ledgers, stores and stacks of one run, in memory where there is any.

Never on a network file system. Its name follows from the run's cookie, so that whoever outlives the
others can remove it; a lock that its owners hold tells a living one from a leftover.

Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "cpinfra-"
_LOCK = "lock"
_MAKING_MAX_S = 60.0
"""A folder that is still half-made after that has no maker any more."""
_NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "lustre",
        "gpfs",
        "beegfs",
        "cifs",
        "smb3",
        "smbfs",
        "ceph",
        "fuse.ceph",
        "fuse.beegfs",
        "fuse.glusterfs",
        "fuse.juicefs",
        "fuse.sshfs",
        "afs",
        "9p",
        "orangefs",
        "panfs",
        "pvfs2",
        "wekafs",
    ]
)


class NoRoomError(OSError):
    """No folder of this node can hold the run; the text lists each with its reason."""


def candidates() -> list[Path]:
    """Where the folder may be, best first: /dev/shm, TMPDIR, /tmp.

    Not `tempfile.gettempdir`: it raises where no folder can be written, and falls back to the working one.
    """
    places = ("/dev/shm", os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp")
    return list(dict.fromkeys(Path(place) for place in places if place.startswith("/")))


def name(cookie: str) -> str:
    """The folder's name; it holds the owner's uid, since /dev/shm is everybody's."""
    return f"{_PREFIX}{os.getuid()}-{cookie}"


def _half_made(cookie: str) -> str:
    """Its name until it is locked."""
    return f".{name(cookie)}"


def create(cookie: str, need_bytes: int) -> tuple[Path, int]:
    """Make the folder where `need_bytes` fit; returns it and the lock's descriptor, to be kept open.

    Raises:
        NoRoomError: none of the candidates would do.
    """
    reasons = []
    for parent in candidates():
        try:
            return _create_in(parent, cookie, need_bytes)
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror or error}")
    raise NoRoomError("; ".join(reasons))


def _create_in(parent: Path, cookie: str, need_bytes: int) -> tuple[Path, int]:
    if is_remote(parent):
        raise OSError("a network file system")
    making, folder = parent / _half_made(cookie), parent / name(cookie)
    making.mkdir(mode=0o700)
    lock = -1
    try:
        lock = os.open(making / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(lock, 0, need_bytes)
        os.ftruncate(lock, 0)
        making.rename(folder)  # under its name it is locked already: no sweep takes it for a leftover
    except OSError:
        if lock >= 0:
            os.close(lock)  # an open file keeps its room, even without a name
        shutil.rmtree(making, ignore_errors=True)
        raise
    return folder, lock


def is_remote(path: Path) -> bool:
    """Whether other hosts may see it too."""
    return _file_system(path) in _NETWORK_FILE_SYSTEMS


def _file_system(path: Path) -> str:
    """Type of the file system that holds `path`, from the longest mount point above it."""
    target, best, kind = str(path.resolve()), "", ""
    mounts = os.fsdecode(Path("/proc/self/mounts").read_bytes())
    for line in mounts.rstrip("\n").split("\n"):
        _, point, this, *_ = line.split(" ")
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), point)
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, this
    return kind


def remove(cookie: str) -> None:
    """Remove the run's folder, wherever it was made; none is no error."""
    for parent in candidates():
        shutil.rmtree(parent / name(cookie), ignore_errors=True)
        shutil.rmtree(parent / _half_made(cookie), ignore_errors=True)


def leftovers() -> Iterator[Path]:
    """Folders of this user whose owners are all gone (a host that was reset, a double SIGKILL)."""
    for parent in candidates():
        for folder in _listed(parent, name("")):
            if _is_ours(folder) and _is_abandoned(folder):
                yield folder
        for folder in _listed(parent, _half_made("")):
            if _is_ours(folder) and _is_given_up(folder):
                yield folder


def sweep() -> list[Path]:
    """Remove leftovers of our own, and nothing else; returns what was removed."""
    swept = list(leftovers())
    for folder in swept:
        shutil.rmtree(folder, ignore_errors=True)
    return [folder for folder in swept if not folder.exists()]


def _listed(parent: Path, prefix: str) -> list[Path]:
    try:
        return list(parent.glob(f"{prefix}*"))
    except OSError:
        return []


def _is_ours(folder: Path) -> bool:
    try:
        status = folder.lstat()
        return status.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
    except OSError:
        return False


def _is_given_up(half_made: Path) -> bool:
    """Whether its maker died over it, before or after it locked it: to make one takes a moment."""
    try:
        age_s = time.time() - half_made.stat().st_mtime
    except OSError:
        return False
    return age_s > _MAKING_MAX_S and (not (half_made / _LOCK).exists() or _is_abandoned(half_made))


def _is_abandoned(folder: Path) -> bool:
    """Whether nobody holds the lock; a folder without one is not known to be ours."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True

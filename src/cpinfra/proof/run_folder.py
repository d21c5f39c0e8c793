"""The run folder: what a run leaves on disk, whoever dies.

`--run-dir` if given, else `.cpinfra/runs/<id>/` here, else the XDG state folder, else TMPDIR.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..worker import node_local

KEPT_RUNS = 20
_UNSEEN_S = 86400.0
"""On a network file system another host's lock may not be seen: a run that wrote within a day may live."""
_STAGES = "stages.jsonl"
_MARKER = ("stage", "time", "boot_id")
_NAME = re.compile(r"\d{8}-\d{6}-[a-z0-9_]{8}")
_REHEARSAL = "rehearsal"
_OF_RANKS = ("events.jsonl", "zygote.log", "generation-*/rank-*.log", "generation-*/rank-*.stack")
_FILES = (
    *_OF_RANKS,
    "report.json",
    *(f"{_REHEARSAL}/{name}" for name in (*_OF_RANKS, "cpinfra_worker-*.zip", ".cpinfra_worker-*", _STAGES)),
    "cpinfra_worker-*.zip",
    ".cpinfra_worker-*",  # of files that were not whole yet when the run was killed
    ".report.json-*",
    _STAGES,
)
"""What an earlier run leaves in a folder, and a later one there would otherwise continue. The markers come
last: they say whose the others are."""


class RunFolderError(OSError):
    """No folder can hold the run; the text says which were tried and why each would not do."""


class RunFolder:
    """One run's folder, locked while the run lives."""

    def __init__(self, path: Path, started: float, *, part_of: RunFolder | None = None) -> None:
        self.path = path
        self.troubles: list[str] = [] if part_of is None else part_of.troubles
        """What could not be written, each reason once."""
        self.errnos: set[int] = set() if part_of is None else part_of.errnos
        """The errors that writing gave."""
        self._started = started
        self._lock = _locked(path) if part_of is None else None

    def rehearsal(self) -> RunFolder:
        """A folder in this one for a second set of ranks, under the same lock."""
        part = RunFolder(self.path / _REHEARSAL, self._started, part_of=self)
        self._try(part.path.mkdir, exist_ok=True)
        return part

    def close(self) -> None:
        """Give up the lock; the folder stays."""
        if self._lock is None:
            return
        os.close(self._lock)

    def event(self, name: str, /, **facts: Any) -> dict[str, Any]:
        """Append one event to `events.jsonl`; returns it with `t`, seconds since the start."""
        event = {"t": round(time.monotonic() - self._started, 4), "event": name, **facts}
        self._try(self._append, "events.jsonl", json.dumps(event, default=str) + "\n")
        return event

    def mark(self, stage: str) -> None:
        """Write and fsync the stage that begins now: a host that goes down names its last one."""
        marker = {"stage": stage, "time": _now(), "boot_id": _boot_id()}
        self._try(self._append, _STAGES, json.dumps(marker) + "\n", sync=True)

    def generation_logs(self, generation: int) -> Path:
        """The folder of one generation's logs."""
        folder = self.path / f"generation-{generation}"
        self._try(lambda: folder.mkdir(exist_ok=True))
        return folder

    def _append(self, name: str, text: str, sync: bool = False) -> None:
        with (self.path / name).open("a") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def _try(self, action: Any, *arguments: Any, **options: Any) -> None:
        """A full disk ends no run: what could not be written is said in the report instead."""
        try:
            action(*arguments, **options)
        except OSError as error:
            self.note(f"{error.filename or self.path}: {error.strerror}")
            self.errnos.update([error.errno] if error.errno is not None else [])

    def write(self, name: str, text: str) -> None:
        """Write a file of the run."""
        self._try(lambda: (self.path / name).write_text(text))

    def note(self, trouble: str) -> None:
        """Remember something that could not be written, once."""
        if trouble not in self.troubles:
            self.troubles.append(trouble)


def _locked(path: Path) -> int:
    """Open and lock the folder itself, so that whoever dies leaves no lock behind.

    A file system that locks no folders (Lustre without `flock`, some NFS) gets none, and nothing on it is
    pruned.

    Raises:
        OSError: a living run holds the lock, or the folder cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise BlockingIOError(errno.EAGAIN, "another run is using it") from None
    except OSError:
        pass
    return fd


def create(explicit: Path | None, environment: Mapping[str, str]) -> RunFolder:
    """Make this run's folder.

    Args:
        explicit: the user's `--run-dir`, used as it is; a run there replaces the files of an earlier one, and
            no others.
        environment: for XDG_STATE_HOME, HOME and TMPDIR.

    Raises:
        RunFolderError: nothing writable; or the explicit one is not, or holds files of others in our place.
    """
    started = time.monotonic()
    folder = _explicit(explicit, started) if explicit is not None else _default(environment, started)
    folder.mark("start")  # by this the next run that is given the folder knows whose it is
    return folder


def _default(environment: Mapping[str, str], started: float) -> RunFolder:
    reasons = []
    for root in _roots(environment):
        try:
            return RunFolder(_new_under(root), started)
        except OSError as error:
            reasons.append(f"{root}: {error.strerror}")
    raise RunFolderError("no folder for this run can be written: " + "; ".join(reasons))


def _explicit(path: Path, started: float) -> RunFolder:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(path)
        folder = RunFolder(path.absolute(), started)
        try:
            _probe_room(path)
            for old in _left_in(path):
                old.unlink()
        except OSError:
            folder.close()
            raise
        return folder
    except OSError as error:
        raise RunFolderError(f"--run-dir {str(path)!r} cannot hold a run: {error.strerror}") from error


def _left_in(path: Path) -> list[Path]:
    """Files with the names that a run writes."""
    return [found for name in _FILES for found in sorted(path.glob(name))]


def _refuse_foreign(path: Path) -> None:
    """Leave a folder as it is whose files we would replace without having written them.

    Raises:
        FileExistsError: it names them.
    """
    left = _left_in(path)
    if not left or _is_ours(path / _STAGES):
        return
    names = ", ".join(str(file.relative_to(path)) for file in left[:4]) + (", ..." if len(left) > 4 else "")
    expected = "expected an empty folder, or one whose stages.jsonl a run of cpinfra began"
    reason = f"it would replace {names}, which no run of cpinfra has written; {expected}"
    raise FileExistsError(errno.EEXIST, reason)


def _is_ours(stages: Path) -> bool:
    """Whether the first line is a stage marker."""
    if not stages.is_file():
        return False
    try:
        with stages.open("rb") as file:
            marker = json.loads(file.readline(4096))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(marker, dict) and all(isinstance(marker.get(key), str) for key in _MARKER)


def _roots(environment: Mapping[str, str]) -> Iterator[Path]:
    """Where run folders live, best first."""
    try:
        yield Path.cwd() / ".cpinfra" / "runs"
    except OSError:
        pass  # the working directory has been removed
    state, home, temporary = (environment.get(name, "") for name in ("XDG_STATE_HOME", "HOME", "TMPDIR"))
    if state.startswith("/"):  # a relative one is invalid, says the XDG specification
        yield Path(state) / "cpinfra" / "runs"
    elif home.startswith("/"):
        yield Path(home) / ".local" / "state" / "cpinfra" / "runs"
    for folder in dict.fromkeys([temporary, "/tmp"]):
        if folder.startswith("/"):
            yield Path(folder) / f"cpinfra-runs-{os.getuid()}"


def _new_under(root: Path) -> Path:
    """A fresh folder under `root`, which ignores itself in git and keeps the last runs only."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise PermissionError(errno.EACCES, "belongs to another user")
    if root.parent.name == ".cpinfra":
        ignore = root.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    stamp = dt.datetime.now(dt.timezone.utc).strftime("%Y%m%d-%H%M%S")
    path = Path(tempfile.mkdtemp(prefix=f"{stamp}-", dir=root))
    try:
        _probe_room(path)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    _prune(root, keep=path)
    return path


def _probe_room(path: Path, need_bytes: int = 1 << 16) -> None:
    """Find out now, not at the end, that the file system is full or read-only."""
    with tempfile.TemporaryFile(dir=path) as file:
        file.write(bytes(need_bytes))
        file.flush()
        os.fsync(file.fileno())


def _prune(root: Path, *, keep: Path) -> None:
    """Keep the newest runs, and this one whatever clock the others had.

    A folder that is not ours by name, or whose run lives, is left alone.
    """
    found = (path for path in root.iterdir() if _NAME.fullmatch(path.name))
    runs = sorted(path for path in found if path.is_dir() and not path.is_symlink())
    for path in runs[:-KEPT_RUNS]:
        if path != keep and not _may_live(path):
            shutil.rmtree(path, ignore_errors=True)


def _may_live(path: Path) -> bool:
    """Whether its run may live; so does one of which nothing can be told."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        age_s = time.time() - os.fstat(fd).st_mtime  # each renewed report changes it
        return node_local.is_remote(path) and age_s < _UNSEEN_S
    except OSError:
        return True
    finally:
        os.close(fd)


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        return f"unavailable: {error.strerror}"

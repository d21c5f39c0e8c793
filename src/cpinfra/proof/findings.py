"""What it means when the target interpreter cannot be used: one finding for each way it can fail."""

from __future__ import annotations

import errno
import re
import resource
import shlex
from collections.abc import Collection
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..outcome import Finding
from ..outcome import Severity
from . import stacks

_TRY = '{python} -c "import torch, torch.distributed as d; print(torch.__version__, d.is_available())"'

OLDEST_TORCH = (2, 5)
BUG = "cpinfra-bug"
"""Id of what an error of our own is told as."""

GONE = "run-folder-gone"
"""Id of what is told where the run folder was removed under the run."""

_NAME_ANOTHER = (
    "give the interpreter of the environment in which your model runs: --python /path/to/bin/python"
)


def blocking(name: str, python: str, *, what: str, got: str, expected: str, remedy: str) -> Finding:
    """A finding that blocks, with the command that tries the interpreter."""
    return Finding(
        id=name,
        severity=Severity.BLOCKING,
        what=what,
        got=got,
        expected=expected,
        remedy=remedy,
        command=_TRY.format(python=shlex.quote(python)),
    )


_OF_THE_MACHINE = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors of a start that say nothing of the file."""


def not_executable(python: str, error: OSError) -> Finding:
    """The kernel would not run the file, or had no room for another process."""
    if error.errno in _OF_THE_MACHINE:
        return cannot_fork(python, error.strerror or str(error))
    return blocking(
        "interpreter-not-python",
        python,
        what="the target interpreter cannot be started",
        got=f"{python}: {error.strerror or error}{_missing_shebang(python, error)}",
        expected="a Python interpreter, version 3.10 or newer",
        remedy=_NAME_ANOTHER,
    )


def _missing_shebang(python: str, error: OSError) -> str:
    """Of a script that is there, "no such file" means the interpreter in its first line."""
    there = error.errno == errno.ENOENT and Path(python).exists()
    return " (the file is there: it is the interpreter in its #! line that is not)" if there else ""


def not_python(python: str, how: str, output: str) -> Finding:
    """It ran, and never said hello."""
    return blocking(
        "interpreter-not-python",
        python,
        what="the target interpreter did not answer as a Python would",
        got=f"{how}; it printed: {quoted(output)}",
        expected="a Python interpreter, version 3.10 or newer",
        remedy=_NAME_ANOTHER,
    )


def too_old(python: str, message: Mapping[str, Any]) -> Finding:
    """A Python before 3.10."""
    return blocking(
        "interpreter-too-old",
        python,
        what="the target interpreter is too old",
        got=f"Python {message.get('python')}",
        expected="Python 3.10 or newer",
        remedy="make an environment with a newer Python, or name another one with --python",
    )


def import_failed(python: str, message: Mapping[str, Any]) -> Finding:
    """An import of torch, or of what the checks need of it, raised."""
    text = f"{message['type']}: {message['text']}"
    if message["type"] == "ModuleNotFoundError" and "'torch'" in message["text"]:
        return blocking(
            "torch-missing",
            python,
            what="the target interpreter has no torch",
            got=text,
            expected="an interpreter in which `import torch` works",
            remedy="install torch there, or name another interpreter with --python",
        )
    name = "torch-no-distributed" if "is_available() is False" in message["text"] else "torch-import-failed"
    return blocking(
        name,
        python,
        what=f"importing {message['module']} failed in the target interpreter",
        got=text,
        expected="a torch that imports and has torch.distributed",
        remedy=f"mend that environment, so that `import {message['module'].split(',')[0]}` works; "
        "reinstall torch if it is torch's own",
    )


def import_died(python: str, how: str, output: str) -> Finding:
    """The process ended in the middle of the import."""
    return blocking(
        "torch-import-died",
        python,
        what="the target interpreter died while importing torch",
        got=f"{how}{_standing(output)}; its last output: {last_words(output)}",
        expected="a torch that imports",
        remedy="reinstall torch in that environment; look for a second copy of a library on LD_LIBRARY_PATH",
    )


def import_hung(python: str, what: str, seconds: float, idle: bool, stack: str) -> Finding:
    """The import did not come back."""
    how = "neither computed nor read anything" if idle else "did not end"
    return blocking(
        "torch-import-hung",
        python,
        what=f"importing {what} hangs in the target interpreter",
        got=f"the import {how} for {seconds:.0f} s{_standing(stack)}",
        expected="an import that ends, or at least reads files",
        remedy="look at what that line waits for: a file system that does not answer, a lock, a .pth file",
    )


def of_torch(python: str, software: Mapping[str, Any], *, device: str, backend: str) -> list[Finding]:
    """What a torch that imports says against itself: for ROCm, without CUDA or the backend, or too old."""
    found = []
    if software["hip_build"] is not None:
        found.append(_rocm(python, software))
    elif device == "cuda" and software["cuda_build"] is None:
        found.append(_cpu_only(python, software))
    elif not software["backends"][backend]:
        found.append(_no_backend(python, software, backend))
    version = re.match(r"(\d+)\.(\d+)", software["torch"])
    if version is not None and (int(version[1]), int(version[2])) < OLDEST_TORCH:
        found.append(_old_torch(software["torch"]))
    return found


def _rocm(python: str, software: Mapping[str, Any]) -> Finding:
    return blocking(
        "rocm-unsupported",
        python,
        what="this torch was built for ROCm, which cpinfra does not support",
        got=f"torch {software['torch']}, ROCm {software['hip_build']}",
        expected="a torch built for CUDA, or for the CPU alone",
        remedy="name an interpreter with such a torch: --python",
    )


def _cpu_only(python: str, software: Mapping[str, Any]) -> Finding:
    return blocking(
        "torch-cpu-only",
        python,
        what="this torch was built without CUDA, on a host with GPUs",
        got=f"torch {software['torch']}",
        expected="a torch built for CUDA",
        remedy="install a CUDA build of torch there, or name another interpreter with --python; "
        "to rehearse without GPUs: --device cpu",
    )


def _no_backend(python: str, software: Mapping[str, Any], backend: str) -> Finding:
    there = ", ".join(name for name, has in software["backends"].items() if has) or "none"
    return blocking(
        "backend-missing",
        python,
        what=f"this torch was built without {backend}",
        got=f"torch {software['torch']} with backends: {there}",
        expected=f"a torch whose torch.distributed has {backend}",
        remedy="install another build of torch there, or name another interpreter with --python",
    )


def not_staged(python: str, folder: Path, error: Exception) -> Finding:
    """The worker's zip could not be put into the run folder."""
    got, remedy = str(error), "install cpinfra again"
    if isinstance(error, OSError):
        got = f"{error.filename or folder}: {error.strerror or error}"
        remedy = f"{unwritten_remedy([error.errno])}, or install cpinfra again"
    return blocking(
        "worker-not-staged",
        python,
        what="the worker could not be written into the run folder",
        got=got,
        expected=f"room for less than a MiB in {folder}, and an installation of cpinfra that is whole",
        remedy=remedy,
    )


_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_LEAVE_ALONE = "leave the run folder alone while a run uses it"


def unwritten_remedy(errnos: Collection[int | None]) -> str:
    """What to do about a run folder in which something could not be written, by the errors that it gave."""
    if any(number in _NOT_THERE for number in errnos):
        return f"{_LEAVE_ALONE}; run it again, or give another folder with --run-dir"
    if any(number in _NOT_ALLOWED for number in errnos):
        return "make the run folder writable for you, or give another folder with --run-dir"
    if any(number in _NO_ROOM for number in errnos):
        return "free some space, or give another folder with --run-dir"
    return "see to what the error says, or give another folder with --run-dir"


_BY_A_LOST_WORKER = ("interpreter-not-python", "torch-import-failed", BUG)
"""What an interpreter seems to be that can no longer read the worker's zip."""


def unless_gone(finding: Finding, worker: Path) -> Finding:
    """The finding; that the run folder is gone, where that explains it better.

    Args:
        finding: what would be told.
        worker: the zip that was put into the run folder for the target interpreter.
    """
    if finding.id not in _BY_A_LOST_WORKER or worker.exists():
        return finding
    folder = worker.parent
    lost = worker.name if folder.exists() else "the folder"
    return Finding(
        id=GONE,
        severity=Severity.BLOCKING,
        what="the run folder was removed, or emptied, while the run used it",
        got=f"{folder}: {lost} is not there any more; what the interpreter made of it: {finding.got}",
        expected="a run folder that stays until the run is over: the interpreter reads the worker from it",
        remedy=unwritten_remedy([errno.ENOENT]),
    )


def _old_torch(version: str) -> Finding:
    oldest = ".".join(map(str, OLDEST_TORCH))
    return Finding(
        id="torch-untested",
        severity=Severity.WARNING,
        what="this torch is older than any that cpinfra is expected to work with",
        got=f"torch {version}",
        expected=f"torch {oldest} or newer",
        remedy="update torch; until then take a failure for a question to both, cpinfra and torch",
    )


def cannot_fork(python: str, text: str) -> Finding:
    """The kernel refused a process."""
    return blocking(
        "cannot-fork",
        python,
        what="the kernel refuses to start the processes that the ranks need",
        got=f"{text}; RLIMIT_NPROC {_limit(resource.RLIMIT_NPROC)}, RLIMIT_NOFILE "
        f"{_limit(resource.RLIMIT_NOFILE)}, pids.max {_pids_max()}",
        expected="room for one process a rank, each with some tens of MiB and some tens of open files",
        remedy="raise ulimit -u, ulimit -n or the control group's pids.max, free memory, or ask for fewer "
        "ranks with --ranks",
    )


def _limit(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def _pids_max() -> str:
    """Of this process's own control group, version 2."""
    try:
        own = Path("/proc/self/cgroup").read_text().rpartition("0::")[2].strip().lstrip("/")
        return (Path("/sys/fs/cgroup") / own / "pids.max").read_text().strip()
    except OSError:
        return "unknown"


def wrapped(python: str) -> Finding:
    """The file that was named starts Python as a child of its own, and stays."""
    return blocking(
        "interpreter-wrapped",
        python,
        what="the target interpreter is a program that starts Python and waits for it",
        got="Python runs as a child of what was started, so it could not be watched nor ended with us",
        expected="the interpreter itself, or a script that ends in `exec python ...`",
        remedy="write exec before the interpreter in that script, or give the interpreter with --python",
    )


def _standing(output: str) -> str:
    """Where the stack in an output stood, if there is one."""
    place = stacks.place(output)
    return f"; it stood at {place}" if place else ""


_WARNING = re.compile(r"^.*:\d+: \w*Warning: .*\n?(?:[ \t]+.*\n?)?", re.MULTILINE)
"""As Python prints one: where, what, and the line that it stands at."""


def last_words(output: str) -> str:
    """The end of what a process printed before it died; a warning of Python's is no word on that."""
    said = _WARNING.sub("", output)
    return "nothing but warnings" if output.strip() and not said.strip() else quoted(said)


def quoted(output: str, limit: int = 600) -> str:
    """The end of foreign text, safe to print."""
    text = output.strip()
    return repr(text if len(text) <= limit else "..." + text[-limit:]) if text else "nothing"

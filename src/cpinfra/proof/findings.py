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

from ..outcome import BUG_REMEDY
from ..outcome import Finding
from ..outcome import Severity
from . import stacks

_TRY = '{python} -c "import torch, torch.distributed as d; print(torch.__version__, d.is_available())"'

OLDEST_TORCH = (2, 5)
BUG = "cpinfra-bug"
"""Id of what an error of our own is told as."""

_NAME_ANOTHER = (
    "give the interpreter of the environment in which your model runs: --python /path/to/bin/python"
)


def _blocking(name: str, python: str, *, what: str, got: str, expected: str, remedy: str) -> Finding:
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
    return _blocking(
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
    return _blocking(
        "interpreter-not-python",
        python,
        what="the target interpreter did not answer as a Python would",
        got=f"{how}; it printed: {_quoted(output)}",
        expected="a Python interpreter, version 3.10 or newer",
        remedy=_NAME_ANOTHER,
    )


def too_old(python: str, message: Mapping[str, Any]) -> Finding:
    """A Python before 3.10."""
    return _blocking(
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
        return _blocking(
            "torch-missing",
            python,
            what="the target interpreter has no torch",
            got=text,
            expected="an interpreter in which `import torch` works",
            remedy="install torch there, or name another interpreter with --python",
        )
    name = "torch-no-distributed" if "is_available() is False" in message["text"] else "torch-import-failed"
    return _blocking(
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
    return _blocking(
        "torch-import-died",
        python,
        what="the target interpreter died while importing torch",
        got=f"{how}{_standing(output)}; its last output: {_quoted(output)}",
        expected="a torch that imports",
        remedy="reinstall torch in that environment; look for a second copy of a library on LD_LIBRARY_PATH",
    )


def import_hung(python: str, what: str, seconds: float, idle: bool, stack: str) -> Finding:
    """The import did not come back."""
    how = "neither computed nor read anything" if idle else "did not end"
    return _blocking(
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
    return _blocking(
        "rocm-unsupported",
        python,
        what="this torch was built for ROCm, which cpinfra does not support",
        got=f"torch {software['torch']}, ROCm {software['hip_build']}",
        expected="a torch built for CUDA, or for the CPU alone",
        remedy="name an interpreter with such a torch: --python",
    )


def _cpu_only(python: str, software: Mapping[str, Any]) -> Finding:
    return _blocking(
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
    return _blocking(
        "backend-missing",
        python,
        what=f"this torch was built without {backend}",
        got=f"torch {software['torch']} with backends: {there}",
        expected=f"a torch whose torch.distributed has {backend}",
        remedy="install another build of torch there, or name another interpreter with --python",
    )


def not_staged(python: str, error: Exception) -> Finding:
    """The worker's zip could not be put into the run folder."""
    return _blocking(
        "worker-not-staged",
        python,
        what="the worker could not be written into the run folder",
        got=str(error),
        expected="room for less than a MiB, and an installation of cpinfra that is whole",
        remedy="free some space, give another folder with --run-dir, or install cpinfra again",
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


def fork_unsafe(python: str, reasons: list[str]) -> Finding:
    """Something that torch imports started what a fork must not copy."""
    return _blocking(
        "fork-unsafe",
        python,
        what="ranks cannot be forked safely from this interpreter after importing torch",
        got="; ".join(reasons),
        expected="one thread and no CUDA context after `import torch`",
        remedy="find what starts it at import: a .pth file, sitecustomize, an autoload backend "
        "(TORCH_DEVICE_BACKEND_AUTOLOAD=0)",
    )


def no_room(python: str, text: str) -> Finding:
    """No folder of this node could hold the ledger."""
    return _blocking(
        "node-folder-no-room",
        python,
        what="no folder of this node can hold the ranks' ledger",
        got=text,
        expected="a few MiB in /dev/shm, TMPDIR or /tmp",
        remedy="free some space, or point TMPDIR to a local folder with room",
    )


def cannot_fork(python: str, text: str) -> Finding:
    """The kernel refused a process."""
    return _blocking(
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


def zygote_stopped(python: str, state: str) -> Finding:
    """The process that forks ranks does not run, so nothing that its ranks do can be told from it."""
    return _blocking(
        "zygote-stopped",
        python,
        what="the process that forks and ends the ranks is stopped",
        got=f"process state {state} when its ranks were past their budget",
        expected="that it runs until the proof is done",
        remedy="find who stopped it: a debugger, a scheduler, a person; then run again",
    )


def after_all(python: str, kind: str, text: str, trace: str) -> Finding:
    """Ranks raised when every check had been answered: while they closed their groups."""
    words = {
        "door": ("teardown-raised", "torch raised while ranks closed their groups", _TEARDOWN),
        "device": ("device-trouble", "a device failed when the checks were through", _DEVICE),
        "ours": (BUG, "cpinfra itself failed in a rank, when the checks were through", BUG_REMEDY),
    }
    name, what, remedy = words[kind]
    return _blocking(
        name,
        python,
        what=what,
        got=f"{text}\n{trace}".strip(),
        expected="that ranks leave their groups and end",
        remedy=remedy,
    )


_TEARDOWN = "read the traceback; the data was right, but a program that ends like this exits with an error"
_DEVICE = "look at what holds the memory (nvidia-smi, free -m) and at dmesg, then run it again"


def processes_left(python: str, pids: Collection[int]) -> Finding:
    """Processes of ours that SIGKILL does not end."""
    return _blocking(
        "processes-left",
        python,
        what="processes of this run do not die",
        got=f"pids {', '.join(map(str, pids))} live after SIGKILL",
        expected="none",
        remedy="the kernel holds them, most often in a driver or on a dead file system: look at "
        "/proc/PID/stack and dmesg; only a restart of the machine may end them",
    )


def zygote_died(python: str, how: str, output: str) -> Finding:
    """The process that forks ranks ended on its own."""
    return _blocking(
        "zygote-died",
        python,
        what="the process that forks the ranks died",
        got=f"{how}; its last output: {_quoted(output)}",
        expected="that it lives until the proof is done",
        remedy="find who ended it: the out-of-memory killer (dmesg), a job's limit, a person; then run again",
    )


def worker_bug(python: str, text: str) -> Finding:
    """An exception of ours in the zygote."""
    return _blocking(
        BUG,
        python,
        what="cpinfra itself failed in the target interpreter",
        got=_quoted(text),
        expected="no error of ours",
        remedy=BUG_REMEDY,
    )


def not_fired(faults: list[str]) -> Finding:
    """A planted fault found nothing to act on."""
    return Finding(
        id="fault-not-fired",
        severity=Severity.BLOCKING,
        what="a planted fault never acted, so nothing is known of whether it would be caught",
        got=", ".join(faults),
        expected="that it changes what the chosen checks do or receive",
        remedy="plant it where it can act: choose other checks with --only, or another fault",
    )


def not_caught(missed: Mapping[str, Collection[str]]) -> Finding:
    """Planted faults changed something, and checks that must catch them passed.

    Args:
        missed: fault -> checks in which it acted and that did not fail; none for a fault in a rank's conduct.
    """
    told = [f"{fault} in {', '.join(sorted(checks)) or 'every check'}" for fault, checks in missed.items()]
    return Finding(
        id="fault-not-caught",
        severity=Severity.BLOCKING,
        what="a planted fault acted, and was not noticed where it must be",
        got="; ".join(told),
        expected="that each check fails that declares this twin",
        remedy="a check that misses it proves nothing: mend it, or choose those that declare this twin",
    )


def logs_incomplete(troubles: list[str]) -> Finding:
    """The run folder could not be written to the end."""
    return Finding(
        id="run-folder-full",
        severity=Severity.WARNING,
        what="parts of the run folder could not be written",
        got="; ".join(troubles),
        expected="room for logs and the report",
        remedy="free some space, or give another folder with --run-dir",
    )


def _standing(output: str) -> str:
    """Where the stack in an output stood, if there is one."""
    place = stacks.place(output)
    return f"; it stood at {place}" if place else ""


def _quoted(output: str, limit: int = 600) -> str:
    """The end of foreign text, safe to print."""
    text = output.strip()
    return repr(text if len(text) <= limit else "..." + text[-limit:]) if text else "nothing"

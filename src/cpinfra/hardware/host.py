"""The machine without its GPUs: who it is, what it allows a process here, and what is worth saying of it.

Facts are JSON-shaped, as the section `host` of the report holds them; a value that could not be had is
`{"unavailable": why}`. All of it comes from local files of the kernel, never from a name service; the disk
of the work folder, which alone can block, is asked in a process that may be killed.

Standard library only.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..outcome import Finding
from ..outcome import Severity
from . import cgroups
from . import container
from . import disk
from . import shm

WORKDIR_VARIABLE = "FOLD_CP_WORKDIR"
RECOMMENDED_DISK_GIB = 150
"""A recommendation for checkpoints, data and environments of co-folding models; nothing checks against it."""
SHM_FREE_MIB = 1024
"""What NVIDIA asks for containers. NCCL puts some 10 MiB a connection there, and data loaders their batches;
docker's 64 MiB are too little."""
NOFILE_SOFT = 1024
"""The usual limit of a shell. Each rank holds sockets to the others in every group, and torch a descriptor
for each tensor that it shares."""

_UNLIMITED = cgroups.UNLIMITED
_MIB = 1 << 20
_NAMED_SEGMENTS = 5
_REMOVED_SEGMENTS = 50
_WSL_SIGN = "run/WSL"  # not binfmt_misc, whose mount is made on demand and may block


def workdir(option: str | Path | None, environment: Mapping[str, str]) -> Path:
    """The folder whose disk is measured: `--workdir`, else FOLD_CP_WORKDIR, else the current folder."""
    named = option or environment.get(WORKDIR_VARIABLE)
    return Path(named) if named else _current_folder()


def machine_id(root: Path = Path("/")) -> str | dict[str, str]:
    """Which installation of a system this is; machines that were cloned may share it."""
    return _machine_id(root / "etc/machine-id")


def boot_id(root: Path = Path("/")) -> str | dict[str, str]:
    """Which start of the machine this is."""
    return _line(root / "proc/sys/kernel/random/boot_id")


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path()  # it was removed: its disk will be unavailable, with that reason


def describe(
    workdir: Path, *, environment: Mapping[str, str] = os.environ, root: Path = Path("/")
) -> dict[str, Any]:
    """The section `host` of the report, without its findings.

    Args:
        workdir: the folder whose disk is measured; it need not exist.
        environment: of this process, read for signs of a container.
        root: where the file system starts; `workdir` is not below it.
    """
    kernel = _line(root / "proc/sys/kernel/osrelease")
    return {
        "hostname": _line(root / "proc/sys/kernel/hostname"),
        "machine_id": machine_id(root),
        "boot_id": boot_id(root),
        "kernel": kernel,
        "container": container.kind(environment, root),
        "wsl": _wsl(kernel, root),
        "cpus": _cpus(root),
        "memory": _memory(root),
        "shm": shm.describe(root),
        "limits": _limits(),
        "disk": disk.describe(workdir, environment),
    }


def _line(path: Path) -> str | dict[str, str]:
    """The text of a file of one line."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError as error:
        return {"unavailable": f"{path}: {error.strerror or error}"}
    return text or {"unavailable": f"{path} is empty"}


def _machine_id(path: Path) -> str | dict[str, str]:
    """systemd writes `uninitialized` there until the first boot is done."""
    text = _line(path)
    return {"unavailable": f"{path} is not initialised"} if text == "uninitialized" else text


def _wsl(kernel: str | dict[str, str], root: Path) -> bool | dict[str, str]:
    """Microsoft's kernels say so in their release; others, built by users, by a folder of their init."""
    if os.access(root / _WSL_SIGN, os.F_OK):
        return True
    return "microsoft" in kernel.lower() if isinstance(kernel, str) else kernel


def _cpus(root: Path) -> dict[str, Any]:
    return {
        "affinity": len(os.sched_getaffinity(0)),
        "cgroup_quota": cgroups.cpu_quota(root),
        "online": _online(root / "sys/devices/system/cpu/online"),
    }


def _online(path: Path) -> int | dict[str, str]:
    text = _line(path)
    if not isinstance(text, str):
        return text
    count = count_cpus(text)
    return {"unavailable": f"{path} says {text[:80]!r}, which is no list of CPUs"} if count is None else count


def count_cpus(text: str) -> int | None:
    """How many CPUs a list such as `0-3,8` names; None where it is no such list."""
    if not re.fullmatch(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*", text):
        return None
    ends = [[int(end) for end in part.split("-")] for part in text.split(",")]
    if any(end[0] > end[-1] for end in ends):
        return None
    return sum(end[-1] - end[0] + 1 for end in ends)


def _memory(root: Path) -> dict[str, Any]:
    path, limit = root / "proc/meminfo", cgroups.memory_limit_bytes(root)
    text = _line(path)
    return {
        "total_mib": meminfo_mib(text, "MemTotal", path) if isinstance(text, str) else text,
        "available_mib": meminfo_mib(text, "MemAvailable", path) if isinstance(text, str) else text,
        "cgroup_limit_mib": limit // _MIB if isinstance(limit, int) else limit,
    }


def meminfo_mib(text: str, name: str, path: Path) -> int | dict[str, str]:
    """A value of /proc/meminfo in MiB, unavailable where there is no such line.

    Args:
        text: the file.
        name: of the value.
        path: the file's, for the reason.
    """
    found = re.search(rf"^{re.escape(name)}: *([0-9]{{1,15}}) kB$", text, flags=re.MULTILINE)
    return int(found[1]) // 1024 if found else {"unavailable": f"{path} has no {name} in kB"}


def _limits() -> dict[str, Any]:
    files, locked = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "nofile_soft": _limit(files[0]),
        "nofile_hard": _limit(files[1]),
        "memlock_soft_kib": _limit(locked[0], unit=1024),
        "memlock_hard_kib": _limit(locked[1], unit=1024),
    }


def _limit(value: int, *, unit: int = 1) -> int | str:
    return _UNLIMITED if value == resource.RLIM_INFINITY else value // unit


def findings(facts: Mapping[str, Any]) -> list[Finding]:
    """What is worth saying of the host.

    Args:
        facts: what `describe` gave.
    """
    return [
        *_disk_findings(facts["disk"]),
        *_shm_findings(facts["shm"]),
        *_stale_findings(facts["shm"]["stale_segments"]),
        *_nofile_findings(facts["limits"]),
    ]


def _why(value: Any) -> str:
    """Why a value is unavailable, empty where it is there."""
    return str(value["unavailable"]) if isinstance(value, Mapping) else ""


def _disk_findings(facts: Mapping[str, Any]) -> list[Finding]:
    free, unknown = facts["free_gib"], _why(facts["free_gib"])
    if not unknown and free >= RECOMMENDED_DISK_GIB:
        return []
    got = f"could not be told: {unknown}" if unknown else f"{free:g} GiB free of {facts['total_gib']:g} GiB"
    knobs = f"name a folder on another disk by --workdir or {WORKDIR_VARIABLE}, or make room"
    return [
        Finding(
            id="disk-unknown" if unknown else "disk-small",
            severity=Severity.WARNING,
            what=f"free disk of the work folder {facts['path']}",
            got=got,
            expected=f"{RECOMMENDED_DISK_GIB} GiB free; a recommendation, no check needs it",
            remedy=f"see why its file system does not answer; {knobs}" if unknown else knobs,
            command=shlex.join(["df", "-h", "--", str(facts["path"])]),
        )
    ]


def _shm_findings(facts: Mapping[str, Any]) -> list[Finding]:
    free, unknown = facts["free_mib"], _why(facts["free_mib"])
    if not unknown and free >= SHM_FREE_MIB:
        return []
    return [
        Finding(
            id="shm-unknown" if unknown else "shm-small",
            severity=Severity.WARNING,
            what="free shared memory in /dev/shm",
            got=f"could not be told: {unknown}"
            if unknown
            else f"{free} MiB free of {facts['total_mib']} MiB",
            expected=f"{SHM_FREE_MIB} MiB free: NCCL and data loaders fail without room there",
            remedy="in a container ask for more (docker run --shm-size=8g, or --ipc=host; in Kubernetes an "
            "emptyDir of medium Memory on /dev/shm), else have it mounted larger",
            command="" if unknown else "df -h /dev/shm",
        )
    ]


def _stale_findings(segments: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> list[Finding]:
    if isinstance(segments, Mapping) or not segments:
        return []  # why /dev/shm cannot be looked at is said of its size
    names = [segment["name"] for segment in segments]
    more = len(names) - _NAMED_SEGMENTS
    listed = ", ".join(names[:_NAMED_SEGMENTS]) + (f" and {more} more" if more > 0 else "")
    size_mib = sum(segment["bytes"] for segment in segments) / _MIB
    again = f"; the command has the first {_REMOVED_SEGMENTS}" if len(names) > _REMOVED_SEGMENTS else ""
    return [
        Finding(
            id="shm-stale",
            severity=Severity.INFO,
            what="left in /dev/shm by programs that have ended",
            got=f"{len(names)} with {size_mib:.1f} MiB: {listed}",
            expected="none; they take memory until they are removed",
            remedy="remove them by hand, cpinfra does not; where containers with pids of their own share "
            f"/dev/shm, look there first{again}",
            command=shlex.join(
                ["rm", "-r", "--", *(f"/dev/shm/{name}" for name in names[:_REMOVED_SEGMENTS])]
            ),
        )
    ]


def _nofile_findings(facts: Mapping[str, Any]) -> list[Finding]:
    soft, hard = facts["nofile_soft"], facts["nofile_hard"]
    if not isinstance(soft, int) or soft >= NOFILE_SOFT:
        return []
    raised = hard == _UNLIMITED or (isinstance(hard, int) and hard >= NOFILE_SOFT)
    by_hand = "raise the soft limit in the shell that starts the run"
    by_admin = f"the hard limit is {hard}: have it raised (limits.conf; docker run --ulimit nofile=65536)"
    return [
        Finding(
            id="nofile-low",
            severity=Severity.WARNING,
            what="open files that a process may have (RLIMIT_NOFILE, soft)",
            got=str(soft),
            expected=f"at least {NOFILE_SOFT}: ranks hold sockets to each other in every group",
            remedy=by_hand if raised else by_admin,
            command=f"ulimit -n {NOFILE_SOFT}" if raised else "",
        )
    ]

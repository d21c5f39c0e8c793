"""Which kind of container this runs in, by what each leaves in its root, and by the control group.

A variable of the environment alone shows nothing for kinds whose jobs hand it on to the host (sbatch called
in a container does so with APPTAINER_CONTAINER).

Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

NONE = "none"

# The innermost first: Apptainer and enroot are started within the others, not around them.
_FILES = (
    ("kubernetes", "run/secrets/kubernetes.io"),
    ("kubernetes", "var/run/secrets/kubernetes.io"),
    ("podman", "run/.containerenv"),
    ("docker", ".dockerenv"),
    ("systemd-nspawn", "run/systemd/nspawn-container"),
    ("lxc", "dev/lxd/sock"),
    ("lxc", "dev/.lxc-boot-id"),
)
_GROUPS = (
    ("kubernetes", r"/kubepods[./-]"),
    ("podman", r"/libpod-"),
    ("docker", r"/docker[/-][0-9a-f]{12}"),
    ("lxc", r"/lxc(\.payload)?/|/lxc\.payload\."),
    ("systemd-nspawn", r"/machine\.slice/systemd-nspawn@|/machine\.slice/machine-[^/]*\.scope/payload"),
    ("containerd", r"/cri-containerd-|/nerdctl-"),
)
# Values of the variable `container`, and of the files that repeat it (systemd's container interface).
_MANAGERS = (
    "docker",
    "podman",
    "lxc",
    "lxc-libvirt",
    "systemd-nspawn",
    "oci",
    "flatpak",
    "bubblewrap",
    "rkt",
)
_MANAGER_FILES = ("run/host/container-manager", "run/systemd/container")


def kind(environment: Mapping[str, str], root: Path = Path("/")) -> str | dict[str, str]:
    """Kind of the container; `none` outside of one, unavailable where that could not be told.

    Args:
        environment: of this process.
        root: where the file system starts.
    """
    inner = _unprivileged(environment, root)
    if inner:
        return inner
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    by_file = next((name for name, path in _FILES if _exists(root / path)), "")
    if by_file:
        return by_file
    named = [environment.get("container", ""), *(_read(root / path) or "" for path in _MANAGER_FILES)]
    manager = next((name.strip() for name in named if name.strip() in _MANAGERS), "")
    return manager or _by_group(_read(root / "proc/self/cgroup"))


def _unprivileged(environment: Mapping[str, str], root: Path) -> str:
    """Those that a user starts within a job: they share all namespaces but that of mounts."""
    if _exists(root / ".singularity.d"):
        old = "SINGULARITY_CONTAINER" in environment and "APPTAINER_CONTAINER" not in environment
        return "singularity" if old else "apptainer"
    # enroot, and pyxis by it, mounts its lock file over itself.
    points = [line.split(" ")[4:5] for line in (_read(root / "proc/self/mountinfo") or "").split("\n")]
    return "enroot" if ["/.lock"] in points else ""


def _by_group(groups: str | None) -> str | dict[str, str]:
    if groups is None:
        return {"unavailable": "no sign of a container, but /proc/self/cgroup cannot be read"}
    return next((name for name, pattern in _GROUPS if re.search(pattern, groups)), NONE)


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except OSError:
        return False  # not there, or in a folder that is closed to us
    return True


def _read(path: Path) -> str | None:
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return None

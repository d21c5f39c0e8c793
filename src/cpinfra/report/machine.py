"""The machine: its host and its GPUs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Count
from .base import FindingFacts
from .base import Section
from .base import Text
from .base import Unavailable

Limit = Count | Literal["unlimited"] | Unavailable


class Cpus(Section):
    """How much of the machine's CPUs a process here may use."""

    affinity: Count | Unavailable = Field(description="CPUs that this process may run on.")
    cgroup_quota: float | Literal["unlimited"] | Unavailable = Field(
        description="CPUs' worth of time that the control group allows; the strictest of its ancestors."
    )
    online: Count | Unavailable = Field(description="CPUs of the machine that are online.")


class Memory(Section):
    """Main memory."""

    total_mib: Count | Unavailable = Field(description="Memory of the machine in MiB.")
    available_mib: Count | Unavailable = Field(
        description="What could be had without swapping, by the kernel's estimate, in MiB."
    )
    cgroup_limit_mib: Limit = Field(
        description="What the control group allows in MiB, the strictest of its ancestors."
    )


class StaleSegment(Section):
    """A file in /dev/shm that nobody uses any more."""

    name: str = Field(description="Its name.")
    bytes: Count = Field(description="Its size.")
    why: str = Field(description="Why it is taken for stale.")


class Shm(Section):
    """Shared memory: /dev/shm."""

    total_mib: Count | Unavailable = Field(description="Its size in MiB.")
    free_mib: Count | Unavailable = Field(description="What is free of it in MiB.")
    stale_segments: list[StaleSegment] | Unavailable = Field(
        description="Left behind by programs that have ended; never removed by cpinfra."
    )


class Limits(Section):
    """Resource limits of this process."""

    nofile_soft: Limit = Field(description="Open files, RLIMIT_NOFILE, soft.")
    nofile_hard: Limit = Field(description="Open files, RLIMIT_NOFILE, hard.")
    memlock_soft_kib: Limit = Field(description="Locked memory, RLIMIT_MEMLOCK, soft, in KiB.")
    memlock_hard_kib: Limit = Field(description="Locked memory, RLIMIT_MEMLOCK, hard, in KiB.")


class Disk(Section):
    """The disk that checkpoints, containers and data go to."""

    path: str = Field(description="The folder that was asked about, or its nearest ancestor that exists.")
    free_gib: float | Unavailable = Field(description="Free for this user, in GiB.")
    total_gib: float | Unavailable = Field(description="In all, in GiB.")


class Host(Section):
    """The machine without its GPUs."""

    hostname: Text = Field(description="Its name.")
    machine_id: Text = Field(description="/etc/machine-id.")
    boot_id: Text = Field(description="The kernel's id of this boot.")
    kernel: Text = Field(description="Release of the kernel.")
    container: Text = Field(description="Kind of the container that this runs in; `none` outside of one.")
    wsl: bool | Unavailable = Field(description="Whether this is the Windows Subsystem for Linux.")
    cpus: Cpus = Field(description="CPUs.")
    memory: Memory = Field(description="Memory.")
    shm: Shm = Field(description="Shared memory.")
    limits: Limits = Field(description="Resource limits.")
    disk: Disk = Field(description="The disk of the work folder.")
    findings: list[FindingFacts] = Field(description="What was noticed about the host.")


class GpuFacts(Section):
    """One GPU."""

    index: int = Field(description="Index in PCI bus order.")
    uuid: Text = Field(description="NVML's UUID.")
    name: Text = Field(description="Model.")
    compute_capability: Text = Field(description="`major.minor`.")
    memory_total_mib: int | Unavailable = Field(description="Memory in MiB.")
    memory_used_mib: int | Unavailable = Field(description="Memory in use before the run, in MiB.")
    state: Literal["free", "busy", "unusable"] = Field(description="What it was found to be.")
    reasons: list[str] = Field(description="Why it is not free, or why no run of ours uses it; else empty.")
    numa_node: int | Unavailable = Field(description="NUMA node that its bus belongs to.")
    pci_bus_id: Text = Field(description="Address on the PCI bus.")
    mig: bool | Unavailable = Field(description="Whether it is in MIG mode.")


class Topology(Section):
    """How GPUs are linked."""

    source: str = Field(description="What told it.")
    links: dict[str, str] = Field(description='Class of the link of each pair, such as "0-1": "NV18".')
    numa: dict[str, int] = Field(description="NUMA node of each GPU, by its index.")
    nics: list[str] = Field(description="Network cards.")
    pairs: list[str] = Field(description="Pairs that were tried.")


class Hardware(Section):
    """The GPUs and their driver."""

    driver_version: Text = Field(description="Version of the NVIDIA driver.")
    gpus: list[GpuFacts] = Field(description="Every GPU that the driver shows.")
    topology: Topology | Unavailable = Field(description="How they are linked.")
    findings: list[FindingFacts] = Field(description="What was noticed about the GPUs.")

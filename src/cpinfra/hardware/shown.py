"""Every GPU that the driver shows, usable or not: what it is, and how it was found.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import fields
from pathlib import Path
from typing import Any
from typing import TypeVar

from . import nvml

FREE_BELOW_MIB = 1024
_PROHIBITED = 2  # NVML_COMPUTEMODE_PROHIBITED

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Unavailable:
    """In place of a value that could not be had."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownGpu:
    """One GPU as it was found, whoever may use it; the names are those of the report."""

    index: int
    """In PCI bus order."""
    uuid: str | Unavailable
    name: str | Unavailable
    compute_capability: str | Unavailable
    """`major.minor`."""
    memory_total_mib: int | Unavailable
    memory_used_mib: int | Unavailable
    state: str
    """`free`, `busy` (used, or that could not be told), `unusable` (nobody could use it as we need it)."""
    reasons: tuple[str, ...]
    """Why it is not free, and why no run of ours uses it: a free one has only the second, if any."""
    numa_node: int | Unavailable
    pci_bus_id: str | Unavailable
    """As sysfs writes it."""
    mig: bool | Unavailable

    def facts(self) -> dict[str, Any]:
        """As JSON, in the report's form; what is unavailable is `{"unavailable": why}`."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        facts = {n: {"unavailable": v.why} if isinstance(v, Unavailable) else v for n, v in values}
        return {**facts, "reasons": list(self.reasons)}


def describe(machine: nvml.Machine, root: Path, left_out: Callable[[int], str]) -> tuple[ShownGpu, ...]:
    """All of them, in PCI bus order.

    Args:
        machine: NVML's answer.
        root: where the file system starts, for sysfs.
        left_out: why no run of ours uses the GPU of this index although it shows; empty if it may.
    """
    described = [_answering(gpu, root, left_out(gpu.index)) for gpu in machine.seen]
    described += [_silent(gpu, root, left_out(gpu.index)) for gpu in machine.silent]
    return tuple(sorted(described, key=lambda gpu: gpu.index))


def why_not(gpu: nvml.Seen) -> str:
    """Why a GPU could not be used by anyone in the way we need, else empty."""
    return next(_obstacles(gpu), "")


def _obstacles(gpu: nvml.Seen) -> Iterator[str]:
    if gpu.mig:
        yield "MIG mode is on, and MIG instances are not supported"
    if gpu.compute_mode == _PROHIBITED:
        yield "its compute mode is Prohibited (nvidia-smi -c 0 resets it)"


def who_uses(gpu: nvml.Seen) -> str:
    """How a GPU is in use, else empty."""
    if gpu.processes is None and gpu.memory_used_mib is None:
        return "whether it is in use could not be told: neither its processes nor its memory can be read"
    used = f"{gpu.memory_used_mib} MiB used" if gpu.memory_used_mib is not None else "memory unknown"
    if gpu.processes:
        return f"it runs {gpu.processes} compute process(es), {used}"
    if gpu.memory_used_mib is not None and gpu.memory_used_mib > FREE_BELOW_MIB:
        return f"{used} (at most {FREE_BELOW_MIB} MiB counts as free), held by no process that can be seen"
    return ""


def memory(value: int | None) -> int | Unavailable:
    """A size, or why there is none."""
    return _or(value, "the driver cannot say (unified memory)")


def _or(value: T | None, why: str) -> T | Unavailable:
    return Unavailable(why=why) if value is None else value


def _answering(gpu: nvml.Seen, root: Path, left_out: str) -> ShownGpu:
    obstacles, use = list(_obstacles(gpu)), who_uses(gpu)
    return ShownGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        compute_capability=_or(gpu.compute_capability, "the driver does not say"),
        memory_total_mib=memory(gpu.memory_total_mib),
        memory_used_mib=memory(gpu.memory_used_mib),
        state="unusable" if obstacles else "busy" if use else "free",
        reasons=tuple(reason for reason in (*obstacles, use, left_out) if reason),
        numa_node=numa_node(gpu.bus_id, root),
        pci_bus_id=_or(gpu.bus_id, "NVML gives no PCI address"),
        mig=bool(gpu.mig),  # a GPU or driver that does not know the question has no MIG mode to be in
    )


def _silent(gpu: nvml.Silent, root: Path, left_out: str) -> ShownGpu:
    why = Unavailable(why=f"the GPU {gpu.reason}")
    return ShownGpu(
        index=gpu.index,
        uuid=_or(gpu.uuid, why.why),
        name=_or(gpu.name, why.why),
        compute_capability=why,
        memory_total_mib=why,
        memory_used_mib=why,
        state="unusable",
        reasons=tuple(reason for reason in (gpu.reason, left_out) if reason),
        numa_node=numa_node(gpu.bus_id, root) if gpu.bus_id else why,
        pci_bus_id=_or(gpu.bus_id, why.why),
        mig=why,
    )


def numa_node(bus_id: str | None, root: Path) -> int | Unavailable:
    """The NUMA node of a device on the PCI bus; the kernel writes -1 where the firmware names none.

    Args:
        bus_id: as sysfs writes it; None where NVML gave none.
        root: where the file system starts.
    """
    if bus_id is None:
        return Unavailable(why="NVML gives no PCI address")
    path = root / "sys/bus/pci/devices" / bus_id / "numa_node"
    try:
        node = int(path.read_text())
    except OSError as error:
        return Unavailable(why=f"{path}: {error.strerror or error}")
    except ValueError:
        return Unavailable(why=f"{path} holds no number")
    return node if node >= 0 else Unavailable(why="the firmware names no NUMA node for it")

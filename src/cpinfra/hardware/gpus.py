"""Which GPUs a run may use, and what stands in the way of the others.

Those of CUDA_VISIBLE_DEVICES where it is set, else those that run no compute process and have at most
1 GiB of memory in use. Always as UUIDs; indices are in PCI bus order. NVML is asked in a child process that
may be killed, since a driver can block for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import nvml
from . import visible

FREE_BELOW_MIB = 1024
_PROHIBITED = 2  # NVML_COMPUTEMODE_PROHIBITED
_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS = (
    "usr/lib",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unavailable:
    """In place of a value that could not be had."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One usable GPU."""

    index: int
    """In PCI bus order."""
    uuid: str
    name: str
    memory_total_mib: int | Unavailable
    memory_used_mib: int | Unavailable


@dataclass(frozen=True, kw_only=True, slots=True)
class BusyGpu:
    """One GPU that is there and must not, or cannot, be used."""

    index: int
    label: str
    """Its UUID and name, or its index where it does not even answer."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuAnswer:
    """Which GPUs may be used."""

    state: str
    """`gpus`: at least one. `none`: the driver answers, and none may be used. `no-driver`: there is no
    NVIDIA driver. `hung`: the driver does not answer. `error`: it could not be told."""
    gpus: tuple[Gpu, ...] = ()
    busy: tuple[BusyGpu, ...] = ()
    reason: str = ""
    """Why there is none, unless `state` is `gpus`."""
    remedy: str = ""
    driver_version: str | Unavailable = Unavailable(why="the driver was not asked")
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def usable_gpus(
    environment: Mapping[str, str],
    timeout_s: float,
    *,
    argv: Sequence[str] | None = None,
    root: Path = Path("/"),
) -> GpuAnswer:
    """Which GPUs a run may use.

    Args:
        environment: read for CUDA_VISIBLE_DEVICES, and handed to the child.
        timeout_s: how long the driver may take to answer, in seconds.
        argv: the program that writes NVML's answer, see nvml_child.py; ours by default.
        root: where the file system starts, for a look at whether there is a driver at all.
    """
    if not driver_seen(environment, root):
        return _no_driver(root)
    value = environment.get(visible.VARIABLE)
    if value is not None and visible.hides_all(value):
        reason = f"{visible.VARIABLE}={value!r} hides every GPU"
        return GpuAnswer(state="none", reason=reason, remedy=f"unset {visible.VARIABLE} to use GPUs")
    try:
        machine = nvml.machine(environment, timeout_s, argv)
    except nvml.NoAnswerError as error:
        return _no_answer(error, root)
    return _free(machine) if value is None else _named(machine, value, environment)


def driver_seen(environment: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Whether there is any sign of an NVIDIA driver; costs no process."""
    folders = [root / folder for folder in _LIBRARY_FOLDERS]
    folders += [Path(folder) for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if _kernel_driver_seen(root) or any((folder / _LIBRARY).exists() for folder in folders):
        return True
    try:
        return _LIBRARY.encode() in (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return False  # no cache: the loader knows its default folders only, and those were looked at


def _kernel_driver_seen(root: Path) -> bool:
    return any((root / sign).exists() for sign in ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg"))


def _no_answer(error: nvml.NoAnswerError, root: Path) -> GpuAnswer:
    state = error.state
    if state == "no-library":
        state = "error" if _kernel_driver_seen(root) else "no-driver"
    return GpuAnswer(state=state, reason=error.reason, remedy=error.remedy)


def _no_driver(root: Path) -> GpuAnswer:
    boards = sum(map(_is_nvidia_gpu, (root / "sys/bus/pci/devices").glob("*")))
    if boards:
        reason = f"no NVIDIA driver, although the PCI bus shows {boards} NVIDIA GPU(s)"
        remedy = "install the driver, or start this container with access to the GPUs (docker run --gpus all)"
    else:
        reason, remedy = "no NVIDIA driver and no NVIDIA GPU on the PCI bus", "run on a machine with GPUs"
    warnings = (f"{reason}; {remedy}",) if boards else ()
    absent = Unavailable(why="there is no NVIDIA driver")
    return GpuAnswer(
        state="no-driver", reason=reason, remedy=remedy, driver_version=absent, warnings=warnings
    )


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == "0x10de" and kind.startswith("0x03")


def _free(machine: nvml.Machine) -> GpuAnswer:
    """Those that nobody uses."""
    busy = {gpu.index: _why_not(gpu) or _who_uses(gpu) for gpu in machine.seen}
    return _answer(machine, [gpu for gpu in machine.seen if not busy[gpu.index]], busy)


def _named(machine: nvml.Machine, value: str, environment: Mapping[str, str]) -> GpuAnswer:
    """Those of CUDA_VISIBLE_DEVICES: whoever set it has chosen, so use by others is only told."""
    listed = [visible.Listed(index=gpu.index, uuid=gpu.uuid, name=gpu.name) for gpu in machine.seen]
    names = visible.resolve(value, listed, environment)
    if names.refused:
        remedy, driver = f"correct or unset {visible.VARIABLE}", machine.driver_version
        return GpuAnswer(state="error", reason=names.refused, remedy=remedy, driver_version=driver)
    by_index = {gpu.index: gpu for gpu in machine.seen}
    named = [by_index[index] for index in names.indices]
    unusable = {gpu.index: _why_not(gpu) for gpu in named}
    uses = [(gpu, _who_uses(gpu)) for gpu in named]
    used = [f"{gpu.label} is named by {visible.VARIABLE}, and {use}" for gpu, use in uses if use]
    warnings = (*names.warnings, *used)
    usable = [gpu for gpu in named if not unusable[gpu.index]]
    return _answer(machine, usable, unusable, notes=names.notes, warnings=warnings)


def _answer(
    machine: nvml.Machine,
    usable: Sequence[nvml.Seen],
    reasons: Mapping[int, str],
    *,
    notes: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
) -> GpuAnswer:
    kept = [gpu for gpu in machine.seen if reasons.get(gpu.index)]
    busy = [BusyGpu(index=gpu.index, label=gpu.label, reason=reasons[gpu.index]) for gpu in kept]
    busy += [BusyGpu(index=gpu.index, label=f"GPU {gpu.index}", reason=gpu.reason) for gpu in machine.silent]
    busy.sort(key=lambda gpu: gpu.index)
    names = "; ".join(f"{gpu.label}: {gpu.reason}" for gpu in busy)
    total = len(machine.seen) + len(machine.silent)
    none = f"none of {total} GPU(s) may be used: {names}" if total else "the driver is there and shows no GPU"
    help_ = "wait, or name those that are yours in CUDA_VISIBLE_DEVICES" if total else "see nvidia-smi -L"
    return GpuAnswer(
        state="gpus" if usable else "none",
        gpus=tuple(_public(gpu) for gpu in usable),
        busy=tuple(busy),
        reason="" if usable else none,
        remedy="" if usable else help_,
        driver_version=machine.driver_version,
        notes=notes,
        warnings=warnings,
    )


def _public(gpu: nvml.Seen) -> Gpu:
    unknown = Unavailable(why="the driver cannot say (unified memory)")
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        memory_total_mib=unknown if gpu.memory_total_mib is None else gpu.memory_total_mib,
        memory_used_mib=unknown if gpu.memory_used_mib is None else gpu.memory_used_mib,
    )


def _why_not(gpu: nvml.Seen) -> str:
    """Why a GPU could not be used by anyone in the way we need, else empty."""
    if gpu.mig:
        return "MIG mode is on, and MIG instances are not supported"
    if gpu.compute_mode == _PROHIBITED:
        return "its compute mode is Prohibited (nvidia-smi -c 0 resets it)"
    return ""


def _who_uses(gpu: nvml.Seen) -> str:
    """How a GPU is in use, else empty."""
    if gpu.processes is None and gpu.memory_used_mib is None:
        return "whether it is in use could not be told: neither its processes nor its memory can be read"
    used = f"{gpu.memory_used_mib} MiB used" if gpu.memory_used_mib is not None else "memory unknown"
    if gpu.processes:
        return f"it runs {gpu.processes} compute process(es), {used}"
    if gpu.memory_used_mib is not None and gpu.memory_used_mib > FREE_BELOW_MIB:
        return f"{used} (at most {FREE_BELOW_MIB} MiB counts as free), held by no process that can be seen"
    return ""

"""Which GPUs a run may use, and what stands in the way of the others.

Those of CUDA_VISIBLE_DEVICES where it is set, else those that run no compute process and have at most
1 GiB of memory in use. Always as UUIDs; indices are in PCI bus order. NVML is asked in a child process that
may be killed, since a driver can block for ever. Where it shows no GPU, the PCI bus has the last word: boards
without a driver are no machine without GPUs.
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
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"  # display controllers; what a data-centre GPU is too
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
class Remark:
    """Something about how the GPUs were chosen that the user may not have meant."""

    kind: str
    """`order`: numbers were counted in PCI bus order. `cut-short`: CUDA_VISIBLE_DEVICES names GPUs that CUDA
    ignores. `in-use`: a GPU that it names is used by others as well."""
    text: str
    is_warning: bool
    """Whether it probably matters; else it is only told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuAnswer:
    """Which GPUs may be used."""

    state: str
    """`gpus`: at least one. `hidden`: none, by the wish of the user or the batch system. `absent`: there is
    no sign of an NVIDIA GPU. `none`: the driver answers, and shows none, or none that may be used.
    `no-driver`: there is a sign of GPUs, and no driver that is loaded. `hung`: the driver does not answer.
    `error`: it could not be told."""
    gpus: tuple[Gpu, ...] = ()
    busy: tuple[BusyGpu, ...] = ()
    reason: str = ""
    """Why there is none, unless `state` is `gpus`."""
    remedy: str = ""
    driver_version: str | Unavailable = Unavailable(why="the driver was not asked")
    remarks: tuple[Remark, ...] = ()


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
        root: where the file system starts, for a look at the PCI bus and at whether there is a driver at all.
    """
    boards, has_driver = boards_seen(root), driver_seen(environment, root)
    if not boards and not has_driver:
        return _absent("no NVIDIA driver")
    value = environment.get(visible.VARIABLE)
    if value is not None and visible.hides_all(value):
        reason = f"{visible.VARIABLE}={value!r} hides every GPU"
        return GpuAnswer(state="hidden", reason=reason, remedy=f"unset {visible.VARIABLE} to use GPUs")
    if not has_driver:
        return _no_driver("no NVIDIA driver is installed", boards)
    try:
        machine = nvml.machine(environment, timeout_s, argv)
    except nvml.NoAnswerError as error:
        return _no_answer(error, boards, kernel=_kernel_driver_seen(root))
    if not machine.seen and not machine.silent:
        return _none_shown(machine, boards)
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


def boards_seen(root: Path = Path("/")) -> tuple[str, ...]:
    """PCI addresses of the NVIDIA display devices on the bus, whether or not anything drives them."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    return tuple(device.name for device in devices if _is_nvidia_gpu(device))


def _is_nvidia_gpu(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY_CLASS)


def _on_the_bus(boards: Sequence[str]) -> str:
    if not boards:
        return "the PCI bus shows no NVIDIA GPU"
    return f"the PCI bus shows {len(boards)} NVIDIA GPU(s): {', '.join(boards)}"


def _no_answer(error: nvml.NoAnswerError, boards: Sequence[str], *, kernel: bool) -> GpuAnswer:
    """NVML did not answer: the machine has no GPU only if nothing else says that it has one.

    Args:
        error: what NVML, or the child that asks it, said.
        boards: what is on the PCI bus.
        kernel: whether there is a sign of the driver's part in the kernel.
    """
    gone = error.state == "no-driver" or (error.state == "no-library" and not kernel)
    if gone and (boards or kernel):
        return _no_driver(error.reason, boards)
    if gone:
        return _absent(error.reason)
    state = "error" if error.state == "no-library" else error.state
    return GpuAnswer(state=state, reason=error.reason, remedy=error.remedy)


def _absent(reason: str) -> GpuAnswer:
    absent = Unavailable(why="there is no NVIDIA driver")
    reason = f"{reason} and no NVIDIA GPU on the PCI bus"
    return GpuAnswer(
        state="absent", reason=reason, remedy="run on a machine with GPUs", driver_version=absent
    )


def _no_driver(reason: str, boards: Sequence[str]) -> GpuAnswer:
    remedy = "load the driver (modprobe nvidia; dmesg says why that fails), or install it; "
    return GpuAnswer(
        state="no-driver",
        reason=f"{reason}; {_on_the_bus(boards)}",
        remedy=f"{remedy}in a container ask for access to the GPUs (docker run --gpus all)",
        driver_version=Unavailable(why="the NVIDIA driver is not loaded"),
    )


def _none_shown(machine: nvml.Machine, boards: Sequence[str]) -> GpuAnswer:
    """The driver is there and counts zero: boards that fell off the bus, or that this process may not see."""
    remedy = "see dmesg for Xid 79 (fallen off the bus), then reset the GPU or reboot; in a batch job or a "
    return GpuAnswer(
        state="none",
        reason=f"the NVIDIA driver is there and shows no GPU; {_on_the_bus(boards)}",
        remedy=f"{remedy}container ask for GPUs",
        driver_version=machine.driver_version,
    )


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
    remarks = _remarks(names, value) + [Remark(kind="in-use", text=text, is_warning=True) for text in used]
    usable = [gpu for gpu in named if not unusable[gpu.index]]
    return _answer(machine, usable, unusable, tuple(remarks))


def _remarks(names: visible.Visible, value: str) -> list[Remark]:
    """On the list itself: where CUDA stopped to read, if it did, is said before how numbers were counted."""
    cut = int(len(names.indices) < len(value.split(",")))
    kinds = ["cut-short"] * cut + ["order"] * (len(names.warnings) - cut)
    told = [Remark(kind="order", text=note, is_warning=False) for note in names.notes]
    warned = zip(kinds, names.warnings, strict=False)
    return told + [Remark(kind=kind, text=text, is_warning=True) for kind, text in warned]


def _answer(
    machine: nvml.Machine,
    usable: Sequence[nvml.Seen],
    reasons: Mapping[int, str],
    remarks: tuple[Remark, ...] = (),
) -> GpuAnswer:
    kept = [gpu for gpu in machine.seen if reasons.get(gpu.index)]
    busy = [BusyGpu(index=gpu.index, label=gpu.label, reason=reasons[gpu.index]) for gpu in kept]
    busy += [BusyGpu(index=gpu.index, label=f"GPU {gpu.index}", reason=gpu.reason) for gpu in machine.silent]
    busy.sort(key=lambda gpu: gpu.index)
    names = "; ".join(f"{gpu.label}: {gpu.reason}" for gpu in busy)
    total = len(machine.seen) + len(machine.silent)
    none = f"none of {total} GPU(s) may be used: {names}"
    help_ = f"wait, or name those that are yours in {visible.VARIABLE}"
    return GpuAnswer(
        state="gpus" if usable else "none",
        gpus=tuple(_public(gpu) for gpu in usable),
        busy=tuple(busy),
        reason="" if usable else none,
        remedy="" if usable else help_,
        driver_version=machine.driver_version,
        remarks=remarks,
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

"""Which GPUs a run may use, and what stands in the way of the others.

Those of CUDA_VISIBLE_DEVICES where it is set, else those that run no compute process and have at most
1 GiB of memory in use. Always as UUIDs; indices are in PCI bus order. NVML is asked in a child process that
may be killed, since a driver can block for ever. Where it shows no GPU, the PCI bus has the last word: boards
without a driver are no machine without GPUs.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from . import nvml
from . import shown
from . import visible
from .shown import ShownGpu
from .shown import Unavailable

__all__ = [
    "NOT_ASKED",
    "BusyGpu",
    "Gpu",
    "GpuAnswer",
    "Remark",
    "ShownGpu",
    "Unavailable",
    "boards_seen",
    "driver_seen",
    "usable_gpus",
    "without_asking",
]

NOT_ASKED = Unavailable(why="the driver was not asked")
"""Of its version, where a variable hides all GPUs."""
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
    ignores. `in-use`: a GPU that it names is used by others as well. `by-torch`: NVML was not asked."""
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
    driver_version: str | Unavailable = NOT_ASKED
    remarks: tuple[Remark, ...] = ()
    shown: tuple[ShownGpu, ...] = ()
    """Every GPU that the driver shows, as it was found; empty where it was not asked or gave no answer."""
    cuda_driver: str | Unavailable = NOT_ASKED
    """Newest CUDA version that the driver supports, such as "13.0"."""


def usable_gpus(
    environment: Mapping[str, str],
    timeout_s: float,
    *,
    argv: Sequence[str] | None = None,
    root: Path = Path("/"),
    show_hidden: bool = False,
) -> GpuAnswer:
    """Which GPUs a run may use, and all that show.

    Args:
        environment: read for CUDA_VISIBLE_DEVICES, and handed to the child.
        timeout_s: how long the driver may take to answer, in seconds.
        argv: the program that writes NVML's answer, see nvml_child.py; ours by default.
        root: where the file system starts, for a look at the PCI bus and at whether there is a driver at all.
        show_hidden: whether to ask the driver what it shows even where CUDA_VISIBLE_DEVICES hides all GPUs.
    """
    plain = without_asking(environment, root, show_hidden=show_hidden)
    if plain is not None:
        return plain
    boards, value = boards_seen(root), environment.get(visible.VARIABLE)
    try:
        machine = nvml.machine(environment, timeout_s, argv)
    except nvml.NoAnswerError as error:
        return _no_answer(error, boards, kernel=_kernel_driver_seen(root))
    if not machine.seen and not machine.silent:
        return _none_shown(machine, boards)
    return _free(machine, root) if value is None else _named(machine, value, environment, root)


def without_asking(
    environment: Mapping[str, str], root: Path = Path("/"), *, show_hidden: bool = False
) -> GpuAnswer | None:
    """The answer where it takes no question to the driver: there is none, or all GPUs are hidden; else None.

    Arguments as for `usable_gpus`.
    """
    boards, has_driver = boards_seen(root), driver_seen(environment, root)
    if not boards and not has_driver:
        return _absent("no NVIDIA driver")
    value = environment.get(visible.VARIABLE)
    if value is not None and visible.hides_all(value) and not show_hidden:
        return _hidden(value)
    return None if has_driver else _no_driver("no NVIDIA driver is installed", boards)


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
    state, why = "error" if error.state == "no-library" else error.state, Unavailable(why=error.reason)
    return GpuAnswer(
        state=state, reason=error.reason, remedy=error.remedy, driver_version=why, cuda_driver=why
    )


def _absent(reason: str) -> GpuAnswer:
    absent = Unavailable(why="there is no NVIDIA driver")
    reason = f"{reason} and no NVIDIA GPU on the PCI bus"
    return GpuAnswer(
        state="absent",
        reason=reason,
        remedy="run on a machine with GPUs",
        driver_version=absent,
        cuda_driver=absent,
    )


def _no_driver(reason: str, boards: Sequence[str]) -> GpuAnswer:
    remedy = "load the driver (modprobe nvidia; dmesg says why that fails), or install it; "
    not_loaded = Unavailable(why="the NVIDIA driver is not loaded")
    return GpuAnswer(
        state="no-driver",
        reason=f"{reason}; {_on_the_bus(boards)}",
        remedy=f"{remedy}in a container ask for access to the GPUs (docker run --gpus all)",
        driver_version=not_loaded,
        cuda_driver=not_loaded,
    )


def _none_shown(machine: nvml.Machine, boards: Sequence[str]) -> GpuAnswer:
    """The driver is there and counts zero: boards that fell off the bus, or that this process may not see."""
    remedy = "see dmesg for Xid 79 (fallen off the bus), then reset the GPU or reboot; in a batch job or a "
    return GpuAnswer(
        state="none",
        reason=f"the NVIDIA driver is there and shows no GPU; {_on_the_bus(boards)}",
        remedy=f"{remedy}container ask for GPUs",
        driver_version=machine.driver_version,
        cuda_driver=_cuda_driver(machine),
    )


def _hidden(value: str) -> GpuAnswer:
    reason = f"{visible.VARIABLE}={value!r} hides every GPU"
    return GpuAnswer(state="hidden", reason=reason, remedy=f"unset {visible.VARIABLE} to use GPUs")


def _cuda_driver(machine: nvml.Machine) -> str | Unavailable:
    why = "NVML does not find the driver's libcuda.so.1, which says it (in a container: capability `compute`)"
    return Unavailable(why=why) if machine.cuda_driver is None else machine.cuda_driver


def _with_shown(
    answer: GpuAnswer, machine: nvml.Machine, root: Path, *, named: Collection[int], left_out: str = ""
) -> GpuAnswer:
    """The answer with all that the driver shows.

    Args:
        answer: which GPUs may be used.
        machine: what NVML said.
        root: where the file system starts.
        named: indices of those that a run of ours may use unless something else stands in the way.
        left_out: why it may not use the others.
    """
    return replace(
        answer,
        shown=shown.describe(machine, root, lambda index: "" if index in named else left_out),
        driver_version=machine.driver_version,
        cuda_driver=_cuda_driver(machine),
    )


def _free(machine: nvml.Machine, root: Path) -> GpuAnswer:
    """Those that nobody uses."""
    busy = {gpu.index: shown.why_not(gpu) or shown.who_uses(gpu) for gpu in machine.seen}
    answer = _answer(machine, [gpu for gpu in machine.seen if not busy[gpu.index]], busy)
    everyone = [gpu.index for gpu in machine.seen] + [gpu.index for gpu in machine.silent]
    return _with_shown(answer, machine, root, named=everyone)


def _named(machine: nvml.Machine, value: str, environment: Mapping[str, str], root: Path) -> GpuAnswer:
    """Those of CUDA_VISIBLE_DEVICES: whoever set it has chosen, so use by others is only told."""
    if visible.hides_all(value):
        answer = _hidden(value)
        return _with_shown(answer, machine, root, named=(), left_out=answer.reason)
    listed = [visible.Listed(index=gpu.index, uuid=gpu.uuid, name=gpu.name) for gpu in machine.seen]
    names = visible.resolve(value, listed, environment)
    if names.refused:
        remedy = f"correct or unset {visible.VARIABLE}"
        answer = GpuAnswer(state="error", reason=names.refused, remedy=remedy)
        left_out = f"{visible.VARIABLE}={value!r} names no GPU that a run of ours could use"
        return _with_shown(answer, machine, root, named=(), left_out=left_out)
    # CUDA stops at the first entry that it cannot use: what follows may name a GPU, and is not looked at.
    what = "not among those that CUDA takes from" if len(names.indices) < _entries(value) else "not named by"
    left_out = f"{what} {visible.VARIABLE}={value!r}, so no run of ours uses it"
    answer = _chosen(machine, names, value)
    return _with_shown(answer, machine, root, named=names.indices, left_out=left_out)


def _entries(value: str) -> int:
    return len(value.split(","))


def _chosen(machine: nvml.Machine, names: visible.Visible, value: str) -> GpuAnswer:
    by_index = {gpu.index: gpu for gpu in machine.seen}
    named = [by_index[index] for index in names.indices]
    unusable = {gpu.index: shown.why_not(gpu) for gpu in named}
    uses = [(gpu, shown.who_uses(gpu)) for gpu in named]
    used = [f"{gpu.label} is named by {visible.VARIABLE}, and {use}" for gpu, use in uses if use]
    remarks = _remarks(names, value) + [Remark(kind="in-use", text=text, is_warning=True) for text in used]
    usable = [gpu for gpu in named if not unusable[gpu.index]]
    return _answer(machine, usable, unusable, tuple(remarks))


def _remarks(names: visible.Visible, value: str) -> list[Remark]:
    """On the list itself: where CUDA stopped to read, if it did, is said before how numbers were counted."""
    cut = int(len(names.indices) < _entries(value))
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
        remarks=remarks,
    )


def _public(gpu: nvml.Seen) -> Gpu:
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        memory_total_mib=shown.memory(gpu.memory_total_mib),
        memory_used_mib=shown.memory(gpu.memory_used_mib),
    )

"""Which GPUs a run may use, by the word of torch: for an interpreter without nvidia-ml-py.

torch is asked in a process that may be killed, as NVML is. It counts no processes, so that a GPU is taken
for used by the memory that is not free alone: who holds little of it is not seen, and a remark says so. What
torch does not show, since CUDA_VISIBLE_DEVICES hides it, is not known at all.

Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import child
from . import gpus
from . import shown
from . import visible
from .gpus import BusyGpu
from .gpus import Gpu
from .gpus import GpuAnswer
from .gpus import Remark
from .shown import ShownGpu
from .shown import Unavailable

_SILENT = Unavailable(why="torch does not say")
_REMARK = "torch was asked for the GPUs, as NVML is not at hand: another's process is seen only if it holds "
_LOOK = "run nvidia-smi and see what it says"


class UnreadableError(Exception):
    """The process gave no answer that could be read; the text says what it gave."""


def usable_gpus(
    environment: Mapping[str, str], timeout_s: float, argv: Sequence[str], root: Path = Path("/")
) -> GpuAnswer:
    """The same as `gpus.usable_gpus`, from another source.

    Args:
        environment: read for CUDA_VISIBLE_DEVICES, and handed to the child.
        timeout_s: how long torch and the driver may take to answer, in seconds.
        argv: the program that writes the document that worker/torch_gpus.py describes.
        root: where the file system starts.
    """
    plain = gpus.without_asking(environment, root)
    if plain is not None:
        return plain
    named = environment.get(visible.VARIABLE)
    if named is not None and "MIG-" in named:
        refused = f"{visible.VARIABLE}={named!r}: MIG instances are not supported; name whole GPUs"
        return GpuAnswer(state="error", reason=refused, remedy=f"correct or unset {visible.VARIABLE}")
    answer = child.ask(
        argv, environment={**environment, visible.ORDER_VARIABLE: "PCI_BUS_ID"}, timeout_s=timeout_s
    )
    if answer.state == "hung":
        left = f"; process {answer.left_behind} does not even die" if answer.left_behind else ""
        reason = f"torch and the NVIDIA driver did not answer within {timeout_s:g} s{left}"
        return GpuAnswer(state="hung", reason=reason, remedy="look for Xid messages (dmesg), or reboot")
    try:
        return of_document(_document(answer), root, chosen=named is not None)
    except UnreadableError as error:
        return GpuAnswer(state="error", reason=str(error), remedy=_LOOK, driver_version=driver_version(root))


def driver_version(root: Path = Path("/")) -> str | Unavailable:
    """The version of the driver that is loaded, by the kernel's own word."""
    path = root / "sys/module/nvidia/version"
    try:
        text = path.read_text().strip()
    except OSError as error:
        return Unavailable(why=f"{path}: {error.strerror or error}")
    return text or Unavailable(why=f"{path} is empty")


def _document(answer: child.ChildAnswer) -> Mapping[str, Any]:
    """What the process wrote.

    Raises:
        UnreadableError: it is no such document, or says why there is none.
    """
    words = answer.stderr.decode(errors="backslashreplace").strip().splitlines()
    ended = answer.reason or answer.died_by or f"{answer.state}, exit status {answer.returncode}"
    if answer.state != "exited" or answer.returncode != 0:
        last = f": {words[-1][:300]}" if words else ""
        raise UnreadableError(f"the process that asks torch for the GPUs failed: {ended}{last}")
    try:
        document = json.loads(answer.stdout)
        error = document.get("error")
    except (ValueError, AttributeError):
        got = answer.stdout[:200].decode(errors="backslashreplace")
        raise UnreadableError(f"the process that asks torch for the GPUs wrote {got!r}") from None
    if error is not None:
        raise UnreadableError(f"torch was asked for the GPUs: {error}")
    return dict(document)


def of_document(document: Mapping[str, Any], root: Path = Path("/"), *, chosen: bool = False) -> GpuAnswer:
    """The answer that torch's document means.

    Args:
        document: see worker/torch_gpus.py.
        root: where the file system starts, for sysfs.
        chosen: whether CUDA_VISIBLE_DEVICES names the GPUs: then use by others is only told.

    Raises:
        UnreadableError: it is no such document.
    """
    try:
        seen = [_shown(entry, root) for entry in document["gpus"]]
        cuda_driver = document["cuda_driver"]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UnreadableError(f"torch's answer cannot be read: {str(document)[:200]}") from None
    usable = [gpu for gpu in map(_usable, seen) if gpu is not None and (chosen or _is_free(seen, gpu))]
    names = {gpu.index for gpu in usable}
    busy = tuple(
        BusyGpu(index=gpu.index, label=_label(gpu), reason="; ".join(gpu.reasons))
        for gpu in seen
        if gpu.index not in names
    )
    reason = f"none of {len(seen)} GPU(s) may be used: " + "; ".join(f"{b.label}: {b.reason}" for b in busy)
    return GpuAnswer(
        state="gpus" if usable else "none",
        gpus=tuple(usable),
        busy=busy,
        reason="" if usable else reason if seen else "torch shows no GPU",
        remedy="" if usable else f"wait, or name those that are yours in {visible.VARIABLE}",
        driver_version=driver_version(root),
        remarks=(_by_torch(), *(_in_use(gpu) for gpu in seen if gpu.state == "busy" and gpu.index in names)),
        shown=tuple(seen),
        cuda_driver=cuda_driver if isinstance(cuda_driver, str) else _SILENT,
    )


def _shown(entry: Mapping[str, Any], root: Path) -> ShownGpu:
    """One GPU as torch shows it.

    Raises:
        KeyError: it has no index, or neither its memory nor why it is not known.
    """
    reasons = tuple(_reasons(entry))
    bus_id = entry.get("bus_id")
    unanswered = "error" in entry or not entry.get("uuid")
    return ShownGpu(
        index=int(entry["index"]),
        uuid=entry.get("uuid") or _SILENT,
        name=entry.get("name") or _SILENT,
        compute_capability=entry.get("compute_capability") or _SILENT,
        memory_total_mib=_SILENT if "error" in entry else int(entry["memory_total_mib"]),
        memory_used_mib=_SILENT if "error" in entry else int(entry["memory_used_mib"]),
        state="unusable" if unanswered else "busy" if reasons else "free",
        reasons=reasons,
        numa_node=shown.numa_node(bus_id, root) if bus_id else _SILENT,
        pci_bus_id=bus_id or _SILENT,
        mig=_SILENT,
    )


def _reasons(entry: Mapping[str, Any]) -> list[str]:
    """Why a GPU is not free."""
    if "error" in entry:
        return [f"does not answer: {entry['error']}"]
    if not entry.get("uuid"):
        return [
            "this torch does not tell its UUID, by which ranks are given their GPU; torch 2.4 and newer do"
        ]
    used = int(entry["memory_used_mib"])
    if used > shown.FREE_BELOW_MIB:
        return [f"{used} MiB used (at most {shown.FREE_BELOW_MIB} MiB counts as free)"]
    return []


def _usable(gpu: ShownGpu) -> Gpu | None:
    """As a GPU that ranks may be given; None where nobody could use it."""
    if gpu.state == "unusable" or not isinstance(gpu.uuid, str):
        return None
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name if isinstance(gpu.name, str) else "GPU",
        memory_total_mib=gpu.memory_total_mib,
        memory_used_mib=gpu.memory_used_mib,
    )


def _is_free(seen: Sequence[ShownGpu], gpu: Gpu) -> bool:
    return any(one.index == gpu.index and one.state == "free" for one in seen)


def _label(gpu: ShownGpu) -> str:
    return f"{gpu.uuid} ({gpu.name})" if isinstance(gpu.uuid, str) else f"GPU {gpu.index}"


def _by_torch() -> Remark:
    return Remark(kind="by-torch", text=f"{_REMARK}more than {shown.FREE_BELOW_MIB} MiB", is_warning=False)


def _in_use(gpu: ShownGpu) -> Remark:
    text = f"{_label(gpu)} is named by {visible.VARIABLE}, and {'; '.join(gpu.reasons)}"
    return Remark(kind="in-use", text=text, is_warning=True)

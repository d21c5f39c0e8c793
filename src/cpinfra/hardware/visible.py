"""What CUDA_VISIBLE_DEVICES means, as GPUs: the rules of the CUDA driver, applied to a list of GPUs.

Pure. CUDA reads the list from the left and stops at the first entry that it cannot use; nothing after it is
visible. An entry named twice makes all of them invisible. The first entry decides whether the list is of
numbers or of UUIDs. All of it was compared with cuInit and cuDeviceGetCount of driver 580.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
HIDDEN = ("", "-1", "nodevfiles", "void", "none")
"""Values, in lower case, by which a user or a batch system says "no GPU"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One GPU of the machine, as far as the variable can name it."""

    index: int
    """In PCI bus order."""
    uuid: str
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Visible:
    """What the variable names."""

    indices: tuple[int, ...] = ()
    """PCI bus indices in the order of the variable."""
    refused: str = ""
    """Why it names no GPU although it tries to."""
    notes: tuple[str, ...] = ()
    """What was done that the user may want to know."""
    warnings: tuple[str, ...] = ()
    """What is probably not meant."""


def hides_all(value: str) -> bool:
    """Whether the value says "no GPU" on purpose."""
    return value.strip().lower() in HIDDEN


def resolve(value: str, gpus: Sequence[Listed], environment: Mapping[str, str]) -> Visible:
    """Which of `gpus` the value names.

    Args:
        value: of CUDA_VISIBLE_DEVICES, one that does not hide all.
        gpus: all of the machine, in PCI bus order.
        environment: read for CUDA_DEVICE_ORDER.
    """
    entries = value.split(",")
    if any(entry.strip().startswith("MIG-") for entry in entries):
        return Visible(refused=f"{VARIABLE}={value!r}: MIG instances are not supported; name whole GPUs")
    by_uuid = entries[0].startswith("GPU-")
    indices: list[int] = []
    for entry in entries:
        index = _by_uuid(entry, gpus) if by_uuid else _by_number(entry, gpus)
        if index is None:
            return _stopped(value, entry, indices, gpus, by_uuid=by_uuid, environment=environment)
        if index in indices:
            twice = f"{VARIABLE}={value!r}: names {entry.strip()} twice"
            return Visible(refused=f"{twice}; CUDA then shows no GPU")
        indices.append(index)
    return _found(indices, gpus, by_uuid=by_uuid, environment=environment)


def _by_uuid(entry: str, gpus: Sequence[Listed]) -> int | None:
    """The one GPU whose UUID begins so; CUDA ignores blanks after it, and takes none before it."""
    beginning = entry.rstrip()
    if not beginning.startswith("GPU-") or beginning == "GPU-":
        return None
    matches = [gpu.index for gpu in gpus if gpu.uuid.startswith(beginning)]
    return matches[0] if len(matches) == 1 else None


def _by_number(entry: str, gpus: Sequence[Listed]) -> int | None:
    """CUDA reads a number as strtoul does: leading blanks and whatever follows the digits are ignored."""
    match = re.match(r"\s*[+]?(\d{1,9})", entry, flags=re.ASCII)
    index = int(match[1]) if match else None
    return index if index in {gpu.index for gpu in gpus} else None


def _stopped(
    value: str,
    entry: str,
    indices: list[int],
    gpus: Sequence[Listed],
    *,
    by_uuid: bool,
    environment: Mapping[str, str],
) -> Visible:
    there = f"there are {len(gpus)} GPU(s), " + ", ".join(f"{gpu.index}: {gpu.uuid}" for gpu in gpus)
    what = f"{VARIABLE}={value!r}: {entry!r} names no GPU here"
    if not indices:
        return Visible(refused=f"{what}, so CUDA shows none; {there}")
    warning = f"{what}, and CUDA ignores what follows it; {there}"
    found = _found(indices, gpus, by_uuid=by_uuid, environment=environment)
    return Visible(indices=found.indices, notes=found.notes, warnings=(warning, *found.warnings))


def _found(
    indices: list[int], gpus: Sequence[Listed], *, by_uuid: bool, environment: Mapping[str, str]
) -> Visible:
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    if not by_uuid and environment.get(ORDER_VARIABLE) != "PCI_BUS_ID":
        if len({gpu.name for gpu in gpus}) > 1:
            warnings = (_order_warning(gpus),)
        elif len(gpus) > 1:
            notes = (f"numbers in {VARIABLE} were read in PCI bus order; the GPUs are all alike",)
    return Visible(indices=tuple(indices), notes=notes, warnings=warnings)


def _order_warning(gpus: Sequence[Listed]) -> str:
    models = ", ".join(f"{gpu.index}: {gpu.name}" for gpu in gpus)
    return (
        f"numbers in {VARIABLE} were read in PCI bus order ({models}); without {ORDER_VARIABLE}=PCI_BUS_ID "
        "CUDA counts the fastest first, so another program may mean other GPUs by them: name GPUs by UUID"
    )

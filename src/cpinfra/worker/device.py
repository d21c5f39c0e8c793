"""A rank's device, and which errors are the device's own.

What a driver or a GPU says against itself outside an operation (no memory, a lost device, an ECC error), and
what a host says that has no memory, open files or room left, is neither a contradicted check nor a bug.
"""

from __future__ import annotations

import re

import torch

from .spec import GenerationSpec

_TEXT = re.compile(
    r"cuda (error|driver|out of memory)|out of memory|nvml|no cuda gpus|invalid device ordinal|ecc error"
    r"|not compiled with cuda|found no nvidia driver|can(no|')t allocate memory|not enough memory"
    r"|too many open files|no space left",
    re.IGNORECASE,
)


class DeviceError(RuntimeError):
    """The device of this rank cannot be used."""


def take(spec: GenerationSpec, rank: int) -> torch.device:
    """This rank's device, with its context made. Ranks share GPUs in turn where there are fewer.

    Raises:
        DeviceError: torch does not see exactly the GPUs that were chosen for the run.
    """
    if spec.device == "cpu":
        return torch.device("cpu")
    count, chosen = torch.cuda.device_count(), len(spec.gpu_uuids)
    if count != chosen:
        raise DeviceError(f"torch {torch.__version__} sees {count} GPU(s), where {chosen} were chosen")
    device = torch.device("cuda", rank % count)
    torch.cuda.set_device(device)
    _compare_uuid(device, spec.gpu_uuids[rank % count])
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    return device


def _compare_uuid(device: torch.device, chosen: str) -> None:
    """Refuse another GPU than the chosen one; a torch that does not tell, and MIG, are taken at their word.

    Raises:
        DeviceError: names both.
    """
    told = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if told is not None and chosen.startswith("GPU-") and f"GPU-{told}".lower() != chosen.lower():
        raise DeviceError(f"torch's {device} is GPU-{told}, where {chosen} was chosen")


def is_at_fault(error: BaseException) -> bool:
    """Whether an exception tells of the device or its driver, rather than of the code that it came from."""
    own = (
        DeviceError,
        MemoryError,
        torch.cuda.OutOfMemoryError,
        getattr(torch, "AcceleratorError", DeviceError),
    )
    return isinstance(error, own) or (isinstance(error, RuntimeError) and bool(_TEXT.search(str(error))))

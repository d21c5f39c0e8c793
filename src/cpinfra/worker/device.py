"""A rank's device, and which errors are the device's own.

What a driver or a GPU says against itself outside an operation (no memory, a lost device, an ECC error) is
neither a contradicted check nor a bug of ours.
"""

from __future__ import annotations

import re

import torch

from .spec import GenerationSpec

_TEXT = re.compile(
    r"cuda (error|driver|out of memory)|out of memory|nvml|no cuda gpus|invalid device ordinal|ecc error"
    r"|not compiled with cuda|found no nvidia driver",
    re.IGNORECASE,
)


class DeviceError(RuntimeError):
    """The device of this rank cannot be used."""


def take(spec: GenerationSpec, rank: int) -> torch.device:
    """This rank's device, with its context made. Ranks share GPUs in turn where there are fewer.

    Raises:
        DeviceError: no GPU is visible to torch, though the run is one on GPUs.
    """
    if spec.device == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if not count:
        raise DeviceError(f"torch {torch.__version__} sees no GPU, where {len(spec.gpu_uuids)} were chosen")
    device = torch.device("cuda", rank % count)
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)
    torch.cuda.synchronize(device)
    return device


def is_at_fault(error: BaseException) -> bool:
    """Whether an exception tells of the device or its driver, rather than of the code that it came from."""
    own = (DeviceError, torch.cuda.OutOfMemoryError, getattr(torch, "AcceleratorError", DeviceError))
    return isinstance(error, own) or (isinstance(error, RuntimeError) and bool(_TEXT.search(str(error))))

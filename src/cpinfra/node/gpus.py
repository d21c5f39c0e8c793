"""Which GPUs may be used, from the source that is at hand: NVML, else the torch of this interpreter."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping

from ..hardware import by_torch
from ..hardware import gpus
from ..hardware.gpus import GpuAnswer
from ..planning.settle import NVML_TIMEOUT_S
from ..proof import delivery

TORCH_TIMEOUT_S = 120.0
"""The import of torch from a cold file system, and a context on each GPU."""


def ask(environment: Mapping[str, str]) -> GpuAnswer:
    """Which GPUs may be used; bounded, as everything is that touches a driver."""
    archive = delivery.own_archive()
    if archive is None or importlib.util.find_spec("pynvml") is not None:
        return gpus.usable_gpus(environment, NVML_TIMEOUT_S)
    return by_torch.usable_gpus(environment, TORCH_TIMEOUT_S, [sys.executable, str(archive), "gpus"])

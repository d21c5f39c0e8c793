"""Ask NVML for the GPUs and write one JSON document: run as text, in a process that may be killed.

Imports nothing of cpinfra. Arguments: folders to look for `pynvml` in, after the interpreter's own.

The document: `{"driver_version": text, "cuda_driver": text such as "13.0", "gpus": [...]}`, each GPU with
index (PCI bus order), uuid, name, bus_id (NVML's form), compute_capability (such as "9.0"),
memory_total_mib, memory_used_mib, processes (how many compute), mig, compute_mode; null where the driver
does not support the question. Where a GPU does not answer: its index, `error`, and what it said before.
Without an answer: `{"error": {"code": name or number, "text": text}}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

_MIB = 1 << 20


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _supported(nvml: Any, question: Callable[[], Any]) -> Any:
    """The answer, or None where this GPU or driver does not support the question."""
    try:
        return question()
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None


def _memory(nvml: Any, handle: Any) -> tuple[int | None, int | None]:
    """(total, used) in MiB; the second version of the call keeps the driver's reserve out of `used`."""
    versioned = getattr(nvml, "nvmlMemory_v2", None)
    answer = None
    if versioned is not None:
        answer = _supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=versioned))
    answer = answer or _supported(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    return (answer.total // _MIB, answer.used // _MIB) if answer is not None else (None, None)


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    said: dict[str, Any] = {"index": index}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        said["uuid"] = _text(nvml.nvmlDeviceGetUUID(handle))
        said["bus_id"] = _supported(nvml, lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
        said["name"] = _text(nvml.nvmlDeviceGetName(handle))
        said |= _details(nvml, handle)
    except nvml.NVMLError as error:
        said["error"] = str(error)
    return said


def _details(nvml: Any, handle: Any) -> dict[str, Any]:
    total, used = _memory(nvml, handle)
    capability = _supported(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    running = _supported(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    mig = _supported(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return {
        "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
        "memory_total_mib": total,
        "memory_used_mib": used,
        "processes": None if running is None else len(running),
        "mig": None if mig is None else mig[0] == nvml.NVML_DEVICE_MIG_ENABLE,
        "compute_mode": _supported(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle)),
    }


def _cuda_driver(nvml: Any) -> str | None:
    """Newest CUDA version that the driver supports: libcuda's word, which need not be in every container."""
    try:
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
    except nvml.NVMLError:
        return None
    return f"{version // 1000}.{version % 1000 // 10}"


def _answer(nvml: Any) -> dict[str, Any]:
    nvml.nvmlInit()
    count = nvml.nvmlDeviceGetCount()
    return {
        "driver_version": _text(nvml.nvmlSystemGetDriverVersion()),
        "cuda_driver": _cuda_driver(nvml),
        "gpus": [_gpu(nvml, index) for index in range(count)],
    }


def _code_name(nvml: Any, value: int) -> str:
    names = [name for name in vars(nvml) if name.startswith("NVML_ERROR_") and getattr(nvml, name) == value]
    return names[0] if names else str(value)


def main(folders: list[str]) -> int:
    """Write the document; 0 unless NVML could not be asked at all."""
    sys.path.extend(folders)
    try:
        import pynvml
    except ImportError as error:
        document: dict[str, Any] = {"error": {"code": "no-pynvml", "text": str(error)}}
    else:
        try:
            document = _answer(pynvml)
        except pynvml.NVMLError as error:
            document = {"error": {"code": _code_name(pynvml, error.value), "text": str(error)}}
    sys.stdout.write(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

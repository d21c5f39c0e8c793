"""What torch says of the visible GPUs, where there is no NVML to ask. Run in a process that may be killed.

One JSON document: `cuda_driver` (such as "13.0"; null where torch does not say) and `gpus`, each with `index`
(torch's), `uuid` (as nvidia-smi writes it), `name`, `compute_capability` (such as "9.0"), `memory_total_mib`,
`memory_used_mib`, `bus_id` (as sysfs writes it); null is what this torch does not know. A GPU that does not
answer has its `index` and `error`. Without any answer: `error`.

To ask for the free memory makes a context on the GPU, whose own memory, some 0.5 GiB, counts as used.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

_MIB = 1 << 20


def run() -> int:
    """Write the document to what was standard output; whatever torch prints goes to standard error."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    data = json.dumps(describe()).encode("ascii")
    while data:
        data = data[os.write(answer_fd, data) :]
    return 0


def describe() -> dict[str, Any]:
    """See the module's text."""
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001 - whatever a foreign import raises is the answer
        return {"error": f"torch does not import: {type(error).__name__}: {error}"}
    if torch.version.cuda is None:
        return {"error": f"torch {torch.__version__} was built without CUDA"}
    try:
        torch.cuda.init()
    except Exception as error:  # noqa: BLE001 - torch's own classes differ by version; its words are the answer
        return {"error": f"{type(error).__name__}: {error}"}
    count = torch.cuda.device_count()
    return {"cuda_driver": _cuda_driver(torch), "gpus": [_gpu(torch, index) for index in range(count)]}


def _cuda_driver(torch: Any) -> str | None:
    ask = getattr(torch._C, "_cuda_getDriverVersion", None)
    number = ask() if ask is not None else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _gpu(torch: Any, index: int) -> dict[str, Any]:
    said: dict[str, Any] = {"index": index}
    try:
        facts = torch.cuda.get_device_properties(index)
        said |= {
            "uuid": _uuid(facts),
            "name": facts.name,
            "compute_capability": f"{facts.major}.{facts.minor}",
            "bus_id": _bus_id(facts),
        }
        free, total = torch.cuda.mem_get_info(index)
    except Exception as error:  # noqa: BLE001 - as above: out of memory, busy, fallen off the bus
        return {**said, "error": f"{type(error).__name__}: {error}"}
    return {**said, "memory_total_mib": total // _MIB, "memory_used_mib": (total - free) // _MIB}


def _uuid(facts: Any) -> str | None:
    """torch writes it without its kind; versions before 2.4 do not know it."""
    uuid = getattr(facts, "uuid", None)
    return None if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}"


def _bus_id(facts: Any) -> str | None:
    numbers = [getattr(facts, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if None in numbers:
        return None
    domain, bus, device = numbers
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"

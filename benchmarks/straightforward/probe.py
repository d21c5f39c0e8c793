"""Print what software there is, as JSON: the first of the three scripts."""

from __future__ import annotations

import json
import platform
import shutil

import torch
import torch.distributed as dist


def main() -> None:
    """Ask torch, print the answers."""
    cuda = torch.cuda.is_available()
    gpus = (
        [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        if cuda
        else []
    )
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_available": cuda,
        "cuda_version": torch.version.cuda,
        "distributed": dist.is_available(),
        "gloo": dist.is_gloo_available(),
        "gpus": [{"name": gpu.name, "memory_gib": gpu.total_memory / 2**30} for gpu in gpus],
        "disk_free_gib": round(shutil.disk_usage(".").free / 2**30, 1),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()

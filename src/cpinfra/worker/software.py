"""What the target interpreter's torch says of itself, asked without touching CUDA.

`torch.cuda.is_available()` and whatever calls it would spoil every later fork, so nothing here does.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import children
from .fork_safety import ask_in_child

_DRIVER_S = 10.0
"""To load the driver's library and ask its version: no device is touched for that."""

_DRIVER_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap")
"""One of them is there wherever a driver is: on a host or in a container, under WSL, on a Tegra."""


class _DlInfo(ctypes.Structure):
    """`Dl_info` of dladdr(3)."""

    _fields_ = [
        ("file_name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("symbol", ctypes.c_void_p),
    ]


def describe() -> dict[str, Any]:
    """The `software` section of a report, as far as the worker can know it."""
    nccl = _nccl()
    return {
        "python": sys.executable,
        "python_version": platform.python_version(),
        "torch": torch.__version__,
        "torch_path": str(Path(torch.__file__).parent),
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
        "cuda_driver": _cuda_driver(),
        "arch_list": _arch_list(),
        "nccl": nccl,
        "backends": {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()},
        "files": _files(nccl),
    }


def _cuda_driver() -> str | dict[str, str] | None:
    """The newest CUDA that the driver supports, asked in a forked child; None where there is no driver.

    A build without CUDA has no use for a driver, and a fork costs it 15 ms: it asks only where there is one.
    """
    if torch.version.cuda is None and not any(Path(device).exists() for device in _DRIVER_DEVICES):
        return None
    (ended,) = children.ask([_ask_driver], _DRIVER_S)
    if ended.how or not ended.said:
        how = ended.how or "without an answer"
        return {"unavailable": f"a child that asked libcuda.so.1 for its version ended: {how}"}
    answer: str | dict[str, str] | None = ended.said[0]["version"]
    return answer


def _ask_driver(say: children.Say) -> None:
    """`cuDriverGetVersion` needs no initialisation of CUDA; its number is major * 1000 + minor * 10."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion
    except (OSError, AttributeError):
        say({"version": None})
        return
    number = ctypes.c_int()
    status = function(ctypes.byref(number))
    text = f"{number.value // 1000}.{number.value % 1000 // 10}"
    say({"version": text if status == 0 else {"unavailable": f"cuDriverGetVersion answered error {status}"}})


def _files(nccl: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The files that make this software what it is; one that cannot be looked at is left out."""
    wanted = [("torch", str(Path(torch.__file__).with_name("version.py")))]
    if nccl is not None and nccl["path"] is not None:
        wanted.append(("nccl", nccl["path"]))
    found = []
    for what, path in wanted:
        try:
            status = Path(path).stat()
        except OSError:
            continue
        identity = {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}
        found.append({"what": what, "path": path, **identity})
    return found


def _arch_list() -> list[str] | None:
    """What the CUDA build was compiled for, asked in a forked child: the question spoils every later fork."""
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    if flags is None:
        return []
    answer = ask_in_child(lambda: (flags() or "").encode())  # noqa: PLW0108 - called in the child alone
    return answer.decode().split() if answer is not None else None


def _nccl() -> dict[str, Any] | None:
    """NCCL as compiled against and as loaded; None where this torch has none."""
    if not dist.is_nccl_available():
        return None
    compiled = getattr(torch._C, "_nccl_version", None)
    loaded, path = _loaded_nccl()
    return {"compiled": _version(compiled()) if compiled else None, "loaded": loaded, "path": path}


def _version(number: int | tuple[int, ...]) -> str:
    """NCCL's version as text; `_nccl_version` packs it as major << 32 | minor << 16 | patch."""
    if isinstance(number, tuple):
        return ".".join(map(str, number))
    return f"{number >> 32}.{number >> 16 & 0xFFFF}.{number & 0xFFFF}"


def _loaded_nccl() -> tuple[str | None, str | None]:
    """(version, path) of the object that `ncclGetVersion` resolves to for libtorch_cuda.

    The global scope first: a preloaded library, or one opened with RTLD_GLOBAL, comes before torch's own.
    """
    for name in (None, str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so")):
        try:
            function = ctypes.CDLL(name).ncclGetVersion
        except (OSError, AttributeError):
            continue
        number = ctypes.c_int()
        if function(ctypes.byref(number)) == 0:
            # NCCL_VERSION of nccl.h: major * 10000 + minor * 100 + patch since 2.9
            text = f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"
            return text, _object_of(function)
    return None, None


def _object_of(function: Any) -> str | None:
    """Path of the mapped object that holds a function."""
    info = _DlInfo()
    libc = ctypes.CDLL(None)
    found = libc.dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(info))
    return info.file_name.decode() if found and info.file_name else None

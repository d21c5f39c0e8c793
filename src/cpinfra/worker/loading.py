"""Which shared libraries of torch cannot be loaded, and which others would come before them.

Each is loaded in a child of its own, since it may crash or never return. Standard library only.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
import time
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import children

LOAD_S = 20.0
"""Bound of one library: a large one comes over a slow network on its first use."""

ALL_S = 90.0
"""No further library is tried after this long."""

_AT_ONCE = 4
_WORDS_MAX = 1000

_ESSENTIAL = re.compile(
    r"lib(torch|torch_cpu|torch_cuda|torch_python|torch_global_deps|c10|c10_cuda)\.so|_C\."
)
"""What `import torch` itself loads; the others are loaded by these, or only when somebody asks for them."""

_UNIQUE = ("libcudnn", "libnccl", "libcudart", "libcublas")
"""Libraries of which a second copy is a trap."""

_WHEEL = re.compile(r"nvidia_(?P<name>.+?)(?:_cu\d+)?-(?P<version>[^-]+)\.dist-info")


def of_torch(folder: Path) -> list[Path]:
    """Shared libraries of a torch and of the `nvidia` packages beside it, those of `import torch` first."""
    places = [folder.glob("_C.*so"), folder.glob("lib/*.so*"), folder.parent.glob("nvidia/*/lib/*.so*")]
    files = {file.resolve(): file for place in places for file in sorted(place) if file.is_file()}
    return sorted(files.values(), key=lambda file: (not _is_essential(file), str(file)))


def _is_essential(file: Path) -> bool:
    return _ESSENTIAL.match(file.name) is not None


def try_all(files: Sequence[Path], *, load_s: float = LOAD_S, all_s: float = ALL_S) -> dict[str, Any]:
    """Load each in a child of its own.

    Returns:
        `tried`: how many; `untried`: paths for which there was no time; `failed`: of each that could not be
        loaded `path`, `how` (`refused`, `hung`, a signal's name, ...), `words` of the loader and
        `essential`, whether `import torch` loads it.
    """
    deadline = time.monotonic() + all_s
    failed: list[dict[str, Any]] = []
    tried = 0
    while tried < len(files) and time.monotonic() < deadline:
        batch = files[tried : tried + _AT_ONCE]
        ended = children.ask([functools.partial(_load, file) for file in batch], load_s)
        failed += [_failure(file, end) for file, end in zip(batch, ended, strict=True) if not _is_loaded(end)]
        tried += len(batch)
    return {"tried": tried, "untried": [str(file) for file in files[tried:]], "failed": failed}


def _load(file: Path, say: children.Say) -> None:
    try:
        ctypes.CDLL(str(file))
    except OSError as error:
        say({"loaded": False, "words": str(error)[:_WORDS_MAX]})
    else:
        say({"loaded": True})


def _is_loaded(ended: children.Ended) -> bool:
    return not ended.how and bool(ended.said) and ended.said[-1]["loaded"] is True


def _failure(file: Path, ended: children.Ended) -> dict[str, Any]:
    words = ended.said[-1].get("words", "") if ended.said else ""
    how = ended.how or "refused"
    return {"path": str(file), "how": how, "words": words, "essential": _is_essential(file)}


def copies(folder: Path, environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Paths by file name, of the libraries of which there must be one only and of which there are more."""
    places = [folder / "lib", *sorted(folder.parent.glob("nvidia/*/lib")), *_library_path(environment)]
    places.append(Path(sys.prefix) / "lib")
    found: dict[str, dict[Path, str]] = {}
    for place in places:
        for file in [
            file for name in _UNIQUE for file in sorted(place.glob(f"{name}.so*")) if file.is_file()
        ]:
            found.setdefault(file.name, {}).setdefault(file.resolve(), str(file))
    return {name: list(files.values()) for name, files in found.items() if len(files) > 1}


def wheels(folder: Path) -> dict[str, list[str]]:
    """Wheels of NVIDIA's that share a folder, such as those for two versions of CUDA."""
    by_name: dict[str, list[str]] = {}
    for entry in sorted(folder.parent.glob("nvidia_*.dist-info")):
        if found := _WHEEL.fullmatch(entry.name):
            by_name.setdefault(found["name"], []).append(entry.name.removesuffix(".dist-info"))
    return {name: entries for name, entries in by_name.items() if len(entries) > 1}


def first(files: Sequence[Path], environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the loader takes before torch's own libraries, by the environment.

    Returns:
        Of each `variable`, `file`, and `instead_of`: torch's own of the same name, None where torch has none.
    """
    own = {file.name: file for file in files}
    found = [_before("LD_PRELOAD", file, own.get(file.name)) for file in _preloaded(environment)]
    for place in _library_path(environment):
        for name, file in own.items():
            other = place / name
            if other.is_file() and not other.samefile(file):
                found.append(_before("LD_LIBRARY_PATH", other, file))
    return found


def _before(variable: str, file: Path, own: Path | None) -> dict[str, Any]:
    return {"variable": variable, "file": str(file), "instead_of": str(own) if own is not None else None}


def _library_path(environment: Mapping[str, str]) -> list[Path]:
    """Folders of LD_LIBRARY_PATH; an empty entry is the working folder, for the loader too."""
    value = environment.get("LD_LIBRARY_PATH", "")
    return [Path(entry or ".").absolute() for entry in re.split("[:;]", value)] if value else []


def _preloaded(environment: Mapping[str, str]) -> list[Path]:
    return [Path(entry) for entry in re.split(r"[:\s]+", environment.get("LD_PRELOAD", "")) if entry]

"""Which GPU runs which compiled code: the entries of torch's architecture list against a compute capability.

Pure; standard library only. The rules are NVIDIA's:

- CUDA C++ Programming Guide, "Binary Compatibility": code for X.y runs on X.z with z >= y, but not where
  either is a Tegra, nor on another major version; "PTX Compatibility": PTX for a capability can be compiled
  for any equal or greater one.
- CUDA Programming Guide, 5.1.2 "Feature Availability"
  (https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html): what was
  compiled with suffix `a` runs on exactly its capability, what was compiled with `f` on its family. Its
  table "Family-Specific Compatibility" (100f: 10.0, 10.3; 103f: 10.3; 110f: 11.0; 120f: 12.0, 12.1;
  121f: 12.1) is the rule "same major version, equal or greater minor one", Tegras apart.

Which build to take is advice and no rule: torch's own builds for CUDA 12.6 are the last with code for GPUs
before 7.5 (`PYTORCH_RELEASES_CODE_CC` in torch/cuda/__init__.py of 2.13).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

Capability = tuple[int, int]

_ENTRY = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<suffix>[af]?)", re.ASCII)
_CAPABILITY = re.compile(r"(\d+)\.(\d+)", re.ASCII)

_TEGRA = frozenset({(3, 2), (5, 3), (6, 2), (7, 2), (8, 7), (10, 1)})
"""Integrated GPUs that share their major version with others."""

_FIRST_CUDA = {
    (8, 0): "11.0",
    (8, 6): "11.1",
    (8, 7): "11.4",
    (8, 9): "11.8",
    (9, 0): "11.8",
    (10, 0): "12.8",
    (10, 3): "12.9",
    (11, 0): "13.0",
    (12, 0): "12.8",
    (12, 1): "12.9",
}
_OLDEST_IN_NEW_BUILDS = (7, 5)
_LAST_BUILD_FOR_OLDER = "12.6"


class Fit(Enum):
    """How code gets to run on a GPU, from the best to none."""

    BINARY = "binary"
    """As it was compiled."""
    PTX = "PTX"
    """Compiled by the driver at first use."""
    UNKNOWN = "unknown"
    """The list has an entry that cannot be read, and none that runs."""
    NONE = "none"


def capability(text: object) -> Capability | None:
    """`"9.0"` as (9, 0); None for what is no compute capability."""
    found = _CAPABILITY.fullmatch(text) if isinstance(text, str) else None
    return (int(found[1]), int(found[2])) if found is not None else None


def fit(entries: Iterable[str], gpu: Capability) -> Fit:
    """The best that a list of architectures offers to a GPU."""
    found = {_fit(entry, gpu) for entry in entries}
    return next((best for best in Fit if best in found), Fit.NONE)


def _fit(entry: str, gpu: Capability) -> Fit:
    read = _ENTRY.fullmatch(entry)
    if read is None:
        return Fit.UNKNOWN
    code, binary = (int(read["major"]), int(read["minor"])), read["kind"] == "sm"
    if not _runs(code, gpu, read["suffix"], binary=binary):
        return Fit.NONE
    return Fit.BINARY if binary else Fit.PTX


def _runs(code: Capability, gpu: Capability, suffix: str, *, binary: bool) -> bool:
    """Whether code for one capability runs on a GPU of another."""
    if code == gpu:
        return True
    if suffix == "a":
        return False
    if not binary and not suffix:
        return code <= gpu
    return code[0] == gpu[0] and code[1] <= gpu[1] and not {code, gpu} & _TEGRA


def wanted(gpu: Capability) -> str:
    """Which entries would serve a GPU, in words."""
    name = f"{gpu[0]}{gpu[1]}"
    if gpu in _TEGRA:
        return f"sm_{name}, or compute_XY with XY at most {name}"
    return f"sm_{gpu[0]}Y with Y at most {gpu[1]}, or compute_XY with XY at most {name}"


def build_for(gpu: Capability) -> str:
    """Which build of torch has code for a GPU, in words."""
    if gpu < _OLDEST_IN_NEW_BUILDS:
        return f"a torch built for CUDA {_LAST_BUILD_FOR_OLDER} or older: newer builds leave such GPUs out"
    first = _FIRST_CUDA.get(gpu)
    return f"a torch built for CUDA {first} or newer" if first is not None else "a newer torch"

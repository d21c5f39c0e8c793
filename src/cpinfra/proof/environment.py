"""The environment of the zygote and its ranks: what is set there, and what of it a report must tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..worker.processes import COOKIE_VARIABLE

HARDENING = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # numpy's OpenBLAS starts a thread at import: the zygote may have one only
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "RES_OPTIONS": "timeout:1 attempts:1",  # a lost reverse look-up of c10d's stalls for 1 s, not 5
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "PYTHONFAULTHANDLER": "1",
    "PYTHONWARNINGS": "",  # "error" fails torch's own import for a deprecation that is no concern of ours
    "PYTHONINSPECT": "",
}
"""Set in every process that runs ranks; the user's own values give way."""

_ONE_NODE = {"GLOO_SOCKET_IFNAME": "lo"}
"""On one node gloo needs no look-up of the host name."""

TOLD_PREFIXES = ("NCCL_", "GLOO_", "TORCH_", "UCX_", "CUDA_")
"""Variables of the user that decide what a proof proves: they pass through, and the report shows them."""

_OFF_IF_SET = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET_DISABLE_INTRA")
_OFF_IF_ZERO = ("NCCL_NVLS_ENABLE", "NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE")  # NVLS stands on cuMem
_OFF_BY_WORD = {
    "NCCL_P2P_LEVEL": ("LOC", "0"),
    "NCCL_NET_GDR_LEVEL": ("LOC", "0"),
    "NCCL_NET_PLUGIN": ("none",),
}
_PICKS_ONE = ("NCCL_NET",)
"""It names a network, so that NCCL takes no other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What a report says of the environment in which the ranks ran."""

    in_force: Mapping[str, str]
    """The variables that decide what was proven, as the ranks had them."""
    replaced: Mapping[str, tuple[str, str]]
    """The user's variables that ours replaced with another value: (theirs, ours)."""
    restricting: Mapping[str, str]
    """Those in force that switch a transport off."""


def zygote_environment(base: Mapping[str, str], cookie: str, *, gpu_uuids: Sequence[str]) -> dict[str, str]:
    """The caller's environment with what a rank needs, and the visible devices fixed once.

    Args:
        base: the caller's environment.
        cookie: by which descendants are known.
        gpu_uuids: the GPUs that ranks may use, in rank order; none on the CPU.
    """
    visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu_uuids)}
    return {**base, **HARDENING, **_ONE_NODE, **visible, COOKIE_VARIABLE: cookie}


def unused_caches(run_folder: Path) -> dict[str, str]:
    """The variable that keeps torch from leaving a folder in TMPDIR.

    It makes one for what it compiles when `torch._dynamo` is imported. Here it finds one that is there, and
    nothing comes into it, since ranks compile nothing.
    """
    return {"TORCHINDUCTOR_CACHE_DIR": str(run_folder)}


def told(base: Mapping[str, str], *, gpu_uuids: Sequence[str]) -> Told:
    """What of the ranks' environment a report must show, for the same arguments as `zygote_environment`."""
    made = zygote_environment(base, "", gpu_uuids=gpu_uuids)
    ours = zygote_environment({}, "", gpu_uuids=gpu_uuids)
    names = sorted(name for name in made if name in ours or name.startswith(TOLD_PREFIXES))
    in_force = {name: made[name] for name in names if name != COOKIE_VARIABLE}
    theirs = {name: base[name] for name in in_force if name in base}
    return Told(
        in_force=in_force,
        replaced={name: (value, made[name]) for name, value in theirs.items() if value != made[name]},
        restricting={name: value for name, value in in_force.items() if _restricts(name, value)},
    )


def _restricts(name: str, value: str) -> bool:
    """Whether a variable keeps NCCL from a transport that it would take by itself; empty, it does nothing."""
    if not value:
        return False
    if name in _OFF_IF_SET or name in _OFF_IF_ZERO:
        return _is_zero(value) == (name in _OFF_IF_ZERO)
    return name in _PICKS_ONE or value in _OFF_BY_WORD.get(name, ())


def _is_zero(value: str) -> bool:
    """Whether NCCL reads 0: by strtoll with base 0, so what begins with no number is 0."""
    number = re.match(r"\s*[+-]?(0[xX][0-9a-fA-F]+|\d+)", value, flags=re.ASCII)
    return number is None or not number[1].lower().strip("0x")

"""The environment of the zygote and its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence

from ..worker.processes import COOKIE_VARIABLE

HARDENING = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # numpy's OpenBLAS starts a thread at import: the zygote may have one only
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "RES_OPTIONS": "timeout:1 attempts:1",  # a lost reverse look-up of c10d's stalls for 1 s, not 5
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "PYTHONFAULTHANDLER": "1",
}
"""Set in every process that runs ranks; the user's own values give way."""

_ONE_NODE = {"GLOO_SOCKET_IFNAME": "lo"}
"""On one node gloo needs no look-up of the host name."""


def zygote_environment(base: Mapping[str, str], cookie: str, *, gpu_uuids: Sequence[str]) -> dict[str, str]:
    """The caller's environment with what a rank needs, and the visible devices fixed once.

    Args:
        base: the caller's environment.
        cookie: by which descendants are known.
        gpu_uuids: the GPUs that ranks may use, in rank order; none on the CPU.
    """
    visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu_uuids)}
    return {**base, **HARDENING, **_ONE_NODE, **visible, COOKIE_VARIABLE: cookie}

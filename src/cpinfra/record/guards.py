"""What keeps a multi-rank run from hanging in silence: setting, value and reason of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping

from .. import report

_OF_VARIABLES = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "set before init_process_group: a rank whose NCCL operation fails or "
    "times out ends, instead of leaving its peers to wait",
    "RES_OPTIONS": "torch's TCPStore, which torchrun uses, asks for the name behind each address, 127.0.0.1 "
    "too: where DNS is slow or absent a look-up can stall for 5 s",
    "GLOO_SOCKET_IFNAME": "on one node gloo needs no look-up of the host name, which can fail or stall",
    "OMP_NUM_THREADS": "ranks share the CPUs: one pool of threads for all CPUs in each rank slows them all; "
    "raise it where there are CPUs to spare",
    "PYTHONFAULTHANDLER": "a rank that dies by a signal prints where it was",
    "CUDA_DEVICE_ORDER": "numbers of GPUs mean the same to every program",
    "CUDA_VISIBLE_DEVICES": "GPUs by UUID, in rank order: a number can mean another GPU elsewhere",
    "PYTORCH_ALLOC_CONF": "near the memory's limit fragments cost retries and false out-of-memory errors; "
    "torch before 2.10 takes this setting from PYTORCH_CUDA_ALLOC_CONF only; "
    "no part of what the checks tested",
    "PYTORCH_CUDA_ALLOC_CONF": "near the memory's limit fragments cost retries and false out-of-memory "
    "errors; from torch 2.10 on the name is PYTORCH_ALLOC_CONF, and this one is still read; "
    "no part of what the checks tested",
}
_CUDA_ONLY = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")


def of(
    env: Mapping[str, str],
    timeouts: Mapping[str, int],
    *,
    device: str,
    kill_after_s: int,
    preload: str | None,
) -> list[report.Guard]:
    """The guards of a recipe.

    Args:
        env: its environment.
        timeouts: seconds of `nccl`, `gloo` and `run`.
        device: "cpu" or "cuda".
        kill_after_s: seconds from the SIGTERM at the end of the time to SIGKILL.
        preload: the NCCL library that is loaded in place of torch's own.
    """
    found = [*_timeouts(timeouts, kill_after_s), *_conduct(), *_variables(env, device)]
    if preload is not None:
        why = "the NCCL that is to be used: without it torch loads its own"
        found.append(_guard("LD_PRELOAD of the ranks", preload, why))
    return found


def _guard(setting: str, value: str, reason: str) -> report.Guard:
    return report.Guard(setting=setting, value=report.plain(value), reason=reason)


def _timeouts(timeouts: Mapping[str, int], kill_after_s: int) -> Iterator[report.Guard]:
    nccl, gloo, run = timeouts["nccl"], timeouts["gloo"], timeouts["run"]
    yield _guard(
        "init_process_group(timeout=...), NCCL",
        f"timedelta(seconds={nccl})",
        "half of torch's 10 min: room for a rank that compiles kernels, and for the first operation of a "
        "large group; then a deadlock is an error",
    )
    yield _guard(
        "timeout of gloo's groups",
        f"timedelta(seconds={gloo})",
        "torch's is 30 min; gloo carries small messages between CPUs, and also waits this long for a rank "
        "that never joins",
    )
    yield _guard(
        "timeout of each group of the mesh",
        "_set_pg_timeout(timeout, mesh.get_group(axis))",
        "init_device_mesh gives its groups torch's own timeouts, whatever init_process_group was given",
    )
    yield _guard(
        "timeout of the whole run",
        f"{run} s, TIMEOUT_S changes it; SIGKILL {kill_after_s} s later",
        "some hangs are in no operation; torchrun takes up to 30 s to end its ranks, and killed sooner it "
        "would leave them behind",
    )


def _conduct() -> Iterator[report.Guard]:
    yield _guard(
        "rendezvous",
        "FileStore in a fresh folder, or torchrun --standalone",
        "no port is picked: one that was free when it was picked can be taken when it is used, and fixed "
        "ones collide",
    )
    yield _guard(
        "order of send and receive",
        "even ranks send first, odd ranks receive first",
        "two ranks that both send first wait for each other where a transport does not buffer; the check "
        "p2p.ring posts its batches in this order",
    )


def _variables(env: Mapping[str, str], device: str) -> Iterator[report.Guard]:
    for name, reason in _OF_VARIABLES.items():
        if name in env and (device == "cuda" or name not in _CUDA_ONLY):
            yield _guard(name, env[name], reason)

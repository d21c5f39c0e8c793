"""A whole Python program that starts ranks by torch.multiprocessing.spawn, without a port. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_BODY = '''
os.environ.update(ENV)  # before torch is imported: it reads some of them once
if PYTHONPATH:
    os.environ["PYTHONPATH"] = os.pathsep.join(PYTHONPATH)
    sys.path[1:1] = PYTHONPATH
if NCCL_LIBRARY is not None:
    ctypes.CDLL(NCCL_LIBRARY, mode=ctypes.RTLD_GLOBAL)  # before torch, which then binds to it

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout


def program(mesh, device):
    """Yours: every rank runs it."""
    ones = torch.ones(1, device=device)
    dist.all_reduce(ones, group=mesh["cp1"].get_group())
    print(f"rank {dist.get_rank()} at {mesh.get_coordinate()}: {ones.item():.0f} ranks along cp1", flush=True)


def run(rank, folder):
    """One rank: join, make the mesh, run the program, leave; the kernel ends it with its parent."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a rank stuck in C hears nothing else
    device = torch.device(DEVICE)
    if DEVICE == "cuda":
        device = torch.device(DEVICE, rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = dist.FileStore(os.path.join(folder, "store"), WORLD)
    bound = {"device_id": device} if DEVICE == "cuda" else {}
    dist.init_process_group(
        BACKEND, store=store, rank=rank, world_size=WORLD, timeout=TIMEOUT, **bound
    )
    mesh = init_device_mesh(DEVICE, MESH, mesh_dim_names=AXES)
    for axis in AXES:
        _set_pg_timeout(TIMEOUT, mesh.get_group(axis))  # else torch's own: 10 min for NCCL, 30 for gloo
    program(mesh, device)
    dist.barrier()  # nobody leaves while another still needs it
    dist.destroy_process_group()


def main():
    """Start the ranks, and end them when one fails, the time is over, or this is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    limit_s = float(os.environ.get("TIMEOUT_S", RUN_S))
    end = time.monotonic() + limit_s
    with tempfile.TemporaryDirectory(prefix="cp-ranks-") as folder:
        ranks = mp.spawn(run, args=(folder,), nprocs=WORLD, join=False)
        try:
            while not ranks.join(timeout=1):  # raises when a rank has failed
                if time.monotonic() > end:
                    print(f"not finished after {limit_s:.0f} s", file=sys.stderr)
                    return 124
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The constants of the program."""

    mesh: tuple[int, int, int]
    """Ranks along (dp, cp0, cp1)."""
    device: str
    """"cpu" or "cuda"."""
    env: Mapping[str, str]
    """Variables to set before torch is imported."""
    pythonpath: tuple[str, ...]
    """Folders that the ranks import from, in order."""
    nccl_library: str | None
    """NCCL library to load in place of torch's own."""
    timeouts: Mapping[str, int]
    """Seconds of `nccl`, `gloo` and `run`."""
    words: str
    """What was run with this mesh."""
    interpreter: str
    """The Python that it is for."""


def program(made: Program) -> str:
    """The program's text, ASCII, which runs as a file in the target interpreter."""
    backend = "nccl" if made.device == "cuda" else "gloo"
    dp, cp0, cp1 = made.mesh
    lines = [
        '"""Ranks on a mesh (dp, cp0, cp1), started without torchrun and without a port."""',
        f"# for {_literal(made.interpreter)}",
        *([f"# these ranks: {_literal(made.words)}"] if made.words else []),
        "import ctypes",
        "import os",
        "import signal",
        "import sys",
        "import tempfile",
        "import time",
        "from datetime import timedelta",
        "",
        *_environment(made.env),
        f"PYTHONPATH = {_list(made.pythonpath)}",
        f"NCCL_LIBRARY = {_literal(made.nccl_library) if made.nccl_library is not None else None}",
        f"DEVICE, BACKEND = {_literal(made.device)}, {_literal(backend)}",
        f"MESH, AXES, WORLD = ({dp}, {cp0}, {cp1}), ('dp', 'cp0', 'cp1'), {dp * cp0 * cp1}",
        f"TIMEOUT, RUN_S = timedelta(seconds={made.timeouts[backend]}), {made.timeouts['run']}",
    ]
    return "\n".join(lines) + "\n" + _BODY


def _environment(env: Mapping[str, str]) -> list[str]:
    pairs = (f"    {_literal(name)}: {_literal(value)}," for name, value in env.items())
    return ["ENV = {", *pairs, "}"]


def _list(values: tuple[str, ...]) -> str:
    return "[" + ", ".join(map(_literal, values)) + "]"


def _literal(text: str) -> str:
    """The text as a literal of Python: ASCII, on one line, without backticks, which could end a block."""
    return ascii(text).replace("`", "\\x60")

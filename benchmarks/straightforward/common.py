"""What both scripts with ranks need: a port, a process group, an exact comparison."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn as start_processes


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def join(rank: int, world_size: int, port: int) -> None:
    """Join the process group, and print how long that took."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)  # as torchrun does: the ranks share the cores
    started = time.perf_counter()
    dist.init_process_group("gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=120))
    say(f"init: {time.perf_counter() - started:.3f} s")


def say(line: str) -> None:
    """One line in one write: all ranks share the output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def compare(operation: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    """Stop this rank, and with it the run, when the two differ."""
    if not torch.equal(got, expected):
        raise RuntimeError(f"{operation}: rank {dist.get_rank()} expected {expected}, got {got}")
    say(f"compared: {operation}")


def spawn(body: Callable[[int, int, int], None]) -> None:
    """Run `body(rank, world_size, port)` on as many ranks as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--world-size", type=int, default=4)
    world_size: int = parser.parse_args().world_size
    start_processes(body, args=(world_size, free_port()), nprocs=world_size)  # type: ignore[no-untyped-call]
    print(f"OK: {world_size} ranks")

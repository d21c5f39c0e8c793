"""A program whose ranks call torch.distributed directly: `flight_ranks.py SCENARIO WORLD FOLDER`.

They report to FOLDER what the flight recorder holds, run two operations in which all agree and then the
scenario, and stay until they are ended. `RANK.pid` in FOLDER says who they are.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from cpinfra.worker import flight
from cpinfra.worker.processes import die_with_parent


def join(store: Path, rank: int, world: int) -> None:
    """Meet the others."""
    meeting = dist.FileStore(str(store), world)  # type: ignore[attr-defined] # not in __all__
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=world)


def agree(rank: int) -> None:
    """A collective of all and one of ranks 0 and 1, right on every rank; from different lines, too."""
    if rank == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.all_reduce(torch.ones(4))
    pair = dist.new_group([0, 1], group_desc="pair")
    if rank < 2:
        dist.all_reduce(torch.ones(2, dtype=torch.int64), group=pair)


def skip(rank: int, folder: Path) -> None:
    """Rank 1 leaves out a collective and goes on to the next."""
    if rank != 1:
        dist.all_reduce(torch.ones(2, 3))
    dist.broadcast(torch.ones(5), src=0)


def absent(rank: int, folder: Path) -> None:
    """Rank 1 does not come."""
    if rank != 1:
        dist.all_reduce(torch.ones(2, 3))


def shape(rank: int, folder: Path) -> None:
    """Rank 1 passes another shape. The root does not come: data of the wrong size would end a process."""
    if rank != 0:
        dist.broadcast(torch.ones(2, 4 if rank == 1 else 3), src=0)


def dtype(rank: int, folder: Path) -> None:
    """Rank 1 passes another dtype."""
    if rank != 0:
        dist.broadcast(torch.ones(2, 3, dtype=torch.bfloat16 if rank == 1 else torch.float32), src=0)


def operation(rank: int, folder: Path) -> None:
    """Rank 1 enters another operation."""
    if rank == 1:
        dist.reduce(torch.ones(2, 3), dst=0)
    else:
        dist.all_reduce(torch.ones(2, 3))


def right(rank: int, folder: Path) -> None:
    """What differs by rank and is right all the same: roots, uneven splits, other peers."""
    world = dist.get_world_size()
    lists = [torch.ones(3) for _ in range(world)]
    dist.scatter(torch.empty(3), lists if rank == 2 else None, src=2)
    dist.gather(torch.ones(3), lists if rank == 0 else None, dst=0)
    splits = [rank + 1] * world
    taken = torch.empty(sum(range(1, world + 1)))
    dist.all_to_all_single(taken, torch.ones(sum(splits)), list(range(1, world + 1)), splits)
    if rank == 0:
        dist.send(torch.ones(1), dst=2)
    if rank == 2:
        dist.recv(torch.ones(1), src=0)
    dist.all_reduce_coalesced([torch.ones(2), torch.ones(3, 1)])
    dist.barrier()


def again(rank: int, folder: Path) -> None:
    """All leave and join anew, and only rank 0 enters something then."""
    dist.destroy_process_group()
    join(folder / "second-store", rank, 3)
    if rank == 0:
        dist.broadcast(torch.ones(7), src=0)


def leave(rank: int, folder: Path) -> None:
    """All leave."""
    dist.destroy_process_group()


SCENARIOS: dict[str, Callable[[int, Path], None]] = {
    function.__name__: function for function in (skip, absent, shape, dtype, operation, right, again, leave)
}


def live(scenario: str, rank: int, world: int, folder: Path) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    flight.Reporter(folder, rank).start()
    join(folder / "store", rank, world)
    agree(rank)
    SCENARIOS[scenario](rank, folder)
    while True:
        signal.pause()


def main() -> None:
    """Import torch once, and fork the ranks; they end with this process."""
    scenario, world, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    os.environ.update(flight.environment(torch.__version__))
    if scenario != "absent":
        importlib.import_module("torch._inductor")  # without it no frames are asked for
    parent = os.getpid()
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            die_with_parent(parent)
            live(scenario, rank, world, folder)
        (folder / f"{rank}.pid").write_text(str(pid))
    for _ in range(world):
        os.wait()


if __name__ == "__main__":
    main()

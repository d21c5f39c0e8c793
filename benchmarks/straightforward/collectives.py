"""Check all_reduce, all_gather, reduce_scatter and a ring on gloo: the second of the three scripts."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import compare
from common import join
from common import spawn

ELEMENTS = 1024


def data_of(rank: int, chunk: int = 0) -> torch.Tensor:
    """[ELEMENTS] that tell rank, chunk and place."""
    return torch.arange(ELEMENTS, dtype=torch.int64) + 10_000 * rank + 1_000_000 * chunk


def check_all_reduce(world_size: int, rank: int) -> None:
    """Everybody gets the sum."""
    got = data_of(rank)
    dist.all_reduce(got)
    compare("all_reduce", got, torch.stack([data_of(source) for source in range(world_size)]).sum(0))


def check_all_gather(world_size: int, rank: int) -> None:
    """Everybody gets everybody's, in rank order."""
    got = torch.empty(world_size * ELEMENTS, dtype=torch.int64)
    dist.all_gather_into_tensor(got, data_of(rank))
    compare("all_gather", got, torch.cat([data_of(source) for source in range(world_size)]))


def check_reduce_scatter(world_size: int, rank: int) -> None:
    """Each gets the sum of the chunks meant for it."""
    got = torch.empty(ELEMENTS, dtype=torch.int64)
    dist.reduce_scatter_tensor(got, torch.cat([data_of(rank, chunk) for chunk in range(world_size)]))
    expected = torch.stack([data_of(source, rank) for source in range(world_size)]).sum(0)
    compare("reduce_scatter", got, expected)


def check_ring(world_size: int, rank: int) -> None:
    """Each sends to the right and receives from the left."""
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    got = torch.empty(ELEMENTS, dtype=torch.int64)
    operations = [dist.P2POp(dist.isend, data_of(rank), right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    compare("batch_isend_irecv", got, data_of(left))


def run(rank: int, world_size: int, port: int) -> None:
    """One rank."""
    join(rank, world_size, port)
    check_all_reduce(world_size, rank)
    check_all_gather(world_size, rank)
    check_reduce_scatter(world_size, rank)
    check_ring(world_size, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(run)

"""Check a DTensor round trip on a square mesh with gloo: the third of the three scripts."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from common import compare
from common import join
from common import spawn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor import distribute_tensor

TILE = 32


def run(rank: int, world_size: int, port: int) -> None:
    """One rank: distribute a matrix over the mesh, look at its tile, gather it again."""
    side = math.isqrt(world_size)
    join(rank, world_size, port)
    mesh = init_device_mesh("cpu", (side, side), mesh_dim_names=("cp0", "cp1"))
    whole = torch.arange((TILE * side) ** 2, dtype=torch.float32).reshape(TILE * side, TILE * side)
    distributed = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    row, column = divmod(rank, side)
    tile = whole[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
    compare("to_local", distributed.to_local(), tile)
    compare("full_tensor", distributed.full_tensor(), whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(run)

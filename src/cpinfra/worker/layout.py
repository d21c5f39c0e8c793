"""Which tile of a matrix lies where: computed here, never asked of torch, so that it can contradict torch.

torch cuts a dim of n into k shards of ceil(n / k); the last ones are shorter, or empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from .oracle import Candidates
from .oracle import Pattern


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A matrix cut into a grid of tiles, whose places are numbered by row."""

    shape: tuple[int, int]
    grid: tuple[int, int]
    """How many shards each dim is cut into."""

    def place(self, rank: int) -> tuple[int, int]:
        """The grid place of a rank; ranks beyond the grid are replicas of it."""
        return divmod(rank % (self.grid[0] * self.grid[1]), self.grid[1])

    def places(self) -> Iterator[tuple[int, int]]:
        """All grid places by row."""
        for i in range(self.grid[0]):
            for j in range(self.grid[1]):
                yield i, j

    def name(self, i: int, j: int) -> str:
        """What messages call a tile."""
        return f"tile ({i}, {j})" if min(self.grid) > 1 else f"shard {max(i, j)}"

    def tile(self, matrix: Tensor, i: int, j: int) -> Tensor:
        """One tile of a matrix of this shape, as a view."""
        rows = _cut(self.shape[0], self.grid[0], i)
        columns = _cut(self.shape[1], self.grid[1], j)
        return matrix[rows, columns]

    def others(self, pattern: Pattern, matrix: Tensor, i: int, j: int) -> Candidates:
        """What could lie at a place instead: another tile, or its own tile of an earlier repetition."""
        for place in self.places():
            if place != (i, j):
                yield self.name(*place), self.tile(matrix, *place)
        for repetition in range(pattern.repetition - 1, 0, -1):
            earlier = pattern.at(repetition).chunk(0)
            yield f"{self.name(i, j)} of repetition {repetition}", self.tile(earlier, i, j)


def _cut(size: int, shards: int, place: int) -> slice:
    each = -(-size // shards)
    return slice(min(size, place * each), min(size, (place + 1) * each))

"""Which 2D context-parallel meshes fit a world size, and which of them a number of GPUs can test.

Standard library only. A world of ranks is `dp * cp0 * cp1`; the CP grid is square. A 1-D mesh
(`dp` 1, `cp0` the world, `cp1` 1) is what remains for a world that holds no square.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

MAX_RANKS_CPU = 1024
MAX_RANKS_PER_GPU = 64


class UsageProblem(ValueError):
    """What the user asked for cannot be done; holds every mistake, not only the first."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages: tuple[str, ...] = tuple(messages)
        super().__init__("\n".join(self.messages))


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """A device mesh: how many ranks lie along each axis."""

    dp: int
    cp0: int
    cp1: int

    def __post_init__(self) -> None:
        if min(self.dp, self.cp0, self.cp1) < 1:
            raise ValueError(f"mesh {self.shape}: every axis needs at least one rank")

    @property
    def world_size(self) -> int:
        """How many ranks the mesh holds."""
        return self.dp * self.cp0 * self.cp1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Ranks along (dp, cp0, cp1)."""
        return (self.dp, self.cp0, self.cp1)

    def __str__(self) -> str:
        if self.dp == self.cp1 == 1:
            return f"1-D mesh of {self.world_size}"
        return f"dp {self.dp}, cp {self.cp0}x{self.cp1}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A mesh that a number of GPUs can test, and how far an integration test on it reaches."""

    dp: int
    cp0: int
    cp1: int
    integration: str
    """`full` (world >= 8 and dp >= 2) or `limited`."""

    @property
    def world_size(self) -> int:
        """How many ranks, and GPUs, it takes."""
        return self.dp * self.cp0 * self.cp1

    @property
    def mesh(self) -> Mesh:
        """The same as a mesh."""
        return Mesh(dp=self.dp, cp0=self.cp0, cp1=self.cp1)


def _config(side: int, dp: int) -> Config:
    full = dp * side * side >= 8 and dp >= 2
    return Config(dp=dp, cp0=side, cp1=side, integration="full" if full else "limited")


def configs(gpus_free: int) -> tuple[Config, ...]:
    """Every side that fits `gpus_free` GPUs, each with as much data parallelism as fits."""
    if gpus_free < 0:
        raise ValueError(f"gpus_free {gpus_free}: a number of GPUs is 0 or more")
    return tuple(_config(side, gpus_free // side**2) for side in range(2, isqrt(gpus_free) + 1))


def chosen(gpus_free: int) -> Config | None:
    """The one to test: 2x2 with all the data parallelism that fits; None below four GPUs."""
    return next(iter(configs(gpus_free)), None)


def slots(gpus_free: int) -> int:
    """How many copies of the chosen mesh fit at once; 0 where none was chosen."""
    choice = chosen(gpus_free)
    return gpus_free // choice.world_size if choice else 0


def factorisations(world: int) -> tuple[Mesh, ...]:
    """Every mesh of exactly `world` ranks with a square CP grid of side two or more."""
    sides = range(2, isqrt(max(world, 0)) + 1)
    return tuple(Mesh(dp=world // s**2, cp0=s, cp1=s) for s in sides if world % s**2 == 0)


def one_dimensional(world: int) -> Mesh:
    """The mesh of a world that holds no square."""
    return Mesh(dp=1, cp0=world, cp1=1)


def parse_cp(text: str, *, option: str = "--cp") -> tuple[int, int]:
    """Read "2x2" as (2, 2).

    Raises:
        UsageProblem: it is not AxB with two equal whole numbers of 2 or more.
    """
    match = re.fullmatch(r"\s*(\d{1,9})\s*[xX]\s*(\d{1,9})\s*", text, flags=re.ASCII)
    if match is None:
        raise UsageProblem([f"{option} {text!r}: expected AxB with two whole numbers, such as 2x2"])
    cp0, cp1 = int(match[1]), int(match[2])
    if cp0 != cp1 or cp0 < 2:
        wanted = "the CP grid must be square with a side of 2 or more"
        raise UsageProblem([f"{option} {cp0}x{cp1}: {wanted}; valid: {_squares_near(cp0, cp1)}"])
    return cp0, cp1


def _squares_near(cp0: int, cp1: int) -> str:
    sides = sorted({max(2, min(cp0, cp1)), max(2, cp0, cp1)})
    return ", ".join(f"{side}x{side}" for side in sides)


def choose(
    world: int | None = None,
    cp: tuple[int, int] | None = None,
    dp: int | None = None,
    *,
    allow_1d: bool = True,
    world_option: str = "--ranks",
) -> Mesh:
    """The mesh that the given numbers mean: any two give the third.

    Args:
        world: number of ranks. Alone: 2x2 where 4 divides it, else the smallest square that does.
        cp: the CP grid. Without `world`, `dp` is 1 unless given.
        dp: ranks along the data-parallel axis. Alone: with cp 2x2.
        allow_1d: whether a world without a square gets a 1-D mesh; else it is refused.
        world_option: what messages call `world`.

    Raises:
        UsageProblem: the numbers contradict each other or are too small; it names what would fit.
        ValueError: none of the three was given.
    """
    if world is None and cp is None and dp is None:
        raise ValueError("choose() needs at least one of world, cp and dp")
    problems = small_numbers(((world_option, world), ("--dp", dp)))
    if cp is not None and (cp[0] != cp[1] or cp[0] < 2):
        problems += (f"--cp {cp[0]}x{cp[1]}: must be square with a side of 2 or more, such as 2x2",)
    if problems:
        raise UsageProblem(problems)
    if world is None:
        cp0, cp1 = cp or (2, 2)
        return Mesh(dp=dp or 1, cp0=cp0, cp1=cp1)
    if cp is None and dp is None:
        return _from_world(world, allow_1d, world_option)
    return _matching(world, cp, dp, world_option)


def small_numbers(options: Iterable[tuple[str, int | None]]) -> tuple[str, ...]:
    """A message for each given number below 1."""
    return tuple(f"{name} {n}: must be 1 or more" for name, n in options if n is not None and n < 1)


def _from_world(world: int, allow_1d: bool, world_option: str) -> Mesh:
    fitting = factorisations(world)
    if fitting:
        return fitting[0]
    if allow_1d:
        return one_dimensional(world)
    near = _numbers(_worlds_around(world, 4))
    raise UsageProblem([f"{world_option} {world}: no square CP grid divides it; worlds that fit 2x2: {near}"])


def _matching(world: int, cp: tuple[int, int] | None, dp: int | None, world_option: str) -> Mesh:
    """The factorisation of `world` that has the given cp and dp, or a refusal."""
    for mesh in factorisations(world):
        if cp in (None, (mesh.cp0, mesh.cp1)) and dp in (None, mesh.dp):
            return mesh
    raise UsageProblem([_no_match(world, cp, dp, world_option)])


def _no_match(world: int, cp: tuple[int, int] | None, dp: int | None, world_option: str) -> str:
    if cp is None and dp is not None:
        asked = f"--dp {dp} with {world_option} {world}"
        return f"{asked}: {_dp_reason(world, dp)}; {_meshes_that_fit(world)}"
    cp0, cp1 = cp or (2, 2)
    unit = cp0 * cp1 * (dp or 1)
    options = f"--cp {cp0}x{cp1}" + (f" --dp {dp}" if dp else "")
    if dp is None:
        why = f"{world} is not a multiple of {unit}"
        fit = f"worlds that fit {cp0}x{cp1}: {_numbers(_worlds_around(world, unit))}"
    else:
        why, fit = f"dp*cp0*cp1 is {unit}, not {world}", f"the world that fits: {unit}"
    return f"{options} with {world_option} {world}: {why}; {fit}; {_meshes_that_fit(world)}"


def _dp_reason(world: int, dp: int) -> str:
    if world % dp:
        return f"{world} is not a multiple of {dp}"
    return f"{world}/{dp} is {world // dp}, which is not a square of side 2 or more"


def _meshes_that_fit(world: int) -> str:
    fitting = [f"--cp {m.cp0}x{m.cp1} --dp {m.dp}" for m in factorisations(world)]
    return f"meshes that fit {world}: " + (", ".join(fitting) or "1-D only (leave out --cp and --dp)")


def _worlds_around(world: int, unit: int) -> tuple[int, ...]:
    """The multiples of `unit` next to `world`."""
    below = world // unit * unit
    return tuple(n for n in (below, below + unit) if n >= unit)


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)


def limit_problems(
    world: int, *, device: str, gpus: int = 0, world_option: str = "--ranks"
) -> tuple[str, ...]:
    """What speaks against so many ranks on this device, as messages; empty when nothing does.

    Args:
        world: number of ranks.
        device: "cpu" or "cuda".
        gpus: how many GPUs there are for them; read for "cuda" only.
        world_option: what messages call `world`.
    """
    most = MAX_RANKS_CPU if device == "cpu" else MAX_RANKS_PER_GPU * gpus
    if world <= most:
        return ()
    where = "on CPU" if device == "cpu" else f"on {gpus} GPU(s), {MAX_RANKS_PER_GPU} a GPU"
    return (f"{world_option} {world}: at most {most} ranks {where}",)

"""From a request as written to one that makes sense: looks at the machine, starts nothing, writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import asked
from . import mesh as meshes
from . import placement
from . import selection
from .asked import Numbers
from .asked import ProveRequest
from .hardware.gpus import usable_gpus
from .mesh import Mesh
from .mesh import UsageProblem
from .outcome import Role
from .outcome import RunFacts
from .placement import Device
from .proof import environment as ranks_environment
from .proof.catalogue import catalogue
from .proof.environment import Told
from .selection import Selection
from .software import interpreters
from .software.interpreters import Target

NVML_TIMEOUT_S = 20.0
"""How long the driver may take to answer; without persistence mode it loads firmware first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """Everything that is decided before a run."""

    numbers: Numbers
    target: Target
    device: Device
    mesh: Mesh
    selection: Selection
    faults: tuple[str, ...]
    told: Told
    """What the report says of the ranks' environment."""

    @property
    def facts(self) -> RunFacts:
        """The run that this asks for; of role `partial` on GPUs too few for a square mesh."""
        dp, cp0, cp1 = self.mesh.shape
        on_gpus = self.device.kind == "cuda"
        few = on_gpus and len(self.device.gpus) < placement.FEWEST_GPUS
        role = Role.PARTIAL if few else Role.MAIN
        return RunFacts(
            id=role.value,
            role=role,
            device=self.device.kind,
            world_size=self.mesh.world_size,
            dp=dp,
            cp0=cp0,
            cp1=cp1,
            distinct_gpus=self.mesh.world_size if on_gpus else 0,
        )


def settle(request: ProveRequest, environment: Mapping[str, str]) -> Settled:
    """Read the request, and only if nothing is wrong with it by itself look at the machine.

    Raises:
        UsageProblem: with every mistake that could be seen.
    """
    mistakes = asked.Mistakes()
    numbers = asked.read(request, mistakes)
    target = mistakes.attempt(lambda: _target(request.python, environment))
    chosen = mistakes.attempt(
        lambda: selection.select(catalogue(), tier=numbers.tier, only=request.only, skip=request.skip)
    )
    world = mistakes.attempt(lambda: _known_world(numbers)) if numbers.mesh_readable else None
    mistakes.attempt(lambda: asked.check_faults(request.inject, world))
    if mistakes.messages or target is None or chosen is None:
        raise mistakes.problem()
    device, mesh = _placed(request, numbers, environment)
    uuids = tuple(gpu.uuid for gpu in device.gpus[: mesh.world_size])
    return Settled(
        numbers=numbers,
        target=target,
        device=device,
        mesh=mesh,
        selection=selection.fitted(chosen, mesh),
        faults=request.inject,
        told=ranks_environment.told(environment, gpu_uuids=uuids),
    )


def _known_world(numbers: Numbers) -> int | None:
    """The world size, where the numbers alone decide it; else the GPUs do.

    Raises:
        UsageProblem: the numbers do not fit each other.
    """
    if numbers.ranks is None and numbers.cp is None and numbers.dp is None:
        return None
    mesh = meshes.choose(numbers.ranks, numbers.cp, numbers.dp)
    return mesh.world_size if numbers.ranks is not None or numbers.dp is not None else None


def _placed(request: ProveRequest, numbers: Numbers, environment: Mapping[str, str]) -> tuple[Device, Mesh]:
    """Where it runs; asks the driver, which can take long.

    Raises:
        UsageProblem: the numbers or the faults do not fit this machine.
    """
    answer = usable_gpus(environment, NVML_TIMEOUT_S) if numbers.device != "cpu" else None
    device = placement.decide(numbers.device, answer)
    mesh = placement.pick_mesh(numbers, device)
    asked.check_faults(request.inject, mesh.world_size)
    return device, mesh


def _target(python: str | None, environment: Mapping[str, str]) -> Target:
    try:
        if python is None:
            return interpreters.default(environment)
        return interpreters.named(python, environment)
    except interpreters.InterpreterError as error:
        raise UsageProblem([str(error)]) from error

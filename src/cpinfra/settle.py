"""From a request as written to one that makes sense: looks at the machine, starts nothing, writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from . import asked
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
from .proof.catalogue import catalogue
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
    """Read the request and look at the machine.

    Raises:
        UsageProblem: with every mistake in the request.
    """
    mistakes = asked.Mistakes()
    numbers = asked.read(request, mistakes)
    target = mistakes.attempt(lambda: _target(request.python, environment))
    chosen = mistakes.attempt(
        lambda: selection.select(catalogue(), tier=numbers.tier, only=request.only, skip=request.skip)
    )
    answer = usable_gpus(environment, NVML_TIMEOUT_S) if numbers.device != "cpu" else None
    device = placement.decide(numbers.device, answer)
    mesh = mistakes.attempt(lambda: placement.pick_mesh(numbers, device)) if numbers.mesh_readable else None
    mistakes.attempt(lambda: asked.check_faults(request.inject, mesh.world_size if mesh else None))
    if mistakes.messages or target is None or chosen is None or mesh is None:
        raise mistakes.problem()
    return Settled(
        numbers=numbers,
        target=target,
        device=device,
        mesh=mesh,
        selection=selection.fitted(chosen, mesh),
        faults=request.inject,
    )


def _target(python: str | None, environment: Mapping[str, str]) -> Target:
    try:
        if python is None:
            return interpreters.default(environment)
        return interpreters.named(python, environment)
    except interpreters.InterpreterError as error:
        raise UsageProblem([str(error)]) from error

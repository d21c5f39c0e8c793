"""From a request as written to runs that make sense: looks at the machine, starts nothing, writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace

from .. import mesh as meshes
from ..hardware.gpus import Gpu
from ..hardware.gpus import GpuAnswer
from ..hardware.gpus import usable_gpus
from ..mesh import Mesh
from ..mesh import UsageProblem
from ..outcome import Finding
from ..outcome import Role
from ..outcome import RunFacts
from ..proof import environment as ranks_environment
from ..proof.catalogue import TIERS
from ..proof.catalogue import catalogue
from ..proof.environment import Told
from ..software import interpreters
from ..software.interpreters import Target
from . import asked
from . import placement
from . import selection
from .asked import BuildRequest
from .asked import Numbers
from .asked import ProveRequest
from .asked import SelfTestRequest
from .asked import Wishes
from .placement import Device
from .selection import Selection

PROBE_CHECK = "dtensor.roundtrip_1d"
"""What `probe` tries on its one rank."""

NVML_TIMEOUT_S = 20.0
"""How long the driver may take to answer; without persistence mode it loads firmware first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """Ranks that are to be started for one purpose."""

    role: Role
    device: str
    """`cpu` or `cuda`."""
    mesh: Mesh
    gpus: tuple[Gpu, ...]
    """One per rank; all free ones where it only probes; none on the CPU."""
    selection: Selection
    told: Told
    """What the report says of the ranks' environment."""

    @property
    def id(self) -> str:
        """Its name in the report: no role comes twice."""
        return self.role.value

    @property
    def facts(self) -> RunFacts:
        """What the verdict needs to know of it."""
        dp, cp0, cp1 = self.mesh.shape
        return RunFacts(
            id=self.id,
            role=self.role,
            device=self.device,
            world_size=self.mesh.world_size,
            dp=dp,
            cp0=cp0,
            cp1=cp1,
            distinct_gpus=len(self.gpus),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """Everything that is decided before a run."""

    numbers: Numbers
    target: Target
    device: Device
    runs: tuple[PlannedRun, ...]
    """In the order in which they are made; none where an obstacle leaves nothing to do."""
    selection: Selection
    """Which checks were asked for, and which of them a proof requires."""
    faults: tuple[str, ...]
    twins: tuple[str, ...] = ()
    """Names of the faults that `selftest` plants."""
    wishes: Wishes | None = None
    """None for `prove`."""
    findings: tuple[Finding, ...] = ()
    """What is known to stand in the way before anything ran."""
    probing: bool = False
    """Whether it only looks: kernels on all free GPUs, torch's opinion on CUDA, one check on one rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Read:
    """A request in which nothing is wrong by itself."""

    numbers: Numbers
    target: Target
    selection: Selection


AskGpus = Callable[[Mapping[str, str]], GpuAnswer]
"""Finds out, in a bounded time, which GPUs may be used."""


def settle(
    request: ProveRequest,
    environment: Mapping[str, str],
    *,
    ask_gpus: AskGpus | None = None,
    rehearsal: str = placement.PROVE_REHEARSAL,
    mistakes: asked.Mistakes | None = None,
) -> Settled:
    """Read what `prove` is asked for, and only if nothing is wrong with it by itself look at the machine.

    Args:
        request: what was asked.
        environment: of this process.
        ask_gpus: another source than NVML for the GPUs.
        rehearsal: the command that would rehearse instead, for messages.
        mistakes: what is known to be wrong with it already.

    Raises:
        UsageProblem: with every mistake that could be seen.
    """
    read = _read(request, environment, mistakes or asked.Mistakes())
    answer = _gpus(environment, ask_gpus) if read.numbers.device != "cpu" else None
    device = placement.decide(read.numbers.device, answer, rehearsal=rehearsal)
    mesh = placement.pick_mesh(read.numbers, device.kind, len(device.gpus))
    asked.check_faults(request.inject, mesh.world_size)
    few = device.kind == "cuda" and len(device.gpus) < placement.FEWEST_GPUS
    run = _planned(Role.PARTIAL if few else Role.MAIN, device, mesh, read.selection, environment)
    return Settled(
        numbers=read.numbers,
        target=read.target,
        device=device,
        runs=(run,) if device.obstacle is None else (),
        selection=run.selection,
        faults=request.inject,
    )


def settle_build(request: BuildRequest, environment: Mapping[str, str]) -> Settled:
    """The same for `build`, which looks at the GPUs in any case and rehearses where they prove nothing.

    Raises:
        UsageProblem: with every mistake that could be seen.
    """
    mistakes = asked.Mistakes()
    wishes = asked.read_wishes(request, mistakes)
    read = _read(request.proof, environment, mistakes, allow_1d=False)
    answer = usable_gpus(environment, NVML_TIMEOUT_S, show_hidden=True)
    device = placement.decide(read.numbers.device, answer, rehearsal=placement.BUILD_REHEARSAL)
    runs = _build_runs(read, device, environment)
    return Settled(
        numbers=read.numbers,
        target=read.target,
        device=device,
        runs=runs,
        selection=runs[-1].selection,
        faults=(),
        wishes=wishes,
        findings=_without_gpus(device, answer, wishes),
    )


def settle_selftest(request: SelfTestRequest, environment: Mapping[str, str]) -> Settled:
    """The run of `selftest`: every check there is, of whichever tier.

    Raises:
        UsageProblem: with every mistake that could be seen; a single rank has nobody to blame.
    """
    mistakes = asked.Mistakes()
    twins = mistakes.attempt(lambda: asked.twins(request.fault))
    settled = settle(
        ProveRequest(
            ranks=request.ranks,
            device=request.device,
            python=request.python,
            tier=[tier for tier in TIERS if any(check.tier == tier for check in catalogue())][-1],
            only=request.only,
            run_dir=request.run_dir,
        ),
        environment,
        rehearsal=placement.SELFTEST_REHEARSAL,
        mistakes=mistakes,
    )
    for run in settled.runs:
        if run.mesh.world_size < placement.FEWEST_RANKS:
            got = f"got {run.mesh.world_size} on {run.device}; valid: {placement.SELFTEST_REHEARSAL}"
            raise UsageProblem([f"selftest: expected {placement.FEWEST_RANKS} ranks or more, {got}"])
    return replace(settled, twins=twins or ())


def settle_probe(
    python: str | None,
    models: Sequence[str],
    workdir: str | None,
    environment: Mapping[str, str],
    *,
    ask_gpus: AskGpus | None = None,
) -> Settled:
    """What `probe` does: one rank with one check, beside kernels on each free GPU.

    Args:
        python: the target interpreter, as it was named.
        models: modules that are to be imported.
        workdir: the folder whose disk is measured.
        environment: of this process.
        ask_gpus: another source than NVML for the GPUs.

    Raises:
        UsageProblem: with every mistake that could be seen.
    """
    mistakes = asked.Mistakes()
    wishes = asked.read_wishes(BuildRequest(model=tuple(models), workdir=workdir), mistakes)
    read = _read(ProveRequest(python=python, ranks="1", only=(PROBE_CHECK,)), environment, mistakes)
    answer = _gpus(environment, ask_gpus)
    device = placement.decide("auto", answer, rehearsal=placement.BUILD_REHEARSAL)
    where = device if device.gpus else placement.decide("cpu", answer)
    run = _planned(Role.MAIN, where, meshes.one_dimensional(1), read.selection, environment, gpus=where.gpus)
    return Settled(
        numbers=read.numbers,
        target=read.target,
        device=device,
        runs=(run,),
        selection=run.selection,
        faults=(),
        wishes=wishes,
        probing=True,
    )


def _gpus(environment: Mapping[str, str], ask: AskGpus | None) -> GpuAnswer:
    return ask(environment) if ask is not None else usable_gpus(environment, NVML_TIMEOUT_S)


def _build_runs(read: _Read, device: Device, environment: Mapping[str, str]) -> tuple[PlannedRun, ...]:
    """The run that can prove; or what fits the few GPUs there are, and a rehearsal for information.

    Raises:
        UsageProblem: the numbers do not fit this machine.
    """
    enough = len(device.gpus) >= placement.FEWEST_GPUS
    if enough or read.numbers.device == "cpu":
        mesh = placement.pick_mesh(read.numbers, device.kind, len(device.gpus), allow_1d=False)
        return (_planned(Role.MAIN, device, mesh, read.selection, environment),)
    mesh = placement.pick_mesh(read.numbers, "cpu", 0, allow_1d=False)
    cpu = placement.decide("cpu", device.answer, rehearsal=device.rehearsal)
    rehearsal = _planned(Role.REHEARSAL, cpu, mesh, read.selection, environment)
    if not device.gpus:
        return (rehearsal,)
    line = meshes.one_dimensional(len(device.gpus))
    return _planned(Role.PARTIAL, device, line, read.selection, environment), rehearsal


def _without_gpus(device: Device, answer: GpuAnswer, wishes: Wishes) -> tuple[Finding, ...]:
    """That nothing can be proven on a machine whose lack of GPUs is no obstacle to a rehearsal."""
    if wishes.rehearse or device.kind == "cuda":
        return ()
    return (placement.missing_gpus(answer, device.rehearsal),)


def _planned(
    role: Role,
    device: Device,
    mesh: Mesh,
    chosen: Selection,
    environment: Mapping[str, str],
    *,
    gpus: tuple[Gpu, ...] | None = None,
) -> PlannedRun:
    """One run, on a GPU for each rank unless told on which."""
    gpus = device.gpus[: mesh.world_size] if gpus is None else gpus
    return PlannedRun(
        role=role,
        device=device.kind,
        mesh=mesh,
        gpus=gpus,
        selection=selection.fitted(chosen, mesh),
        told=ranks_environment.told(environment, gpu_uuids=tuple(gpu.uuid for gpu in gpus)),
    )


def _read(
    request: ProveRequest,
    environment: Mapping[str, str],
    mistakes: asked.Mistakes,
    *,
    allow_1d: bool = True,
) -> _Read:
    """Read a request without a look at the machine.

    Raises:
        UsageProblem: with every mistake that could be seen, those found before among them.
    """
    numbers = asked.read(request, mistakes)
    target = mistakes.attempt(lambda: _target(request.python, environment))
    chosen = mistakes.attempt(
        lambda: selection.select(catalogue(), tier=numbers.tier, only=request.only, skip=request.skip)
    )
    world = mistakes.attempt(lambda: _known_world(numbers, allow_1d)) if numbers.mesh_readable else None
    mistakes.attempt(lambda: asked.check_faults(request.inject, world))
    if mistakes.messages or target is None or chosen is None:
        raise mistakes.problem()
    return _Read(numbers=numbers, target=target, selection=chosen)


def _known_world(numbers: Numbers, allow_1d: bool) -> int | None:
    """The world size, where the numbers alone decide it, or the CPU; else the GPUs do.

    Raises:
        UsageProblem: the numbers do not fit each other.
    """
    if numbers.ranks is None and numbers.cp is None and numbers.dp is None:
        return placement.CPU_RANKS if numbers.device == "cpu" else None
    mesh = meshes.choose(
        numbers.ranks, numbers.cp, numbers.dp, allow_1d=allow_1d, world_option=numbers.ranks_option
    )
    return mesh.world_size if numbers.ranks is not None or numbers.dp is not None else None


def _target(python: str | None, environment: Mapping[str, str]) -> Target:
    try:
        if python is None:
            return interpreters.default(environment)
        return interpreters.named(python, environment)
    except interpreters.InterpreterError as error:
        raise UsageProblem([str(error)]) from error

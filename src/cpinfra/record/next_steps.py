"""What to do after a build, and what only the user can answer. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from types import MappingProxyType

from .. import report
from . import words

SQUARE_GPUS = 4
"""GPUs that the smallest square mesh takes."""
FULL_GPUS = 8
"""GPUs that a full integration test takes."""

SCOPE_TOO_NARROW = "scope-too-narrow"
"""Id of what blocks where `--require` asked for more than was reached."""

_ANYWHERE = ("torch-missing", "torch-import", "model-")
"""Beginnings of the ids of what blocks a rehearsal too."""
_THROUGH_SLURM = (
    "or through SLURM, on a login host of the cluster, in a clone of cpinfra, with the values at the top of "
    "that file filled in"
)
_SCRIPTS = "skills/build-infra/scripts"

_CLUSTER = {
    "login_host": (
        "On which login host of a SLURM cluster with GPUs may jobs be submitted? Clone cpinfra there.",
        "ssh",
        "login.cluster.example.org",
    ),
    "partition": ("Which partition has the GPUs?", "sbatch --partition", "gpu"),
    "account": ("Which account are the jobs charged to?", "sbatch --account", "proj1234"),
    "time_limit": ("How long may a job take? 20 minutes are enough.", "sbatch --time", "00:20:00"),
    "activation": (
        "Which line makes the environment with torch and the model available on a compute node?",
        "ACTIVATE=",
        "source ~/envs/model/bin/activate",
    ),
    "shared_folder": (
        "Which folder do login and compute nodes share? The scripts of that clone have to lie in it.",
        "SCRIPTS=",
        f"/shared/home/you/cpinfra/{_SCRIPTS}",
    ),
    "may_submit": (
        "May the job be submitted for you? If not, give the command under Next yourself.",
        "sbatch",
        "yes",
    ),
}
"""Key -> what to ask, what takes the answer (the options of sbatch and the fields of the template, and what
is run by hand), and an example of it."""


Options = Mapping[str, Sequence[str]]
"""Values by option; a flag has the value "", and WORLD, which has no option, the option ""."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedMesh:
    """The mesh that a build was asked for, and what it takes."""

    gpus: int = SQUARE_GPUS
    """The fewest GPUs on which it can be proven."""
    gpus_full: int = FULL_GPUS
    """The fewest for a full integration test of its grid."""
    is_fixed: bool = False
    """Whether its number of ranks was given, so that more GPUs are of no use to it."""
    options: Options = field(default_factory=dict)
    """As it was asked for."""

    @property
    def grid(self) -> Options:
        """Of the options those that leave the number of ranks open."""
        return {option: values for option, values in self.options.items() if option == "--cp"}


_ANY_MESH = AskedMesh()


def next_steps(
    made: report.Report,
    docs: str = "docs",
    options: Options = MappingProxyType({}),
    same: Options = MappingProxyType({}),
    mesh: AskedMesh = _ANY_MESH,
) -> list[report.Next]:
    """What to do next, in order.

    Args:
        made: the report of the build.
        docs: the folder that its documents lie in, as commands have to name it.
        options: by which another build is about the same: values by option, see `again`.
        same: by which it makes the same runs as well: after a failure.
        mesh: what it was asked to prove.
    """
    if made.verdict == "failed":
        repeated = same or options
    else:
        repeated = {**(mesh.grid if made.verdict == "proven" else mesh.options), **options}
    steps = [_next(one.why, again(one.command, repeated)) for one in _towards_proof(made, mesh)]
    steps += _use(made, docs)
    if made.verdict in ("proven", "rehearsed"):
        path = shlex.quote(f"{docs}/cp_infra.json")
        steps.append(_next("later, see whether this report is still true", f"cpinfra check {path}"))
    first: dict[str, report.Next] = {}
    for step in steps:
        first.setdefault(step.command, step)
    return list(first.values())


def again(command: str, options: Options) -> str:
    """A command that builds, with what was asked for before; any other as it is.

    Args:
        command: as it would be for the defaults.
        options: what was asked for; what the command has itself is left out, and --dp where it has WORLD.
    """
    before, build, after = command.partition("cpinfra build")
    if not build:
        return command
    has_world = re.match(" [^-]", after) is not None
    world = [] if has_world else [f" {shlex.quote(value)}" for value in options.get("", ())]
    added = [
        f" {option} {shlex.quote(value)}" if value else f" {option}"
        for option, values in options.items()
        for value in values
        if option and f" {option} " not in f"{command} " and not (has_world and option == "--dp")
    ]
    return "".join([before, build, *world, after, *added])


def questions(made: report.Report, mesh: AskedMesh = _ANY_MESH) -> list[report.Question]:
    """What to ask of the user where GPUs are missing: how to reach some through SLURM; else nothing."""
    if made.verdict in ("proven", "rehearsed") or (_enough_gpus(made, mesh) and not _needs_more(made, mesh)):
        return []
    return [
        report.Question(key=key, question=question, option=option, example=example)
        for key, (question, option, example) in _CLUSTER.items()
    ]


def _next(why: str, command: str) -> report.Next:
    return report.Next(why=report.plain(why), command=report.plain(command))


def _free_gpus(made: report.Report) -> int | None:
    """How many GPUs are free; None where that could not be told."""
    free = made.plan.gpus_free if made.plan is not None else None
    return free if isinstance(free, int) else None


def _enough_gpus(made: report.Report, mesh: AskedMesh) -> bool:
    return (_free_gpus(made) or 0) >= mesh.gpus


def _needs_more(made: report.Report, mesh: AskedMesh) -> bool:
    """Whether a wider scope was required than the free GPUs could ever reach."""
    full = any(one.id == SCOPE_TOO_NARROW and "--require full" in one.command for one in made.blocking or ())
    return full and (_free_gpus(made) or 0) < mesh.gpus_full


def _towards_proof(made: report.Report, mesh: AskedMesh) -> Iterator[report.Next]:
    if made.verdict == "failed":
        yield from _after_failure(made)
    elif made.verdict == "proven":
        yield from _widen(made, mesh)
    elif made.verdict == "rehearsed":
        yield from _gpus(made, mesh)
    else:
        yield from _unblock(made, mesh)


def _after_failure(made: report.Report) -> Iterator[report.Next]:
    if any(run.device == "cuda" for run in made.runs or ()):
        yield _next(
            "see in the logs of the ranks what NCCL says before it fails", "NCCL_DEBUG=INFO cpinfra build"
        )
    else:
        command = "TORCH_DISTRIBUTED_DEBUG=DETAIL cpinfra build --rehearse"
        yield _next("see in the logs of the ranks what torch.distributed says before it fails", command)


def _widen(made: report.Report, mesh: AskedMesh) -> Iterator[report.Next]:
    if made.scope == "full":
        return
    free, full = _free_gpus(made) or 0, mesh.gpus_full
    if free >= full:
        why = f"prove a full integration, dp 2 or more on {full} GPUs or more"
        yield _next(why, "cpinfra build --require full")
    else:
        why = f"for a full integration, dp 2, run it where {full} GPUs are free ({free} are here)"
        yield _next(why, f"cpinfra build {full} --require full")


def _gpus(made: report.Report, mesh: AskedMesh) -> Iterator[report.Next]:
    """How to get from a rehearsal, or from too few GPUs, to a proof."""
    if _enough_gpus(made, mesh):
        yield _next(f"prove it on the GPUs here ({_free_gpus(made)} are free)", "cpinfra build --local")
        return
    more = "" if mesh.is_fixed else f", {mesh.gpus_full} for all of it"
    yield _next(f"prove it on a machine with {mesh.gpus} free GPUs or more{more}", "cpinfra build")
    yield _next(_THROUGH_SLURM, _sbatch(mesh.gpus))


def _sbatch(gpus: int) -> str:
    """Submit the template, which asks for the GPUs of the smallest mesh if not told otherwise."""
    option = f" --gpus-per-node={gpus}" if gpus != SQUARE_GPUS else ""
    return f"sbatch{option} {_SCRIPTS}/slurm_probe.sbatch"


def _unblock(made: report.Report, mesh: AskedMesh) -> Iterator[report.Next]:
    for one in made.blocking or ():
        if one.command:
            yield _next(f"{one.id}: {one.remedy}", one.command)
    free = _free_gpus(made)
    if _needs_more(made, mesh) and _enough_gpus(made, mesh):
        yield _next(_THROUGH_SLURM, _sbatch(mesh.gpus_full))
        return
    if _enough_gpus(made, mesh):
        yield _next("remove what blocks, then prove it", "cpinfra build")
        return
    rehearsed = any(run.device == "cpu" and words.all_passed(made, run.id) for run in made.runs or ())
    if not rehearsed and not any(one.id.startswith(_ANYWHERE) for one in made.blocking or ()):
        yield _next("rehearse the software on the CPU meanwhile", "cpinfra build --rehearse")
    if free:
        why = f"free more GPUs, {mesh.gpus} are needed and {free} found, or take a machine that has them"
        yield _next(why, "cpinfra build")
    yield from _gpus(made, mesh)


def _use(made: report.Report, docs: str) -> Iterator[report.Next]:
    """Launch a program as the recipe says, where it has been seen to work."""
    if not isinstance(made.recipe, report.Recipe):
        return
    said = words.standing(made, made.recipe)
    if said not in ("proven", "rehearsed"):
        return
    path = shlex.quote(f"{docs}/cp_infra.md")
    mesh = words.mesh(made.recipe.mesh)
    # Dots for backticks: the words that open the block must stand in the document only once.
    cut = f"sed '1,/^...bash launch$/d; /^...$/,$d' {path} > launch.sh"
    yield _next(f"take the launch script out of the report, {said} for {mesh}", cut)
    yield _next("launch your program with it", "PROGRAM=your_program.py bash launch.sh")

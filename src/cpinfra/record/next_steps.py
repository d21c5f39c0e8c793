"""What to do after a build, and what only the user can answer. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
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
_SBATCH = "sbatch skills/build-infra/scripts/slurm_probe.sbatch"

_CLUSTER = {
    "login_host": (
        "On which login host of a SLURM cluster with GPUs may jobs be submitted? cpinfra is to be run there.",
        "--slurm",
        "login.cluster.example.org",
    ),
    "partition": ("Which partition has the GPUs?", "--partition", "gpu"),
    "account": ("Which account are the jobs charged to?", "--account", "proj1234"),
    "time_limit": ("How long may a job take? 15 minutes are enough for the proof.", "--time", "00:15:00"),
    "activation": (
        "Which lines make the environment with torch and the model available on a compute node?",
        "--activate",
        "source ~/envs/model/bin/activate",
    ),
    "shared_folder": (
        "Which folder do login and compute nodes share? If none, the files have to be copied.",
        "--shared",
        "/shared/home/you/project",
    ),
    "may_submit": (
        "May the job be submitted for you? If not, its script is written and you submit it.",
        "--submit or --no-submit",
        "--no-submit",
    ),
}


def next_steps(
    made: report.Report,
    docs: str = "docs",
    options: Mapping[str, Sequence[str]] = MappingProxyType({}),
    same: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[report.Next]:
    """What to do next, in order.

    Args:
        made: the report of the build.
        docs: the folder that its documents lie in, as commands have to name it.
        options: by which another build is about the same: values by option, see `again`.
        same: by which it makes the same runs as well: after a failure.
    """
    repeated = (same or options) if made.verdict == "failed" else options
    steps = [_next(one.why, again(one.command, repeated)) for one in _towards_proof(made)]
    steps += _use(made, docs)
    if made.verdict in ("proven", "rehearsed"):
        path = shlex.quote(f"{docs}/cp_infra.json")
        steps.append(_next("later, see whether this report is still true", f"cpinfra check {path}"))
    first: dict[str, report.Next] = {}
    for step in steps:
        first.setdefault(step.command, step)
    return list(first.values())


def again(command: str, options: Mapping[str, Sequence[str]]) -> str:
    """A command that builds, with what was asked for before; any other as it is.

    Args:
        command: as it would be for the defaults.
        options: values by option; one that the command has itself is left out. A flag has the value "", and
            WORLD, which has no option, the option "".
    """
    if "cpinfra build" not in command:
        return command
    added = [
        " ".join(filter(None, (option, shlex.quote(value) if value else "")))
        for option, values in options.items()
        for value in values
        if not option or f" {option} " not in f"{command} "
    ]
    return " ".join([command, *added])


def questions(made: report.Report) -> list[report.Question]:
    """What to ask of the user where GPUs are missing: how to reach some through SLURM; else nothing."""
    if made.verdict in ("proven", "rehearsed") or (_enough_gpus(made) and not _needs_more(made)):
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


def _enough_gpus(made: report.Report) -> bool:
    return (_free_gpus(made) or 0) >= SQUARE_GPUS


def _needs_more(made: report.Report) -> bool:
    """Whether a wider scope was required than the free GPUs could ever reach."""
    full = any(one.id == SCOPE_TOO_NARROW and "--require full" in one.command for one in made.blocking or ())
    return full and (_free_gpus(made) or 0) < FULL_GPUS


def _towards_proof(made: report.Report) -> Iterator[report.Next]:
    if made.verdict == "failed":
        yield from _after_failure(made)
    elif made.verdict == "proven":
        yield from _widen(made)
    elif made.verdict == "rehearsed":
        yield from _gpus(made)
    else:
        yield from _unblock(made)


def _after_failure(made: report.Report) -> Iterator[report.Next]:
    if any(run.device == "cuda" for run in made.runs or ()):
        yield _next(
            "see in the logs of the ranks what NCCL says before it fails", "NCCL_DEBUG=INFO cpinfra build"
        )
    else:
        command = "TORCH_DISTRIBUTED_DEBUG=DETAIL cpinfra build --rehearse"
        yield _next("see in the logs of the ranks what torch.distributed says before it fails", command)


def _widen(made: report.Report) -> Iterator[report.Next]:
    if made.scope == "full":
        return
    free = _free_gpus(made) or 0
    if free >= FULL_GPUS:
        yield _next(
            "prove a full integration, dp 2 or more on 8 GPUs or more", "cpinfra build --require full"
        )
    else:
        why = f"for a full integration, dp 2, run it where {FULL_GPUS} GPUs are free ({free} are here)"
        yield _next(why, f"cpinfra build {FULL_GPUS} --require full")


def _gpus(made: report.Report) -> Iterator[report.Next]:
    """How to get from a rehearsal, or from too few GPUs, to a proof."""
    if _enough_gpus(made):
        yield _next(f"prove it on the GPUs here ({_free_gpus(made)} are free)", "cpinfra build --local")
        return
    yield _next(
        f"prove it on a machine with {SQUARE_GPUS} free GPUs or more, 8 for all of it", "cpinfra build"
    )
    yield _next(_THROUGH_SLURM, _SBATCH)


def _unblock(made: report.Report) -> Iterator[report.Next]:
    for one in made.blocking or ():
        if one.command:
            yield _next(f"{one.id}: {one.remedy}", one.command)
    free = _free_gpus(made)
    if _needs_more(made) and _enough_gpus(made):
        yield _next(_THROUGH_SLURM, _SBATCH)
        return
    if _enough_gpus(made):
        yield _next("remove what blocks, then prove it", "cpinfra build")
        return
    rehearsed = any(run.device == "cpu" and words.all_passed(made, run.id) for run in made.runs or ())
    if not rehearsed and not any(one.id.startswith(_ANYWHERE) for one in made.blocking or ()):
        yield _next("rehearse the software on the CPU meanwhile", "cpinfra build --rehearse")
    if free:
        why = f"free more GPUs, {SQUARE_GPUS} are needed and {free} found, or take a machine that has them"
        yield _next(why, "cpinfra build")
    yield from _gpus(made)


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

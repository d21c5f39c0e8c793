"""`cpinfra build`: parse, call, print."""

from __future__ import annotations

import sys
from typing import Any

import click

from . import exit_codes
from . import options
from .usage import Mistakes

EPILOG = """\b
Examples:
  cpinfra build
      This machine as it is: its free GPUs, else a rehearsal for information.
  cpinfra build 8 --python ~/envs/model/bin/python --model my_model
      8 ranks with the torch of that environment, in which my_model must import.
  cpinfra build --rehearse
      On the CPU whatever GPUs there are: proves your software, nothing about GPUs.
  cpinfra build --require full
      Not proven unless 8 GPUs or more with dp 2 passed.

\b
Exit codes:
  0    proven on GPUs; or rehearsed, with --rehearse
  1    failed: a check was contradicted, or a rank hung or died
  2    the command makes no sense; all its mistakes are named, nothing was started
  3    not proven: too few GPUs, something blocks, or could not be told; the report says what and why
  130  interrupted

docs/cp_infra.md and docs/cp_infra.json are written in every case but 2."""


@click.command("build", epilog=EPILOG)
@click.argument("world", required=False)
@click.option("--local", is_flag=True, help="On this machine; the default.")
@click.option("--slurm", is_flag=True, help="Through SLURM. Not there yet: it says how to go on by hand.")
@click.option("--rehearse", is_flag=True, help="On the CPU over gloo, whatever GPUs there are.")
@click.option("--cp", metavar="AxB", help="The grid of context parallelism; must be square, such as 2x2.")
@click.option("--dp", metavar="N", help="Data-parallel copies of the grid: WORLD = dp * A * B.")
@options.python
@options.model
@options.workdir
@click.option(
    "--docs",
    metavar="DIR",
    default="docs",
    show_default=True,
    help="Folder for cp_infra.md and cp_infra.json.",
)
@options.run_dir
@options.tier
@click.option(
    "--require", metavar="[limited|full]", help="The scope that must be reached; less is not proven."
)
@options.report_as_json
@click.pass_context
def build(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    """Find out what this machine can run, prove it, and write down how.

    Looks at host and GPUs, chooses the mesh, tries your torch and models, runs the checks on ranks, and
    writes docs/cp_infra.md: the verdict, what blocks, and the recipe by which every later run is launched.

    WORLD is the number of ranks. Default: what fits the free GPUs; 4 on the CPU.
    """
    from .. import build as main_path
    from . import summary
    from .render import Screen

    screen = Screen(sys.stdout, sys.stderr, as_json=as_json)
    try:
        answer = main_path.build(main_path.BuildRequest(**options), screen.reporter)
    except main_path.UsageProblem as problem:
        raise Mistakes(problem.messages, ctx) from problem
    finally:
        screen.close()

    ctx.exit(
        screen.finish(
            answer,
            lambda lost: summary.of(answer, brief=screen.brief, codes=exit_codes.BUILD, lost=lost),
        )
    )

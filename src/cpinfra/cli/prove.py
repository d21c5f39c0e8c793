"""`cpinfra prove`: parse, call, print."""

from __future__ import annotations

import sys
from typing import Any

import click

from . import options
from .usage import Mistakes

EPILOG = """\b
Examples:
  cpinfra prove
      The free GPUs of this machine, or a rehearsal on its CPU if it has none.
  cpinfra prove --python ~/envs/model/bin/python
      With the torch of another environment.
  cpinfra prove --device cpu --ranks 9
      A rehearsal: 9 ranks as a 3x3 grid, over gloo.
  cpinfra prove --only 'collective.*' --json > report.json
      Some checks only, for another program to read.
  cpinfra prove --device cpu --inject wrong-chunk
      Plant a fault and see that the checks catch it.

\b
Exit codes:
  0    proven on GPUs; or rehearsed, where the CPU was asked for or there is no GPU
  1    failed: a check was contradicted, or a rank hung or died
  2    the command makes no sense; all its mistakes are named, nothing was started
  3    not proven: something could not be told; the report says what and why
  130  interrupted

The report is written to report.json in the run folder in every case but 2."""


@click.command("prove", epilog=EPILOG)
@click.option(
    "--ranks", metavar="N", help="Number of ranks (world size). Default: what fits the free GPUs; 4 on CPU."
)
@click.option("--cp", metavar="AxB", help="The grid of context parallelism; must be square, such as 2x2.")
@click.option("--dp", metavar="N", help="Data-parallel copies of the grid: ranks = dp * A * B.")
@click.option(
    "--device",
    metavar="[auto|cpu|cuda]",
    default="auto",
    show_default=True,
    help="auto takes the GPUs and, only on a machine without any, the CPU.",
)
@options.python
@options.tier
@click.option("--only", metavar="GLOB", multiple=True, help="Run only checks that match. May be repeated.")
@click.option("--skip", metavar="GLOB", multiple=True, help="Leave out checks that match. May be repeated.")
@click.option(
    "--inject",
    metavar="FAULT",
    multiple=True,
    help="Plant a fault, to see it caught: wrong-chunk, kill:RANK, ... (an unknown one lists all, "
    "docs/faults.md says what each does). May be repeated.",
)
@click.option(
    "--budget",
    metavar="S",
    help="Seconds that one operation may take before it counts as hung. Default: 20 times the slowest "
    "same operation so far, at least 1; at least 3 for a first one, on GPUs 10; more beyond 4 ranks a CPU.",
)
@options.run_dir
@options.report_as_json
@click.pass_context
def prove(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    """Prove that this machine can run 2D context parallelism.

    Starts ranks with your torch, lets them exchange data the way context parallelism does, and
    compares each element that arrives with what must arrive. Whoever hangs or dies is named.

    Without GPUs this is a rehearsal on the CPU: it proves your software, and nothing about GPUs.
    """
    from .. import build
    from . import summary
    from .render import Screen

    screen = Screen(sys.stdout, sys.stderr, as_json=as_json)
    try:
        answer = build.prove(build.ProveRequest(**options), screen.reporter)
    except build.UsageProblem as problem:
        raise Mistakes(problem.messages, ctx) from problem
    finally:
        screen.close()
    ctx.exit(screen.finish(answer, lambda lost: summary.of(answer, brief=screen.brief, lost=lost)))

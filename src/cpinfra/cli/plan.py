"""`cpinfra plan`: parse, call, print."""

from __future__ import annotations

import click

from .output import printed
from .usage import Mistakes

EPILOG = """\b
Examples:
  cpinfra plan
      For the GPUs that are free here.
  cpinfra plan --gpus 16 --json
      For 16 GPUs, wherever they are; for another program.

\b
Exit codes:
  0  at least one square mesh fits
  2  the command makes no sense
  3  none fits, or the GPUs could not be counted"""


@click.command("plan", epilog=EPILOG)
@click.option("--gpus", metavar="N", help="So many GPUs. Default: those that are free here.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.pass_context
def plan(ctx: click.Context, gpus: str | None, as_json: bool) -> None:
    """Say which 2D context-parallel meshes a number of GPUs can test.

    The mesh that `cpinfra build` takes by itself is marked.
    """
    from .. import inventory
    from ..mesh import UsageProblem
    from . import tables

    try:
        report, code = inventory.plan(gpus)
    except UsageProblem as problem:
        raise Mistakes(problem.messages, ctx) from problem
    ctx.exit(printed(report.text() if as_json else tables.plan(report), int(code)))

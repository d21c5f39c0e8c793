"""`cpinfra inventory`: parse, call, print."""

from __future__ import annotations

import click

from . import options
from .output import printed
from .usage import Mistakes

EPILOG = """\b
Examples:
  cpinfra inventory
      As text.
  cpinfra inventory --workdir /scratch/me --json > inventory.json
      For another program, with the disk that checkpoints will go to.

\b
Exit codes:
  0  answered
  2  the command makes no sense
  3  the GPUs' driver could not be asked: the rest is answered"""


@click.command("inventory", epilog=EPILOG)
@options.workdir
@click.option("--json", "as_json", is_flag=True, help="Print the inventory as JSON.")
@click.pass_context
def inventory(ctx: click.Context, workdir: str | None, as_json: bool) -> None:
    """Say what is there: the host and its GPUs.

    GPUs that CUDA_VISIBLE_DEVICES hides are shown too, and that they are hidden. Starts nothing on them.
    """
    from .. import inventory as machine
    from ..mesh import UsageProblem
    from . import tables

    try:
        report, code = machine.inventory(workdir)
    except UsageProblem as problem:
        raise Mistakes(problem.messages, ctx) from problem
    ctx.exit(printed(report.text() if as_json else tables.inventory(report), int(code)))

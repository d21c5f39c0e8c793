"""`cpinfra selftest`: parse, call, print."""

from __future__ import annotations

import sys
from typing import Any

import click

from . import exit_codes
from . import options
from .usage import Mistakes

EPILOG = f"""\b
Examples:
  cpinfra selftest
      On the free GPUs of this machine, or on its CPU if it has none.
  cpinfra selftest --device cpu --ranks 2
      With two ranks, where no majority says who is wrong (the plan of the check does).
  cpinfra selftest --only p2p.ring --json > selftest.json
      One check only, for another program to read.
  cpinfra selftest --only p2p.ring --fault 'wrong-*' --fault kill
      One check and some faults only.

{exit_codes.listed(exit_codes.SELFTEST)}

The report is written to report.json in the run folder in every case but 2."""


@click.command("selftest", epilog=EPILOG)
@click.option(
    "--ranks", metavar="N", help="Number of ranks, 2 or more. Default: what fits the free GPUs; 4 on CPU."
)
@click.option(
    "--device",
    metavar="[auto|cpu|cuda]",
    default="auto",
    show_default=True,
    help="auto takes the GPUs and, only on a machine without any, the CPU.",
)
@options.python
@click.option(
    "--only",
    metavar="GLOB",
    multiple=True,
    help="Only on checks that match. May be repeated. never-join, stall-init and stall-teardown belong to no "
    "check and are planted as well: some 16 seconds on the CPU.",
)
@click.option(
    "--fault",
    metavar="GLOB",
    multiple=True,
    help="Only faults whose names match: kill, 'stall-*', ... (an unknown one lists all). May be repeated.",
)
@options.run_dir
@options.report_as_json
@click.pass_context
def selftest(ctx: click.Context, /, as_json: bool, **options: Any) -> None:
    """Plant every fault, and see that each is noticed and blamed right.

    Faults in data on every check that must catch them; faults in a rank's conduct, such as a skipped
    operation, a wrong shape or a death, on one check of each kind. First the checks run without a fault.
    What each fault does: docs/faults.md.
    """
    from .. import selftest as path
    from . import detections
    from .render import Screen

    screen = Screen(sys.stdout, sys.stderr, as_json=as_json)
    try:
        answer = path.selftest(path.SelfTestRequest(**options), screen.reporter)
    except path.UsageProblem as problem:
        raise Mistakes(problem.messages, ctx) from problem
    finally:
        screen.close()
    ctx.exit(screen.finish(answer, lambda lost: detections.of(answer, brief=screen.brief, lost=lost)))

"""`cpinfra check`: parse, call, print."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..text import one_line
from . import options
from .output import Output
from .output import printed

EPILOG = """\b
Examples:
  cpinfra check
      The report of this project, docs/cp_infra.json.
  cpinfra check --json | jq -e '.verdict == "proven" and .findings == []'
      Only if it was proven and nothing has changed.

\b
Exit codes:
  0  still true, whatever its verdict is
  1  no: it names what has changed
  2  the command makes no sense
  3  not answerable: there is no report that can be read, it is that of a self-test or of a prove, or it
     does not say what it rests on; or stdout did not take the answer"""


@click.command("check", epilog=EPILOG)
@click.argument("report", required=False, default="docs/cp_infra.json", callback=options.named)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
@click.pass_context
def check(ctx: click.Context, report: str, as_json: bool) -> None:
    """Say whether a report is still true.

    It is, while the machine has not been started anew, driver and GPUs are the same, and so are the files of
    torch and NCCL. torch is not imported, no rank is started.

    REPORT is the cp_infra.json of a build; docs/cp_infra.json by default.
    """
    from .. import recheck
    from ..record.errors import RecordError
    from . import tables

    try:
        made, code = recheck.recheck(Path(report))
    except RecordError as error:
        Output(sys.stderr).write(f"cpinfra check: {one_line(error)}\n")
        ctx.exit(3)
    ctx.exit(printed(made.text() if as_json else tables.check(made, report), int(code)))

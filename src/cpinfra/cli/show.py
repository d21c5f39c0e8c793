"""`cpinfra show`: parse, call, print."""

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
  cpinfra show
      The report of this project, docs/cp_infra.json, in less than 40 lines.
  cpinfra show .cpinfra/runs/ID/report.json
      That of one run, also of a self-test.
  cpinfra show --json
      All of it, for another program to read.

\b
Exit codes:
  0  shown
  2  the command makes no sense
  3  there is no report in that file, or stdout did not take it; the message says which"""


@click.command("show", epilog=EPILOG)
@click.argument("path", metavar="[REPORT]", default="docs/cp_infra.json", callback=options.named)
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
@click.pass_context
def show(ctx: click.Context, /, path: str, as_json: bool) -> None:
    """Show a report that was written before.

    REPORT is a cp_infra.json, the report.json of a run, or what --json of another command but probe printed;
    docs/cp_infra.json by default. It is checked against the schema before anything is printed.
    """
    from ..record import docs
    from ..record.errors import RecordError
    from ..record.summary import summary

    try:
        made = docs.read(Path(path))
    except RecordError as error:
        Output(sys.stderr).write(f"cpinfra show: {one_line(error)}\n")
        ctx.exit(3)
    ctx.exit(printed(made.text() if as_json else summary(made)))

"""`cpinfra schema`: print."""

from __future__ import annotations

import json

import click

from .output import printed

EPILOG = """\b
Examples:
  cpinfra schema > cp_infra.schema.json
      For a validator of JSON schemas (draft 2020-12).

\b
Exit codes:
  0  printed
  2  the command makes no sense
  3  stdout did not take it"""


@click.command("schema", epilog=EPILOG)
@click.pass_context
def schema(ctx: click.Context) -> None:
    """Print the JSON schema of the reports.

    It holds for docs/cp_infra.json, the report of each run, and what --json prints; not that of probe.
    """
    from .. import report

    ctx.exit(printed(json.dumps(report.schema(), indent=2) + "\n"))

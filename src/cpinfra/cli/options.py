"""Options that more than one command has, in the same words."""

from __future__ import annotations

import click

python = click.option(
    "--python",
    metavar="PATH",
    help="The Python that has your torch. Default: this one if it has torch, else the active "
    "virtual environment's, else python3 on PATH.",
)
model = click.option(
    "--model", metavar="MODULE", multiple=True, help="A module that must import. May be repeated."
)
workdir = click.option(
    "--workdir",
    metavar="DIR",
    help="Where checkpoints and data will go: its disk is measured. Default: FOLD_CP_WORKDIR, else here.",
)
run_dir = click.option(
    "--run-dir", metavar="DIR", help="Folder for logs and report. Default: a new one in .cpinfra/runs."
)
tier = click.option(
    "--tier",
    metavar="[smoke|patterns|full]",
    default="smoke",
    show_default=True,
    help="How much to check; each tier holds the ones before it.",
)
report_as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the report as JSON on stdout, and all else on stderr."
)

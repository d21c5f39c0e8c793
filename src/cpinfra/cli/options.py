"""Options that more than one command has, in the same words."""

from __future__ import annotations

import click

from .usage import Mistakes


def named(ctx: click.Context, parameter: click.Parameter, path: str) -> str:  # noqa: ARG001 - click's signature
    """The path of a report as it was given.

    Raises:
        Mistakes: it is empty, which Python would take for this folder.
    """
    if not path:
        raise Mistakes(("REPORT '': expected the path of a file, such as docs/cp_infra.json",), ctx)
    return path


class _Tier(click.Option):
    """Says in its help which tiers have checks; the catalogue is read only when help is asked for."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """As click does it, with those tiers."""
        from ..proof.catalogue import TIERS
        from ..proof.catalogue import catalogue

        filled = [name for name in TIERS if any(check.tier == name for check in catalogue())]
        if len(filled) < len(TIERS):
            self.help = f"{_TIERS} So far there are checks in {', '.join(filled)} only; others are refused."
        return super().get_help_record(ctx)


_TIERS = "How much to check; each tier holds the ones before it."
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
    cls=_Tier,
    metavar="[smoke|patterns|full]",
    default="smoke",
    show_default=True,
    help=_TIERS,
)
report_as_json = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the report as JSON on stdout, and all else on stderr. Where stdout does not take it, the "
    "exit code is 3 in place of 0.",
)

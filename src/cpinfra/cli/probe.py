"""`cpinfra probe`: parse, call, print."""

from __future__ import annotations

import json

import click

from . import options
from .output import printed
from .usage import Mistakes

EPILOG = """\b
Examples:
  cpinfra probe --python ~/envs/model/bin/python --model my_model
      The torch of that environment, and whether my_model imports there.
  cpinfra probe --json > probe.json
      Flat keys, as tools around the recipe build-infra read them.

\b
Exit codes:
  0    answered, and nothing contradicts
  2    the command makes no sense
  3    no, or not answerable; the notes say what and why
  130  interrupted"""


@click.command("probe", epilog=EPILOG)
@options.python
@options.model
@options.workdir
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.pass_context
def probe(
    ctx: click.Context, python: str | None, model: tuple[str, ...], workdir: str | None, as_json: bool
) -> None:
    """Say what the software is, and whether it fits the GPUs.

    Imports torch and the models, runs kernels on each free GPU, and brings a DTensor through a mesh of one
    rank. A value that could not be told is null, and a note says why.
    """
    from .. import probe as machine
    from ..mesh import UsageProblem
    from ..node import probe_text

    try:
        probed = machine.probe(machine.ProbeRequest(python=python, models=model, workdir=workdir))
    except UsageProblem as problem:
        raise Mistakes(problem.messages, ctx) from problem
    text = json.dumps(probed.document, indent=2, allow_nan=False) + "\n"
    ctx.exit(printed(text if as_json else probe_text.summary(probed.document), int(probed.exit_code)))

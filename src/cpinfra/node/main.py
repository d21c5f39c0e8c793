"""The commands of the zip for people: `probe` and `smoke`, with torch's Python and nothing installed.

`PYTHON cpinfra_worker.zip probe [--model MODULE]... [--workdir DIR]`
`PYTHON cpinfra_worker.zip smoke --world-size N [--cp AxB] [--dp N] [--only GLOB]... [--device auto|cpu|cuda]`
"""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import sys
import traceback
from typing import Any
from typing import NoReturn
from typing import TextIO

from .. import __version__
from ..mesh import UsageProblem
from ..outcome import ExitCode
from ..planning.asked import ProveRequest
from ..text import one_line
from . import gpus
from . import words

_PROBE = "Say what the software is and whether it fits the GPUs: JSON on stdout, for people on stderr."
_SMOKE = "Run the checks on real ranks and say what they prove."
_CODES = """exit codes:
  0    probe: answered, nothing contradicts; smoke: proven, or rehearsed where the CPU was asked for or there
       is no GPU
  1    smoke: failed, a check was contradicted, or a rank hung or died
  2    the command makes no sense
  3    probe: no, or not answerable; smoke: not proven, or out of time
  130  interrupted"""


def main(argv: list[str]) -> int:
    """Run one command; returns its exit code. What goes wrong in our own code is never a verdict."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = _parser().parse_args(argv)
    command = _probe if arguments.command == "probe" else _smoke
    try:
        return int(command(arguments))
    except UsageProblem as problem:
        for message in problem.messages:
            _say(sys.stderr, f"{arguments.command}: {message}")
        return ExitCode.USAGE
    except KeyboardInterrupt:
        _say(sys.stderr, "interrupted")
        return ExitCode.INTERRUPTED
    except OSError as error:
        _say(sys.stderr, f"{arguments.command}: {error}")
    except Exception:  # noqa: BLE001 - the outermost frame: an error of ours must not read as a verdict
        _write(sys.stderr, f"{traceback.format_exc()}this is an error of cpinfra, please report it\n")
    return ExitCode.NOT_PROVEN


class _Parser(argparse.ArgumentParser):
    """argparse, with all options written out: `--model` must not be taken for a beginning of another."""

    def __init__(self, **options: Any) -> None:
        epilog = {"epilog": _CODES, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(allow_abbrev=False, **{**epilog, **options})

    def error(self, message: str) -> NoReturn:
        """Exit code 2, on stderr."""
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\n{self.format_usage()}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="cpinfra_worker")
    commands = parser.add_subparsers(dest="command", required=True)
    probe = commands.add_parser("probe", help=_PROBE, description=_PROBE)
    probe.add_argument("--model", action="append", default=[], metavar="MODULE", help="must import")
    probe.add_argument(
        "--workdir", metavar="DIR", help="its disk is measured; else FOLD_CP_WORKDIR, else here"
    )
    probe.add_argument("--json", action="store_true", help="taken and not needed: stdout is always JSON")
    smoke = commands.add_parser("smoke", help=_SMOKE, description=_SMOKE)
    smoke.add_argument("--world-size", metavar="N", required=True, help="number of ranks")
    smoke.add_argument("--cp", metavar="AxB", help="grid of context parallelism, square")
    smoke.add_argument("--dp", metavar="N", help="data-parallel copies of the grid")
    smoke.add_argument("--only", action="append", default=[], metavar="GLOB", help="checks to run")
    smoke.add_argument(
        "--device", default="auto", metavar="[auto|cpu|cuda]", help="auto: GPUs where there are"
    )
    smoke.add_argument("--timeout", metavar="S", help="seconds for all of it")
    smoke.add_argument("--run-dir", metavar="DIR", help="folder for logs")
    smoke.add_argument("--json", action="store_true", help="JSON on stdout, all else on stderr")
    smoke.add_argument(
        "--checks-decide",
        action="store_true",
        help="on 1 to 3 GPUs, too few for 2D context parallelism: 0 if the checks of --only passed on them",
    )
    return parser


def _probe(arguments: argparse.Namespace) -> ExitCode:
    from . import probe
    from . import probe_text

    request = probe.ProbeRequest(
        python=sys.executable, models=tuple(arguments.model), workdir=arguments.workdir
    )
    probed = probe.probe(request, os.environ, ask_gpus=gpus.ask)
    _write(sys.stderr, probe_text.summary(probed.document))
    return _printed(probed.document, probed.exit_code)


def _smoke(arguments: argparse.Namespace) -> ExitCode:
    from . import smoke
    from . import smoke_document
    from . import smoke_text

    say = functools.partial(_say, sys.stderr if arguments.json else sys.stdout)

    def progress(event: dict[str, Any]) -> None:
        if words.worth_a_line(event):
            say(words.line_of(event))

    smoked = smoke.smoke(_smoke_request(arguments), os.environ, say=say, progress=progress, ask_gpus=gpus.ask)
    for line in smoke_text.end(smoked):
        say(line)
    if not arguments.json:
        return smoked.exit_code
    return _printed(smoke_document.document(smoked, __version__), smoked.exit_code)


def _smoke_request(arguments: argparse.Namespace) -> Any:
    from . import smoke

    proof = ProveRequest(
        ranks=arguments.world_size,
        cp=arguments.cp,
        dp=arguments.dp,
        device=arguments.device,
        python=sys.executable,
        only=tuple(arguments.only),
        run_dir=arguments.run_dir,
        ranks_option="--world-size",
    )
    return smoke.SmokeRequest(proof=proof, timeout=arguments.timeout, checks_decide=arguments.checks_decide)


def _printed(document: dict[str, Any], code: ExitCode) -> ExitCode:
    """Print it; who asked for a document and did not get it must not read success in a 0."""
    whole = _write(sys.stdout, json.dumps(document, indent=2, allow_nan=False) + "\n")
    return code if whole or code is not ExitCode.OK else ExitCode.NOT_PROVEN


def _say(stream: TextIO, text: str) -> None:
    _write(stream, one_line(text) + "\n")


def _write(stream: TextIO, text: str) -> bool:
    """Whether it could be written; what nobody reads any more ends no run.

    From then on the stream leads nowhere, or Python's own exit would fail over what is still buffered.
    """
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        return False
    return True

"""Entry of the worker zip.

`cpinfra_worker-HASH.zip zygote --events FD --orders FD --parent PID`
`cpinfra_worker-HASH.zip model --name MODULE --result FD [--parent PID]`
`cpinfra_worker-HASH.zip why --result FD [--parent PID]`
`cpinfra_worker-HASH.zip gpus`

`probe` and `smoke`, for people, are node/main.py.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys

from . import model_import
from . import torch_gpus
from . import why
from . import zygote
from .signals import STACKS_SIGNAL


def main(argv: list[str]) -> int:
    """Run one part of the worker; returns the exit status."""
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL)  # a hanging import can be asked where it is
    parser = argparse.ArgumentParser(prog="cpinfra_worker")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("zygote", help="import torch once and fork ranks; driven by a supervisor")
    command.add_argument("--events", type=int, required=True, metavar="FD")
    command.add_argument("--orders", type=int, required=True, metavar="FD")
    command.add_argument("--parent", type=int, required=True, metavar="PID")
    command = commands.add_parser("model", help="import one of the user's models and tell what it declares")
    command.add_argument("--name", required=True, metavar="MODULE")
    command.add_argument("--result", type=int, required=True, metavar="FD")
    command.add_argument("--parent", type=int, metavar="PID")
    command = commands.add_parser("why", help="tell why torch cannot be imported, without importing it")
    command.add_argument("--result", type=int, required=True, metavar="FD")
    command.add_argument("--parent", type=int, metavar="PID")
    commands.add_parser("gpus", help="write what torch says of the visible GPUs, as JSON")
    arguments = parser.parse_args(argv)
    if arguments.command == "model":
        status = model_import.run(arguments.name, arguments.result, arguments.parent)
    elif arguments.command == "why":
        status = why.run(arguments.result, arguments.parent)
    elif arguments.command == "gpus":
        status = torch_gpus.run()
    else:
        status = zygote.run(arguments.events, arguments.orders, arguments.parent)
    os._exit(status)  # taking a process with torch apart costs 0.2 s and gives nothing back


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

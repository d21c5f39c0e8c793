"""Entry of the worker zip: `cpinfra_worker-HASH.zip zygote --events FD --orders FD --parent PID`."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys

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
    arguments = parser.parse_args(argv)
    status = zygote.run(arguments.events, arguments.orders, arguments.parent)
    os._exit(status)  # taking a process with torch apart costs 0.2 s and gives nothing back


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

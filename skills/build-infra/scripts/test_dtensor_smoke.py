"""Lay a DTensor out over a device mesh of real ranks, look at each rank's tile, and bring it back.

`PYTHON test_dtensor_smoke.py --world-size N [--device auto|cpu|cuda] [--timeout S] [--run-dir DIR] [--json]`;
PYTHON is the one whose torch is tested, and needs nothing else. Where N ranks hold no square grid the 1-D
mesh alone is tested, and it says "2D skipped". Exit code 0: all that was tested passed; 1: contradicted, hung
or died; 3: could not be told; 2: usage.
"""

import argparse
import os
import re
import sys
import zipfile

WORKER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "cpinfra_worker.zip")


def holds_square(ranks):
    # type: (int) -> bool
    """Whether a square grid of side 2 or more divides so many ranks."""
    return any(ranks % (side * side) == 0 for side in range(2, int(max(ranks, 0) ** 0.5) + 1))


def checks(world_size):
    # type: (str | None) -> list[str]
    """The checks for so many ranks; a number that is none is for the worker to refuse."""
    ranks = int(world_size) if world_size is not None and re.match("[0-9]{1,9}$", world_size) else 4
    if holds_square(ranks):
        return ["--only", "dtensor.*", "--checks-decide"]
    sys.stderr.write("2D skipped: %d rank(s) hold no square grid; the 1-D mesh is tested\n" % ranks)
    return ["--only", "dtensor.roundtrip_1d", "--checks-decide"]


def main(argv):
    # type: (list[str]) -> int
    """Become the worker; comes back only where it is not there."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--port")  # taken and not used: see test_collectives.py
    _, rest = parser.parse_known_args(argv)
    parser.add_argument("--world-size")
    known, _ = parser.parse_known_args(argv)
    if not zipfile.is_zipfile(WORKER):  # nor of an empty file, which Python would run as an empty program
        sys.stderr.write("%s: not there, or not whole; copy the folder scripts/ anew\n" % WORKER)
        return 3
    return os.execv(sys.executable, [sys.executable, WORKER, "smoke"] + rest + checks(known.world_size))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

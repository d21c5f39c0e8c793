"""Run all_reduce, all_gather, reduce_scatter and a ring of point-to-point messages on real ranks.

`PYTHON test_collectives.py --world-size N [--port P] [--device auto|cpu|cuda] [--timeout S] [--run-dir DIR]
[--json]`; PYTHON is the one whose torch is tested, and needs nothing else. The ranks are started here, on the
free GPUs; on a machine without any on the CPU, which it says. Exit code 0: all passed; 1: contradicted, hung
or died; 3: could not be told; 2: usage.

P is taken and not used: the ranks meet through a file in a folder of their own, so there is no port that
another job could hold.
"""

import argparse
import os
import sys
import zipfile

WORKER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "cpinfra_worker.zip")
CHECKS = ["--only", "collective.*", "--only", "p2p.*", "--checks-decide"]


def main(argv):
    # type: (list[str]) -> int
    """Become the worker; comes back only where it is not there."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--port")
    _, rest = parser.parse_known_args(argv)
    if not zipfile.is_zipfile(WORKER):  # nor of an empty file, which Python would run as an empty program
        sys.stderr.write("%s: not there, or not whole; copy the folder scripts/ anew\n" % WORKER)
        return 3
    return os.execv(sys.executable, [sys.executable, WORKER, "smoke"] + rest + CHECKS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

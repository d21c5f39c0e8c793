"""Say what the software is and whether it fits the GPUs: JSON on stdout, a summary on stderr.

`PYTHON probe_env.py [--model MODULE]... [--workdir DIR]`; PYTHON is the one whose torch is asked, and needs
nothing else. Exit code 0: answered, and nothing contradicts; 3: no, or not answerable; 2: usage.
"""

import os
import sys
import zipfile

WORKER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "cpinfra_worker.zip")


def main(argv):
    # type: (list[str]) -> int
    """Become the worker; comes back only where it is not there."""
    if not zipfile.is_zipfile(WORKER):  # nor of an empty file, which Python would run as an empty program
        sys.stderr.write("%s: not there, or not whole; copy the folder scripts/ anew\n" % WORKER)
        return 3
    return os.execv(sys.executable, [sys.executable, WORKER, "probe"] + argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The program: `cpinfra`, and `python -m cpinfra`.

What can go wrong before there is a command line to tell it is told here.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130
UNUSABLE = 3
"""Not Python's 1, which would say that the machine failed."""


def run() -> int:
    """Import the command line and call it; returns the exit code."""
    try:
        from .cli import main
    except ImportError as error:
        sys.stderr.write(
            f"cpinfra: {error}: the command line needs click, rich and pydantic; install cpinfra with its "
            "dependencies, or use the worker's zip, which needs torch alone\n"
        )
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return main()


if __name__ == "__main__":
    sys.exit(run())

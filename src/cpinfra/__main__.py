"""The program: `cpinfra`, and `python -m cpinfra`.

What can go wrong before there is a command line to tell it is told here, and here the process ends.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

INTERRUPTED = 130
UNUSABLE = 3
"""Not Python's 1, which would say that the machine failed."""


def run() -> NoReturn:
    """Call the command line, and end the process with the exit code that it told."""
    code = UNUSABLE
    try:
        code = _called()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except ImportError as error:
        _say(
            f"{error}: the command line needs click, rich and pydantic; install cpinfra with its "
            "dependencies, or use the worker's zip, which needs torch alone"
        )
    except (Exception, SystemExit) as error:  # noqa: BLE001 - no error of the surroundings is a verdict
        _say(
            f"could not run: {type(error).__name__}: {error}; expected a Python that can import and run "
            "cpinfra: look at what its sitecustomize.py and .pth files change, or install cpinfra anew"
        )
    _end(code)


def _called() -> int:
    from .cli import main

    return main()


def _say(text: str) -> None:
    """Write to stderr, if there is one that takes it."""
    try:
        sys.stderr.write(f"cpinfra: {text}\n")
    except (AttributeError, OSError, ValueError):
        pass  # None, full or closed; the exit code says it too


def _end(code: int) -> NoReturn:
    """End at once, with this code whatever else is in the process.

    Python's own end waits for the threads of others (a sitecustomize may start some), and while it takes
    modules apart a signal kills it. What was registered for the end, such as coverage's, is still called.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # it was told already, by whoever wrote
    os._exit(code)


if __name__ == "__main__":
    run()

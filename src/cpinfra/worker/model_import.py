"""Import one of the user's models in a fresh interpreter, and tell what it declares and what is installed.

The answer is one JSON object, written in two pieces. Its first line, what metadata say, is written before
the import, so that it is known too where the import never returns. The second, whether the module was
imported, is written after it: an interpreter that the module ends, at whatever exit code, leaves it out.

Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from . import distributions
from . import processes
from .exceptions import text_of
from .exceptions import traceback_from
from .signals import RANK_BUG_EXIT
from .signals import RESULT_LOST_EXIT


def run(module: str, result_fd: int, parent_pid: int | None = None) -> int:
    """Import `module` and write the answer to `result_fd`; returns the exit status.

    Args:
        module: dotted name.
        result_fd: an open descriptor; no child of the module's gets it.
        parent_pid: whose death ends this process; None where nobody's does.
    """
    if parent_pid is not None:
        processes.die_with_parent(parent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whatever the caller had blocked
    try:
        return _answer(module, result_fd)
    except Exception:  # noqa: BLE001 - reported as our bug: what the module raises does not come here
        traceback.print_exc()
        return RANK_BUG_EXIT


def _answer(module: str, result_fd: int) -> int:
    result = Result(result_fd)
    _as_python_c()
    result.begin({"module": module, "python": sys.executable, **distributions.describe(module)})
    outcome = import_module(module)
    if not result.is_mine():
        os._exit(0)  # a child that the module forked and let return: not for it to answer
    if not result.is_open():
        return RESULT_LOST_EXIT
    result.end(outcome)
    _flush()
    return 0


class Result:
    """The descriptor of the answer, which the module may close, and must not hand on."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._fd = fd
        self._pid = os.getpid()
        self._identity = _identity(fd)
        os.register_at_fork(after_in_child=self._forget)

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Write the first piece, all but the end of the object."""
        self._write(json.dumps(facts)[:-1] + ",\n")

    def end(self, facts: Mapping[str, Any]) -> None:
        """Write the second piece."""
        self._write(json.dumps(facts)[1:] + "\n")

    def is_mine(self) -> bool:
        """Whether this is the process that was asked."""
        return os.getpid() == self._pid

    def is_open(self) -> bool:
        """Whether the descriptor still is the one that was given: its number may be another file's by now."""
        return _identity(self._fd) == self._identity is not None

    def _forget(self) -> None:
        if self.is_open():
            os.close(self._fd)

    def _write(self, text: str) -> None:
        data = text.encode("ascii")
        while data:
            data = data[os.write(self._fd, data) :]


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _as_python_c() -> None:
    """Have the path and the arguments of `python -c "import MODULE"`, by which people look for themselves."""
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11
        sys.path.insert(0, "")
    sys.argv = ["-c"]


def import_module(module: str) -> dict[str, Any]:
    """Import it; what came of it, as the second piece of the answer."""
    started = time.monotonic()
    try:
        # Not importlib.import_module: its frames would stand in the traceback.
        __import__(module)
    except BaseException as error:  # noqa: BLE001 - whatever a foreign import raises is the answer
        return {"imported": False, **_failure(error), "path": None, "seconds": time.monotonic() - started}
    seconds = time.monotonic() - started
    nothing = {"error": None, "missing": None, "exit_code": None, "traceback": ""}
    return {"imported": True, **nothing, "path": _path_of(module), "seconds": seconds}


def _failure(error: BaseException) -> dict[str, Any]:
    """What the import raised; texts are bounded, of the traceback the end is kept."""
    trace = error.__traceback__.tb_next if error.__traceback__ else None  # without our own frame
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    return {
        "error": {"type": type(error).__qualname__, "text": text_of(error)},
        "missing": missing if isinstance(missing, str) else None,
        "exit_code": _exit_code(error) if isinstance(error, SystemExit) else None,
        "traceback": traceback_from(error, trace),
    }


def _exit_code(error: SystemExit) -> int:
    """What the interpreter would have exited with."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _path_of(module: str) -> str | None:
    """The module's file, or the folders of a namespace; None where it does not say."""
    try:
        found: Any = sys.modules[module]
        file = getattr(found, "__file__", None)
        return str(file) if file is not None else os.pathsep.join(map(str, found.__path__))
    except Exception:  # noqa: BLE001 - a module may put anything in its place
        return None


def _flush() -> None:
    """Hand on what the module printed; it may have put anything in the streams' place."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001 - the answer is given; what it printed is an extra
            pass

"""Asks the target interpreter why torch does not import, in a process that is ended with all it started.

Standard library only.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..worker.signals import RANK_BUG_EXIT

TIMEOUT_S = 150.0
"""Past the bounds that the worker keeps itself: 90 s for all libraries, 20 s for the last ones."""

_OUTPUT_KEPT_BYTES = 4096
_ANSWER_MAX_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_TICK_S = 0.1
_DEATH_S = 2.0


def ask(
    python: str,
    worker: Path,
    *,
    environment: Mapping[str, str],
    timeout_s: float = TIMEOUT_S,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Ask the target interpreter, in a process that is ended with all that it started.

    Args:
        python: the target interpreter.
        worker: the worker's zip.
        environment: all of its environment; the one in which the import failed.
        timeout_s: bound of the answer.
        tick: called at every turn; may raise to interrupt.

    Returns:
        The facts of `worker.why.describe`; or `unavailable`, why there are none.
    """
    answer_fd, answer_in = os.pipe()
    output_fd, output_in = os.pipe()
    argv = [python, str(worker), "why", "--result", str(answer_in), "--parent", str(os.getpid())]
    taken = {answer_fd: bytearray(), output_fd: bytearray()}
    process = None
    how, code = "it did not answer", None
    try:
        try:
            process = _started(argv, environment, answer_in, output_in)
        finally:
            os.close(answer_in)
            os.close(output_in)
        how = _take(taken, answer_fd, time.monotonic() + timeout_s, tick)
    except OSError as error:
        how = f"{python}: {error.strerror or error}"
    finally:
        code = _ended(process, taken, output_fd)
    return _facts(bytes(taken[answer_fd]), how, code, bytes(taken[output_fd]))


def _ended(
    process: subprocess.Popen[bytes] | None, taken: Mapping[int, bytearray], output_fd: int
) -> int | None:
    """End what was started, read what it printed last, and close the pipes; its exit status."""
    code = _end(process) if process is not None else None
    _take_rest(taken[output_fd], output_fd)
    for fd in taken:
        os.close(fd)
    return code


def _started(
    argv: Sequence[str], environment: Mapping[str, str], answer_in: int, output_in: int
) -> subprocess.Popen[bytes]:
    """Start it in a session of its own, which may be killed as a whole.

    Raises:
        OSError: the interpreter cannot be executed.
    """
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=output_in,
        stderr=output_in,
        pass_fds=(answer_in,),
        env=dict(environment),
        start_new_session=True,
    )


def _take(taken: Mapping[int, bytearray], answer_fd: int, deadline: float, tick: Callable[[], None]) -> str:
    """Read both pipes until the answer's is closed; why it was not, else empty. Of output the end is kept."""
    with selectors.DefaultSelector() as selector:
        for fd in taken:
            selector.register(fd, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            tick()
            for key, _ in selector.select(_TICK_S):
                data = os.read(key.fd, _CHUNK_BYTES)
                taken[key.fd].extend(data)
                if not data and key.fd == answer_fd:
                    return ""
                if not data:
                    selector.unregister(key.fd)
                elif key.fd != answer_fd:
                    del taken[key.fd][:-_OUTPUT_KEPT_BYTES]
            if len(taken[answer_fd]) > _ANSWER_MAX_BYTES:
                return "it answered without end"
    return "it did not answer in time"


def _take_rest(taken: bytearray, fd: int) -> None:
    """What was printed and not yet read, as far as a pipe holds it; somebody may keep its other end open."""
    os.set_blocking(fd, False)
    try:
        taken.extend(os.read(fd, _CHUNK_BYTES))
    except BlockingIOError:
        pass  # nothing
    del taken[:-_OUTPUT_KEPT_BYTES]


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """Give it a moment to exit, then kill its group; its status, None where it did not exit by itself."""
    try:
        code: int | None = process.wait(timeout=_DEATH_S)
    except subprocess.TimeoutExpired:
        code = None
    try:
        os.killpg(process.pid, signal.SIGKILL)  # what it has forked dies with it; this is for the rest
    except (ProcessLookupError, PermissionError):
        pass
    if code is None:
        try:
            process.wait(timeout=_DEATH_S)
        except subprocess.TimeoutExpired:
            pass  # in the kernel's D state: left behind
    return code


def _facts(answer: bytes, how: str, code: int | None, output: bytes) -> dict[str, Any]:
    if not how and code == 0:
        try:
            facts = json.loads(answer)
        except ValueError:
            facts = None
        if isinstance(facts, dict) and "torch" in facts:
            return facts
    if code == RANK_BUG_EXIT:
        return {"unavailable": f"cpinfra's own code failed there: {_end_of(output)}", "bug": True}
    ended = f"it ended with status {code}" if code is not None else "it was killed"
    return {"unavailable": f"{how or 'it gave no answer'}; {ended}; it printed: {_end_of(output)}"}


def _end_of(output: bytes) -> str:
    return output.decode(errors="replace").strip()[-1000:] or "nothing"

"""A stream to the user that may break at any time without breaking the run."""

from __future__ import annotations

import errno
import os
import sys
from typing import TextIO

LOST = 3
"""The exit code of a command whose output nobody got, though it was wanted."""


class Output:
    """Writes to a stream until that fails: a closed pipe or terminal, a full device. Never raises.

    What the stream cannot encode is written as escapes.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = None if is_closed(stream) else stream
        self.lost = "it is closed" if self._stream is None else ""
        """Why nothing can be written any more; empty while it can."""
        self.unread = False
        """Whether that is because its reader wants no more (`| head`)."""
        self._escapes = False
        """Whether what the stream cannot encode is written as escapes by now."""

    @property
    def encoding(self) -> str:
        """The stream's encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        """The descriptor, for those who ask a terminal for its size.

        Raises:
            OSError: it has none.
        """
        if self._stream is None:
            raise OSError("closed")
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write and flush; returns the characters taken, as streams do."""
        if self._stream is not None and not self.lost:
            try:
                self._escape()
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)
        return len(text)

    def _escape(self) -> None:
        """Have escapes written; not before there is something to write, as this flushes, which may wait.

        Raises:
            OSError: the stream does not take what it held.
        """
        reconfigure = None if self._escapes else getattr(self._stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
        self._escapes = True

    def flush(self) -> None:
        """Flush what others wrote to the same stream."""
        if self._stream is not None and not self.lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def _lose(self, error: OSError | ValueError) -> None:
        self.unread = getattr(error, "errno", None) == errno.EPIPE
        self.give_up(str(getattr(error, "strerror", None) or error))

    def give_up(self, why: str) -> None:
        """Write no more, and lead what is still buffered into nothing: flushing it would fail, or wait."""
        self.lost = why
        try:
            fd = self._stream.fileno() if self._stream is not None else -1
            null = os.open(os.devnull, os.O_WRONLY)
        except (OSError, ValueError):
            return
        if fd >= 0:
            os.dup2(null, fd)
        os.close(null)


def printed(text: str, code: int = 0) -> int:
    """Print what a command has to say; returns its exit code, which is no 0 where that was lost.

    A reader that has enough of it (`| head`) has lost nothing.

    Args:
        text: all of it.
        code: what the exit code is where it is read.
    """
    out = Output(sys.stdout)
    out.write(text)
    if not out.lost or out.unread:
        return code
    Output(sys.stderr).write(f"cpinfra: output lost ({out.lost}); expected a stdout that takes all of it\n")
    return code or LOST


def is_closed(stream: TextIO | None) -> bool:
    """Whether nothing can be written to a stream; also one that was detached from its file."""
    try:
        return stream is None or bool(getattr(stream, "closed", False))
    except ValueError:
        return True

"""A stream to the user that may break at any time without breaking the run."""

from __future__ import annotations

import os
from typing import TextIO


class Output:
    """Writes to a stream until that fails: a closed pipe or terminal, a full device. Never raises.

    What the stream cannot encode is written as escapes.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.lost = "" if stream is not None else "it is closed"
        """Why nothing can be written any more; empty while it can."""
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

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
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flush what others wrote to the same stream."""
        if self._stream is not None and not self.lost:
            try:
                self._stream.flush()
            except (OSError, ValueError) as error:
                self._lose(error)

    def _lose(self, error: OSError | ValueError) -> None:
        """Give up, and lead what is still buffered into nothing, or Python's exit would fail over it."""
        self.lost = str(getattr(error, "strerror", None) or error)
        try:
            fd = self._stream.fileno() if self._stream is not None else -1
            null = os.open(os.devnull, os.O_WRONLY)
        except (OSError, ValueError):
            return
        if fd >= 0:
            os.dup2(null, fd)
        os.close(null)

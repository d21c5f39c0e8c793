"""Messages between the supervisor, the zygote and the ranks: JSON over pipes.

Everything that the worker tells goes through one pipe that the zygote and all of its ranks share. A frame
fits into PIPE_BUF, which the kernel writes in one piece (pipe(7)), so no lock is needed and a writer that
dies in the middle of a long message damages nobody else's. Orders to the zygote are lines of JSON.

Standard library only: the supervisor reads what the worker writes.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import struct
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]

# magic, part, parts, payload length, writer's pid, message number of that writer
_HEADER = struct.Struct("<2sHHHiI")
_MAGIC = b"cp"
_NUMBER_MASK = (1 << 32) - 1
FRAME_MAX_BYTES = select.PIPE_BUF
_PAYLOAD_MAX_BYTES = FRAME_MAX_BYTES - _HEADER.size
MESSAGE_MAX_BYTES = 1 << 20
_TEXT_KEPT = 1000


class ChannelError(RuntimeError):
    """Bytes on the pipe that no frame of ours begins with: a foreign program wrote there."""


class Writer:
    """Sends messages over the shared pipe. One per process: a forked child makes its own."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pid = os.getpid()
        # Its `next` cannot be interrupted: a signal handler that sends in the middle of a send gets its own.
        self._numbers = itertools.count()

    def send(self, message: Mapping[str, Any]) -> None:
        """Write one message, in as many frames as it needs.

        Raises:
            OSError: the reader is gone (EPIPE); the zygote and the ranks end then.
        """
        body = _encoded(message)
        starts = range(0, len(body), _PAYLOAD_MAX_BYTES)
        number = next(self._numbers) & _NUMBER_MASK
        for part, start in enumerate(starts):
            piece = body[start : start + _PAYLOAD_MAX_BYTES]
            header = _HEADER.pack(_MAGIC, part, len(starts), len(piece), self._pid, number)
            os.write(self._fd, header + piece)


def _encoded(message: Mapping[str, Any]) -> bytes:
    """JSON of the message. One that is too long keeps its shape: its texts are cut, and it says so."""
    body = json.dumps(message, separators=(",", ":"), default=str).encode()
    if len(body) <= MESSAGE_MAX_BYTES:
        return body
    short = json.dumps({**_with_short_texts(message), "cut_bytes": len(body)}, default=str).encode()
    if len(short) <= MESSAGE_MAX_BYTES:
        return short
    scalars = {k: v for k, v in message.items() if isinstance(v, (bool, int, float)) or k == "event"}
    return json.dumps({**scalars, "cut_bytes": len(body)}).encode()


def _with_short_texts(value: Any) -> Any:
    """The same value, its long texts without their middle."""
    if isinstance(value, Mapping):
        return {key: _with_short_texts(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_short_texts(item) for item in value]
    if not isinstance(value, str) or len(value) <= _TEXT_KEPT:
        return value
    half = _TEXT_KEPT // 2
    return f"{value[:half]} ... {len(value) - 2 * half} characters cut ... {value[-half:]}"


class Reader:
    """Puts frames from any number of writers together again."""

    def __init__(self) -> None:
        self._buffer = b""
        self._parts: dict[tuple[int, int], list[bytes]] = {}
        """(writer, number) -> the parts so far of a message that is not complete."""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take bytes as they come from the pipe; yield each message that is complete with them.

        Raises:
            ChannelError: the bytes are no frame of ours.
        """
        self._buffer += data
        while self._buffer:
            if not self._buffer.startswith(_MAGIC[: len(self._buffer)]):
                raise ChannelError(f"expected a frame, got {self._buffer[:32]!r}")
            if len(self._buffer) < _HEADER.size:
                return
            _, part, parts, length, writer, number = _HEADER.unpack_from(self._buffer)
            if length > _PAYLOAD_MAX_BYTES or part >= parts:
                raise ChannelError(f"expected a frame, got {self._buffer[:32]!r}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload, self._buffer = self._buffer[_HEADER.size : end], self._buffer[end:]
            body = self._collect((writer, number), part, parts, payload)
            if body is not None:
                yield _decoded(body)

    def _collect(self, key: tuple[int, int], part: int, parts: int, payload: bytes) -> bytes | None:
        """Add one frame; returns the whole body with its last. A pipe keeps each writer's frames in order."""
        got = self._parts.pop(key, [])
        if part == 0:
            got = []  # what a dead writer left, whose pid has come back
        if len(got) != part:
            raise ChannelError(f"expected part {len(got)} of a message, got part {part}: {payload[:32]!r}")
        got.append(payload)
        if len(got) == parts:
            return b"".join(got)
        self._parts[key] = got
        return None


def _decoded(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise ChannelError(f"expected JSON, got {body[:80]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("event"), str):
        raise ChannelError(f"expected an object with 'event', got {body[:80]!r}")
    return message


class Orders:
    """The zygote's end of the order pipe: lines of JSON, read without blocking."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._buffer = b""

    def pending(self) -> list[Message] | None:
        """Orders that have arrived since the last call; None once the supervisor is gone."""
        data = os.read(self.fd, 1 << 16)
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


def order_line(order: Mapping[str, Any]) -> bytes:
    """One order as the supervisor writes it."""
    return json.dumps(order, separators=(",", ":")).encode() + b"\n"

"""Messages over a shared pipe: whole whatever the order, the cuts, and the deaths of writers."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

import forks
from cpinfra.worker import channel
from cpinfra.worker.channel import ChannelError
from cpinfra.worker.channel import Message
from cpinfra.worker.channel import Orders
from cpinfra.worker.channel import Reader
from cpinfra.worker.channel import Writer
from cpinfra.worker.channel import order_line

LONG = 3 * select.PIPE_BUF

TEXTS = st.text(st.characters(exclude_categories=()), max_size=20)
LONG_TEXTS = st.builds(
    lambda text, times: text * times, st.text(min_size=1, max_size=3), st.integers(0, LONG)
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | LONG_TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.builds(
    lambda facts, event: {**facts, "event": event}, st.dictionaries(TEXTS, VALUES, max_size=3), TEXTS
)


def frames_of(pid: int, *messages: Message) -> list[list[bytes]]:
    """What a writer of this pid writes for each message, write by write."""
    written: list[bytes] = []

    def write(_fd: int, data: bytes) -> int:
        written.append(data)
        return len(data)

    with mock.patch("os.getpid", return_value=pid), mock.patch("os.write", write):
        writer, frames = Writer(-1), []
        for message in messages:
            writer.send(message)
            frames.append(list(written))
            written.clear()
    return frames


def read_to_the_end(fd: int, sizes: Callable[[], int] = lambda: 1 << 16) -> Iterator[Message]:
    """All messages until every writer has closed its end."""
    reader = Reader()
    while data := os.read(fd, sizes()):
        yield from reader.feed(data)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe; a test may close the writing end itself."""
    read, write = os.pipe()
    yield read, write
    os.close(read)
    try:
        os.close(write)
    except OSError:
        pass


@settings(deadline=None)
@given(by_writer=st.lists(st.lists(MESSAGES, max_size=3), min_size=1, max_size=4), data=st.data())
def test_messages_come_out_whole_whatever_the_order_and_the_cuts(
    by_writer: list[list[Message]], data: st.DataObject
) -> None:
    """Frames of several writers, mixed in any way and cut anywhere, give each message as it was sent."""
    frames = {pid: frames_of(pid, *messages) for pid, messages in enumerate(by_writer)}
    every = [pid for pid, sent in frames.items() for message in sent for frame in message]
    turns = data.draw(st.permutations(every))
    left = {pid: [list(sent) for sent in own] for pid, own in frames.items()}
    stream, expected = b"", []
    for pid in turns:
        stream += left[pid][0].pop(0)
        if not left[pid][0]:
            left[pid].pop(0)
            expected.append(by_writer[pid][-len(left[pid]) - 1])
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))

    reader = Reader()
    pieces = [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    got = [message for piece in pieces for message in reader.feed(piece)]

    assert got == expected


def test_every_write_fits_into_what_the_kernel_writes_in_one_piece() -> None:
    """A message longer than PIPE_BUF is sent in several writes, none of which can be torn."""
    (frames,) = frames_of(1, {"event": "answer", "text": "x" * LONG})

    assert len(frames) == 4
    assert max(map(len, frames)) == select.PIPE_BUF


def test_one_byte_at_a_time_is_enough() -> None:
    """A reader that gets its bytes one by one yields each message with its last byte."""
    (frames,) = frames_of(1, {"event": "hello", "text": "x" * LONG})
    reader, stream = Reader(), b"".join(frames)

    got = [list(reader.feed(stream[i : i + 1])) for i in range(len(stream))]

    assert got[:-1] == [[]] * (len(stream) - 1)
    assert got[-1] == [{"event": "hello", "text": "x" * LONG}]


def test_forked_writers_at_once(pipe: tuple[int, int]) -> None:
    """Four processes that write long and short messages at the same time disturb each other in nothing."""
    read, write = pipe
    sizes = [0, 3 * LONG, 1, select.PIPE_BUF, 10 * LONG, 100] * 8

    def send(rank: int) -> None:
        writer = Writer(write)
        for number, size in enumerate(sizes):
            writer.send({"event": "answer", "rank": rank, "number": number, "text": str(rank) * size})

    pids = [forks.fork(lambda rank=rank: send(rank)) for rank in range(4)]  # type: ignore[misc]
    os.close(write)
    pages = iter(range(1, 1 << 20, 977))
    got: dict[int, list[tuple[int, str]]] = {rank: [] for rank in range(4)}
    for message in read_to_the_end(read, lambda: next(pages)):
        got[message["rank"]].append((message["number"], message["text"]))

    assert [forks.wait(pid) for pid in pids] == [0, 0, 0, 0]
    for rank, messages in got.items():
        assert messages == [(number, str(rank) * size) for number, size in enumerate(sizes)]


def test_a_writer_that_dies_in_the_middle_of_a_message_damages_nobody(pipe: tuple[int, int]) -> None:
    """Half a message of a killed process is dropped; what others send after it arrives whole."""
    read, write = pipe
    real_write = os.write

    def write_once_and_die(fd: int, data: bytes) -> int:
        real_write(fd, data)
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def die() -> None:
        Writer(write).send({"event": "before"})
        with mock.patch("os.write", write_once_and_die):
            Writer(write).send({"event": "lost", "text": "x" * LONG})

    assert forks.wait(forks.fork(die)) == -signal.SIGKILL
    assert forks.wait(forks.fork(lambda: Writer(write).send({"event": "after", "text": "y" * LONG}))) == 0
    os.close(write)

    assert list(read_to_the_end(read)) == [{"event": "before"}, {"event": "after", "text": "y" * LONG}]


def test_a_pid_that_comes_back_does_not_continue_the_message_of_the_dead() -> None:
    """The first message of a new process with a dead one's pid is not mixed with what that one left."""
    (half,) = frames_of(7, {"event": "lost", "text": "x" * 2 * LONG})
    (whole,) = frames_of(7, {"event": "answer", "text": "y" * LONG})
    reader = Reader()

    got = list(reader.feed(b"".join([*half[:-1], *whole])))

    assert got == [{"event": "answer", "text": "y" * LONG}]


def test_a_child_that_makes_its_own_writer_is_another_writer(pipe: tuple[int, int]) -> None:
    """A message of a forked child between two frames of its parent's completes on its own."""
    read, write = pipe
    real_write, written = os.write, []

    def fork_after_the_first(fd: int, data: bytes) -> int:
        written.append(data)
        sent = real_write(fd, data)
        if len(written) == 1:
            forks.wait(forks.fork(lambda: Writer(write).send({"event": "child"})))
        return sent

    with mock.patch("os.write", fork_after_the_first):
        Writer(write).send({"event": "parent", "text": "x" * LONG})
    os.close(write)

    assert [message["event"] for message in read_to_the_end(read)] == ["child", "parent"]


@pytest.mark.parametrize(
    "garbage",
    [
        b"Traceback (most recent call last):\n",
        b"hi",
        b"\0",
        b"cx",
        b"cp\x01\x00\x01\x00" + bytes(10),
        b"cp\x00\x00\x01\x00\xff\xff" + bytes(8),
    ],
)
def test_garbage_is_quoted(garbage: bytes) -> None:
    """Bytes that are no frame are refused as soon as that can be known, and the message shows them."""
    with pytest.raises(ChannelError) as raised:
        list(Reader().feed(garbage))

    assert str(raised.value) == f"expected a frame, got {garbage[:32]!r}"


@given(garbage=st.binary(min_size=1).filter(lambda data: data[:2] not in (b"c", b"cp")))
def test_anything_else_is_garbage(garbage: bytes) -> None:
    """Whatever does not begin like a frame is refused, however short it is."""
    with pytest.raises(ChannelError, match=r"^expected a frame, got b"):
        list(Reader().feed(garbage))


def test_messages_before_garbage_are_not_lost() -> None:
    """What came whole before a foreign program wrote on the pipe is given out first."""
    ((frame,),) = frames_of(1, {"event": "hello"})
    messages = Reader().feed(frame + b"segmentation fault")

    assert next(messages) == {"event": "hello"}
    with pytest.raises(ChannelError, match="got b'segmentation fault'"):
        next(messages)


def test_a_part_without_the_ones_before_it_is_refused() -> None:
    """A pipe keeps the order of one writer's frames, so a gap means that it is not our writer."""
    (frames,) = frames_of(1, {"event": "answer", "text": "x" * LONG})

    with pytest.raises(ChannelError, match=r"expected part 1 of a message, got part 2: b'x+'"):
        list(Reader().feed(frames[0] + frames[2]))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"no json", "expected JSON, got b'no json'"),
        (b"[1]", "expected an object with 'event', got b'[1]'"),
        (b'{"event":1}', "expected an object with 'event', got b'{\"event\":1}'"),
        (b"\xff", "expected JSON, got b'\\xff'"),
    ],
)
def test_a_frame_that_holds_no_message_is_refused(body: bytes, expected: str) -> None:
    """A frame of the right form whose content is not a message of ours is quoted too."""
    with mock.patch.object(channel, "_encoded", return_value=body):
        ((frame,),) = frames_of(1, {"event": "x"})

    with pytest.raises(ChannelError) as raised:
        list(Reader().feed(frame))

    assert str(raised.value) == expected


def test_what_json_does_not_know_is_sent_as_text() -> None:
    """A value such as an exception is told by its text rather than failing the message that tells of it."""
    ((frame,),) = frames_of(1, {"event": "x", "error": KeyError("gone")})

    assert list(Reader().feed(frame)) == [{"event": "x", "error": "'gone'"}]


def test_a_message_that_is_too_long_keeps_its_shape() -> None:
    """Its long texts lose their middle, at any depth; every key is there, and it says how long it was."""
    text = "begin" + "x" * channel.MESSAGE_MAX_BYTES + "end"
    answer = {"event": "answer", "check": "p2p.ring", "rank": 3, "bug": False, "seconds": 0.5}
    message = {**answer, "error": {"traceback": text, "type": "E"}, "reasons": [text, "short"], "none": None}
    (frames,) = frames_of(1, message)

    (got,) = Reader().feed(b"".join(frames))

    assert sum(map(len, frames)) < 10_000
    assert answer.items() <= got.items()
    assert got["none"] is None
    assert got["error"]["type"] == "E"
    assert got["reasons"][1] == "short"
    for cut in (got["error"]["traceback"], got["reasons"][0]):
        assert cut.startswith("beginxxx")
        assert cut.endswith("xxxend")
        assert f"{len(text) - 1000} characters cut" in cut
    assert got["cut_bytes"] == len(json.dumps(message, separators=(",", ":")))


def test_a_message_that_is_long_without_long_texts_keeps_its_event_and_numbers() -> None:
    """What is too long because of its number of items still says what it was about."""
    message = {"event": "answer", "rank": 3, "broken": True, "seconds": 0.5, "many": [10**9] * 200_000}
    (frames,) = frames_of(1, message)

    (got,) = Reader().feed(b"".join(frames))

    cut = {"event": "answer", "rank": 3, "broken": True, "seconds": 0.5, "cut_bytes": got["cut_bytes"]}
    assert got == cut
    assert got["cut_bytes"] > channel.MESSAGE_MAX_BYTES


def test_the_longest_message_that_is_not_cut(pipe: tuple[int, int]) -> None:
    """A message of just the limit passes a real pipe uncut."""
    read, write = pipe
    frame = len(json.dumps({"event": "x", "text": ""}, separators=(",", ":")))
    text = "t" * (channel.MESSAGE_MAX_BYTES - frame)

    with forks.forked(lambda: Writer(write).send({"event": "x", "text": text})):
        os.close(write)
        got = list(read_to_the_end(read))

    assert got == [{"event": "x", "text": text}]


def test_a_reader_that_is_gone_is_an_error_of_the_system(pipe: tuple[int, int]) -> None:
    """A rank whose supervisor is gone learns it from its write: an OSError, by which it ends."""
    read, write = os.pipe()
    os.close(read)
    try:
        with pytest.raises(BrokenPipeError):
            Writer(write).send({"event": "x"})
    finally:
        os.close(write)


def orders(*chunks: bytes) -> list[list[dict[str, Any]] | None]:
    """What each look at the order pipe gives, after one chunk each, and after its end."""
    read, write = os.pipe()
    try:
        pending, seen = Orders(read), []
        for chunk in chunks:
            os.write(write, chunk)
            seen.append(pending.pending())
        os.close(write)
        return [*seen, pending.pending()]
    finally:
        os.close(read)


def test_orders_are_lines_and_their_end_is_the_end_of_the_supervisor() -> None:
    """Several orders in one read are all given; the closed pipe is None, not an empty list."""
    both = order_line({"order": "import", "modules": ["a"]}) + order_line({"order": "quit"})

    assert orders(both) == [[{"order": "import", "modules": ["a"]}, {"order": "quit"}], None]


def test_an_order_that_comes_in_two_reads_is_given_once_it_is_whole() -> None:
    """A line that is cut by a read waits for its rest; a newline inside a text is no end of line."""
    line = order_line({"order": "fork", "logs": "a\nb é"})

    assert line.count(b"\n") == 1
    assert orders(line[:5], line[5:-1], line[-1:]) == [[], [], [{"order": "fork", "logs": "a\nb é"}], None]

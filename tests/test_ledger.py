"""The ledger: what a rank writes is read whole by another process, whatever happens to the rank."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forks
import processes
from cpinfra.worker import ledger as book
from cpinfra.worker.ledger import Kind
from cpinfra.worker.ledger import Ledger
from cpinfra.worker.ledger import LedgerError
from cpinfra.worker.ledger import Pen
from cpinfra.worker.ledger import Phase
from cpinfra.worker.ledger import Stage
from cpinfra.worker.progress import process_state

WORLD = 3
RECORDS = book.records_per_rank(WORLD)
MANY = 257
"""Ranks of whom each has a small ring."""
DIGEST = bytes(range(32))
CALL = {
    "check": "collective.all_reduce",
    "repetition": 3,
    "site": "collective.py:57",
    "operation": "all_reduce",
    "group": "world",
    "first": False,
    "shape": [1021, 3],
    "dtype": "float32",
    "call": 1,
}
WORDS = ("check", "site", "operation", "group", "dtype")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fresh ledger."""
    book.create(tmp_path / "ledger", WORLD)
    return tmp_path / "ledger"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    """The same, mapped as the supervisor has it."""
    opened = Ledger(path)
    yield opened
    opened.close()


def call(number: int) -> dict[str, Any]:
    """An operation that tells its own number twice, at changing lengths."""
    return {"call": number, "again": str(number) * (number % 40)}


def assert_whole(view: book.RankView) -> None:
    """Every record is what was written under its number, the newest is there and none is left out."""
    numbers = [record.sequence for record in view.records]
    assert numbers == list(range(view.written - len(numbers) + 1, view.written + 1))
    for record in view.records:
        assert record.call == call(record.sequence)
        assert record.kind is (Kind.ENTER if record.sequence % 2 else Kind.LEAVE)
        assert record.time_ns > 0


def write_on(pen: Pen, first: int = 1) -> None:
    """Write until this process is ended, as fast as it can."""
    for number in range(first, sys.maxsize):
        pen.write(Kind.ENTER if number % 2 else Kind.LEAVE, call(number))
        if number % 8 == 0:
            pen.stage(Stage.RUNNING)


def test_a_fresh_ledger_says_that_ranks_are_forked(path: Path) -> None:
    """Before a rank has said anything it is at the first stage, since the ledger was made."""
    view = Ledger(path).view(WORLD - 1)

    assert (view.stage, view.written, view.records, view.digest) == (Stage.FORKED, 0, (), bytes(32))
    assert 0 <= time.monotonic_ns() - view.stage_since_ns < 60e9


def test_what_a_forked_rank_writes_is_read_by_its_parent(path: Path, ledger: Ledger) -> None:
    """Stage, digest and records of one rank cross the fork, and the other ranks' regions stay untouched."""

    def work() -> None:
        pen = Ledger(path).pen(1)
        pen.stage(Stage.RUNNING)
        pen.publish_digest(DIGEST)
        pen.write(Kind.ENTER, CALL)
        pen.write(Kind.LEAVE, {"call": 1})
        pen.write(Kind.ENTER, {**CALL, "call": 2, "first": True, "slowest_s": 0.25})

    before = time.monotonic_ns()
    pid = forks.fork(work)
    assert forks.wait(pid) == 0

    view = ledger.view(1)
    assert (view.pid, view.stage, view.digest, view.written) == (pid, Stage.RUNNING, DIGEST, 3)
    assert [(record.sequence, record.kind) for record in view.records] == [
        (1, Kind.ENTER),
        (2, Kind.LEAVE),
        (3, Kind.ENTER),
    ]
    assert view.records[0].call == CALL
    assert before < view.stage_since_ns < view.records[0].time_ns < view.records[2].time_ns
    assert ledger.digest(1) == DIGEST
    assert ledger.head(1) == book.Head(
        stage=Stage.RUNNING, written=3, first=True, inside=True, slowest_s=0.25
    )
    for other in (0, 2):
        assert ledger.view(other).written == 0
        assert ledger.digest(other) == bytes(32)


def test_the_open_call_is_the_one_entered_and_not_left(ledger: Ledger) -> None:
    """None before the first call, the call while inside, None after it was left."""
    pen = ledger.pen(0)
    assert ledger.view(0).open_call is None

    pen.write(Kind.ENTER, CALL)
    inside = ledger.view(0).open_call
    assert inside is not None
    assert inside.call == CALL
    assert (ledger.head(0).inside, ledger.head(0).slowest_s) == (True, None)

    pen.write(Kind.LEAVE, {"call": 1})
    assert ledger.view(0).open_call is None
    assert not ledger.head(0).inside


@pytest.mark.parametrize("written", [1, RECORDS, RECORDS + 1, 5 * RECORDS + 7])
def test_the_ring_keeps_the_newest(ledger: Ledger, written: int) -> None:
    """Once it is full the oldest record gives way, one by one; the count goes on."""
    pen = ledger.pen(2)
    for number in range(1, written + 1):
        pen.write(Kind.ENTER if number % 2 else Kind.LEAVE, call(number))

    view = ledger.view(2)
    assert view.written == written
    assert len(view.records) == min(written, RECORDS)
    assert_whole(view)
    assert ledger.head(2).written == written
    assert [record.sequence for record in ledger.view(2, last=1).records] == [written]


def test_full_rings_of_neighbours_do_not_touch(ledger: Ledger) -> None:
    """Each rank's region ends before the next one's begins."""
    pens = [ledger.pen(rank) for rank in range(WORLD)]
    for number in range(1, RECORDS + 1):
        for pen in pens:
            pen.write(Kind.ENTER if number % 2 else Kind.LEAVE, call(number))

    for rank in range(WORLD):
        assert_whole(ledger.view(rank))
        assert len(ledger.view(rank).records) == RECORDS


def test_a_reader_never_sees_a_torn_record(tmp_path: Path) -> None:
    """While a rank writes as fast as it can, 2000 looks find whole records and a growing count."""
    path = tmp_path / "ledger"
    book.create(path, MANY)
    ledger = Ledger(path)
    with forks.forked(lambda: write_on(Ledger(path).pen(0))):
        processes.wait_until(lambda: ledger.head(0).written > book.records_per_rank(MANY), "a full ring")
        counts = []
        for _ in range(2000):
            head, view = ledger.head(0), ledger.view(0)
            counts += [head.written, view.written]
            assert (head.stage, view.stage) == (Stage.RUNNING, Stage.RUNNING)
            assert view.records
            assert_whole(view)

    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_writer_stays_readable(tmp_path: Path, number: int) -> None:
    """Whenever a signal ends or stops the rank, all that it had written is there and whole."""
    for attempt in range(20):
        path, wanted = tmp_path / f"ledger {attempt}", RECORDS + 13 * attempt
        book.create(path, 1)
        view = view_after(path, number, wanted)

        assert view.stage is Stage.RUNNING
        assert view.written > wanted
        assert len(view.records) >= RECORDS - 1
        assert_whole(view)


def view_after(path: Path, number: int, wanted: int) -> book.RankView:
    """What a rank leaves that gets the signal once it has written as much as is wanted."""
    ledger = Ledger(path)
    with forks.forked(lambda: write_on(Ledger(path).pen(0))) as pid:
        processes.wait_until(lambda: ledger.head(0).written > wanted, "some records")
        os.kill(pid, number)
        processes.wait_until(lambda: process_state(pid) in ("T", "Z"), "the signal")
        view = ledger.view(0)
        assert ledger.view(0) == view
        return view


class StopsAfter:
    """Memory of which a writer can change only so many pieces before it is gone for good."""

    def __init__(self, memory: mmap.mmap, pieces: int) -> None:
        self._memory = memory
        self._left = pieces

    def __setitem__(self, where: slice, data: bytes) -> None:
        if self._left == 0:
            raise InterruptedError
        self._left -= 1
        self._memory[where] = data


def change_all(pen: Pen, number: int) -> None:
    """Every kind of change, and one more than any test lets through."""
    pen.stage(Stage.RUNNING)
    pen.publish_digest(DIGEST)
    pen.write(Kind.ENTER, call(number))
    pen.stage(Stage.LEAVING)


@pytest.mark.parametrize("pieces", range(6))
def test_a_writer_that_stops_between_two_pieces_leaves_what_was_whole(path: Path, pieces: int) -> None:
    """Wherever inside of a change the rank stops, a reader sees the state before or after it, never zeros."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        ledger, start = Ledger(path), book._region(0, RECORDS)
        pen = ledger.pen(0)
        pen.stage(Stage.JOINING)
        for number in range(1, RECORDS + 11):
            pen.write(Kind.ENTER if number % 2 else Kind.LEAVE, call(number))
        last = RECORDS + 10
        stopping: Any = StopsAfter(memory, pieces)
        late = Pen(stopping, start, RECORDS)
        late._written = last

        with pytest.raises(InterruptedError):
            change_all(late, last + 1)

        view = ledger.view(0)
        assert view.stage is (Stage.RUNNING if pieces else Stage.JOINING)
        assert view.digest == (DIGEST if pieces > 1 else bytes(32))
        assert view.written == (last + 1 if pieces > 4 else last)
        assert len(view.records) >= RECORDS - 1
        assert_whole(view)


def test_half_a_digest_is_none(path: Path, ledger: Ledger) -> None:
    """A digest that is being written is not compared with anybody's: it counts as not published."""
    ledger.pen(1).publish_digest(DIGEST)
    start = path.read_bytes().index(DIGEST)
    with path.open("r+b") as file:
        file.seek(start + 16)
        file.write(bytes(16))

    assert ledger.digest(1) == bytes(32)


def test_records_of_a_stranger_are_not_shown_and_looked_for_with_a_bound(path: Path, ledger: Ledger) -> None:
    """A region that somebody wrote over reads as empty, at once."""
    ledger.pen(1).write(Kind.ENTER, call(1))
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b'{"call":1'))
        file.write(b"#")

    assert ledger.view(1).records == ()
    assert ledger.head(1).written == 0


@given(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(WORDS, st.text(st.characters(exclude_categories=()), max_size=400)),
            "shape": st.lists(st.integers(0, 2**62), max_size=80),
            "repetition": st.integers(0, 1 << 20),
            "first": st.booleans(),
            "call": st.integers(0, 2**62),
        }
    )
)
def test_a_call_always_fits(tmp_path_factory: pytest.TempPathFactory, entered: dict[str, Any]) -> None:
    """However long its names and shape: the record reads back with every field, numbers as they were."""
    path = tmp_path_factory.mktemp("ledger") / "ledger"
    book.create(path, 1)
    ledger = Ledger(path)
    entered["planned"] = {"dtype": "int64", "shape": entered["shape"]}
    ledger.pen(0).write(Kind.ENTER, entered)

    read = ledger.view(0).records[0].call
    ledger.close()

    assert read.keys() == entered.keys()
    for name in ("repetition", "first", "call"):
        assert read[name] == entered[name]
    for name in WORDS:
        assert read[name][:1] == entered[name][:1]
        assert read[name][-1:] == entered[name][-1:]
    assert isinstance(read["shape"], list)
    assert read["planned"]["dtype"][:1] == "i"
    assert read["planned"]["shape"][:1] == entered["shape"][:1]
    assert read["shape"][:1] == entered["shape"][:1]


def test_what_fits_is_not_cut(ledger: Ledger) -> None:
    """The longest ordinary call is read back as it was written."""
    entered = {**CALL, "group": "dp,cp0,cp1", "shape": [2**31] * 8, "site": "a" * 100 + ".py:12345"}
    ledger.pen(0).write(Kind.ENTER, entered)

    assert ledger.view(0).records[0].call == entered


def test_a_long_site_keeps_its_line_and_a_long_shape_stays_a_list(ledger: Ledger) -> None:
    """What is cut is cut in the middle, and shows it."""
    ledger.pen(0).write(Kind.ENTER, {**CALL, "site": "x" * 300 + ".py:123", "shape": list(range(200))})

    read = ledger.view(0).records[0].call
    assert read["site"].startswith("xxx")
    assert "..." in read["site"]
    assert read["site"].endswith(".py:123")
    assert read["shape"][:3] == [0, 1, 2]
    assert "..." in read["shape"]
    assert read["shape"][-1] == 199


def test_the_phase_is_seen_by_another_process(path: Path, ledger: Ledger) -> None:
    """A rank that waits for its release gets it; the phase before is to run."""
    assert ledger.phase is Phase.RUN

    def await_release() -> None:
        own = Ledger(path)
        own.pen(0).stage(Stage.REPORTED)
        processes.wait_until(lambda: own.phase is Phase.RELEASE, "the release")
        own.pen(0).stage(Stage.LEFT)
        processes.wait_until(lambda: own.phase is Phase.ABORT, "the end")

    pid = forks.fork(await_release)
    processes.wait_until(lambda: ledger.head(0).stage is Stage.REPORTED, "the rank")
    ledger.phase = Phase.RELEASE
    processes.wait_until(lambda: ledger.head(0).stage is Stage.LEFT, "its leaving")
    ledger.phase = Phase.ABORT

    assert forks.wait(pid) == 0


def test_the_whole_file_is_allocated(path: Path) -> None:
    """Every block exists from the start, so that writing to the map can never find the disk full."""
    status = path.stat()

    assert Ledger(path).records_per_rank == RECORDS
    assert status.st_size == book.size_bytes(WORLD)
    assert status.st_blocks * 512 >= status.st_size
    assert status.st_mode & 0o777 == 0o600


def test_a_limit_on_file_sizes_is_an_error_at_creation(tmp_path: Path) -> None:
    """Where the file cannot have its size `create` raises OSError; no signal, no half ledger in use."""

    def create() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
        with pytest.raises(OSError, match="File too large") as raised:
            book.create(tmp_path / "ledger", WORLD)
        assert raised.value.errno == errno.EFBIG

    assert forks.wait(forks.fork(create)) == 0


def test_a_full_file_system_is_an_error_at_creation(tmp_path: Path) -> None:
    """On a tmpfs that is too small `create` raises ENOSPC, where a sparse file would raise SIGBUS later."""
    program = """
import errno
from pathlib import Path
from cpinfra.worker import ledger
try:
    ledger.create(Path(sys.argv[1]) / "ledger", 4)
except OSError as error:
    print(errno.errorcode[error.errno])
"""
    assert forks.with_tmpfs(tmp_path, "size=16k", program) == "ENOSPC\n"


def test_a_ledger_is_never_made_over_another_file(path: Path) -> None:
    """Two generations never share a ledger by mistake."""
    with pytest.raises(FileExistsError):
        book.create(path, WORLD)


def with_header(path: Path, *fields: Any) -> None:
    """Replace the header."""
    data = path.read_bytes()
    path.write_bytes(book._FILE_HEADER.pack(*fields) + data[book._FILE_HEADER.size :])


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    """Whatever is no ledger of ours, or not all of one, is refused with what was got and expected."""
    path = tmp_path / "ledger"
    cases = {
        "got a file of 0 bytes, expected a ledger": b"",
        "got a file of 5 bytes, expected a ledger": b"short",
        r"got b'\\x7fELF\\x00\\x00\\x00\\x00' version 0, expected b'cpledger' version 1": b"\x7fELF"
        + bytes(5000),
    }
    for expected, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(LedgerError, match=expected):
            Ledger(path)


def test_a_ledger_of_another_version_is_refused(path: Path) -> None:
    """The message names both versions."""
    with_header(path, b"cpledger", 2, WORLD, RECORDS, 0)
    with pytest.raises(LedgerError, match=r"got b'cpledger' version 2, expected b'cpledger' version 1$"):
        Ledger(path)


def test_how_many_records_a_rank_has_is_what_the_file_says(path: Path) -> None:
    """Whoever made it: rings of 32 are read and written as such; a ring of none is no ring."""
    with_header(path, b"cpledger", 1, WORLD, 32, 0)
    ledger = Ledger(path)
    pens = [ledger.pen(rank) for rank in range(WORLD)]
    for number in range(1, 101):
        for pen in pens:
            pen.write(Kind.ENTER if number % 2 else Kind.LEAVE, call(number))
    for rank in range(WORLD):
        assert_whole(ledger.view(rank))
        assert [ledger.view(rank).written, len(ledger.view(rank).records)] == [100, 32]

    with_header(path, b"cpledger", 1, WORLD, 0, 0)
    with pytest.raises(LedgerError, match=r"got room for 0 records a rank, expected at least 1$"):
        Ledger(path)


@pytest.mark.parametrize("world", [1, 4, 5, 16, 17, 64, 256, 257, 1024])
def test_a_ledger_is_affordable_in_every_world(world: int) -> None:
    """It is allocated in full, most often in memory: up to 26 MiB for 256 ranks, up to 50 for 1024."""
    assert book.size_bytes(world) <= (26 if world <= 256 else 50) * 2**20
    assert book.records_per_rank(world) >= book.records_per_rank(world + 1)


def test_a_ledger_that_was_cut_off_is_refused(path: Path) -> None:
    """Mapping less than the ranks write to would end in a SIGBUS."""
    size = book.size_bytes(WORLD)
    os.truncate(path, size - 1)

    expected = f"got {size - 1} bytes, expected {size} for 3 ranks with {RECORDS} records each"
    with pytest.raises(LedgerError, match=expected):
        Ledger(path)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    """A ledger whose folder went away is told from a foreign one."""
    with pytest.raises(FileNotFoundError):
        Ledger(tmp_path / "ledger")

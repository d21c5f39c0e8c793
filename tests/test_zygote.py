"""The supervisor's side of a zygote, with programs in its place that do what no sound one does."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpinfra.proof import zygote as module
from cpinfra.proof.zygote import ZygoteDeaf
from cpinfra.proof.zygote import ZygoteProcess
from cpinfra.worker.channel import Writer

Start = Callable[..., ZygoteProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a shell script as the target interpreter; all are ended."""
    started: list[ZygoteProcess] = []

    def begin(script: str, **environment: str) -> ZygoteProcess:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        started.append(zygote(program, tmp_path, **environment))
        return started[-1]

    yield begin
    for one in started:
        if one.exit() is None:
            one.close(hurry=True)


def zygote(program: Path, folder: Path, **environment: str) -> ZygoteProcess:
    """A zygote of that program."""
    cookie = os.urandom(8).hex()
    return ZygoteProcess(
        str(program), folder / "zip", {**os.environ, **environment}, cookie, folder / "zygote.log"
    )


def fill(one: ZygoteProcess) -> None:
    """Order more than a pipe holds."""
    for _ in range(10_000):
        one.order("stacks", ranks=list(range(64)))


def open_files() -> list[str]:
    """What this process has open."""
    return sorted(str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())


def test_one_that_cannot_be_executed_leaves_nothing_open(tmp_path: Path) -> None:
    """Neither pipes nor what waits for them."""
    before = open_files()

    with pytest.raises(FileNotFoundError):
        zygote(tmp_path / "no such python", tmp_path)

    assert open_files() == before


def test_a_stopped_one_is_found_deaf_and_still_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order into a full pipe does not wait for ever: the time is bounded, and so is the end."""
    monkeypatch.setattr(module, "_DEAF_AFTER_S", 0.2)
    stopped = start("exec sleep 600")
    stopped.signal(signal.SIGSTOP)
    started = time.monotonic()

    with pytest.raises(ZygoteDeaf, match=r"^it has taken no orders for 0\.2 s$"):
        fill(stopped)

    assert time.monotonic() - started < 30
    assert stopped.exit() is None
    assert stopped.close(hurry=True) == []
    assert stopped.exit() == "SIGKILL"


def test_a_slow_one_gets_every_order_whole(start: Start, tmp_path: Path) -> None:
    """Also one that is longer than the pipe holds, while it first tells more than its own pipe holds."""
    frames, got = tmp_path / "frames", tmp_path / "got"
    with frames.open("wb", buffering=0) as file:
        writer = Writer(file.fileno())
        for _ in range(3000):
            writer.send({"event": "hello", "pid": 1})
    assert frames.stat().st_size > 100_000
    slow = start(
        f"cat '{frames}' > /dev/fd/$4; sleep 0.3; cat < /dev/fd/$6 > '{got}.part'; mv '{got}.part' '{got}'"
    )

    slow.order("fork", spec="x" * 300_000)
    slow.order("quit")
    told = len(slow.hear(0))
    slow.close(hurry=False)

    assert [json.loads(line)["order"] for line in got.read_text().splitlines()] == ["fork", "quit"]
    assert told == 3000

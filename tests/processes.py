"""Finds the processes and files of one run from outside, whoever has died meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cpinfra.proof import run_folder
from cpinfra.worker import node_local
from cpinfra.worker.processes import COOKIE_VARIABLE

MARK = "CPINFRA_TEST_MARK"
GONE_WITHIN_S = 10.0
SIGNALS_AT_WORK = ("/usr/bin/env", "--default-signal=INT,TERM,HUP")
"""A shell that runs pytest in the background has it ignore SIGINT, which children inherit."""


def wait_until(condition: Callable[[], Any], what: str, within_s: float = 30.0) -> Any:
    """Poll until the condition holds and return its value; fail with `what` after the bound."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {within_s:.0f} s for {what}")
        time.sleep(0.01)
    return value


class Run:
    """`cpinfra prove`, or another command, as a process of its own, whose descendants all carry a mark."""

    def __init__(self, folder: Path, *arguments: str, **options: Any) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self._started = time.monotonic()
        environment = {**os.environ, MARK: self.mark, **options.pop("env", {})}
        named = options.pop("command", ("prove", "--device", "cpu"))
        command = [sys.executable, "-m", "cpinfra", *named, "--run-dir", str(folder)]
        self.process = subprocess.Popen(
            [*options.pop("prefix", SIGNALS_AT_WORK), *command, *arguments],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            **options,
        )

    @property
    def age_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started

    def events(self) -> list[dict[str, Any]]:
        """What the run has told so far."""
        try:
            lines = (self.folder / "events.jsonl").read_text().splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def report(self) -> dict[str, Any]:
        """The report in the run folder."""
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    def await_event(self, name: str, **facts: Any) -> dict[str, Any]:
        """Wait for an event, and return it."""

        def found() -> dict[str, Any] | None:
            told = (event for event in self.events() if event["event"] == name)
            return next((event for event in told if facts.items() <= event.items()), None)

        event: dict[str, Any] = wait_until(found, f"event {name} {facts}")
        return event

    def members(self) -> dict[int, dict[str, str]]:
        """Living processes with the mark: pid -> environment."""
        return {pid: found for pid in _pids() if (found := _environment(pid)).get(MARK) == self.mark}

    def zygote(self) -> int:
        """The process that has the cookie and whose parent has not; 0 before there is one."""
        members = self.members()
        cookies = {pid for pid, found in members.items() if COOKIE_VARIABLE in found}
        return next((pid for pid in cookies if _parent(pid) not in cookies), 0)

    def cookies(self) -> set[str]:
        """Cookies of the processes that live now."""
        return {found[COOKIE_VARIABLE] for found in self.members().values() if COOKIE_VARIABLE in found}

    def signal(self, number: int) -> None:
        """Signal the supervisor."""
        self.process.send_signal(number)

    def end(self, within_s: float = 60.0) -> tuple[int, str, str]:
        """Wait for the supervisor; returns exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, (out or b"").decode(), (err or b"").decode()

    def assert_nothing_left(self, cookies: set[str] | None = None) -> None:
        """No process with the mark, no node-local folder of these cookies, nothing odd in the run folder."""
        wait_until(lambda: not self.members(), f"the end of {self.members()}", GONE_WITHIN_S)
        for cookie in cookies or ():
            wait_until(partial(_has_no_folder, cookie), f"removal of {cookie}'s folder", GONE_WITHIN_S)
        if self.folder.exists():
            assert_reusable(
                self.folder, tidy=self.process.poll() is not None and self.process.returncode >= 0
            )

    def kill(self) -> None:
        """End whatever of this run still lives."""
        for pid in self.members():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def command_of(pid: int) -> bytes:
    """The command line of a process; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def assert_reusable(folder: Path, *, tidy: bool) -> None:
    """Nobody locks a run folder, and a later run there would take all files in it for those of a run.

    Args:
        folder: the run folder.
        tidy: whether the run came to its end, so that no file of it can be half-written.
    """
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(fd)
    files = {path for path in folder.rglob("*") if not path.is_dir()}
    assert files == set(run_folder._left_in(folder))
    assert not tidy or not [path for path in files if path.name.startswith(".")]


def _has_no_folder(cookie: str) -> bool:
    name = node_local.name(cookie)
    places = node_local.candidates()
    return not any((parent / made).exists() for parent in places for made in (name, f".{name}"))


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _environment(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in raw.split(b"\0"))
    return {name: value for name, _, value in pairs}


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0

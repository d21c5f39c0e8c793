"""Runs checks on real ranks for the tests of the checks: forks them, with the real door, over gloo.

A program of its own, so that no test forks pytest and that a test can set PYTHONOPTIMIZE. Reads a list of
jobs as JSON from its first argument, works in the folder given as its second, and prints one JSON list of
results. Every wait is bounded and every rank is ended, whatever happens.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed.tensor

from cpinfra.worker import faults
from cpinfra.worker import ledger
from cpinfra.worker import registry
from cpinfra.worker.check_run import CheckRun
from cpinfra.worker.check_run import run_check
from cpinfra.worker.comm import Door
from cpinfra.worker.comm import Place
from cpinfra.worker.control import Control
from cpinfra.worker.processes import die_with_parent

PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Some checks on the ranks of one mesh, with at most one data twin."""

    dp: int = 1
    cp0: int = 1
    cp1: int = 1
    checks: tuple[str, ...]
    twin: str = ""
    salt: int = 7
    limit: int = 1000
    """How many of its trials each check makes."""

    @property
    def world(self) -> int:
        """How many ranks."""
        return self.dp * self.cp0 * self.cp1

    def as_json(self) -> dict[str, Any]:
        """For the command line."""
        return asdict(self)


@dataclass(kw_only=True, slots=True)
class Watched:
    """A data fault that counts how often it changed something."""

    fault: faults.DataFault
    fired: int = field(default=0)

    @property
    def name(self) -> str:
        """The fault's."""
        return self.fault.name

    def apply(self, delivery: faults.Delivery) -> bool:
        """The fault's, counted."""
        changed = self.fault.apply(delivery)
        self.fired += changed
        return changed


def main(jobs_json: str, folder: Path) -> None:
    """Run the jobs one after the other and print their results."""
    jobs = [Job(**{**job, "checks": tuple(job["checks"])}) for job in json.loads(jobs_json)]
    registry.load([check for job in jobs for check in job.checks])
    results = []
    for number, job in enumerate(jobs):
        own = folder / f"job-{number}"
        own.mkdir()
        results.append(run_job(job, own))
    sys.stdout.write(json.dumps(results))


def run_job(job: Job, folder: Path) -> list[dict[str, Any]]:
    """Fork the ranks, wait for their answers, end them: one dict per rank, by rank."""
    ledger.create(folder / "ledger", job.world)
    sys.stdout.flush()
    parent = os.getpid()
    pids = {}
    for rank in range(job.world):
        pid = os.fork()
        if pid == 0:
            _become_rank(job, rank, folder, parent)
        pids[pid] = rank
    try:
        _await_answers(job, folder)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(job.world)]


def _await_answers(job: Job, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while missing := [r for r in range(job.world) if not (folder / f"rank-{r}.json").exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{job}: no answer from ranks {missing}")
        time.sleep(0.005)


def _become_rank(job: Job, rank: int, folder: Path, parent: int) -> None:
    """In the child: answer into a file, then wait to be killed."""
    try:
        die_with_parent(parent)
        torch.set_num_threads(1)
        result = _live(job, rank, folder)
    except BaseException:  # noqa: BLE001 - a child must never return into the parent's frames
        result = {"broken": traceback.format_exc()}
    part = folder / f"rank-{rank}.part"
    part.write_text(json.dumps(result))
    part.rename(folder / f"rank-{rank}.json")
    time.sleep(PATIENCE_S)
    os._exit(1)


def _live(job: Job, rank: int, folder: Path) -> dict[str, Any]:
    book = ledger.Ledger(folder / "ledger")
    place = Place(
        rank=rank,
        world=job.world,
        backend="gloo",
        device=torch.device("cpu"),
        store=folder / "store",
        patience_s=PATIENCE_S,
    )
    door = Door(place, book, book.pen(rank))
    door.join()
    watched = [Watched(fault=faults.data_fault(job.twin))] if job.twin else []
    door.plant(Control((), rank, lambda *_: None), watched, lambda *_: None)
    started = time.process_time()
    answers, entered = [], []
    for name in job.checks:
        before = book.view(rank).written
        answers.append(_answer(job, rank, door, name))
        entered += _entered(book.view(rank), before)
    return {
        "answers": answers,
        "entered": entered,
        "history": door.history,
        "fired": sum(each.fired for each in watched),
        "cpu_s": time.process_time() - started,
    }


def _entered(view: ledger.RankView, before: int) -> list[dict[str, Any]]:
    """What was entered after so many records; an error where the ring no longer holds all of it."""
    records = [record for record in view.records if record.sequence > before]
    if len(records) != view.written - before:
        raise ValueError(f"{view.written - before} records of one check, {len(records)} of them kept")
    return [dict(record.call) for record in records if record.kind is ledger.Kind.ENTER]


def _answer(job: Job, rank: int, door: Door, name: str) -> dict[str, object]:
    check = registry.load([name])[name]
    shorter = replace(check, trials=lambda space: check.trials(space)[: job.limit])
    run = CheckRun(
        rank=rank,
        world=job.world,
        dp=job.dp,
        cp0=job.cp0,
        cp1=job.cp1,
        device=torch.device("cpu"),
        backend="gloo",
        door=door,
        check=shorter,
        salt=job.salt,
    )
    return run_check(run, partial(door.at, name))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

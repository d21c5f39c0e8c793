"""`smoke`: the checks on real ranks, judged, with torch's Python alone. Standard library only."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import outcome
from ..mesh import UsageProblem
from ..outcome import ExitCode
from ..outcome import Severity
from ..outcome import Verdict
from ..planning import asked
from ..planning.asked import ProveRequest
from ..planning.settle import AskGpus
from ..planning.settle import Settled
from ..planning.settle import settle
from ..proof import run_folder
from . import judge
from .job import Job
from .judge import Judged
from .learnt import Learnt

Say = Callable[[str], None]
"""Shows one line."""

LOUD = "REHEARSAL ON THE CPU, over gloo: it proves nothing about GPUs"
_REHEARSAL = "the same command with --device cpu"
_FEW = "too-few-gpus"


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeRequest:
    """What was asked, as the user wrote it."""

    proof: ProveRequest
    timeout: str | None = None
    """Seconds for all of it."""
    checks_decide: bool = False
    """Whether, on fewer GPUs than any square takes, it is enough that the named checks passed on them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Smoked:
    """What it came to."""

    settled: Settled
    learnt: Learnt
    judged: Judged
    folder: Path
    timed_out: bool
    exit_code: ExitCode
    sentence: str
    """The verdict and what it means."""


def smoke(
    request: SmokeRequest,
    environment: Mapping[str, str],
    *,
    say: Say,
    progress: Callable[[dict[str, Any]], None],
    ask_gpus: AskGpus | None = None,
) -> Smoked:
    """Settle, run, judge.

    Args:
        request: what was asked.
        environment: of this process.
        say: takes what is to be known before anything runs.
        progress: takes the events.
        ask_gpus: another source than NVML for the GPUs.

    Raises:
        UsageProblem: the request makes no sense, or no folder can take the logs; nothing was started.
    """
    deadline = _deadline(request)
    settled = settle(request.proof, environment, ask_gpus=ask_gpus, rehearsal=_REHEARSAL)
    say(f"device: {settled.device.says}")
    if settled.device.kind == "cpu":
        say(LOUD)
    try:
        folder = run_folder.create(settled.numbers.run_dir, environment)
    except run_folder.RunFolderError as error:
        raise UsageProblem([f"{error}; give a folder that can be written with --run-dir"]) from error
    alarms: list[str] = []
    try:
        for run in settled.runs:
            say(f"ranks: {run.mesh.world_size} ({run.mesh}) on {run.device}; run folder: {folder.path}")
        with Job(settled, folder, progress, lambda: None) as job, _ended_at(deadline, alarms):
            job.run()
    finally:
        folder.close()
    return _smoked(request, settled, job.learnt, folder.path, timed_out=bool(alarms))


def _deadline(request: SmokeRequest) -> float | None:
    """When all of it must be over, on the monotonic clock.

    Raises:
        UsageProblem: it is no number of seconds.
    """
    seconds = asked.seconds("--timeout", request.timeout)
    return time.monotonic() + seconds if seconds is not None else None


@contextmanager
def _ended_at(deadline: float | None, alarms: list[str]) -> Iterator[None]:
    """At the deadline the run gets the signal by which a batch system would end it, which ends all ranks."""
    if deadline is None:
        yield
        return

    def ring(*_: object) -> None:
        alarms.append("rung")
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, deadline - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _smoked(
    request: SmokeRequest, settled: Settled, learnt: Learnt, folder: Path, *, timed_out: bool
) -> Smoked:
    judged = judge.judge(settled, learnt)
    code, sentence = _answer(request, settled, learnt, judged, timed_out=timed_out)
    return Smoked(
        settled=settled,
        learnt=learnt,
        judged=judged,
        folder=folder,
        timed_out=timed_out,
        exit_code=code,
        sentence=sentence,
    )


def _answer(
    request: SmokeRequest, settled: Settled, learnt: Learnt, judged: Judged, *, timed_out: bool
) -> tuple[ExitCode, str]:
    verdict = judged.verdict
    told = f"{verdict.value}, scope {judged.scope.value}" if judged.scope is not None else verdict.value
    if timed_out and verdict is not Verdict.FAILED:
        return ExitCode.NOT_PROVEN, f"{told}: it was not over within {request.timeout} s, and was ended"
    if learnt.interrupted and not timed_out:
        return ExitCode.INTERRUPTED, f"{told}: it was interrupted"
    if request.checks_decide and verdict is Verdict.NOT_PROVEN and _passed_on_few(settled, judged):
        number = len(settled.runs[0].gpus)
        return ExitCode.OK, f"passed on {number} GPU(s); 2D context parallelism, which takes 4, is not proven"
    return outcome.exit_code(verdict), f"{told}: {outcome.MEANINGS[verdict.value]}"


def _passed_on_few(settled: Settled, judged: Judged) -> bool:
    """Whether nothing but the number of GPUs keeps the checks that were asked for from being a proof."""
    blocking = {finding.id for finding in judged.all_findings if finding.severity is Severity.BLOCKING}
    passed = outcome.passed(settled.runs[0].facts, judged.checks) if settled.runs else set()
    return blocking == {_FEW} and bool(passed) and settled.selection.required <= passed

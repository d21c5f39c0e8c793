"""Time from a fault to its verdict on screen, on the CPU of this machine.

    python benchmarks/hang_to_verdict.py [--ranks N] [--rounds N] [--only FAULT]... [--optimize]

Run it with the interpreter that has cpinfra and torch. Each fault is planted in a run of `cpinfra prove` of
its own, as the self-test plants it: on the first collective, P2P and DTensor check that fits that many ranks;
the stages' faults once. `delay` is left out: it is no hang, and nothing fails by it. The clock starts when
the rank says that its fault acts, and stops when the line that names it has come through the pipe that a
person reads. Faults take turns, so that whatever else the machine does meets all of them. It ends with a
Markdown table, and status 1 if a figure is missed, or a verdict names another rank or kind; 2 if it cannot
be run; 130 if it is interrupted, when it takes its run and its folder with it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpinfra.mesh import UsageProblem
from cpinfra.mesh import choose
from cpinfra.proof.catalogue import catalogue
from cpinfra.proof.expectations import EXPECTED
from cpinfra.proof.selftest import Planting
from cpinfra.proof.selftest import plantings
from cpinfra.text import one_line
from cpinfra.worker.injection import CONTROL_TWINS
from cpinfra.worker.injection import STAGE_TWINS

FEWEST_RANKS = 2
KINDS: Mapping[str, str | None] = {
    name: expected.hang for name, expected in EXPECTED.items() if name in CONTROL_TWINS and not expected.slow
}
"""Fault -> kind of hang that must be named; None: no hang, the check fails."""
DEATHS = ("exit", "kill")
MEDIAN_S = 2.0
MOST_S = 5.0
MOST_OF_STAGE_S = 10.0
MOST_OF_DEATH_S = 1.0
TIMEOUT_S = 120
END_S = 15
"""How long an interrupted run may take to end its ranks."""
INTERRUPTED = 130
_SHOWN = 400
"""Characters of what a run printed at its end, in an error."""


class BenchmarkError(RuntimeError):
    """A run did not end as it must, so its time means nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One fault, and what became of it."""

    fault: str
    check: str
    seconds: float
    named: str
    """What the report says: kind and culprits."""
    right: bool

    @property
    def name(self) -> str:
        """Without its rank."""
        return self.fault.partition(":")[0]


def command(fault: str, check: str, ranks: int, folder: Path) -> list[str]:
    """One run with one fault."""
    program = [sys.executable, "-m", "cpinfra", "prove", "--device", "cpu", "--ranks", str(ranks)]
    return [*program, "--only", check, "--inject", fault, "--run-dir", str(folder)]


def run(planting: Planting, ranks: int, environment: Mapping[str, str]) -> Verdict:
    """Plant one fault, and time the line that tells of it.

    Raises:
        BenchmarkError: the run did not end as it must.
    """
    fault, check = planting.fault, planting.checks[0].id
    with tempfile.TemporaryDirectory(prefix="cpinfra-benchmark-") as path:
        folder = Path(path) / "run"
        lines = _timed_lines(command(fault, check, ranks, folder), environment)
        told_at_s = _told_at_s(planting, check, lines)
        report = json.loads((folder / "report.json").read_text())
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    fired = [event["at_s"] for event in events if event["event"] == "fired"]
    if not fired:
        raise BenchmarkError(f"{fault} in {check}: the fault never acted")
    named, right = _judged(planting, check, report)
    return Verdict(fault=fault, check=check, seconds=told_at_s - fired[0], named=named, right=right)


def _timed_lines(argv: Sequence[str], environment: Mapping[str, str]) -> list[tuple[float, str]]:
    """(CLOCK_MONOTONIC seconds, line) of all that a run prints; it must end by itself with 1."""
    with subprocess.Popen(argv, env=dict(environment), stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise BenchmarkError("no pipe to read from")
        alarm = threading.Timer(TIMEOUT_S, process.kill)
        alarm.start()
        try:
            lines = [(time.monotonic(), line) for line in process.stdout]
            status = process.wait()
        finally:
            alarm.cancel()
            _ended(process)
    if status != 1:
        raise BenchmarkError(f"{' '.join(argv)} ended with status {status}, expected 1: {_end_of(lines)}")
    return lines


def _ended(process: subprocess.Popen[str]) -> None:
    """See that a run is over before its folder is removed: an interrupt meets it in the middle."""
    process.terminate()  # nothing is done to one that is over
    try:
        process.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _end_of(lines: Sequence[tuple[float, str]]) -> str:
    """The last that a run printed, on one line."""
    return one_line("".join(line for _, line in lines).strip()[-_SHOWN:]) or "it printed nothing"


def _told_at_s(planting: Planting, check: str, lines: Sequence[tuple[float, str]]) -> float:
    """When the line came that names the fault: of a hang its kind, else the check that fails."""
    kind = KINDS[planting.twin]
    words = f"{check} fail" if kind is None else f"{kind}: rank"
    for at_s, line in lines:
        if words in line:
            return at_s
    raise BenchmarkError(f"{planting.fault} in {check}: no line says {words!r}: {_end_of(lines)}")


def _judged(planting: Planting, check: str, report: Mapping[str, Any]) -> tuple[str, bool]:
    """(what the report says, whether that is right)."""
    hang, kind = report["hang"], KINDS[planting.twin]
    if kind is None:
        reason = next(one["reason"] for one in report["checks"] if one["id"] == check)
        return reason, hang is None and reason.startswith(f"rank {planting.rank}:")
    named = f"{hang['kind']} of {hang['culprit_ranks']}" if hang else "no hang"
    return named, hang is not None and (hang["kind"], hang["culprit_ranks"]) == (kind, [planting.rank])


def plan(only: Sequence[str], ranks: int) -> list[Planting]:
    """One round: each fault on each check on which the self-test plants it with so many ranks.

    Raises:
        UsageProblem: there is no mesh of so many ranks.
    """
    mesh = choose(ranks)
    shape = {"world": mesh.world_size, "cp0": mesh.cp0, "cp1": mesh.cp1}
    fits = [check for check in catalogue() if check.obstacle(**shape) is None]
    names = [name for name in KINDS if not only or name in only]
    planned = [planting for planting in plantings(fits, ranks, 1.0) if planting.twin in names]
    hosts = list(dict.fromkeys(planting.checks[0].id for planting in planned))
    return sorted(planned, key=lambda planting: hosts.index(planting.checks[0].id))  # faults take turns


def table(verdicts: Sequence[Verdict]) -> list[str]:
    """One row for each fault, then the figures."""
    rows = ["| fault | runs | median | max | named |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(verdict.name for verdict in verdicts):
        mine = [verdict for verdict in verdicts if verdict.name == name]
        seconds = [verdict.seconds for verdict in mine]
        wrong = [f"{verdict.check}: {verdict.named}" for verdict in mine if not verdict.right]
        said = "; ".join(dict.fromkeys(wrong)) or "right"
        rows.append(
            f"| {name} | {len(mine)} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s | {said} |"
        )
    return rows


def figures(verdicts: Sequence[Verdict]) -> list[tuple[str, float, float]]:
    """(figure, got, at most)."""
    stages = [verdict.seconds for verdict in verdicts if verdict.name in STAGE_TWINS]
    deaths = [verdict.seconds for verdict in verdicts if verdict.name in DEATHS]
    others = [verdict.seconds for verdict in verdicts if verdict.name not in STAGE_TWINS]
    found = [("named wrongly", float(sum(not verdict.right for verdict in verdicts)), 0.0)]
    if others:
        found.append(("fault to verdict, median", statistics.median(others), MEDIAN_S))
        found.append(("fault to verdict, max", max(others), MOST_S))
    if stages:
        found.append(("faults of init and teardown, max", max(stages), MOST_OF_STAGE_S))
    if deaths:
        found.append(("a dead rank, max", max(deaths), MOST_OF_DEATH_S))
    return found


def measure(asked: argparse.Namespace) -> list[Verdict]:
    """All rounds, each verdict told as it comes.

    Raises:
        BenchmarkError: a run did not end as it must.
        UsageProblem: there is no mesh of so many ranks.
    """
    environment = {**os.environ, **({"PYTHONOPTIMIZE": "1"} if asked.optimize else {})}
    verdicts: list[Verdict] = []
    planned = plan(asked.only, asked.ranks)
    for number in range(asked.rounds):
        for planting in planned:
            one = run(planting, asked.ranks, environment)
            verdicts.append(one)
            said = f"round {number + 1}: {one.fault} in {one.check}: {one.seconds:.2f} s, {one.named}"
            print(said, file=sys.stderr, flush=True)
    return verdicts


def at_least(fewest: int) -> Callable[[str], int]:
    """Reads a whole number that is not below this."""

    def number(text: str) -> int:
        if not (text.isascii() and text.isdecimal()) or int(text) < fewest:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of {fewest} or more")
        return int(text)

    return number


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=at_least(FEWEST_RANKS), default=4)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument(
        "--only", action="append", default=[], choices=list(KINDS), help="without `delay`, which is no hang"
    )
    parser.add_argument("--optimize", action="store_true", help="all under PYTHONOPTIMIZE=1")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, judge."""
    try:
        verdicts = measure(arguments(argv))
    except (BenchmarkError, UsageProblem) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    print("\n".join(table(verdicts)), end="\n\n")
    print("| figure | got | target | |\n|---|---|---|---|")
    found = figures(verdicts)
    for name, got, most in found:
        print(f"| {name} | {got:.2f} | <= {most:g} | {'met' if got <= most else '**missed**'} |")
    return int(any(got > most for _, got, most in found))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())

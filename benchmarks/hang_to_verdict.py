"""Time from a fault to its verdict on screen, on the CPU of this machine.

    python benchmarks/hang_to_verdict.py [--ranks N] [--rounds N] [--only FAULT]... [--optimize]

Run it with the interpreter that has cpinfra and torch. Each fault is planted in a run of `cpinfra prove` of
its own, in one collective, one P2P and one DTensor check; the stages' faults once. The clock starts when the
rank says that its fault acts, and stops when the line that names it has come through the pipe that a person
reads. Faults take turns, so that whatever else the machine does meets all of them. It ends with a Markdown
table, and status 1 if a figure is missed, or a verdict names another rank or kind.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpinfra.proof.expectations import EXPECTED
from cpinfra.worker.injection import CONTROL_TWINS

CHECKS = ("collective.all_reduce", "p2p.ring", "dtensor.roundtrip")
RANK = 1
KINDS: Mapping[str, str | None] = {
    name: expected.hang for name, expected in EXPECTED.items() if name in CONTROL_TWINS and not expected.slow
}
"""Fault -> kind of hang that must be named; None: no hang, the check fails."""
STAGES = ("never-join", "stall-init", "stall-teardown")
DEATHS = ("exit", "kill")
MEDIAN_S = 2.0
MOST_S = 5.0
MOST_OF_STAGE_S = 10.0
MOST_OF_DEATH_S = 1.0
TIMEOUT_S = 120


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


def run(fault: str, check: str, ranks: int, environment: Mapping[str, str]) -> Verdict:
    """Plant one fault, and time the line that tells of it."""
    with tempfile.TemporaryDirectory(prefix="cpinfra-benchmark-") as path:
        folder = Path(path) / "run"
        lines = _timed_lines(command(fault, check, ranks, folder), environment)
        told_at_s = _told_at_s(fault, check, lines)
        report = json.loads((folder / "report.json").read_text())
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    fired = [event["at_s"] for event in events if event["event"] == "fired"]
    if not fired:
        raise BenchmarkError(f"{fault} in {check}: the fault never acted")
    named, right = _judged(fault, check, report)
    return Verdict(fault=fault, check=check, seconds=told_at_s - fired[0], named=named, right=right)


def _timed_lines(argv: Sequence[str], environment: Mapping[str, str]) -> list[tuple[float, str]]:
    """(CLOCK_MONOTONIC seconds, line) of all that a run prints; it must end by itself with 1."""
    with subprocess.Popen(argv, env=dict(environment), stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None:
            raise BenchmarkError("no pipe to read from")
        alarm = threading.Timer(TIMEOUT_S, process.kill)
        alarm.start()
        lines = [(time.monotonic(), line) for line in process.stdout]
        status = process.wait()
        alarm.cancel()
    if status != 1:
        shown = "".join(line for _, line in lines)[-2000:]
        raise BenchmarkError(f"{' '.join(argv)} ended with status {status}:\n{shown}")
    return lines


def _told_at_s(fault: str, check: str, lines: Sequence[tuple[float, str]]) -> float:
    """When the line came that names the fault: of a hang its kind, else the check that fails."""
    kind = KINDS[fault.partition(":")[0]]
    words = f"{check} fail" if kind is None else f"{kind}: rank"
    for at_s, line in lines:
        if words in line:
            return at_s
    shown = "".join(line for _, line in lines)[-2000:]
    raise BenchmarkError(f"{fault} in {check}: no line says {words!r}:\n{shown}")


def _judged(fault: str, check: str, report: Mapping[str, Any]) -> tuple[str, bool]:
    """(what the report says, whether that is right)."""
    hang, kind = report["hang"], KINDS[fault.partition(":")[0]]
    if kind is None:
        reason = next(one["reason"] for one in report["checks"] if one["id"] == check)
        return reason, hang is None and reason.startswith(f"rank {RANK}:")
    named = f"{hang['kind']} of {hang['culprit_ranks']}" if hang else "no hang"
    return named, hang is not None and (hang["kind"], hang["culprit_ranks"]) == (kind, [RANK])


def plan(only: Sequence[str]) -> list[tuple[str, str]]:
    """(fault, check) of one round."""
    names = [name for name in KINDS if not only or name in only]
    return [
        (f"{name}:{RANK}", check)
        for check in CHECKS
        for name in names
        if name not in STAGES or check == CHECKS[0]
    ]


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
    stages = [verdict.seconds for verdict in verdicts if verdict.name in STAGES]
    deaths = [verdict.seconds for verdict in verdicts if verdict.name in DEATHS]
    others = [verdict.seconds for verdict in verdicts if verdict.name not in STAGES]
    found = [("named wrongly", float(sum(not verdict.right for verdict in verdicts)), 0.0)]
    if others:
        found.append(("fault to verdict, median", statistics.median(others), MEDIAN_S))
        found.append(("fault to verdict, max", max(others), MOST_S))
    if stages:
        found.append(("faults of init and teardown, max", max(stages), MOST_OF_STAGE_S))
    if deaths:
        found.append(("a dead rank, max", max(deaths), MOST_OF_DEATH_S))
    return found


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", default=[], choices=list(KINDS))
    parser.add_argument("--optimize", action="store_true", help="all under PYTHONOPTIMIZE=1")
    asked = parser.parse_args()
    environment = {**os.environ, **({"PYTHONOPTIMIZE": "1"} if asked.optimize else {})}
    verdicts: list[Verdict] = []
    for number in range(asked.rounds):
        for fault, check in plan(asked.only):
            verdicts.append(run(fault, check, asked.ranks, environment))
            one = verdicts[-1]
            said = f"round {number + 1}: {fault} in {check}: {one.seconds:.2f} s, {one.named}"
            print(said, file=sys.stderr, flush=True)
    print("\n".join(table(verdicts)), end="\n\n")
    print("| figure | got | target | |\n|---|---|---|---|")
    found = figures(verdicts)
    for name, got, most in found:
        print(f"| {name} | {got:.2f} | <= {most:g} | {'met' if got <= most else '**missed**'} |")
    return int(any(got > most for _, got, most in found))


if __name__ == "__main__":
    sys.exit(main())

"""Time from the command to the verdict, against the straightforward way, on the CPU of this machine.

    python benchmarks/time_to_verdict.py [--quick] [--only ROW]...

Run it with the interpreter that has cpinfra and torch. The sides take turns, so that whatever else the
machine does meets both; a figure is a median. It ends with a Markdown table, and status 1 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

STRAIGHTFORWARD = Path(__file__).parent / "straightforward"
ROUNDS = 5
HELP_ROUNDS = 15
# c10d's TCPStore asks reverse DNS for each connect; a lost query stalls the whole group, an init otherwise
# takes a fraction of this. Both sides get short look-ups: 5 s stalls would flatter us.
STALL_S = 0.9
RES_OPTIONS = "timeout:1 attempts:1"
SAMPLE_S = 0.05
TIMEOUT_S = 600

# A row without a target is shown and not judged.
TARGETS: dict[str, float] = {
    "4": 0.20,
    "16": 0.11,
    "64": 15.0,
    "pss": 3.0,
    "generation": 0.6,
    "supervisor": 60.0,
    "help": 2.0,
    "build 4": 0.20,
    "build 16": 0.11,
    "build over prove": 0.3,
    "plan": 0.5,
}


class BenchmarkError(RuntimeError):
    """A side did not end well, so its time means nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table."""

    figure: str
    value: float
    unit: str
    """"" for a ratio."""
    target: float | None = None
    """At most this much."""
    note: str = ""

    @property
    def met(self) -> bool:
        """True where there is no target."""
        return self.target is None or self.value <= self.target

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        target = "-" if self.target is None else f"<= {self.target:g}{unit}"
        judged = "-" if self.target is None else ("met" if self.met else "**missed**")
        value = f"{self.value:,}" if isinstance(self.value, int) else f"{self.value:.3g}"
        return f"| {self.figure} | {value}{unit} | {target} | {judged} | {self.note} |"


@dataclass(kw_only=True, slots=True)
class Straightforward:
    """What runs of the three scripts took and did."""

    seconds: list[float] = field(default_factory=list)
    inits_s: list[float] = field(default_factory=list)
    """One per process group: the shortest of its ranks, which did not wait for others to start."""
    comparisons: int = 0
    """Of the last run."""
    crashes: int = 0
    """Runs that died and were made again: gloo now and then aborts a spawned rank at its exit."""

    @property
    def stalls(self) -> int:
        """Inits that a lost look-up stalled."""
        return sum(init > STALL_S for init in self.inits_s)


@dataclass(kw_only=True, slots=True)
class Ours:
    """What runs of `cpinfra prove` took and said."""

    seconds: list[float] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    """Of the last run."""

    @property
    def comparisons(self) -> int:
        """Exact comparisons over all ranks and checks."""
        return sum(check["evidence"].get("comparisons", 0) for check in self.report["checks"])


def environment() -> dict[str, str]:
    """The environment of both sides: bytecode is kept, as it is for users unless they forbid it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "RES_OPTIONS": RES_OPTIONS}


def say(text: str) -> None:
    """Progress, beside the table."""
    print(text, file=sys.stderr, flush=True)


def run_script(name: str, *arguments: str) -> list[str]:
    """The lines that one script of the straightforward side prints."""
    command = [sys.executable, str(STRAIGHTFORWARD / name), *arguments]
    ended = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if ended.returncode != 0:
        raise BenchmarkError(f"{name} ended with status {ended.returncode}:\n{ended.stderr[-2000:]}")
    return ended.stdout.splitlines()


def run_straightforward(world_size: int, side: Straightforward) -> None:
    """One run of the straightforward side; one that crashes is counted, and made again twice at most."""
    for last in (False, False, True):
        try:
            run_scripts(world_size, side)
            return
        except BenchmarkError as error:
            side.crashes += 1
            say(f"a straightforward run crashed: {str(error).splitlines()[0]}")
            if last:
                raise


def run_scripts(world_size: int, side: Straightforward) -> None:
    """All three scripts, one after the other."""
    started = time.perf_counter()
    run_script("probe.py")
    outputs = [
        run_script(name, "--world-size", str(world_size)) for name in ("collectives.py", "dtensor_smoke.py")
    ]
    side.seconds.append(time.perf_counter() - started)
    for lines in outputs:
        side.inits_s.append(min(float(line.split()[1]) for line in lines if line.startswith("init: ")))
    side.comparisons = sum(line.startswith("compared: ") for lines in outputs for line in lines)


def cpinfra() -> str:
    """The command of the environment that this script runs in."""
    found = shutil.which("cpinfra", path=str(Path(sys.executable).parent))
    if found is None:
        raise BenchmarkError(f"no cpinfra beside {sys.executable}: install it there")
    return found


def command_of(name: str, world_size: int, folder: Path) -> list[str]:
    """A rehearsal by `prove` or by `build`."""
    asked = {
        "prove": ["prove", "--device", "cpu", "--ranks", str(world_size)],
        "build": ["build", str(world_size), "--rehearse", "--docs", str(folder / "docs")],
    }
    where = ["--python", sys.executable, "--run-dir", str(folder / "run"), "--json"]
    return [cpinfra(), *asked[name], *where]


@contextmanager
def started_proof(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A rehearsal that runs; its output is read by the caller."""
    with subprocess.Popen(
        command, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def run_ours(
    world_size: int, side: Ours, watch: Callable[[int], None] | None = None, *, name: str = "prove"
) -> None:
    """One rehearsal; `watch` is called with its process id, in a thread, while it runs."""
    with tempfile.TemporaryDirectory(prefix="cpinfra-benchmark-") as folder:
        started = time.perf_counter()
        with started_proof(command_of(name, world_size, Path(folder))) as process:
            watcher = threading.Thread(target=watch or (lambda _: None), args=(process.pid,))
            watcher.start()
            output, errors = process.communicate(timeout=TIMEOUT_S)
            side.seconds.append(time.perf_counter() - started)
            watcher.join()
        if process.returncode != 0:
            raise BenchmarkError(f"cpinfra {name} ended with status {process.returncode}:\n{errors[-2000:]}")
        side.report = json.loads(output)
    if side.report["verdict"] != "rehearsed":
        raise BenchmarkError(f"expected the verdict rehearsed, got {side.report['verdict']}")


def spread(seconds: Sequence[float]) -> str:
    """Median and range, for a note."""
    return f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"


def ratio_rows(world_size: int, rounds: int) -> Iterator[Row]:
    """All sides in turns at one world size."""
    theirs, ours, builds = Straightforward(), Ours(), Ours()
    for number in range(1, rounds + 1):
        run_straightforward(world_size, theirs)
        run_ours(world_size, ours)
        run_ours(world_size, builds, name="build")
        last = f"{theirs.seconds[-1]:.2f} s, prove {ours.seconds[-1]:.2f} s, build {builds.seconds[-1]:.2f} s"
        say(f"{world_size} ranks, {number}/{rounds}: {last}")
    their_s, our_s, build_s = (statistics.median(side.seconds) for side in (theirs, ours, builds))
    yield Row(
        figure=f"{world_size} ranks: cpinfra build / straightforward",
        value=build_s / their_s,
        unit="",
        target=TARGETS.get(f"build {world_size}"),
        note=spread(builds.seconds),
    )
    yield Row(
        figure=f"{world_size} ranks: what build adds to prove",
        value=build_s - our_s,
        unit="s",
        target=TARGETS["build over prove"],
    )
    yield Row(
        figure=f"{world_size} ranks: cpinfra prove / straightforward",
        value=our_s / their_s,
        unit="",
        target=TARGETS.get(str(world_size)),
        note=f"{spread(ours.seconds)} / {spread(theirs.seconds)};"
        f" TCPStore: {theirs.stalls} of {len(theirs.inits_s)} inits over {STALL_S} s"
        f" ({min(theirs.inits_s):.2f} to {max(theirs.inits_s):.2f} s); {theirs.crashes} crashed, run again",
    )
    yield Row(
        figure=f"{world_size} ranks: exact comparisons",
        value=ours.comparisons,
        unit="",
        note=f"straightforward {theirs.comparisons}",
    )


def many_rows(rounds: int) -> Iterator[Row]:
    """64 ranks: time, and the memory of all processes in a run of its own, which the reading slows."""
    ours = Ours()
    for number in range(1, rounds + 1):
        run_ours(64, ours)
        say(f"64 ranks, {number}/{rounds}: {ours.seconds[-1]:.2f} s")
    note = spread(ours.seconds)
    yield Row(
        figure="64 ranks: time to the verdict",
        value=statistics.median(ours.seconds),
        unit="s",
        target=TARGETS["64"],
        note=note,
    )
    peak = Peak()
    run_ours(64, ours, peak.watch_tree)
    yield Row(
        figure="64 ranks: peak PSS of all processes",
        value=peak.value_kib / 2**20,
        unit="GiB",
        target=TARGETS["pss"],
        note=f"{peak.samples} samples",
    )


def generation_rows() -> Iterator[Row]:
    """What every generation after the first costs: ranks that run all six checks, in a warm zygote."""
    seconds = [warm_generation_s() for _ in range(ROUNDS)]
    yield Row(
        figure="4 ranks: one warm generation, all six checks",
        value=statistics.median(seconds),
        unit="s",
        target=TARGETS["generation"],
        note=f"from the order to fork to the last exit: {spread(seconds)}",
    )


def warm_generation_s() -> float:
    """One proof whose checks all need every import, so that one generation runs them all after it."""
    from cpinfra.proof import run_folder
    from cpinfra.proof.catalogue import catalogue
    from cpinfra.proof.contract import ProofRequest
    from cpinfra.proof.engine import Engine
    from cpinfra.proof.supervisor import Supervisor

    smoke = [info for info in catalogue() if info.tier == "smoke"]
    needs = tuple(dict.fromkeys(module for info in smoke for module in info.needs))
    request = ProofRequest(
        run="benchmark",
        python=sys.executable,
        dp=1,
        cp0=2,
        cp1=2,
        device="cpu",
        gpu_uuids=(),
        checks=tuple(replace(info, needs=needs) for info in smoke),
    )
    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="cpinfra-benchmark-") as path:
        folder = run_folder.create(Path(path), os.environ)
        with Engine(request, folder, events.append) as engine:
            proof = Supervisor(engine, request).run()
        folder.close()
    passed = [name for name, result in proof.results.items() if result.outcome.value == "pass"]
    if len(passed) < 6:
        raise BenchmarkError(f"expected six checks to pass, got {', '.join(passed)}")
    return span(events, generation=1)


def span(events: Sequence[dict[str, Any]], generation: int) -> float:
    """Seconds from the order to fork to the last rank's exit."""
    own = [event for event in events if event.get("generation") == generation]
    (forked,) = (event for event in own if event["event"] == "forked")
    exits = [event["t"] for event in own if event["event"] == "exited"]
    return float(max(exits) - (forked["t"] - forked["seconds"]))


def memory_rows() -> Iterator[Row]:
    """The supervisor alone: it must stay small beside the job that it watches."""
    peak = Peak()
    run_ours(4, Ours(), peak.watch_one)
    note = f"{peak.samples} samples of VmHWM"
    value = peak.value_kib / 2**10
    yield Row(figure="supervisor: peak RSS", value=value, unit="MiB", target=TARGETS["supervisor"], note=note)


def plan_rows() -> Iterator[Row]:
    """The largest plan that anybody will ask for, as a whole process."""
    seconds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        command = [cpinfra(), "plan", "--gpus", "16384"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment())
        seconds.append(time.perf_counter() - started)
    value = statistics.median(seconds)
    figure = "`cpinfra plan --gpus 16384`"
    yield Row(figure=figure, value=value, unit="s", target=TARGETS["plan"], note=spread(seconds))


def help_rows() -> Iterator[Row]:
    """What the command line costs before it does anything."""
    sides: dict[str, list[float]] = {"ours": [], "click": []}
    commands = {"ours": [cpinfra(), "--help"], "click": [sys.executable, "-c", "import click"]}
    for _ in range(HELP_ROUNDS):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            sides[name].append(time.perf_counter() - started)
    ours, click = (1000 * statistics.median(sides[name]) for name in ("ours", "click"))
    note = f"{ours:.0f} ms / {click:.0f} ms"
    figure = "`cpinfra --help` / `python -c 'import click'`"
    yield Row(figure=figure, value=ours / click, unit="", target=TARGETS["help"], note=note)


@dataclass(slots=True)
class Peak:
    """The highest memory seen while a process runs."""

    value_kib: int = 0
    samples: int = 0

    def watch_tree(self, pid: int) -> None:
        """Sum of PSS over the process and its descendants: shared pages count once."""
        known = {pid}
        while is_alive(pid):
            known |= descendants(known)
            self._take(sum(kib(process, "smaps_rollup", "Pss:") for process in known))

    def watch_one(self, pid: int) -> None:
        """The kernel's own high-water mark of the process, read until it ends."""
        while is_alive(pid):
            self._take(kib(pid, "status", "VmHWM:"))

    def _take(self, value_kib: int) -> None:
        self.value_kib = max(self.value_kib, value_kib)
        self.samples += 1
        time.sleep(SAMPLE_S)


def is_alive(pid: int) -> bool:
    """Whether it runs; one that only waits to be reaped does not."""
    state, _ = stat_of(pid)
    return state not in ("", "Z", "X")


def stat_of(pid: int) -> tuple[str, int]:
    """(state, parent) of a process; ("", 0) when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "", 0
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def descendants(known: set[int]) -> set[int]:
    """All living processes below these, those included that were seen before their parent died."""
    parents = {int(entry.name): stat_of(int(entry.name))[1] for entry in Path("/proc").glob("[0-9]*")}
    found = {pid for pid in known if pid in parents}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def kib(pid: int, file: str, key: str) -> int:
    """One value in kB of a file under /proc; 0 for a process that has just ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(key)), 0)


def rows(only: Sequence[str], rounds: int) -> Iterator[Row]:
    """The rows asked for, each as soon as it is measured."""
    groups = {
        "4": lambda: ratio_rows(4, rounds),
        "16": lambda: ratio_rows(16, rounds),
        "64": lambda: many_rows(rounds),
        "generation": generation_rows,
        "memory": memory_rows,
        "plan": plan_rows,
        "help": help_rows,
    }
    for name in only:
        yield from groups[name]()


ROWS = ("4", "16", "64", "generation", "memory", "plan", "help")
QUICK_ROWS = ("4", "generation", "memory", "plan", "help")


def main() -> int:
    """Measure, print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"one round, of {', '.join(QUICK_ROWS)}")
    parser.add_argument("--only", action="append", choices=ROWS, metavar="ROW", help=", ".join(ROWS))
    options = parser.parse_args()
    run_script("probe.py")  # brings torch into the file cache
    only = options.only or (QUICK_ROWS if options.quick else ROWS)
    done = list(rows(only, 1 if options.quick else ROUNDS))
    host = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch')}"
    print(f"\n{host}, cpinfra {version('cpinfra')}, RES_OPTIONS='{RES_OPTIONS}'\n")
    print("| figure | measured | target | | |\n|---|---|---|---|---|")
    print("\n".join(map(str, done)))
    return 0 if all(row.met for row in done) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchmarkError as error:
        sys.exit(f"time_to_verdict: {error}")

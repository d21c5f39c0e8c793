"""One rank of a generation, from the fork to its end."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from . import device
from . import faults
from . import injection
from . import registry
from .calls import Aborted
from .calls import DoorError
from .channel import Writer
from .check_run import CheckRun
from .check_run import run_check
from .comm import Door
from .comm import Place
from .control import Control
from .control import Fired
from .exceptions import text_of
from .exceptions import traceback_of
from .ledger import Ledger
from .ledger import Pen
from .ledger import Phase
from .ledger import Stage
from .processes import die_with_parent
from .signals import STACKS_SIGNAL
from .spec import GenerationSpec

_POLL_S = 0.002


class Disagreement(RuntimeError):
    """Ranks were started with different plans."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Berth:
    """Where a rank lives: what it shares with the others and where it writes."""

    spec: GenerationSpec
    rank: int
    zygote_pid: int
    folder: Path
    """Node-local folder of the generation: `ledger`, `store`, stacks."""
    events_fd: int


def live(berth: Berth) -> int:
    """The whole life of a rank; returns its exit status.

    Nothing that goes wrong leaves here as an exception: it is reported, and the rank then stays until
    the supervisor has seen the others, since closing its groups would make innocent peers fail.
    """
    die_with_parent(berth.zygote_pid)
    _keep_to_one_cpu(berth)
    torch.set_num_threads(1)  # a child of a process that has used OpenMP hangs with more
    _open_log(berth)
    writer = Writer(berth.events_fd)
    ledger = Ledger(berth.folder / "ledger")
    pen = ledger.pen(berth.rank)
    try:
        _work(berth, writer, ledger, pen)
    except Aborted:
        return 1
    except Exception as error:  # noqa: BLE001 - the one door from an exception to a message
        traceback.print_exc()  # to this rank's log
        writer.send(_trouble(berth, error))
        _await_abort(ledger)
        return 1
    return 0


def _keep_to_one_cpu(berth: Berth) -> None:
    """Where ranks outnumber CPUs, give each one of its own to share with few.

    gloo hands every message from one thread to another; on one CPU that costs a fifth less than across
    two (docs/decisions/0006), and more parallelism than CPUs there is not.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if berth.spec.device == "cpu" and berth.spec.world > len(cpus):
        try:
            os.sched_setaffinity(0, {cpus[berth.rank % len(cpus)]})
        except OSError:
            pass  # a sandbox that forbids it costs time, nothing else


def _open_log(berth: Berth) -> None:
    """Give this rank a log and a file for its stacks of its own."""
    log = _open_for_append(Path(berth.spec.logs) / f"rank-{berth.rank}.log")
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # Line by line, so that what a rank said is in its log however it ends.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False, errors="backslashreplace")
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    stacks = (berth.folder / f"rank-{berth.rank}.stacks").open("w")
    faulthandler.enable(file=2)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")


def _open_for_append(path: Path) -> int:
    """The log in the run folder; where that is full or gone the rank runs all the same, unheard."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _work(berth: Berth, writer: Writer, ledger: Ledger, pen: Pen) -> None:
    spec = berth.spec
    planted, fired = [injection.parse(text, spec.world) for text in spec.faults], _fired(berth, writer)
    control = Control(planted, berth.rank, fired)
    pen.stage(Stage.DEVICE)
    place = device.take(spec, berth.rank)
    door = Door(_place(berth, place), ledger, pen)
    control.in_stage(Stage.DEVICE)
    pen.stage(Stage.JOINING)
    control.in_stage(Stage.JOINING)
    door.join()
    pen.stage(Stage.AGREEING)
    _agree(spec, berth.rank, ledger, pen)
    door.plant(control, [faults.data_fault(fault.name) for fault in planted if fault.is_data], fired)
    pen.stage(Stage.RUNNING)
    _run_checks(berth, door, place, writer, ledger)
    pen.stage(Stage.REPORTED)
    writer.send({"event": "reported", "generation": spec.generation, "rank": berth.rank})
    if _await_phase(ledger) is not Phase.RELEASE:
        raise Aborted
    pen.stage(Stage.LEAVING)
    control.in_stage(Stage.LEAVING)
    door.leave()
    pen.stage(Stage.LEFT)


def _place(berth: Berth, where: torch.device) -> Place:
    return Place(
        rank=berth.rank,
        world=berth.spec.world,
        backend=berth.spec.backend,
        device=where,
        store=berth.folder / "store",
        patience_s=berth.spec.patience_s,
    )


def _agree(spec: GenerationSpec, rank: int, ledger: Ledger, pen: Pen) -> None:
    """Wait until every rank has shown the digest of its plan, and compare.

    Raises:
        Disagreement: some ranks hold another plan; names them.
    """
    pen.publish_digest(spec.digest())
    deadline = time.monotonic() + spec.patience_s
    while True:
        digests = [ledger.digest(other) for other in range(spec.world)]
        missing = [other for other, digest in enumerate(digests) if digest == bytes(32)]
        if not missing:
            break
        if ledger.phase is Phase.ABORT:
            raise Aborted
        if time.monotonic() > deadline:
            raise Disagreement(f"no plan digest from ranks {missing} within {spec.patience_s:.0f} s")
        time.sleep(_POLL_S)
    others = [other for other, digest in enumerate(digests) if digest != digests[rank]]
    if others:
        raise Disagreement(f"rank {rank} and ranks {others} were started with different plans")


def _fired(berth: Berth, writer: Writer) -> Fired:
    """What a fault tells when it acts: it is heard once for each check."""
    told: set[tuple[str, str]] = set()

    def fired(fault: str, check: str) -> None:
        if (fault, check) not in told:
            told.add((fault, check))
            where = {"generation": berth.spec.generation, "rank": berth.rank, "check": check}
            writer.send({"event": "fired", "fault": fault, **where, "at_s": time.monotonic()})

    return fired


def _run_checks(berth: Berth, door: Door, where: torch.device, writer: Writer, ledger: Ledger) -> None:
    """Run the checks in the plan's order; after one that breaks the group, wait to be ended."""
    spec = berth.spec
    checks = registry.load(spec.checks)
    for name in spec.checks:
        run = CheckRun(
            rank=berth.rank,
            world=spec.world,
            dp=spec.dp,
            cp0=spec.cp0,
            cp1=spec.cp1,
            device=where,
            backend=spec.backend,
            door=door,
            check=checks[name],
            salt=spec.salt,
        )
        answer = run_check(run, partial(door.at, name))
        writer.send({"event": "answer", "generation": spec.generation, **answer, "calls": door.history})
        if answer["broken"]:
            _await_abort(ledger)
            raise Aborted


def _await_phase(ledger: Ledger) -> Phase:
    """Wait, asleep, until the supervisor releases the generation or ends it; returns which.

    Without a clock of its own: a supervisor that is suspended for an hour must not come back to ranks that
    have gone. What bounds it is the zygote, which dies with the supervisor, and this process with it.
    """
    while (phase := ledger.phase) is Phase.RUN:
        time.sleep(_POLL_S)
    return phase


def _await_abort(ledger: Ledger) -> None:
    """Stay until the supervisor ends the generation, after a release too: it must see who raised what."""
    while ledger.phase is not Phase.ABORT:
        time.sleep(_POLL_S)


def _trouble(berth: Berth, error: Exception) -> dict[str, object]:
    """An exception outside any check: of torch inside the door, of the device, or of our own code."""
    return {
        "event": "trouble",
        "generation": berth.spec.generation,
        "rank": berth.rank,
        "kind": _kind_of(error),
        "type": type(error).__name__,
        "text": text_of(error),
        "traceback": traceback_of(error),
    }


def _kind_of(error: Exception) -> str:
    if device.is_at_fault(error.__cause__ or error):
        return "device"
    return "door" if isinstance(error, DoorError) else "ours"

"""The self-test: plants every fault, one after the other, and looks whether it is noticed and blamed right.

One engine serves it all. A data twin is planted in all checks at once that declare it; a control twin on one
check by itself, since it may end its generation.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from ..outcome import Finding
from ..outcome import Outcome
from ..worker.injection import CONTROL_TWINS
from ..worker.injection import DATA_TWINS
from ..worker.injection import STAGE_TWINS
from .catalogue import CheckInfo
from .contract import Proof
from .contract import ProofRequest
from .detection import Control
from .detection import Row
from .detection import control_of
from .detection import false_alarms
from .detection import not_applicable
from .detection import rows_of
from .detection import troubles
from .engine import Engine
from .supervisor import Supervisor

FAMILIES = ("collective", "p2p", "dtensor")
"""Twins of calls are planted on the first check of each that fits the mesh."""
_DELAY_S = 0.7
"""Of ranks that the CPUs carry well: longer than what counts as slow, shorter than any deadline."""
_LOUDER = (2, 4)
"""Beside other programs the clock by which ranks are late and overdue runs slower: a delay that stays within
what counts as slow is then made this many times as long, and is as far from any deadline as before."""
_DELAYED_CALL = 6
"""Late enough that it is known how long the operation takes."""

Misfit = tuple[CheckInfo, str]
"""A check on which no fault can be planted, and why: it cannot run on the mesh, or does not pass."""
Prove = Callable[[ProofRequest], Proof]


@dataclass(frozen=True, kw_only=True, slots=True)
class Planting:
    """One fault, planted in one proof."""

    twin: str
    fault: str
    """As `--inject` spells it."""
    checks: tuple[CheckInfo, ...]
    rank: int | None
    """On which rank; None for a data twin."""
    louder: tuple[str, ...] = ()
    """Planted one after the other for as long as nobody notices."""

    @property
    def in_stage(self) -> bool:
        """Whether it acts outside of any check."""
        return self.twin in STAGE_TWINS


@dataclass(kw_only=True, slots=True)
class Tested:
    """What a self-test has found out so far."""

    control: Control | None = None
    """The run without a fault; None where it came to no end."""
    rows: list[Row] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    """What was told although no fault does it, of whichever run."""
    findings: list[Finding] = field(default_factory=list)
    """What blocks and befell ranks, of each kind the first: errors of ours, devices that failed."""
    proof: Proof | None = None
    """The last one: what it knows of the interpreter holds for all."""
    interrupted: str = ""
    """Name of the signal that ended it early."""
    finished: bool = False
    """Whether every row is there."""

    @property
    def misses(self) -> list[Row]:
        """Twins that did not act, were not noticed, or were told as something else."""
        return [row for row in self.rows if row.missed]

    @property
    def right(self) -> list[Row]:
        """Twins of which all was told as it must be."""
        return [row for row in self.rows if row.right]

    @property
    def untold(self) -> list[Row]:
        """Twins of which it is not known whether they would be told."""
        return [row for row in self.rows if row.status == "unknown"]

    def note(self, findings: Sequence[Finding]) -> None:
        """Keep what blocks; what befalls one run after the other is told once."""
        for finding in findings:
            if finding.id not in {one.id for one in self.findings}:
                self.findings.append(finding)


class SelfTest:
    """One self-test on an engine that has been entered."""

    def __init__(
        self,
        engine: Engine,
        request: ProofRequest,
        misfits: Sequence[Misfit],
        twins: Collection[str],
        tested: Tested,
    ) -> None:
        """Start nothing yet.

        Args:
            engine: where the ranks come from.
            request: the clean run: all checks that fit the mesh.
            misfits: those that do not.
            twins: names of the faults that are planted; of no other there is a row.
            tested: takes what is found out, as it is.
        """
        self._engine = engine
        self._request = request
        self._misfits = list(misfits)
        self._twins = twins
        self._tested = tested

    def run(self) -> None:
        """The clean run first, then every fault; never raises for what a machine or a rank can do.

        Faults are planted on checks that passed the clean run: of others nothing could be told. Where none
        did, that is all.
        """
        clean = self._prove(self._request)
        if clean is None:
            return
        control = control_of(clean, self._engine.findings)
        self._tested.control = control
        self._tested.false_alarms += control.false_alarms
        self._tested.note(control.troubles)
        self._engine.emit("control", **control.facts())
        able, unable = self._sorted_by_ability(clean, control)
        if control.unpassed and not able:
            return
        for planting in plantings(able, self._request.world, self._engine.budgets.load):
            if planting.twin in self._twins and not self._plant(planting):
                return
        self._tested.rows += (row for row in unplanted(able, unable) if row.twin in self._twins)
        self._tested.finished = True

    def _sorted_by_ability(self, clean: Proof, control: Control) -> tuple[list[CheckInfo], list[Misfit]]:
        """Checks that passed, and those that have nothing to run here or do not pass, with the reason."""
        why = {name: f"It does not pass without a fault: {said}" for name, said in control.unpassed.items()}
        for name, result in clean.results.items():
            if result.outcome is Outcome.SKIP:
                why[name] = result.reason
        able = [check for check in self._request.checks if check.id not in why]
        unable = [(check, why[check.id]) for check in self._request.checks if check.id in why]
        return able, [*self._misfits, *unable]

    def _plant(self, planting: Planting) -> bool:
        """One fault; whether another may follow."""
        rows: list[Row] = []
        for fault in (planting.fault, *planting.louder):
            proof = self._prove(replace(self._request, checks=planting.checks, faults=(fault,)))
            if proof is None:
                return False
            self._tested.false_alarms += false_alarms(planting.twin, proof, self._engine.findings)
            self._tested.note(troubles(proof, self._engine.findings))
            rows = rows_of(planting.twin, fault, proof, checks=_checks_of(planting), rank=planting.rank)
            if all(row.detected for row in rows):
                break
        for row in rows:
            self._tested.rows.append(row)
            self._engine.emit("twin", **row.facts())
        return True

    def _prove(self, request: ProofRequest) -> Proof | None:
        """The proof; None where it says nothing, as it was interrupted or the engine broke."""
        supervisor = Supervisor(self._engine, request)
        self._tested.proof = supervisor.proof
        proof = supervisor.run()
        self._tested.interrupted = proof.interrupted
        return None if proof.interrupted or self._engine.obstacle is not None else proof


def _checks_of(planting: Planting) -> Sequence[str | None]:
    return [None] if planting.in_stage else [check.id for check in planting.checks]


def plantings(checks: Sequence[CheckInfo], world: int, load: float) -> Iterator[Planting]:
    """Every fault that can act on these checks, in the order in which they are planted.

    Args:
        checks: those that run on this mesh.
        world: number of ranks.
        load: how many times what a CPU carries well they are; 1 at least.
    """
    for twin in DATA_TWINS:
        declaring = tuple(check for check in checks if twin in check.twins)
        if declaring:
            yield Planting(twin=twin, fault=twin, checks=declaring, rank=None)
    rank = 1 if world == 2 else world - 2
    chosen = _by_family(checks)
    for twin in CONTROL_TWINS:
        hosts = list(checks[:1]) if twin in STAGE_TWINS else list(chosen.values())
        louder = [spelled(twin, rank, times * load) for times in _LOUDER if twin == "delay"]
        for check in hosts:
            fault = spelled(twin, rank, load)
            yield Planting(twin=twin, fault=fault, checks=(check,), rank=rank, louder=tuple(louder))


def unplanted(checks: Sequence[CheckInfo], misfits: Sequence[Misfit]) -> Iterator[Row]:
    """Rows of what no fault can be planted in: why not."""
    for twin in DATA_TWINS:
        immune = [(check, check.immune[twin]) for check in checks if twin not in check.twins]
        for check, reason in [*immune, *misfits]:
            yield not_applicable(twin, check.id, reason)
    there = _by_family(checks)
    missing = _by_family([check for check, _ in misfits])
    reasons = {check.id: reason for check, reason in misfits}
    for twin in CONTROL_TWINS:
        for family, check in missing.items():
            if twin not in STAGE_TWINS and family not in there:
                yield not_applicable(twin, check.id, reasons[check.id])


def spelled(twin: str, rank: int, load: float) -> str:
    """A control twin on a rank, as `--inject` spells it; a delay as long as this load asks for."""
    fault = CONTROL_TWINS[twin].replace("RANK", str(rank))
    if twin == "delay":
        return f"{fault.replace('SECONDS', f'{_DELAY_S * load:g}')}@{_DELAYED_CALL}"
    return fault


def _by_family(checks: Sequence[CheckInfo]) -> dict[str, CheckInfo]:
    """The first check of each family, in the order of `FAMILIES`."""
    first: dict[str, CheckInfo] = {}
    for check in checks:
        first.setdefault(check.file, check)
    return {family: first[family] for family in FAMILIES if family in first}

"""The self-test: its table of expectations is whole, and a row is right only where all of it is."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import engine
from cpinfra.cli import cli
from cpinfra.cli import detections
from cpinfra.cli.exit_codes import SELFTEST
from cpinfra.cli.lines import wrapped
from cpinfra.judging import selftest as judging
from cpinfra.mesh import UsageProblem
from cpinfra.node.selftest import SelfTestJob
from cpinfra.outcome import CheckResult
from cpinfra.outcome import ExitCode
from cpinfra.outcome import Finding
from cpinfra.outcome import Outcome
from cpinfra.outcome import Severity
from cpinfra.planning import settle
from cpinfra.planning.asked import SelfTestRequest
from cpinfra.planning.settle import Settled
from cpinfra.proof import deadlines
from cpinfra.proof import detection
from cpinfra.proof import faults
from cpinfra.proof import results
from cpinfra.proof import run_folder
from cpinfra.proof import selftest
from cpinfra.proof.catalogue import CheckInfo
from cpinfra.proof.catalogue import catalogue
from cpinfra.proof.contract import Proof
from cpinfra.proof.contract import ProofRequest
from cpinfra.proof.detection import Row
from cpinfra.proof.engine import Engine
from cpinfra.proof.expectations import EXPECTED
from cpinfra.proof.expectations import Told
from cpinfra.proof.hang import REMEDIES
from cpinfra.proof.hang import Culprit
from cpinfra.proof.hang import Hang
from cpinfra.proof.slowness import Slow
from cpinfra.record.summary import summary
from cpinfra.worker.injection import CONTROL_TWINS
from cpinfra.worker.injection import DATA_TWINS
from cpinfra.worker.injection import STAGE_TWINS
from cpinfra.worker.injection import parse

CHECK = "p2p.ring"
RANK = 2
MESHES = {2: (2, 2, 1), 3: (3, 3, 1), 4: (4, 2, 2), 9: (9, 3, 3)}
"""By world size: it, cp0 and cp1."""


def fitted(world: int) -> tuple[list[CheckInfo], list[selftest.Misfit]]:
    """The catalogue on a mesh: what fits, and what does not."""
    size, cp0, cp1 = MESHES[world]
    obstacles = [(check, check.obstacle(world=size, cp0=cp0, cp1=cp1)) for check in catalogue()]
    fits = [check for check, obstacle in obstacles if obstacle is None]
    return fits, [(check, obstacle.reason) for check, obstacle in obstacles if obstacle is not None]


def planned(world: int) -> list[tuple[str, str | None]]:
    """(twin, check) of every row that a self-test makes."""
    fits, misfits = fitted(world)
    planted = [
        (planting.twin, None if planting.in_stage else check.id)
        for planting in selftest.plantings(fits, world, 1.0)
        for check in planting.checks
    ]
    return [*planted, *((row.twin, row.check) for row in selftest.unplanted(fits, misfits))]


# ---------------------------------------------------------------------------- the table is complete


def test_every_twin_has_an_expectation() -> None:
    """A twin that is added without saying what must become of it fails here; so does one that is gone.

    No twin may end in `diverged`, which says that what is kept does not tell what happened.
    """
    assert set(EXPECTED) == {*DATA_TWINS, *CONTROL_TWINS}
    assert {one.hang for one in EXPECTED.values()} - {None} == set(REMEDIES) - {"diverged"}


@pytest.mark.parametrize("world", MESHES)
def test_every_check_and_data_twin_has_one_row(world: int) -> None:
    """Planted, or n/a with a reason: on every mesh, none twice."""
    rows = [row for row in planned(world) if row[0] in DATA_TWINS]

    assert sorted(rows) == sorted((twin, check.id) for twin in DATA_TWINS for check in catalogue())


@pytest.mark.parametrize("world", MESHES)
def test_every_control_twin_has_its_rows(world: int) -> None:
    """On one check of each family, or once where it acts outside of the checks."""
    rows = [row for row in planned(world) if row[0] in CONTROL_TWINS]
    dtensor = "dtensor.roundtrip" if world in (4, 9) else "dtensor.roundtrip_1d"
    hosts = ["collective.all_reduce", CHECK, dtensor]
    calls = [(twin, check) for twin in CONTROL_TWINS if twin not in STAGE_TWINS for check in hosts]

    assert set(rows) == {*calls, *((twin, None) for twin in STAGE_TWINS)}
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("world", MESHES)
def test_every_fault_is_one_that_can_be_planted(world: int) -> None:
    """As `--inject` takes it; never on rank 0, which is the one that everything else names first."""
    fits, _ = fitted(world)
    for planting in selftest.plantings(fits, world, 1.0):
        for text in (planting.fault, *planting.louder):
            fault = parse(text, world)
            assert (fault.name, fault.rank) == (planting.twin, planting.rank)
        assert planting.rank != 0


def test_what_cannot_be_planted_says_why() -> None:
    """A reason for each; where no check of a family fits, its control twins say it too."""
    fits, misfits = fitted(2)
    ring = next(check for check in fits if check.id == CHECK)
    grid = next(misfit for misfit in misfits if misfit[0].id == "dtensor.roundtrip")
    rows = list(selftest.unplanted([ring], [grid]))

    assert [row for row in rows if not row.not_applicable] == []
    assert {row.twin for row in rows if row.check == "dtensor.roundtrip"} == {
        *DATA_TWINS,
        *(twin for twin in CONTROL_TWINS if twin not in STAGE_TWINS),
    }


# --------------------------------------------------------------------------------- judging one row


def result(outcome: Outcome, check: str = CHECK, reason: str = "why", **evidence: Any) -> CheckResult:
    """What a check said."""
    words = ("", "") if outcome is Outcome.PASS else (reason, "do this")
    return CheckResult(
        id=check,
        tier="smoke",
        run="main",
        outcome=outcome,
        reason=words[0],
        remedy=words[1],
        evidence=evidence,
    )


def hang(kind: str, *ranks: int, check: str | None = CHECK) -> Hang:
    """A hang for which these ranks are blamed."""
    words = dict.fromkeys(("operation", "group", "site", "expected", "got"), "x")
    culprits = tuple(Culprit(rank=rank, kind=kind, **words) for rank in ranks)
    return Hang(
        check=check, kind=kind, culprits=culprits, waiting_ranks=(0,), stacks={}, seconds_to_verdict=0.5
    )


def slow(rank: int) -> Slow:
    """A rank that came late."""
    return Slow(
        rank=rank,
        check=CHECK,
        operation="exchange",
        group="world",
        site="x:1",
        late_s=0.7,
        others_waited_s=0.7,
        usual_s=0.01,
    )


def proof(
    fault: str,
    outcome: Outcome,
    *,
    hangs: Sequence[Hang] = (),
    slows: Sequence[Slow] = (),
    where: str = CHECK,
    **evidence: Any,
) -> Proof:
    """One in which a fault acted at 10.0 s and was told at 11.5 s."""
    return Proof(
        results={CHECK: result(outcome, **evidence)},
        hangs=list(hangs),
        slows=list(slows),
        fired={fault: {where: 10.0}},
        told_at_s={where: 11.5},
    )


def row_of(twin: str, made: Proof, check: str | None = CHECK) -> Row:
    """The row of one twin."""
    rank = None if twin in DATA_TWINS else RANK
    (row,) = detection.rows_of(twin, twin, made, checks=[check], rank=rank)
    return row


class TestRow:
    """A row is right only where the twin acted and all was told as it must be."""

    @pytest.mark.parametrize("twin", [twin for twin in CONTROL_TWINS if EXPECTED[twin].hang])
    def test_a_hang_of_the_right_kind_and_rank(self, twin: str) -> None:
        """Right, with the seconds from the fault to the word."""
        kind, check = EXPECTED[twin].hang, None if twin in STAGE_TWINS else CHECK
        assert kind is not None
        told = hang(kind, RANK, check=check)
        row = row_of(twin, proof(twin, EXPECTED[twin].outcome, hangs=[told], where=check or ""), check)

        assert row.right
        assert (row.culprit_right, row.kind_right, row.seconds) == (True, True, 1.5)

    @pytest.mark.parametrize(
        ("told", "culprit_right", "kind_right"),
        [
            ([hang("process-died", 1)], False, True),
            ([hang("process-died", 1, RANK)], False, True),
            ([hang("process-died")], False, True),
            ([hang("process-stopped", RANK)], True, False),
            ([hang("process-died", RANK), hang("never-entered", 1)], False, False),
            ([hang("process-died", RANK), hang("process-died", RANK)], True, False),
            ([hang("process-died", RANK, check=None)], True, False),
            ([hang("process-died", RANK, check="a.b")], True, False),
        ],
    )
    def test_a_hang_that_blames_wrong(self, told: list[Hang], culprit_right: bool, kind_right: bool) -> None:
        """Another rank, one more, none, another kind, one hang more, elsewhere: noticed, and yet a miss."""
        row = row_of("kill", proof("kill", Outcome.FAIL, hangs=told))

        assert row.missed
        assert (row.detected, row.culprit_right, row.kind_right) == (True, culprit_right, kind_right)

    def test_nothing_was_told(self) -> None:
        """A check that passes beside a fault."""
        row = row_of("shifted", proof("shifted", Outcome.PASS))

        assert row.missed
        assert (row.fired, row.detected, row.culprit_right) == (True, False, None)
        assert row.got == Told(outcome="pass", kind=None, ranks=(), text=f"no hang, {CHECK} pass")

    def test_wrong_data(self) -> None:
        """Fails, and nobody is blamed, as every rank is at it."""
        row = row_of("shifted", proof("shifted", Outcome.FAIL))

        assert row.right
        assert (row.culprit_right, row.kind_right) == (None, None)
        assert row.expected == Told(outcome="fail", kind=None, ranks=(), text=f"no hang, {CHECK} fail")

    @pytest.mark.parametrize("twin", CONTROL_TWINS)
    def test_what_is_expected_of_a_rank(self, twin: str) -> None:
        """Its kind and itself; the outcome where a check is judged, and the same in words."""
        check = None if twin in STAGE_TWINS else CHECK
        told = row_of(twin, proof(twin, Outcome.PASS), check).expected
        kind = {"delay": "slow", "raise": None}.get(twin, EXPECTED[twin].hang)

        assert told is not None
        assert (told.kind, told.ranks) == (kind, (RANK,))
        assert told.outcome == (EXPECTED[twin].outcome.value if check else None)
        assert f"rank {RANK}" in told.text
        assert ("every check pass" in told.text) == (check is None)

    def test_what_was_told(self) -> None:
        """Kind, outcome and ranks of a hang, of two, of a late rank, of ranks that raised."""
        two = [hang("process-died", 3), hang("never-entered", 1)]
        rows = [
            row_of("kill", proof("kill", Outcome.FAIL, hangs=two)),
            row_of("delay", proof("delay", Outcome.PASS, slows=[slow(0)])),
            row_of("raise", proof("raise", Outcome.FAIL, errors=[{"ranks": [2, 0]}])),
        ]

        assert [(row.got.outcome, row.got.kind, row.got.ranks) for row in rows if row.got is not None] == [
            ("fail", "process-died", (1, 3)),
            ("pass", "slow", (0,)),
            ("fail", None, (0, 2)),
        ]

    def test_a_hang_is_no_word_on_wrong_data(self) -> None:
        """A check that fails by a hang has not seen what arrived."""
        row = row_of("shifted", proof("shifted", Outcome.FAIL, hangs=[hang("never-entered", 1)]))

        assert (row.missed, row.detected) == (True, False)

    def test_could_not_tell_is_no_detection(self) -> None:
        """Unknown is not fail."""
        assert row_of("shifted", proof("shifted", Outcome.UNKNOWN)).missed

    def test_a_twin_that_did_not_act_is_a_miss(self) -> None:
        """Whatever was told; also where it acted in another check."""
        never = proof("kill", Outcome.FAIL, hangs=[hang("process-died", RANK)])
        never.fired.clear()
        elsewhere = proof("shifted", Outcome.FAIL, where="collective.all_reduce")

        for row in (row_of("kill", never), row_of("shifted", elsewhere)):
            assert row.missed
            assert (row.detected, row.fired, row.seconds) == (True, False, None)

    def test_delay(self) -> None:
        """Slow, by its rank, and the check passes; a hang instead, or another rank, is a miss."""
        assert row_of("delay", proof("delay", Outcome.PASS, slows=[slow(RANK)])).right
        assert row_of("delay", proof("delay", Outcome.PASS, slows=[slow(0)])).missed
        assert row_of("delay", proof("delay", Outcome.PASS)).missed
        elsewhere = replace(slow(RANK), check="a.b")
        assert row_of("delay", proof("delay", Outcome.PASS, slows=[elsewhere])).missed
        hung = row_of("delay", proof("delay", Outcome.FAIL, hangs=[hang("never-entered", RANK)]))
        assert (hung.missed, hung.detected, hung.kind_right) == (True, True, False)

    def test_raise(self) -> None:
        """Fails without a hang, by the rank that raised and no other."""
        error = {"ranks": [RANK], "type": "InjectedError"}
        made = proof("raise", Outcome.FAIL, errors=[error])

        assert row_of("raise", made).right
        assert row_of("raise", proof("raise", Outcome.FAIL, errors=[{"ranks": [0, RANK]}])).missed
        made.hangs.append(hang("never-entered", RANK))
        assert row_of("raise", made).missed

    def test_a_late_rank_beside_the_fault(self) -> None:
        """Told as slow though nothing was delayed: one word too many."""
        dead = [hang("process-died", RANK)]
        row = row_of("kill", proof("kill", Outcome.FAIL, hangs=dead, slows=[slow(0)]))

        assert (row.missed, row.culprit_right, row.kind_right) == (True, True, False)


DOOR = {"kind": "door", "type": "DoorError", "text": "no route", "traceback": "x"}
OURS = {"ranks": [1], "type": "KeyError", "text": "'ours'"}


class TestUnknown:
    """What keeps a fault from being told, and is no word on whether it would be: no miss."""

    def test_ranks_that_cannot_join(self) -> None:
        """A row for each check, with the reason of each; nobody is blamed."""
        ring = next(check for check in catalogue() if check.id == CHECK)
        first = results.troubled(ring, "main", {rank: {"rank": rank, **DOOR} for rank in range(4)})
        made = Proof(results={CHECK: first, "a.b": result(Outcome.UNKNOWN, "a.b", "not run: no route")})
        rows = detection.rows_of("raise", "raise:2", made, checks=[CHECK, "a.b"], rank=RANK)

        assert [(row.status, row.untold) for row in rows] == [
            ("unknown", "ranks 0, 1, 2, 3: DoorError: no route"),
            ("unknown", "not run: no route"),
        ]
        assert [row.got.ranks for row in rows if row.got is not None] == [(0, 1, 2, 3), ()]

    @pytest.mark.parametrize(
        ("outcome", "error", "status"),
        [
            (Outcome.UNKNOWN, OURS, "unknown"),
            (Outcome.FAIL, OURS, "missed"),
            (Outcome.UNKNOWN, {**OURS, "type": "InjectedError"}, "missed"),
        ],
    )
    def test_an_exception_in_a_check(self, outcome: Outcome, error: dict[str, Any], status: str) -> None:
        """One of ours or of a device, by which a check is unknown; not the planted one, nor torch's."""
        row = row_of("kill", proof("kill", outcome, errors=[error]))

        assert (row.status, row.missed) == (status, status == "missed")

    @pytest.mark.parametrize(
        ("finding", "status"),
        [("cpinfra-bug", "unknown"), ("device-trouble", "unknown"), ("teardown-raised", "missed")],
    )
    def test_a_finding_beside_it(self, finding: str, status: str) -> None:
        """An error of ours when the checks were through; torch that raises there may be what was missed."""
        made = proof("stall-teardown", Outcome.PASS, where="")
        made.findings.append(replace(TestControl.BLOCKING, id=finding))

        assert row_of("stall-teardown", made, None).status == status
        assert detection.false_alarms("stall-teardown", made, []) == []
        assert [one.id for one in detection.troubles(made, [])] == [finding]

    def test_what_is_told_right_all_the_same(self) -> None:
        """Stays right, with an error of ours beside it."""
        made = proof("kill", Outcome.FAIL, hangs=[hang("process-died", RANK)])
        made.findings.append(replace(TestControl.BLOCKING, id="cpinfra-bug"))

        assert row_of("kill", made).status == "right"


class TestControl:
    """The run without a fault: a word is one too many where every check passed."""

    WARNING = Finding(id="w", severity=Severity.WARNING, what="x", got="y", expected="z", remedy="r")
    BLOCKING = replace(WARNING, id="b", severity=Severity.BLOCKING)

    def test_clean(self) -> None:
        """What is known of the interpreter is no alarm, nor is an operation that the backend lacks."""
        made = Proof(
            results={CHECK: result(Outcome.PASS), "a.b": result(Outcome.SKIP, "a.b")}, findings=[self.WARNING]
        )

        assert detection.control_of(made, [self.WARNING]).clean

    @pytest.mark.parametrize(
        "made",
        [
            Proof(results={CHECK: result(Outcome.PASS)}, hangs=[hang("process-died", 1)]),
            Proof(results={CHECK: result(Outcome.PASS)}, findings=[WARNING]),
        ],
    )
    def test_false_alarms(self, made: Proof) -> None:
        """A hang, or a finding such as `slow`, though every check passed."""
        control = detection.control_of(made, [])

        assert (len(control.false_alarms), control.clean, control.unpassed) == (1, False, {})

    @pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.UNKNOWN])
    def test_a_check_that_does_not_pass(self, outcome: Outcome) -> None:
        """Is no false alarm, nor is what is told beside it: a sick machine does the same."""
        made = Proof(
            results={CHECK: result(outcome), "a.b": result(Outcome.PASS, "a.b")},
            hangs=[hang("process-died", 1)] * 2,
            findings=[self.WARNING],
        )
        control = detection.control_of(made, [])

        assert (control.false_alarms, control.clean) == ([], False)
        assert control.unpassed == {CHECK: f"{outcome.value}: why"}
        assert [told.partition(":")[0] for told in control.beside] == ["process-died", "w"]

    def test_what_blocks(self) -> None:
        """Is no false alarm either, and yet not clean."""
        control = detection.control_of(
            Proof(results={CHECK: result(Outcome.PASS)}, findings=[self.BLOCKING]), []
        )

        assert (control.false_alarms, control.clean, control.troubles) == ([], False, [self.BLOCKING])

    def test_a_hang_beside_wrong_data(self) -> None:
        """A fault in data makes nobody hang; one in conduct may."""
        made = proof("shifted", Outcome.FAIL, hangs=[hang("process-died", 1)])

        assert len(detection.false_alarms("shifted", made, [])) == 1
        assert detection.false_alarms("kill", made, []) == []

    @pytest.mark.parametrize("twin", ["shifted", "kill", "delay"])
    def test_findings_beside_a_fault(self, twin: str) -> None:
        """Each is an alarm, but for those about the interpreter and about the fault, which a row tells."""
        known = replace(self.WARNING, id="torch-untested")
        of_fault = replace(self.WARNING, id="fault-not-caught")
        late = replace(self.WARNING, id="slow")
        made = Proof(findings=[known, of_fault, late, self.WARNING])

        told = [alarm.partition(": ")[2] for alarm in detection.false_alarms(twin, made, [known])]
        assert told == (["w: y"] if twin == "delay" else ["slow: y", "w: y"])


def found_out(
    folder: Path, checks: Sequence[CheckInfo], twins: Sequence[str], prove: Any, patch: pytest.MonkeyPatch
) -> selftest.Tested:
    """A self-test on four ranks whose proofs are these."""
    clean = ProofRequest(
        run="main", python="p", dp=1, cp0=2, cp1=2, device="cpu", gpu_uuids=(), checks=tuple(checks)
    )
    patch.setattr(selftest.SelfTest, "_prove", lambda _, request: prove(request))
    tested, home = selftest.Tested(), run_folder.create(folder, {})
    whole = Engine(clean, home, lambda _: None)
    patch.setattr(whole, "budgets", replace(whole.budgets, load=1.0))
    selftest.SelfTest(whole, clean, [], twins, tested).run()
    home.close()
    return tested


class TestOnWhatPassed:
    """Faults are planted on checks that pass without one."""

    FITS, _ = fitted(4)

    def planted(
        self, outcomes: dict[str, Outcome], folder: Path, patch: pytest.MonkeyPatch
    ) -> tuple[selftest.Tested, list[list[str]]]:
        """What was found out, and the checks of each proof but the clean one's; others than these pass."""
        asked: list[list[str]] = []

        def prove(request: ProofRequest) -> Proof:
            asked.append([check.id for check in request.checks])
            fault = "".join(request.faults)
            said = {name: Outcome.FAIL if fault else outcomes.get(name, Outcome.PASS) for name in asked[-1]}
            return Proof(
                results={name: result(one, name) for name, one in said.items()},
                fired={fault: dict.fromkeys(said, 1.0)},
            )

        return found_out(folder, self.FITS, ["shifted"], prove, patch), asked[1:]

    def test_leaves_out_what_does_not_pass(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With what it said as the reason; the others are tested to the end."""
        bad = {CHECK: Outcome.FAIL, "collective.all_gather": Outcome.UNKNOWN}
        tested, (asked,) = self.planted(bad, tmp_path, monkeypatch)

        assert set(asked).isdisjoint(bad)
        left_out = {row.check: row.not_applicable for row in tested.rows if row.not_applicable}
        assert {name: left_out[name] for name in bad} == {
            CHECK: "It does not pass without a fault: fail: why",
            "collective.all_gather": "It does not pass without a fault: unknown: why",
        }
        assert tested.finished
        assert (tested.misses, tested.false_alarms) == ([], [])

    def test_ends_where_none_passes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing is planted at all."""
        bad = dict.fromkeys((check.id for check in self.FITS), Outcome.UNKNOWN)
        tested, asked = self.planted(bad, tmp_path, monkeypatch)

        assert (asked, tested.rows, tested.finished) == ([], [], False)


class TestDelay:
    """A delay that nobody notices is made longer, as beside other programs time counts for less."""

    @pytest.mark.parametrize(
        ("noticed_at", "planted"), [(0, ["0.7"]), (2, ["0.7", "1.4", "2.8"]), (9, ["0.7", "1.4", "2.8"])]
    )
    def test_until_it_is_noticed(
        self, noticed_at: int, planted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or until it is a miss; the row is that of the last."""
        requests: list[ProofRequest] = []

        def prove(request: ProofRequest) -> Proof:
            requests.append(request)
            told = [slow(RANK)] if request.faults and len(requests) - 2 == noticed_at else []
            return proof(request.faults[0] if request.faults else "", Outcome.PASS, slows=told)

        ring = next(check for check in catalogue() if check.id == CHECK)
        tested = found_out(tmp_path, [ring], ["delay"], prove, monkeypatch)

        (row,) = tested.rows
        assert [one.faults[0] for one in requests[1:]] == [f"delay:{RANK}:{text}@6" for text in planted]
        assert row.fault == f"delay:{RANK}:{planted[-1]}@6"
        assert row.right == (noticed_at < len(planted))


# -------------------------------------------------------------------------- what it all comes to


@pytest.fixture
def settled() -> Settled:
    """Two ranks on the CPU, with one check."""
    request = SelfTestRequest(ranks="2", device="cpu", python=sys.executable, only=(CHECK,))
    return settle.settle_selftest(request, {})


@pytest.fixture
def concluded(settled: Settled, tmp_path: Path) -> Any:
    """Concludes a self-test that has found out what it is told."""

    def conclude(rows: Sequence[Row], *, alarms: Sequence[str] = (), **facts: Any) -> judging.SelfTestAnswer:
        folder = run_folder.create(tmp_path, {})
        job = SelfTestJob(settled, folder, lambda _: None, lambda: None)
        bad = facts.get("unpassed", {})
        outcomes = {CHECK: "pass", **{name: said.partition(":")[0] for name, said in bad.items()}}
        job.tested.control = detection.Control(
            outcomes=outcomes, seconds=1.0, false_alarms=list(alarms), unpassed=bad
        )
        job.tested.rows, job.tested.false_alarms = list(rows), list(alarms)
        job.tested.finished, job.tested.interrupted = facts.get("finished", True), facts.get("signal", "")
        answer = judging.conclude(settled, folder, job)
        folder.close()
        return answer

    return conclude


RIGHT = row_of("shifted", proof("shifted", Outcome.FAIL))
MISSED = row_of("shifted", proof("shifted", Outcome.PASS))
UNKNOWN = row_of("kill", proof("kill", Outcome.UNKNOWN, errors=[OURS]))
NOT_PLANTED = detection.not_applicable("swapped-axes", CHECK, "it has no axes")


class TestAnswer:
    """The exit code and the report."""

    @pytest.mark.parametrize(
        ("rows", "facts", "code"),
        [
            ([RIGHT, NOT_PLANTED], {}, ExitCode.OK),
            ([RIGHT, MISSED], {}, ExitCode.FAILED),
            ([RIGHT], {"alarms": ["without a fault: x"]}, ExitCode.FAILED),
            ([RIGHT], {"finished": False}, ExitCode.NOT_PROVEN),
            ([MISSED], {"finished": False}, ExitCode.FAILED),
            ([NOT_PLANTED], {}, ExitCode.NOT_PROVEN),
            ([RIGHT, UNKNOWN], {}, ExitCode.NOT_PROVEN),
            ([MISSED, UNKNOWN], {}, ExitCode.FAILED),
            ([RIGHT], {"unpassed": {"a.b": "fail: why"}}, ExitCode.NOT_PROVEN),
            ([MISSED], {"unpassed": {"a.b": "fail: why"}}, ExitCode.FAILED),
            ([RIGHT, MISSED], {"finished": False, "signal": "SIGINT"}, ExitCode.INTERRUPTED),
        ],
    )
    def test_exit_code(self, concluded: Any, rows: list[Row], facts: dict[str, Any], code: ExitCode) -> None:
        """0 only where all was planted and told right, and something was planted at all."""
        answer = concluded(rows, **facts)

        assert answer.exit_code is code
        assert json.loads(answer.report_path.read_text()) == answer.report.document()

    def test_interrupted(self, concluded: Any) -> None:
        """The report says by what."""
        (finding,) = concluded([RIGHT], finished=False, signal="SIGINT").report.findings

        assert (finding.id, finding.got) == ("interrupted", "SIGINT")

    def test_what_does_not_pass_without_a_fault(self, concluded: Any) -> None:
        """Each check with its reason, those that say the same together, and the way to learn more."""
        bad = {"a.b": "fail: torn", "c.d": "unknown: not run", "e.f": "unknown: not run"}
        (finding,) = concluded([RIGHT], unpassed=bad).report.findings

        assert (finding.id, finding.severity) == ("clean-run-not-passed", "blocking")
        assert finding.what.startswith("3 of 4 checks do not pass here without a fault")
        assert finding.got == "a.b: fail: torn; c.d, e.f: unknown: not run"
        python = shlex.quote(sys.executable)
        assert finding.command == (
            f"cpinfra prove --device cpu --ranks 2 --python {python} --tier smoke --only {CHECK}"
        )

    def test_the_run_without_a_fault_by_itself_is_of_all_checks(self, tmp_path: Path) -> None:
        """Unless only some were chosen."""
        whole = settle.settle_selftest(SelfTestRequest(ranks="2", device="cpu", python=sys.executable), {})
        folder = run_folder.create(tmp_path, {})
        job = SelfTestJob(whole, folder, lambda _: None, lambda: None)
        outcomes = {check.id: "fail" for check in whole.selection.run}
        bad = dict.fromkeys(outcomes, "fail: torn")
        job.tested.control = detection.Control(outcomes=outcomes, seconds=1, false_alarms=[], unpassed=bad)
        (finding,) = judging.conclude(whole, folder, job).report.findings
        folder.close()

        assert finding.command.endswith(" --tier smoke")

    def test_what_could_not_be_told(self, concluded: Any) -> None:
        """Each fault with its reason, in its row too."""
        made = concluded([RIGHT, UNKNOWN, replace(UNKNOWN, check=None, untold="no room")]).report
        (finding,) = made.findings

        assert (finding.id, finding.severity) == ("fault-could-not-be-told", "blocking")
        assert finding.got == f"kill on {CHECK}: why; kill: no room"
        assert [(row.status, row.reason) for row in made.selftest] == [
            ("right", ""),
            ("unknown", "why"),
            ("unknown", "no room"),
        ]


def table(answer: judging.SelfTestAnswer) -> list[str]:
    """What is printed at the end, as plain lines."""
    return [line.text for line in detections.of(answer)]


def dtensor(row: Row) -> Row:
    """The same row of another check."""
    return replace(row, check="dtensor.roundtrip")


class TestTable:
    """What is printed at the end."""

    def test_faults_in_data_have_one_line(self, concluded: Any) -> None:
        """For all their checks, with the longest time, and no rank; those in conduct have one each."""
        slower = replace(dtensor(RIGHT), seconds=2.25)
        killed = row_of("kill", proof("kill", Outcome.FAIL, hangs=[hang("process-died", RANK)]))
        answer = concluded([RIGHT, slower, killed, dtensor(killed)])

        assert table(answer)[:6] == [
            "Faults",
            "  fault   check             result acted noticed rank kind seconds",
            "  shifted 2 of 2 checks     right  yes   yes     -    -      2.250",
            "  kill    p2p.ring          right  yes   yes     yes  yes    1.500",
            "  kill    dtensor.roundtrip right  yes   yes     yes  yes    1.500",
            "  rank, kind: whether the right ones were told",
        ]
        assert len(answer.report.selftest) == 4

    def test_what_the_columns_say(self, concluded: Any) -> None:
        """Only what is in need of it: whose time it is where a line stands for several checks."""
        no_rank = "  -: a fault in what is delivered is no rank's, and no kind of hang is told of it"
        killed = row_of("kill", proof("kill", Outcome.FAIL, hangs=[hang("process-died", RANK)]))
        seconds = "  seconds: from the fault to the word on it"

        assert table(concluded([RIGHT, killed]))[5:7] == [no_rank, seconds]
        slowest = f"{seconds}; where a line stands for several checks, on the slowest of them"
        assert table(concluded([RIGHT, dtensor(RIGHT)]))[4:6] == [no_rank, slowest]
        assert table(concluded([killed]))[4] == seconds

    def test_fits_into_80_columns(self, concluded: Any) -> None:
        """With the longest names there are, of faults and of checks."""
        rows = [
            replace(RIGHT, fault=f"{twin}:2", check=check.id, twin=twin)
            for twin in EXPECTED
            for check in catalogue()
        ]
        text = table(concluded(rows))

        rows_shown = text[1 : text.index("  rank, kind: whether the right ones were told")]
        assert len(rows_shown) > len(EXPECTED)
        assert max(map(len, rows_shown)) <= 80

    def test_what_is_not_right_stands_by_itself_and_last(self, concluded: Any) -> None:
        """With got and expected: two of them keep their own."""
        hung = row_of("kill", proof("kill", Outcome.FAIL, hangs=[hang("process-died", 1)]))
        never = replace(hung, fault="stop", twin="stop", fired=False)
        text = table(concluded([hung, MISSED, never, dtensor(RIGHT)]))

        assert [line.split()[:3] for line in text[2:12] if not line.startswith("     ")] == [
            ["shifted", "1", "of"],
            ["kill", "p2p.ring", "missed"],
            ["shifted", "p2p.ring", "missed"],
            ["stop", "p2p.ring", "missed"],
        ]
        assert "  shifted 1 of 2 checks right" in text[2]
        assert "yes     NO   yes" in text[3]
        assert text[4].startswith("      got:      process-died")
        assert text[5] == f"      expected: process-died of rank {RANK}, {CHECK} fail"
        assert text[7:9] == [
            f"      got:      no hang, {CHECK} pass",
            f"      expected: no hang, {CHECK} fail",
        ]
        assert text[10].startswith("      got:      it did not act; process-died")

    def test_what_could_not_be_told_says_why(self, concluded: Any) -> None:
        """In place of what was told; the end counts them."""
        text = table(concluded([RIGHT, UNKNOWN, replace(UNKNOWN, fault="exit", untold="no room")]))

        assert [line.split()[:3] for line in text[3:6:2]] == [
            ["kill", CHECK, "unknown"],
            ["exit", CHECK, "unknown"],
        ]
        assert (text[4], text[6]) == ("      reason:   why", "      reason:   no room")
        end = "Self-test: 1 right, 0 missed, 0 n/a, 2 unknown, 0 false alarms; without a fault: clean"
        assert end in text
        assert f"Exit code: 3 ({SELFTEST[3]})" in text

    def test_what_was_not_planted(self, concluded: Any) -> None:
        """Each reason once, with its fault and all its checks; within 100 columns where it is shown."""
        why = "It delivers no square grid of tiles, and so nothing in it could be swapped."
        axes = [
            detection.not_applicable("swapped-axes", name, why) for name in (CHECK, "dtensor.roundtrip_1d")
        ]
        why = "It delivers one tensor."
        slots = [detection.not_applicable(twin, CHECK, why) for twin in ("swapped-slots", "wrong-chunk")]
        found = wrapped(detections.of(concluded([RIGHT, *axes, *slots])), 100)
        text = [line.text for line in found]

        assert text[:4] == [
            "Not planted (n/a)",
            "  swapped-axes on p2p.ring, dtensor.roundtrip_1d: it delivers no square grid of tiles, and so",
            "      nothing in it could be swapped",
            "  swapped-slots, wrong-chunk on p2p.ring: it delivers one tensor",
        ]

    def test_the_end(self, concluded: Any) -> None:
        """Counts, false alarms, what was left out, the exit code."""
        text = table(concluded([RIGHT, MISSED, NOT_PLANTED], alarms=["without a fault: it hung"]))

        assert "      got:      without a fault: it hung" in text
        assert "Self-test: 1 right, 1 missed, 1 n/a, 1 false alarm; without a fault: not clean" in text
        (left_out,) = (line for line in text if line.startswith("Left out: "))
        assert left_out.startswith("Left out: collective.all_reduce, ")
        assert "p2p.ring" not in left_out
        assert f"Exit code: 1 ({SELFTEST[1]})" in text

    def test_the_end_where_checks_do_not_pass(self, concluded: Any) -> None:
        """It says how many; where nothing was planted, that it did not run and why."""
        bad = {"a.b": "fail: torn"}
        some = table(concluded([RIGHT], unpassed=bad))
        none = table(concluded([], unpassed={CHECK: "fail: torn", **bad}, finished=False))

        counts = "1 right, 0 missed, 0 n/a, 0 false alarms"
        assert f"Self-test: {counts}; without a fault: 1 of 2 checks do not pass" in some
        why = "2 of 2 checks do not pass here without a fault"
        assert [line for line in none if line.startswith(f"Self-test: did not run: {why}")]

    def test_what_was_not_reached(self, concluded: Any) -> None:
        """Where it ended early: how many faults and which; those that cannot act are not among them."""
        killed = row_of("kill", proof("kill", Outcome.FAIL, hangs=[hang("process-died", RANK)]))
        answer = concluded([RIGHT, killed], finished=False, signal="SIGINT")
        missing = [name for name in faults.NAMES if name not in ("shifted", "kill", "swapped-axes")]

        assert answer.report.control.not_reached == missing
        number = f"{len(missing)} faults"
        assert f"Not reached: {number}: {', '.join(missing)}" in table(answer)
        assert f"Self-test: 2 right, 0 missed, 0 n/a, {number} not reached, 0 false alarms" in summary(
            answer.report
        )
        ended = concluded([RIGHT, killed])
        assert ended.report.control.not_reached == []
        assert [
            line for line in [*table(ended), summary(ended.report)] if "not reached" in line.lower()
        ] == []

    def test_a_fault_that_was_reached_on_some_checks(self, tmp_path: Path) -> None:
        """The rest of them is not kept quiet."""
        request = SelfTestRequest(ranks="2", device="cpu", python=sys.executable, fault=("kill", "stop"))
        whole = settle.settle_selftest(request, {})
        folder = run_folder.create(tmp_path, {})
        job = SelfTestJob(whole, folder, lambda _: None, lambda: None)
        before = judging.conclude(whole, folder, job)
        outcomes = {check.id: "pass" for check in whole.selection.run}
        job.tested.control = detection.Control(outcomes=outcomes, seconds=1.0, false_alarms=[])
        job.tested.rows = [row_of("kill", proof("kill", Outcome.FAIL, hangs=[hang("process-died", RANK)]))]
        after = judging.conclude(whole, folder, job)
        folder.close()

        assert "Not reached: 2 faults: kill (on the rest of its checks), stop" in table(after)
        assert before.report.control is not None
        assert before.report.control.not_reached == ["kill", "stop"]
        assert [line for line in table(before) if line.startswith("Not reached")] == []

    def test_what_does_not_pass_is_not_to_be_reached(self, tmp_path: Path) -> None:
        """Nothing is planted on it, and another check of its family takes its place."""
        request = SelfTestRequest(ranks="2", device="cpu", python=sys.executable, fault=("kill", "stop"))
        whole = settle.settle_selftest(request, {})
        first = {check.file: check for check in reversed(whole.selection.run)}["collective"]
        able = [check for check in whole.selection.run if check != first]
        folder = run_folder.create(tmp_path, {})
        job = SelfTestJob(whole, folder, lambda _: None, lambda: None)
        outcomes = {check.id: "fail" if check == first else "pass" for check in whole.selection.run}
        job.tested.control = detection.Control(outcomes=outcomes, seconds=1.0, false_alarms=[])
        job.tested.rows = [
            row_of("kill", proof("kill", Outcome.FAIL, hangs=[hang("process-died", RANK)]), check=check.id)
            for check in {check.file: check for check in reversed(able)}.values()
        ]
        after = judging.conclude(whole, folder, job)
        folder.close()

        assert after.report.control is not None
        assert after.report.control.not_reached == ["stop"]

    def test_of_no_run(self, settled: Settled, tmp_path: Path) -> None:
        """It did not run, and why; not that nothing was missed."""
        folder = run_folder.create(tmp_path, {})
        job = SelfTestJob(settled, folder, lambda _: None, lambda: None)
        job.tested.interrupted = "SIGTERM"
        answer = judging.conclude(settled, folder, job)
        folder.close()

        assert "Self-test: did not run: the self-test was interrupted" in table(answer)
        assert summary(answer.report).startswith("Self-test: did not run: the self-test was interrupted\n")


class TestShown:
    """`cpinfra show` of its report."""

    def test_says_what_it_came_to(self, concluded: Any) -> None:
        """Counts and what was left out; neither verdict nor machine nor checks, of which it says nothing."""
        text = summary(concluded([RIGHT, NOT_PLANTED]).report)

        assert text.startswith(
            "Self-test: 1 right, 0 missed, 1 n/a, 0 false alarms; without a fault: clean\n"
        )
        assert "Left out: collective.all_reduce" in text
        assert [word for word in ("Verdict", "Machine", "0 of 0", "Not right") if word in text] == []

    def test_names_what_is_not_right(self, concluded: Any) -> None:
        """Two rows and an alarm, each with its own words."""
        hung = row_of("kill", proof("kill", Outcome.FAIL, hangs=[hang("process-died", 1)]))
        never = row_of("never-join", proof("never-join", Outcome.PASS, where="other"), None)
        text = " ".join(summary(concluded([hung, never], alarms=["it hung"]).report).split())

        assert f"- kill on {CHECK}: got process-died" in text
        assert f"expected process-died of rank {RANK}, {CHECK} fail" in text
        assert f"- never-join outside of checks: got it did not act; no hang, {CHECK} pass" in text
        assert f"expected never-joined of rank {RANK}, every check pass" in text
        assert "- false alarm: it hung" in text

    def test_is_what_show_prints(self, concluded: Any) -> None:
        """Exit code 0, also for a miss: it was shown."""
        answer = concluded([RIGHT, MISSED])
        ran = CliRunner().invoke(cli, ["show", str(answer.report_path)], prog_name="cpinfra")

        assert (ran.exit_code, ran.stdout) == (0, summary(answer.report))
        assert (
            "  - shifted on p2p.ring: got no hang, p2p.ring pass; expected no hang, p2p.ring fail"
            in ran.stdout
        )

    def test_check_refuses_it(self, concluded: Any) -> None:
        """It is no report of a build: exit code 3, and the way to one."""
        path = concluded([RIGHT]).report_path
        ran = CliRunner().invoke(cli, ["check", str(path)], prog_name="cpinfra")

        assert (ran.exit_code, ran.stdout) == (3, "")
        assert "got the report of a self-test; expected the report of a build" in ran.stderr
        assert "docs/cp_infra.json" in ran.stderr


class TestChosenFaults:
    """`--fault`."""

    def settled(self, *globs: str) -> Settled:
        """Two ranks on the CPU, all checks."""
        request = SelfTestRequest(ranks="2", device="cpu", python=sys.executable, fault=globs)
        return settle.settle_selftest(request, {})

    def test_by_name(self) -> None:
        """In the order in which they are planted; all of them where none is named."""
        assert self.settled("stall-*", "kill", "bit-flip").twins == (
            "bit-flip",
            "kill",
            "stall-init",
            "stall-inside",
            "stall-teardown",
        )
        assert self.settled().twins == (*DATA_TWINS, *CONTROL_TWINS)

    def test_rejects_what_matches_none(self) -> None:
        """With all other mistakes, and with the names there are."""
        with pytest.raises(UsageProblem) as raised:
            self.settled("kill", "nothing", "kill:2")
        assert raised.value.messages == tuple(
            f"--fault {glob!r}: matches no fault; there are: {', '.join(faults.NAMES)}"
            for glob in ("nothing", "kill:2")
        )
        ran = selftested("--fault", "nothing", "--ranks", "x")
        assert ran.exit_code == 2
        assert "2 mistakes" in ran.stderr


def selftested(*arguments: str) -> Any:
    """`cpinfra selftest` with these arguments."""
    return CliRunner().invoke(cli, ["selftest", *arguments], prog_name="cpinfra")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ranks", "1", "--device", "cpu"], "expected 2 ranks or more, got 1 on cpu"),
        (["--ranks", "x"], "--ranks 'x': expected a whole number"),
        (["--only", "nothing.*"], "--only 'nothing.*': matches no check"),
    ],
)
def test_rejects_what_makes_no_sense(arguments: list[str], says: str) -> None:
    """Exit code 2, with what is valid; nothing is started."""
    ran = selftested(*arguments)

    assert ran.exit_code == 2
    assert says in " ".join(ran.stderr.split())


def test_without_torch(tmp_path: Path) -> None:
    """Could not run: exit code 3, with a report that says why."""
    ran = selftested("--device", "cpu", "--python", "/bin/true", "--run-dir", str(tmp_path), "--json")
    made = json.loads(ran.stdout)

    assert ran.exit_code == 3
    assert (made["selftest"], made["control"]["clean"], made["runs"]) == ([], False, [])
    assert [finding["severity"] for finding in made["findings"]] == ["blocking"]
    assert json.loads((tmp_path / "report.json").read_text()) == made


NO_ROUTE = (
    "\n\ndef _lost(self):\n    raise DoorError('init_process_group', 'join', 'no route')\n\n\n"
    "Door.join = _lost\n"
)
ASLEEP = (
    "\n\n_join = Door.join\n\n\ndef _late(self):\n    import time\n"
    "    time.sleep(600 if self.rank == 1 else 0)\n    _join(self)\n\n\nDoor.join = _late\n"
)
SPOILED = (
    "\n\ndef _bug(run, trial):\n    raise KeyError('ours')\n\n\n"
    "from ..registry import _registered as _r\nimport dataclasses as _d\n"
    "_m, _c = _r['p2p.ring']\n_r['p2p.ring'] = (_m, _d.replace(_c, body=_bug))\n"
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"worker/comm.py": NO_ROUTE}, "fail: ranks 0, 1: DoorError: init_process_group (join): no route"),
        ({"worker/comm.py": ASLEEP}, "unknown: stuck-in-init: "),
        ({"worker/checks/p2p.py": SPOILED}, "unknown: ranks 0, 1: KeyError in the code of p2p.ring: 'ours'"),
    ],
    ids=["init raises", "init hangs", "a bug of ours"],
)
def test_a_machine_on_which_nothing_passes(
    changes: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No miss, no false alarm: it could not run, exit code 3, and says which checks do not pass and why."""
    monkeypatch.setitem(deadlines.JOIN_S, "cpu", 2.0)
    engine.altered_worker(monkeypatch, tmp_path, changes)
    arguments = ("--ranks", "2", "--device", "cpu", "--only", CHECK, "--python", sys.executable)
    ran = selftested(*arguments, "--run-dir", str(tmp_path / "run"), "--json")
    made = json.loads(ran.stdout)

    assert ran.exit_code == 3
    assert (made["selftest"], made["control"]["false_alarms"]) == ([], [])
    assert not made["control"]["clean"]
    (found,) = made["findings"]
    assert (found["id"], found["severity"]) == ("clean-run-not-passed", "blocking")
    assert found["got"].startswith(f"{CHECK}: {said}")
    assert found["got"].count(said.partition(": ")[2]) == 1
    assert found["command"].startswith("cpinfra prove --device cpu --ranks 2 ")
    assert "FALSE ALARM" not in ran.stderr
    assert f"these do not pass: {CHECK}" in ran.stderr


def test_a_bug_of_ours_beside_a_fault_is_no_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of that fault it is not known whether it would be told: exit code 3; another is told right."""
    spoiled = (
        "\n\n_plant = Door.plant\n\n\ndef _spoiled(self, control, data, fired):\n"
        "    if data:\n        raise KeyError('ours')\n    _plant(self, control, data, fired)\n\n\n"
        "Door.plant = _spoiled\n"
    )
    engine.altered_worker(monkeypatch, tmp_path, {"worker/comm.py": spoiled})
    arguments = ("--ranks", "2", "--device", "cpu", "--only", CHECK, "--python", sys.executable)
    faults = ("--fault", "shifted", "--fault", "kill")
    ran = selftested(*arguments, *faults, "--run-dir", str(tmp_path / "run"))
    made = json.loads((tmp_path / "run" / "report.json").read_text())

    assert ran.exit_code == 3
    assert [(row["twin"], row["status"], row["reason"]) for row in made["selftest"]] == [
        ("shifted", "unknown", "ranks 0, 1: KeyError: 'ours'"),
        ("kill", "right", ""),
    ]
    assert (made["control"]["clean"], made["control"]["false_alarms"]) == (True, [])
    assert [found["id"] for found in made["findings"]] == ["fault-could-not-be-told"]
    assert "shifted in p2p.ring: could not be told: ranks 0, 1: KeyError" in ran.stdout
    assert "MISSED" not in ran.stdout


def test_two_ranks_and_one_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fault is planted in real ranks and told right; the document alone on stdout, progress beside."""
    for budget in (deadlines.DEVICE_S, deadlines.JOIN_S, deadlines.LEAVE_S):
        monkeypatch.setitem(budget, "cpu", 2.0)  # of stages that take milliseconds on two ranks
    ran = selftested(
        *("--ranks", "2", "--device", "cpu", "--only", CHECK, "--python", sys.executable),
        *("--run-dir", str(tmp_path), "--json"),
    )
    made = json.loads(ran.stdout)
    rows = {(row["twin"], row["status"]) for row in made["selftest"]}

    assert [row for row in made["selftest"] if row["status"] == "missed"] == []
    others = [check.id for check in catalogue() if check.id != CHECK]
    assert made["control"] == {
        "clean": True,
        "outcomes": {CHECK: "pass"},
        "false_alarms": [],
        "left_out": others,
        "not_reached": [],
    }
    assert ran.exit_code == 0
    assert {twin for twin, status in rows if status == "right"} == {*EXPECTED} - {"swapped-axes"}
    assert set(made) == {"schema", "tool", "created", "software", "runs", "selftest", "control", "findings"}
    assert f"kill:1 in {CHECK}: right" in ran.stderr


def test_one_fault_on_one_check(tmp_path: Path) -> None:
    """Nothing else is planted, of nothing else is there a row, and the report says what was left out."""
    arguments = ("--ranks", "2", "--device", "cpu", "--only", CHECK, "--python", sys.executable)
    ran = selftested(*arguments, "--fault", "kill", "--run-dir", str(tmp_path))
    made = json.loads((tmp_path / "report.json").read_text())

    assert ran.exit_code == 0
    assert [(row["twin"], row["check"], row["status"]) for row in made["selftest"]] == [
        ("kill", CHECK, "right")
    ]
    assert made["selftest"][0]["expected"]["ranks"] == made["selftest"][0]["got"]["ranks"] == [1]
    assert set(made["control"]["left_out"]) == {
        *(name for name in EXPECTED if name != "kill"),
        *(check.id for check in catalogue() if check.id != CHECK),
    }
    assert "kill:1 p2p.ring right" in ran.stdout
    assert "Left out: collective.all_reduce, " in ran.stdout

"""The self-test: its table of expectations is whole, and a row is right only where all of it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cpinfra.cli import cli
from cpinfra.cli import detections
from cpinfra.judging import selftest as judging
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
from cpinfra.proof import run_folder
from cpinfra.proof import selftest
from cpinfra.proof.catalogue import CheckInfo
from cpinfra.proof.catalogue import catalogue
from cpinfra.proof.contract import Proof
from cpinfra.proof.detection import Row
from cpinfra.proof.expectations import EXPECTED
from cpinfra.proof.hang import REMEDIES
from cpinfra.proof.hang import Culprit
from cpinfra.proof.hang import Hang
from cpinfra.proof.slowness import Slow
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
    """A twin that is added without saying what must become of it fails here; so does one that is gone."""
    assert set(EXPECTED) == {*DATA_TWINS, *CONTROL_TWINS}
    assert {one.hang for one in EXPECTED.values()} - {None} == set(REMEDIES)


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
        fault = parse(planting.fault, world)
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
        ],
    )
    def test_a_hang_that_blames_wrong(self, told: list[Hang], culprit_right: bool, kind_right: bool) -> None:
        """Another rank, one more, none, another kind, one hang more: noticed, and a miss all the same."""
        row = row_of("kill", proof("kill", Outcome.FAIL, hangs=told))

        assert row.missed
        assert (row.detected, row.culprit_right, row.kind_right) == (True, culprit_right, kind_right)

    def test_nothing_was_told(self) -> None:
        """A check that passes beside a fault."""
        row = row_of("shifted", proof("shifted", Outcome.PASS))

        assert row.missed
        assert (row.fired, row.detected, row.culprit_right) == (True, False, None)
        assert row.got == f"no hang, {CHECK} pass"

    def test_wrong_data(self) -> None:
        """Fails, and nobody is blamed, as every rank is at it."""
        row = row_of("shifted", proof("shifted", Outcome.FAIL))

        assert row.right
        assert (row.culprit_right, row.expected) == (None, "outcome fail, no hang")

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


class TestControl:
    """The run without a fault, in which every word is one too many."""

    WARNING = Finding(id="w", severity=Severity.WARNING, what="x", got="y", expected="z", remedy="r")

    def test_clean(self) -> None:
        """What is known of the interpreter is no alarm, nor is an operation that the backend lacks."""
        made = Proof(
            results={CHECK: result(Outcome.PASS), "a.b": result(Outcome.SKIP, "a.b")}, findings=[self.WARNING]
        )

        assert detection.control_of(made, [self.WARNING]).false_alarms == []

    @pytest.mark.parametrize(
        "made",
        [
            Proof(results={CHECK: result(Outcome.FAIL)}),
            Proof(results={CHECK: result(Outcome.UNKNOWN)}),
            Proof(results={CHECK: result(Outcome.PASS)}, hangs=[hang("process-died", 1)]),
            Proof(results={CHECK: result(Outcome.PASS)}, findings=[WARNING]),
        ],
    )
    def test_false_alarms(self, made: Proof) -> None:
        """A check that does not pass, a hang, a finding such as `slow`."""
        assert len(detection.control_of(made, []).false_alarms) == 1

    def test_a_hang_beside_wrong_data(self) -> None:
        """A fault in data makes nobody hang; one in conduct may."""
        made = proof("shifted", Outcome.FAIL, hangs=[hang("process-died", 1)])

        assert len(detection.false_alarms("shifted", made)) == 1
        assert detection.false_alarms("kill", made) == []


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
        job.tested.control = detection.Control(outcomes={CHECK: "pass"}, seconds=1.0, false_alarms=[])
        job.tested.rows, job.tested.false_alarms = list(rows), list(alarms)
        job.tested.finished, job.tested.interrupted = facts.get("finished", True), facts.get("signal", "")
        answer = judging.conclude(settled, folder, job)
        folder.close()
        return answer

    return conclude


RIGHT = row_of("shifted", proof("shifted", Outcome.FAIL))
MISSED = row_of("shifted", proof("shifted", Outcome.PASS))
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
            ([RIGHT, MISSED], {"finished": False, "signal": "SIGINT"}, ExitCode.INTERRUPTED),
        ],
    )
    def test_exit_code(self, concluded: Any, rows: list[Row], facts: dict[str, Any], code: ExitCode) -> None:
        """0 only where all was planted and told right, and something was planted at all."""
        answer = concluded(rows, **facts)

        assert answer.exit_code is code
        assert json.loads(answer.report_path.read_text()) == answer.report.document()

    def test_table(self, concluded: Any) -> None:
        """Each row on a line; what was missed with got and expected, and each false alarm."""
        answer = concluded([RIGHT, MISSED, NOT_PLANTED], alarms=["without a fault: it hung"])
        text = "\n".join(line.text for line in detections.of(answer))

        assert "  swapped-axes  p2p.ring  n/a     it has no axes" in text
        assert "  shifted       p2p.ring  right   yes    yes       -        yes     1.500" in text
        assert "expected: outcome fail, no hang" in text
        assert "without a fault: it hung" in text
        assert "Self-test: 1 right, 1 missed, 1 false alarm(s); 1 n/a" in text
        assert "Exit code: 1" in text


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
    assert says in ran.stderr


def test_without_torch(tmp_path: Path) -> None:
    """Could not run: exit code 3, with a report that says why."""
    ran = selftested("--device", "cpu", "--python", "/bin/true", "--run-dir", str(tmp_path), "--json")
    made = json.loads(ran.stdout)

    assert ran.exit_code == 3
    assert (made["selftest"], made["control"]["clean"], made["runs"]) == ([], False, [])
    assert [finding["severity"] for finding in made["findings"]] == ["blocking"]
    assert json.loads((tmp_path / "report.json").read_text()) == made


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
    assert made["control"] == {"clean": True, "outcomes": {CHECK: "pass"}, "false_alarms": []}
    assert ran.exit_code == 0
    assert {twin for twin, status in rows if status == "right"} == {*EXPECTED} - {"swapped-axes"}
    assert set(made) == {"schema", "tool", "created", "software", "runs", "selftest", "control", "findings"}
    assert f"kill:1 in {CHECK}: right" in ran.stderr

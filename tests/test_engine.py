"""The engine end to end, with real ranks on gloo."""

from __future__ import annotations

import array
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

import engine
import processes
from cpinfra.outcome import Outcome
from cpinfra.outcome import Severity
from cpinfra.proof import catalogue
from cpinfra.proof import deadlines
from cpinfra.proof import delivery
from cpinfra.proof.environment import zygote_environment
from cpinfra.proof.startup import Startup
from cpinfra.proof.zygote import ZygoteProcess
from cpinfra.worker import node_local
from cpinfra.worker.ledger import Ledger
from cpinfra.worker.ledger import create
from cpinfra.worker.spec import GenerationSpec

ALL_PASS = {info.id: "pass" for info in catalogue.catalogue()}
ALL_REDUCE = "collective.all_reduce"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> engine.Ran:
    """One proof of four ranks without any fault."""
    return engine.prove(tmp_path_factory.mktemp("clean"))


def test_all_six_checks_pass_on_a_sound_machine(clean: engine.Ran) -> None:
    """Each check passes, every rank of the world has reported, and something was compared."""
    assert clean.outcomes() == ALL_PASS
    for result in clean.proof.results.values():
        assert result.ranks == (0, 1, 2, 3)
        assert result.evidence["comparisons"] >= 4 * 9
        assert result.evidence["elements"] > 0
        assert result.evidence["backend"] == "gloo"
    assert clean.proof.hang is None
    assert clean.proof.findings == []


def test_the_collectives_run_while_the_zygote_imports_what_dtensor_needs(clean: engine.Ran) -> None:
    """The first generation is forked before DTensor is imported, the second after."""
    forked, imported = clean.named("forked"), clean.named("imported")

    assert [event["generation"] for event in forked] == [1, 2]
    assert forked[0]["t"] < imported[0]["t"] < forked[1]["t"]


def test_ranks_that_end_well_end_with_code_zero(clean: engine.Ran) -> None:
    """All ranks of both generations close their groups and exit by themselves."""
    exits = [(event["code"], event["signal"]) for event in clean.named("exited")]

    assert exits == [(0, None)] * 8


def test_nothing_is_left_on_the_node(clean: engine.Ran) -> None:
    """The node-local folder is gone and no process with the run's cookie lives."""
    (end,) = clean.named("end")
    folders = {Path(event["folder"]).parent for event in clean.named("forked")}

    assert end["processes_left"] == []
    assert not any(folder.exists() for folder in folders)


def test_a_killed_rank_is_noticed_within_half_a_second_and_named(tmp_path: Path) -> None:
    """A death fails the check that it came in and is blamed on that rank; the other checks still run."""
    ran = engine.prove(tmp_path, faults=["kill:2"])

    (fired,), exits = (
        ran.named("fired"),
        [event for event in ran.named("exited") if event["signal"] == "SIGKILL"],
    )
    assert exits[0]["rank"] == 2
    assert exits[0]["t"] - fired["t"] < 0.5
    assert ran.outcomes() == {**ALL_PASS, ALL_REDUCE: "fail"}
    hang = ran.proof.hang
    assert hang is not None
    assert (hang.check, hang.kind, hang.culprit_ranks) == (ALL_REDUCE, "process-died", (2,))
    assert {*hang.waiting_ranks, *hang.victims} == {0, 1, 3}
    assert "rank 2: ended by SIGKILL" in ran.proof.results[ALL_REDUCE].reason


def test_the_callers_filter_of_warnings_does_not_reach_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PYTHONWARNINGS=error torch's own import fails: that would say nothing about the machine."""
    monkeypatch.setenv("PYTHONWARNINGS", "error")

    assert engine.prove(tmp_path, only=ALL_REDUCE).outcomes() == {ALL_REDUCE: "pass"}


def test_a_stopped_rank_is_named_as_stopped(tmp_path: Path) -> None:
    """A rank in state T is told from a hang, quickly, and is ended by SIGKILL like the others."""
    ran = engine.prove(tmp_path, faults=["stop:1"], only="collective.*")

    hang = ran.proof.hang
    assert hang is not None
    assert (hang.kind, hang.culprit_ranks, hang.waiting_ranks) == ("process-stopped", (1,), (0, 2, 3))
    assert hang.seconds_to_verdict < 3
    assert "1" not in hang.stacks
    assert all("all_reduce" in stack for stack in hang.stacks.values())


def test_a_rank_that_raises_is_reported_once_and_others_are_not_called_guilty(tmp_path: Path) -> None:
    """One traceback, of the rank that raised; no hang; no word of the peers that were left waiting."""
    ran = engine.prove(tmp_path, faults=["raise:3"], only="collective.*")

    result = ran.proof.results[ALL_REDUCE]
    assert result.outcome is Outcome.FAIL
    assert result.ranks == (3,)
    assert "rank 3" in result.reason
    assert "planted fault raise:3" in result.reason
    assert "rank 0" not in result.reason
    (error,) = result.evidence["errors"]
    assert error["ranks"] == [3]
    assert "InjectedError" in error["traceback"]
    assert ran.proof.hang is None
    assert set(ran.outcomes().values()) == {"fail", "pass"}


def test_two_faults_at_once_are_both_named(tmp_path: Path) -> None:
    """Two ranks that are killed at the same call are both culprits."""
    ran = engine.prove(tmp_path, faults=["kill:0", "kill:3"], only=ALL_REDUCE)

    assert ran.proof.hang is not None
    assert ran.proof.hang.culprit_ranks == (0, 3)


def test_a_stop_and_a_kill_at_once_are_both_named_each_for_its_own(tmp_path: Path) -> None:
    """The killed rank is noticed first, and does not hide the one that is stopped."""
    ran = engine.prove(tmp_path, faults=["stop:1", "kill:3"], only=ALL_REDUCE)

    hang = ran.proof.hang
    assert hang is not None
    assert hang.kind == "process-stopped"
    assert {*hang.waiting_ranks, *hang.victims} == {0, 2}
    assert {culprit.rank: culprit.kind for culprit in hang.culprits} == {
        1: "process-stopped",
        3: "process-died",
    }
    reason = ran.proof.results[ALL_REDUCE].reason
    assert reason.startswith("process-stopped: rank 1: is stopped (state T), expected all_reduce of ")
    assert "; process-died: rank 3: ended by SIGKILL, expected all_reduce of " in reason


def test_a_short_delay_is_no_fault(tmp_path: Path) -> None:
    """A rank that comes late, but within the budget, changes no outcome."""
    ran = engine.prove(tmp_path, faults=["delay:1:0.3"], only="collective.*")

    assert len(ran.named("fired")) == 1
    assert set(ran.outcomes().values()) == {"pass"}


def test_a_rank_that_stays_away_past_the_budget_is_named_with_the_line_it_is_at(tmp_path: Path) -> None:
    """The others wait in the operation; the culprit never entered it, and its stack says where it is."""
    ran = engine.prove(tmp_path, faults=["delay:0:600"], only=ALL_REDUCE, budget_s=1.0)

    hang = ran.proof.hang
    assert hang is not None
    assert (hang.kind, hang.culprit_ranks, hang.waiting_ranks) == ("never-entered", (0,), (1, 2, 3))
    assert "control.py" in hang.culprits[0].got
    assert (
        "all_reduce of int64" in hang.culprits[0].expected
        or "all_reduce of float" in hang.culprits[0].expected
    )
    assert hang.seconds_to_verdict < 5


def test_a_control_twin_fires_once_a_run(tmp_path: Path) -> None:
    """The generation that replaces a broken one is not broken again by the same fault."""
    ran = engine.prove(tmp_path, faults=["kill:1"])

    assert len(ran.named("fired")) == 1
    assert list(ran.outcomes().values()).count("fail") == 1


def test_an_error_of_ours_is_unknown_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in a check's own code says nothing about the machine: unknown, traceback, bug hint."""
    broken = "\n\ndef _bug(run, trial):\n    raise KeyError('ours')\n\n\n"
    swap = "from ..registry import _registered as _r\nimport dataclasses as _d\n"
    swap += f"_m, _c = _r['{ALL_REDUCE}']\n_r['{ALL_REDUCE}'] = (_m, _d.replace(_c, body=_bug))\n"
    engine.altered_worker(monkeypatch, tmp_path, {"worker/checks/collective.py": broken + swap})

    ran = engine.prove(tmp_path / "run", only="collective.*")

    result = ran.proof.results[ALL_REDUCE]
    assert result.outcome is Outcome.UNKNOWN
    assert "KeyError" in result.reason
    assert "bug" in result.remedy.lower()
    assert result.evidence["errors"][0]["ranks"] == [0, 1, 2, 3]
    assert ran.outcomes()["collective.all_gather"] == "pass"


def test_a_rank_that_never_joins_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the others wait in init, the one that is still at its device is the culprit."""
    late = "\n\ndef take(spec, rank):\n    import time\n    time.sleep(600 if rank == 2 else 0)\n"
    late += "    return torch.device('cpu')\n"
    engine.altered_worker(monkeypatch, tmp_path, {"worker/device.py": late})
    monkeypatch.setitem(deadlines.DEVICE_S, "cpu", 1.0)

    ran = engine.prove(tmp_path / "run", only=ALL_REDUCE)

    hang = ran.proof.hang
    assert hang is not None
    assert (hang.kind, hang.culprit_ranks, hang.check) == ("never-joined", (2,), None)
    assert ran.proof.results[ALL_REDUCE].outcome is not Outcome.PASS


def test_a_rank_that_hangs_in_teardown_fails_the_run_but_not_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passed has passed; the hang is named with no check to it."""
    stuck = "\n\ndef _leave(self):\n    import time\n    while self.rank == 1:\n        time.sleep(1)\n"
    stuck += "\n\nDoor.leave = _leave\n"
    engine.altered_worker(monkeypatch, tmp_path, {"worker/comm.py": stuck})
    monkeypatch.setitem(deadlines.LEAVE_S, "cpu", 1.0)

    ran = engine.prove(tmp_path / "run", only=ALL_REDUCE)

    hang = ran.proof.hang
    assert hang is not None
    assert (hang.kind, hang.culprit_ranks, hang.check) == ("stuck-in-teardown", (1,), None)
    assert ran.outcomes() == {ALL_REDUCE: "pass"}


def test_the_death_of_the_zygote_is_a_finding_and_leaves_nothing(tmp_path: Path) -> None:
    """What had passed stays, what had not run is unknown, and the ranks are gone with the zygote."""
    pids: list[int] = []

    def kill_the_zygote(event: dict[str, Any]) -> None:
        if event["event"] == "forked" and event["generation"] == 2:
            pids.extend(event["pids"])
            os.kill(_parent_of(event["pids"][0]), signal.SIGKILL)

    ran = engine.prove(tmp_path, on_event=kill_the_zygote)

    (finding,) = ran.proof.findings
    assert (finding.id, finding.severity) == ("zygote-died", Severity.BLOCKING)
    assert "SIGKILL" in finding.got
    assert ran.outcomes()[ALL_REDUCE] == "pass"
    assert ran.outcomes()["dtensor.roundtrip"] == "unknown"
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    (folder,) = {Path(event["folder"]).parent for event in ran.named("forked")}
    assert folder.parent in node_local.candidates()
    assert not folder.exists()


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("mesh", [(1, 3, 3), (2, 2, 2), (1, 3, 1)])
def test_other_meshes_prove_too(tmp_path: Path, mesh: tuple[int, int, int]) -> None:
    """A 3x3 grid, two replicas of 2x2, and three ranks without a square: what can run passes."""
    ran = engine.prove(tmp_path, mesh=mesh)

    assert ran.outcomes() == (ALL_PASS if mesh[1] == mesh[2] else {**ALL_PASS, "dtensor.roundtrip": "skip"})


def test_ranks_with_different_plans_refuse_to_run(tmp_path: Path) -> None:
    """The digest of the plan is compared before the first operation, and the odd rank is named."""
    from cpinfra.worker import rank

    create(tmp_path / "ledger", 2)
    ledger = Ledger(tmp_path / "ledger")
    ours, theirs = _spec(("a",)), _spec(("b",))
    ledger.pen(1).publish_digest(theirs.digest())

    with pytest.raises(rank.Disagreement, match=r"rank 0 and ranks \[1\] were started with different plans"):
        rank._agree(ours, 0, ledger, ledger.pen(0))


def _spec(checks: tuple[str, ...]) -> GenerationSpec:
    return GenerationSpec(
        generation=1,
        dp=2,
        cp0=1,
        cp1=1,
        device="cpu",
        backend="gloo",
        gpu_uuids=(),
        checks=checks,
        salt=1,
        faults=(),
        logs="",
        patience_s=5.0,
    )


def test_the_interpreter_of_the_tests_is_the_one_that_ran(clean: engine.Ran) -> None:
    """The software section names the absolute path of the target interpreter and its torch."""
    software = clean.proof.software
    assert software is not None
    assert software["python"] == sys.executable
    assert software["backends"]["gloo"] is True


def test_a_late_import_that_fails_is_a_finding_and_no_verdict_on_data(tmp_path: Path) -> None:
    """Nothing is forked that needs it: the collectives keep their pass, the others are unknown."""
    ran = engine.prove(tmp_path, late=["there_is_no_such_module"])

    (finding,) = ran.proof.findings
    assert finding.id == "torch-import-failed"
    assert "there_is_no_such_module" in finding.got
    assert ran.outcomes()[ALL_REDUCE] == "pass"
    assert ran.outcomes()["dtensor.roundtrip"] == "unknown"
    assert ran.proof.results["dtensor.roundtrip"].reason.startswith("not run: importing there_is_no")
    assert len(ran.named("forked")) == 1


@pytest.mark.parametrize(
    ("text", "remedy"),
    [("CUDA error: out of memory", "nvidia-smi"), ("KeyError-like nonsense", "bug of cpinfra")],
)
def test_ranks_that_cannot_start_end_the_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, remedy: str
) -> None:
    """One result says why, with a remedy that fits whose error it is; no further generation is tried."""
    broken = f"\n\ndef take(spec, rank):\n    raise RuntimeError({text!r})\n"
    engine.altered_worker(monkeypatch, tmp_path, {"worker/device.py": broken})

    ran = engine.prove(tmp_path / "run")

    assert set(ran.outcomes().values()) == {"unknown"}
    assert len(ran.named("forked")) == 1
    first, *others = (ran.proof.results[name] for name in ALL_PASS)
    assert text in first.reason
    assert remedy in first.remedy
    assert all(other.reason.startswith("not run: the ranks could not start") for other in others)
    assert ran.proof.hang is None


def test_a_full_disk_under_a_ranks_log_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that cannot write its log runs unheard, and ends as a rank, not as a second zygote."""
    full = "\n\ndef _open_for_append(path):\n    return os.open('/dev/full', os.O_WRONLY)\n\n\n"
    full += "_device_take = device.take\n\n\ndef _loud(spec, rank):\n    try:\n        print('heard?')\n"
    full += (
        "    except OSError:\n        pass\n    return _device_take(spec, rank)\n\n\ndevice.take = _loud\n"
    )
    engine.altered_worker(monkeypatch, tmp_path, {"worker/rank.py": full})

    ran = engine.prove(tmp_path / "run", only="collective.*")

    assert set(ran.outcomes().values()) == {"pass"}
    assert ran.proof.findings == []


def test_a_supervisor_that_was_suspended_blames_nobody(tmp_path: Path) -> None:
    """Ranks that have reported wait for its word however long it is away."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cpinfra", "prove", "--device", "cpu", "--only", "collective.*"]
        + ["--run-dir", str(tmp_path / "run"), "--budget", "1"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        processes.wait_until(lambda: '"forked"' in _text(tmp_path / "run" / "events.jsonl"), "ranks")
        process.send_signal(signal.SIGSTOP)
        away = time.monotonic() + 4
        processes.wait_until(lambda: time.monotonic() > away, "four times the budget")
        process.send_signal(signal.SIGCONT)

        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_what_is_said_together_with_hello_is_not_lost(tmp_path: Path) -> None:
    """A zygote that has said all before the supervisor first listens is heard out, and in order."""
    worker = delivery.build_zip(engine.PACKAGE, tmp_path)
    environment = zygote_environment(os.environ, "c" * 16, gpu_uuids=())
    zygote = ZygoteProcess(sys.executable, worker, environment, "c" * 16, tmp_path / "log")
    try:
        # hello has some 60 bytes, software over 300; each is written at once.
        processes.wait_until(lambda: _bytes_waiting(zygote) > 200, "hello and software in the pipe")
        budgets = deadlines.budgets(4, "cpu", None)
        startup = Startup(zygote=zygote, python=sys.executable, budgets=budgets, tick=lambda: None)

        assert startup.software()["software"]["python"] == sys.executable
    finally:
        assert zygote.close(hurry=True) == []


@pytest.mark.parametrize("moment", ["start", "import"])
def test_a_run_folder_that_vanishes_under_the_interpreter_is_told_as_that(
    tmp_path: Path, moment: str
) -> None:
    """Neither the interpreter nor its torch is to blame, whether it had read the worker or had not yet."""
    python = tmp_path / "python"
    folder = tmp_path / "run"
    gone = f"rm -rf {shlex.quote(str(folder))}"
    if moment == "start":
        python.write_text(f'#!/bin/sh\n{gone}\nexec {shlex.quote(sys.executable)} "$@"\n')
    else:
        site = tmp_path / "site"
        (site / "torch").mkdir(parents=True)
        text = f"import os, sys\nos.system({gone!r})\nsys.path.remove({str(site)!r})\n"
        (site / "torch" / "__init__.py").write_text(text + 'del sys.modules["torch"]\nimport torch\n')
        python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)

    ran = engine.prove(folder, only="p2p.ring", python=str(python))

    assert ran.proof.obstacle is not None
    assert ran.proof.obstacle.id == "run-folder-gone"
    assert str(folder) in ran.proof.obstacle.got
    assert {finding.id for finding in ran.proof.findings} <= {"run-folder-gone", "run-folder-full"}
    assert all("leave the run folder alone" in finding.remedy for finding in ran.proof.findings)


def test_a_run_folder_that_vanishes_before_the_checks_are_read_is_no_bug_of_ours(tmp_path: Path) -> None:
    """The zygote reads them from the worker when it first forks."""
    folder = tmp_path / "run"

    def vanish(event: dict[str, Any]) -> None:
        if event["event"] == "software":
            shutil.rmtree(folder)

    ran = engine.prove(folder, only="p2p.ring", on_event=vanish)

    assert ran.proof.obstacle is not None
    assert ran.proof.obstacle.id == "run-folder-gone"
    assert "cpinfra-bug" not in {finding.id for finding in ran.proof.findings}


def _bytes_waiting(zygote: ZygoteProcess) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(zygote._events_fd, termios.FIONREAD, count)
    return count[0]


def test_a_fault_that_no_check_notices_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A twin that acted and was missed blocks the verdict: the check proves nothing."""
    blind = "\n\ndef _blind(self, got, expected, *, parts, describe=str):\n"
    blind += "    self._evidence.comparisons += 1\n\n\nCheckRun.compare_parts = _blind\n"
    engine.altered_worker(monkeypatch, tmp_path, {"worker/check_run.py": blind})

    ran = engine.prove(tmp_path / "run", only="collective.all_gather", faults=["wrong-chunk"])

    assert ran.outcomes() == {"collective.all_gather": "pass"}
    (finding,) = ran.proof.findings
    assert (finding.id, finding.severity) == ("fault-not-caught", Severity.BLOCKING)
    assert "wrong-chunk" in finding.got


def test_a_fault_that_has_nothing_to_act_on_is_no_pass(tmp_path: Path) -> None:
    """A wrong chunk changes nothing in a sum that all ranks share."""
    ran = engine.prove(tmp_path, only=ALL_REDUCE, faults=["wrong-chunk"])

    assert [finding.id for finding in ran.proof.findings] == ["fault-not-fired"]

"""What goes wrong around the checks of real ranks: while they end, fork, or run out of something."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import engine
import processes
from cpinfra.outcome import Finding
from cpinfra.outcome import Severity
from cpinfra.proof import catalogue
from cpinfra.proof.zygote import ZygoteProcess

ALL_REDUCE = "collective.all_reduce"
ALL_PASS = {info.id: "pass" for info in catalogue.catalogue() if info.id.startswith("collective.")}
LEAVE = (
    "\n\n_leave = Door.leave\n\n\n"
    "def _spoiled(self):\n    _leave(self)\n    {what}\n\n\nDoor.leave = _spoiled\n"
)


def prove(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], **options: Any
) -> engine.Ran:
    """The collectives on ranks whose worker was changed."""
    engine.altered_worker(monkeypatch, folder, changes)
    return engine.prove(folder / "run", only=options.pop("only", "collective.*"), **options)


def blocking(ran: engine.Ran) -> list[Finding]:
    """The findings that keep the proof from being one."""
    return [finding for finding in ran.proof.findings if finding.severity is Severity.BLOCKING]


@pytest.mark.parametrize(
    ("what", "name", "text", "broken"),
    [
        ("if self.rank == 1: raise KeyError('ours')", "cpinfra-bug", "rank 1: KeyError: 'ours'", False),
        ("raise KeyError('ours')", "cpinfra-bug", "rank 0: KeyError: 'ours'", False),
        (
            "if self.rank: raise DoorError('destroy_process_group', 'leave', 'no peace')",
            "teardown-raised",
            "rank 1: DoorError: destroy_process_group (leave): no peace",
            True,
        ),
        ("if self.rank: raise MemoryError('no more')", "device-trouble", "rank 1: MemoryError", False),
    ],
)
def test_an_exception_while_ranks_leave_is_told_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, name: str, text: str, broken: bool
) -> None:
    """It blocks, whoever's error it is; torch's own fails the proof; no rank is said to have died of it."""
    ran = prove(tmp_path, monkeypatch, {"worker/comm.py": LEAVE.format(what=what)})

    assert ran.outcomes() == ALL_PASS
    (found,) = blocking(ran)
    assert found.id == name
    assert found.got.startswith(text)
    assert "Traceback" in found.got
    assert ran.proof.broken_outside is broken
    assert ran.proof.hang is None
    log = (ran.folder / "generation-1" / "rank-1.log").read_text()
    assert "Traceback" in log


def test_a_rank_that_breaks_off_without_a_word_while_it_leaves_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code alone says that the error was ours."""
    ran = prove(
        tmp_path,
        monkeypatch,
        {"worker/comm.py": LEAVE.format(what="if self.rank == 1: __import__('os')._exit(70)")},
    )

    assert ran.outcomes() == ALL_PASS
    assert [finding.id for finding in blocking(ran)] == ["cpinfra-bug"]


def test_a_rank_that_dies_while_it_leaves_fails_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks had passed, and a program that ends so is broken all the same."""
    what = "if self.rank == 2: __import__('os').kill(__import__('os').getpid(), 11)"
    ran = prove(tmp_path, monkeypatch, {"worker/comm.py": LEAVE.format(what=what)})

    assert ran.outcomes() == ALL_PASS
    assert ran.proof.hang is not None
    assert (ran.proof.hang.kind, ran.proof.hang.culprit_ranks) == ("process-died", (2,))


def test_a_kernel_that_refuses_a_fork_is_no_bug_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finding with the limits in force; the ranks that it gave are ended."""
    refusing = (
        "\n\n_forks = []\n_fork = os.fork\n\n\ndef _refuse():\n    _forks.append(1)\n"
        "    if len(_forks) == 3:\n        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
        "    return _fork()\n\n\nos.fork = _refuse\n"
    )
    ran = prove(tmp_path, monkeypatch, {"worker/zygote.py": refusing})

    (found,) = blocking(ran)
    assert found.id == "cannot-fork"
    assert "Resource temporarily unavailable (EAGAIN) after 2 of 4 ranks" in found.got
    assert "RLIMIT_NPROC" in found.got
    assert "--ranks" in found.remedy
    assert set(ran.outcomes().values()) == {"unknown"}
    assert ran.named("end")[0]["processes_left"] == []


def test_an_error_of_ours_in_the_zygote_is_not_taken_for_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the zygote; what is told is why."""
    spoiled = (
        "\n\ndef _spoiled(self, spec):\n    raise KeyError('ours')\n\n\nZygote._prepare_fork = _spoiled\n"
    )
    ran = prove(tmp_path, monkeypatch, {"worker/zygote.py": spoiled})

    assert [finding.id for finding in blocking(ran)] == ["cpinfra-bug"]
    assert all("cpinfra itself failed" in result.reason for result in ran.proof.results.values())


def test_ctrl_c_for_one_rank_alone_is_its_death(tmp_path: Path) -> None:
    """SIGINT is a signal like any other to a rank, and no exception of ours."""
    sent: list[int] = []

    def send(event: dict[str, Any]) -> None:
        if event["event"] == "forked" and not sent:
            sent.append(event["pids"][3])
            processes.wait_until(lambda: not _catches_sigint(sent[0]), "a rank that is no zygote any more")
            os.kill(sent[0], signal.SIGINT)

    ran = engine.prove(tmp_path, only=ALL_REDUCE, on_event=send, faults=["delay:0:0.3"])

    assert ran.proof.hang is not None
    assert (ran.proof.hang.kind, ran.proof.hang.culprit_ranks) == ("process-died", (3,))
    assert "SIGINT" in ran.proof.hang.sentence()


def test_a_check_that_is_blind_among_others_that_see_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That another check catches a twin does not excuse one that declares it, meets it, and passes."""
    blind = (
        "\n\n_compare = CheckRun.compare_parts\n\n\n"
        "def _blind(self, got, expected, *, parts, describe=str):\n"
        "    if self.check.id != 'collective.all_gather':\n"
        "        return _compare(self, got, expected, parts=parts, describe=describe)\n"
        "    self._evidence.comparisons += 1\n\n\nCheckRun.compare_parts = _blind\n"
    )
    ran = prove(tmp_path, monkeypatch, {"worker/check_run.py": blind}, faults=["shifted"])

    assert ran.outcomes()["collective.all_gather"] == "pass"
    assert "fail" in ran.outcomes().values()
    (found,) = blocking(ran)
    assert (found.id, found.got) == ("fault-not-caught", "shifted in collective.all_gather")


def test_a_delay_beyond_the_budget_must_be_caught(tmp_path: Path) -> None:
    """It is a hang; one within the budget is nothing to be caught."""
    late = engine.prove(tmp_path / "late", only=ALL_REDUCE, faults=["delay:1:30"], budget_s=0.5)
    short = engine.prove(tmp_path / "short", only=ALL_REDUCE, faults=["delay:1:0.05"])

    assert late.proof.hang is not None
    assert late.proof.hang.culprit_ranks == (1,)
    assert (short.outcomes(), short.proof.findings) == ({ALL_REDUCE: "pass"}, [])


def test_processes_that_do_not_die_are_in_the_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SIGKILL does not end is told, and nothing is proven beside it."""
    whole = ZygoteProcess.close

    def close(self: ZygoteProcess, *, hurry: bool) -> list[int]:
        return [*whole(self, hurry=hurry), 4242]

    monkeypatch.setattr(ZygoteProcess, "close", close)
    ran = engine.prove(tmp_path, only=ALL_REDUCE)

    (found,) = blocking(ran)
    assert (found.id, "4242" in found.got) == ("processes-left", True)


def test_a_zygote_that_was_stopped_makes_nobody_guilty(tmp_path: Path) -> None:
    """Its ranks end and nobody collects them: that says nothing of them."""
    stopped: list[int] = []

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "forked":
            stopped.append(_parent(event["pids"][0]))
            os.kill(stopped[0], signal.SIGSTOP)

    ran = engine.prove(tmp_path, only=ALL_REDUCE, on_event=stop, leave_s=0.5)

    assert ran.proof.hang is None
    (found,) = blocking(ran)
    assert found.id == "zygote-stopped"
    assert ran.named("end")[0]["processes_left"] == []


@pytest.mark.parametrize("stuck", [True, False])
def test_no_rank_is_put_on_gpus_of_which_one_hangs_in_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    """Its UUID is named and nothing was forked; kernels that are only wrong are judged elsewhere."""
    answers = [{"index": n, "right": None, "seconds": 60.0, "stuck": stuck and n == 1} for n in (0, 1)]
    said = f"\n\ndef run_all_and_ask(count, timeout_s):\n    return {answers!r}, {{}}\n"
    ran = prove(tmp_path, monkeypatch, {"worker/kernels.py": said}, gpu_uuids=("GPU-a", "GPU-b"))

    assert ran.proof.forked is not stuck
    assert [(found.id, found.got) for found in blocking(ran)] == [("kernels-hung", "GPU-b")] * stuck
    assert set(ran.outcomes().values()) == {"unknown" if stuck else "pass"}


def _catches_sigint(pid: int) -> bool:
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught, 16) & 1 << (signal.SIGINT - 1))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

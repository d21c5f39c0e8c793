"""What the zip does by itself: smoke runs with torch's Python alone, GPUs by the word of torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cpinfra
import torch_alone
from cpinfra import report
from cpinfra.hardware import by_torch
from cpinfra.hardware import visible
from cpinfra.hardware.gpus import GpuAnswer
from cpinfra.node import fit
from cpinfra.node import job
from cpinfra.node import smoke
from cpinfra.node import smoke_text
from cpinfra.planning.asked import ProveRequest
from cpinfra.proof import delivery
from cpinfra.software.models import ModelResult
from fake_engine import put_in

SOURCE = Path(cpinfra.__file__).parent
COLLECTIVES = ("collective.*", "p2p.*")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with torch and nothing of ours."""
    return torch_alone.make(tmp_path_factory.mktemp("alone") / "venv")


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zip of the present sources."""
    return delivery.build_zip(SOURCE, tmp_path_factory.mktemp("worker"))


def gpu(index: int = 0, used_mib: int = 600, **more: Any) -> dict[str, Any]:
    """One GPU as torch tells it."""
    return {
        "index": index,
        "uuid": f"GPU-{index:08d}",
        "name": "Some GPU",
        "compute_capability": "9.0",
        "memory_total_mib": 81920,
        "memory_used_mib": used_mib,
        "bus_id": f"0000:{index:02x}:00.0",
        **more,
    }


def told(*gpus: dict[str, Any], chosen: bool = False) -> GpuAnswer:
    """What torch's word on these GPUs means."""
    document = {"cuda_driver": "13.0", "gpus": list(gpus)}
    return by_torch.of_document(document, Path("/nowhere"), chosen=chosen)


# ------------------------------------------------------------------------------------ a real run


def test_smoke_runs_with_torch_alone(alone: Path, worker: Path, tmp_path: Path) -> None:
    """Nothing of ours is installed; stdout is one report that the typed schema takes, people read stderr."""
    ended = torch_alone.run(
        alone, worker, "smoke", "--world-size", 4, "--only", "p2p.*", "--json", cwd=tmp_path
    )

    assert torch_alone.absent(alone, tmp_path) == list(torch_alone.LEFT_OUT)
    assert ended.returncode == 0, ended.stderr
    made = report.Report.model_validate_json(ended.stdout)
    assert (made.verdict, made.scope) == ("rehearsed", "rehearsal")
    assert [check.id for check in made.checks if check.outcome == "pass"] == ["p2p.ring"]
    assert smoke.LOUD in ended.stderr.splitlines()
    assert any("p2p.ring pass" in line for line in ended.stderr.splitlines())
    assert ended.stderr.splitlines()[-1] == f"logs: {json.loads(ended.stdout)['logs'][0]['path']}"


def test_smoke_ends_at_its_time(alone: Path, worker: Path, tmp_path: Path) -> None:
    """What is not over by then is ended and not proven: while torch is still imported, too."""
    ended = torch_alone.run(
        alone, worker, "smoke", "--world-size", 4, "--timeout", 0.01, cwd=tmp_path, timeout_s=60
    )

    assert ended.returncode == 3
    assert "verdict: not-proven" in ended.stdout
    assert "it was not over within 0.01 s, and was ended" in ended.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--world-size"),
        (("--world-size", "x"), "--world-size 'x': expected a whole number of 1 or more"),
        (("--world-size", "4", "--cp", "2x3"), "--cp 2x3: the CP grid must be square"),
        (("--world-size", "4", "--only", "nothing.*"), "--only 'nothing.*'"),
        (("--world-size", "4", "--timeout", "soon"), "--timeout 'soon': expected a number of seconds"),
        (("--world-size", "4", "--device", "tpu"), "--device 'tpu': valid are auto, cpu, cuda"),
        (("--world-size", "4", "--wor", "4"), "unrecognized arguments: --wor"),
    ],
)
def test_smoke_rejects_what_makes_no_sense(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, with the option and what is valid; nothing is started."""
    from cpinfra.node import main

    monkeypatch.setattr(job, "Engine", None)
    try:
        code = main.main(["smoke", *options])
    except SystemExit as end:
        code = int(end.code or 0)

    assert code == 2
    assert says in capsys.readouterr().err


# ---------------------------------------------------------------------------- judged without ranks


def smoked(
    monkeypatch: pytest.MonkeyPatch, folder: Path, answer: GpuAnswer, **options: Any
) -> tuple[smoke.Smoked, list[str]]:
    """A smoke run on GPUs that are none: the engine is a fake that passes everything."""
    put_in(monkeypatch)
    decide = options.pop("checks_decide", False)
    proof = ProveRequest(python=sys.executable, run_dir=str(folder), ranks_option="--world-size", **options)
    request = smoke.SmokeRequest(proof=proof, checks_decide=decide)
    said: list[str] = []
    made = smoke.smoke(
        request, {}, say=said.append, progress=lambda _: None, ask_gpus=lambda environment: answer
    )
    return made, said


def test_busy_gpus_are_no_reason_to_rehearse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With GPUs in the machine nothing falls back to the CPU, and nothing claims to be a rehearsal."""
    made, said = smoked(monkeypatch, tmp_path, told(gpu(0, 5000), gpu(1, 5000)), ranks="2")

    assert (made.exit_code, made.settled.runs) == (3, ())
    assert smoke.LOUD not in said
    assert any("gpus-busy" in line for line in smoke_text.end(made))


def test_four_gpus_are_proven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same judgement as that of `cpinfra prove`."""
    made, said = smoked(monkeypatch, tmp_path, told(*map(gpu, range(4))), ranks="4")

    assert (made.exit_code, made.judged.verdict.value, made.judged.scope) == (0, "proven", "limited")
    assert said[0] == "device: cuda: 4 x Some GPU over nccl"


@pytest.mark.parametrize(
    ("decide", "mode", "code"),
    [(True, "pass", 0), (False, "pass", 3), (True, "lost", 3), (True, "two-fail", 1), (True, "no-torch", 3)],
)
def test_two_gpus_prove_no_more_than_their_checks(
    decide: bool, mode: str, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`--checks-decide`: 0 only if each named check passed; the sentence says that 2D is not proven."""
    monkeypatch.setenv("FAKE_ENGINE", mode)
    made, _ = smoked(
        monkeypatch, tmp_path, told(gpu(0), gpu(1)), ranks="2", only=COLLECTIVES, checks_decide=decide
    )

    assert made.exit_code == code
    assert made.judged.verdict.value in ("not-proven", "failed")
    if code == 0:
        assert made.sentence == "passed on 2 GPU(s); 2D context parallelism, which takes 4, is not proven"


# -------------------------------------------------------------------------------- GPUs by torch


def test_torch_tells_of_free_and_busy_gpus() -> None:
    """More than 1 GiB in use is busy; that only memory is known is said."""
    answer = told(gpu(0), gpu(1, 1025), gpu(2, 1024), gpu(3, error="CUDA error: lost"))

    assert (answer.state, [one.index for one in answer.gpus]) == ("gpus", [0, 2])
    assert [(busy.index, busy.reason.split(" (")[0]) for busy in answer.busy] == [
        (1, "1025 MiB used"),
        (3, "does not answer: CUDA error: lost"),
    ]
    assert [remark.kind for remark in answer.remarks] == ["by-torch"]
    assert "only if it holds more than 1024 MiB" in answer.remarks[0].text
    assert (answer.cuda_driver, answer.shown[0].compute_capability) == ("13.0", "9.0")


def test_gpus_that_were_named_are_used_and_told() -> None:
    """Whoever set CUDA_VISIBLE_DEVICES has chosen; one that does not answer is left out all the same."""
    answer = told(gpu(0, 9000), gpu(1, error="lost"), chosen=True)

    assert [one.index for one in answer.gpus] == [0]
    assert [remark.kind for remark in answer.remarks] == ["by-torch", "in-use"]


def test_a_gpu_without_uuid_is_not_used() -> None:
    """Ranks are given their GPU by its UUID, which an old torch does not know: the reason says so."""
    answer = told(gpu(0, uuid=None))

    assert answer.state == "none"
    assert "does not tell its UUID" in answer.reason


@given(st.recursive(st.none() | st.integers() | st.text(), lambda below: st.lists(below) | st.dictionaries(
    st.sampled_from(["gpus", "cuda_driver", "index", "error"]), below), max_leaves=8))  # fmt: skip
def test_what_is_no_answer_is_refused(value: Any) -> None:
    """Whatever a process may write: it is read as an answer, or it is no answer, and nothing else happens."""
    try:
        state = by_torch.of_document(value).state
    except by_torch.UnreadableError as error:
        state = str(error).split(":")[0]

    assert state in ("none", "gpus", "torch's answer cannot be read")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The root of a file system with a sign of a driver."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("580.95.05\n")
    return tmp_path


def test_torch_without_cuda_is_no_answer(worker: Path, machine: Path) -> None:
    """A CPU build beside a driver: that the GPUs could not be asked, and why, with the driver's version."""
    answer = by_torch.usable_gpus({}, 60, [sys.executable, str(worker), "gpus"], machine)

    assert answer.state == "error"
    assert "was built without CUDA" in answer.reason
    assert answer.driver_version == "580.95.05"


@pytest.mark.parametrize(
    ("program", "state", "says"),
    [
        ("while True: pass", "hung", "did not answer within 0.5 s"),
        ("print('[1, 2')", "error", "wrote '[1, 2"),
        ("import os; os._exit(7)", "error", "exit status 7"),
        ('print(\'{"error": "no"}\')', "error", "torch was asked for the GPUs: no"),
    ],
)
def test_a_process_that_gives_no_answer_is_told(program: str, state: str, says: str, machine: Path) -> None:
    """A hanging driver, noise, a crash and a refusal are four different things."""
    argv = [sys.executable, "-I", "-S", "-c", program]

    answer = by_torch.usable_gpus({}, 0.5 if state == "hung" else 60, argv, machine)

    assert answer.state == state
    assert says in answer.reason


def test_nothing_is_asked_where_there_is_nothing_to_ask(machine: Path, tmp_path_factory: Any) -> None:
    """No driver, hidden GPUs, MIG: the process would not even start."""
    empty = tmp_path_factory.mktemp("empty")
    states = [
        by_torch.usable_gpus(environment, 1, ["/does/not/exist"], root).state
        for environment, root in [
            ({}, empty),
            ({visible.VARIABLE: ""}, machine),
            ({visible.VARIABLE: "MIG-1"}, machine),
            ({}, machine),
        ]
    ]

    assert states == ["absent", "hidden", "error", "error"]


# ----------------------------------------------------------------------- models without packaging


def model(**facts: Any) -> ModelResult:
    """A model that was imported."""
    nothing = {"traceback": "", "path": "/m.py", "distribution": "m", "version": "1", "installed": {}}
    known = {"name": "m", "imported": True, "error": "", "requires_dist": (), "requires_python": None}
    return ModelResult(
        **{**nothing, **known, "markers": {}, "seconds": 1.0, "python": "/p", "found": True, **facts}
    )


@pytest.mark.parametrize(
    ("facts", "ids"),
    [
        ({}, []),
        ({"requires_dist": ("torch>=2",)}, ["model-requirements-uncompared"]),
        ({"requires_python": ">=3.10"}, ["model-requirements-uncompared"]),
    ],
)
def test_requirements_that_were_not_compared_are_told(facts: dict[str, Any], ids: list[str]) -> None:
    """A model that declares none has nothing to compare; of another it is not known whether it fits."""
    found = fit.without_requirements(model(**facts))

    assert [one.id for one in found if one.severity.value != "info"] == ids
    assert fit._fits(model(**facts), found) is (None if ids else True)


def test_a_reader_that_leaves_ends_no_run(alone: Path, worker: Path, tmp_path: Path) -> None:
    """`| head -1`: the run goes on, nothing is said of it, and it is no error of ours."""
    command = (
        f'"{alone}" "{worker}" smoke --world-size 2 --device cpu --only p2p.ring --run-dir "{tmp_path}/run"'
    )
    script = f'{command} | head -1 >/dev/null; exit "${{PIPESTATUS[0]}}"'

    ended = torch_alone.run("bash", "-c", script, cwd=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert '"event": "check"' in (tmp_path / "run" / "events.jsonl").read_text()

"""`probe`: the flat document, null with a reason for what could not be told, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra.hardware import by_torch
from cpinfra.hardware.gpus import GpuAnswer
from cpinfra.node import job
from cpinfra.node import probe
from cpinfra.node import probe_text
from cpinfra.node.probe_document import largest_square
from cpinfra.outcome import ExitCode
from cpinfra.outcome import Role
from cpinfra.planning.asked import ProveRequest
from cpinfra.planning.settle import settle
from cpinfra.proof import run_folder
from cpinfra.proof.contract import Proof
from cpinfra.software.models import ModelResult
from fake_engine import SOFTWARE
from fake_engine import FakeSupervisor
from fake_engine import put_in

FLAT = {
    "python",
    "torch",
    "torch_error",
    "cuda_available",
    "cuda_version",
    "cuda_driver_api",
    "nccl_version",
    "gpus",
    "nvidia_driver",
    "disk",
    "recommend_disk_GiB",
    "self_consistency",
    "recommended_cp",
    "software",
    "host",
}
CONSISTENCY = {
    "cuda_usable",
    "torch_cuda_build",
    "cuda_driver_api",
    "nvidia_driver",
    "model_import_check",
    "dtensor_mesh_check",
    "consistent",
    "notes",
}
CUDA_SOFTWARE = {
    **SOFTWARE,
    "torch": "2.11.0",
    "cuda_build": "13.0",
    "cuda_driver": "13.0",
    "arch_list": ["sm_90"],
    "nccl": {"compiled": "2.28.9", "loaded": "2.28.9", "path": "/nccl.so"},
    "backends": {"gloo": True, "nccl": True},
}


def gpus(number: int) -> GpuAnswer:
    """A machine with so many free GPUs."""
    entries = [
        {
            "index": index,
            "uuid": f"GPU-{index}",
            "name": "Some GPU",
            "compute_capability": "9.0",
            "memory_total_mib": 81920,
            "memory_used_mib": 1,
        }
        for index in range(number)
    ]
    answer = by_torch.of_document({"cuda_driver": "13.0", "gpus": entries}, Path("/nowhere"))
    return replace(answer, driver_version="580.95.05")


class GpuSupervisor(FakeSupervisor):
    """An engine whose ranks had GPUs, with kernels that ran right and torch's opinion on CUDA."""

    usable = True

    def run(self) -> Proof:
        """What the fake says, with the words of a CUDA build."""
        proof = super().run()
        proof.software = dict(CUDA_SOFTWARE)
        count = len(self.request.gpu_uuids)
        right = {"right": True, "kernels": ["matmul"], "error": "", "seconds": 1.0}
        proof.kernels = [{"index": index, **right} for index in range(count)]
        proof.cuda_usable = {"usable": self.usable, "device_count": count, "warnings": [], "error": ""}
        return proof


def probed(
    monkeypatch: pytest.MonkeyPatch, answer: GpuAnswer, engine: type[FakeSupervisor] = GpuSupervisor
) -> probe.Probed:
    """A probe on a machine that is told of, with an engine that starts nothing."""
    put_in(monkeypatch, supervisor=engine)
    return probe.probe(probe.ProbeRequest(python=sys.executable), {}, ask_gpus=lambda environment: answer)


def nulls(document: dict[str, Any]) -> set[str]:
    """Keys whose value is null, two levels deep, but for those that say by null that all is well."""
    found = {key for key, value in document.items() if value is None and key != "torch_error"}
    for outer in ("self_consistency", "recommended_cp"):
        found |= {key for key, value in document[outer].items() if value is None}
    return found


# ----------------------------------------------------------------------------- what it comes to


def test_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys, all values; kernels are asked for on each free GPU, and one rank runs."""
    made = probed(monkeypatch, gpus(8))
    document = made.document

    assert (set(document), set(document["self_consistency"])) == (FLAT, CONSISTENCY)
    assert made.exit_code is ExitCode.OK
    assert document["self_consistency"]["consistent"] is True
    assert document["gpus"][7] == {"index": 7, "name": "Some GPU", "capability": "9.0", "mem_GiB": 80.0}
    assert len(document["software"]["kernels"]) == 8
    assert document["recommended_cp"]["cp2d"]["world_size"] == 8
    assert nulls(document) == {"model_import_check"}
    json.dumps(document, allow_nan=False)


def test_a_torch_that_takes_cuda_for_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a contradiction, although kernels and DTensor worked."""

    class Unusable(GpuSupervisor):
        usable = False

    made = probed(monkeypatch, gpus(4), Unusable)

    assert made.exit_code is ExitCode.NOT_PROVEN
    assert made.document["self_consistency"]["cuda_usable"] is False
    assert made.document["self_consistency"]["consistent"] is False
    assert any(note.startswith("cuda-unusable") for note in made.document["self_consistency"]["notes"])


def test_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs and what follows from them are null, each with its reason; it is not answered, so no success."""

    class Cuda(FakeSupervisor):
        def run(self) -> Proof:
            proof = super().run()
            proof.software = dict(CUDA_SOFTWARE)
            return proof

    answer = GpuAnswer(state="hung", reason="the driver did not answer within 20 s", remedy="reboot")
    made = probed(monkeypatch, answer, Cuda)
    notes = made.document["self_consistency"]["notes"]

    assert made.exit_code is ExitCode.NOT_PROVEN
    assert {"gpus", "cuda_available", "nvidia_driver", "gpu_count", "can_2d"} <= nulls(made.document)
    for key in ("gpus", "cuda_available", "nvidia_driver", "recommended_cp"):
        assert any(note.startswith(f"{key}: ") for note in notes), key
    assert "2D context parallelism: not told" in probe_text.summary(made.document)


def test_a_torch_without_cuda_beside_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """It contradicts, and uses no CUDA for sure; whether a mesh would work is not known, as nothing ran."""

    class CpuBuild(FakeSupervisor):
        def run(self) -> Proof:
            proof = super().run()
            proof.software = dict(SOFTWARE)
            proof.cuda_usable, proof.kernels = None, None
            proof.results.clear()
            return proof

    made = probed(monkeypatch, gpus(4), CpuBuild)
    said = made.document["self_consistency"]

    assert (said["cuda_usable"], said["consistent"], said["dtensor_mesh_check"]) == (False, False, None)
    assert made.exit_code is ExitCode.NOT_PROVEN
    assert any(note.startswith("torch-cpu-only") for note in said["notes"])


def test_torch_is_not_asked_where_it_would_hang_or_answer_for_hidden_gpus() -> None:
    """After one hang no further call of the driver; GPUs in use are hidden from torch, as from the ranks."""
    asked = {}
    for state in ("gpus", "absent", "hidden", "no-driver", "none", "hung", "error"):
        asked[state] = state in job._MAY_BE_ASKED

    assert [state for state, may in asked.items() if not may] == ["none", "hung", "error"]


def test_no_torch_says_why(tmp_path: Path) -> None:
    """The interpreter is asked why, and its answer is `torch_error` and a note; nothing is guessed."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    made = probe.probe(
        probe.ProbeRequest(python=str(tmp_path / "bare/bin/python")),
        os.environ,
        ask_gpus=lambda environment: GpuAnswer(state="absent", reason="none", remedy="get one"),
    )
    document = made.document

    assert made.exit_code is ExitCode.NOT_PROVEN
    assert (document["torch"], document["self_consistency"]["consistent"]) == (None, False)
    assert document["python"].startswith(f"{sys.version_info[0]}.{sys.version_info[1]}.")
    assert "No module named 'torch'" in document["torch_error"]
    assert "no torch on the path of" in document["torch_error"]
    assert "cuda_available: torch did not import, see torch_error" in document["self_consistency"]["notes"]


def test_a_model_that_needs_more_than_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `packaging` it is not known whether it fits: null, and never true."""

    class Imports:
        def __init__(self, names: Any, **options: Any) -> None:
            self.unfinished: tuple[str, ...] = ()

        def start(self) -> None:
            pass

        def poll(self) -> bool:
            return True

        def close(self) -> None:
            pass

        def results(self) -> tuple[ModelResult, ...]:
            facts: dict[str, Any] = {
                **dict.fromkeys(("error", "traceback"), ""),
                "requires_dist": ("torch>=2",),
                "requires_python": None,
                "markers": {},
                "seconds": 1.0,
                "path": "/m.py",
                "distribution": "m",
                "version": "1",
                "installed": {},
                "found": True,
            }
            return (ModelResult(name="m", imported=True, **facts),)

    put_in(monkeypatch, supervisor=GpuSupervisor)
    monkeypatch.setattr(job, "ModelImports", Imports)
    request = probe.ProbeRequest(python=sys.executable, models=("m",))
    document = probe.probe(request, {}, ask_gpus=lambda environment: gpus(4)).document
    said = document["self_consistency"]
    compared = probe.probe(
        request, {}, ask_gpus=lambda environment: gpus(4), of_model=lambda result: []
    ).document

    assert (said["model_import_check"], said["consistent"]) == (True, None)
    assert any(note.startswith("model-requirements-uncompared") for note in said["notes"])
    assert compared["self_consistency"]["consistent"] is True


@given(st.integers(0, 20_000))
def test_recommended_is_the_largest_square(number: int) -> None:
    """The side is as large as the GPUs allow, dp as large as the rest allows; below four there is none."""
    said = largest_square(number)
    side = said["cp2d"]["cp0"]

    assert side == said["cp2d"]["cp1"] == isqrt(number)
    assert said["can_2d"] is (number >= 4)
    assert said["can_integration"] is (number >= 8)
    if number >= 4:
        world = said["cp2d"]["world_size"]
        assert world == side * side * said["cp2d"]["dp"] <= number < world + side * side
        assert (said["suggested_world_size"], said["suggested_topology"]) == (side * side, "2d")
    else:
        assert (said["suggested_world_size"], said["cp2d"]["dp"]) == (0, 0)
        assert said["suggested_topology"].startswith("none-local")


# ------------------------------------------------------------------------------ the command line


def cpinfra(*options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`cpinfra probe`, as a program."""
    argv = [sys.executable, "-m", "cpinfra", "probe", *options]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


def test_probe_prints_one_document(tmp_path: Path) -> None:
    """With this torch, for real: stdout is JSON, the model is imported, and what it requires is compared."""
    ended = cpinfra("--json", "--model", "torch", "--workdir", str(tmp_path), cwd=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads(ended.stdout)
    said = document["self_consistency"]
    assert set(document) == FLAT
    assert (said["dtensor_mesh_check"], said["model_import_check"]) == (True, True)
    assert document["disk"]["path"] == str(tmp_path)
    assert any("`packaging`" in note for note in said["notes"])
    assert list(tmp_path.iterdir()) == []


def test_probe_rejects_what_makes_no_sense(tmp_path: Path) -> None:
    """All mistakes at once, exit code 2."""
    ended = cpinfra("--model", "1x", "--python", "/does/not/exist", cwd=tmp_path)

    assert ended.returncode == 2
    assert "--model '1x'" in ended.stderr
    assert "--python '/does/not/exist'" in ended.stderr


# ------------------------------------------------------------------------- why torch does not import


@pytest.fixture
def killing_torch(tmp_path: Path) -> str:
    """An interpreter whose torch ends it without a word."""
    venv.create(tmp_path / "killing", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "killing" / "lib").glob("python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("import os\nos._exit(7)\n")
    return str(tmp_path / "killing" / "bin" / "python")


def test_a_run_that_lost_torch_finds_out_why(killing_torch: str, tmp_path: Path) -> None:
    """Also outside of a probe: the death is told first, then what was found; asked once for all runs."""
    settled = settle(ProveRequest(python=killing_torch, device="cpu", ranks="2"), {})
    both = replace(settled, runs=(settled.runs[0], replace(settled.runs[0], role=Role.REHEARSAL)))
    folder = run_folder.create(tmp_path / "run", os.environ)
    try:
        with job.Job(both, folder, lambda _: None, lambda: None) as made:
            made.run()
    finally:
        folder.close()
    first, second = ([finding.id for finding in proof.findings] for proof in made.learnt.proofs.values())

    assert first[:2] == ["torch-import-died", "torch-shadowed"]
    assert second == ["torch-import-died"]
    assert len(first) <= 1 + job._REASONS_MAX

"""The skill build-infra: its commands work in a fresh folder with torch alone, and its manifests are true."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import cpinfra
import skill_zip
import torch_alone
from cpinfra.proof import delivery

ROOT = Path(__file__).parents[1]
SKILL = ROOT / "skills" / "build-infra"
SOURCE = Path(cpinfra.__file__).parent
TEXT = (SKILL / "SKILL.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
NOT_PLAYED = ("cpinfra build", "nvidia-smi", "sbatch")
"""Blocks that need cpinfra, GPUs or a cluster."""
STEP = "import sys; print('ran', *sys.argv[1:]); sys.exit({code})\n"


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A copy of the skill with the worker of the present sources, as somebody would put it on a machine."""
    folder = tmp_path / "a skill"
    shutil.copytree(SKILL, folder)
    (folder / "scripts" / "cpinfra_worker.zip").write_bytes(skill_zip.packed(SOURCE))
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with torch and nothing of ours."""
    return torch_alone.make(tmp_path_factory.mktemp("alone") / "venv")


def test_its_commands_work_in_order(fresh: Path, alone: Path, tmp_path: Path) -> None:
    """Steps 3 and 4 as they are written, with torch's Python alone: consistent, and both tests pass."""
    played = [block for block in BLOCKS if not any(word in block for word in NOT_PLAYED)]
    script = "\n".join(played).replace("PY=python3", f"PY={alone}")
    work = tmp_path / "work"
    work.mkdir()

    ended = torch_alone.run("bash", "-c", script, cwd=work, CLAUDE_SKILL_DIR=str(fresh))

    assert len(BLOCKS) - len(played) == len(NOT_PLAYED)
    assert torch_alone.absent(alone, work) == list(torch_alone.LEFT_OUT)
    assert json.loads((work / "probe.json").read_text())["self_consistency"]["consistent"] is True
    assert "consistent: yes" in ended.stderr
    assert re.findall(r"^exit (\d+)$", ended.stdout, flags=re.MULTILINE) == ["0", "0"], ended.stdout
    for log in ("cp_collectives.log", "cp_dtensor.log"):
        assert "verdict: rehearsed" in (work / "logs" / log).read_text()


def test_two_ranks_pass_in_one_dimension(fresh: Path, alone: Path, tmp_path: Path) -> None:
    """2D is skipped, and that is said; a port is taken and changes nothing."""
    script = fresh / "scripts" / "test_dtensor_smoke.py"

    ended = torch_alone.run(alone, script, "--world-size", 2, "--port", 29500, cwd=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2D skipped: 2 rank(s)" in ended.stderr
    assert re.search(r"^pass +dtensor.roundtrip_1d ", ended.stdout, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["probe_env", "test_collectives", "test_dtensor_smoke"])
def test_scripts_say_that_the_worker_is_missing(name: str, alone: Path, tmp_path: Path) -> None:
    """A script that was copied alone: exit code 3, and what to do; it also compiles where Python is old."""
    source = SKILL / "scripts" / f"{name}.py"
    shutil.copy(source, tmp_path)

    ended = torch_alone.run(alone, tmp_path / source.name, "--world-size", "2", cwd=tmp_path)

    assert ended.returncode == 3
    assert "copy the folder scripts/ anew" in ended.stderr
    tree = ast.parse(source.read_text(), feature_version=(3, 7))
    assert not [node for node in ast.walk(tree) if isinstance(node, (ast.JoinedStr, ast.AnnAssign))]


def test_without_the_variable_the_folder_is_here(fresh: Path) -> None:
    """A tool that fills nothing in: the commands are called from the skill's folder."""
    (line,) = [block for block in BLOCKS if block.startswith("S=")]
    clean = {key: value for key, value in os.environ.items() if key != "CLAUDE_SKILL_DIR"}
    words = ["bash", "-c", f'{line}ls "$S"']

    ended = subprocess.run(
        words, cwd=fresh, env=clean, capture_output=True, text=True, timeout=20, check=True
    )

    assert "probe_env.py" in ended.stdout.split()


def test_front_matter() -> None:
    """As the Agent Skills format wants it: the folder's name, and a description that fits."""
    _, head, body = TEXT.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())

    assert fields["name"] == SKILL.name
    assert 100 < len(fields["description"]) <= 1024
    assert len(fields["compatibility"]) <= 500
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    assert body.count("\n## Step ") == 6


def test_it_asks_for_no_gpu_model() -> None:
    """What a machine has is a fact to be written down, not a condition."""
    models = re.compile(r"\b([AHBLV]\d{2,3}|GB\d{3}|RTX|Hopper|Ampere|Blackwell|sm_\d+)\b")

    assert models.search("an H200 or sm_90")
    assert not [path.name for path in SKILL.rglob("*") if path.suffix != ".zip" and path.is_file()
                and models.search(path.read_text())]  # fmt: skip


# ------------------------------------------------------------------------------------- the cluster


def submitted(tmp_path: Path, codes: dict[str, int], **variables: str) -> subprocess.CompletedProcess[str]:
    """The job as SLURM runs it: a copy in a spool folder, with a `srun` that starts what it is given."""
    scripts = tmp_path / "submit" / "skills" / "build-infra" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "cpinfra_worker.zip").touch()
    for name in ("probe_env", "test_collectives", "test_dtensor_smoke"):
        (scripts / f"{name}.py").write_text(STEP.format(code=codes.get(name, 0)))
    spool = tmp_path / "spool"
    spool.mkdir()
    shutil.copy(SKILL / "scripts" / "slurm_probe.sbatch", spool / "slurm_script")
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text('#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n')
    srun.chmod(0o700)
    path = f"{srun.parent}:{os.environ['PATH']}"
    given: dict[str, Any] = {
        "PATH": path,
        "SLURM_SUBMIT_DIR": str(tmp_path / "submit"),
        "SLURM_GPUS_ON_NODE": "8",
        **variables,
    }
    return torch_alone.run("bash", spool / "slurm_script", cwd=tmp_path, **given)


def test_a_job_finds_the_scripts_and_passes(tmp_path: Path) -> None:
    """From where it was submitted; ranks are the GPUs of the node, models and activation are handed on."""
    ended = submitted(tmp_path, {}, MODELS="one two", ACTIVATE="echo active $UNSET")

    assert ended.returncode == 0, ended.stderr
    assert "active" in ended.stdout
    assert "ran --model one --model two" in ended.stdout
    assert ended.stdout.count("ran --world-size 8 --timeout 240 --device cuda") == 2
    assert ended.stdout.splitlines()[-1] == "== slurm_probe: exit code 0"


def test_the_first_step_that_fails_decides_and_the_others_run(tmp_path: Path) -> None:
    """A log that ends in 0 is worth something only if it cannot otherwise."""
    ended = submitted(tmp_path, {"test_collectives": 1, "test_dtensor_smoke": 3})

    assert ended.returncode == 1
    assert re.findall(r"^== (\w+): exit code (\d)$", ended.stdout, flags=re.MULTILINE) == [
        ("probe", "0"),
        ("collectives", "1"),
        ("dtensor", "3"),
        ("slurm_probe", "1"),
    ]


def test_a_job_without_the_scripts_says_so(tmp_path: Path) -> None:
    """Submitted from somewhere else: exit code 2, and which variable to set."""
    ended = submitted(tmp_path, {}, SLURM_SUBMIT_DIR="/")

    assert ended.returncode == 2
    assert "set SCRIPTS" in ended.stderr


# ------------------------------------------------------------------------------- zip and manifests


def test_the_zip_of_the_skill_is_the_worker_and_names_it(tmp_path: Path) -> None:
    """The same bytes each time; its member tells which worker it is."""
    packed = skill_zip.packed(SOURCE)
    (tmp_path / "z.zip").write_bytes(packed)
    with zipfile.ZipFile(tmp_path / "z.zip") as archive:
        name = archive.read(skill_zip.NAME).decode().strip()

    assert packed == skill_zip.packed(SOURCE)
    assert name == delivery.build_zip(SOURCE, tmp_path).name


def test_a_stale_zip_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check` fails for another byte and for none, names the remedy, and passes once it was made."""
    monkeypatch.setattr(skill_zip, "TARGET", skill_zip.ROOT / "none" / "worker.zip")
    assert skill_zip.main(["--check"]) == 1
    assert "run `make skill`" in capsys.readouterr().err

    monkeypatch.setattr(skill_zip, "ROOT", tmp_path)
    monkeypatch.setattr(skill_zip, "TARGET", tmp_path / "worker.zip")
    shutil.copytree(SOURCE, tmp_path / "src" / "cpinfra", ignore=shutil.ignore_patterns("__pycache__"))
    assert skill_zip.main([]) == 0
    assert skill_zip.main(["--check"]) == 0
    (tmp_path / "src" / "cpinfra" / "text.py").write_text("#")
    assert skill_zip.main(["--check"]) == 1


def test_manifests_name_this_version_and_a_skill_that_is_there() -> None:
    """For each tool the skill is found where that tool looks."""
    claude, codex = (
        json.loads((ROOT / folder / "plugin.json").read_text())
        for folder in (".claude-plugin", ".codex-plugin")
    )
    market = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())

    assert claude["version"] == codex["version"] == cpinfra.__version__
    assert (ROOT / codex["skills"] / SKILL.name / "SKILL.md").is_file()
    assert [(plugin["name"], plugin["source"]) for plugin in market["plugins"]] == [(claude["name"], "./")]
    assert (ROOT / ".agents" / "skills" / SKILL.name).resolve() == SKILL.resolve()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 the beginning of a zip"])
@pytest.mark.parametrize("name", ["probe_env.py", "test_collectives.py", "test_dtensor_smoke.py"])
def test_a_zip_that_is_not_whole_is_no_pass(tmp_path: Path, name: str, content: bytes) -> None:
    """Python runs an empty file as an empty program, and ends with 0."""
    script = tmp_path / name
    script.write_bytes((skill_zip.TARGET.parent / name).read_bytes())
    (tmp_path / "cpinfra_worker.zip").write_bytes(content)
    ended = subprocess.run(
        [sys.executable, str(script), "--world-size", "2"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 3
    assert "not whole" in ended.stderr

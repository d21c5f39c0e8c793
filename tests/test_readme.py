"""What the README shows is what the program prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
RUN = re.compile(r"\.cpinfra/runs/\d{8}-\d{6}-[a-z0-9_]{8}")


def sample() -> str:
    """The block between the two marks."""
    (block,) = re.findall(
        r"<!-- sample output: begin -->\n```text\n(.*?)```\n<!-- sample output: end -->",
        README.read_text(),
        re.DOTALL,
    )
    return str(block)


def lines_of(text: str) -> list[str]:
    """Its lines without what differs from run to run: times, ids, blanks, and the order."""
    without_findings = re.sub(r"^Findings\n.*?(?=^Verdict)", "", text, flags=re.DOTALL | re.MULTILINE)
    same = RUN.sub(".cpinfra/runs/ID", without_findings)
    same = re.sub(r"\d+\.\d{3} s", "N s", same)
    same = re.sub(r"Python \d+\.\d+\.\d+", "Python N", same)
    same = re.sub(r"torch \d\S+ is", "torch N is", same)
    return sorted(" ".join(line.split()) for line in same.splitlines())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder in which the README's command was given, and what it printed."""
    folder = tmp_path_factory.mktemp("readme")
    command = [sys.executable, "-m", "cpinfra", "build", "4", "--rehearse"]
    environment = {**os.environ, "PYTHONPATH": str(README.parent / "src")}
    ran = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return folder, ran.stdout


def test_every_line_of_the_sample_is_printed(built: tuple[Path, str]) -> None:
    """And nothing is printed that it does not show, but for what was found about the machine's disk."""
    folder, output = built
    printed = output.replace(f"{folder}/", "").replace(sys.executable, ".venv/bin/python")
    assert len(lines_of(sample())) > 15
    assert lines_of(printed) == lines_of(sample())


def test_the_launch_block_of_a_real_document_launches(built: tuple[Path, str]) -> None:
    """Cut out by its info string, it starts the ranks of the recipe and keeps their log."""
    folder, _ = built
    (block,) = re.findall(
        r"^```bash launch\n(.*?)^```", (folder / "docs" / "cp_infra.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (folder / "launch.sh").write_text(block)
    (folder / "ones.py").write_text(
        "import torch\nimport torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nones = torch.ones(1)\ndist.all_reduce(ones)\n"
        "print(f'sum {ones.item():.0f}', flush=True)\ndist.destroy_process_group()\n"
    )
    environment = {**os.environ, "PROGRAM": str(folder / "ones.py"), "LOG": str(folder / "ones.log")}
    ran = subprocess.run(
        ["bash", "launch.sh"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.count("sum 4") == 4
    assert (folder / "ones.log").read_text().count("sum 4") == 4

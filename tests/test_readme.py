"""What the README shows is what the program prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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


def test_every_line_of_the_sample_is_printed(tmp_path: Path) -> None:
    """And nothing is printed that it does not show, but for what was found about the machine's disk."""
    command = [sys.executable, "-m", "cpinfra", "build", "4", "--rehearse"]
    environment = {**os.environ, "PYTHONPATH": str(README.parent / "src")}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )

    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout.replace(f"{tmp_path}/", "").replace(sys.executable, ".venv/bin/python")
    assert len(lines_of(sample())) > 15
    assert lines_of(printed) == lines_of(sample())

"""`cpinfra show` and `cpinfra schema`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import reports
from cpinfra import cli
from cpinfra import report
from cpinfra.record import docs
from cpinfra.record.summary import summary


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose report is that of a failure."""
    docs.write(reports.of("failed"), tmp_path / "docs")
    monkeypatch.chdir(tmp_path)


class TestShow:
    """A report that was written before."""

    def test_is_that_of_the_project(self, capfd: pytest.CaptureFixture[str]) -> None:
        """Without a name; a failure that is shown is no failure of the command."""
        assert cli.main(["show"]) == 0
        assert capfd.readouterr() == (summary(reports.of("failed")), "")

    def test_json(self, capfd: pytest.CaptureFixture[str]) -> None:
        """The document and nothing else."""
        assert cli.main(["show", "docs/cp_infra.json", "--json"]) == 0
        assert capfd.readouterr() == (Path("docs/cp_infra.json").read_text(), "")

    def test_without_a_report(self, capfd: pytest.CaptureFixture[str]) -> None:
        """It could not be answered, and the message says how to make one."""
        assert cli.main(["show", "no\nsuch.json", "--json"]) == 3
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith("cpinfra show: no\\nsuch.json: got no such file; expected a report;")
        assert len(err.splitlines()) == 1

    def test_usage(self, capfd: pytest.CaptureFixture[str]) -> None:
        """One report at a time."""
        assert cli.main(["show", "a", "b"]) == 2
        assert "unexpected extra argument" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_a_full_device_is_told(command: str, arguments: list[str], tmp_path: Path) -> None:
    """Not exit 0 with nothing on stderr."""
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "cpinfra", command, *arguments],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

    assert ran.returncode == (3 if command == "show" else 1)  # of another machine: changed, as it would say
    assert "output lost (No space left on device)" in ran.stderr


@pytest.mark.parametrize("command", ["show", "check"])
def test_an_empty_name_is_no_folder(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A command line that makes no sense."""
    assert cli.main([command, ""]) == 2
    assert "REPORT '': expected the path of a file" in capfd.readouterr().err


def test_schema(capfd: pytest.CaptureFixture[str]) -> None:
    """The schema, as JSON, and nothing else."""
    assert cli.main(["schema"]) == 0
    assert json.loads(capfd.readouterr().out) == report.schema()

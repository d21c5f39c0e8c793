"""`inventory`, `plan` and `check`, from the command line to what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from click.testing import Result

import cpinfra
import reports
from bench import ABSENT
from bench import BROKEN
from bench import BUSY
from bench import HIDDEN
from bench import HUNG
from bench import LOST
from bench import NOT_LOADED
from bench import free
from cpinfra import cli
from cpinfra import report
from cpinfra.hardware import host as hosts
from cpinfra.hardware.gpus import GpuAnswer
from cpinfra.hardware.gpus import Unavailable
from cpinfra.record import docs

Call = Callable[..., Result]
PACKAGE = str(Path(cpinfra.__file__).parents[1])


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Calls a command on a machine with the given GPUs, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOLD_CP_WORKDIR", raising=False)

    def run(*arguments: str, gpus: GpuAnswer = ABSENT) -> Result:
        asked: list[dict[str, Any]] = []

        def answer(_environment: Any, _timeout_s: float, **options: Any) -> GpuAnswer:
            asked.append(options)
            return gpus

        for module in ("inventory", "recheck"):
            monkeypatch.setattr(f"cpinfra.{module}.usable_gpus", answer)
        result = CliRunner().invoke(cli.cli, arguments)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        if arguments[0] != "plan":
            assert all(options == {"show_hidden": True} for options in asked)
        return result

    return run


class TestInventory:
    """`cpinfra inventory`."""

    @pytest.mark.parametrize(
        ("gpus", "code"),
        [
            (free(8), 0),
            (free(1), 0),
            (ABSENT, 0),
            (HIDDEN, 0),
            (BUSY, 0),
            (LOST, 0),
            (NOT_LOADED, 3),
            (HUNG, 3),
            (BROKEN, 3),
        ],
    )
    def test_exit_code(self, call: Call, gpus: GpuAnswer, code: int) -> None:
        """3 only where the driver could not be asked: none is an answer; the rest is printed all the same."""
        result = call("inventory", "--json", gpus=gpus)

        document = json.loads(result.stdout)
        assert result.exit_code == code
        assert set(document) == {"schema", "created", "tool", "host", "hardware"}
        assert report.Report.model_validate_json(result.stdout).host is not None

    def test_three_answers_without_gpus_are_told_apart(self, call: Call) -> None:
        """No driver, a driver that hangs, and one that shows none."""
        drivers = [
            replace(HUNG, driver_version=Unavailable(why=HUNG.reason)),
            replace(LOST, driver_version="580.1"),
            replace(NOT_LOADED, driver_version=Unavailable(why="the NVIDIA driver is not loaded")),
        ]
        told = [json.loads(call("inventory", "--json", gpus=gpus).stdout)["hardware"] for gpus in drivers]

        assert [one["driver_version"] for one in told] == [
            {"unavailable": HUNG.reason},
            "580.1",
            {"unavailable": "the NVIDIA driver is not loaded"},
        ]
        assert [[finding["id"] for finding in one["findings"]] for one in told] == [
            ["driver-hung"],
            ["no-usable-gpu"],
            ["no-driver"],
        ]

    def test_nothing_is_said_of_a_run(self, call: Call) -> None:
        """There is none: that nobody has claimed the GPUs is no news here; that they are too few is."""
        found = [json.loads(call("inventory", "--json", gpus=free(n)).stdout)["hardware"] for n in (8, 3)]

        assert [[one["id"] for one in each["findings"]] for each in found] == [[], ["too-few-gpus"]]

    def test_every_gpu_has_its_line(self, call: Call) -> None:
        """Two of them, one left alone: each with its own words."""
        shown = list(free(2).shown)
        shown[1] = replace(shown[1], name="A100", state="busy", reasons=("it runs 3 compute process(es)",))
        text = call("inventory", gpus=replace(free(1), shown=tuple(shown))).stdout

        assert "GPUs: 2, driver 580.1\n" in text
        assert "  0  H200, 143771 MiB, compute capability 9.0, free\n" in text
        assert "  1  A100, 143771 MiB, compute capability 9.0, busy: it runs 3 compute process(es)\n" in text

    def test_the_disk_is_that_of_the_work_folder(
        self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The option before the variable before the current folder."""
        for name in ("variable", "option"):
            (tmp_path / name).mkdir()
        here = call("inventory", "--json")
        monkeypatch.setenv("FOLD_CP_WORKDIR", str(tmp_path / "variable"))
        results = [here, call("inventory", "--json"), call("inventory", "--json", "--workdir", "option")]

        paths = [Path(json.loads(result.stdout)["host"]["disk"]["path"]).resolve() for result in results]
        assert paths == [tmp_path, tmp_path / "variable", tmp_path / "option"]

    def test_rejects_a_work_folder_that_is_none(self, call: Call, tmp_path: Path) -> None:
        """Exit 2, and nothing is asked."""
        (tmp_path / "file").touch()
        result = call("inventory", "--workdir", "file")

        assert (result.exit_code, result.stdout) == (2, "")
        assert "--workdir 'file': expected a folder" in result.stderr

    def test_of_this_machine(self, tmp_path: Path) -> None:
        """The real one, in a process of its own, with facts that the kernel confirms."""
        ran = subprocess.run(
            [sys.executable, "-m", "cpinfra", "inventory", "--json"],
            env={**os.environ, "PYTHONPATH": PACKAGE},
            cwd=tmp_path,
            capture_output=True,
            check=False,
            timeout=60,
        )

        document = json.loads(ran.stdout)
        assert ran.returncode in (0, 3)
        assert document["host"]["cpus"]["affinity"] == len(os.sched_getaffinity(0))
        assert document["host"]["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert list(tmp_path.iterdir()) == []


class TestPlan:
    """`cpinfra plan`."""

    @pytest.mark.parametrize(
        ("number", "chosen", "slots", "sides"),
        [
            ("0", None, 0, []),
            ("3", None, 0, []),
            ("4", (1, 2, "limited"), 1, [2]),
            ("8", (2, 2, "full"), 1, [2]),
            ("9", (2, 2, "full"), 1, [2, 3]),
            ("16", (4, 2, "full"), 1, [2, 3, 4]),
            (" 8 ", (2, 2, "full"), 1, [2]),
            ("16384", (4096, 2, "full"), 1, list(range(2, 129))),
        ],
    )
    def test_of_a_number(
        self, call: Call, number: str, chosen: tuple[int, int, str] | None, slots: int, sides: list[int]
    ) -> None:
        """The mapping; exit 3 is its "no"."""
        result = call("plan", "--gpus", number, "--json")

        document = json.loads(result.stdout)
        assert result.exit_code == (0 if chosen else 3)
        assert set(document) == {"schema", "created", "tool", "plan"}
        plan = document["plan"]
        assert (plan["gpus_free"], plan["slots"]) == (int(number), slots)
        assert [config["cp0"] for config in plan["configs"]] == sides
        if chosen is None:
            assert plan["chosen"] is None
        else:
            assert (plan["chosen"]["dp"], plan["chosen"]["cp0"], plan["chosen"]["integration"]) == chosen

    @pytest.mark.parametrize("number", ["-1", "", "x", "4.0", "1e3", "9" * 10, "٤", "4 4", "+4"])
    def test_rejects_what_is_no_number_of_gpus(self, call: Call, number: str) -> None:
        """Exit 2, quoted, with what is valid."""
        result = call("plan", f"--gpus={number}")

        assert (result.exit_code, result.stdout) == (2, "")
        assert f"--gpus {number!r}: expected a whole number of 0 or more, such as 8" in result.stderr

    @pytest.mark.parametrize(
        ("gpus", "code", "text"),
        [
            (free(8), 0, "free GPUs: 8\n  cp 2x2, dp 2: 8 ranks, integration full  <- chosen\n"),
            (free(3), 3, "free GPUs: 3\nno 2D-CP mesh fits: the smallest takes 4 GPUs\n"),
            (ABSENT, 3, "free GPUs: 0\nno 2D-CP mesh fits: the smallest takes 4 GPUs\n"),
            (BUSY, 3, "free GPUs: 0\nno 2D-CP mesh fits: the smallest takes 4 GPUs\n"),
            (HUNG, 3, f"free GPUs: unavailable ({HUNG.reason})\nwhich 2D-CP meshes fit cannot be told\n"),
        ],
    )
    def test_of_this_machine(self, call: Call, gpus: GpuAnswer, code: int, text: str) -> None:
        """Its free GPUs; where they could not be counted, none is said to be free."""
        result = call("plan", gpus=gpus)

        assert result.exit_code == code
        assert result.stdout.startswith(text)


def changed(made: report.Report, *path: str | int, value: Any) -> dict[str, Any]:
    """A report's document with one value changed."""
    document = made.document()
    inner: Any = document
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return document


class TestCheck:
    """`cpinfra check`."""

    @pytest.fixture
    def torch_file(self, tmp_path: Path) -> Path:
        """A file that the report rests on."""
        path = tmp_path / "version.py"
        path.write_text("__version__ = '2.13.0'\n")
        return path

    @pytest.fixture
    def made(self, torch_file: Path) -> report.Report:
        """A report of this boot of this machine, with four GPUs."""
        status = torch_file.stat()
        file = report.FileIdentity(
            what="torch", path=str(torch_file), bytes=status.st_size, modified_ns=status.st_mtime_ns
        )
        host = reports.host().model_copy(
            update={"boot_id": hosts.boot_id(), "machine_id": hosts.machine_id()}
        )
        hardware = report.Hardware(
            driver_version="580.1",
            gpus=[report.GpuFacts.model_validate(report.plain(gpu.facts())) for gpu in free(4).shown],
            topology=reports.missing("not asked"),
            findings=[],
        )
        software = reports.software(cuda=True).model_copy(update={"files": [file]})
        whole = reports.of("proven").model_copy(
            update={"host": host, "hardware": hardware, "software": software}
        )
        return report.Report.model_validate_json(whole.text())

    def written(self, document: dict[str, Any], folder: Path) -> None:
        """Where `check` looks by itself."""
        (folder / "docs").mkdir(exist_ok=True)
        (folder / "docs" / "cp_infra.json").write_text(json.dumps(document))

    def test_nothing_has_changed(self, call: Call, made: report.Report, tmp_path: Path) -> None:
        """Exit 0, and it says so."""
        self.written(made.document(), tmp_path)
        result = call("check", gpus=free(4))

        assert (result.exit_code, result.stdout) == (
            0,
            "docs/cp_infra.json is still true; its verdict: proven\n",
        )

    @pytest.mark.parametrize(
        ("path", "value", "name"),
        [
            (("host", "boot_id"), "00000000-0000-0000-0000-000000000000", "changed-boot-id"),
            (("host", "machine_id"), "0" * 32, "changed-machine-id"),
            (("hardware", "driver_version"), "570.1", "changed-driver"),
            (("hardware", "driver_version"), {"unavailable": "there is no NVIDIA driver"}, "changed-driver"),
            (("hardware", "gpus", 3, "uuid"), "GPU-9", "changed-gpus"),
            (("software", "files", 0, "bytes"), 1, "changed-torch"),
            (("software", "files", 0, "modified_ns"), 1, "changed-torch"),
            (("software", "files", 0, "path"), "/nowhere/version.py", "changed-torch"),
        ],
    )
    def test_each_change_is_named(
        self,
        call: Call,
        made: report.Report,
        tmp_path: Path,
        path: tuple[str | int, ...],
        value: Any,
        name: str,
    ) -> None:
        """Exit 1; got is what is there now, expected what the report says."""
        self.written(changed(made, *path, value=value), tmp_path)
        result = call("check", "--json", gpus=free(4))

        assert result.exit_code == 1
        (finding,) = json.loads(result.stdout)["findings"]
        assert (finding["id"], finding["severity"]) == (name, "blocking")
        assert finding["command"] == "cpinfra build"
        assert finding["got"] != finding["expected"]
        assert name in call("check", gpus=free(4)).stdout

    @pytest.mark.parametrize(
        ("gpus", "name"),
        [
            (free(3), "changed-gpus"),
            (free(5), "changed-gpus"),
            (replace(free(4), shown=free(4).shown[::-1]), "changed-gpus"),
            (replace(free(4), driver_version="590.2"), "changed-driver"),
            (replace(NOT_LOADED, driver_version=Unavailable(why="it is not loaded")), "changed-driver"),
        ],
    )
    def test_other_gpus_now(
        self, call: Call, made: report.Report, tmp_path: Path, gpus: GpuAnswer, name: str
    ) -> None:
        """Fewer, more, in another order, by another driver, or by none."""
        self.written(made.document(), tmp_path)
        result = call("check", "--json", gpus=gpus)

        assert result.exit_code == 1
        assert name in [finding["id"] for finding in json.loads(result.stdout)["findings"]]

    def test_two_changes_are_both_named(
        self, call: Call, made: report.Report, tmp_path: Path, torch_file: Path
    ) -> None:
        """Each with its own words."""
        torch_file.write_text("__version__ = '2.14.0+x'\n")
        self.written(changed(made, "host", "boot_id", value="other"), tmp_path)
        text = call("check", gpus=free(4)).stdout

        assert "blocking changed-boot-id" in text
        assert f"got {hosts.boot_id()}; expected other" in text
        assert (
            f"blocking changed-torch: the report is no longer true: {torch_file} is not what it was" in text
        )

    def test_a_file_that_is_gone(
        self, call: Call, made: report.Report, tmp_path: Path, torch_file: Path
    ) -> None:
        """The environment was removed: the reason is the system's."""
        torch_file.unlink()
        self.written(made.document(), tmp_path)
        result = call("check", gpus=free(4))

        assert result.exit_code == 1
        assert "No such file or directory" in result.stdout

    @pytest.mark.parametrize("gpus", [HUNG, BROKEN])
    def test_a_driver_that_does_not_answer_is_no_change(
        self, call: Call, made: report.Report, tmp_path: Path, gpus: GpuAnswer
    ) -> None:
        """It could not be told: exit 3, with the driver's reason."""
        self.written(made.document(), tmp_path)
        result = call("check", gpus=replace(gpus, driver_version=Unavailable(why=gpus.reason)))

        assert result.exit_code == 3
        assert gpus.reason in result.stdout

    def test_a_change_outranks_what_could_not_be_told(
        self, call: Call, made: report.Report, tmp_path: Path
    ) -> None:
        """Another boot is another boot, whatever the driver says."""
        self.written(changed(made, "host", "boot_id", value="other"), tmp_path)

        assert call("check", gpus=replace(HUNG, driver_version=Unavailable(why="w"))).exit_code == 1

    def test_gpus_that_a_variable_hides_are_still_there(
        self, call: Call, made: report.Report, tmp_path: Path
    ) -> None:
        """The machine is the same, whoever may use it in this shell."""
        self.written(made.document(), tmp_path)
        hidden = replace(free(4), state="hidden", gpus=(), reason="hidden")

        assert call("check", gpus=hidden).exit_code == 0

    def test_a_container_without_a_machine_id(self, call: Call, made: report.Report, tmp_path: Path) -> None:
        """The boot alone tells."""
        self.written(changed(made, "host", "machine_id", value={"unavailable": "no such file"}), tmp_path)

        assert call("check", gpus=free(4)).exit_code == 0

    @pytest.mark.parametrize(
        ("path", "value", "name"),
        [
            (("host",), None, "untold-host"),
            (("host",), {"unavailable": "not looked at"}, "untold-host"),
            (("host", "boot_id"), {"unavailable": "why so"}, "untold-boot-id"),
            (("hardware",), {"unavailable": "not asked"}, "untold-gpus"),
            (("hardware", "driver_version"), {"unavailable": "the driver was not asked"}, "untold-gpus"),
            (("software",), None, "untold-software"),
            (("software", "files"), {"unavailable": "why so"}, "untold-software"),
        ],
    )
    def test_a_report_that_does_not_say_what_it_rests_on(
        self,
        call: Call,
        made: report.Report,
        tmp_path: Path,
        path: tuple[str | int, ...],
        value: Any,
        name: str,
    ) -> None:
        """Not answerable: exit 3, never "still true"."""
        self.written(changed(made, *path, value=value), tmp_path)
        result = call("check", "--json", gpus=free(4))

        assert result.exit_code == 3
        assert [(one["id"], one["severity"]) for one in json.loads(result.stdout)["findings"]] == [
            (name, "warning")
        ]

    def test_of_a_prove(self, call: Call, made: report.Report, tmp_path: Path) -> None:
        """It is refused with the reason: a prove does not record the machine; a build is to be named."""
        document = made.document()
        for section in ("host", "summary", "next"):
            del document[section]
        (tmp_path / "prove.json").write_text(json.dumps(document))
        result = call("check", "prove.json", gpus=free(4))

        assert (result.exit_code, result.stdout) == (3, "")
        got, _, wanted = result.stderr.partition("; expected ")
        assert (
            got == "cpinfra check: prove.json: got the report of a prove, which does not record the machine"
        )
        assert "name that of a build, docs/cp_infra.json" in wanted

    def test_a_partial_report(self, call: Call, tmp_path: Path) -> None:
        """A plan rests on nothing that could be looked at."""
        (tmp_path / "plan.json").write_text(call("plan", "--gpus", "8", "--json").stdout)
        result = call("check", "plan.json", gpus=free(4))

        assert result.exit_code == 3
        assert "still true" not in result.stdout

    @pytest.mark.parametrize(
        ("content", "text"),
        [
            (None, "no such file"),
            ("{", "no JSON"),
            ('{"schema": "cpinfra/2"}', "cpinfra/2"),
            ("{}", "a report of"),
        ],
    )
    def test_no_report(self, call: Call, tmp_path: Path, content: str | None, text: str) -> None:
        """Exit 3; stderr says what is there, stdout is empty."""
        if content is not None:
            (tmp_path / "report.json").write_text(content)
        result = call("check", "report.json")

        assert (result.exit_code, result.stdout) == (3, "")
        assert result.stderr.startswith("cpinfra check: report.json: ")
        assert text in result.stderr

    def test_of_this_machine_torch_is_not_imported(self, made: report.Report, tmp_path: Path) -> None:
        """In a process of its own, and far below two seconds of its own time."""
        document = changed(made, "hardware", value={"unavailable": "not asked"})
        self.written(document, tmp_path)
        source = (
            "import sys, time\n"
            "from cpinfra.cli import main\n"
            "code = main(['check'])\n"
            "print(code, 'torch' in sys.modules, time.process_time() < 2)\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", source],
            env={**os.environ, "PYTHONPATH": PACKAGE},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )

        assert ran.stdout.splitlines()[-1] == "3 False True"


def test_a_written_report_is_still_true_at_once(call: Call, tmp_path: Path) -> None:
    """What `build` writes is what `check` reads: of a machine without GPUs too."""
    host = report.Host.model_validate({**report.plain(hosts.describe(tmp_path)), "findings": []})
    file = tmp_path / "version.py"
    file.touch()
    identity = report.FileIdentity(what="torch", path=str(file), bytes=0, modified_ns=file.stat().st_mtime_ns)
    hardware = report.Hardware(
        driver_version=reports.missing("there is no NVIDIA driver"),
        gpus=[],
        topology=reports.missing("not asked"),
        findings=[],
    )
    software = reports.software(cuda=False).model_copy(update={"files": [identity]})
    docs.write(reports.made(host=host, hardware=hardware, software=software), tmp_path / "docs")
    absent = replace(ABSENT, driver_version=Unavailable(why="there is no NVIDIA driver"))

    assert call("check", gpus=absent).exit_code == 0
    assert call("check", gpus=free(1)).exit_code == 1
    os.utime(file, ns=(time.time_ns(), time.time_ns()))
    assert call("check", gpus=absent).exit_code == 1

"""The command line: its surface, its refusals, and a run with the fake engine in a process of its own."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import cpinfra
import fake_engine
from cpinfra import cli
from cpinfra.cli import COMMANDS
from cpinfra.cli import output
from cpinfra.outcome import ExitCode
from cpinfra.proof import run_folder
from cpinfra.proof.catalogue import TIERS
from cpinfra.proof.catalogue import catalogue
from cpinfra.proof.contract import ProofRequest
from cpinfra.proof.engine import Engine
from cpinfra.proof.supervisor import Supervisor

HERE = Path(__file__).parent
PACKAGE = str(Path(cpinfra.__file__).parents[1])
GOLDEN = HERE / "golden" / "cli.json"
# An empty CUDA_VISIBLE_DEVICES makes machines with and without GPUs alike.
ENVIRONMENT = {**os.environ, "PYTHONPATH": PACKAGE, "CUDA_VISIBLE_DEVICES": "", "TERM": "xterm"}


def surface() -> dict[str, Any]:
    """Commands with their options, and exit codes, as programs rely on them."""
    context = click.Context(cli.cli)
    commands = {}
    for name in COMMANDS:
        command = cli.cli.get_command(context, name)
        assert command is not None
        commands[name] = {
            "/".join(parameter.opts): {
                "default": parameter.default if isinstance(parameter.default, str) else None,
                "metavar": getattr(parameter, "metavar", None),
                "flag": bool(getattr(parameter, "is_flag", False)),
                "repeated": bool(getattr(parameter, "multiple", False)),
            }
            for parameter in command.params
        }
    codes = {code.name: int(code) for code in ExitCode}
    return {"commands": commands, "exit_codes": codes}


class TestSurface:
    """What other programs and people's scripts rely on."""

    def test_options_and_exit_codes_are_those_of_the_golden(self) -> None:
        """A new, changed or lost option is seen here; a missing golden is no excuse."""
        assert GOLDEN.is_file(), "tests/golden/cli.json is missing"

        assert surface() == json.loads(GOLDEN.read_text())

    def test_no_command_escapes_the_golden(self) -> None:
        """Every module of the command line that defines a command is in the table, and so in the golden."""
        modules = {path.stem for path in Path(cli.__file__).parent.glob("*.py")}
        commands = {
            name
            for name in modules - {"__init__", "output", "render", "summary"}
            if (Path(cli.__file__).parent / f"{name}.py").read_text().count("@click.command(")
        }

        assert commands == {lazy.module for lazy in COMMANDS.values()}
        assert set(json.loads(GOLDEN.read_text())["commands"]) == set(COMMANDS)

    @pytest.mark.parametrize("name", COMMANDS)
    def test_short_help_is_the_commands_own(self, name: str) -> None:
        """The list of commands, which imports none of them, says what each says of itself."""
        command = cli.cli.get_command(click.Context(cli.cli), name)

        assert command is not None
        assert (command.help or "").splitlines()[0] == COMMANDS[name].short_help

    def test_every_option_is_explained(self) -> None:
        """No option without a help text, no command without an example."""
        for name in COMMANDS:
            context = click.Context(cli.cli)
            command = cli.cli.get_command(context, name)
            assert command is not None
            assert "Examples:" in (command.epilog or "")
            options = [one for one in command.params if isinstance(one, click.Option)]
            assert [option.name for option in options if not option.help] == []
            arguments = [one for one in command.params if isinstance(one, click.Argument)]
            words = [(one.metavar or str(one.name).upper()).strip("[]") for one in arguments]
            assert [word for word in words if f"{word} is " not in (command.help or "")] == []

    @pytest.mark.parametrize("flag", ["-h", "--help"])
    @pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
    def test_help_both_ways(self, command: list[str], flag: str) -> None:
        """Long and short, for the group and each command."""
        result = CliRunner().invoke(cli.cli, [*command, flag], prog_name="cpinfra")

        assert result.exit_code == 0
        assert result.output.startswith("Usage: cpinfra")

    def test_version(self) -> None:
        """Name and version, nothing else."""
        assert CliRunner().invoke(cli.cli, ["--version"]).output == f"cpinfra {cpinfra.__version__}\n"


@pytest.mark.parametrize(("wrong", "meant"), [("shwo", "show"), ("self-test", "selftest"), ("zzz", None)])
def test_a_wrong_command_is_told_the_one_that_was_meant(wrong: str, meant: str | None) -> None:
    """Where it resembles one; exit code 2."""
    result = CliRunner().invoke(cli.cli, [wrong], prog_name="cpinfra")

    told = f" Did you mean {meant!r}?" if meant else ""
    assert result.exit_code == 2
    assert f"Error: No such command {wrong!r}.{told}\n" in result.stderr


def test_an_option_is_no_command(capfd: pytest.CaptureFixture[str]) -> None:
    """Also behind `--`, and none is guessed for it."""
    assert cli.main(["--", "--show"]) == 2
    assert "Error: No such option '--show'.\n" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["prove", "8"], "Got unexpected extra argument (8). With prove it is --ranks 8"),
        (["selftest", "2"], "Got unexpected extra argument (2). With selftest it is --ranks 2"),
        (["plan", "16"], "Got unexpected extra argument (16). With plan it is --gpus 16"),
        (["prove", "--rehearse"], "--rehearse'. With prove it is --device cpu"),
        (["build", "--ranks", "8"], "--ranks'. With build it is the number alone, as in cpinfra build 8"),
        (["prove", "eight"], "Got unexpected extra argument (eight)"),
        (["show", "a", "8"], "Got unexpected extra argument (8)"),
    ],
)
def test_words_of_another_command_are_told_in_those_of_this_one(arguments: list[str], told: str) -> None:
    """Exit code 2 all the same; where there is no such word nothing is added."""
    result = CliRunner().invoke(cli.cli, arguments, prog_name="cpinfra")

    assert result.exit_code == 2
    assert result.stderr.endswith(f"{told}\n")


@pytest.mark.parametrize("command", ["build", "prove"])
def test_the_help_says_which_tiers_have_checks(command: str) -> None:
    """Those of the catalogue; another one is refused, and the help does not offer it as if it were there."""
    filled = [tier for tier in TIERS if any(check.tier == tier for check in catalogue())]
    shown = " ".join(CliRunner().invoke(cli.cli, [command, "--help"]).output.split())

    only = f"So far there are checks in {', '.join(filled)} only; others are refused."
    assert (only in shown) == (len(filled) < len(TIERS))


class TestLightness:
    """Help and refusals import nothing heavy."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--help"],
            ["--version"],
            ["prove", "--help"],
            ["prove", "--ranks", "0"],
            ["build", "--help"],
            ["build", "3", "--model", "a b"],
            ["plan", "--help"],
            ["check", "--help"],
            ["nope"],
        ],
    )
    def test_nothing_heavy_is_imported(self, arguments: list[str]) -> None:
        """Neither pydantic, rich nor torch; for the group's help not even the engine."""
        source = (
            "import sys\n"
            "from cpinfra.cli import main\n"
            "main(sys.argv[1:])\n"
            "print([name for name in sys.modules if name.partition('.')[0] in ('pydantic', 'rich', 'torch')"
            " or name.startswith('cpinfra.proof') and sys.argv[1] == '--help'])\n"
        )
        argv = [sys.executable, "-c", source, *arguments]
        ran = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=60)

        assert ran.stdout.splitlines()[-1] == "[]"

    @pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nope"]])
    def test_the_groups_help_costs_what_click_costs(self, arguments: list[str]) -> None:
        """Besides click it imports the command line's own two modules, no command, and nothing of others."""
        source = (
            "import sys\n"
            "before = set(sys.modules)\n"
            "from cpinfra.cli import main\n"
            "main(sys.argv[1:])\n"
            "known = {'click', *sys.stdlib_module_names}\n"
            "print(sorted(n for n in set(sys.modules) - before if n.partition('.')[0] not in known))\n"
        )
        argv = [sys.executable, "-c", source, *arguments]
        ran = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=60)

        assert ran.stdout.splitlines()[-1] == "['cpinfra', 'cpinfra.cli', 'cpinfra.cli.output']"

    def test_the_zygote_is_started_first(self, tmp_path: Path) -> None:
        """On a terminal too, the engine is entered before pydantic or rich are imported."""
        ran = prove(tmp_path, "--python", sys.executable, on_terminal=True, FAKE_ENGINE_LIGHT="1")

        assert ran.returncode == 0, ran.stdout


class TestRefusals:
    """Usage mistakes: exit 2, all of them, no traceback, nothing written."""

    @pytest.mark.parametrize(
        ("arguments", "texts"),
        [
            (
                ["--ranks", "0", "--cp", "2x3", "--only", "nope"],
                ["3 mistakes:", "--ranks 0", "--cp 2x3", "--only 'nope'"],
            ),
            (["--cp", "2x2", "--ranks", "5"], ["Error: --cp 2x2 with --ranks 5: 5 is not a multiple of 4"]),
            (["--python", "/no\n\x1b[31msuch"], ["--python '/no\\n\\x1b[31msuch': no such file"]),
            (["--nope"], ["No such option"]),
            (["--ranks"], ["requires an argument"]),
            (["surplus"], ["unexpected extra argument"]),
        ],
    )
    def test_are_exit_2(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], texts: list[str]
    ) -> None:
        """On stderr, with control characters escaped; stdout stays empty."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        result = CliRunner().invoke(cli.cli, ["prove", *arguments], prog_name="cpinfra")

        assert result.exit_code == 2
        assert result.stdout == ""
        for text in texts:
            assert text in result.stderr
        assert "Traceback" not in result.stderr
        assert "\x1b" not in result.stderr
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("width", [80, 140])
    def test_on_a_terminal_they_fit(self, width: int) -> None:
        """What is valid is listed between words, also beside another mistake."""
        command = [sys.executable, "-m", "cpinfra", "prove", "--inject", "nope"]
        one = on_a_terminal(command, ENVIRONMENT, width=width)
        two = on_a_terminal([*command, "--ranks", "0"], ENVIRONMENT, width=width)

        for ran in (one, two):
            assert ran.returncode == 2
            shown = ran.stdout.replace("\r", "").splitlines()
            assert width - 30 < max(map(len, shown)) <= width
            assert " skip:RANK[@CALL], swap-order:RANK[@CALL], " in " ".join(ran.stdout.split())
            assert [line for line in shown if line.startswith("      ")] != []
        assert "\nError: --inject 'nope': no such fault" in one.stdout
        assert "  - --inject 'nope': no such fault" in two.stdout

    def test_json_changes_nothing_about_them(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a report there is no document."""
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(cli.cli, ["prove", "--json", "--ranks", "0"])

        assert (result.exit_code, result.stdout) == (2, "")

    def test_an_unknown_command(self) -> None:
        """Exit 2, with a way to the help."""
        result = CliRunner().invoke(cli.cli, ["prov"])

        assert result.exit_code == 2
        assert "No such command 'prov'" in result.stderr


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, whatever its exit code."""
    return subprocess.run(command, text=True, timeout=60, check=False, **options)


def argv(folder: Path, *arguments: str) -> list[str]:
    """A proof with the fake engine."""
    return [
        sys.executable,
        str(HERE / "fake_engine.py"),
        "prove",
        "--run-dir",
        str(folder / "run"),
        *arguments,
    ]


def prove(
    folder: Path, *arguments: str, engine: str = "pass", on_terminal: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own, with stdout on a pipe or on a terminal."""
    environment = {**ENVIRONMENT, "FAKE_ENGINE": engine, **environment}
    command = argv(folder, *arguments)
    if not on_terminal:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    return on_a_terminal(command, environment)


def on_a_terminal(
    command: Sequence[str], environment: Mapping[str, str], *, width: int = 80
) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own, with all its output on a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    with subprocess.Popen(command, env=environment, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while data := _read(master):
            shown += data
        process.wait(timeout=60)
    os.close(master)
    return subprocess.CompletedProcess(command, process.returncode, shown.decode(), "")


def _read(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:
        return b""  # EIO: the other end is closed


class TestProve:
    """A whole run."""

    @pytest.mark.parametrize(
        ("engine", "code", "verdict"),
        [
            ("pass", 0, "rehearsed"),
            ("two-fail", 1, "failed"),
            ("lost", 3, "not-proven"),
            ("no-torch", 3, "not-proven"),
            ("bug", 3, "not-proven"),
            ("garbled", 1, "failed"),
            ("interrupted", 130, "not-proven"),
        ],
    )
    def test_exit_code_and_document(self, tmp_path: Path, engine: str, code: int, verdict: str) -> None:
        """One JSON document on stdout, as on disk; all else on stderr; the exit code says the verdict."""
        ran = prove(tmp_path, "--json", engine=engine)
        document = json.loads(ran.stdout)

        assert ran.returncode == code
        assert (document["schema"], document["verdict"]) == ("cpinfra/1", verdict)
        assert ran.stdout == (tmp_path / "run" / "report.json").read_text()
        assert ran.stderr.startswith("device: cpu, as ")
        assert f"Verdict: {verdict}" in ran.stderr
        assert "Traceback" not in ran.stderr
        assert all(line.isprintable() for line in ran.stderr.split("\n"))

    def test_off_a_terminal_plain_lines(self, tmp_path: Path) -> None:
        """One line per event, no colour, then the summary; nothing on stderr."""
        ran = prove(tmp_path)

        assert "\x1b" not in ran.stdout
        assert ran.stderr == ""
        assert ran.stdout.count("  collective.all_gather pass (0.250 s, 48 comparisons)\n") == 1
        assert ran.stdout.endswith(f"Report: {tmp_path}/run/report.json\n")

    def test_on_a_terminal_live(self, tmp_path: Path) -> None:
        """Colour, and a picture that is removed again before the summary."""
        ran = prove(tmp_path, engine="two-fail", on_terminal=True)

        assert ran.returncode == 1
        assert "\x1b[1;31mfail" in ran.stdout
        assert "\x1b[?25" not in ran.stdout  # the cursor is never hidden
        assert "Traceback" not in ran.stdout
        summary = ran.stdout[ran.stdout.rindex("Checks") :]
        assert "collective.all_gather was contradicted" in summary

    def test_on_a_terminal_lines_are_broken_between_words(self, tmp_path: Path) -> None:
        """At its width, with an indent; the path of the report stays in one piece."""
        ran = prove(tmp_path, engine="two-fail", on_terminal=True)
        shown = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", ran.stdout[ran.stdout.rindex("Checks") :]).splitlines()
        (verdict,) = [number for number, line in enumerate(shown) if line.startswith("Verdict: ")]

        assert shown[verdict + 1] == "  died"
        path = f"Report: {tmp_path}/run/report.json"
        assert [line for line in shown if len(line) > 80] == ([path] if len(path) > 80 else [])
        assert path in shown

    def test_a_dumb_terminal_gets_plain_lines(self, tmp_path: Path) -> None:
        """TERM=dumb understands no picture."""
        ran = prove(tmp_path, on_terminal=True, TERM="dumb")

        assert ran.returncode == 0
        assert "\x1b" not in ran.stdout

    def test_foreign_text_does_not_garble(self, tmp_path: Path) -> None:
        """Control characters, markup and undecodable bytes are shown as escapes, on a terminal too."""
        plain = prove(tmp_path, engine="garbled").stdout
        live = prove(tmp_path, engine="garbled", on_terminal=True).stdout

        for shown in (plain, live):
            assert "\\x1b[31m\\x07 \\udcff \\u202e [bold]é" in shown
            assert "\x1b[31m\x07" not in shown
        assert "p2p.ring fail: one\\ntwo\\x1b" in plain

    def test_ascii_terminals_get_escapes(self, tmp_path: Path) -> None:
        """What the stream cannot encode is no error."""
        ran = prove(tmp_path, engine="garbled", PYTHONIOENCODING="ascii")

        assert ran.returncode == 1
        assert "[bold]\\xe9" in ran.stdout

    def test_interrupted_before_anything_runs(self, tmp_path: Path) -> None:
        """Ctrl-C while the machine is looked at: 130, no traceback, nothing written."""
        source = (
            "import os, signal\n"
            "from cpinfra.planning import settle\n"
            "settle.usable_gpus = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
            "from cpinfra.cli import main; raise SystemExit(main(['prove']))"
        )
        command = [sys.executable, "-c", source]
        ran = run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True)

        assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "\ncpinfra: interrupted\n")
        assert list(tmp_path.iterdir()) == []

    def test_an_error_of_ours_is_not_exit_1(self, tmp_path: Path) -> None:
        """Python's own exit code for a traceback would say that the machine failed."""
        source = (
            "from cpinfra.planning import settle\n"
            "settle.usable_gpus = None\n"
            "from cpinfra.cli import main; raise SystemExit(main(['prove']))"
        )
        command = [sys.executable, "-c", source]
        ran = run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True)

        assert ran.returncode == 3
        assert ran.stderr.endswith("cpinfra: this is an error of cpinfra, please report it\n")
        assert "TypeError" in ran.stderr


def build(folder: Path, *arguments: str, engine: str = "pass", **environment: str) -> Any:
    """`build` with the fake engine, in a process and a folder of its own."""
    command = [sys.executable, str(HERE / "fake_engine.py"), "build", *arguments]
    return run(
        command, env={**ENVIRONMENT, "FAKE_ENGINE": engine, **environment}, cwd=folder, capture_output=True
    )


class TestBuild:
    """The main job."""

    @pytest.mark.parametrize(
        ("arguments", "engine", "code", "verdict"),
        [
            (["--rehearse"], "pass", 0, "rehearsed"),
            ([], "pass", 3, "not-proven"),
            (["--rehearse"], "two-fail", 1, "failed"),
            (["--rehearse"], "bug", 3, "not-proven"),
            (["--rehearse"], "interrupted", 130, "not-proven"),
        ],
    )
    def test_exit_code_and_documents(
        self, tmp_path: Path, arguments: list[str], engine: str, code: int, verdict: str
    ) -> None:
        """On stdout the document alone, which is that of the docs folder; all else on stderr."""
        ran = build(tmp_path, *arguments, "--json", engine=engine)

        assert ran.returncode == code
        assert json.loads(ran.stdout)["verdict"] == verdict
        assert ran.stdout == (tmp_path / "docs" / "cp_infra.json").read_text()
        assert ran.stderr.startswith("device: cpu, as ")
        assert ran.stderr.endswith("Document: docs/cp_infra.md\n")

    def test_runs_lie_in_the_projects_own_folder(self, tmp_path: Path) -> None:
        """Which git does not see; nothing else is written."""
        build(tmp_path, "--rehearse")

        assert {path.name for path in tmp_path.iterdir()} == {".cpinfra", "docs"}
        assert (tmp_path / ".cpinfra" / ".gitignore").read_text() == "*\n"

    def test_what_blocks_is_shown(self, tmp_path: Path) -> None:
        """With its remedy and command, before the verdict; findings of the host too."""
        ran = build(tmp_path, "--workdir", "/proc")

        assert ran.stdout.index("blocking no-") < ran.stdout.index("Verdict: not-proven, scope rehearsal")
        assert "command:  cpinfra build --rehearse" in ran.stdout
        assert "free disk of the work folder /proc" in ran.stdout

    def test_the_zygote_is_started_first(self, tmp_path: Path) -> None:
        """What reads models, hosts and reports is imported while it imports torch."""
        ran = build(tmp_path, "--rehearse", "--python", sys.executable, FAKE_ENGINE_LIGHT="1")

        assert ran.returncode == 0, ran.stdout

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["3"], "WORLD 3: no square CP grid divides it; worlds that fit 2x2: 4"),
            (["--", "-1"], "WORLD -1: must be 1 or more"),
            (["-1"], "No such option"),
            (["8", "9"], "unexpected extra argument"),
            (["--slurm"], "submitting jobs is not there yet"),
            (["--rehearse", "--require", "limited"], "--require limited with --rehearse"),
            (["--tier", "patterns"], "--tier patterns: this tier has no check yet"),
            (["--cp", "2x2", "9"], "--cp 2x2 with WORLD 9: 9 is not a multiple of 4"),
            (["--docs", "file"], "--docs 'file': expected a folder"),
            (["--docs", ""], "--docs '': expected the path of a folder"),
            (["--model", "no\x1b[31m"], "--model 'no\\x1b[31m'"),
        ],
    )
    def test_rejects(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], text: str
    ) -> None:
        """Exit 2 on stderr, with control characters escaped, and nothing is written."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        (tmp_path / "file").touch()
        result = CliRunner().invoke(cli.cli, ["build", *arguments], prog_name="cpinfra")

        assert (result.exit_code, result.stdout) == (2, "")
        assert text in result.stderr
        assert "\x1b" not in result.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


class TestBrokenStreams:
    """Nobody may be there to read; the run goes on, the report is on disk, the exit code is the verdict's."""

    @pytest.mark.parametrize("arguments", [[], ["--json"]])
    @pytest.mark.parametrize("redirect", [">/dev/full", ">&-", ">/dev/full 2>&1", ">&- 2>&- <&-", "| true"])
    def test_output_that_takes_nothing(self, tmp_path: Path, arguments: list[str], redirect: str) -> None:
        """Full device, closed stream, closed pipe: no traceback."""
        command = " ".join(map(_quoted, argv(tmp_path, *arguments)))
        script = f"set -o pipefail; {command} {redirect}"
        environment = {**ENVIRONMENT, "FAKE_ENGINE": "two-fail"}
        ran = subprocess.run(
            ["bash", "-c", script],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )

        assert ran.returncode == 1
        assert "Traceback" not in ran.stderr
        assert "Exception ignored" not in ran.stderr
        assert json.loads((tmp_path / "run" / "report.json").read_text())["verdict"] == "failed"

    def test_lost_output_is_said_where_it_can_be(self, tmp_path: Path) -> None:
        """On stderr, with the place of the report."""
        script = f"{' '.join(map(_quoted, argv(tmp_path, '--json')))} >/dev/full"
        ran = run(["bash", "-c", script], env=ENVIRONMENT, capture_output=True)

        lost = (
            f"cpinfra: output lost (No space left on device); the report lies at {tmp_path}/run/report.json"
        )
        assert ran.stderr.splitlines()[-1] == lost

    @pytest.mark.parametrize("command", ["prove", "selftest --ranks 2 --only p2p.ring --fault kill"])
    @pytest.mark.parametrize("redirect", [">/dev/full", ">&-", "| true"])
    def test_the_exit_code_that_is_told_is_the_one(self, tmp_path: Path, command: str, redirect: str) -> None:
        """Of a run that did well, whose document was lost: 3, as the end of the summary says."""
        words = [sys.executable, str(HERE / "fake_engine.py"), *command.split(), "--json", "--device", "cpu"]
        script = f"set -o pipefail; {' '.join(map(_quoted, words))} {redirect}"
        ran = run(["bash", "-c", script], env=ENVIRONMENT, cwd=tmp_path, capture_output=True)

        told = [line for line in ran.stderr.splitlines() if line.startswith("Exit code: ")]
        assert len(told) == 1
        assert told[0].startswith(f"Exit code: {ran.returncode} (")
        assert ran.returncode == 3

    @pytest.mark.parametrize(
        "command", ["schema", "plan --gpus 4", "plan --gpus 4 --json", "inventory --json"]
    )
    @pytest.mark.parametrize(
        ("redirect", "why"),
        [(">/dev/full", "No space left on device"), (">&-", "it is closed"), ("| true", "")],
    )
    def test_commands_that_only_print(self, command: str, redirect: str, why: str) -> None:
        """Lost output is exit 3 and a sentence; a reader that has enough has lost nothing."""
        script = f"set -o pipefail; {_quoted(sys.executable)} -m cpinfra {command} {redirect}"
        ran = run(["bash", "-c", script], env=ENVIRONMENT, capture_output=True)

        told = f"cpinfra: output lost ({why}); expected a stdout that takes all of it\n" if why else ""
        assert (ran.returncode, ran.stderr) == (3 if why else 0, told)

    def test_a_terminal_that_goes_away(self, tmp_path: Path) -> None:
        """EIO in the middle of the live picture."""
        master, slave = pty.openpty()
        environment = {**ENVIRONMENT, "FAKE_ENGINE": "two-fail"}
        with subprocess.Popen(
            argv(tmp_path),
            env=environment,
            stdout=slave,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            os.close(slave)
            assert os.read(master, 10)
            os.close(master)
            _, stderr = process.communicate(timeout=60)

        assert process.returncode == 1
        assert "Traceback" not in stderr
        assert (tmp_path / "run" / "report.json").is_file()

    @pytest.mark.parametrize(("redirect", "helped"), [(">/dev/full 2>/dev/full", 3), (">&- 2>&-", 0)])
    @pytest.mark.parametrize(
        ("arguments", "refused"), [("--help", 0), ("prove --help", 0), ("prove --ranks 0", 2), ("nope", 2)]
    )
    def test_help_and_refusals_into_nothing(
        self, arguments: str, refused: int, redirect: str, helped: int
    ) -> None:
        """A refusal is one whoever reads it; help that a device does not take could not be given."""
        script = f"{_quoted(sys.executable)} -m cpinfra {arguments} {redirect}"
        ran = run(["bash", "-c", script], env=ENVIRONMENT)

        assert ran.returncode == (refused or helped)

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [(["--help"], 0), (["--version"], 0), (["prove", "--help"], 0), (["prove", "--ranks", "0"], 2)],
    )
    def test_help_into_a_pipe_that_nobody_reads(self, arguments: list[str], code: int) -> None:
        """Who has enough of it has lost nothing; a refusal stays one, and there is no traceback."""
        read, write = os.pipe()
        os.close(read)
        ran = run(
            [sys.executable, "-m", "cpinfra", *arguments],
            env=ENVIRONMENT,
            stdout=write,
            stderr=subprocess.PIPE,
        )
        os.close(write)

        assert ran.returncode == code
        assert "Traceback" not in ran.stderr


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


class TestOutput:
    """A stream that may break."""

    def test_without_a_stream(self) -> None:
        """Python has no stdout where the caller closed it."""
        out = output.Output(None)

        assert out.write("x") == 1
        assert (out.isatty(), out.lost) == (False, "it is closed")

    def test_after_a_failure_nothing_more_is_tried(self, tmp_path: Path) -> None:
        """The reason is kept; later writes are silent."""
        with Path("/dev/full").open("w") as full:
            out = output.Output(full)
            out.write("x")

            assert out.lost == "No space left on device"
            assert out.write("yz") == 2


@pytest.mark.parametrize(
    ("fake", "real", "name"),
    [
        *((fake_engine.FakeEngine, Engine, name) for name in ("__init__", "__enter__", "__exit__", "emit")),
        *((fake_engine.FakeSupervisor, Supervisor, name) for name in ("__init__", "run")),
    ],
)
def test_the_fake_engine_has_the_real_ones_interface(fake: type[Any], real: type[Any], name: str) -> None:
    """What these tests stand on: engine and supervisor are made, entered, run and left as the fakes are."""
    assert signature(fake, name) == signature(real, name)


def signature(made: type[Any], name: str) -> list[tuple[str, str, bool]]:
    """(Name, type, whether it may be left out) of each parameter, and of what is returned."""
    found = inspect.signature(getattr(made, name))
    told = [(p.name, str(p.annotation), p.default is not p.empty) for p in found.parameters.values()]
    told.append(("return", str(found.return_annotation), False))
    return [(word, kind.replace("Fake", ""), optional) for word, kind, optional in told]


def test_the_fake_engine_has_the_real_ones_attributes(tmp_path: Path) -> None:
    """Those that the main path reads."""
    facts: dict[str, Any] = {
        "run": "main",
        "python": "p",
        "dp": 1,
        "cp0": 2,
        "cp1": 2,
        "device": "cpu",
        "gpu_uuids": (),
    }
    request = ProofRequest(**facts, checks=())
    folder = run_folder.create(tmp_path, {})
    fake = vars(fake_engine.FakeSupervisor(fake_engine.FakeEngine(request, folder, print), request))
    real = vars(Supervisor(Engine(request, folder, print), request))
    folder.close()

    assert {name for name in fake if not name.startswith("_")} == {"request", "proof"}
    assert {"request", "proof"} <= set(real)

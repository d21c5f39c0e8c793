"""The program as a process: before it has a command line, and in surroundings that are not whole."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import processes

SOURCES = Path(__file__).parents[1] / "src"
PROVE = ("prove", "--device", "cpu", "--only", "p2p.ring")


def start(folder: Path, arguments: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """The program in a folder, with its output on pipes."""
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, *options.pop("flags", ()), "-m", "cpinfra", *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def ran(folder: Path, arguments: Sequence[str], **options: Any) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a whole run."""
    with start(folder, arguments, **options) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("module", "arguments", "says"),
    [
        ("click", ("--help",), "the command line needs click, rich and pydantic"),
        ("pydantic", PROVE, "this installation is incomplete"),
    ],
)
def test_a_library_that_cannot_be_imported_is_no_verdict(
    tmp_path: Path, module: str, arguments: Sequence[str], says: str
) -> None:
    """Exit 3 with one sentence, and no ranks for a report that could not be written."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / f"{module}.py").write_text("raise ImportError('broken on purpose')\n")

    code, out, err = ran(tmp_path, arguments, env={"PYTHONPATH": f"{broken}:{SOURCES}"})

    assert code == 3
    assert "broken on purpose" in err
    assert says in err
    assert "Traceback" not in err
    assert "forked" not in out


def with_site(folder: Path, source: str) -> dict[str, str]:
    """Surroundings in which a `sitecustomize` runs before the program."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(source)
    return {"PYTHONPATH": f"{site}:{SOURCES}", "CUDA_VISIBLE_DEVICES": ""}


class TestEnd:
    """Once the exit code is told nothing holds the process up, and nothing changes the code."""

    def test_a_thread_of_others_is_not_waited_for(self, tmp_path: Path) -> None:
        """One that sleeps for an hour and is no daemon; what was to be called at the end still is."""
        site = (
            "import atexit, pathlib, threading, time\n"
            "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
            f"atexit.register(pathlib.Path({str(tmp_path / 'called')!r}).touch)\n"
        )
        env = with_site(tmp_path, site)

        for arguments, expected in ((["plan", "--gpus", "4"], 0), (["plan", "--gpus", "3"], 3), (["x"], 2)):
            with start(tmp_path, arguments, env=env) as process:
                try:
                    process.communicate(timeout=30)
                finally:
                    process.kill()
            assert process.returncode == expected
            assert (tmp_path / "called").exists()
            (tmp_path / "called").unlink()

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_a_signal_after_it_ends_the_process_with_that_code(
        self, tmp_path: Path, number: signal.Signals
    ) -> None:
        """Where something that others registered for the end does not end."""
        site = (
            "import atexit, os, time\natexit.register(time.sleep, 3600)\natexit.register(os.write, 2, b'!')\n"
        )
        source = "from cpinfra.__main__ import run; import sys; sys.argv[1:] = ['plan', '--gpus', '3']; run()"
        with subprocess.Popen(
            [*processes.SIGNALS_AT_WORK, sys.executable, "-c", source],
            env={**os.environ, **with_site(tmp_path, site)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stderr is not None
            try:
                assert process.stderr.read(1) == b"!"
                processes.wait_until(lambda: ended_by(process, number), "its end")
                assert process.stderr.read() == b""
            finally:
                process.kill()

        assert process.returncode == 3

    def test_a_reader_that_does_not_read_holds_up_no_interrupted_command(self, tmp_path: Path) -> None:
        """The rest of its output is dropped: one signal is enough."""
        read, write = os.pipe()
        size = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
        assert os.write(write, b"x" * size) == size
        with subprocess.Popen(
            [*processes.SIGNALS_AT_WORK, sys.executable, "-m", "cpinfra", "plan", "--gpus", "4"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            os.close(write)
            try:
                processes.wait_until(lambda: "pipe_write" in kernel_wait(process.pid), "the full pipe")
                process.send_signal(signal.SIGTERM)
                _, err = process.communicate(timeout=30)
            finally:
                process.kill()
        os.close(read)

        assert (process.returncode, err) == (130, "\ncpinfra: interrupted\n")


def ended_by(process: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    """Signal, and say whether it has ended: a signal that comes just before a sleep begins ends none."""
    process.send_signal(number)
    return process.poll() is not None


def kernel_wait(pid: int) -> str:
    """Where in the kernel a process waits."""
    return Path(f"/proc/{pid}/wchan").read_text()


@pytest.mark.parametrize(
    ("site", "arguments", "expected", "says"),
    [
        ("sys.stdout.close()", ["plan", "--gpus", "4"], 3, "output lost (it is closed)"),
        ("import os; os.close(1)", ["plan", "--gpus", "4"], 3, "output lost (it is closed)"),
        ("sys.stdout.detach()", ["plan", "--gpus", "4"], 3, "output lost (it is closed)"),
        ("sys.stdout = None", ["plan", "--gpus", "4"], 3, "output lost (it is closed)"),
        ("sys.stdout.close()", ["prove", "--ranks", "0"], 2, "--ranks 0"),
        ("sys.stderr = None", ["plan", "--gpus", "4"], 0, ""),
        ("sys.stderr.close()", ["show", "nowhere"], 3, ""),
        ("sys.stderr = sys.stdout = None", ["show", "nowhere"], 3, ""),
        ("sys.setrecursionlimit(60)", ["plan", "--gpus", "4"], 3, "could not run: RecursionError"),
        ("sys.modules['click'] = 1; sys.stderr = None", ["plan"], 3, ""),
    ],
)
def test_odd_surroundings_are_no_verdict(
    tmp_path: Path, site: str, arguments: Sequence[str], expected: int, says: str
) -> None:
    """Whatever the user's Python was made to be, the exit code is never the 1 of a failure of Python."""
    code, _, err = ran(tmp_path, arguments, env=with_site(tmp_path, f"import sys; {site}\n"))

    assert code == expected, err
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_machine_is_looked_at_ends_with_130(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Before any rank, and before the supervisor has handlers of its own: no traceback."""
    source = (
        "import os, signal, cpinfra.planning.settle as settle\n"
        f"settle.usable_gpus = lambda *_, **__: os.kill(os.getpid(), {int(number)})\n"
        "from cpinfra.__main__ import run; import sys; sys.argv[1:] = ['prove']; sys.exit(run())"
    )
    made = subprocess.run(
        [*processes.SIGNALS_AT_WORK, sys.executable, "-c", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (made.returncode, made.stdout, made.stderr) == (130, "", "\ncpinfra: interrupted\n")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--python", "~nosuchuser/bin/python", "expected the path of a Python interpreter"),
        ("--python", "x" * 300, "no such file here, nor on PATH"),
        ("--run-dir", "~nosuchuser/run", "expected the path of a folder"),
        ("--run-dir", "nowhere", "a link that leads nowhere"),
        ("--ranks", "-99999999999999999999999", "must be 1 or more"),
        ("--ranks", "1\N{ARABIC-INDIC DIGIT TWO}", "expected a whole number"),
        ("--inject", "kill:\N{ARABIC-INDIC DIGIT TWO}", "expected a rank from 0 to 3"),
        ("--budget", "4e9", "at most 86400"),
        ("--skip", "*", "leave no check"),
    ],
)
def test_what_makes_no_sense_is_exit_2(tmp_path: Path, option: str, value: str, says: str) -> None:
    """A sentence that says what is valid, and nothing was started or written."""
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")

    code, out, err = ran(tmp_path, ["prove", "--device", "cpu", option, value])

    assert (code, out) == (2, "")
    assert says in " ".join(err.split())
    assert option in err
    assert [path.name for path in tmp_path.iterdir()] == ["nowhere"]


def test_leading_zeros_are_no_large_number(tmp_path: Path) -> None:
    """However many there are."""
    code, _, err = ran(tmp_path, ["prove", "--ranks", "0" * 30 + "4", "--cp", "axb"])

    assert code == 2
    assert "--ranks" not in err.partition("Error:")[2]


def test_a_fault_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """Two bit-flips undo each other, and then no check could notice them."""
    code, _, err = ran(tmp_path, ["prove", "--inject", "bit-flip", "--inject", "bit-flip"])

    assert code == 2
    assert "--inject 'bit-flip': given twice" in err


def test_a_folder_that_was_removed_is_no_fault_of_torch(tmp_path: Path) -> None:
    """From a working directory that is gone the proof runs all the same."""
    gone = tmp_path / "gone"
    gone.mkdir()
    arguments = [*PROVE, "--run-dir", str(tmp_path / "run")]
    source = (
        f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); "
        f"os.execv(sys.executable, [sys.executable, '-m', 'cpinfra', *{arguments!r}])"
    )
    made = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert made.returncode == 0, made.stderr + made.stdout


def test_a_wrapper_that_keeps_python_as_its_child_is_told_to_exec(tmp_path: Path) -> None:
    """The interpreter is fine; the script in front of it is not."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\n{shlex.quote(sys.executable)} "$@"\nexit $?\n')
    wrapper.chmod(0o755)

    code, out, _ = ran(tmp_path, [*PROVE, "--python", str(wrapper), "--json"])

    report = json.loads(out)
    assert code == 3
    assert [blocking["id"] for blocking in report["blocking"]] == ["interpreter-wrapped"]
    assert "exec" in report["blocking"][0]["remedy"]


def test_without_ranks_there_is_no_run_and_no_scope(tmp_path: Path) -> None:
    """What could not even start says nothing of the CPU."""
    code, out, _ = ran(tmp_path, [*PROVE, "--python", "/bin/ls", "--json"])

    report = json.loads(out)
    assert code == 3
    assert (report["scope"], report["runs"]) == (None, [])
    assert {check["run"] for check in report["checks"]} == {""}


def test_a_stopped_interpreter_is_told_as_stopped(tmp_path: Path) -> None:
    """One that stops itself at import hangs for a reason, and that is the reason."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    source = (
        "import cpinfra.proof.deadlines as deadlines\n"
        "deadlines.IMPORT_IDLE_S = 0.5\n"
        "from cpinfra.__main__ import run; import sys\n"
        f"sys.argv[1:] = {[*PROVE, '--json']!r}; sys.exit(run())"
    )
    made = subprocess.run(
        [sys.executable, "-c", source],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{folder}:{SOURCES}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert made.returncode == 3
    blocking = json.loads(made.stdout)["blocking"]
    assert [finding["id"] for finding in blocking] == ["zygote-stopped"]


def test_the_own_folder_is_never_pruned(tmp_path: Path) -> None:
    """Though twenty folders and more carry a later date."""
    runs = tmp_path / ".cpinfra" / "runs"
    for number in range(22):
        (runs / f"29990101-0000{number:02}-abcdefgh").mkdir(parents=True)

    code, out, _ = ran(tmp_path, [*PROVE, "--json"])

    assert code == 0
    (log, *_) = json.loads(out)["logs"]
    assert Path(log["path"]).is_file()
    assert Path(log["path"]).is_relative_to(runs)


def test_names_that_are_no_text_are_told_as_escapes(tmp_path: Path) -> None:
    """Commands repeat what was said, also a folder that is no UTF-8."""
    docs = os.fsdecode(b"z\xff")
    code, _, err = ran(tmp_path, ["build", "--rehearse", "--docs", docs])

    assert (code, err) == (0, "")
    assert json.loads((tmp_path / docs / "cp_infra.json").read_text())["verdict"] == "rehearsed"


def test_documents_do_not_go_into_the_run_folder(tmp_path: Path) -> None:
    """Both are locked: a build would wait for itself."""
    code, _, err = ran(tmp_path, ["build", "--rehearse", "--docs", "x", "--run-dir", "./x"])

    assert code == 2
    assert "--docs 'x': is --run-dir too" in err

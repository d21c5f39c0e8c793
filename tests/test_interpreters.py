"""Target interpreters that cannot be used: each way to fail is a finding of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import engine
from cpinfra.outcome import Severity
from cpinfra.proof import deadlines


def program(path: Path, text: str) -> str:
    """An executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def interpreter(folder: Path, torch: str | None) -> str:
    """A Python without any package but a `torch` of this source (None: without torch)."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    if torch is not None:
        (site,) = folder.glob("lib/python3*/site-packages")
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").write_text(torch)
        (site / "torch" / "distributed.py").write_text("def is_available():\n    return False\n")
    return str(folder / "bin" / "python")


def finding_of(tmp_path: Path, python: str) -> tuple[str, str, str]:
    """(id, got, remedy) of the one finding that a proof with this interpreter ends in."""
    ran = engine.prove(tmp_path / "run", python=python)

    (finding,) = ran.proof.findings
    assert finding.severity is Severity.BLOCKING
    assert set(ran.outcomes().values()) == {"unknown"}
    assert ran.proof.hang is None
    return finding.id, finding.got, finding.remedy


def test_a_program_that_is_not_python(tmp_path: Path) -> None:
    """Its output is quoted, and which option to use is said."""
    python = program(tmp_path / "not python", "#!/bin/sh\necho I am no snake; exit 7\n")

    name, got, remedy = finding_of(tmp_path, python)

    assert name == "interpreter-not-python"
    assert "exit code 7" in got
    assert "I am no snake" in got
    assert "--python" in remedy


def test_a_file_that_the_kernel_will_not_run(tmp_path: Path) -> None:
    """Executable by its mode, but in no format that is known."""
    name, got, _ = finding_of(tmp_path, program(tmp_path / "junk", "\0\1\2"))

    assert name == "interpreter-not-python"
    assert "Exec format error" in got


def test_a_program_that_writes_without_end_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output of what never says hello is cut at a MiB, and its silence is bounded."""
    monkeypatch.setattr(deadlines, "HELLO_MAX_S", 1.0)

    name, got, _ = finding_of(tmp_path, program(tmp_path / "yes", "#!/bin/sh\nexec yes\n"))

    assert name == "interpreter-not-python"
    assert "said nothing" in got
    assert (tmp_path / "run" / "zygote.log").stat().st_size <= 1 << 20


def test_a_program_that_writes_on_our_pipe(tmp_path: Path) -> None:
    """Bytes that are no frame are not taken for a worker."""
    noise = (
        "import os, sys, time\nos.write(int(sys.argv[4]), b'hello world, this is noise')\ntime.sleep(60)\n"
    )
    (tmp_path / "noise.py").write_text(noise)
    python = program(tmp_path / "noise", f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/noise.py" "$@"\n')

    name, got, _ = finding_of(tmp_path, python)

    assert name == "interpreter-not-python"
    assert "expected a frame" in got


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    """It says its version itself."""
    pretend = "import runpy, sys\nsys.version_info = (3, 8, 10, 'final', 0)\nsys.argv = sys.argv[1:]\n"
    pretend += "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    (tmp_path / "old.py").write_text(pretend)
    python = program(tmp_path / "old", f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/old.py" "$@"\n')

    name, got, remedy = finding_of(tmp_path, python)

    assert name == "interpreter-too-old"
    assert got == "Python 3.8.10"
    assert "--python" in remedy


def test_a_python_without_torch(tmp_path: Path) -> None:
    """The commonest mistake has a finding of its own."""
    name, got, remedy = finding_of(tmp_path, interpreter(tmp_path / "bare", None))

    assert name == "torch-missing"
    assert "No module named 'torch'" in got
    assert "--python" in remedy


def test_a_torch_that_raises_at_import(tmp_path: Path) -> None:
    """The exception is quoted."""
    python = interpreter(
        tmp_path / "raises", "raise OSError('libcudart.so.12: cannot open shared object file')"
    )

    name, got, _ = finding_of(tmp_path, python)

    assert name == "torch-import-failed"
    assert "OSError: libcudart.so.12" in got


def test_a_torch_that_crashes_at_import(tmp_path: Path) -> None:
    """The signal is named, and the stack that faulthandler printed is quoted."""
    crash = f"import os\nos.kill(os.getpid(), {signal.SIGSEGV.value})\n"

    name, got, _ = finding_of(tmp_path, interpreter(tmp_path / "crashes", crash))

    assert name == "torch-import-died"
    assert "SIGSEGV; it stood at torch/__init__.py:2 in <module>" in got


def test_a_torch_that_hangs_at_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that neither computes nor reads is ended, and the line at which it stood is quoted."""
    monkeypatch.setattr(deadlines, "IMPORT_IDLE_S", 1.0)
    python = interpreter(tmp_path / "hangs", "import time\ntime.sleep(3600)\n")

    name, got, _ = finding_of(tmp_path, python)

    assert name == "torch-import-hung"
    assert "neither computed nor read" in got
    assert "it stood at torch/__init__.py:2 in <module>" in got


def test_a_torch_that_spins_at_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that computes without end meets the outer bound."""
    monkeypatch.setattr(deadlines, "IMPORT_MAX_S", 1.5)

    name, got, _ = finding_of(tmp_path, interpreter(tmp_path / "spins", "while True:\n    pass\n"))

    assert name == "torch-import-hung"
    assert "did not end" in got


def test_a_slow_import_that_reads_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold file cache is no hang: reading counts as progress."""
    monkeypatch.setattr(deadlines, "IMPORT_IDLE_S", 0.8)
    slow = "import time\nfor _ in range(8):\n    open('/etc/passwd').read()\n    time.sleep(0.3)\n"
    slow += "raise OSError('end')\n"

    name, got, _ = finding_of(tmp_path, interpreter(tmp_path / "slow", slow))

    assert (name, "OSError: end" in got) == ("torch-import-failed", True)


def test_a_torch_without_distributed(tmp_path: Path) -> None:
    """`torch.distributed.is_available()` is asked before any attribute is touched."""
    name, got, _ = finding_of(tmp_path, interpreter(tmp_path / "alone", "from . import distributed\n"))

    assert name == "torch-no-distributed"
    assert "is_available() is False" in got


def test_a_thread_that_an_import_starts_makes_a_fork_unsafe(tmp_path: Path) -> None:
    """Ranks are not forked from a process with a second thread; its name is in the finding."""
    (tmp_path / "site").mkdir()
    hook = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    (tmp_path / "site" / "usercustomize_thread.py").write_text(hook)
    python = program(
        tmp_path / "python",
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}/site" exec "{sys.executable}" "$@"\n',
    )
    (tmp_path / "site" / "sitecustomize.py").write_text("import usercustomize_thread\n")

    name, got, _ = finding_of(tmp_path, python)

    assert name == "fork-unsafe"
    assert "1 threads beside the main one" in got


def requirements(name: str) -> Iterator[metadata.Distribution]:
    """A distribution and all that it needs here, each at least once."""
    found = metadata.distribution(name)
    yield found
    for line in found.requires or ():
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            yield from requirements(wanted.name)


def with_torch_alone(folder: Path) -> str:
    """A Python with this one's torch and what torch needs, and nothing of what cpinfra needs."""
    python = interpreter(folder, None)
    (site,) = folder.glob("lib/python3*/site-packages")
    for found in requirements("torch"):
        tops = {Path(str(file)).parts[0] for file in found.files or () if ".." not in Path(str(file)).parts}
        for top in tops:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))
    return python


def test_torch_alone_is_enough_beside_conflicting_modules(tmp_path: Path) -> None:
    """None of our dependencies, and `checks`, `comm`, `probe`, `cpinfra` of others in site-packages."""
    python = with_torch_alone(tmp_path / "alone")
    (site,) = (tmp_path / "alone").glob("lib/python3*/site-packages")
    for name in ("checks", "comm", "probe", "cpinfra", "worker", "outcome", "proof"):
        (site / f"{name}.py").write_text(f"raise RuntimeError('the wrong {name} was imported')\n")
    absent = "import click, pydantic, rich, pynvml"
    assert subprocess.run([python, "-c", absent], stderr=subprocess.DEVNULL, check=False).returncode == 1

    ran = engine.prove(tmp_path / "run", python=python)

    assert set(ran.outcomes().values()) == {"pass"}
    assert ran.proof.software is not None
    assert ran.proof.software["python"] == python


def test_modules_on_pythonpath_are_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are those that the user's PYTHONPATH or working directory hold."""
    for name in ("checks", "comm", "probe", "cpinfra", "worker", "outcome"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('the wrong {name} was imported')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)

    ran = engine.prove(tmp_path / "run", only="collective.*")

    assert set(ran.outcomes().values()) == {"pass"}

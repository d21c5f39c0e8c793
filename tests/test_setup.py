"""The set-up behind `make demo` and `make test`: what it says when this machine cannot do it.

That it works where it can is what every run of the gate shows.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
SETUP = PROJECT / "tools" / "setup.sh"
DEMO = PROJECT / "tools" / "demo.sh"
TOOLS = ("sh", "dirname", "cat", "sed", "env")


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A folder, with a space in its name, to be all of PATH: the tools of the scripts and no Python."""
    folder = tmp_path / "bare bin"
    folder.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def pretend(folder: Path, name: str, *, version: str = "", without: str = "nothing at all") -> Path:
    """A `python` that says it has this version, and cannot run code that names `without`."""
    says = f"echo {version}; exit 0" if version else f'exec "{sys.executable}" "$@"'
    path = folder / name
    path.write_text(f'#!/bin/sh\ncase "$2" in *"{without}"*) exit 1 ;; esac\n{says}\n')
    path.chmod(0o755)
    return path


def run(script: Path, *arguments: str, path: Path, python: object = "") -> subprocess.CompletedProcess[str]:
    """Run a script as on a machine that has this PATH, and no HOME."""
    environment = {"PATH": str(path), "PYTHON": str(python)}
    command = [str(path / "sh"), str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_finds_the_first_usable_interpreter(bare_path: Path) -> None:
    """3.11 before 3.12 before the default; one that does not start at all is passed over."""
    (bare_path / "python3.11").write_text("#!/bin/sh\necho 'no such version is set' >&2\nexit 127\n")
    (bare_path / "python3.11").chmod(0o755)
    wanted = pretend(bare_path, "python3.12")
    pretend(bare_path, "python3")

    ended = run(SETUP, "find", path=bare_path)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{wanted}\n", "")


def test_names_each_interpreter_and_what_it_lacks(bare_path: Path) -> None:
    """On a Debian without python3-venv, beside a Python that is too old: one line, with the remedy."""
    pretend(bare_path, "python3.10", version="3.9")
    pretend(bare_path, "python3", without="ensurepip")
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"

    ended = run(SETUP, "find", path=bare_path)

    assert (ended.returncode, ended.stdout) == (1, "")
    assert len(ended.stderr.splitlines()) == 1
    assert "python3.10 is 3.9" in ended.stderr
    assert f"python3 cannot make virtual environments (apt-get install python{own}-venv)" in ended.stderr


def test_says_so_where_there_is_no_python(bare_path: Path) -> None:
    """And names both ways on."""
    ended = run(SETUP, "find", path=bare_path)

    assert ended.returncode == 1
    assert "got: none on PATH" in ended.stderr
    assert "apt-get install python3-venv" in ended.stderr
    assert "PYTHON=/path" in ended.stderr


def test_an_interpreter_that_was_asked_for_is_never_replaced(bare_path: Path) -> None:
    """`make test PYTHON=...` tests that one, or says why not."""
    pretend(bare_path, "python3")
    old = pretend(bare_path, "old python", version="3.8")

    ended = run(SETUP, "dev", path=bare_path, python=old)

    assert ended.returncode == 1
    assert f"got: {old} is 3.8" in ended.stderr


def test_rejects_an_unknown_kind(bare_path: Path) -> None:
    """What is valid is named."""
    ended = run(SETUP, "all", path=bare_path)

    assert ended.returncode == 1
    assert ended.stderr == "setup: expected dev, user or find, got all\n"


@pytest.fixture
def project(tmp_path: Path, bare_path: Path) -> Path:
    """A copy of what the set-up reads; the python of its .venv notes what pip is asked for, installs nothing.

    Files `unreachable` and `no-wheel` in the copy make PyTorch's index unreachable, or without the wheel.
    """
    copy = tmp_path / "a copy"
    for name in ("pyproject.toml", "hatch_build.py", "tools/setup.sh"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, copy / name)
    python = copy / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in\n'
        '"-m pip") shift 3; echo "$*" >>asked; [ ! -e no-wheel ] || [ "$3" != --index-url ] ;;\n'
        '"- https:"*) [ ! -e unreachable ] ;;\n'
        '"- "*) exit 1 ;;\n'  # it has no torch
        '"-c import os, pip"*) exit 0 ;;\n'
        f'*) exec "{sys.executable}" "$@" ;;\n'
        "esac\n"
    )
    python.chmod(0o755)
    return copy


INDEX = "https://download.pytorch.org/whl/cpu"


@pytest.mark.parametrize(
    ("trouble", "torch"),
    [
        ("", ["--index-url {index} --no-deps {torch}"]),
        ("no-wheel", ["--index-url {index} --no-deps {torch}", "{torch}"]),
        ("unreachable", ["{torch}"]),
    ],
)
def test_pytorchs_index_serves_torch_alone(
    project: Path, bare_path: Path, trouble: str, torch: list[str]
) -> None:
    """What torch needs, and all else, comes from pip's own sources; so does torch where the index fails."""
    if trouble:
        (project / trouble).touch()

    ended = run(project / "tools" / "setup.sh", "dev", path=bare_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    asked = [line.removeprefix("install --quiet ") for line in (project / "asked").read_text().splitlines()]
    facts = {"index": INDEX, "torch": "torch==2.13.0"}
    assert asked == [*(line.format(**facts) for line in torch), "--editable .[dev]"]


def test_supported_pythons_are_those_of_the_classifiers() -> None:
    """What the set-up accepts, what its message says, and what the package claims."""
    script, toml = SETUP.read_text(), (PROJECT / "pyproject.toml").read_text()
    (accepted,) = re.findall(r"is_supported\(\) \{ case \$1 in (.+?)\)", script)
    versions = accepted.split(" | ")

    assert versions == re.findall(r'"Programming Language :: Python :: (3\.\d+)"', toml)
    assert f"needs Python {versions[0]} to {versions[-1]} that" in script


def test_what_the_gate_runs_is_pinned() -> None:
    """Each tool of the dev extra to one version."""
    toml = (PROJECT / "pyproject.toml").read_text()
    (extra,) = re.findall(r"^dev = \[\n(.*?)^\]", toml, re.MULTILINE | re.DOTALL)
    tools = re.findall(r'^    "([^"]+)"', extra, re.MULTILINE)

    assert len(tools) >= 8
    assert [tool for tool in tools if not re.match(r"[a-z-]+==[\d.]+(;|$)", tool)] == []


@pytest.mark.parametrize(
    ("name", "without", "said"),
    [
        ("absent", "", "no such program"),
        ("old", "version_info", "older than Python 3.10, or broken"),
        ("no torch", "find_spec", "has no torch"),
    ],
)
def test_demo_refuses_an_interpreter_before_it_installs(
    bare_path: Path, name: str, without: str, said: str
) -> None:
    """`make demo PYTHON=...` looks at the interpreter first."""
    path = pretend(bare_path, name, without=without) if without else bare_path / name

    ended = run(DEMO, path=bare_path, python=path)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"demo: PYTHON={path}: {said}; name an interpreter that has torch, or leave PYTHON out\n"
    )


@pytest.mark.parametrize("given", [False, True])
def test_demo_says_what_to_call_next(bare_path: Path, tmp_path: Path, given: bool) -> None:
    """With the interpreter that was named, quoted for a shell, and ends as the proof did."""
    copy = tmp_path / "demo"
    for name, text in (("tools/setup.sh", "exit 0"), (".venv/bin/cpinfra", 'echo "proved $*"; exit 3')):
        (copy / name).parent.mkdir(parents=True)
        (copy / name).write_text(f"#!/bin/sh\n{text}\n")
        (copy / name).chmod(0o755)
    shutil.copy(DEMO, copy / "tools" / "demo.sh")
    python = pretend(bare_path, "your python") if given else ""

    ended = run(copy / "tools" / "demo.sh", path=bare_path, python=python)

    said = f" --python '{python}'" if given else ""
    assert ended.returncode == 3, ended.stderr
    assert f"  .venv/bin/cpinfra selftest --device cpu{said}    # " in ended.stdout
    assert f"  .venv/bin/cpinfra prove --device cpu --inject kill:2{said}    # " in ended.stdout


@pytest.mark.parametrize("script", [SETUP, DEMO, PROJECT / ".ci" / "run"])
def test_scripts_can_be_executed(script: Path) -> None:
    """They are called by name, also from a fresh clone."""
    assert os.access(script, os.X_OK)

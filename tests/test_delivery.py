"""The worker's zip: what is in it, that it is always the same, and that it keeps to itself."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cpinfra
import torch_alone
from cpinfra.proof import delivery
from cpinfra.proof.delivery import DeliveryError
from cpinfra.proof.delivery import build_zip
from cpinfra.proof.delivery import stage
from cpinfra.proof.delivery import zip_name
from cpinfra.worker import zip_main
from cpinfra.worker.channel import Reader

SOURCE = Path(cpinfra.__file__).parent
PROJECT = SOURCE.parents[1]
CONFLICTING = ("checks", "comm", "probe", "cpinfra")
PACKAGES = ("hardware", "node", "planning", "proof", "software", "worker")
MODULES = ("cgroup_tree.py", "files.py", "mesh.py", "outcome.py", "text.py")
TOO_OLD = ("python2.7", "python3.5", "python3.6", "python3.7", "python3.8", "python3.9")
NEWER = ("python3.10", "python3.11", "python3.12", "python3.13", "python3.14")

# A worker that tells what it finds: its path, where a module of its own still comes from, its arguments.
TELLING_WORKER = """
import json, os, sys
def main(argv):
    os.chdir("/")
    from . import late
    from ..proof import nothing
    print(json.dumps({"path": sys.path, "late": late.__file__, "argv": argv, "executable": sys.executable}))
    return 7
"""


@pytest.fixture
def small_source(tmp_path: Path) -> Path:
    """A package tree with the real start file and a worker that tells what it finds."""
    source = tmp_path / "small source" / "cpinfra"
    for folder in (*PACKAGES, "cli"):
        (source / folder).mkdir(parents=True)
        (source / folder / "__init__.py").touch()
    (source / "__init__.py").write_text('import click\n__version__ = "1.2.3"\n')
    for name in MODULES:
        (source / name).touch()
    (source / "proof" / "nothing.py").touch()
    (source / "cli" / "main.py").touch()
    (source / "worker" / "main.py").write_text(TELLING_WORKER)
    (source / "worker" / "late.py").touch()
    shutil.copy(SOURCE / delivery.ENTRY, source / delivery.ENTRY)
    return source


def run(
    *command: object, cwd: Path | None = None, fds: tuple[int, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment where no variable tells Python where to look."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    words = [str(word) for word in command]
    return subprocess.run(
        words, cwd=cwd, env=env, pass_fds=fds, capture_output=True, text=True, timeout=60, check=False
    )


def told_by(*command: object, cwd: Path | None = None) -> dict[str, Any]:
    """What the telling worker printed; it must end with its own exit status."""
    ended = run(*command, cwd=cwd)
    assert ended.returncode == 7, ended.stderr
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


def usable(names: tuple[str, ...]) -> list[str]:
    """Those interpreters of PATH that start at all: a version manager's shim may be there and refuse."""
    found = [path for path in map(shutil.which, names) if path]
    return [path for path in found if run(path, "-c", "").returncode == 0]


def test_zip_holds_one_package_and_its_start(tmp_path: Path) -> None:
    """Nothing of the zip is importable but `_cpinfra_worker`, and what needs a dependency is not in it."""
    with zipfile.ZipFile(build_zip(SOURCE, tmp_path)) as archive:
        names = archive.namelist()

    assert {name.split("/")[0] for name in names} == {"__main__.py", "_cpinfra_worker"}
    inside = {name.split("/")[1] for name in names if "/" in name}
    assert inside == {"__init__.py", *MODULES, *PACKAGES}
    assert "_cpinfra_worker/software/models.py" in names
    assert "_cpinfra_worker/software/requirements.py" not in names
    assert sorted(names) == names
    assert len(names) == len(set(names))


def test_every_source_of_its_packages_is_in_the_zip(tmp_path: Path) -> None:
    """A file that is added to one of them is delivered, unchanged, without being named anywhere."""
    sources = [path for part in PACKAGES for path in (SOURCE / part).rglob("*.py")]
    sources.remove(SOURCE / "software" / "requirements.py")
    with zipfile.ZipFile(build_zip(SOURCE, tmp_path)) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}

    assert len(sources) >= 5
    for path in sources:
        assert packed[f"_cpinfra_worker/{path.relative_to(SOURCE).as_posix()}"] == path.read_bytes()


def test_zip_is_named_by_its_bytes(tmp_path: Path) -> None:
    """`sha256sum` of the file tells anybody whether it is the one that its name says."""
    built = build_zip(SOURCE, tmp_path)

    digest = hashlib.sha256(built.read_bytes()).hexdigest()
    assert built.name == f"cpinfra_worker-{digest[:12]}.zip"


def test_same_sources_give_the_same_bytes(small_source: Path, tmp_path: Path) -> None:
    """Neither the time, nor modes, nor the order of files decides the hash."""
    first = build_zip(small_source, tmp_path / "a").read_bytes()
    copy = tmp_path / "copy"
    for path in sorted(small_source.rglob("*"), reverse=True):
        if path.is_file():
            target = copy / path.relative_to(small_source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            target.chmod(0o700)
            os.utime(target, (1, 1))

    assert build_zip(copy, tmp_path / "b").read_bytes() == first


def test_a_changed_source_gives_another_name(small_source: Path, tmp_path: Path) -> None:
    """One byte more in a module, or another version, is another zip."""
    names = {build_zip(small_source, tmp_path).name}
    (small_source / "worker" / "late.py").write_text("#")
    names.add(build_zip(small_source, tmp_path).name)
    (small_source / "__init__.py").write_text('__version__ = "1.2.4"\n')
    names.add(build_zip(small_source, tmp_path).name)

    assert len(names) == 3


def test_zip_states_the_version_and_imports_nothing_of_the_package(
    small_source: Path, tmp_path: Path
) -> None:
    """The package's own `__init__.py` may come to need a dependency; the zip's never does."""
    with zipfile.ZipFile(build_zip(small_source, tmp_path)) as archive:
        text = archive.read("_cpinfra_worker/__init__.py").decode()

    assert '__version__ = "1.2.3"' in text
    assert "import" not in text


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        ("files.py", "files.py"),
        ("outcome.py", "outcome.py"),
        ("worker/zip_main.py", "zip_main.py"),
        ("__init__.py", "__init__.py"),
        ("proof", r"proof/\*\*/\*.py"),
        ("worker/__init__.py", "worker/__init__.py"),
    ],
)
def test_rejects_an_incomplete_source(small_source: Path, tmp_path: Path, removed: str, named: str) -> None:
    """What is missing is named; no zip without it is written."""
    path = small_source / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    with pytest.raises(DeliveryError, match=named):
        build_zip(small_source, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_rejects_a_source_without_version(small_source: Path, tmp_path: Path) -> None:
    """A zip that cannot say its version is not built."""
    (small_source / "__init__.py").write_text("version = 3\n")

    with pytest.raises(DeliveryError, match="expected __version__"):
        build_zip(small_source, tmp_path)


def test_start_takes_the_zip_off_the_path(small_source: Path, tmp_path: Path) -> None:
    """The worker's own modules still load, in another folder too; its arguments and exit status pass."""
    built = build_zip(small_source, tmp_path)

    told = told_by(sys.executable, built, "zygote", "--events", "9")

    assert [entry for entry in told["path"] if str(built) in entry] == []
    assert told["late"] == f"{built}/_cpinfra_worker/worker/late.py"
    assert told["argv"] == ["zygote", "--events", "9"]


def test_start_works_from_a_relative_path(small_source: Path, tmp_path: Path) -> None:
    """The worker changes its folder and imports more afterwards."""
    built = build_zip(small_source, tmp_path)

    assert told_by(sys.executable, built.name, cwd=tmp_path)["late"].startswith(f"{built}/")


def test_an_older_python_is_refused_with_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor reads which Python it was and where; the exit status is 3."""
    reading, writing = os.pipe()
    monkeypatch.setattr(sys, "version_info", (3, 8, 10, "final", 0))

    status = zip_main.main(["zygote", "--events", str(writing), "--more"])

    os.close(writing)
    frame = os.read(reading, 1 << 16)
    os.close(reading)
    assert status == 3
    assert list(Reader().feed(frame)) == [
        {"event": "too-old", "python": "3.8.10", "executable": sys.executable}
    ]


@pytest.mark.parametrize("argv", [[], ["zygote"], ["--events"], ["--events", "x"]])
def test_an_older_python_without_a_pipe_tells_the_person(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who runs the zip by hand reads what is needed and what was there."""
    monkeypatch.setattr(sys, "version_info", (3, 9, 1, "final", 0))

    assert zip_main.main(argv) == 3
    said = capfd.readouterr().err
    assert "needs Python 3.10 or newer, got 3.9.1" in said
    assert sys.executable in said


def test_start_file_keeps_to_the_grammar_of_python_2() -> None:
    """Where no old interpreter is at hand, the parse tree shows that none of its newer syntax is used."""
    text = (SOURCE / delivery.ENTRY).read_text()
    tree = ast.parse(text, feature_version=(3, 7))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef, ast.Nonlocal, ast.YieldFrom)
    found = [
        type(node).__name__ for node in ast.walk(tree) if isinstance(node, (*newer, ast.Starred, ast.Match))
    ]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]

    assert len(functions) >= 4
    assert found == []
    for function in functions:
        arguments = function.args
        assert function.returns is None
        assert [*arguments.kwonlyargs, *arguments.posonlyargs] == []
        assert all(argument.annotation is None for argument in arguments.args)
    assert all(node.cause is None for node in ast.walk(tree) if isinstance(node, ast.Raise))
    assert "__future__" not in text
    assert text.isascii()


def test_old_interpreters_really_say_so(tmp_path: Path) -> None:
    """Each too old Python on PATH runs the zip far enough to write the frame."""
    interpreters = usable(TOO_OLD)
    if not interpreters:
        pytest.skip(f"none of {', '.join(TOO_OLD)} on PATH")
    built = build_zip(SOURCE, tmp_path)
    for interpreter in interpreters:
        reading, writing = os.pipe()
        ended = run(interpreter, built, "zygote", "--events", writing, fds=(writing,))
        os.close(writing)
        (message,) = Reader().feed(os.read(reading, 1 << 16))
        os.close(reading)

        assert (ended.returncode, ended.stderr) == (3, ""), interpreter
        assert message["event"] == "too-old"
        assert message["python"].startswith(Path(interpreter).name.removeprefix("python"))


def test_every_newer_interpreter_starts_the_zip(small_source: Path, tmp_path: Path) -> None:
    """Each supported Python on PATH, this one at least, gets as far as the worker."""
    built = build_zip(small_source, tmp_path)
    for interpreter in [sys.executable, *usable(NEWER)]:
        assert told_by(interpreter, built)["argv"] == [], interpreter


def test_stage_builds_from_the_source_tree(tmp_path: Path) -> None:
    """Without a shipped zip the tree that runs is what the ranks get."""
    staged = stage(tmp_path / "run folder")

    assert staged.read_bytes() == build_zip(SOURCE, tmp_path).read_bytes()
    assert [path.name for path in staged.parent.iterdir()] == [staged.name]


def installed(source: Path, folder: Path) -> Path:
    """A copy of the package as a wheel installs it, without a shipped zip yet; returns its `_shipped`."""
    shutil.copytree(source, folder / "cpinfra", ignore=shutil.ignore_patterns("__pycache__"))
    shipped = folder / "cpinfra" / delivery.SHIPPED
    shipped.mkdir()
    return shipped


STAGE = """
import sys
from pathlib import Path
sys.path.insert(0, {site!r})
from cpinfra.proof.delivery import stage
print(stage(Path({run!r})))
"""


def staged_by(site: Path, run_folder: Path) -> subprocess.CompletedProcess[str]:
    """Stage with the package of another installation."""
    return run(sys.executable, "-c", STAGE.format(site=str(site), run=str(run_folder)))


def test_stage_takes_the_shipped_zip(small_source: Path, tmp_path: Path) -> None:
    """An installed wheel hands out the zip that was built with it."""
    shipped = build_zip(small_source, installed(SOURCE, tmp_path / "site"))

    ended = staged_by(tmp_path / "site", tmp_path / "run")

    assert ended.stdout.strip() == str(tmp_path / "run" / shipped.name), ended.stderr
    assert (tmp_path / "run" / shipped.name).read_bytes() == shipped.read_bytes()


def test_stage_rejects_a_damaged_shipped_zip(small_source: Path, tmp_path: Path) -> None:
    """Bytes that do not belong to the name are not run."""
    shipped = build_zip(small_source, installed(SOURCE, tmp_path / "site"))
    shipped.write_bytes(shipped.read_bytes()[:-1])

    ended = staged_by(tmp_path / "site", tmp_path / "run")

    assert ended.returncode == 1
    assert f"{shipped.name}: damaged" in ended.stderr
    assert not (tmp_path / "run").exists()


def test_stage_rejects_two_shipped_zips(small_source: Path, tmp_path: Path) -> None:
    """Which of them belongs to this package could only be guessed."""
    folder = installed(SOURCE, tmp_path / "site")
    names = {build_zip(small_source, folder).name, build_zip(SOURCE, folder).name}

    ended = staged_by(tmp_path / "site", tmp_path / "run")

    assert ended.returncode == 1
    assert all(name in ended.stderr for name in names)


def test_the_zip_stages_itself(tmp_path: Path) -> None:
    """On a node that has only the zip, it can be handed on."""
    built = build_zip(SOURCE, tmp_path / "first")
    program = (
        f"import sys; sys.path.insert(0, {str(built)!r}); from pathlib import Path;"
        "from _cpinfra_worker.proof.delivery import stage;"
        f"print(stage(Path({str(tmp_path / 'second')!r})))"
    )

    ended = run(sys.executable, "-c", program)

    assert ended.stdout.strip() == str(tmp_path / "second" / built.name), ended.stderr
    assert (tmp_path / "second" / built.name).read_bytes() == built.read_bytes()


def test_many_stagings_at_once_leave_one_whole_zip(tmp_path: Path) -> None:
    """Ranks of one host share a run folder; each reads a whole file whenever it looks."""
    with ThreadPoolExecutor(8) as pool:
        staged = list(pool.map(lambda _: stage(tmp_path).read_bytes(), range(24)))

    assert len(set(staged)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [zip_name(staged[0])]


def test_failed_staging_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, say, leaves no half file that a later run could take for a whole one."""

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)

    with pytest.raises(OSError, match="No space left"):
        stage(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def hostile_python(tmp_path: Path) -> Path:
    """An interpreter whose site-packages hold modules of our names, and none of our dependencies."""
    folder = tmp_path / "hostile"
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name in CONFLICTING:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"THEIRS = {name!r}\n")
    return folder / "bin" / "python"


# Imports all of the zip that needs no torch, as its start does, then the user's modules of the same names.
IMPORT_ALL = """
import importlib, json, sys
sys.path.insert(0, {zip!r})
import _cpinfra_worker
del sys.path[0]
for name in {names!r}:
    importlib.import_module("_cpinfra_worker." + name)
early = sorted(set({conflicting!r}) & set(sys.modules))
ours = {{n: m.__file__ for n, m in sys.modules.items() if n.split(".")[0] == "_cpinfra_worker"}}
theirs = {{n: importlib.import_module(n).THEIRS for n in {conflicting!r}}}
absent = [n for n in ("click", "pydantic", "rich", "torch") if not importlib.util.find_spec(n)]
print(json.dumps({{"early": early, "ours": ours, "theirs": theirs, "absent": absent}}))
"""


def test_names_of_the_user_are_not_in_the_way(hostile_python: Path, tmp_path: Path) -> None:
    """With a `checks`, `comm`, `probe`, `cpinfra` installed, ours come from the zip, theirs from theirs."""
    built = build_zip(SOURCE, tmp_path)
    names = ["outcome", "proof.delivery", "worker.channel", "worker.ledger", "worker.spec"]
    names += ["node.main", "node.probe", "node.smoke_document", "hardware.by_torch", "software.models"]
    program = IMPORT_ALL.format(zip=str(built), names=names, conflicting=CONFLICTING)

    ended = run(hostile_python, "-c", program)

    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["early"] == []
    assert {f"_cpinfra_worker.{name}" for name in names} <= set(told["ours"])
    assert all(file.startswith(f"{built}/") for file in told["ours"].values())
    assert told["theirs"] == {name: name for name in CONFLICTING}
    assert told["absent"] == ["click", "pydantic", "rich", "torch"]


def test_ranks_run_beside_the_users_modules_of_our_names(tmp_path: Path) -> None:
    """A whole smoke run, with torch, where `checks`, `comm`, `probe` and `cpinfra` are somebody else's."""
    python = torch_alone.make(tmp_path / "theirs")
    for name in CONFLICTING:
        (torch_alone.site_of(python) / name).mkdir()
        (torch_alone.site_of(python) / name / "__init__.py").write_text("raise ImportError('theirs')\n")
    built = build_zip(SOURCE, tmp_path)

    options = ("--world-size", 2, "--device", "cpu", "--only", "p2p.ring", "--only", "dtensor.roundtrip_1d")
    ended = torch_alone.run(python, built, "smoke", *options, cwd=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "verdict: rehearsed, scope rehearsal" in ended.stdout


def test_wheel_ships_the_zip_of_its_sources(tmp_path: Path) -> None:
    """What an installed cpinfra hands to ranks is byte for byte what the source tree builds."""
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling, of the dev extra")
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
    shutil.copytree(PROJECT, tree, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    ended = run(
        *pip, "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", tmp_path / "dist", tree
    )
    assert ended.returncode == 0, ended.stderr

    (wheel,) = (tmp_path / "dist").glob("cpinfra-*-py3-none-any.whl")
    built = build_zip(SOURCE, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        shipped = [name for name in archive.namelist() if "/_shipped/" in name]
        assert shipped == [f"cpinfra/_shipped/{built.name}"]
        assert archive.read(shipped[0]) == built.read_bytes()
        assert "cpinfra/py.typed" in archive.namelist()
    assert not (tree / "src" / "cpinfra" / "_shipped").exists()

"""The worker's half: one JSON document that tells what an import came to, whatever the module does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import fake_models
from cpinfra.worker import exceptions
from cpinfra.worker.signals import RESULT_LOST_EXIT
from fake_models import PYTHON
from fake_models import distribution
from fake_models import environment
from fake_models import module


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What one run of the worker left."""

    answer: bytes
    stdout: bytes
    stderr: bytes
    returncode: int

    @property
    def document(self) -> dict[str, Any]:
        """The answer, which must be one JSON object."""
        document: dict[str, Any] = json.loads(self.answer)
        return document


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker's zip."""
    return fake_models.worker_zip(tmp_path_factory.mktemp("worker"))


def ask(worker: Path, name: str, *folders: Path, cwd: Path | None = None, **variables: str) -> Asked:
    """Run the worker as the supervisor does, its answer in a file."""
    with (worker.parent / "answer").open("w+b") as answer:
        command = [PYTHON, str(worker), "model", "--name", name, "--result", str(answer.fileno())]
        done = subprocess.run(
            command,
            env=environment(*folders, **variables),
            pass_fds=(answer.fileno(),),
            cwd=cwd,
            capture_output=True,
            timeout=60,
            check=False,
        )
        answer.seek(0)
        return Asked(answer=answer.read(), stdout=done.stdout, stderr=done.stderr, returncode=done.returncode)


def test_a_module_that_imports(worker: Path, tmp_path: Path) -> None:
    """Its file, its duration, and nothing of an error."""
    path = module(tmp_path, "good", "x = 1")

    asked = ask(worker, "good", tmp_path)

    told = asked.document
    assert asked.returncode == 0
    assert told["imported"] is True
    assert (told["error"], told["missing"], told["traceback"]) == (None, None, "")
    assert told["path"] == told["found_at"] == str(path)
    assert 0 <= told["seconds"] < 60
    assert told["providers"] == []


def test_a_namespace_tells_its_folders(worker: Path, tmp_path: Path) -> None:
    """It has no file of its own."""
    module(tmp_path / "a", "space.one")
    module(tmp_path / "b", "space.two")

    told = ask(worker, "space", tmp_path / "a", tmp_path / "b").document

    assert told["imported"] is True
    assert told["path"] == f"{tmp_path}/a/space:{tmp_path}/b/space"


def test_the_working_directory_is_looked_at_as_python_c_does(worker: Path, tmp_path: Path) -> None:
    """A module that only lies there imports, unless the user has switched that off."""
    module(tmp_path, "here", "import sys; assert sys.argv == ['-c']")

    assert ask(worker, "here", cwd=tmp_path).document["imported"] is True
    if hasattr(sys.flags, "safe_path"):
        assert ask(worker, "here", cwd=tmp_path, PYTHONSAFEPATH="1").document["imported"] is False


def test_our_own_modules_are_in_nobodys_way(worker: Path, tmp_path: Path) -> None:
    """The model's modules of the same names are the model's, and the zip is not on its path."""
    for name in ("worker", "distributions", "channel", "model_import"):
        module(tmp_path, name, "mine = True")
    module(
        tmp_path, "model", "import worker, distributions, channel, model_import as m, sys\nassert m.mine\n"
        "assert not [entry for entry in sys.path if 'cpinfra_worker' in entry]",
    )  # fmt: skip

    told = ask(worker, "model", tmp_path).document

    assert told["error"] is None


def test_a_module_that_does_not_exist(worker: Path, tmp_path: Path) -> None:
    """It names itself as what is missing, and is on no path."""
    told = ask(worker, "no_such.model", tmp_path).document

    assert told["imported"] is False
    assert told["error"] == {"type": "ModuleNotFoundError", "text": "No module named 'no_such'"}
    assert (told["missing"], told["found"], told["path"]) == ("no_such", False, None)


def test_a_dependency_that_does_not_exist(worker: Path, tmp_path: Path) -> None:
    """The dependency is named, the model itself was found; metadata are told all the same."""
    path = module(tmp_path, "model", "import no_such_dependency")
    distribution(tmp_path, "model", requires=["no-such-dependency>=2"])

    told = ask(worker, "model", tmp_path).document

    assert told["imported"] is False
    assert (told["missing"], told["found"], told["found_at"]) == ("no_such_dependency", True, str(path))
    assert told["traceback"].splitlines()[1] == f'  File "{path}", line 1, in <module>'
    assert told["providers"][0]["requires_dist"] == ["no-such-dependency>=2"]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("raise RuntimeError('no kernel image')", "RuntimeError", "no kernel image"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", ""),
        ("def f(:", "SyntaxError", "(model.py, line 1)"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E", "cannot be had"),
        ("raise ImportError('caf\\udce9')", "ImportError", "caf\udce9"),
    ],
)
def test_what_an_import_raises(worker: Path, tmp_path: Path, text: str, kind: str, said: str) -> None:
    """Whatever it is, and whatever its text is: type, text and traceback are told."""
    module(tmp_path, "model", text)

    told = ask(worker, "model", tmp_path).document

    assert told["imported"] is False
    assert told["error"]["type"] == kind
    assert said in told["error"]["text"]
    assert kind in told["traceback"]
    assert "model_import.py" not in told["traceback"]


def test_long_texts_are_bounded(worker: Path, tmp_path: Path) -> None:
    """Of a traceback the end is kept, of a message both ends."""
    module(tmp_path, "model", "raise RuntimeError('a' * 10_000_000 + 'the end')")

    told = ask(worker, "model", tmp_path).document

    assert len(told["traceback"]) == exceptions.TRACEBACK_MAX
    assert told["traceback"].endswith("the end\n")
    assert told["error"]["text"].startswith("aaa")
    assert told["error"]["text"].endswith("the end")
    assert len(told["error"]["text"]) < exceptions.TEXT_MAX + 10


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("", 0), ("3", 3), ("'words'", 1)])
def test_sys_exit_is_no_import(worker: Path, tmp_path: Path, code: str, status: int) -> None:
    """The exit code that the interpreter would have had is told; it has not imported anything."""
    module(tmp_path, "model", f"import sys; sys.exit({code})")

    told = ask(worker, "model", tmp_path).document

    assert (told["imported"], told["exit_code"]) == (False, status)


@pytest.mark.parametrize(
    "text",
    ["import os; os._exit(0)", "import os; os.execv('/bin/true', ['true'])"],
)
def test_an_interpreter_that_is_gone_never_says_imported(worker: Path, tmp_path: Path, text: str) -> None:
    """Exit code 0 is no import; what metadata say stands in the answer's first line."""
    module(tmp_path, "model", text)

    asked = ask(worker, "model", tmp_path)

    assert asked.returncode == 0
    assert b'"imported"' not in asked.answer
    assert json.loads(asked.answer.rstrip(b",\n") + b"}")["found"] is True


def test_all_descriptors_closed(worker: Path, tmp_path: Path) -> None:
    """The answer cannot be given; the exit code says so. A file of the model's at that number is spared."""
    module(
        tmp_path, "model",
        "import os\nos.closerange(3, 256)\nf = [os.open('mine', os.O_CREAT | os.O_RDWR) for _ in range(64)]",
    )  # fmt: skip

    asked = ask(worker, "model", tmp_path, cwd=tmp_path)

    assert asked.returncode == RESULT_LOST_EXIT
    assert b'"imported"' not in asked.answer
    assert (tmp_path / "mine").read_bytes() == b""


def test_what_is_printed_is_not_the_answer(worker: Path, tmp_path: Path) -> None:
    """A module that prints what looks like ours changes nothing, and its words are flushed."""
    module(tmp_path, "model", "print('{\"imported\": true}')\nraise RuntimeError('no')")

    asked = ask(worker, "model", tmp_path)

    assert asked.document["imported"] is False
    assert asked.stdout == b'{"imported": true}\n'


def test_streams_in_whose_place_anything_was_put(worker: Path, tmp_path: Path) -> None:
    """That the output cannot be flushed does not matter."""
    module(tmp_path, "model", "import sys\nsys.stdout = None\nsys.stderr = 3")

    asked = ask(worker, "model", tmp_path)

    assert (asked.document["imported"], asked.returncode) == (True, 0)


def test_no_child_has_the_descriptor_of_the_answer(worker: Path, tmp_path: Path) -> None:
    """Neither one that is executed, nor one that is forked; and a forked one that returns does not answer."""
    module(
        tmp_path, "model",
        """
        import os, subprocess, sys
        def fds(): return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if
                           os.path.exists(f"/proc/self/fd/{fd}")}
        assert any(name.endswith("/answer") for name in fds())
        seen = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True, close_fds=False)
        assert "/answer" not in seen.stdout, seen.stdout
        pid = os.fork()
        if pid == 0:
            if any(name.endswith("/answer") for name in fds()):
                os._exit(3)
        else:
            assert os.waitpid(pid, 0)[1] == 0
        """,
    )  # fmt: skip

    asked = ask(worker, "model", tmp_path)

    assert asked.document["error"] is None
    assert asked.answer.count(b"\n") == 2


def test_a_module_that_puts_something_else_in_its_place(worker: Path, tmp_path: Path) -> None:
    """As lazy modules do: it is imported, and where it lies is known from before."""
    path = module(tmp_path, "model", "import sys\nsys.modules[__name__] = object()")

    told = ask(worker, "model", tmp_path).document

    assert (told["imported"], told["path"], told["found_at"]) == (True, None, str(path))


def test_the_marker_environment_is_that_of_the_interpreter(worker: Path, tmp_path: Path) -> None:
    """The same as packaging computes it where it is installed."""
    from packaging.markers import default_environment

    assert ask(worker, "json").document["markers"] == dict(default_environment())


def providers(worker: Path, name: str, *folders: Path) -> list[tuple[str, str, bool]]:
    """(Distribution, how it is known, whether it holds the module that was found) of each provider."""
    told = ask(worker, name, *folders).document
    return [(one["name"], one["how"], one["holds"]) for one in told["providers"]]


@pytest.mark.parametrize(
    "metadata",
    [
        {"files": ["fold/__init__.py", "Fold_CP-1.0.dist-info/METADATA"]},
        {"files": ["fold.py"]},
        {"files": ["fold.cpython-311-x86_64-linux-gnu.so"]},
        {"files": ["fold.abi3.so"]},
        {"files": ['"fold/a,b.py"']},
        {"top_level": "other\nfold"},
    ],
)
def test_a_distribution_of_another_name(worker: Path, tmp_path: Path, metadata: dict[str, Any]) -> None:
    """Found by its files or by what it declares; similar names and its own metadata are not the module."""
    module(tmp_path, "fold")
    distribution(tmp_path, "Fold_CP", **metadata)
    distribution(tmp_path, "folding", files=["folding/__init__.py", "x/fold.py", "fold-1.dist-info/RECORD"])

    assert providers(worker, "fold", tmp_path) == [("Fold_CP", "files", True)]


def test_a_namespace_of_several_distributions(worker: Path, tmp_path: Path) -> None:
    """All provide the top level; of a part of it only the one that holds it."""
    module(tmp_path, "space.one")
    module(tmp_path, "space.two")
    distribution(tmp_path, "space-one", files=["space/one.py"])
    distribution(tmp_path, "space-two", files=["space/two.py"])

    assert sorted(providers(worker, "space", tmp_path)) == [
        ("space-one", "files", True),
        ("space-two", "files", True),
    ]
    assert providers(worker, "space.two", tmp_path) == [("space-two", "files", True)]


def test_an_editable_installation(worker: Path, tmp_path: Path) -> None:
    """Its metadata lie elsewhere and name no module: the source tree that they stand for tells."""
    source, site = tmp_path / "a checkout" / "src", tmp_path / "site"
    module(source, "fold")
    url = json.dumps({"dir_info": {"editable": True}, "url": f"file://{tmp_path}/a%20checkout"})
    distribution(site, "fold_cp", files=["_fold.pth"], direct_url=url)
    distribution(site, "other", files=["_other.pth"], direct_url="no JSON")

    assert providers(worker, "fold", site, source) == [("fold_cp", "editable", True)]


def test_a_pth_file_is_followed(tmp_path: Path, worker: Path) -> None:
    """In a real virtual environment: the module is found through it, its distribution by its editable URL."""
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (site,) = tmp_path.glob("venv/lib/python3*/site-packages")
    path = module(tmp_path / "checkout", "fold")
    (site / "_fold.pth").write_text(f"{tmp_path}/checkout\n")
    url = json.dumps({"dir_info": {"editable": True}, "url": f"file://{tmp_path}/checkout"})
    distribution(site, "fold_cp", files=["_fold.pth"], direct_url=url)
    read, write = os.pipe()
    command = [str(tmp_path / "venv/bin/python"), str(worker), "model", "--name", "fold", "--result"]

    subprocess.run([*command, str(write)], pass_fds=(write,), check=True, timeout=60)

    os.close(write)
    with os.fdopen(read) as answer:
        told = json.loads(answer.read())
    assert (told["imported"], told["path"]) == (True, str(path))
    assert [one["name"] for one in told["providers"]] == ["fold_cp"]


def test_the_name_alone_is_the_last_resort(worker: Path, tmp_path: Path) -> None:
    """Where no metadata say which modules there are, that of the same name is taken."""
    module(tmp_path, "fold_cp")
    distribution(tmp_path, "Fold.CP")

    assert providers(worker, "fold_cp", tmp_path) == [("Fold.CP", "name", True)]


def test_a_copy_that_shadows_the_installed_one(worker: Path, tmp_path: Path) -> None:
    """The distribution is told, and that it is not what was imported."""
    module(tmp_path / "checkout", "fold")
    module(tmp_path / "site", "fold")
    distribution(tmp_path / "site", "fold", files=["fold.py"])

    assert providers(worker, "fold", tmp_path / "checkout", tmp_path / "site") == [("fold", "files", False)]
    assert providers(worker, "fold", tmp_path / "site", tmp_path / "checkout") == [("fold", "files", True)]


def test_the_first_of_two_versions_counts(worker: Path, tmp_path: Path) -> None:
    """As for an import; both are told. One folder that is on the path twice is one."""
    first = distribution(tmp_path / "a", "Some.Thing", "2.0")
    second = distribution(tmp_path / "b", "some_thing", "1.0")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    distribution(tmp_path / "a", "single")

    told = ask(worker, "json", tmp_path / "a", tmp_path / "link", tmp_path / "b").document

    assert told["installed"]["some-thing"] == "2.0"
    assert told["locations"]["some-thing"] == str(first)
    assert told["duplicates"] == {
        "some-thing": [
            {"version": "2.0", "location": str(first)},
            {"version": "1.0", "location": str(second)},
        ]
    }


def test_metadata_that_cannot_be_read_spoil_nothing(worker: Path, tmp_path: Path) -> None:
    """A folder without a file, one without a name, one that is no text, one without a version."""
    (tmp_path / "empty-1.0.dist-info").mkdir()
    (tmp_path / "binary-1.0.dist-info").mkdir()
    (tmp_path / "binary-1.0.dist-info" / "METADATA").write_bytes(b"Name: \xff\xfe\x00")
    distribution(tmp_path, "unversioned", None)
    distribution(tmp_path, "sound", "1.0")

    told = ask(worker, "json", tmp_path).document

    assert told["imported"] is True
    assert (told["installed"]["sound"], told["installed"]["unversioned"]) == ("1.0", None)
    assert sorted(told["unreadable"]) == [
        f"{tmp_path}/binary-1.0.dist-info",
        f"{tmp_path}/empty-1.0.dist-info",
    ]


def test_the_description_is_no_metadata(worker: Path, tmp_path: Path) -> None:
    """What a distribution requires is in its header; folded lines are put together."""
    module(tmp_path, "fold")
    distribution(tmp_path, "fold", requires=["one>=1", "two ; python_version\n  >= '3'"], python=">=3.10")

    (provider,) = ask(worker, "fold", tmp_path).document["providers"]

    assert provider["requires_dist"] == ["one>=1", "two ; python_version >= '3'"]
    assert (provider["version"], provider["requires_python"]) == ("1.0", ">=3.10")


def test_a_descriptor_that_is_not_open_is_our_error(worker: Path) -> None:
    """No verdict on the module: a traceback of ours, and the exit code that says so."""
    command = [PYTHON, str(worker), "model", "--name", "json", "--result", "99"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 70
    assert "Bad file descriptor" in done.stderr

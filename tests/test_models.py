"""The supervisor's half: real imports in real interpreters, which may do anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fake_models
from cpinfra.software import models
from cpinfra.software import requirements
from cpinfra.software.model_process import KEPT_BYTES
from cpinfra.software.model_process import Ended
from cpinfra.software.model_process import Kept
from cpinfra.software.models import How
from cpinfra.software.models import ModelImports
from cpinfra.software.models import ModelResult
from cpinfra.software.models import mistakes
from cpinfra.software.models import result_of
from cpinfra.worker.progress import process_state
from cpinfra.worker.signals import RANK_BUG_EXIT
from fake_models import PYTHON
from fake_models import distribution
from fake_models import environment
from fake_models import module
from processes import wait_until

MARK = "CPINFRA_TEST_MARK"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The worker's zip."""
    return fake_models.worker_zip(tmp_path_factory.mktemp("worker"))


def imports(worker: Path, names: Sequence[str], *folders: Path, **options: Any) -> ModelImports:
    """Imports of these models, none started yet; what they start carries the folder as a mark."""
    python = options.pop("python", PYTHON)
    variables = environment(*folders, **{MARK: str(folders[0])} if folders else {})
    return ModelImports(names, python=python, worker=worker, environment=variables, **options)


def result(worker: Path, folder: Path, text: str, **options: Any) -> ModelResult:
    """What became of the import of one module of this source; nothing of it may be left."""
    module(folder, "model", text)
    with imports(worker, ["model"], folder, **options) as running:
        running.wait()
        assert marked(folder) == []
    (told,) = running.results()
    return told


def marked(folder: Path) -> list[int]:
    """Living processes that carry the mark of a folder."""
    mark = f"{MARK}={folder}".encode()
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _has(entry, mark)
    ]


def _has(entry: Path, mark: bytes) -> bool:
    try:
        return mark in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def test_a_model_that_imports(worker: Path, tmp_path: Path) -> None:
    """What it declares and what is installed is told with it; there is nothing to find."""
    distribution(tmp_path, "my_model", "2.1", requires=["needed>=1"], python=">=3.10", files=["model.py"])
    distribution(tmp_path, "Needed", "1.5")

    told = result(worker, tmp_path, "print('hello')")

    assert (told.imported, told.how, told.error, told.traceback) == (True, How.IMPORTED, "", "")
    assert told.path == str(tmp_path / "model.py")
    assert (told.distribution, told.version) == ("my_model", "2.1")
    assert (told.requires_dist, told.requires_python) == (("needed>=1",), ">=3.10")
    assert told.installed["needed"] == "1.5"
    assert told.markers["sys_platform"] == "linux"
    assert told.seconds is not None
    assert told.seconds < 60
    assert told.output == "hello\n"
    assert requirements.findings(told) == []


def test_several_at_once_in_the_order_of_their_names(worker: Path, tmp_path: Path) -> None:
    """Two that wait for each other both import, and one that comes twice is imported once."""
    meet = "import time, pathlib\nh = pathlib.Path(__file__).parent\n(h / '{}').touch()\n"
    meet += "while not (h / '{}').exists(): time.sleep(0.01)\n"
    module(tmp_path, "one", meet.format("1", "2"))
    module(tmp_path, "two", meet.format("2", "1"))

    with imports(worker, ["two", "one", "two"], tmp_path) as running:
        running.wait()

    assert [(told.name, told.imported) for told in running.results()] == [("two", True), ("one", True)]


def test_no_more_than_four_at_once(worker: Path, tmp_path: Path) -> None:
    """The others start when one is through."""
    names = [f"model{number}" for number in range(6)]
    gate = "import time, pathlib\nh = pathlib.Path(__file__).parent\n(h / __name__).touch()\n"
    gate += "while not (h / 'gate').exists(): time.sleep(0.01)\n"
    for name in names:
        module(tmp_path, name, gate)
    most: set[int] = set()

    def tick() -> None:
        begun = sum((tmp_path / name).exists() for name in names)
        if not (tmp_path / "gate").exists():
            most.add(begun)
            if begun >= models.AT_ONCE_MAX:
                (tmp_path / "gate").touch()

    with imports(worker, names, tmp_path) as running:
        running.wait(tick)

    assert max(most) == models.AT_ONCE_MAX
    assert all(told.imported for told in running.results())


def test_without_waiting(worker: Path, tmp_path: Path) -> None:
    """`start` and `poll` come back at once; until it is through the result says that it is not known."""
    module(tmp_path, "model", "import time, pathlib\n"
           "while not (pathlib.Path(__file__).parent / 'gate').exists(): time.sleep(0.01)\n")  # fmt: skip

    with imports(worker, ["model"], tmp_path) as running:
        running.start()
        assert running.poll() is False
        assert [told.imported for told in running.results()] == [None]
        (tmp_path / "gate").touch()
        wait_until(running.poll, "the import")

    assert [told.imported for told in running.results()] == [True]


def test_a_model_that_does_not_exist(worker: Path, tmp_path: Path) -> None:
    """It is told apart from a model whose dependency does not exist."""
    (tmp_path / "here").mkdir()

    with imports(worker, ["no_such_model"], tmp_path / "here") as running:
        running.wait()

    (told,) = running.results()
    assert (told.imported, told.how, told.found) == (False, How.RAISED, False)
    assert told.error == "ModuleNotFoundError: No module named 'no_such_model'"
    assert [finding.id for finding in requirements.findings(told)] == ["model-not-found"]


def test_a_dependency_that_does_not_exist(worker: Path, tmp_path: Path) -> None:
    """The model was found; what it lacks is named, by the import and by its own declaration."""
    distribution(tmp_path, "model", requires=["no-such-dependency"], files=["model.py"])

    told = result(worker, tmp_path, "import no_such_dependency")

    assert (told.imported, told.missing, told.found) == (False, "no_such_dependency", True)
    assert [finding.id for finding in requirements.findings(told)] == [
        "model-dependency-missing",
        "model-requirement-missing",
    ]


def test_a_model_that_raises(worker: Path, tmp_path: Path) -> None:
    """Its error, its traceback and its line are told."""
    told = result(worker, tmp_path, "\n\nraise OSError('libcudart.so.12: no such file')")

    assert (told.imported, told.how) == (False, How.RAISED)
    assert told.error == "OSError: libcudart.so.12: no such file"
    assert told.traceback.splitlines()[0] == "Traceback (most recent call last):"
    (finding,) = requirements.findings(told)
    assert (finding.id, "line 3" in finding.got) == ("model-not-importable", True)


def test_a_hang_in_python(worker: Path, tmp_path: Path) -> None:
    """It ends, and the line that it waits in is told."""
    told = result(worker, tmp_path, "import time\n\ntime.sleep(1e9)", idle_s=1.0)

    assert (told.imported, told.how) == (False, How.HUNG)
    assert 'model.py", line 3 in <module>' in told.traceback
    (finding,) = requirements.findings(told)
    assert (finding.id, "model.py" in finding.got) == ("model-import-hung", True)


def test_a_hang_that_no_signal_reaches(worker: Path, tmp_path: Path) -> None:
    """In C, with all signals blocked: it ends without a stack; what metadata say is known."""
    distribution(tmp_path, "model", "3.0")
    text = "import signal\nsignal.pthread_sigmask(signal.SIG_SETMASK, range(1, 65))\nsignal.pause()"

    told = result(worker, tmp_path, text, idle_s=1.0)

    assert (told.imported, told.how, told.traceback) == (False, How.HUNG, "")
    assert told.version == "3.0"


def test_an_import_that_never_ends_but_works(worker: Path, tmp_path: Path) -> None:
    """It is no hang: whether it would import is not known when its time is over."""
    told = result(worker, tmp_path, "while True: pass", timeout_s=1.0)

    assert (told.imported, told.how) == (None, How.OVERDUE)
    assert [finding.id for finding in requirements.findings(told)] == ["model-import-overdue"]


def test_one_that_waits_for_a_working_child_does_not_hang(worker: Path, tmp_path: Path) -> None:
    """As a just-in-time compilation does: progress is that of the whole family."""
    work = "import time\nwhile time.process_time() < 2.5: pass"
    text = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {work!r}])"

    told = result(worker, tmp_path, text, idle_s=2.0)

    assert told.imported is True


def test_100_mb_of_output(worker: Path, tmp_path: Path) -> None:
    """The beginning and the end are kept, and how much is not."""
    text = (
        "import os\nprint('first', flush=True)\nfor _ in range(100): os.write(1, b'x' * 10**6)\nprint('last')"
    )

    told = result(worker, tmp_path, text)

    assert told.imported is True
    assert told.output.startswith("first\nxxx")
    assert told.output.endswith("xxxlast\n")
    assert len(told.output) < 2 * KEPT_BYTES + 100
    assert f"... {100_000_000 + 11 - 2 * KEPT_BYTES} bytes cut ..." in told.output


@given(st.lists(st.binary(max_size=12), max_size=12))
def test_an_output_is_kept_whole_or_at_both_ends(pieces: list[bytes]) -> None:
    """In whatever pieces it comes."""
    whole = b"".join(pieces)
    kept = Kept(limit_bytes=8)
    for piece in pieces:
        kept.add(piece)

    if len(whole) <= 16:
        assert kept.text() == whole.decode(errors="replace")
    else:
        middle = f"\n... {len(whole) - 16} bytes cut ...\n".encode()
        assert kept.text() == (whole[:8] + middle + whole[-8:]).decode(errors="replace")


def test_processes_that_it_starts_end_with_it(worker: Path, tmp_path: Path) -> None:
    """In sessions of their own, and as daemons that keep its output open: `result` finds none of them."""
    text = """
        import os, subprocess, sys, time
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                open(__file__ + ".daemon", "w").write(str(os.getpid()))
                time.sleep(1000)
            os._exit(0)
        os.wait()
        while not os.path.exists(__file__ + ".daemon") or not open(__file__ + ".daemon").read():
            time.sleep(0.01)
        print(child.pid, open(__file__ + ".daemon").read())
    """

    told = result(worker, tmp_path, text)

    assert told.imported is True
    assert told.left == ()
    for pid in map(int, told.output.split()):
        assert process_state(pid) in ("", "Z")  # an orphan is the init process's to collect


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import sys; sys.exit(0)", 0),
        ("import os; os._exit(0)", 0),
        ("import os; os.execv('/bin/true', ['true'])", 0),
        ("import os; os._exit(9)", 9),
    ],
)
def test_one_that_ends_the_interpreter_is_not_imported(
    worker: Path, tmp_path: Path, text: str, code: int
) -> None:
    """Whatever its exit code."""
    told = result(worker, tmp_path, text)

    assert (told.imported, told.how) == (False, How.ENDED)
    assert told.error == f"it ended the interpreter with exit code {code} before the import was through"
    assert told.markers != {}


def test_one_that_crashes(worker: Path, tmp_path: Path) -> None:
    """The signal is named, and what the interpreter printed is kept."""
    told = result(worker, tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")

    assert (told.imported, told.how) == (False, How.ENDED)
    assert told.error == "it was ended by SIGSEGV before the import was through"
    assert "Segmentation fault" in told.output


def test_one_that_closes_all_descriptors(worker: Path, tmp_path: Path) -> None:
    """Whether it was imported could not be told, and why."""
    told = result(worker, tmp_path, "import os; os.closerange(0, 1000)")

    assert (told.imported, told.how) == (None, How.LOST)
    assert "closed descriptors" in told.error
    assert [finding.id for finding in requirements.findings(told)] == ["model-answer-lost"]


def test_one_that_prints_what_looks_like_an_answer(worker: Path, tmp_path: Path) -> None:
    """Standard output is not where answers come from."""
    told = result(worker, tmp_path, "print('\"imported\": true}')\nraise RuntimeError('no')")

    assert (told.imported, told.error) == (False, "RuntimeError: no")


def test_one_that_writes_on_every_descriptor(worker: Path, tmp_path: Path) -> None:
    """What is no answer of ours is none."""
    told = result(
        worker, tmp_path,
        "import os\nfor fd in range(3, 50):\n    try: os.write(fd, b'noise')\n    except OSError: pass\n",
    )  # fmt: skip

    assert (told.imported, told.how) == (None, How.UNTOLD)
    assert "cannot be read" in told.error


def test_a_standard_input_is_empty(worker: Path, tmp_path: Path) -> None:
    """A module that asks a question gets no answer instead of the user's terminal."""
    assert result(worker, tmp_path, "input('which?')").error.startswith("EOFError")


def test_the_environment_and_the_folder_are_the_users(worker: Path, tmp_path: Path) -> None:
    """PYTHONPATH is as it was given."""
    told = result(worker, tmp_path, "import os; print(os.environ['PYTHONPATH'], os.getcwd(), sep=chr(10))")

    assert told.output.splitlines() == [str(tmp_path), str(Path.cwd())]


def test_closing_ends_all(worker: Path, tmp_path: Path) -> None:
    """Those that run, with what they started, and those that wait for their turn; again it does nothing."""
    names = [f"model{number}" for number in range(5)]
    text = "import pathlib, subprocess, time\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    text += "(pathlib.Path(__file__).parent / __name__).touch()\ntime.sleep(1000)"
    for name in names:
        module(tmp_path, name, text)
    running = imports(worker, names, tmp_path)
    running.start()
    wait_until(lambda: all((tmp_path / name).exists() for name in names[:4]), "four imports")

    running.close()
    running.close()

    assert marked(tmp_path) == []
    assert running.poll() is True
    assert [(told.imported, told.how) for told in running.results()] == [(None, How.CUT_SHORT)] * 5


def test_an_interruption_ends_all(worker: Path, tmp_path: Path) -> None:
    """Of the caller's tick, at the end of the block."""

    class Interrupted(Exception):
        pass

    def tick() -> None:
        raise Interrupted

    module(tmp_path, "model", "import time; time.sleep(1000)")
    running = imports(worker, ["model"], tmp_path)

    with pytest.raises(Interrupted), running:
        running.wait(tick)

    assert marked(tmp_path) == []


def script(text: str) -> Callable[[Path], str]:
    """An executable file of this text, in a folder."""

    def write(folder: Path) -> str:
        path = folder / "python"
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("python", "said"),
    [
        (lambda folder: str(folder / "absent"), "cannot be started"),
        (script("\0\1"), "cannot be started"),
        (script("#!/bin/sh\necho I am no snake\nexit 3\n"), "exit code 3"),
        (script("#!/bin/sh\nexit 0\n"), "exit code 0"),
        (script('#!/bin/sh\neval "echo {} >&$6"\n'), "did not answer"),
    ],
)
def test_an_interpreter_that_is_none(
    worker: Path, tmp_path: Path, python: Callable[[Path], str], said: str
) -> None:
    """Nothing is told of the model by one that cannot be asked, nor of one that exits with 0."""
    told = result(worker, tmp_path, "", python=python(tmp_path))

    assert (told.imported, told.how) == (None, How.UNTOLD)
    assert said in told.error or "cannot be read" in told.error
    (finding,) = requirements.findings(told)
    assert (finding.id, "--python" in finding.remedy) == ("model-import-unknown", True)


def ended(answer: bytes, **facts: Any) -> Ended:
    """The end of a process that left this answer."""
    known = {"why": "exited", "output": "", "stack": "", "returncode": 0, "seconds": 1.0, "left": ()}
    return Ended(answer=answer, **{**known, **facts})


@given(
    st.binary()
    | st.recursive(
        st.none() | st.booleans() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
    .map(json.dumps)
    .map(str.encode)
)
def test_no_foreign_answer_says_imported(answer: bytes) -> None:
    """Bytes of whatever kind are an answer that cannot be read, and no error of ours."""
    assert result_of("model", PYTHON, ended(answer)).imported is None


def test_an_answer_of_too_many_brackets() -> None:
    """It cannot be read either."""
    assert result_of("model", PYTHON, ended(b"[" * 100_000)).imported is None


def test_our_own_bug_is_no_verdict(worker: Path) -> None:
    """Nothing is said of the model, and where to report it is."""
    told = result_of("model", PYTHON, ended(b"", returncode=RANK_BUG_EXIT, output="Traceback ..."))

    assert (told.imported, told.how) == (None, How.BUG)
    (finding,) = requirements.findings(told)
    assert "bug of cpinfra" in finding.remedy
    assert "Traceback ..." in finding.got


@pytest.mark.parametrize("name", ["boltz", "boltz.model", "_x", "a1.b2", "modèle", "match.case"])
def test_names_of_modules_are_accepted(name: str) -> None:
    """Dotted identifiers, soft keywords too."""
    assert mistakes([name]) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "no name"),
        ("a/b", "no identifier"),
        ("1x", "no identifier"),
        ("a;b", "no identifier"),
        ("a b", "no identifier"),
        ("a-b", "no identifier"),
        ("a.py/", "no identifier"),
        (".a", "dot"),
        ("a..b", "dot"),
        ("a.", "dot"),
        ("class", "keyword"),
        ("a.import", "keyword"),
        ("None", "keyword"),
        ("__main__", "the program itself"),
        ("a\n", "no identifier"),
        ("a\0", "no identifier"),
    ],
)
def test_names_of_no_module_are_refused(worker: Path, name: str, said: str) -> None:
    """Each with its reason, all at once, before anything is started."""
    both = mistakes(["fine", name, "1"])

    assert len(both) == 2
    assert both[0].startswith(f"--model {name!r}: ")
    assert said in both[0]
    with pytest.raises(ValueError, match="expected the dotted name of a module"):
        imports(worker, ["fine", name])


def test_no_descriptor_is_left(worker: Path, tmp_path: Path) -> None:
    """Neither after an import, nor after one that could not be started."""
    before = len(list(Path("/proc/self/fd").iterdir()))

    result(worker, tmp_path, "")
    result(worker, tmp_path, "", python=str(tmp_path / "absent"))

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_supervisor_that_does_not_look_blames_nobody(worker: Path, tmp_path: Path) -> None:
    """What was through when it looked again is taken, however long ago it was due."""
    module(tmp_path, "model", "import os; os.write(1, b'x' * 10_000)")

    with imports(worker, ["model"], tmp_path, timeout_s=0.001, idle_s=0.001) as running:
        running.start()
        wait_until(lambda: not [pid for pid in marked(tmp_path) if process_state(pid) != "Z"], "its end")
        running.wait()

    assert [told.imported for told in running.results()] == [True]

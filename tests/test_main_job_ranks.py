"""`build` as a user calls it: with real ranks and real models, and what it leaves whatever comes between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import cpinfra
from bench import ABSENT
from bench import Bench
from bench import free
from cpinfra import report
from cpinfra.record import docs
from cpinfra.record.markdown import markdown
from cpinfra.software.models import ModelImports
from fake_models import module
from processes import Run

HERE = Path(__file__).parent
PACKAGE = str(Path(cpinfra.__file__).parents[1])
# An empty CUDA_VISIBLE_DEVICES makes machines with and without GPUs alike.
ENVIRONMENT = {"PYTHONPATH": PACKAGE, "CUDA_VISIBLE_DEVICES": ""}
MODELS = {
    "good_model": "value = 1",
    "loud_model": "import sys\nfor _ in range(100):\n    sys.stdout.write('x' * (1 << 20))\n",
    "busy_model": "import subprocess\nfor _ in range(3):\n"
    "    subprocess.Popen(['sleep', '1000'], start_new_session=True)\n",
    "quiet_model": "import os\nos._exit(0)",
    "raising_model": "raise RuntimeError('two\\nlines')",
}


@pytest.fixture(scope="module")
def validator() -> Any:
    """Judges documents by the schema as it is printed."""
    printed = subprocess.run(
        [sys.executable, "-m", "cpinfra", "schema"],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        check=True,
        timeout=60,
    )
    schema = json.loads(printed.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture
def ended() -> Iterator[list[Run]]:
    """Runs of one test, which leave nothing behind."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        run.kill()


def built(folder: Path, *arguments: str, path: Path | None = None) -> Run:
    """A build with its documents in `folder`/docs and its run in a folder of its own there.

    Args:
        folder: of this test.
        arguments: of `build`.
        path: a further folder on PYTHONPATH.
    """
    number = len([*folder.glob("run-*")])
    (folder / f"run-{number}").mkdir(parents=True)
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([*([str(path)] if path else []), PACKAGE])}
    command = ("build", "--docs", str(folder / "docs"))
    return Run(folder / f"run-{number}", *arguments, command=command, env=environment, cwd=folder)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A build that has come to its end."""

    folder: Path
    run: Run
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """What was printed."""
        made: dict[str, Any] = json.loads(self.out)
        return made


def _end(folder: Path, run: Run) -> Ended:
    code, out, err = run.end(120)
    return Ended(folder=folder, run=run, code=code, out=out, err=err)


@pytest.fixture(scope="module")
def with_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    """A rehearsal beside all kinds of models, in a docs folder with a corrupt report."""
    folder = tmp_path_factory.mktemp("models")
    for name, text in MODELS.items():
        module(folder / "path", name, text)
    (folder / "docs").mkdir()
    (folder / "docs" / "cp_infra.json").write_text('{"schema": "cpinfra/1"')
    names = [*MODELS, "absent_model"]
    options = [word for name in names for word in ("--model", name)]
    run = built(folder, "--rehearse", "--json", *options, path=folder / "path")
    yield _end(folder, run)
    run.kill()


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ended, Ended]]:
    """A build for this machine and a rehearsal, at the same time with the same docs folder."""
    folder = tmp_path_factory.mktemp("builds")
    runs = [built(folder, "--json"), built(folder, "--json", "--rehearse")]
    ends = [_end(folder, run) for run in runs]
    yield ends[0], ends[1]
    for run in runs:
        run.kill()


class TestModels:
    """Models of users, in real interpreters beside real ranks."""

    def test_each_is_told_for_what_it_is(self, with_models: Ended) -> None:
        """Two of six do not block: that prints much, and that starts processes, imports nevertheless."""
        told = {model["name"]: model["imported"] for model in with_models.document["software"]["models"]}

        assert told == {
            "good_model": True,
            "loud_model": True,
            "busy_model": True,
            "quiet_model": False,
            "raising_model": False,
            "absent_model": False,
        }

    def test_those_that_do_not_import_block(self, with_models: Ended) -> None:
        """Exit 3, all checks passed; each by a finding of its own."""
        document = with_models.document

        assert (with_models.code, document["verdict"], document["scope"]) == (3, "not-proven", "rehearsal")
        assert {check["outcome"] for check in document["checks"]} == {"pass"}
        assert {one["id"]: one["what"].split(" ")[0] for one in document["blocking"]}.keys() == {
            "model-ended-interpreter",
            "model-not-importable",
            "model-not-found",
        }
        assert document["software"]["consistency"]["consistent"] is False

    def test_tracebacks_are_kept(self, with_models: Ended) -> None:
        """Of what was raised, with its text whole."""
        errors = {model["name"]: model["error"] for model in with_models.document["software"]["models"]}

        assert "RuntimeError: two\nlines" in errors["raising_model"]
        assert "exit code 0" in errors["quiet_model"]
        assert "No module named 'absent_model'" in errors["absent_model"]

    def test_nothing_is_left_running(self, with_models: Ended) -> None:
        """Neither ranks nor what models started."""
        with_models.run.assert_nothing_left()

    def test_stdout_holds_the_document_alone(self, with_models: Ended) -> None:
        """And it is not swollen by what a model prints."""
        assert len(with_models.out) < 200_000
        assert "Document: " in with_models.err
        assert "xxxx" not in with_models.err

    def test_the_corrupt_report_is_kept_aside(self, with_models: Ended) -> None:
        """Whole, and said."""
        aside = with_models.folder / "docs" / "cp_infra.corrupt-1.json"

        assert aside.read_text() == '{"schema": "cpinfra/1"'
        assert "docs-kept-aside" in [one["id"] for one in with_models.document["findings"]]

    def test_one_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is ended, its place is told, and it blocks; the proof beside it stands."""
        (tmp_path / "bench").mkdir()
        module(tmp_path / "path", "hanging_model", "import threading\nthreading.Event().wait()\n")
        bench = Bench(tmp_path / "bench", monkeypatch)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "path"), PACKAGE]))
        monkeypatch.setattr("cpinfra.node.job.ModelImports", partial(ModelImports, idle_s=0.5))

        answer = bench.build(free(8), model=("hanging_model",))

        assert (answer.verdict.value, answer.report.scope, int(answer.exit_code)) == ("not-proven", "full", 3)
        (blocks,) = answer.report.blocking
        assert (blocks.id, "threading.py" in blocks.what) == ("model-import-hung", True)  # where it stands
        assert answer.report.software is not None
        (told,) = answer.report.software.models
        assert (told.imported, "hanging_model.py" in told.error) == (False, True)  # how it came there


class TestTwoBuilds:
    """Two builds at the same time in one docs folder."""

    def test_each_comes_to_its_own_verdict(self, at_once: tuple[Ended, Ended]) -> None:
        """As if it were alone."""
        first, second = at_once

        assert (first.code, first.document["verdict"]) == (3, "not-proven")
        assert (second.code, second.document["verdict"]) == (0, "rehearsed")

    def test_both_reports_are_whole(self, at_once: tuple[Ended, Ended]) -> None:
        """Each in its run folder, as it was printed."""
        for build in at_once:
            assert (build.run.folder / "report.json").read_text() == build.out

    def test_the_later_one_wins(self, at_once: tuple[Ended, Ended]) -> None:
        """JSON and Markdown of one and the same report, and nothing else beside them."""
        folder = at_once[0].folder / "docs"
        text = (folder / "cp_infra.json").read_text()

        assert text in [build.out for build in at_once]
        assert (folder / "cp_infra.md").read_text() == markdown(docs.read(folder / "cp_infra.json"))
        assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {
            "cp_infra.json",
            "cp_infra.md",
        }


class TestContract:
    """The documents against the printed schema, and section by section against the names that others read."""

    def test_every_report_obeys_the_printed_schema(
        self, validator: Any, at_once: tuple[Ended, Ended], with_models: Ended
    ) -> None:
        """Of rehearsals and of a build that is not proven, as printed and as written."""
        for build in (*at_once, with_models):
            validator.validate(build.document)
            validator.validate(json.loads((build.run.folder / "report.json").read_text()))
            validator.validate(json.loads((build.folder / "docs" / "cp_infra.json").read_text()))

    @pytest.mark.parametrize("engine", ["pass", "two-fail", "garbled", "no-torch", "bug", "interrupted"])
    @pytest.mark.parametrize("gpus", [0, 2, 8])
    def test_so_do_those_of_any_end(
        self, validator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, gpus: int
    ) -> None:
        """Proven, failed, not proven, interrupted: on any machine."""
        bench = Bench(tmp_path, monkeypatch)
        answers = [bench.build(free(gpus) if gpus else ABSENT, engine=engine, run_dir=str(tmp_path / "a"))]
        answers.append(
            bench.prove(free(gpus) if gpus else ABSENT, engine=engine, run_dir=str(tmp_path / "b"))
        )

        for answer in answers:
            validator.validate(answer.report.document())

    @pytest.mark.parametrize(
        ("arguments", "keys"),
        [
            (["inventory", "--json"], {"host", "hardware"}),
            (["plan", "--gpus", "9", "--json"], {"plan"}),
            (["plan", "--json"], {"plan"}),
        ],
    )
    def test_so_do_partial_reports(self, validator: Any, arguments: list[str], keys: set[str]) -> None:
        """With the sections that were made, and no others."""
        ran = subprocess.run(
            [sys.executable, "-m", "cpinfra", *arguments],
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            check=False,
            timeout=60,
        )

        validator.validate(json.loads(ran.stdout))
        assert set(json.loads(ran.stdout)) == {"schema", "created", "tool", *keys}

    def test_the_validator_is_strict(self, validator: Any, at_once: tuple[Ended, Ended]) -> None:
        """A schema that lets everything pass would have let the others pass too."""
        document = at_once[0].document
        changes: list[dict[str, Any]] = [
            {"verdict": "passed"},
            {"surprise": 1},
            {"schema": "cpinfra/2"},
            {"runs": [{}]},
        ]
        for change in changes:
            with pytest.raises(jsonschema.ValidationError):
                validator.validate({**document, **change})

    def test_sections_and_their_names(self, at_once: tuple[Ended, Ended]) -> None:
        """What other programs read, in the order in which people do."""
        document = at_once[0].document
        expected: dict[str, Any] = {
            "host": "hostname machine_id boot_id kernel container cpus memory shm limits disk",
            "hardware": "driver_version findings gpus topology",
            "plan": "gpus_free configs chosen slots",
            "software": "python python_version torch cuda_build cuda_driver arch_list nccl models",
            "recipe": "interpreter pythonpath workdir env commands timeouts nccl_library sandbox",
        }
        for section, names in expected.items():
            assert set(names.split()) <= set(document[section]), section
        for name in ("next", "runs", "checks", "blocking", "logs"):
            assert document[name], name
        for name, keys in {
            "next": "why command",
            "runs": "id role mesh device backend nccl",
            "checks": "id tier run outcome reason remedy ranks seconds evidence",
            "blocking": "id what remedy command needs_from_user",
            "logs": "what path bytes",
        }.items():
            assert all(set(one) == set(keys.split()) for one in document[name]), name
        assert document["hang"] is None
        assert set(document["software"]["consistency"]) == {"consistent", "findings"}

    def test_what_is_unavailable_says_why(self, at_once: tuple[Ended, Ended]) -> None:
        """And is no 0, -1 or empty text in its place."""
        for build in at_once:
            for path, value in leaves(build.document):
                assert value != -1, path
                assert value != "" or path[-1] in MAY_BE_EMPTY, path

    def test_evidence_claims_what_ran_and_no_more(self, at_once: tuple[Ended, Ended]) -> None:
        """Each trial is named; its dtype and shape are claimed, and no others are."""
        for build in at_once:
            checks = build.document["checks"]
            assert len({check["id"] for check in checks}) == len(checks) == 6
            for check in checks:
                facts = check["evidence"]
                assert check["ranks"] == list(range(4))
                assert (facts["world_size"], facts["device"], facts["backend"]) == (4, "cpu", "gloo")
                assert "gpu_uuids" not in facts
                assert facts["repetitions"] == len(facts["trials"])
                assert {trial.split()[0] for trial in facts["trials"]} == set(facts["dtypes"])
                shapes = [
                    [int(word) for word in trial.split() if word.isdigit()] for trial in facts["trials"]
                ]
                assert sorted(map(tuple, facts["shapes"])) == sorted({tuple(shape) for shape in shapes})
                assert facts["comparisons"] >= facts["repetitions"] * 4
                assert facts["elements"] > 0 < facts["bytes_moved"]

    def test_logs_are_where_it_says(self, at_once: tuple[Ended, Ended]) -> None:
        """With their sizes at the time."""
        for build in at_once:
            for log in build.document["logs"]:
                path = Path(log["path"])
                assert path.parent == build.run.folder
                assert path.is_dir() or 0 < log["bytes"] <= path.stat().st_size

    def test_a_proof_that_fails_obeys_it_too(self, validator: Any, tmp_path: Path, ended: list[Run]) -> None:
        """With a real culprit, and ranks that waited for it."""
        run = Run(
            tmp_path / "run",
            "--json",
            "--inject",
            "kill:1",
            "--only",
            "p2p.ring",
            env=ENVIRONMENT,
            cwd=tmp_path,
        )
        ended.append(run)
        code, out, _ = run.end(120)

        assert code == 1
        document = json.loads(out)
        validator.validate(document)
        assert document["hang"]["culprit_ranks"] == [1]
        assert {"plan", "software", "runs", "checks", "hang", "verdict", "scope"} <= set(document)


MAY_BE_EMPTY = (
    "reason",  # of a check that passed
    "remedy",
    "error",
    "command",
    "how",
    "CUDA_VISIBLE_DEVICES",  # empty is its value
)


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value that holds no other, with the names that lead to it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    else:
        yield path, value


class TestInterrupted:
    """Ctrl-C: 130, the report on disk, nothing left behind."""

    def test_during_the_proof(self, tmp_path: Path, ended: list[Run]) -> None:
        """Ranks are there; the documents say who ended it."""
        run = built(tmp_path, "--rehearse")
        ended.append(run)
        run.await_event("forked")
        cookies = run.cookies()
        run.signal(signal.SIGINT)
        code, _, err = run.end()

        assert (code, err) == (130, "")
        made = docs.read(tmp_path / "docs" / "cp_infra.json")
        assert (made.verdict, [check.outcome for check in made.checks][-1]) == ("not-proven", "unknown")
        assert "interrupted by SIGINT" in made.checks[-1].reason
        assert docs.read(run.folder / "report.json") == made
        run.assert_nothing_left(cookies)

    def test_during_the_wait_for_a_model(self, tmp_path: Path, ended: list[Run]) -> None:
        """All checks have passed and stay so; the model was not waited for, which blocks."""
        module(tmp_path / "path", "endless_model", "while True: pass")
        run = built(tmp_path, "--rehearse", "--model", "endless_model", path=tmp_path / "path")
        ended.append(run)
        run.await_event("models", waiting=["endless_model"])
        run.signal(signal.SIGINT)
        code, _, err = run.end()

        assert (code, err) == (130, "")
        made = docs.read(tmp_path / "docs" / "cp_infra.json")
        assert {check.outcome for check in made.checks} == {"pass"}
        assert (made.verdict, [one.id for one in made.blocking]) == ("not-proven", ["model-not-tried"])
        run.assert_nothing_left()


class TestFullDisk:
    """A docs folder without room."""

    @pytest.fixture
    def small(self, tmp_path: Path) -> Iterator[Path]:
        """A file system of 16 KiB."""
        folder = tmp_path / "small"
        folder.mkdir()
        mount = shutil.which("mount")
        if mount is None or os.geteuid():
            pytest.skip("mounting a small file system takes root")
        mounted = subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], check=False, capture_output=True
        )
        if mounted.returncode:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
        yield folder
        subprocess.run(["umount", str(folder)], check=True)

    def test_blocks_and_the_report_is_in_the_run_folder(self, small: Path, tmp_path: Path) -> None:
        """What lay there stays whole, nothing half is left, exit 3."""
        (small / "cp_infra.md").write_text("theirs")
        command = [sys.executable, str(HERE / "fake_engine.py"), "build", "--rehearse", "--docs", str(small)]
        ran = subprocess.run(
            [*command, "--run-dir", str(tmp_path / "run"), "--json"],
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

        assert ran.returncode == 3, ran.stderr
        made = docs.read(tmp_path / "run" / "report.json")
        assert ran.stdout == made.text()
        (blocks,) = made.blocking
        assert blocks.id == "docs-unwritable"
        assert "No space left on device" in blocks.what
        assert (small / "cp_infra.md").read_text() == "theirs"
        assert {path.name for path in small.iterdir()} <= {"cp_infra.md"}


def test_a_read_only_docs_folder_is_told_by_its_name(tmp_path: Path) -> None:
    """A file in the way, as root ignores modes: the path that could not be made is named."""
    (tmp_path / "file").touch()
    command = [sys.executable, str(HERE / "fake_engine.py"), "build", "--rehearse"]
    ran = subprocess.run(
        [*command, "--docs", "file/docs", "--run-dir", "run"],
        env={**os.environ, **ENVIRONMENT},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (ran.returncode, ran.stderr) == (3, "")
    assert "blocking docs-unwritable: the documents could not be written into file/docs" in ran.stdout
    assert "Document: " not in ran.stdout
    assert isinstance(docs.read(tmp_path / "run" / "report.json"), report.Report)

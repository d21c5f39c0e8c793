"""`build` with the fake engine: what it proves on which machine, and what it says where it cannot."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import ABSENT
from bench import BROKEN
from bench import BUSY
from bench import HIDDEN
from bench import HUNG
from bench import LOST
from bench import NOT_LOADED
from bench import Bench
from bench import free
from cpinfra import report
from cpinfra.files import replace_file
from cpinfra.hardware.gpus import GpuAnswer
from cpinfra.judging.store import Answer
from cpinfra.outcome import Severity
from cpinfra.record import docs
from cpinfra.record.markdown import markdown
from cpinfra.software.models import How
from cpinfra.software.models import ModelImports
from cpinfra.software.models import ModelResult
from cpinfra.software.models import not_tried

OBSTACLES = [
    (BUSY, "gpus-busy"),
    (HUNG, "driver-hung"),
    (NOT_LOADED, "no-driver"),
    (BROKEN, "gpus-unknown"),
    (LOST, "no-usable-gpu"),
]
WITHOUT = [(ABSENT, "no-gpu"), (HIDDEN, "no-usable-gpu")]
ASKED = {
    "login_host",
    "partition",
    "account",
    "time_limit",
    "activation",
    "shared_folder",
    "may_submit",
}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """See `Bench`."""
    (tmp_path / "bench").mkdir()
    return Bench(tmp_path / "bench", monkeypatch)


SBATCH = "sbatch skills/build-infra/scripts/slurm_probe.sbatch"


def came_to(answer: Answer) -> tuple[str, str | None, int]:
    """Verdict, scope and exit code."""
    assert answer.report.verdict == answer.verdict.value
    assert answer.report.scope == (answer.scope.value if answer.scope is not None else None)
    return answer.verdict.value, answer.report.scope, int(answer.exit_code)


def runs(answer: Answer) -> list[tuple[str, str, int]]:
    """Role, device and ranks of each run, as reported."""
    return [(run.role, run.device, run.mesh.world_size) for run in answer.report.runs]


def blocking(answer: Answer) -> list[str]:
    """Ids of what blocks."""
    return [one.id for one in answer.report.blocking]


def commands(answer: Answer) -> list[str]:
    """What is to be done next, without the options of every build of these tests."""
    return [plain(one.command) for one in answer.report.next]


def plain(command: str) -> str:
    """A command without the options of every build of these tests."""
    return command.partition(" --python ")[0]


def software(answer: Answer) -> report.Software:
    """The section."""
    assert answer.report.software is not None
    return answer.report.software


class TestEnoughGpus:
    """Four and more: proven on them, and the CPU is left alone."""

    @pytest.mark.parametrize(
        ("gpus", "mesh", "scope"),
        [
            (4, (1, 2, 2), "limited"),
            (7, (1, 2, 2), "limited"),
            (8, (2, 2, 2), "full"),
            (9, (2, 2, 2), "full"),
            (16, (4, 2, 2), "full"),
        ],
    )
    def test_the_plan_is_proven(
        self, bench: Bench, gpus: int, mesh: tuple[int, int, int], scope: str
    ) -> None:
        """One run, role `main`, on as many GPUs as the mesh takes; proven, exit 0, nothing blocks."""
        answer = bench.build(free(gpus))

        (request,) = bench.requests
        assert (request.device, request.dp, request.cp0, request.cp1) == ("cuda", *mesh)
        assert request.gpu_uuids == tuple(f"GPU-{n}" for n in range(request.world))
        assert request.kernels
        assert came_to(answer) == ("proven", scope, 0)
        assert runs(answer) == [("main", "cuda", request.world)]
        assert blocking(answer) == []

    def test_software_fits_by_what_the_kernels_said(self, bench: Bench) -> None:
        """Consistent, with one answer of kernels for each GPU by its UUID."""
        said = software(bench.build(free(4)))

        assert isinstance(said.consistency, report.Consistency)
        assert said.consistency.consistent is True
        assert isinstance(said.kernels, list)
        assert [(one.uuid, one.right) for one in said.kernels] == [(f"GPU-{n}", True) for n in range(4)]

    def test_wrong_kernels_block(self, bench: Bench) -> None:
        """All checks passed, and one GPU computes wrong: not proven, that GPU is named, and no other."""
        answer = bench.build(free(4), engine="wrong-kernels")

        assert came_to(answer) == ("not-proven", "limited", 3)
        (finding,) = answer.report.blocking
        assert finding.id == "kernels-wrong"
        assert "GPU-3" in finding.what
        assert "GPU-2" not in finding.what
        assert software(answer).consistency.consistent is False  # type: ignore[union-attr]

    def test_a_contradicted_check_fails(self, bench: Bench) -> None:
        """Exit 1, with the hang and its two culprits."""
        answer = bench.build(free(8), engine="two-fail")

        assert came_to(answer) == ("failed", None, 1)
        assert answer.report.hang is not None
        assert answer.report.hang.culprit_ranks == [1, 3]

    def test_the_recipe_is_proven_for_the_mesh_that_ran(self, bench: Bench) -> None:
        """And for no failed one."""
        good, bad = bench.build(free(8)), bench.build(free(8), engine="two-fail")

        for answer, proven in ((good, True), (bad, False)):
            assert isinstance(answer.report.recipe, report.Recipe)
            assert answer.report.recipe.proven is proven
            assert answer.report.recipe.mesh.world_size == 8


class TestFewGpus:
    """One to three: what fits runs on them, the square runs on the CPU, and neither proves."""

    @pytest.mark.parametrize("gpus", [1, 2, 3])
    def test_what_fits_and_a_rehearsal(self, bench: Bench, gpus: int) -> None:
        """Not proven, no scope, exit 3, blocking, with what to ask of the user."""
        answer = bench.build(free(gpus))

        assert came_to(answer) == ("not-proven", None, 3)
        assert runs(answer) == [("partial", "cuda", gpus), ("rehearsal", "cpu", 4)]
        assert [request.gpu_uuids for request in bench.requests] == [
            tuple(f"GPU-{n}" for n in range(gpus)),
            (),
        ]
        (blocks,) = answer.report.blocking
        assert blocks.id == "too-few-gpus"
        assert f"{gpus} usable GPU(s)" in blocks.what
        assert {question.key for question in blocks.needs_from_user} == ASKED
        assert SBATCH in commands(answer)

    def test_each_check_is_told_for_each_run(self, bench: Bench) -> None:
        """The square round trip is skipped on three GPUs, and passes on the CPU."""
        answer = bench.build(free(3))

        told = {(check.run, check.id): check.outcome for check in answer.report.checks}
        assert told["partial", "dtensor.roundtrip"] == "skip"
        assert told["rehearsal", "dtensor.roundtrip"] == "pass"
        assert len(told) == len(answer.report.checks) == 12

    @pytest.mark.parametrize("run", ["partial", "rehearsal"])
    def test_a_failure_in_either_is_one(self, bench: Bench, run: str) -> None:
        """A fail decides, whichever run it was in; the other passed."""
        answer = bench.build(free(2), engine=f"two-fail@{run}")

        assert came_to(answer) == ("failed", None, 1)
        assert {check.run for check in answer.report.checks if check.outcome == "fail"} == {run}

    def test_the_rehearsal_has_logs_of_its_own(self, bench: Bench) -> None:
        """Told apart by their words and paths."""
        answer = bench.build(free(2))

        events = [log for log in answer.report.logs if log.path.endswith("events.jsonl")]
        assert [(log.what, Path(log.path).parent.name) for log in events] == [
            ("what happened, in order", "run"),
            ("what happened, in order (rehearsal)", "rehearsal"),
        ]

    def test_an_interruption_ends_both(self, bench: Bench) -> None:
        """No rehearsal follows a run that the user has ended: 130."""
        answer = bench.build(free(2), engine="interrupted@partial")

        assert [request.run for request in bench.requests] == ["partial"]
        assert came_to(answer) == ("not-proven", None, 130)

    def test_the_recipe_is_that_of_the_square(self, bench: Bench) -> None:
        """Of the mesh that was rehearsed, and not called proven."""
        recipe = bench.build(free(3)).report.recipe

        assert isinstance(recipe, report.Recipe)
        assert (recipe.mesh.world_size, recipe.proven) == (4, False)
        assert recipe.env["CUDA_VISIBLE_DEVICES"] == ""

    def test_the_user_is_told_both(self, bench: Bench) -> None:
        """What each run is for stands in the line that announces them."""
        bench.build(free(2))

        (line,) = [line for line in bench.told.lines if line.startswith("ranks: ")]
        assert "2 (1-D mesh of 2) on cuda, which proves nothing, then 4 (dp 1, cp 2x2) on cpu" in line


class TestNoGpus:
    """None that could be used: a rehearsal for information."""

    @pytest.mark.parametrize(("gpus", "name"), [*WITHOUT, *OBSTACLES])
    def test_rehearses_for_information(self, bench: Bench, gpus: GpuAnswer, name: str) -> None:
        """Not proven, scope rehearsal, exit 3; the obstacle is named once, with its own words."""
        answer = bench.build(gpus)

        assert came_to(answer) == ("not-proven", "rehearsal", 3)
        assert runs(answer) == [("rehearsal", "cpu", 4)]
        assert bench.requests[0].gpu_uuids == ()
        (blocks,) = answer.report.blocking
        assert blocks.id == name
        assert gpus.reason in blocks.what
        assert gpus.remedy in blocks.remedy
        assert plain(blocks.command) == "cpinfra build --rehearse"
        assert {question.key for question in blocks.needs_from_user} == ASKED
        assert SBATCH in commands(answer)

    @pytest.mark.parametrize(("gpus", "name"), [*WITHOUT, *OBSTACLES])
    def test_a_rehearsal_that_fails_is_a_failure(self, bench: Bench, gpus: GpuAnswer, name: str) -> None:
        """What was contradicted on the CPU is contradicted: exit 1."""
        answer = bench.build(gpus, engine="two-fail")

        assert came_to(answer) == ("failed", "rehearsal", 1)
        assert blocking(answer) == [name]

    @pytest.mark.parametrize(
        ("gpus", "known"), [(ABSENT, 0), (BUSY, 0), (LOST, 0), (HUNG, None), (NOT_LOADED, None)]
    )
    def test_how_many_are_free_is_told_or_not(self, bench: Bench, gpus: GpuAnswer, known: int | None) -> None:
        """None is counted only by who can count."""
        plan = bench.build(gpus).report.plan

        assert plan is not None
        assert (
            (plan.gpus_free == known) if known is not None else isinstance(plan.gpus_free, report.Unavailable)
        )
        assert (plan.configs, plan.chosen) == ([], None)

    def test_a_bug_in_the_rehearsal_fails_nothing(self, bench: Bench) -> None:
        """Unknown, and the bug is told beside the lack of GPUs."""
        answer = bench.build(engine="bug")

        assert came_to(answer)[0::2] == ("not-proven", 3)
        assert blocking(answer) == ["no-gpu", "cpinfra-bug"]

    def test_the_first_line_says_where_it_runs(self, bench: Bench) -> None:
        """An obstacle is not hidden behind a rehearsal."""
        bench.build(HUNG)

        assert bench.told.lines[0] == f"device: cuda: nothing can run: {HUNG.reason}"
        assert "on cpu as a rehearsal, for information" in bench.told.lines[2]


class TestRehearse:
    """`--rehearse`: the CPU, whatever GPUs there are."""

    @pytest.mark.parametrize("gpus", [ABSENT, HIDDEN, BUSY, HUNG, NOT_LOADED, BROKEN, LOST, free(2), free(8)])
    def test_is_rehearsed_on_any_machine(self, bench: Bench, gpus: GpuAnswer) -> None:
        """Exit 0: role `main` on the CPU, nothing blocks."""
        answer = bench.build(gpus, rehearse=True)

        assert came_to(answer) == ("rehearsed", "rehearsal", 0)
        assert runs(answer) == [("main", "cpu", 4)]
        assert blocking(answer) == []
        assert bench.told.lines[0].startswith("device: cpu, as asked")

    @pytest.mark.parametrize(("gpus", "name"), [(HUNG, "driver-hung"), (NOT_LOADED, "no-driver")])
    def test_a_sick_driver_is_a_warning(self, bench: Bench, gpus: GpuAnswer, name: str) -> None:
        """It is told, though nobody asked for GPUs."""
        found = bench.build(gpus, rehearse=True).report.hardware

        assert isinstance(found, report.Hardware)
        assert [(one.id, one.severity) for one in found.findings] == [(name, "warning")]

    def test_leads_on_to_the_gpus_that_there_are(self, bench: Bench) -> None:
        """With enough of them next is the proof here, with too few a machine that has them."""
        assert "cpinfra build --local" in commands(bench.build(free(8), rehearse=True))
        assert "cpinfra build --local" not in commands(bench.build(free(3), rehearse=True))

    def test_with_a_missing_check_it_is_not(self, bench: Bench) -> None:
        """One that gave no result: exit 3."""
        assert came_to(bench.build(engine="lost", rehearse=True)) == ("not-proven", "rehearsal", 3)


class TestRequire:
    """`--require`: less is not proven."""

    @pytest.mark.parametrize(
        ("gpus", "require", "options", "met"),
        [
            (free(8), "full", {}, True),
            (free(8), "limited", {}, True),
            (free(4), "limited", {}, True),
            (free(4), "full", {}, False),
            (free(8), "full", {"world": "4"}, False),
            (free(9), "full", {"cp": "3x3"}, False),
        ],
    )
    def test_on_gpus(
        self, bench: Bench, gpus: GpuAnswer, require: str, options: dict[str, str], met: bool
    ) -> None:
        """A wider scope than asked for is enough; a narrower one blocks and keeps its name."""
        answer = bench.build(gpus, require=require, **options)

        assert (answer.verdict.value == "proven") is met
        assert int(answer.exit_code) == (0 if met else 3)
        assert blocking(answer) == ([] if met else ["scope-too-narrow"])
        if not met:
            assert answer.report.scope == "limited"
            wider = "18 --require full --cp 3x3" if "cp" in options else f"8 --require {require}"
            assert plain(answer.report.blocking[0].command) == f"cpinfra build {wider}"

    def test_on_too_few_gpus(self, bench: Bench) -> None:
        """Both are said: what is lacking, and that the scope was not reached."""
        answer = bench.build(free(2), require="limited")

        assert came_to(answer) == ("not-proven", None, 3)
        assert blocking(answer) == ["too-few-gpus", "scope-too-narrow"]

    def test_a_cluster_is_asked_for_where_it_takes_more_gpus(self, bench: Bench) -> None:
        """Four GPUs are enough for a proof, and never for a full one: the user may know of more."""
        (blocks,) = bench.build(free(4), require="full").report.blocking

        assert {question.key for question in blocks.needs_from_user} == ASKED

    @pytest.mark.parametrize("require", ["limited", "full"])
    def test_rejects_it_for_a_rehearsal(self, bench: Bench, require: str) -> None:
        """No rehearsal could meet it."""
        (message,) = bench.refused(command="build", rehearse=True, require=require)

        assert message.startswith(f"--require {require} with --rehearse: ")

    def test_rejects_another_word(self, bench: Bench) -> None:
        """And lists the valid ones."""
        (message,) = bench.refused(command="build", require="everything")

        assert message == "--require 'everything': valid are limited, full"


class TestWorld:
    """WORLD, `--cp` and `--dp`."""

    @pytest.mark.parametrize(
        ("gpus", "options", "mesh"),
        [
            (free(8), {"world": "8"}, (2, 2, 2)),
            (free(8), {"world": "4"}, (1, 2, 2)),
            (free(9), {"world": "9"}, (1, 3, 3)),
            (free(16), {"world": "16", "cp": "4x4"}, (1, 4, 4)),
            (free(8), {"dp": "1"}, (1, 2, 2)),
            (free(8), {"dp": "2"}, (2, 2, 2)),
            (free(18), {"cp": "3x3", "dp": "2"}, (2, 3, 3)),
            (free(8), {"world": "8", "dp": "2"}, (2, 2, 2)),
            (ABSENT, {"world": "9"}, (1, 3, 3)),
            (ABSENT, {"cp": "3x3", "dp": "2"}, (2, 3, 3)),
            (ABSENT, {"dp": "3"}, (3, 2, 2)),
            (HUNG, {"world": "8"}, (2, 2, 2)),
            (free(2), {"world": "8"}, (2, 2, 2)),
        ],
    )
    def test_any_two_give_the_third(
        self, bench: Bench, gpus: GpuAnswer, options: dict[str, str], mesh: tuple[int, int, int]
    ) -> None:
        """On GPUs, or where there are too few in the rehearsal."""
        bench.build(gpus, **options)

        request = bench.requests[-1]
        assert (request.dp, request.cp0, request.cp1) == mesh

    @pytest.mark.parametrize("gpus", [free(8), free(2), ABSENT, HUNG])
    @pytest.mark.parametrize("world", ["1", "2", "3", "5", "6", "7", "10"])
    def test_rejects_a_world_without_a_square(self, bench: Bench, gpus: GpuAnswer, world: str) -> None:
        """On any machine, and it names worlds that fit."""
        (message,) = bench.refused(gpus, command="build", world=world)

        assert message.startswith(f"WORLD {world}: no square CP grid divides it; worlds that fit 2x2: ")
        assert "4" in message or "8" in message

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"world": "0"}, "WORLD 0: must be 1 or more"),
            ({"world": "-1"}, "WORLD -1: must be 1 or more"),
            ({"world": "9" * 5000}, "at most 1024 ranks run on CPU, 64 on a GPU"),
            ({"world": "many"}, "WORLD 'many': expected a whole number of 1 or more"),
            ({"world": ""}, "WORLD '': expected a whole number of 1 or more"),
            ({"world": "12"}, "WORLD 12: there are 8 usable GPU(s)"),
            ({"world": "9"}, "WORLD 9: there are 8 usable GPU(s)"),
            ({"world": "516"}, "WORLD 516: at most 512 ranks on 8 GPU(s), 64 a GPU"),
            ({"cp": "3x3", "dp": "2"}, "--cp 3x3 --dp 2, which takes WORLD 18: there are 8 usable GPU(s)"),
            ({"cp": "axb"}, "--cp 'axb': expected AxB with two whole numbers, such as 2x2"),
            ({"cp": "2x3"}, "--cp 2x3: the CP grid must be square"),
            ({"world": "8", "cp": "3x3"}, "--cp 3x3 with WORLD 8: 8 is not a multiple of 9"),
            ({"world": "8", "dp": "3"}, "--dp 3 with WORLD 8: 8 is not a multiple of 3"),
        ],
    )
    def test_rejects(self, bench: Bench, options: dict[str, str], text: str) -> None:
        """Each with what is valid."""
        (message,) = bench.refused(free(8), command="build", **options)

        assert text in message

    def test_rejects_more_ranks_than_a_cpu_takes(self, bench: Bench) -> None:
        """Also where they would only be rehearsed."""
        assert bench.refused(command="build", world="1028") == ("WORLD 1028: at most 1024 ranks on CPU",)


class TestRefusals:
    """Everything else that makes no sense: all at once, before anything is asked or written."""

    def test_every_option_is_read_before_anything_is_refused(self, bench: Bench, tmp_path: Path) -> None:
        """Ten mistakes, and the driver is left alone."""
        (tmp_path / "file").touch()
        messages = bench.refused(
            command="build",
            world="0",
            cp="2x3",
            dp="x",
            slurm=True,
            rehearse=True,
            require="limited",
            python="/does/not/exist",
            model=("a b", "fine", "fine.", "class"),
            workdir=str(tmp_path / "file"),
            docs=str(tmp_path / "file"),
            tier="all",
        )

        expected = ["--model"] * 3 + ["--slurm:", "--require", "--workdir", "--docs", "WORLD", "--cp", "--dp"]
        assert [message.split()[0] for message in messages] == [*expected, "--tier", "--python"]
        assert bench.asked == 0

    @pytest.mark.parametrize(
        "name", ["", ".", "a..b", "a.", ".a", "a-b", "a b", "1a", "class", "__main__", "é\n"]
    )
    def test_names_that_no_module_has(self, bench: Bench, name: str) -> None:
        """The name is quoted, and what is valid."""
        (message,) = bench.refused(command="build", model=(name,))

        assert message.startswith(f"--model {name!r}: ")
        assert "such as boltz.model" in message

    @pytest.mark.parametrize("tier", ["patterns", "full"])
    def test_a_tier_without_a_check(self, bench: Bench, tier: str) -> None:
        """It proves nothing that was asked for."""
        (message,) = bench.refused(command="build", tier=tier)

        assert message == f"--tier {tier}: this tier has no check yet; valid are smoke"

    def test_slurm_says_how_to_go_on_by_hand(self, bench: Bench) -> None:
        """Not there yet, and no dead end."""
        (message,) = bench.refused(command="build", slurm=True)

        assert "not there yet" in message
        assert "slurm_probe.sbatch" in message
        assert "sbatch" in message

    def test_a_file_where_the_docs_would_go(self, bench: Bench, tmp_path: Path) -> None:
        """Told before the proof, not after it."""
        (tmp_path / "docs").touch()
        (message,) = bench.refused(command="build", docs=str(tmp_path / "docs"))

        assert message.startswith(f"--docs {str(tmp_path / 'docs')!r}: expected a folder")

    def test_allows_what_is_said_twice(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """A model that is named twice is tried once; --local is what it does anyway."""
        imports = planned_imports(monkeypatch, {"a": "imported"})
        answer = bench.build(free(8), model=("a", "a"), local=True)

        assert imports == [("a",)]
        assert [one.name for one in software(answer).models] == ["a"]


def planned_imports(monkeypatch: pytest.MonkeyPatch, ends: dict[str, str]) -> list[tuple[str, ...]]:
    """Have models end as given, without a process; returns what is asked for, once it is."""
    asked: list[tuple[str, ...]] = []

    class Planned(ModelImports):
        def start(self) -> None:
            asked.append(self._names)
            self._waiting.clear()

        def wait(self, tick: Any = None) -> None:
            for name in self._names:
                self._results[name] = ended(name, ends[name])

        def poll(self) -> bool:
            return bool(self._results)

    monkeypatch.setattr("cpinfra.node.job.ModelImports", Planned)
    return asked


def ended(name: str, how: str) -> ModelResult:
    """A model that was imported, or not."""
    (untried,) = not_tried([name], "/elsewhere/python")
    good = how == "imported"
    return replace(
        untried,
        imported=None if how == "overdue" else good,
        how=How(how),
        error="" if good else f"{name} {how}",
        path=f"/elsewhere/{name}.py",
        found=True,
        seconds=1.0,
    )


class TestModels:
    """Models beside the proof."""

    def test_one_that_imports_and_one_that_does_not(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Eight GPUs that pass prove nothing for a model that does not import: exit 3, and it is named."""
        planned_imports(monkeypatch, {"good": "imported", "bad": "raised"})
        answer = bench.build(free(8), model=("good", "bad"))

        assert came_to(answer) == ("not-proven", "full", 3)
        (blocks,) = answer.report.blocking
        assert (blocks.id, "bad raised" in blocks.what) == ("model-not-importable", True)
        assert [(one.name, one.imported, one.error) for one in software(answer).models] == [
            ("good", True, ""),
            ("bad", False, "bad raised"),
        ]
        consistency = software(answer).consistency
        assert isinstance(consistency, report.Consistency)
        assert consistency.consistent is False
        assert "models" in bench.told.events

    @pytest.mark.parametrize(
        ("how", "consistent", "name"),
        [
            ("imported", True, None),
            ("raised", False, "model-not-importable"),
            ("hung", False, "model-import-hung"),
            ("ended", False, "model-ended-interpreter"),
            ("overdue", None, "model-import-overdue"),
        ],
    )
    def test_how_it_ended_decides_the_verdict(
        self,
        bench: Bench,
        monkeypatch: pytest.MonkeyPatch,
        how: str,
        consistent: bool | None,
        name: str | None,
    ) -> None:
        """A model of which nothing could be told blocks as well, and leaves the consistency untold."""
        planned_imports(monkeypatch, {"m": how})
        answer = bench.build(rehearse=True, model=("m",))

        assert came_to(answer)[0::2] == (("rehearsed", 0) if name is None else ("not-proven", 3))
        assert blocking(answer) == ([name] if name is not None else [])
        told = software(answer).consistency
        assert isinstance(told, report.Consistency)
        assert (told.consistent if isinstance(told.consistent, bool) else None) is consistent

    def test_after_an_interruption_nobody_waits(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """130, and the model is told as not waited for, with what to do."""
        planned_imports(monkeypatch, {"m": "imported"})
        answer = bench.build(engine="interrupted", rehearse=True, model=("m",))

        assert int(answer.exit_code) == 130
        (found,) = [one for one in answer.report.blocking if one.id.startswith("model")]
        assert (found.id, "was not waited for" in found.what) == ("model-not-tried", True)
        assert found.remedy.startswith("run it again")

    def test_without_torch_models_are_still_told(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """Torch that does not start takes no word along of what the model said."""
        planned_imports(monkeypatch, {"m": "raised"})
        answer = bench.build(engine="no-torch", rehearse=True, model=("m",))

        assert blocking(answer) == ["model-not-importable", "torch-missing"]
        told = software(answer).consistency
        assert isinstance(told, report.Consistency)
        assert told.consistent is False

    def test_a_bug_before_the_models_leaves_none_unmentioned(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Asked for and not begun: each blocks by its own name."""

        def nothing(*_arguments: Any) -> None:
            raise RuntimeError("no description of this host")

        monkeypatch.setattr("cpinfra.hardware.host.describe", nothing)
        answer = bench.build(free(8), model=("one", "two"))

        assert [one.what.split()[1] for one in answer.report.blocking if one.id == "model-not-tried"] == [
            "one",
            "two",
        ]
        assert "cpinfra-bug" in blocking(answer)


class TestDocuments:
    """What is left in the docs folder."""

    @pytest.mark.parametrize(
        ("gpus", "engine"),
        [
            (free(8), "pass"),
            (free(2), "pass"),
            (ABSENT, "pass"),
            (free(4), "two-fail"),
            (HUNG, "garbled"),
            (ABSENT, "no-torch"),
        ],
    )
    def test_are_those_of_the_report(self, bench: Bench, gpus: GpuAnswer, engine: str) -> None:
        """JSON as in the run folder and as printed; Markdown of the same; the summary below 40 lines."""
        answer = bench.build(gpus, engine=engine)

        assert answer.docs_path == bench.docs / "cp_infra.md"
        text = (bench.docs / "cp_infra.json").read_text()
        assert text == answer.report.text() == (bench.folder / "run" / "report.json").read_text()
        assert (bench.docs / "cp_infra.md").read_text() == markdown(docs.read(bench.docs / "cp_infra.json"))
        assert 0 < len(answer.report.summary.splitlines()) < 40
        assert set(json.loads(text)) == {"schema", "created", "tool", *SECTIONS}

    def test_a_folder_that_cannot_be_made_blocks(self, bench: Bench, tmp_path: Path) -> None:
        """The run goes on, the report lies in the run folder, exit 3 although all passed."""
        (tmp_path / "file").touch()
        answer = bench.build(free(8), docs=str(tmp_path / "file" / "docs"))

        assert came_to(answer) == ("not-proven", "full", 3)
        assert blocking(answer) == ["docs-unwritable"]
        assert answer.docs_path is None
        assert answer.report_path == bench.folder / "run" / "report.json"
        assert docs.read(answer.report_path) == answer.report

    def test_an_unwritable_folder_hides_no_failure(self, bench: Bench, tmp_path: Path) -> None:
        """Exit 1 stays 1."""
        (tmp_path / "file").touch()
        answer = bench.build(free(8), engine="two-fail", docs=str(tmp_path / "file" / "docs"))

        assert came_to(answer)[0::2] == ("failed", 1)

    def test_a_folder_that_fills_up_between_two_writes(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was kept aside has to be told by a second document: if that finds no room, it blocks."""
        bench.docs.mkdir()
        (bench.docs / "cp_infra.json").write_text("{")
        written = []

        def full(path: Path, data: bytes) -> None:
            written.append(path)
            if len(written) > 2:
                raise OSError(28, "No space left on device", str(path))
            replace_file(path, data)

        monkeypatch.setattr("cpinfra.record.docs.replace_file", full)
        answer = bench.build(free(8))

        assert came_to(answer) == ("not-proven", "full", 3)
        assert blocking(answer) == ["docs-unwritable"]
        assert answer.docs_path is None

    @pytest.mark.parametrize(
        ("content", "kind"),
        [
            ("{", "corrupt"),
            ('{"a": 1}', "foreign"),
            ('{"schema": "cpinfra/2"}', "newer"),
            ('{"schema": "cpinfra/1", "verdict": 3}', "corrupt"),
            ("", "corrupt"),
        ],
    )
    def test_what_lay_there_is_kept_aside_and_told(self, bench: Bench, content: str, kind: str) -> None:
        """It blocks nothing; the documents themselves say where it is."""
        bench.docs.mkdir()
        (bench.docs / "cp_infra.json").write_text(content)
        answer = bench.build(free(8))

        aside = bench.docs / f"cp_infra.{kind}-1.json"
        assert aside.read_text() == content
        assert came_to(answer) == ("proven", "full", 0)
        (found,) = [one for one in answer.report.findings if one.id == "docs-kept-aside"]
        assert (found.severity, aside.name in found.what) == (Severity.WARNING.value, True)
        assert docs.read(bench.docs / "cp_infra.json") == answer.report
        assert aside.name in (bench.docs / "cp_infra.md").read_text()

    def test_both_documents_of_others(self, bench: Bench) -> None:
        """Two findings, each with its own name; the next build finds its own and says nothing."""
        bench.docs.mkdir()
        (bench.docs / "cp_infra.json").write_text("theirs")
        (bench.docs / "cp_infra.md").write_text("# Theirs")
        first, second = bench.build(free(8)), bench.build(free(8))

        told = [one.what.rpartition(" ")[2] for one in first.report.findings if one.id == "docs-kept-aside"]
        assert sorted(told) == ["cp_infra.corrupt-1.json", "cp_infra.foreign-1.md"]
        assert [one.id for one in second.report.findings] == []

    def test_the_next_commands_name_the_folder(self, bench: Bench) -> None:
        """Where the documents really are."""
        answer = bench.build(free(8))

        assert f"cpinfra check {bench.docs}/cp_infra.json" in commands(answer)

    def test_the_next_builds_are_about_the_same(self, bench: Bench, tmp_path: Path) -> None:
        """Interpreter, models and folders as they were named; what a command says itself stays."""
        (tmp_path / "file").touch()
        options: dict[str, Any] = {"model": ("one", "two"), "workdir": str(tmp_path)}
        python = shlex.quote(sys.executable)
        same = f" --python {python} --workdir {tmp_path} --docs {{}} --model one --model two"
        answer = bench.build(**options)
        unwritable = bench.build(rehearse=True, docs=str(tmp_path / "file" / "x y"), **options)

        told = [one.command for one in answer.report.next if one.command.startswith("cpinfra build")]
        assert told[0] == "cpinfra build --rehearse" + same.format(bench.docs)
        assert SBATCH in [one.command for one in answer.report.next]
        assert answer.report.blocking[0].command == told[0]
        assert isinstance(answer.report.hardware, report.Hardware)
        assert [one.command for one in answer.report.hardware.findings] == [told[0]]
        (blocks,) = [one for one in unwritable.report.blocking if one.id == "docs-unwritable"]
        assert blocks.command == "cpinfra build --docs DIR" + same.replace(" --docs {}", "") + " --rehearse"

    @pytest.mark.parametrize(
        ("options", "told", "needs"),
        [
            ({"cp": "3x3"}, " --cp 3x3", "9 free GPUs or more, 18 for all of it"),
            ({"world": "9"}, " 9", "9 free GPUs or more"),
            ({"world": "8", "dp": "2"}, " 8 --dp 2", "8 free GPUs or more"),
            ({"dp": "2"}, " --dp 2", "8 free GPUs or more"),
        ],
    )
    @pytest.mark.parametrize("rehearse", [True, False])
    def test_the_next_builds_have_the_same_mesh(
        self, bench: Bench, options: dict[str, Any], told: str, needs: str, rehearse: bool
    ) -> None:
        """Asked for a rehearsal or sent to one: its grid and ranks are counted and handed on."""
        steps = bench.build(python=None, rehearse=rehearse, **options).report.next
        proof = next(step for step in steps if step.why.startswith("prove it on a machine with "))

        assert proof.why == f"prove it on a machine with {needs}"
        assert proof.command.startswith(f"cpinfra build{told} --docs")
        for step in steps:
            if "--rehearse" in step.command:
                assert set(told.split()) <= set(step.command.split())
                assert step.why.endswith(f"to rehearse without GPUs: {step.command}")
        assert any("--rehearse" in step.command for step in steps) != rehearse

    def test_a_wider_scope_keeps_the_grid(self, bench: Bench) -> None:
        """Of nine ranks, on nine GPUs: for all of it twice as many."""
        answer = bench.build(free(9), python=None, cp="3x3", dp="1", require="full")
        (blocks,) = answer.report.blocking

        assert "18 or more with dp 2" in blocks.remedy
        assert blocks.command.startswith("cpinfra build 18 --require full --cp 3x3")
        assert answer.report.next[0].command == blocks.command

    def test_where_nothing_was_named_nothing_is_added(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The defaults are those of the next build as well."""
        monkeypatch.chdir(tmp_path)
        answer = bench.build(python=None, docs="docs")

        assert {"cpinfra build", "cpinfra build --rehearse", SBATCH} <= {
            one.command for one in answer.report.next
        }


SECTIONS = {
    "verdict",
    "scope",
    "summary",
    "next",
    "host",
    "hardware",
    "plan",
    "software",
    "runs",
    "checks",
    "hang",
    "recipe",
    "findings",
    "blocking",
    "logs",
}


class TestInterim:
    """What lies on disk while it still runs."""

    def test_a_report_that_says_so(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """At every event worth it: blocking `run-unfinished`, whole, and nothing in the docs folder yet."""
        seen: list[tuple[str, list[str]]] = []
        path = bench.folder / "run" / "report.json"

        def event(event: dict[str, Any]) -> None:
            if path.is_file():
                made = docs.read(path)
                seen.append((event["event"], [one.id for one in made.blocking]))
                assert not bench.docs.exists()

        monkeypatch.setattr(bench.told, "event", event)
        bench.build(free(8))

        assert {name for name, _ in seen} >= {"software", "check"}
        assert all("run-unfinished" in ids for _, ids in seen)
        assert docs.read(path).blocking == []


class TestFacts:
    """Where sections come from."""

    def test_the_disk_is_that_of_the_work_folder(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """--workdir before FOLD_CP_WORKDIR before the current folder; the recipe launches there too."""
        for name in ("here", "variable", "option"):
            (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / "here")
        monkeypatch.delenv("FOLD_CP_WORKDIR", raising=False)
        places = [work_folder(bench.build(rehearse=True))]
        monkeypatch.setenv("FOLD_CP_WORKDIR", str(tmp_path / "variable"))
        places.append(work_folder(bench.build(rehearse=True)))
        places.append(work_folder(bench.build(rehearse=True, workdir="../option")))

        assert places[:2] == [(str(tmp_path / name),) * 2 for name in ("here", "variable")]
        assert [Path(place).resolve().name for place in places[2]] == ["option", "option"]
        assert places[2][1].startswith("/")

    def test_cuda_of_the_driver_where_torch_has_no_use_for_it(self, bench: Bench) -> None:
        """NVML's word, or why there is none."""
        said = software(bench.build(free(8), rehearse=True)), software(bench.build(ABSENT, rehearse=True))

        assert said[0].cuda_driver == "13.0"
        assert isinstance(said[1].cuda_driver, report.Unavailable)

    def test_why_no_kernels_ran(self, bench: Bench) -> None:
        """Not asked for on the CPU; on GPUs the run ended before."""
        told = [
            software(bench.build(free(8), rehearse=True)),
            software(bench.build(free(8), engine="no-torch")),
        ]

        assert [getattr(one.kernels, "unavailable", "") for one in told] == [
            "no run on GPUs was made",
            "the run on GPUs ended before they were through",
        ]


def work_folder(answer: Answer) -> tuple[str, str]:
    """(Whose disk was measured, where the recipe launches)."""
    assert isinstance(answer.report.host, report.Host)
    assert isinstance(answer.report.recipe, report.Recipe)
    assert isinstance(answer.report.recipe.workdir, str)
    return answer.report.host.disk.path, answer.report.recipe.workdir

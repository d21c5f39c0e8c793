from __future__ import annotations

import json
import shutil
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
from cpinfra.build import ProveRequest
from cpinfra.hardware.gpus import GpuAnswer
from cpinfra.hardware.gpus import Remark
from cpinfra.judging import sections
from cpinfra.judging import store
from cpinfra.judging.store import Answer
from cpinfra.mesh import Mesh
from cpinfra.mesh import UsageProblem
from cpinfra.planning import placement
from cpinfra.planning.asked import Mistakes
from cpinfra.planning.asked import read
from cpinfra.proof import environment


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """See `Bench`."""
    (tmp_path / "bench").mkdir()
    return Bench(tmp_path / "bench", monkeypatch)


def plan_of(answer: Answer) -> report.Plan:
    """The plan in its report."""
    assert answer.report.plan is not None
    return answer.report.plan


def outcomes(answer: Answer) -> dict[str, str]:
    """Outcome by check."""
    return {check.id: check.outcome for check in answer.report.checks}


class TestDevice:
    """Where it runs, and that it never runs elsewhere in silence."""

    @pytest.mark.parametrize("gpus", [ABSENT, HIDDEN])
    def test_without_gpus_it_rehearses_and_says_so_first(self, bench: Bench, gpus: GpuAnswer) -> None:
        """No sign of NVIDIA, or GPUs hidden on purpose: 4 ranks 2x2 on CPU, and the first line says why."""
        answer = bench.prove(gpus)

        assert bench.told.lines[0].startswith(f"device: cpu, as {gpus.reason}: a rehearsal over gloo")
        assert (answer.verdict.value, answer.scope and answer.scope.value, int(answer.exit_code)) == (
            "rehearsed",
            "rehearsal",
            0,
        )
        (request,) = bench.requests
        assert (request.device, request.dp, request.cp0, request.cp1) == ("cpu", 1, 2, 2)
        assert request.gpu_uuids == ()

    def test_eight_gpus_are_proven_in_full(self, bench: Bench) -> None:
        """The plan's choice, on all of them, by UUID."""
        answer = bench.prove(free(8))

        (request,) = bench.requests
        assert (request.device, request.dp, request.cp0, request.cp1) == ("cuda", 2, 2, 2)
        assert request.gpu_uuids == tuple(f"GPU-{n}" for n in range(8))
        assert (answer.verdict.value, answer.scope and answer.scope.value) == ("proven", "full")
        chosen = plan_of(answer).chosen
        assert chosen is not None
        assert chosen.integration == "full"
        assert bench.told.lines[0] == "device: cuda: 8 x H200 over nccl"

    def test_unclaimed_gpus_are_said(self, bench: Bench) -> None:
        """An info, naming them, that blocks nothing."""
        answer = bench.prove(free(4))

        found = getattr(answer.report.hardware, "findings", [])
        assert [(finding.id, finding.severity) for finding in found] == [("gpus-unclaimed", "info")]
        assert "GPU-0, GPU-1" in found[0].got
        assert answer.verdict.value == "proven"

    @pytest.mark.parametrize(("number", "role"), [(1, "partial"), (3, "partial"), (4, "main"), (5, "main")])
    def test_few_gpus_make_a_partial_run(self, bench: Bench, number: int, role: str) -> None:
        """1 to 3 GPUs: a 1-D mesh of all of them, whose passes prove nothing; blocking, exit 3."""
        answer = bench.prove(free(number))

        assert answer.report.runs[0].role == role
        if role == "partial":
            assert bench.requests[0].cp0 == number
            assert outcomes(answer)["dtensor.roundtrip"] == "skip"
            assert (answer.verdict.value, answer.scope, int(answer.exit_code)) == ("not-proven", None, 3)
            assert [blocking.id for blocking in answer.report.blocking] == ["too-few-gpus"]

    @pytest.mark.parametrize(
        ("gpus", "name", "device"),
        [
            (BUSY, "gpus-busy", "auto"),
            (HUNG, "driver-hung", "auto"),
            (BROKEN, "gpus-unknown", "auto"),
            (NOT_LOADED, "no-driver", "auto"),
            (LOST, "no-usable-gpu", "auto"),
            (BUSY, "gpus-busy", "cuda"),
            (HUNG, "driver-hung", "cuda"),
            (NOT_LOADED, "no-driver", "cuda"),
            (ABSENT, "no-gpu", "cuda"),
            (HIDDEN, "no-usable-gpu", "cuda"),
        ],
    )
    def test_an_obstacle_is_exit_3_with_a_report(
        self, bench: Bench, gpus: GpuAnswer, name: str, device: str
    ) -> None:
        """Nothing runs, nothing falls back to the CPU, and the report says which obstacle it was."""
        answer = bench.prove(gpus, device=device)

        assert bench.requests == []
        assert (answer.verdict.value, answer.scope, int(answer.exit_code)) == ("not-proven", None, 3)
        assert answer.report.runs == []
        assert set(outcomes(answer).values()) == {"unknown"}
        (blocking,) = answer.report.blocking
        assert blocking.id == name
        assert gpus.reason in blocking.what
        assert blocking.command == "cpinfra prove --device cpu"
        assert blocking.remedy == f"{gpus.remedy}; to rehearse without GPUs: cpinfra prove --device cpu"
        assert answer.report_path == bench.folder / "run" / "report.json"
        assert json.loads(answer.report_path.read_text())["verdict"] == "not-proven"

    def test_boards_without_a_driver_are_not_counted_as_none(self, bench: Bench) -> None:
        """How many GPUs are free cannot be told without a driver; with one that counts zero it can."""
        assert "unavailable" in json.loads(bench.prove(NOT_LOADED).report.text())["plan"]["gpus_free"]
        assert plan_of(bench.prove(LOST)).gpus_free == 0

    def test_each_kind_of_remark_has_words_of_its_own(self, bench: Bench) -> None:
        """Who named GPUs by UUID is not told to do so; a note is an info, the others are warnings."""
        kinds = [("order", False), ("cut-short", True), ("in-use", True), ("in-use", True)]
        remarks = [
            Remark(kind=kind, text=f"text {number}", is_warning=warns)
            for number, (kind, warns) in enumerate(kinds)
        ]
        answer = bench.prove(replace(free(4), remarks=tuple(remarks)))

        found = getattr(answer.report.hardware, "findings", [])[:4]
        assert [(finding.id, finding.severity, finding.got) for finding in found] == [
            ("gpus-order", "info", "text 0"),
            ("gpus-cut-short", "warning", "text 1"),
            ("gpus-in-use", "warning", "text 2"),
            ("gpus-in-use", "warning", "text 3"),
        ]
        assert ["by UUID" in finding.remedy for finding in found] == [True, False, False, False]
        for words in ("what", "expected", "remedy"):
            assert len({getattr(finding, words) for finding in found}) == 3

    def test_busy_gpus_are_each_named(self, bench: Bench) -> None:
        """Two busy GPUs, two findings, each with its own reason."""
        answer = bench.prove(BUSY)

        found = getattr(answer.report.hardware, "findings", [])
        assert [(finding.what, finding.got) for finding in found if finding.severity == "info"] == [
            ("GPU-0 (H200) was left alone", "it runs 1"),
            ("GPU-1 (H200) was left alone", "it runs 2"),
        ]

    def test_cpu_as_asked_asks_no_driver(self, bench: Bench) -> None:
        """`--device cpu` leaves a sick driver alone."""
        answer = bench.prove(HUNG, device="cpu")

        assert bench.asked == 0
        assert bench.told.lines[0].startswith("device: cpu, as asked")
        assert answer.verdict.value == "rehearsed"
        assert "unavailable" in json.loads(answer.report.text())["plan"]["gpus_free"]


class TestMesh:
    """How many ranks, in which mesh."""

    @pytest.mark.parametrize(
        ("gpus", "options", "mesh"),
        [
            (ABSENT, {}, (1, 2, 2)),
            (ABSENT, {"ranks": "9"}, (1, 3, 3)),
            (ABSENT, {"cp": "3x3"}, (1, 3, 3)),
            (ABSENT, {"dp": "2"}, (2, 2, 2)),
            (ABSENT, {"ranks": "5"}, (1, 5, 1)),
            (free(16), {"cp": "3x3"}, (1, 3, 3)),
            (free(9), {"cp": "2x2"}, (2, 2, 2)),
            (free(8), {"ranks": "4"}, (1, 2, 2)),
            (free(8), {"dp": "1"}, (1, 2, 2)),
            (free(2), {}, (1, 2, 1)),
        ],
    )
    def test_follows_from_options_and_gpus(
        self, bench: Bench, gpus: GpuAnswer, options: dict[str, str], mesh: tuple[int, int, int]
    ) -> None:
        """What was said counts; what was not follows the plan, or 4 ranks on CPU."""
        bench.prove(gpus, **options)

        (request,) = bench.requests
        assert (request.dp, request.cp0, request.cp1) == mesh
        assert len(request.gpu_uuids) == (request.world if request.device == "cuda" else 0)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (
                {"ranks": "8"},
                "--ranks 8: there are 4 usable GPU(s); several ranks",
            ),
            ({"cp": "3x3"}, "--cp 3x3, which takes --ranks 9: there are 4 usable GPU(s)"),
            ({"cp": "2x2", "dp": "2"}, "--cp 2x2 --dp 2, which takes --ranks 8: there are 4 usable GPU(s)"),
            ({"ranks": "257"}, "--ranks 257: at most 256 ranks on 4 GPU(s), 64 a GPU"),
        ],
    )
    def test_rejects_more_ranks_than_gpus(self, bench: Bench, options: dict[str, str], text: str) -> None:
        """Both numbers are named, and the option that made them."""
        (message,) = bench.refused(free(4), **options)

        assert message.startswith(text)

    def test_rejects_more_ranks_than_a_cpu_takes(self, bench: Bench) -> None:
        """1024 are the limit of a rehearsal."""
        assert bench.refused(ranks="1025") == ("--ranks 1025: at most 1024 ranks on CPU",)

    def test_default_of_the_pure_function(self) -> None:
        """An obstacle leaves no GPUs to count, and still gives a mesh for the report."""
        numbers = read(ProveRequest(device="cuda"), Mistakes())

        assert placement.pick_mesh(numbers, "cuda", 0) == Mesh(dp=1, cp0=2, cp1=2)


class TestRefusals:
    """All mistakes at once, and nothing written."""

    def test_every_option_is_read_before_anything_is_refused(self, bench: Bench, tmp_path: Path) -> None:
        """Twelve mistakes, twelve messages, each with its option, and the driver is left alone."""
        (tmp_path / "file").touch()
        messages = bench.refused(
            ranks="0",
            cp="2x3",
            dp="x",
            device="gpu",
            tier="all",
            budget="-1",
            run_dir=str(tmp_path / "file"),
            python="/does/not/exist",
            only=("nope",),
            skip=("neither",),
            inject=("bad", "kill"),
        )

        plain = ("ranks", "cp", "dp", "device", "tier", "budget", "run-dir", "python", "only", "skip")
        options = [*plain, "inject", "inject"]
        assert [message.split()[0] for message in messages] == [f"--{name}" for name in options]
        assert bench.asked == 0

    @pytest.mark.parametrize(
        ("options", "texts"),
        [
            ({"tier": "smok", "ranks": "4", "cp": "3x3"}, ["--tier 'smok'", "--cp 3x3 with --ranks 4"]),
            ({"ranks": "4", "inject": ("kill:4",)}, ["expected a rank from 0 to 3, got '4'"]),
            ({"dp": "2", "inject": ("kill:8",)}, ["expected a rank from 0 to 7, got '8'"]),
            (
                {"device": "cpu", "inject": ("kill:1@0", "kill:9")},
                ["expected the number of a call", "expected a rank from 0 to 3, got '9'"],
            ),
            (
                {"inject": ("kill:x", "kil:1")},
                ["expected the number of a rank, from 0 on, got 'x'", "no such"],
            ),
            ({"python": "/does/not/exist"}, ["--python '/does/not/exist'"]),
        ],
    )
    def test_what_needs_no_machine_is_refused_without_asking_it(
        self, bench: Bench, options: dict[str, Any], texts: list[str]
    ) -> None:
        """A driver that hangs for 20 s does not come before a typo."""
        messages = bench.refused(HUNG, **options)

        assert bench.asked == 0
        assert len(messages) == len(texts)
        for message, text in zip(messages, texts, strict=True):
            assert text in message

    @pytest.mark.parametrize("options", [{"ranks": "5"}, {"cp": "2x2", "inject": ("kill:4",)}])
    def test_what_needs_the_machine_is_refused_after_asking_it(
        self, bench: Bench, options: dict[str, Any]
    ) -> None:
        """How many GPUs there are decides; it is asked once."""
        (message,) = bench.refused(free(4), **options)

        assert bench.asked == 1
        assert "there are 4 usable GPU(s)" in message or "expected a rank from 0 to 3" in message

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"ranks": "-1"}, "--ranks -1: must be 1 or more"),
            ({"ranks": "1000000"}, "--ranks 1000000: at most 1024 ranks on CPU"),
            ({"ranks": "9" * 5000}, "at most 1024 ranks run on CPU, 64 on a GPU"),
            ({"ranks": "4.0"}, "--ranks '4.0': expected a whole number of 1 or more"),
            ({"ranks": "٤"}, "expected a whole number of 1 or more"),
            ({"dp": "0"}, "--dp 0: must be 1 or more"),
            ({"cp": "axb"}, "--cp 'axb': expected AxB with two whole numbers, such as 2x2"),
            ({"cp": "2x2", "ranks": "5"}, "5 is not a multiple of 4; worlds that fit 2x2: 4, 8"),
            ({"tier": "full"}, "--tier full: this tier has no check yet; valid are"),
            ({"budget": "nan"}, "--budget 'nan': expected a number of seconds above 0"),
            ({"budget": "inf"}, "--budget 'inf': expected a number of seconds above 0"),
            ({"inject": ("kill:4",)}, "--inject 'kill:4': expected a rank from 0 to 3, got '4'"),
            ({"inject": ("wrong-chunks",)}, "no such fault; there are: wrong-chunk, reversed-shard"),
        ],
    )
    def test_each_says_what_is_valid(self, bench: Bench, options: dict[str, Any], text: str) -> None:
        """Got, expected, option, and what would do."""
        (message,) = bench.refused(**options)

        assert text in message

    def test_a_folder_that_cannot_be_made(self, bench: Bench, tmp_path: Path) -> None:
        """Also found out before anything starts."""
        (tmp_path / "file").touch()
        with pytest.raises(UsageProblem, match="--run-dir"):
            bench.prove(run_dir=str(tmp_path / "file" / "below"))

        assert bench.requests == []

    def test_a_folder_with_files_of_others(self, bench: Bench) -> None:
        """A usage mistake: nothing runs, and what lies there stays."""
        (bench.folder / "report.json").write_text("theirs")

        with pytest.raises(UsageProblem, match=r"it would replace report\.json.*; give a folder"):
            bench.prove(run_dir=str(bench.folder))

        assert bench.requests == []
        assert [path.name for path in bench.folder.iterdir()] == ["report.json"]
        assert (bench.folder / "report.json").read_text() == "theirs"

    @pytest.mark.parametrize("gpus", [HUNG, ABSENT])
    def test_allows_the_folder_of_an_earlier_run(self, bench: Bench, gpus: GpuAnswer) -> None:
        """Also of one that could not run anything."""
        first, second = bench.prove(gpus), bench.prove(ABSENT)

        assert first.report_path == second.report_path
        assert json.loads((bench.folder / "run" / "report.json").read_text())["verdict"] == "rehearsed"

    def test_allows_a_fault_on_the_last_rank(self, bench: Bench) -> None:
        """And says in the report that it was planted."""
        answer = bench.prove(inject=("kill:3", "wrong-chunk"))

        assert bench.requests[0].faults == ("kill:3", "wrong-chunk")
        (finding,) = answer.report.findings
        assert (finding.id, finding.severity) == ("fault-planted", "warning")
        assert finding.got == "kill:3, wrong-chunk"

    @pytest.mark.parametrize(
        ("faults", "expected"),
        [
            (("kill:3", "wrong-chunk"), "checks fail"),
            (("delay:1:0.2",), "a rank comes late"),
            (("stall-init:1",), "a rank hangs outside of the checks"),
            (("delay:1:0.2", "raise:2"), "a rank comes late and checks fail"),
        ],
    )
    def test_what_is_planted_says_what_to_expect(
        self, bench: Bench, faults: tuple[str, ...], expected: str
    ) -> None:
        """A delay makes no check fail."""
        (finding,) = bench.prove(inject=faults).report.findings

        assert finding.what == f"faults were planted in this run, so it is expected that {expected}"


class TestChecks:
    """Which checks run, and what the report says of the others."""

    def test_a_skipped_seed_check_is_not_proven(self, bench: Bench) -> None:
        """It is listed with its reason, and does not run."""
        answer = bench.prove(skip=("p2p.ring",))

        assert outcomes(answer)["p2p.ring"] == "skip"
        assert "p2p.ring" not in [check.id for check in bench.requests[0].checks]
        assert (answer.verdict.value, int(answer.exit_code)) == ("not-proven", 3)

    def test_only_decides_what_is_required(self, bench: Bench) -> None:
        """Without a square the round trip is skipped: not proven, unless it was not asked for."""
        assert bench.prove(ranks="5").verdict.value == "not-proven"
        assert bench.prove(ranks="5", only=("collective.*",)).verdict.value == "rehearsed"

    @pytest.mark.parametrize(
        ("options", "verdict", "scope"),
        [
            ({"only": ("p2p.ring",)}, "proven", None),
            ({"only": ("*",)}, "proven", "full"),
            ({"only": ("*",), "ranks": "4"}, "proven", "limited"),
            ({"skip": ("p2p.ring",)}, "not-proven", None),
            ({"skip": ("dtensor.roundtrip_1d",)}, "not-proven", None),
            ({"only": ("p2p.ring",), "device": "cpu"}, "rehearsed", "rehearsal"),
        ],
    )
    def test_gpus_reach_as_far_as_the_checks_that_every_proof_requires(
        self, bench: Bench, options: dict[str, Any], verdict: str, scope: str | None
    ) -> None:
        """One check on eight GPUs has no scope, whatever was asked for; all five have."""
        answer = bench.prove(free(8), **options)

        assert (answer.verdict.value, answer.report.scope) == (verdict, scope)

    def test_a_check_without_a_result_is_unknown(self, bench: Bench) -> None:
        """What the engine forgets is not passed, and is called an error of ours."""
        answer = bench.prove(engine="lost")

        lost = next(check for check in answer.report.checks if check.outcome == "unknown")
        assert lost.reason == "the engine gave no result for it"
        assert "bug of cpinfra" in lost.remedy
        assert int(answer.exit_code) == 3

    def test_the_catalogue_gives_the_order(self, bench: Bench) -> None:
        """Checks that were left out stand where they would have run."""
        whole = list(outcomes(bench.prove()))

        assert list(outcomes(bench.prove(skip=("*gather",)))) == whole


class TestEnds:
    """However the engine ends, there is a report and an exit code."""

    def test_an_error_at_the_end_takes_no_verdict_along(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was contradicted stays contradicted; the error of ours is told beside it."""
        monkeypatch.setenv("FAKE_ENGINE_STUMBLES", "1")

        answer = bench.prove(engine="two-fail")

        assert (answer.verdict.value, int(answer.exit_code)) == ("failed", 1)
        assert sum(check.outcome == "fail" for check in answer.report.checks) == 2
        assert answer.report.hang is not None
        assert "cpinfra-bug" in [finding.id for finding in answer.report.findings]

    def test_a_report_that_cannot_be_made_midway_ends_nothing(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run that it is about goes on, and the final report is judged as ever."""

        def nothing(*_arguments: Any) -> None:
            raise ValueError("no report of this")

        monkeypatch.setattr(store, "interim", nothing)

        assert bench.prove().verdict.value == "rehearsed"

    def test_two_failing_checks_and_two_culprits(self, bench: Bench) -> None:
        """Each check keeps its own reason, each culprit its own facts."""
        answer = bench.prove(engine="two-fail")

        failed = {check.id: check.reason for check in answer.report.checks if check.outcome == "fail"}
        assert failed == {name: f"{name} was contradicted" for name in ("collective.all_gather", "p2p.ring")}
        assert answer.report.hang is not None
        culprits = [(culprit.rank, culprit.kind) for culprit in answer.report.hang.culprits]
        assert culprits == [(1, "never-entered"), (3, "process-stopped")]
        assert (answer.verdict.value, int(answer.exit_code)) == ("failed", 1)

    def test_no_torch(self, bench: Bench) -> None:
        """A blocking finding of the engine: every check unknown for its reason, exit 3."""
        answer = bench.prove(engine="no-torch")

        assert {check.reason for check in answer.report.checks} == {"not run: torch-missing what"}
        assert [blocking.id for blocking in answer.report.blocking] == ["torch-missing"]
        assert int(answer.exit_code) == 3

    def test_no_torch_on_gpus_has_no_scope(self, bench: Bench) -> None:
        """Eight GPUs on which nothing ran reach nowhere."""
        assert bench.prove(free(8), engine="no-torch").scope is None

    def test_interrupted(self, bench: Bench) -> None:
        """130, and the report is on disk all the same."""
        answer = bench.prove(engine="interrupted")

        assert (int(answer.exit_code), answer.verdict.value) == (130, "not-proven")
        assert answer.report_path is not None
        assert answer.report_path.is_file()

    def test_an_error_of_ours_is_no_verdict_on_the_machine(self, bench: Bench) -> None:
        """Unknown, blocking, the traceback kept, exit 3: never a fail."""
        answer = bench.prove(engine="bug")

        assert int(answer.exit_code) == 3
        assert set(outcomes(answer).values()) == {"unknown"}
        (finding,) = answer.report.findings
        assert finding.id == "cpinfra-bug"
        assert "RuntimeError: two\nlines" in finding.got

    @pytest.mark.parametrize("room", [True, False])
    def test_a_run_folder_that_takes_no_report(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
    ) -> None:
        """The report goes where there is room, if anywhere; it says so as blocking, exit 3."""
        elsewhere = tmp_path / "elsewhere"
        if room:
            elsewhere.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
        answer = bench.prove(engine="unwritable")

        assert int(answer.exit_code) == 3
        assert [blocking.id for blocking in answer.report.blocking] == ["run-folder-unwritable"]
        assert set(outcomes(answer).values()) == {"pass"}
        if room:
            assert answer.report_path is not None
            assert (answer.report_path.name, answer.report_path.parent.parent) == ("report.json", elsewhere)
            assert json.loads(answer.report_path.read_text())["verdict"] == "not-proven"
        else:
            assert answer.report_path is None

    def test_no_temporary_folder_is_looked_for_where_none_is_needed(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A container whose every folder but the run's is read-only."""
        monkeypatch.setattr("tempfile.gettempdir", self._nowhere)

        assert bench.prove().report_path == bench.folder / "run" / "report.json"

    def test_without_any_folder_the_report_is_still_given(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither the run folder takes it nor is there a temporary one."""
        monkeypatch.setattr("tempfile.gettempdir", self._nowhere)
        answer = bench.prove(engine="unwritable")

        assert (answer.report_path, int(answer.exit_code)) == (None, 3)
        assert [blocking.id for blocking in answer.report.blocking] == ["run-folder-unwritable"]

    @staticmethod
    def _nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    def test_the_logs_are_listed_with_their_sizes(self, bench: Bench) -> None:
        """What the run left, by what it holds."""
        answer = bench.prove()

        assert [Path(log.path).name for log in answer.report.logs] == ["events.jsonl", "stages.jsonl"]
        assert 0 not in [log.bytes for log in answer.report.logs]

    def test_logs_that_vanish_end_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody cleans up beside us: what is gone has no size, or is not listed, and the rest is."""
        for number, text in enumerate(["one", "three"]):
            folder = tmp_path / f"generation-{number}"
            folder.mkdir()
            (folder / "rank-0.log").write_text(text)
            (folder / "rank-1.log").symlink_to("gone")
        (tmp_path / "zygote.log").write_text("zygote")
        real = Path.is_file

        def is_file(path: Path) -> bool:
            there = real(path)
            if path.name == "zygote.log":
                path.unlink(missing_ok=True)
            return there

        monkeypatch.setattr(Path, "is_file", is_file)

        logs = [(Path(log.path).name, log.bytes) for log in sections._logs(tmp_path)]
        assert [name for name, _ in logs] == ["zygote.log", "generation-0", "generation-1"]
        assert getattr(logs[0][1], "unavailable", "") == "No such file or directory"
        assert [size for _, size in logs[1:]] == [3, 5]
        shutil.rmtree(tmp_path)
        assert sections._logs(tmp_path) == []

    def test_heavy_imports_come_after_the_start(self, bench: Bench) -> None:
        """The reporter hears of the start before the engine runs, and may import then."""
        bench.prove()

        assert bench.told.events[:2] == ["start", "(started)"]


class TestEnvironment:
    """A pass under the user's own settings does not look like any other."""

    def test_the_recipe_says_what_was_in_force(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """The user's variables and ours, with the GPUs that the ranks really got."""
        monkeypatch.setenv("NCCL_DEBUG", "INFO")
        monkeypatch.setenv("UNRELATED", "x")
        env = getattr(bench.prove(free(8), ranks="4").report.recipe, "env", {})

        assert env["NCCL_DEBUG"] == "INFO"
        assert (
            env["CUDA_VISIBLE_DEVICES"] == ",".join(bench.requests[0].gpu_uuids) == "GPU-0,GPU-1,GPU-2,GPU-3"
        )
        ours = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", "RES_OPTIONS", "PYTHONFAULTHANDLER"}
        assert {name: environment.HARDENING[name] for name in ours}.items() <= env.items()
        assert "MKL_NUM_THREADS" not in env  # only a process that forks ranks needs it
        assert "UNRELATED" not in env

    def test_without_a_run_nothing_was_in_force(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nor is there anything to be said of it."""
        monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
        report = bench.prove(HUNG).report

        assert getattr(report.recipe, "unavailable", "") == "no run was made"
        assert report.findings == []

    def test_what_was_replaced_is_named(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two variables, each with both values; it changes no verdict."""
        monkeypatch.setenv("OMP_NUM_THREADS", "16")
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
        answer = bench.prove()

        (finding,) = answer.report.findings
        assert (finding.id, finding.severity) == ("environment-overrides", "info")
        assert finding.what.endswith("of: GLOO_SOCKET_IFNAME, OMP_NUM_THREADS")
        assert finding.got == "GLOO_SOCKET_IFNAME='ib0' became 'lo'; OMP_NUM_THREADS='16' became '1'"
        assert answer.verdict.value == "rehearsed"

    def test_transports_that_are_switched_off_are_a_warning(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two of them: both are named, and the command unsets both; proven it is all the same."""
        monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
        monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
        answer = bench.prove(free(4))

        (finding,) = answer.report.findings
        assert (finding.id, finding.severity) == ("transport-restricted", "warning")
        assert finding.got == "NCCL_NVLS_ENABLE=0, NCCL_P2P_DISABLE=1"
        assert finding.command == "env -u NCCL_NVLS_ENABLE -u NCCL_P2P_DISABLE cpinfra prove"
        assert answer.verdict.value == "proven"

    def test_an_environment_without_either_is_not_mentioned(self, bench: Bench) -> None:
        """Nothing replaced, nothing switched off: no finding."""
        assert bench.prove(free(4)).report.findings == []

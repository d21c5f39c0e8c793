"""The summary, the next steps and the questions of a report."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

import reports
from cpinfra import report
from cpinfra.record import words
from cpinfra.record.next_steps import AskedMesh
from cpinfra.record.next_steps import next_steps
from cpinfra.record.next_steps import questions
from cpinfra.record.summary import summary
from test_markdown import TEXTS
from test_markdown import replaced

SBATCH = "sbatch skills/build-infra/scripts/slurm_probe.sbatch"
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=60)
"""Of kinds and checks."""


def commands(made: report.Report, docs: str = "docs") -> list[str]:
    """What to do next."""
    return [step.command for step in next_steps(made, docs)]


def blocked(num_gpus: int, **sections: Any) -> report.Report:
    """A report of a machine with so many free GPUs, not proven."""
    whole = {"verdict": "not-proven", "plan": reports.plan(num_gpus), "runs": [], "checks": [], **sections}
    return reports.made(**whole)


def hang_of(kind: str, check: str | None, num_culprits: int) -> report.Hang:
    """A hang of which so many ranks are the culprits."""
    one = reports.hang()
    culprits = [one.culprits[0].model_copy(update={"rank": rank}) for rank in range(num_culprits)]
    facts = {"kind": kind, "check": check, "culprit_ranks": list(range(num_culprits)), "culprits": culprits}
    return one.model_copy(update=facts)


def crowded(hang: report.Hang, text: str, number: int) -> report.Report:
    """A report that has every section, each with so many entries: more than any command makes."""
    whole: report.Report = replaced(reports.of("not-proven"), text or "-")
    told = report.Told(outcome=None, kind=None, ranks=[], text=text)
    missed = report.SelfTestRow(
        twin="kill",
        check=text,
        status="missed",
        fault=text,
        fired=False,
        detected=False,
        culprit_right=False,
        kind_right=False,
        seconds=None,
        reason="",
        expected=told,
        got=told,
    )
    control = report.Control(clean=False, outcomes={}, false_alarms=[text] * number, left_out=[text or "-"])
    odd = {
        "hang": hang,
        "runs": [reports.run()] * number,
        "checks": [reports.check("a", "fail", reason=f"{text}{n}x") for n in range(number)],
        "blocking": [reports.too_few_gpus().model_copy(update={"what": text})] * number + whole.blocking,
        "next": [report.Next(why=text, command=f"echo {text}")] * number,
        "selftest": [missed] * number,
        "control": control,
    }
    return whole.model_copy(update=odd)


class TestSummary:
    """Less than 40 lines of 100 columns."""

    @pytest.mark.parametrize("kind", reports.KINDS)
    def test_begins_with_verdict_and_scope(self, kind: reports.Kind) -> None:
        """And says what they mean."""
        made = reports.of(kind)
        lines = summary(made).splitlines()

        assert lines[0].startswith(f"Verdict: {made.verdict}")
        assert "every required check" in lines[1] or "contradicted" in lines[1]
        assert any(line.startswith("Launch: ") for line in lines)

    def test_of_a_failure(self) -> None:
        """Two checks keep their own words, and the culprit is named."""
        text = summary(reports.of("failed"))

        assert "fail p2p.ring: p2p.ring: rank 2 got another chunk" in text
        assert "unknown dtensor.roundtrip" in text
        assert "never-entered in p2p.ring, culprit rank 1" in text
        assert "Run main: 4 ranks, dp 1, cp 2x2 on cuda, nccl: 3 of 5 checks passed" in text

    def test_of_what_blocks(self) -> None:
        """What is needed of the user stands there with the options."""
        text = summary(reports.of("not-proven"))

        assert "no-gpu: 2D context parallelism cannot be proven here" in text
        assert "Needed from you for a SLURM job\n  - login_host (ssh), partition (sbatch --partition)" in text
        assert "may_submit" in text

    def test_commands_are_never_broken(self) -> None:
        """One that has no room behind its reason stands on a line of its own."""
        made = reports.of("proven")
        lines = [line.strip() for line in summary(made).splitlines()]

        for step in made.next or ():
            assert any(line.endswith(step.command) for line in lines)

    def test_of_an_empty_report(self) -> None:
        """What it does not hold is not invented."""
        assert summary(reports.stamped()) == "This report holds nothing that is shown here.\n"

    def test_of_parts(self) -> None:
        """Of a plan the plan, of an inventory the machine: no verdict that was not asked for."""
        plan = summary(reports.stamped(plan=reports.plan(8)))
        machine = summary(reports.stamped(host=reports.host(), hardware=reports.missing("why")))

        assert plan == "Free GPUs: 8; mesh that they can test: 8 ranks, dp 2, cp 2x2\n"
        assert machine.startswith("Machine: node-1, ")
        assert len(machine.splitlines()) == 1

    def test_of_a_plan_without_a_number_of_gpus(self) -> None:
        """It is not said that none fits."""
        plan = reports.plan(0).model_copy(update={"gpus_free": reports.missing("the driver hung")})

        assert summary(reports.stamped(plan=plan)) == "Free GPUs: unavailable (the driver hung)\n"

    def test_of_a_proof_alone(self) -> None:
        """It has no document to look into; what the user left out is no check that did not pass."""
        checks = [reports.check("p2p.ring"), reports.check("a.b", "skip", reason="not named by --only")]
        proven = reports.of("proven")
        made = reports.stamped(
            verdict="proven", runs=[reports.run()], checks=checks, recipe=proven.recipe, blocking=[]
        )
        text = summary(made)

        assert "how: under recipe in its JSON" in text
        assert "under Launch in cp_infra.md" in summary(proven)
        assert "1 of 1 checks passed" in text
        assert "Left out: a.b; nothing is said of what it tests\n" in text
        assert "Not passed" not in text

    def test_blocking_findings_of_a_part(self) -> None:
        """Where no section lists what blocks, the findings do."""
        finding = report.FindingFacts(
            id="f", severity="blocking", what="w", got="g", expected="e", remedy="r", command="c"
        )

        assert "  - f: w: got g; r: c" in summary(reports.stamped(findings=[finding]))

    @given(TEXTS.map(lambda text: text * 20), st.sampled_from(reports.KINDS), st.integers(1, 30))
    @settings(max_examples=40, deadline=None)
    def test_fits_whatever_the_texts(self, text: str, kind: reports.Kind, number: int) -> None:
        """However long, many and odd they are."""
        whole = reports.of(kind)
        odd = replaced(whole, text)
        many = odd.model_copy(
            update={
                "runs": [reports.run()] * number,
                "checks": [reports.check("a", "fail", reason=f"{text}{n}x") for n in range(number)],
                "blocking": [reports.too_few_gpus().model_copy(update={"what": text})] * number,
                "next": [report.Next(why=text, command=text)] * number,
                "hang": replaced(reports.hang(), text),
            }
        )

        for made in (odd, many):
            lines = summary(made).split("\n")
            assert lines.pop() == ""
            assert len(lines) < 40
            assert all(len(line) <= 100 and line.isprintable() for line in lines)

    @given(
        hang=st.builds(hang_of, NAMES, st.none() | NAMES, st.integers(0, 1024)),
        text=TEXTS.map(lambda text: text * 20),
        number=st.integers(1, 30),
    )
    @example(hang=hang_of("never-entered", "p2p.ring", 63), text="", number=1)
    @example(hang=hang_of("k" * 60, "c" * 90, 1024), text="long " * 100, number=30)
    @settings(max_examples=40, deadline=None)
    def test_a_hang_is_never_left_out(self, hang: report.Hang, text: str, number: int) -> None:
        """Its kind and its check are told, however many ranks are to blame and whatever else is told."""
        shown = summary(crowded(hang, text, number))
        lines = shown.splitlines()

        assert len(lines) < 40
        assert all(len(line) <= 100 for line in lines)
        told = " ".join(shown.split())
        assert f"Hang - {hang.kind} {f'in {hang.check}' if hang.check else 'outside of the checks'}," in told

    @given(text=TEXTS.map(lambda text: text * 20), number=st.integers(1, 30))
    @example(text="\u2028", number=1)
    @settings(max_examples=20, deadline=None)
    def test_every_section_shows_its_first_entry(self, text: str, number: int) -> None:
        """However much there is to tell: a title is never followed by a mere count."""
        lines = summary(crowded(reports.hang(), text, number)).splitlines()
        titles = ["Not right", "Not passed", "Hang", "Blocking", "Needed from you for a SLURM job", "Next"]

        assert [line for line in lines if line in titles] == titles
        assert all(lines[lines.index(title) + 1].startswith("  - ") for title in titles)

    @pytest.mark.parametrize(
        ("num_culprits", "told"),
        [
            (0, "no culprit could be told"),
            (1, "culprit rank 0"),
            (3, "culprit ranks 0, 1, 2"),
            (63, "culprit ranks 0, 1, 2, 3, 4, 5, 6, 7 and 55 more"),
        ],
    )
    def test_many_culprits_are_counted(self, num_culprits: int, told: str) -> None:
        """The first eight are named."""
        made = reports.stamped(hang=hang_of("never-entered", "p2p.ring", num_culprits))

        assert summary(made).splitlines()[1] == f"  - never-entered in p2p.ring, {told}"

    def test_each_culprit_has_its_own_kind(self) -> None:
        """And its own place, and what it did in place of what."""
        one = reports.hang().culprits[0]
        dead = one.model_copy(update={"rank": 2, "kind": "process-died", "got": "ended by SIGKILL"})
        unknown = report.Unavailable(unavailable="not recorded")
        nowhere = {"rank": 3, "kind": "never-joined", "operation": unknown, "site": unknown}
        culprits = [dead, one.model_copy(update={**nowhere, "got": "is at a.py:1", "expected": "to join"})]
        hang = reports.hang().model_copy(update={"kind": "process-died", "culprits": culprits})
        shown = summary(reports.stamped(hang=hang)).splitlines()

        assert shown[0] == "Death"
        told = " ".join(" ".join(shown).split())
        assert (
            "rank 2: process-died in or before all_reduce at train.py:12: got ended by SIGKILL, exp" in told
        )
        assert "rank 3: never-joined: got is at a.py:1, expected to join" in told

    @pytest.mark.parametrize(
        ("command", "lines"),
        [
            ("short", 1),
            (f"cpinfra build --python {'/p' * 30} --docs '{'a b ' * 9}' --model {'m' * 20}", 2),
            (f"echo {'x' * 200}", 1),
        ],
    )
    def test_commands_can_be_copied(self, command: str, lines: int) -> None:
        """Broken as a shell may read it, between words alone; what has no room is not shown in part."""
        why = ("why " * 20).strip()
        made = reports.made().model_copy(update={"next": [report.Next(why=why, command=command)]})
        shown = summary(made).partition(f"\n  - {why}")[2]

        if len(command) > 190:
            assert shown == "\n    (its command is too long for here: see the report)\n"
        else:
            assert shlex.split(shown.lstrip(":").replace(" \\\n", " ")) == shlex.split(command)
            assert len(shown.strip().splitlines()) == lines


class TestNextSteps:
    """What to do with each verdict and number of GPUs."""

    def test_proven(self) -> None:
        """Use it, and later see whether it still holds; folders are quoted."""
        found = commands(reports.of("proven"), "my docs")

        assert found[0].startswith("sed ")
        assert found[0].endswith(" 'my docs/cp_infra.md' > launch.sh")
        assert found[1:] == [
            "PROGRAM=your_program.py bash launch.sh",
            "cpinfra check 'my docs/cp_infra.json'",
        ]

    @pytest.mark.parametrize(
        ("gpus", "command"), [(4, "cpinfra build 8 --require full"), (8, "cpinfra build --require full")]
    )
    def test_proven_on_few_gpus(self, gpus: int, command: str) -> None:
        """The way to a full integration comes first."""
        made = reports.made(verdict="proven", scope="limited", plan=reports.plan(gpus))

        assert commands(made)[0] == command

    def test_rehearsed(self) -> None:
        """To a machine with GPUs, or through SLURM; where GPUs are free, to them."""
        assert commands(reports.of("rehearsal"))[:2] == ["cpinfra build", SBATCH]
        assert commands(reports.made(plan=reports.plan(4)))[0] == "cpinfra build --local"

    @pytest.mark.parametrize("gpus", [0, 1, 3])
    def test_too_few_gpus(self, gpus: int) -> None:
        """Rehearse meanwhile, unless that was done."""
        assert commands(blocked(gpus)) == [
            "cpinfra build --rehearse",
            "cpinfra build",
            SBATCH,
        ]
        rehearsed = reports.of("not-proven")
        assert "cpinfra build --rehearse" not in commands(rehearsed)
        assert ("free more GPUs" in next_steps(blocked(gpus))[1].why) == bool(gpus)

    def test_the_mesh_that_was_asked_for_is_counted_and_handed_on(self) -> None:
        """A grid of nine takes nine GPUs, and eighteen for all of it; every way to it names it."""
        nine = AskedMesh(gpus=9, gpus_full=18, options={"--cp": ("3x3",)})
        first, second, *_ = next_steps(reports.of("rehearsal"), mesh=nine)
        few = next_steps(blocked(4), mesh=nine)

        assert first.why == "prove it on a machine with 9 free GPUs or more, 18 for all of it"
        submit = SBATCH.replace("sbatch ", "sbatch --gpus-per-node=9 ")
        assert (first.command, second.command) == ("cpinfra build --cp 3x3", submit)
        assert [step.command for step in few][:2] == [
            "cpinfra build --rehearse --cp 3x3",
            "cpinfra build --cp 3x3",
        ]
        assert few[1].why.startswith("free more GPUs, 9 are needed and 4 found")
        assert len(questions(blocked(4), nine)) == len(questions(blocked(0)))
        assert questions(blocked(9), nine) == []

    def test_a_number_of_ranks_that_was_given_is_no_least(self) -> None:
        """More GPUs would not be used."""
        fixed = AskedMesh(gpus=4, is_fixed=True, options={"": ("4",), "--dp": ("1",)})
        first, *_ = next_steps(reports.of("rehearsal"), mesh=fixed)

        assert first.why == "prove it on a machine with 4 free GPUs or more"
        assert first.command == "cpinfra build 4 --dp 1"

    @pytest.mark.parametrize(
        ("gpus", "command"),
        [(9, "cpinfra build 18 --require full --cp 3x3"), (18, "cpinfra build --require full --cp 3x3")],
    )
    def test_a_wider_proof_keeps_the_grid_and_not_the_ranks(self, gpus: int, command: str) -> None:
        """With as many ranks as before it could not be wider."""
        made = reports.made(verdict="proven", scope="limited", plan=reports.plan(gpus))
        options = {"": ("9",), "--cp": ("3x3",), "--dp": ("1",)}
        mesh = AskedMesh(gpus=9, gpus_full=18, is_fixed=True, options=options)

        assert next_steps(made, mesh=mesh)[0].command == command

    def test_what_blocks_comes_first(self) -> None:
        """With its own command, then the proof again."""
        obstacle = reports.too_few_gpus().model_copy(update={"command": "nvidia-smi", "id": "gpus-busy"})

        assert commands(blocked(4, blocking=[obstacle]))[:2] == ["nvidia-smi", "cpinfra build"]

    def test_failed(self) -> None:
        """On GPUs NCCL is to speak, on the CPU torch; nobody is sent to launch with it."""
        on_cpu = reports.made(verdict="failed", scope=None)

        assert commands(reports.of("failed")) == ["NCCL_DEBUG=INFO cpinfra build"]
        assert commands(on_cpu) == ["TORCH_DISTRIBUTED_DEBUG=DETAIL cpinfra build --rehearse"]


class TestQuestions:
    """What only the user can say."""

    @pytest.mark.parametrize("gpus", [0, 3])
    def test_where_gpus_are_missing(self, gpus: int) -> None:
        """Cluster, account, partition, time, environment, files, leave to submit: each with an example."""
        found = questions(blocked(gpus))

        assert [one.key for one in found] == [
            "login_host",
            "partition",
            "account",
            "time_limit",
            "activation",
            "shared_folder",
            "may_submit",
        ]
        assert all(one.question.endswith((".", "?")) and one.option and one.example for one in found)

    def test_what_takes_an_answer_exists(self) -> None:
        """A program with its option, or a field of the template: none of ours, while we submit nothing."""
        template = (Path(__file__).parents[1] / SBATCH.removeprefix("sbatch ")).read_text()

        for one in questions(blocked(0)):
            field, program = one.option.removesuffix("="), one.option.partition(" ")[0]
            assert program in ("ssh", "sbatch") or f'\n{field}="${{{field}:-' in template

    def test_where_they_could_not_be_counted(self) -> None:
        """A driver that hangs is no GPU either."""
        plan = reports.plan(0).model_copy(update={"gpus_free": reports.missing("the driver hung")})

        assert len(questions(blocked(0, plan=plan))) == 7

    def test_nowhere_else(self) -> None:
        """Neither with enough GPUs, nor where a rehearsal was asked for."""
        assert questions(blocked(4)) == []
        assert questions(reports.of("rehearsal")) == []


@pytest.mark.parametrize(
    ("verdict", "device", "said"),
    [
        ("not-proven", "cuda", "passed on GPUs, not proven"),
        ("not-proven", "cpu", "rehearsed"),
        ("failed", "cuda", "not proven"),
    ],
)
def test_a_mesh_that_ran_on_gpus_is_never_called_rehearsed(verdict: str, device: str, said: str) -> None:
    """What keeps it from being proven is another thing than the device that it ran on."""
    proven = reports.of("proven")
    runs = [reports.run(device=device)]
    assert isinstance(proven.recipe, report.Recipe)
    recipe = proven.recipe.model_copy(update={"proven": False, "mesh": runs[0].mesh})
    made = proven.model_copy(update={"verdict": verdict, "runs": runs})

    assert words.standing(made, recipe) == said

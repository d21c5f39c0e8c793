"""docs/cp_infra.md: what it says of each kind of report, and that no text of others can break it."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

import reports
from cpinfra import report
from cpinfra.proof import run_folder
from cpinfra.record import markup
from cpinfra.record.markdown import MARKER
from cpinfra.record.markdown import markdown

GOLDEN = Path(__file__).parent / "golden"
WRITE = "CPINFRA_WRITE_GOLDEN"
HEADINGS = [
    "Verdict",
    "Launch",
    "Hardware",
    "Topology",
    "Testable configurations",
    "Software",
    "Resource prerequisites",
    "Proof",
    "Hardening",
    "Logs",
    "Provenance",
]
PARTS = [
    "#",
    "`",
    "```",
    "~~~",
    "\n",
    "\r",
    "|",
    "\\",
    "<!--",
    "<b>",
    "&lt;",
    "*",
    "_",
    "[",
    "](",
    "- ",
    "1. ",
]
HOSTILE = st.lists(st.sampled_from([*PARTS, "    ", "---", "===", "> ", "x", "é", "\u2028", "$", "![a](b)"]))
TEXTS = HOSTILE.map("".join) | st.text(max_size=40)


def tokens(text: str) -> list[Token]:
    """The blocks of a document, as CommonMark with tables has them."""
    return MarkdownIt("commonmark").enable("table").parse(text)


def headings(text: str) -> list[tuple[str, str]]:
    """(level, text) of each heading."""
    found = tokens(text)
    return [
        (one.tag, found[place + 1].content) for place, one in enumerate(found) if one.type == "heading_open"
    ]


def fences(text: str) -> list[Token]:
    """The fenced blocks."""
    return [one for one in tokens(text) if one.type == "fence"]


def inline(text: str) -> Iterator[Token]:
    """What stands within the blocks."""
    for one in tokens(text):
        yield from one.children or ()


def launch_block(text: str) -> str:
    """What other tools cut out."""
    (found,) = [one.content for one in fences(text) if one.info == "bash launch"]
    return found


def replaced(value: Any, text: str) -> Any:
    """A section with every text that others gave changed; words of a fixed list, ids and times stay."""
    if isinstance(value, report.Section):
        fixed = {
            "schema_",
            "created",
            "role",
            "severity",
            "outcome",
            "state",
            "device",
            "integration",
            "verdict",
        }
        fixed |= {"scope", "cgroup_quota", "cgroup_limit_mib", "run"}
        changed = {
            name: replaced(getattr(value, name), text)
            for name in type(value).model_fields
            if name not in fixed and not isinstance(value, report.Limits)
        }
        return value.model_copy(update=changed)
    if isinstance(value, str):
        return text or "-"
    if isinstance(value, list):
        return [replaced(one, text) for one in value]
    if isinstance(value, dict):
        return {f"{key}{text}": replaced(one, text) for key, one in value.items()}
    return value


class TestGolden:
    """The whole document of each kind of report."""

    @pytest.mark.parametrize("kind", reports.KINDS)
    def test_is_that_of_the_golden(self, kind: reports.Kind) -> None:
        """Line by line; a missing golden is no excuse."""
        path = GOLDEN / f"cp_infra_{kind}.md"
        made = markdown(reports.of(kind))
        if os.environ.get(WRITE) == "1":
            path.write_text(made)
        assert path.is_file(), f"{path} is missing; {WRITE}=1 writes it"
        different = difflib.unified_diff(
            path.read_text().splitlines(), made.splitlines(), str(path), "made", lineterm=""
        )

        assert not (lines := list(different)), "\n".join([*lines, f"if that is meant: {WRITE}=1"])


class TestForm:
    """What other tools rely on."""

    @pytest.mark.parametrize("kind", reports.KINDS)
    def test_headings_and_blocks(self, kind: reports.Kind) -> None:
        """The eleven headings in order; one block to launch and one program, both under Launch."""
        text = markdown(reports.of(kind))

        assert text.startswith(f"{MARKER}\n")
        assert headings(text) == [
            ("h1", "Infrastructure for context parallelism"),
            *(("h2", one) for one in HEADINGS),
        ]
        assert [one.info for one in fences(text)] == ["bash launch", "python"]
        assert text.count("```bash launch") == 1
        assert "## Launch" in text.split("```bash launch")[0]
        assert text.rindex("```") < text.index("## Hardware")

    def test_a_partial_report_has_every_heading(self) -> None:
        """What was not made is said to be unavailable."""
        text = markdown(reports.stamped())

        assert [title for _, title in headings(text)][1:] == HEADINGS
        assert fences(text) == []
        assert "unavailable: this report does not hold it" in text

    def test_launch_block_is_what_the_sed_of_the_report_cuts_out(self, tmp_path: Path) -> None:
        """The command that the report itself gives for it."""
        made = reports.of("proven")
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "cp_infra.md").write_text(markdown(made))
        (command,) = [one.command for one in made.next or () if one.command.startswith("sed")]
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, timeout=30)

        assert (tmp_path / "launch.sh").read_text() == launch_block(markdown(made))

    @pytest.mark.parametrize(
        ("kind", "said"),
        [
            ("rehearsal", "**rehearsed**"),
            ("not-proven", "**rehearsed**"),
            ("failed", "**not proven**"),
            ("proven", "**proven**"),
        ],
    )
    def test_launch_says_first_what_the_mesh_is_worth(self, kind: reports.Kind, said: str) -> None:
        """Before the block that launches it."""
        section = markdown(reports.of(kind)).split("## Launch")[1].split("```")[0]

        assert section.startswith("\n\nExactly this mesh, ")
        assert said in section

    def test_a_rehearsal_of_another_mesh_rehearses_nothing(self) -> None:
        """Only exactly this mesh counts, and only if all of its checks have passed."""
        other = markdown(reports.made(runs=[reports.run(dp=2)]))
        skipped = markdown(reports.made(checks=[reports.check("a"), reports.check("b", "skip")]))

        assert "cp 2x2, is **not proven**" in other
        assert "cp 2x2, is **not proven**" in skipped

    def test_questions_stand_with_what_blocks(self) -> None:
        """Each with its option and an example."""
        text = markdown(reports.of("not-proven"))

        assert "**blocks** `no-gpu`" in text
        assert "Which partition has the GPUs? (`sbatch --partition`, such as `gpu`)" in text

    def test_logs_that_later_runs_remove_say_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a folder that the run made for itself, wherever that was; not in one of the user's own."""
        monkeypatch.chdir(tmp_path)
        own = run_folder.create(None, {})
        users = run_folder.create(tmp_path / "mine", {})
        shared = Path("/tmp/cpinfra-runs-1000") / own.path.name
        said = {}
        for path in (own.path, shared, users.path):
            logs = [report.Log(what="w", path=str(path / "zygote.log"), bytes=1)]
            said[path] = f"gone after {run_folder.KEPT_RUNS} more runs" in markdown(reports.made(logs=logs))
        own.close()
        users.close()

        assert said == {own.path: True, shared: True, users.path: False}

    def test_hang_names_the_culprit(self) -> None:
        """With what it was in, and what others raised that it does not explain."""
        text = markdown(reports.of("failed"))

        assert "- **hang** `never-entered` in p2p.ring; waiting: 0, 2\n" in text
        assert "  - rank 1: `never-entered`, where `all_reduce` at `train.py:12` was due: got " in text
        assert "  - rank 3 raised `` ValueError: x | `y` ``\n" in text

    def test_what_is_no_hang_is_not_called_one(self) -> None:
        """A death, and of who died only the others know how far it had come."""
        failed = reports.of("failed")
        assert failed.hang is not None
        dead = failed.hang.culprits[0].model_copy(update={"kind": "process-died"})
        hang = failed.hang.model_copy(update={"kind": "process-died", "culprits": [dead]})
        text = markdown(failed.model_copy(update={"hang": hang}))

        assert "- **death** `process-died` in p2p.ring; waiting: 0, 2\n" in text
        assert "  - rank 1: `process-died` in or before `all_reduce` at `train.py:12`: got " in text

    def test_who_was_lost_to_a_hang(self) -> None:
        """By rank; how is in the JSON."""
        hang = reports.hang().model_copy(update={"victims": {"2": "SIGABRT", "3": "SIGPIPE"}})

        assert "; waiting: 0, 2; lost to it: 2, 3\n" in markdown(reports.made(hang=hang))

    def test_long_text_is_cut_and_says_so(self) -> None:
        """The JSON has all of it."""
        text = markdown(reports.made(checks=[reports.check("a", "fail", reason="x" * 5000)]))

        assert f"{'x' * 600}{markup.CUT}" in text
        assert "x" * 601 not in text

    def test_of_a_traceback_the_last_line_is_shown(self) -> None:
        """It says what happened."""
        reason = "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named 'a'"

        assert markup.prose(reason) == "ModuleNotFoundError: No module named 'a'"


class TestHostile:
    """Texts of others stay texts."""

    @given(TEXTS, st.sampled_from(reports.KINDS))
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_no_text_breaks_the_document(self, text: str, kind: reports.Kind) -> None:
        """In every text of every section: same headings, same blocks, no HTML, no links, no pictures."""
        made = markdown(replaced(reports.of(kind), text))

        assert [title for _, title in headings(made)][1:] == HEADINGS
        assert [one.info for one in fences(made)][:1] == ["bash launch"]
        assert len(fences(made)) == 2
        assert [one.content for one in tokens(made) if one.type == "html_block"] == [f"{MARKER}\n"]
        assert not [one for one in inline(made) if one.type in ("html_inline", "link_open", "image")]

    @given(TEXTS)
    @settings(deadline=None)
    def test_prose_and_code_show_the_text(self, text: str) -> None:
        """What a reader sees in a cell is what was given, on one line."""
        for made in (markup.prose(text), markup.cell(text), markup.code(text).replace("|", "\\|")):
            rows = [
                one for one in tokens(f"| a | b |\n| --- | --- |\n| {made} | end |\n") if one.type == "inline"
            ]
            shown = "".join(child.content for child in rows[2].children or ())

            assert [one.content for one in rows[3:]] == ["end"]
            assert len(made.splitlines()) <= 1
            assert {one.type for one in rows[2].children or ()} <= {"text", "text_special", "code_inline"}
            if text.isalnum():
                assert shown == text

    @pytest.mark.parametrize(
        "text", ["1. x", "# x", "- x", "+ x", "---", "===", "- - -", "> x", "* x", "12) x"]
    )
    def test_prose_begins_no_block(self, text: str) -> None:
        """At the start of an item of a list too."""
        kinds = {one.type for one in tokens(f"- {markup.prose(text)}\n")}

        assert kinds == {
            "bullet_list_open",
            "list_item_open",
            "paragraph_open",
            "inline",
            "paragraph_close",
            "list_item_close",
            "bullet_list_close",
        }

    def test_numbers_and_options_stay_readable(self) -> None:
        """No escapes where none are needed."""
        assert markup.prose("80.5 GiB, --only reduce_scatter") == "80.5 GiB, --only reduce_scatter"
        assert markup.prose("--docs DIR") == "--docs DIR"

    def test_a_text_that_was_not_made_markdown_is_refused(self) -> None:
        """A filter that is forgotten in the template is our error, not a hole."""
        from cpinfra.record.markdown import _only_markdown

        with pytest.raises(TypeError, match="not made Markdown"):
            _only_markdown("text")


def test_importing_the_record_needs_no_template_engine() -> None:
    """jinja2 is imported when a document is made."""
    code = "import sys, cpinfra.record.markdown; sys.exit('jinja2' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

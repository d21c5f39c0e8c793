"""docs/cp_infra.json and docs/cp_infra.md on disk: whole, of one build, and nobody else's file is lost."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import reports
from cpinfra.files import replace_file
from cpinfra.outcome import Severity
from cpinfra.record import docs
from cpinfra.record import errors
from cpinfra.record.markdown import MARKER
from cpinfra.record.markdown import markdown

NEWER = json.dumps({"schema": "cpinfra/2", "verdict": "perfect"})


def names(folder: Path) -> list[str]:
    """The files of a folder, but for the lock."""
    return sorted(path.name for path in folder.iterdir())


class TestWrite:
    """What lies there afterwards."""

    def test_both_documents(self, tmp_path: Path) -> None:
        """In a folder that is made for them, and read back the same."""
        made = reports.of("proven")
        written = docs.write(made, tmp_path / "a" / "docs")

        assert written == docs.Written(
            json_path=tmp_path / "a/docs/cp_infra.json", markdown_path=tmp_path / "a/docs/cp_infra.md"
        )
        assert names(tmp_path / "a/docs") == ["cp_infra.json", "cp_infra.md"]
        assert docs.read(tmp_path / "a/docs/cp_infra.json") == made
        assert (tmp_path / "a/docs/cp_infra.md").read_text() == markdown(made)

    def test_replaces_its_own(self, tmp_path: Path) -> None:
        """Without a word, and without a copy."""
        docs.write(reports.of("failed"), tmp_path)
        written = docs.write(reports.of("proven"), tmp_path)

        assert written.findings == ()
        assert names(tmp_path) == ["cp_infra.json", "cp_infra.md"]
        assert docs.read(tmp_path / "cp_infra.json").verdict == "proven"

    @pytest.mark.parametrize(
        ("content", "kind", "got"),
        [
            ('{"schema": "cpinfra/1", "verd', "corrupt", "no JSON"),
            ('{"schema": "cpinfra/1", "verdict": "passed"}', "corrupt", "breaks the schema"),
            ("", "corrupt", "0 bytes"),
            ("[" * 100000, "corrupt", "no JSON"),
            ('{"mine": 1}', "foreign", "without a schema"),
            ("[1]", "foreign", "a list"),
            ('{"schema": "other/1"}', "foreign", "other/1"),
            (NEWER, "newer", "cpinfra/2"),
        ],
    )
    def test_keeps_a_strange_json_aside(self, tmp_path: Path, content: str, kind: str, got: str) -> None:
        """Under a name that tells why, and a finding tells what it was."""
        (tmp_path / "cp_infra.json").write_text(content)
        (finding,) = docs.write(reports.made(), tmp_path).findings

        assert (tmp_path / f"cp_infra.{kind}-1.json").read_text() == content
        assert docs.read(tmp_path / "cp_infra.json").verdict == "rehearsed"
        assert (finding.id, finding.severity) == ("docs-kept-aside", Severity.WARNING)
        assert got in finding.got
        assert f"cp_infra.{kind}-1.json" in finding.what

    @pytest.mark.parametrize(
        ("content", "kind"),
        [
            ("# My notes\n", "foreign"),
            ("", "foreign"),
            (MARKER.replace("cpinfra/1", "cpinfra/2"), "newer"),
        ],
    )
    def test_keeps_a_strange_markdown_aside(self, tmp_path: Path, content: str, kind: str) -> None:
        """Ours is known by its first line."""
        (tmp_path / "cp_infra.md").write_text(content)
        (finding,) = docs.write(reports.made(), tmp_path).findings

        assert (tmp_path / f"cp_infra.{kind}-1.md").read_text() == content
        assert f"cp_infra.{kind}-1.md" in finding.what

    def test_never_overwrites_what_was_kept_aside(self, tmp_path: Path) -> None:
        """Each gets a number of its own."""
        for number in range(3):
            (tmp_path / "cp_infra.json").write_text(f'{{"mine": {number}}}')
            docs.write(reports.made(), tmp_path)

        assert [(tmp_path / f"cp_infra.foreign-{n}.json").read_text() for n in (1, 2, 3)] == [
            f'{{"mine": {n}}}' for n in range(3)
        ]

    def test_keeps_folders_pipes_and_dead_links_aside(self, tmp_path: Path) -> None:
        """Nothing waits for a writer of the pipe, and what a link names is not touched."""
        os.mkfifo(tmp_path / "cp_infra.json")
        (tmp_path / "cp_infra.md").mkdir()
        docs.write(reports.made(), tmp_path)
        (tmp_path / "cp_infra.json").unlink()
        (tmp_path / "cp_infra.json").symlink_to(tmp_path / "nothing")
        docs.write(reports.made(), tmp_path)

        assert names(tmp_path) == [
            "cp_infra.foreign-1.json",
            "cp_infra.json",
            "cp_infra.md",
            "cp_infra.unreadable-1.json",
            "cp_infra.unreadable-1.md",
        ]

    def test_a_folder_that_is_a_file_blocks(self, tmp_path: Path) -> None:
        """No exception: the report can still go elsewhere."""
        (tmp_path / "docs").write_text("")
        written = docs.write(reports.made(), tmp_path / "docs")
        (finding,) = written.findings

        assert (written.json_path, written.markdown_path) == (None, None)
        assert (finding.id, finding.severity) == ("docs-unwritable", Severity.BLOCKING)
        assert "File exists" in finding.got
        assert "--docs" in finding.remedy

    def test_a_full_disk_leaves_all_as_it_was(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is met before the old documents are touched, a stranger too."""
        (tmp_path / "cp_infra.json").write_text('{"mine": 1}')
        docs.write(reports.of("failed"), tmp_path / "ours")
        monkeypatch.setattr(docs, "replace_file", full_at(".json"))
        written = [docs.write(reports.made(), folder) for folder in (tmp_path, tmp_path / "ours")]

        assert [one.findings[0].id for one in written] == ["docs-unwritable"] * 2
        assert "No space left" in written[0].findings[0].got
        assert names(tmp_path) == ["cp_infra.json", "ours"]
        assert docs.read(tmp_path / "ours/cp_infra.json").verdict == "failed"
        assert names(tmp_path / "ours") == ["cp_infra.json", "cp_infra.md"]

    def test_an_invalid_report_touches_nothing(self, tmp_path: Path) -> None:
        """That is our bug, and is raised."""
        with pytest.raises(ValueError, match="verdict"):
            docs.write(reports.made().model_copy(update={"verdict": "passed"}), tmp_path)

        assert names(tmp_path) == []

    def test_another_build_that_holds_the_folder_is_waited_for_in_vain(self, tmp_path: Path) -> None:
        """The wait has an end, and the finding says who holds it."""
        docs.write(reports.of("failed"), tmp_path)
        held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            (finding,) = docs.write(reports.made(), tmp_path, timeout_s=0).findings
        finally:
            os.close(held)

        assert finding.id == "docs-unwritable"
        assert "another build holds" in finding.got
        assert docs.read(tmp_path / "cp_infra.json").verdict == "failed"

    def test_builds_at_once_leave_documents_of_one(self, tmp_path: Path) -> None:
        """Both whole, and JSON and Markdown of the same report, whichever came last."""
        kinds = reports.KINDS * 4
        threads = [
            threading.Thread(target=docs.write, args=(reports.of(kind), tmp_path), kwargs={"timeout_s": 60})
            for kind in kinds
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=90)

        made = docs.read(tmp_path / "cp_infra.json")
        assert (tmp_path / "cp_infra.md").read_text() == markdown(made)
        assert names(tmp_path) == ["cp_infra.json", "cp_infra.md"]


def full_at(suffix: str) -> Callable[[Path, bytes], None]:
    """A disk that is full for files of this kind."""

    def write(path: Path, data: bytes) -> None:
        if suffix in path.name:
            raise OSError(28, "No space left on device", str(path))
        replace_file(path, data)

    return write


class TestRead:
    """Why a file is no report."""

    @pytest.mark.parametrize(
        ("content", "kind", "message"),
        [
            (None, errors.Absent, "no such file.*cpinfra build"),
            ("{", errors.NotJson, "no JSON"),
            ('{"a": 1}', errors.NotOurs, "without a schema"),
            (NEWER, errors.NewerSchema, r"cpinfra/2; expected schema cpinfra/1; read it with the newer"),
            ('{"schema": "cpinfra/1", "verdict": "x", "odd": 1}', errors.Invalid, "created: .*; verdict: "),
            ('{"schema": "cpinfra/1", "created": null}', errors.Invalid, "breaks the schema|created"),
        ],
    )
    def test_says_what_is_there(
        self, tmp_path: Path, content: str | None, kind: type[errors.RecordError], message: str
    ) -> None:
        """A class of its own, and got, expected and remedy in its message."""
        path = tmp_path / "report.json"
        if content is not None:
            path.write_text(content)

        with pytest.raises(errors.RecordError) as caught:
            docs.read(path)

        assert type(caught.value) is kind
        assert re.search(message, str(caught.value)), str(caught.value)
        assert caught.value.path == path

    def test_what_is_no_file_is_told_as_what_it_is(self, tmp_path: Path) -> None:
        """Folder, pipe and device, each with a remedy that is one; a right to read it would not help."""
        os.mkfifo(tmp_path / "pipe")
        told = []
        for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
            with pytest.raises(errors.Unreadable) as caught:
                docs.read(path)
            told.append((caught.value.got, caught.value.remedy))

        elsewhere = "write the report into a file, and name that"
        assert told == [("a folder", "name the file in it"), ("a pipe", elsewhere), ("a device", elsewhere)]

    def test_a_file_that_is_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The limit is said, not where the part that was read breaks off; at the limit it is read."""
        path = tmp_path / "report.json"
        text = reports.of("failed").text()
        path.write_text(text + " " * ((1 << 20) - len(text)))
        monkeypatch.setattr(docs, "_MOST_BYTES", 1 << 20)
        assert docs.read(path).verdict == "failed"
        path.write_text(path.read_text() + " ")

        with pytest.raises(errors.Unreadable, match=r"more than 1 MiB; expected a report of at most 1 MiB"):
            docs.read(path)

    def test_a_mistake_without_a_place_has_no_empty_one(self, tmp_path: Path) -> None:
        """Half a character is JSON to Python, and to nobody else."""
        path = tmp_path / "report.json"
        path.write_text(json.dumps({"schema": "cpinfra/1", "summary": "\ud800"}))

        with pytest.raises(errors.Invalid, match=r"breaks the schema: Invalid JSON"):
            docs.read(path)

    def test_a_partial_report_is_one(self, tmp_path: Path) -> None:
        """What other commands print can be read too."""
        (tmp_path / "part.json").write_text(reports.stamped(verdict="failed").text())

        assert docs.read(tmp_path / "part.json").verdict == "failed"


def test_read_refuses_what_is_a_number_to_python_alone(tmp_path: Path) -> None:
    """NaN is no JSON: who reads it on could not write it again."""
    path = tmp_path / "cp_infra.json"
    path.write_text(reports.of("failed").text().replace('"evidence": {', '"evidence": {"x": NaN,', 1))

    with pytest.raises(errors.NotJson, match="NaN"):
        docs.read(path)

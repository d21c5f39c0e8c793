from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import get_args
from typing import get_origin

import pytest
from pydantic import BaseModel
from pydantic import ValidationError

from cpinfra import __version__
from cpinfra import outcome
from cpinfra import report
from cpinfra.files import replace_file
from cpinfra.outcome import CheckResult
from cpinfra.outcome import Outcome
from cpinfra.outcome import Severity
from cpinfra.proof.hang import Hang
from cpinfra.report import Report

GOLDEN = Path(__file__).parent / "golden" / "report_fields.txt"
WHY = report.Unavailable(unavailable="why")


def software(**facts: Any) -> report.Software:
    """The software section of a worker that said this."""
    return report.software_from("/venv/bin/python", facts, missing="not asked")


def whole(**changes: Any) -> Report:
    """A small valid report."""
    parts: dict[str, Any] = {
        "schema": report.SCHEMA,
        "created": report.now(),
        "tool": report.Tool(version=__version__),
        "verdict": "not-proven",
        "scope": None,
        "plan": report.Plan(gpus_free=WHY, configs=[], chosen=None, slots=WHY),
        "hardware": WHY,
        "software": software(),
        "runs": [],
        "checks": [],
        "hang": None,
        "recipe": WHY,
        "findings": [],
        "blocking": [],
        "logs": [],
    }
    return Report(**{**parts, **changes})


class TestSchema:
    """The names that other programs read."""

    def test_fields_are_those_of_the_golden(self) -> None:
        """A field that comes, goes or changes its name is seen here; a missing golden is no excuse."""
        assert GOLDEN.is_file(), "tests/golden/report_fields.txt is missing"

        assert list(fields(Report, "")) == GOLDEN.read_text().splitlines()

    def test_every_field_is_described(self) -> None:
        """No field without a description, in any section."""
        bare = [
            f"{model.__name__}.{name}"
            for model in sections(Report)
            for name, field in model.model_fields.items()
            if not field.description
        ]

        assert bare == []

    def test_every_section_is_strict(self) -> None:
        """Each refuses unknown fields, coercion and NaN; the guard sees more than a handful of sections."""
        found = list(sections(Report))

        assert len(found) > 15
        for model in found:
            config = model.model_config
            assert (config.get("extra"), config.get("strict"), config.get("allow_inf_nan")) == (
                "forbid",
                True,
                False,
            )

    @pytest.mark.parametrize(
        "change",
        [
            {"verdict": "passed"},
            {"surprise": 1},
            {"schema": "cpinfra/2"},
            {"created": "yesterday"},
            {"scope": ""},
            {"hang": {}},
        ],
    )
    def test_rejects(self, change: dict[str, Any]) -> None:
        """Anything outside the schema."""
        with pytest.raises(ValidationError, match=next(iter(change))):
            whole(**change)

    @pytest.mark.parametrize("value", ["4", 4.0, True, None])
    def test_rejects_what_is_only_like_a_number(self, value: Any) -> None:
        """No coercion: 4 is 4."""
        with pytest.raises(ValidationError, match="dp"):
            report.MeshFacts(dp=value, cp0=2, cp1=2, world_size=4)

    def test_rejects_an_empty_why(self) -> None:
        """Unavailable without a reason is not available either."""
        with pytest.raises(ValidationError, match="unavailable"):
            report.Unavailable(unavailable="")


class TestFrom:
    """From the engine's words to the report's."""

    def test_check(self) -> None:
        """Ranks are sorted, tuples become lists, and what JSON cannot hold is said, not dropped."""
        result = CheckResult(
            id="a.b",
            tier="smoke",
            run="main",
            outcome=Outcome.FAIL,
            reason="x\udcff",
            remedy="r",
            ranks=(2, 0),
            seconds=1,
            evidence={"shapes": ((2, 3),), "rate": float("inf"), "absent": {1: None}, "path": Path("/p")},
        )
        made = report.check_from(result)

        assert made.ranks == [0, 2]
        assert made.reason == "x\\udcff"
        assert made.evidence == {
            "shapes": [[2, 3]],
            "rate": {"unavailable": "the value is inf"},
            "absent": {"1": None},
            "path": repr(Path("/p")),
        }

    def test_findings_and_what_blocks(self) -> None:
        """Of two findings the blocking one is listed again, with its own words."""
        words = ("id", "what", "got", "expected", "remedy", "command")
        findings = [
            outcome.Finding(severity=severity, **{word: f"{word}{n}" for word in words})
            for n, severity in enumerate((Severity.WARNING, Severity.BLOCKING))
        ]

        assert [report.finding_from(finding).severity for finding in findings] == ["warning", "blocking"]
        (blocking,) = report.blocking_from(findings)
        assert (blocking.id, blocking.what, blocking.remedy, blocking.command) == (
            "id1",
            "what1: got got1, expected expected1",
            "remedy1",
            "command1",
        )

    def test_software_keeps_our_path_and_says_what_is_missing(self) -> None:
        """The path is the one that was started; None and absence have different reasons."""
        made = software(
            python="/base/bin/python3.12", torch="2.13.0", cuda_build=None, nccl=None, arch_list=[]
        )

        assert made.python == "/venv/bin/python"
        assert made.torch == "2.13.0"
        assert made.cuda_build == report.Unavailable(unavailable="this torch was built without CUDA")
        assert made.nccl == report.Unavailable(unavailable="this torch was built without NCCL")
        assert made.cuda_driver == report.Unavailable(unavailable="not asked")

    def test_software_with_nccl(self) -> None:
        """Parts of NCCL that could not be had are unavailable one by one."""
        made = software(nccl={"compiled": "2.28.9", "loaded": None, "path": "/lib/libnccl.so.2"})

        assert made.nccl == report.Nccl(
            compiled="2.28.9",
            loaded=report.Unavailable(unavailable="not asked"),
            path="/lib/libnccl.so.2",
            sha256=report.Unavailable(unavailable="this version does not hash it"),
        )

    def test_software_rejects_what_has_no_place(self) -> None:
        """A word of the worker that the schema does not know is an error, not dropped."""
        with pytest.raises(ValidationError, match="surprise"):
            software(surprise=1)

    def test_no_hang(self) -> None:
        """Nothing stays null."""
        assert report.hang_from(None) is None

    def test_hang_with_two_culprits(self) -> None:
        """Each culprit keeps its own facts; an empty one was not recorded."""
        words = ("kind", "operation", "site", "expected", "got")
        culprits = [{**{word: f"{word}{n}" for word in words}, "rank": n, "group": ""} for n in (1, 2)]
        made = report.hang_from(
            {
                "check": None,
                "kind": "never-entered",
                "culprit_ranks": (1, 2),
                "culprits": culprits,
                "waiting_ranks": (0,),
                "stacks": {0: "", 1: "File x"},
                "seconds_to_verdict": 2,
            }
        )

        assert made is not None
        assert [(c.rank, c.kind, c.operation, c.site) for c in made.culprits] == [
            (1, "kind1", "operation1", "site1"),
            (2, "kind2", "operation2", "site2"),
        ]
        assert made.culprits[0].group == report.Unavailable(unavailable="not recorded")
        assert made.stacks == {"0": report.Unavailable(unavailable="not recorded"), "1": "File x"}

    def test_hang_says_what_others_raised(self) -> None:
        """The engine's words arrive whole; a document from before them is still valid."""
        named = Hang(
            check=None,
            kind="never-entered",
            culprits=(),
            waiting_ranks=(0,),
            stacks={},
            seconds_to_verdict=1.0,
            raised={2: "ValueError: a", 3: "KeyError: b"},
        )
        made = report.hang_from(named.as_json())
        before = {key: value for key, value in named.as_json().items() if key != "raised"}
        old = report.hang_from(before)

        assert made is not None
        assert old is not None
        assert made.raised == {"2": "ValueError: a", "3": "KeyError: b"}
        assert old.raised == {}


class TestWrite:
    """On disk: whole, valid, or not at all."""

    def test_is_read_back_the_same(self, tmp_path: Path) -> None:
        """What lies on disk is the document that would be printed, and the same report again."""
        made = whole()
        made.write(tmp_path / "report.json")
        text = (tmp_path / "report.json").read_text()

        assert text == made.text()
        assert Report.model_validate_json(text) == made
        assert json.loads(text)["schema"] == "cpinfra/1"
        assert json.loads(text)["tool"] == {"version": __version__}
        assert [path.name for path in tmp_path.iterdir()] == ["report.json"]

    def test_is_ascii(self, tmp_path: Path) -> None:
        """Any text survives any terminal's encoding."""
        made = whole(verdict="failed", hardware=report.Unavailable(unavailable="é\x1b\u2028"))

        assert made.text().isascii()
        assert Report.model_validate_json(made.text()) == made

    def test_an_invalid_one_replaces_nothing(self, tmp_path: Path) -> None:
        """The old report stays if the new one would not be valid."""
        path = tmp_path / "report.json"
        path.write_text("old")
        broken = whole().model_copy(update={"verdict": "passed"})

        with pytest.raises(ValidationError, match="verdict"):
            broken.write(path)

        assert path.read_text() == "old"

    def test_nothing_is_left_where_it_cannot_be_written(self, tmp_path: Path) -> None:
        """A target that cannot be replaced is an error, and no temporary file stays."""
        (tmp_path / "report.json").mkdir()

        with pytest.raises(IsADirectoryError):
            whole().write(tmp_path / "report.json")

        assert [path.name for path in tmp_path.iterdir()] == ["report.json"]

    def test_a_reader_never_sees_half(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Up to the rename the old file is there, whole; the new one is synced before."""
        path = tmp_path / "file"
        path.write_bytes(b"old")
        seen: list[bytes] = []
        real = os.fsync

        def fsync(fd: int) -> None:
            seen.append(path.read_bytes())
            real(fd)

        monkeypatch.setattr(os, "fsync", fsync)

        replace_file(path, b"new")

        assert seen == [b"old", b"new"]  # the file before its rename, the folder after it

    def test_what_need_not_be_durable_waits_for_no_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is whole or not there all the same."""
        monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("synced"))

        replace_file(tmp_path / "file", b"x", durable=False)

        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"x")]

    def test_obeys_the_umask(self, tmp_path: Path) -> None:
        """Others may read it where they may read our other files."""
        before = os.umask(0o027)
        try:
            replace_file(tmp_path / "file", b"x")
        finally:
            os.umask(before)

        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field's type can hold."""
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A section and all below it."""
    found = [model]
    for one in found:
        for field in one.model_fields.values():
            found += [inner for inner in models_in(field.annotation) if inner not in found]
    return iter(found)


def fields(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Paths of all fields, as `checks[].id`."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        listed = "[]" if get_origin(field.annotation) is list else ""
        inner = [one for one in models_in(field.annotation) if one is not report.Unavailable]
        yield path + listed
        for one in inner:
            yield from fields(one, f"{path}{listed}.")

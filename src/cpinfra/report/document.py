"""The report as a document: what `report.json` and docs/cp_infra.json hold, and what `--json` prints."""

from __future__ import annotations

import json
from datetime import datetime
from datetime import timezone
from pathlib import Path
from typing import Any
from typing import Literal

from pydantic import Field

from .. import __version__
from ..files import replace_file
from .advice import Blocking
from .advice import Log
from .advice import Next
from .advice import Recipe
from .base import FindingFacts
from .base import Section
from .base import Unavailable
from .machine import Hardware
from .machine import Host
from .proof import Check
from .proof import Hang
from .proof import Plan
from .proof import Run
from .selftest import Control
from .selftest import SelfTestRow
from .stack import Software

SCHEMA: Literal["cpinfra/1"] = "cpinfra/1"


class Tool(Section):
    """What wrote the report."""

    version: str = Field(description="Version of cpinfra.")


class Report(Section):
    """A report, or a part of one: what a command did not make is absent. `build` makes all sections."""

    schema_: Literal["cpinfra/1"] = Field(alias="schema", description="Name of this schema.")
    created: str = Field(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", description="When it was written, in UTC (ISO 8601)."
    )
    tool: Tool = Field(description="What wrote it.")
    verdict: Literal["proven", "rehearsed", "not-proven", "failed"] | None = Field(
        default=None, description="The answer."
    )
    scope: Literal["full", "limited", "oversubscribed", "rehearsal"] | None = Field(
        default=None,
        description="How far it reaches; null on GPUs without a square mesh or without a pass of the five "
        "checks that every proof requires.",
    )
    summary: str = Field(default="", description="The whole in less than 40 lines.")
    next: list[Next] = Field(default_factory=list, description="What to do next.")
    host: Host | Unavailable | None = Field(default=None, description="The machine without its GPUs.")
    hardware: Hardware | Unavailable | None = Field(default=None, description="The GPUs and their driver.")
    plan: Plan | None = Field(default=None, description="Which meshes the free GPUs can test.")
    software: Software | None = Field(default=None, description="The target interpreter and its torch.")
    runs: list[Run] = Field(default_factory=list, description="The runs that were made.")
    checks: list[Check] = Field(default_factory=list, description="What each check said.")
    hang: Hang | None = Field(
        default=None, description="The first hang, death or divergence of the ledgers; else null."
    )
    selftest: list[SelfTestRow] = Field(
        default_factory=list, description="What became of each planted fault, by `selftest`."
    )
    control: Control | None = Field(
        default=None, description="The self-test's run without a fault, and what was left out of it."
    )
    recipe: Recipe | Unavailable | None = Field(default=None, description="How the ranks were run.")
    findings: list[FindingFacts] = Field(default_factory=list, description="What was noticed during the run.")
    blocking: list[Blocking] = Field(
        default_factory=list, description="What keeps the report from being proven."
    )
    logs: list[Log] = Field(default_factory=list, description="Files that the run left.")

    @classmethod
    def made(cls, **sections: Any) -> Report:
        """A report of the given sections, written now by this version."""
        return cls(schema=SCHEMA, created=now(), tool=Tool(version=__version__), **sections)

    def document(self) -> dict[str, Any]:
        """The report as plain JSON values: the sections that were made and no other."""
        made = {type(self).model_fields[name].alias or name for name in self.model_fields_set}
        whole = self.model_dump(mode="json", by_alias=True)
        return {name: value for name, value in whole.items() if name in made}

    def text(self) -> str:
        """The JSON document that is written and printed: ASCII, with a final newline."""
        return json.dumps(self.document(), indent=2, allow_nan=False) + "\n"

    def write(self, path: Path) -> None:
        """Put the report at `path`, whole or not at all; what lies there is replaced only by a valid one.

        Raises:
            OSError: the folder cannot be written.
            pydantic.ValidationError: what would be written is not a valid report.
        """
        text = self.text()
        type(self).model_validate_json(text)
        replace_file(path, text.encode())


def now() -> str:
    """The present time as the report writes it."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def schema() -> dict[str, Any]:
    """The JSON schema of every report, whole or partial (draft 2020-12)."""
    made = Report.model_json_schema(by_alias=True, mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}

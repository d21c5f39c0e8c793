"""The typed report, schema `cpinfra/1`: what `report.json` holds and what `--json` prints.

The one module that needs pydantic, whose import costs more than the rest of the command line: import this
one only when there is something to report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from collections.abc import Mapping
from datetime import datetime
from datetime import timezone
from pathlib import Path
from typing import Annotated
from typing import Any
from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field
from pydantic import JsonValue

from . import __version__
from . import outcome
from .files import replace_file
from .text import valid_unicode

SCHEMA: Literal["cpinfra/1"] = "cpinfra/1"

Rank = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
NumRanks = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    """Strict: no coercion, no unknown field, no NaN."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True
    )


class Unavailable(_Section):
    """In place of a value that could not be had."""

    unavailable: str = Field(min_length=1, description="Why the value could not be had.")


Text = str | Unavailable


class Tool(_Section):
    """What wrote the report."""

    version: str = Field(description="Version of cpinfra.")


class MeshFacts(_Section):
    """A device mesh."""

    dp: NumRanks = Field(description="Ranks along the data-parallel axis.")
    cp0: NumRanks = Field(description="Ranks along the first axis of the CP grid.")
    cp1: NumRanks = Field(description="Ranks along the second axis of the CP grid.")
    world_size: NumRanks = Field(description="Ranks in all: dp * cp0 * cp1.")


class PlanConfig(MeshFacts):
    """A mesh that the free GPUs can test."""

    integration: Literal["full", "limited"] = Field(
        description="How far an integration test on it reaches: `full` from world 8 and dp 2 on."
    )


class Plan(_Section):
    """Which meshes the free GPUs can test."""

    gpus_free: int | Unavailable = Field(description="How many GPUs may be used.")
    configs: list[PlanConfig] = Field(description="Every square mesh that fits, by its side.")
    chosen: PlanConfig | None = Field(description="The one to test; null where none fits.")
    slots: int | Unavailable = Field(description="How many copies of the chosen mesh fit at once.")


class FindingFacts(_Section):
    """One observation about hardware, software or the run."""

    id: str = Field(description="Names the kind of finding.")
    severity: Literal["info", "warning", "blocking"] = Field(
        description="`blocking` keeps a report from being proven or rehearsed."
    )
    what: str = Field(description="What was observed.")
    got: str = Field(description="The value found.")
    expected: str = Field(description="The value that would be right.")
    remedy: str = Field(description="What to do about it.")
    command: str = Field(default="", description="A command that does it, where there is one.")


class GpuFacts(_Section):
    """One GPU that the run was allowed to use."""

    index: int = Field(description="Index in PCI bus order.")
    uuid: str = Field(description="NVML's UUID.")
    name: str = Field(description="Model.")
    memory_total_mib: int | Unavailable = Field(description="Memory in MiB.")
    memory_used_mib: int | Unavailable = Field(description="Memory in use before the run, in MiB.")


class Hardware(_Section):
    """What was asked of the hardware."""

    driver_version: Text = Field(description="Version of the NVIDIA driver.")
    gpus: list[GpuFacts] = Field(description="The GPUs that the run was allowed to use.")
    findings: list[FindingFacts] = Field(description="What was noticed about the GPUs.")


class Nccl(_Section):
    """NCCL as compiled against and as loaded."""

    compiled: Text = Field(description="Version that this torch was compiled against.")
    loaded: Text = Field(description="Version of the library that is loaded, asked by calling it.")
    path: Text = Field(description="File of the loaded library.")
    sha256: Text = Field(description="Its hash.")


class Model(_Section):
    """One of the user's models."""

    name: str = Field(description="Module name.")
    imported: bool | Unavailable = Field(description="Whether it could be imported.")
    error: str = Field(description="Why not; empty if it could.")
    requires: list[str] = Field(description="What it declares to need.")


class Consistency(_Section):
    """Whether hardware, driver, torch and model fit each other."""

    consistent: bool | Unavailable = Field(description="Whether no contradiction was found.")
    findings: list[FindingFacts] = Field(description="The contradictions.")


class Software(_Section):
    """The target interpreter and its torch."""

    python: str = Field(description="Absolute path of the target interpreter; symbolic links are kept.")
    python_version: Text = Field(description="Its Python version.")
    torch: Text = Field(description="torch's version.")
    torch_path: Text = Field(description="Folder that torch was imported from.")
    cuda_build: Text = Field(description="CUDA version that this torch was built for.")
    hip_build: Text = Field(description="ROCm version that this torch was built for.")
    cuda_driver: Text = Field(description="Newest CUDA version that the driver supports.")
    arch_list: list[str] | Unavailable = Field(description="GPU architectures that this torch was built for.")
    nccl: Nccl | Unavailable = Field(description="NCCL.")
    backends: dict[str, bool] | Unavailable = Field(description="Backends of torch.distributed.")
    models: list[Model] = Field(description="The user's models that were tried.")
    consistency: Consistency | Unavailable = Field(description="Whether all of it fits.")


class Run(_Section):
    """One set of ranks that was started to test something."""

    id: str = Field(description="Names the run; checks refer to it.")
    role: Literal["main", "partial", "rehearsal", "rerun"] = Field(description="Only `main` can prove.")
    mesh: MeshFacts = Field(description="The mesh of its ranks.")
    device: Literal["cpu", "cuda"] = Field(description="Where its tensors lived.")
    backend: Text = Field(description="Backend of torch.distributed.")
    nccl: Text = Field(description="Version of the NCCL that was loaded.")


class Check(_Section):
    """What one check established in one run."""

    id: str = Field(description="Names the check.")
    tier: str = Field(description="`smoke`, `patterns` or `full`.")
    run: str = Field(description="Id of the run; empty if none was made.")
    outcome: Literal["pass", "fail", "unknown", "skip"] = Field(description="`unknown`: could not be told.")
    reason: str = Field(description="Why it did not pass; empty if it did.")
    remedy: str = Field(description="What to do about it; empty if it passed.")
    ranks: list[Rank] = Field(description="The ranks that reported.")
    seconds: Seconds = Field(description="Duration on the slowest rank.")
    evidence: dict[str, JsonValue] = Field(
        description="Sizes, dtypes, repetitions, comparisons, bytes moved."
    )


class Culprit(_Section):
    """One rank that caused a hang."""

    rank: Rank = Field(description="The rank.")
    kind: str = Field(description="What it did wrong.")
    operation: Text = Field(description="The operation it was in, or last left.")
    group: Text = Field(description="The process group of that operation.")
    site: Text = Field(description="File and line of the call.")
    expected: Text = Field(description="What it should have entered.")
    got: Text = Field(description="What it entered.")


class Hang(_Section):
    """The first hang, death or divergence of the ledgers."""

    check: str | None = Field(
        description="The check in which it happened; null before the first and after the last."
    )
    kind: str = Field(description="Kind of hang.")
    culprit_ranks: list[Rank] = Field(description="Ranks that caused it; empty where none could be told.")
    culprits: list[Culprit] = Field(description="What each of them did.")
    waiting_ranks: list[Rank] = Field(description="Ranks that only waited.")
    stacks: dict[str, Text] = Field(description="Stack of each rank, by its number.")
    seconds_to_verdict: Seconds | Unavailable = Field(description="From the call to the named culprit.")


class Recipe(_Section):
    """How to run something else as the ranks were run."""

    env: dict[str, str] = Field(
        description="Variables that decide what was proven, as they were in force in the ranks: the user's "
        "NCCL_*, GLOO_*, TORCH_*, UCX_*, CUDA_*, and those that cpinfra sets."
    )


class Question(_Section):
    """Something that only the user can say."""

    key: str = Field(description="Names the answer.")
    question: str = Field(description="What to ask the user.")
    option: str = Field(description="The option that takes the answer.")
    example: str = Field(description="An answer that would be valid.")


class Blocking(_Section):
    """Something that keeps the report from being proven."""

    id: str = Field(description="Names the kind of obstacle.")
    what: str = Field(description="What it is.")
    remedy: str = Field(description="What to do about it.")
    command: str = Field(description="A command that does it, where there is one; else empty.")
    needs_from_user: list[Question] = Field(description="What has to be asked of the user.")


class Log(_Section):
    """One file that the run left."""

    what: str = Field(description="What it holds.")
    path: str = Field(description="Where it lies.")
    bytes: int | Unavailable = Field(description="Its size.")


class ProveReport(_Section):
    """The partial report of `prove`."""

    schema_: Literal["cpinfra/1"] = Field(default=SCHEMA, alias="schema", description="Name of this schema.")
    verdict: Literal["proven", "rehearsed", "not-proven", "failed"] = Field(description="The answer.")
    scope: Literal["full", "limited", "oversubscribed", "rehearsal"] | None = Field(
        description="How far it reaches; null on GPUs without a square mesh or without a pass of the five "
        "checks that every proof requires."
    )
    created: str = Field(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", description="When it was written, in UTC (ISO 8601)."
    )
    tool: Tool = Field(description="What wrote it.")
    plan: Plan = Field(description="Which meshes the free GPUs can test.")
    hardware: Hardware | Unavailable = Field(description="The GPUs, as far as they were asked for.")
    software: Software = Field(description="The target interpreter and its torch.")
    runs: list[Run] = Field(description="The runs that were made.")
    checks: list[Check] = Field(description="What each check said.")
    hang: Hang | None = Field(description="The first hang, death or divergence of the ledgers; else null.")
    recipe: Recipe | Unavailable = Field(description="How the ranks were run.")
    findings: list[FindingFacts] = Field(description="What was noticed during the run.")
    blocking: list[Blocking] = Field(description="What keeps the report from being proven.")
    logs: list[Log] = Field(description="Files that the run left.")

    def text(self) -> str:
        """The report as the JSON document that is written and printed: ASCII, with a final newline."""
        document = self.model_dump(mode="json", by_alias=True)
        return json.dumps(document, indent=2, allow_nan=False) + "\n"

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


def tool() -> Tool:
    """This version of cpinfra."""
    return Tool(version=__version__)


def plain(value: Any) -> Any:
    """Any value of ours as JSON that the report can hold.

    Tuples become lists, keys text, NaN and infinities unavailable, lone surrogates escapes. What is no JSON
    at all is shown by its `repr`.
    """
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"unavailable": f"the value is {value}"}
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return plain(repr(value))


def check_from(result: outcome.CheckResult) -> Check:
    """A check's result as the report holds it."""
    return Check(
        id=result.id,
        tier=result.tier,
        run=result.run,
        outcome=result.outcome.value,
        reason=plain(result.reason),
        remedy=plain(result.remedy),
        ranks=sorted(result.ranks),
        seconds=round(float(result.seconds), 6),
        evidence=plain(result.evidence),
    )


def finding_from(finding: outcome.Finding) -> FindingFacts:
    """A finding as the report holds it."""
    words = {key: getattr(finding, key) for key in ("id", "what", "got", "expected", "remedy", "command")}
    return FindingFacts(severity=finding.severity.value, **plain(words))


def blocking_from(findings: Iterable[outcome.Finding]) -> list[Blocking]:
    """The blocking ones among the findings, as the report lists them again."""
    return [
        Blocking(
            id=finding.id,
            what=plain(f"{finding.what}: got {finding.got}, expected {finding.expected}"),
            remedy=plain(finding.remedy),
            command=plain(finding.command),
            needs_from_user=[],
        )
        for finding in findings
        if finding.severity is outcome.Severity.BLOCKING
    ]


def software_from(python: str, facts: Mapping[str, Any], *, missing: str) -> Software:
    """What the worker said of itself, as the report holds it.

    Args:
        python: the target interpreter, as it was started.
        facts: the worker's words; what is absent, None or an empty list is unavailable.
        missing: why what is absent is absent.
    """
    why = {"unavailable": missing}
    none = {
        "cuda_build": "this torch was built without CUDA",
        "hip_build": "this torch was built without ROCm",
        "arch_list": "this torch was built without CUDA",
        "nccl": "this torch was built without NCCL",
    }
    known = {name: why for name in Software.model_fields if name not in ("python", "models")}
    for name, value in facts.items():
        known[name] = plain(value) if value not in (None, []) else {"unavailable": none.get(name, missing)}
    if isinstance(facts.get("nccl"), Mapping):
        known["nccl"] = _nccl_words(facts["nccl"], missing)
    return Software.model_validate({"models": [], **known, "python": plain(python)})


def _nccl_words(facts: Mapping[str, Any], missing: str) -> dict[str, Any]:
    words = {name: {"unavailable": missing} for name in Nccl.model_fields}
    return {**words, **{name: plain(value) for name, value in facts.items() if value is not None}}


def recipe_from(environment: Mapping[str, str]) -> Recipe:
    """What was in force in the ranks, as the report holds it."""
    return Recipe(env=plain(environment))


def hang_from(facts: Mapping[str, Any] | None) -> Hang | None:
    """The engine's words on a hang, as the report holds them; what is empty was not recorded."""
    if facts is None:
        return None
    words = plain(facts)
    words["culprits"] = [_spoken(culprit) for culprit in words["culprits"]]
    words["stacks"] = _spoken(words["stacks"])
    return Hang.model_validate(words)


def _spoken(words: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {"unavailable": "not recorded"} if value == "" else value for key, value in words.items()}

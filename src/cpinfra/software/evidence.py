"""What the rules of `consistency` judge, and the words that they share. Pure; standard library only."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..outcome import Finding
from ..outcome import Severity

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What the rules judge."""

    software: Mapping[str, Any]
    gpus: Sequence[Mapping[str, Any]]
    driver_version: str | None
    kernels: Sequence[Mapping[str, Any]] | None
    wants_gpus: bool

    def text(self, name: str) -> str | None:
        """A fact of the software, or None where it is absent or unavailable."""
        value = self.software.get(name)
        return value if isinstance(value, str) and value else None

    def ran_right(self, gpu: Mapping[str, Any]) -> bool:
        """Whether real kernels gave the right values on this GPU."""
        uuid = gpu.get("uuid")
        answers = [
            answer for answer in self.kernels or () if isinstance(uuid, str) and answer.get("uuid") == uuid
        ]
        return any(answer.get("right") is True for answer in answers)


def unknown(name: str, what: str, got: object) -> Finding:
    """Something that a rule needs could not be told; `got` is what came in place of an answer."""
    why = _reason(got)
    return Finding(
        id=name,
        severity=Severity.WARNING,
        what=f"it could not be told: {what}",
        got=str(why) if why not in (None, "", [], {}) else "no answer",
        expected="an answer, without which hardware and software cannot be said to fit",
        remedy="see the other findings and the worker's log for what kept it from answering",
    )


def _reason(got: object) -> object:
    """Why something is unavailable, as the report and the inventory write it; else what was got."""
    if isinstance(got, Mapping) and "unavailable" in got:
        return got["unavailable"]
    return getattr(got, "why", got)


def these(gpus: Sequence[Mapping[str, Any]]) -> str:
    """The GPUs by model, or how many; with uuids, by which they are known everywhere."""
    if not gpus:
        return "GPUs"
    names = sorted({str(gpu["name"]) for gpu in gpus if isinstance(gpu.get("name"), str)})
    uuids = ", ".join(str(gpu.get("uuid")) for gpu in gpus)
    return f"{len(gpus)} GPU(s) ({'; '.join([*names, uuids])})"


def ask(case: Case, expression: str) -> str:
    """A command that shows the fact in the target interpreter."""
    python = case.text("python")
    code = f"import torch, torch.distributed; print({expression})"
    return f"{shlex.quote(python)} -c {shlex.quote(code)}" if python is not None else ""


def dotted(numbers: Sequence[int]) -> str:
    """(9, 0) as `9.0`."""
    return ".".join(map(str, numbers))


def version(text: object) -> tuple[int, ...] | None:
    """`"12.8"` or `"2.27.3"` as numbers; None for what is no version."""
    found = _VERSION.match(text) if isinstance(text, str) else None
    return tuple(int(part or 0) for part in found.groups()) if found is not None else None

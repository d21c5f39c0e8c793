"""What became of planted faults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Seconds
from .base import Section


class Detection(Section):
    """What became of one twin on one check."""

    twin: str = Field(description="Name of the planted fault.")
    check: str | None = Field(description="Where it was planted; null: outside of any check.")
    status: Literal["right", "missed", "n/a"] = Field(
        description="`right`: it acted, and all was told as it must be; `n/a`: it was not planted."
    )
    fault: str = Field(description="The fault as --inject spells it; empty where it was not planted.")
    fired: bool = Field(description="Whether it acted.")
    detected: bool = Field(description="Whether anything was told of it.")
    culprit_right: bool | None = Field(
        description="Whether its rank was blamed and no other; null for a fault without a rank."
    )
    kind_right: bool | None = Field(description="Whether it was told as what it is; null where not planted.")
    seconds: Seconds | None = Field(description="From the fault to the word on it; null where either is not.")
    reason: str = Field(description="Why it cannot act there; empty where it was planted.")
    expected: str = Field(description="What must be told of it; empty where it was not planted.")
    got: str = Field(description="What was told; empty where it was not planted.")


class ControlRow(Section):
    """The run without a fault, and what was told that no fault does."""

    clean: bool = Field(description="Whether it ran to its end without a false alarm.")
    outcomes: dict[str, str] = Field(description="Outcome by check; empty where it did not come to its end.")
    false_alarms: list[str] = Field(
        description="What was told though nothing was planted, or nothing that does it; of every run."
    )

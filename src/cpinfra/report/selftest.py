"""What became of planted faults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Rank
from .base import Seconds
from .base import Section


class Told(Section):
    """What must be told of one fault, or what was."""

    outcome: Literal["pass", "fail", "unknown", "skip"] | None = Field(
        description="Of the check on which it was planted; null where it was outside of any."
    )
    kind: str | None = Field(
        description="Kind of the hang, of several that of the first; `slow`; null: neither of them."
    )
    ranks: list[Rank] = Field(description="Ranks that are named: to blame, slow, or the ones that raised.")
    text: str = Field(description="The same in words, with reasons.")


class SelfTestRow(Section):
    """What became of one twin on one check."""

    twin: str = Field(description="Name of the planted fault.")
    check: str | None = Field(description="Where it was planted; null: outside of any check.")
    status: Literal["right", "missed", "unknown", "n/a"] = Field(
        description="`right`: it acted, and all was told as it must be; `unknown`: an error of cpinfra, a "
        "device that failed or ranks that could not start kept that from being known; `n/a`: it was not "
        "planted."
    )
    fault: str = Field(description="The fault as --inject spells it; empty where it was not planted.")
    fired: bool = Field(description="Whether it acted.")
    detected: bool = Field(description="Whether anything was told of it.")
    culprit_right: bool | None = Field(
        description="Whether its rank was named and no other; null for a fault in data, which has none, and "
        "where it was not planted."
    )
    kind_right: bool | None = Field(
        description="Whether kind and outcome were told as they must be; null for a fault in data, which has "
        "no kind, and where it was not planted."
    )
    seconds: Seconds | None = Field(description="From the fault to the word on it; null where either is not.")
    reason: str = Field(
        description="Of `n/a` why it was not planted there, of `unknown` what kept it from being known; "
        "empty for the others."
    )
    expected: Told | None = Field(description="What must be told of it; null where it was not planted.")
    got: Told | None = Field(description="What was told; null where it was not planted.")


class Control(Section):
    """The run without a fault, and what was told that no fault does."""

    clean: bool = Field(
        description="Whether it ran to its end, no check failed or was unknown, and nothing else was told."
    )
    outcomes: dict[str, str] = Field(description="Outcome by check; empty where it did not come to its end.")
    false_alarms: list[str] = Field(
        description="What was told though nothing was planted, or nothing that does it; of every run."
    )
    left_out: list[str] = Field(
        default_factory=list,
        description="Checks and faults that --only and --fault left out; of these there are no rows.",
    )
    not_reached: list[str] = Field(
        default_factory=list,
        description="Faults that were not planted, or not on all their checks, as it ended before.",
    )

"""The plan, and what was run of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic import JsonValue

from .base import NumRanks
from .base import Rank
from .base import Seconds
from .base import Section
from .base import Text
from .base import Unavailable


class MeshFacts(Section):
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


class Plan(Section):
    """Which meshes the free GPUs can test."""

    gpus_free: int | Unavailable = Field(description="How many GPUs may be used.")
    configs: list[PlanConfig] = Field(description="Every square mesh that fits, by its side.")
    chosen: PlanConfig | None = Field(description="The one to test; null where none fits.")
    slots: int | Unavailable = Field(description="How many copies of the chosen mesh fit at once.")


class Run(Section):
    """One set of ranks that was started to test something."""

    id: str = Field(description="Names the run; checks refer to it.")
    role: Literal["main", "partial", "rehearsal", "rerun"] = Field(description="Only `main` can prove.")
    mesh: MeshFacts = Field(description="The mesh of its ranks.")
    device: Literal["cpu", "cuda"] = Field(description="Where its tensors lived.")
    backend: Text = Field(description="Backend of torch.distributed.")
    nccl: Text = Field(description="Version of the NCCL that was loaded.")


class Check(Section):
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


class Culprit(Section):
    """One rank that caused a hang."""

    rank: Rank = Field(description="The rank.")
    kind: str = Field(description="What it did wrong.")
    operation: Text = Field(description="The operation it was in, or last left.")
    group: Text = Field(description="The process group of that operation.")
    site: Text = Field(description="File and line of the call.")
    expected: Text = Field(description="What it should have entered.")
    got: Text = Field(description="What it entered.")


class Side(Section):
    """One of several calls that ranks entered where all had to enter the same."""

    ranks: list[Rank] = Field(description="Who entered it.")
    entered: str = Field(description="The call.")


class Hang(Section):
    """The first hang, death or divergence of the ledgers."""

    check: str | None = Field(
        description="The check in which it happened; null before the first and after the last."
    )
    kind: str = Field(description="Kind of hang.")
    culprit_ranks: list[Rank] = Field(description="Ranks that caused it; empty where none could be told.")
    culprits: list[Culprit] = Field(description="What each of them did.")
    waiting_ranks: list[Rank] = Field(description="Ranks that only waited.")
    raised: dict[str, Text] = Field(
        default_factory=dict, description="Rank -> the exception that it raised and this does not explain."
    )
    victims: dict[str, Text] = Field(
        default_factory=dict, description="Rank -> how it ended that had waited, and died or raised of it."
    )
    sides: list[Side] = Field(
        default_factory=list,
        description="Who entered what, where ranks entered different calls at one place.",
    )
    stacks: dict[str, Text] = Field(
        description="The whole stack of each culprit, by its number; of others each distinct one once, by "
        "theirs (`0,1,3`)."
    )
    remedy: str = Field(default="", description="What to do about it.")
    seconds_to_verdict: Seconds | Unavailable = Field(description="From the call to the named culprit.")

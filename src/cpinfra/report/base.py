"""What every section of the report is made of."""

from __future__ import annotations

from typing import Annotated
from typing import Literal

from pydantic import BaseModel
from pydantic import ConfigDict
from pydantic import Field

Rank = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
NumRanks = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """Strict: no coercion, no unknown field, no NaN."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True
    )


class Unavailable(Section):
    """In place of a value that could not be had."""

    unavailable: str = Field(min_length=1, description="Why the value could not be had.")


Text = str | Unavailable


class FindingFacts(Section):
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

"""How to launch, what blocks, and what to do next."""

from __future__ import annotations

from pydantic import Field

from .base import Section
from .base import Text
from .base import Unavailable
from .proof import MeshFacts


class Guard(Section):
    """One setting of the recipe that keeps a run from hanging in silence."""

    setting: str = Field(description="What is set.")
    value: str = Field(description="To what.")
    reason: str = Field(description="Why.")


class Sandbox(Section):
    """What a sandbox around the run would have to allow."""

    blocked: list[str] = Field(description="What was tried and is blocked.")
    needed: bool | Unavailable = Field(description="Whether ranks have to be run outside of it.")
    how: str = Field(description="How; empty where nothing has to be done.")


class Recipe(Section):
    """How to run something else as the ranks were run."""

    interpreter: str = Field(description="Absolute path of the Python that has torch.")
    pythonpath: list[str] | Unavailable = Field(description="Folders that PYTHONPATH must hold, in order.")
    workdir: Text = Field(description="Folder for logs and results.")
    mesh: MeshFacts = Field(description="The mesh that it launches.")
    proven: bool = Field(description="Whether exactly this mesh was proven on GPUs.")
    env: dict[str, str] = Field(
        description="Variables that decide what was proven, as they were in force in the ranks: the user's "
        "NCCL_*, GLOO_*, TORCH_*, UCX_*, CUDA_*, and those that cpinfra sets."
    )
    commands: dict[str, str] = Field(description="Command lines by launcher: `torchrun`, `spawn`.")
    timeouts: dict[str, int] = Field(
        description="Seconds: `nccl` and `gloo` of their process groups, `run` of the whole."
    )
    guards: list[Guard] = Field(description="What keeps a run from hanging in silence, and why.")
    nccl_library: Text = Field(description="NCCL library to preload.")
    sandbox: Sandbox | Unavailable = Field(description="What a sandbox must allow.")


class Question(Section):
    """Something that only the user can say."""

    key: str = Field(description="Names the answer.")
    question: str = Field(description="What to ask the user.")
    option: str = Field(
        description="What takes the answer: a command with its option, or a field of the job script."
    )
    example: str = Field(description="An answer that would be valid.")


class Blocking(Section):
    """Something that keeps the report from being proven."""

    id: str = Field(description="Names the kind of obstacle.")
    what: str = Field(description="What it is.")
    remedy: str = Field(description="What to do about it.")
    command: str = Field(description="A command that does it, where there is one; else empty.")
    needs_from_user: list[Question] = Field(description="What has to be asked of the user.")


class Next(Section):
    """Something to do next."""

    why: str = Field(description="What for.")
    command: str = Field(description="The command that does it.")


class Log(Section):
    """One file that the run left."""

    what: str = Field(description="What it holds.")
    path: str = Field(description="Where it lies.")
    bytes: int | Unavailable = Field(description="Its size.")

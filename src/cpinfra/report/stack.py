"""The software: the target interpreter, its torch, NCCL and the user's models."""

from __future__ import annotations

from pydantic import Field

from .base import Count
from .base import FindingFacts
from .base import Seconds
from .base import Section
from .base import Text
from .base import Unavailable


class Nccl(Section):
    """NCCL as compiled against and as loaded."""

    compiled: Text = Field(description="Version that this torch was compiled against.")
    loaded: Text = Field(description="Version of the library that is loaded, asked by calling it.")
    path: Text = Field(description="File of the loaded library.")
    sha256: Text = Field(description="Its hash.")


class FileIdentity(Section):
    """A file whose change makes the report untrue."""

    what: str = Field(description="`torch` (its version file) or `nccl`.")
    path: str = Field(description="Where it lies.")
    bytes: Count = Field(description="Its size.")
    modified_ns: int = Field(description="When it was last modified, in ns since the epoch.")


class GpuKernels(Section):
    """Real kernels that this torch ran on one GPU, in a process of their own."""

    uuid: str = Field(description="The GPU.")
    right: bool | Unavailable = Field(description="Whether every value was right.")
    kernels: list[str] = Field(description="What was run.")
    error: str = Field(description="What was wrong; empty if nothing was.")
    seconds: Seconds | Unavailable = Field(description="With the creation of the context.")


class Model(Section):
    """One of the user's models, imported in a fresh interpreter."""

    name: str = Field(description="Module name.")
    imported: bool | Unavailable = Field(description="Whether it could be imported.")
    error: str = Field(description="Why not, with its traceback; empty if it could.")
    path: Text = Field(description="Where the module was found.")
    distribution: Text = Field(description="Name of the distribution that provides it.")
    requires: list[str] = Field(description="What that distribution declares to need, Python included.")
    seconds: Seconds | Unavailable = Field(description="Duration of the import.")


class Consistency(Section):
    """Whether hardware, driver, torch and model fit each other."""

    consistent: bool | Unavailable = Field(description="Whether no contradiction was found.")
    findings: list[FindingFacts] = Field(description="The contradictions, and what could not be told.")


class Software(Section):
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
    kernels: list[GpuKernels] | Unavailable = Field(description="Kernels that were run, by GPU.")
    files: list[FileIdentity] | Unavailable = Field(description="What `cpinfra check` looks at again.")
    models: list[Model] = Field(description="The user's models that were tried.")
    consistency: Consistency | Unavailable = Field(description="Whether all of it fits.")

"""The document of `probe` for a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

from ..text import one_line

_ANSWERS = {True: "yes", False: "no", None: "not told"}


def summary(document: Mapping[str, Any]) -> str:
    """Some lines, the answer first."""
    return "".join(f"{one_line(line)}\n" for line in _lines(document))


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    said = document["self_consistency"]
    yield f"consistent: {_ANSWERS[said['consistent']]}"
    versions = f"Python {_or(document['python'])}, torch {_or(document['torch'])}"
    yield f"{versions}, {document['software']['python']}"
    if document["torch_error"]:
        yield f"torch: {document['torch_error']}"
    yield (
        f"CUDA usable: {_ANSWERS[document['cuda_available']]}; torch's CUDA {_or(document['cuda_version'])}, "
        f"driver {_or(document['nvidia_driver'])} for CUDA {_or(document['cuda_driver_api'])}, "
        f"NCCL {_or(document['nccl_version'])}"
    )
    yield from _gpus(document["gpus"])
    yield _disk(document["disk"], document["recommend_disk_GiB"])
    yield (
        f"DTensor on a mesh of one rank: {_ANSWERS[said['dtensor_mesh_check']]}; "
        f"models import: {_ANSWERS[said['model_import_check']]}"
    )
    yield from _models(document["software"]["models"])
    yield _recommended(document["recommended_cp"])
    for note in said["notes"]:
        yield f"note: {note}"


def _or(value: Any) -> str:
    return "none known" if value is None else str(value)


def _gpus(gpus: list[Mapping[str, Any]] | None) -> Iterator[str]:
    if not gpus:
        yield "GPUs: not told" if gpus is None else "GPUs: none"
    for gpu in gpus or ():
        memory = f"{_or(gpu['mem_GiB'])} GiB"
        yield f"GPU {gpu['index']}: {_or(gpu['name'])}, compute capability {_or(gpu['capability'])}, {memory}"


def _disk(disk: Mapping[str, Any], recommended_gib: int) -> str:
    free = f"{disk['free_GiB']} GiB free" if disk["free_GiB"] is not None else f"not told ({disk['error']})"
    return f"disk at {_or(disk['path'])}: {free}; recommended: {recommended_gib}"


def _models(models: list[Mapping[str, Any]]) -> Iterator[str]:
    for model in models:
        error = f": {model['error']}" if model["error"] else ""
        yield f"model {model['name']}: {_ANSWERS[model['imported']]}{error}"


def _recommended(said: Mapping[str, Any]) -> str:
    if said["can_2d"] is None:
        return "2D context parallelism: not told, as the GPUs could not be counted"
    if not said["can_2d"]:
        return f"2D context parallelism: no, {said['gpu_count']} free GPU(s), and the smallest grid takes 4"
    grid = said["cp2d"]
    return f"2D context parallelism: yes, up to cp {grid['cp0']}x{grid['cp1']} with dp {grid['dp']}"

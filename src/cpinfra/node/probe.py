"""`probe`: what the software is, and whether it fits the GPUs; one rank is started and no report is written.

The document is flat, with the keys that tools around the recipe `build-infra` read. A value that could not be
told is null, and `self_consistency.notes` says why.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..outcome import ExitCode
from ..planning.settle import AskGpus
from ..planning.settle import Settled
from ..planning.settle import settle_probe
from ..proof import run_folder
from ..proof.contract import Progress
from . import fit
from . import probe_document
from .job import Job
from .learnt import Learnt

_UNANSWERED = ("no-driver", "hung", "error")
"""What the driver must not have said for the machine to count as answered for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeRequest:
    """What was asked, as the user wrote it."""

    python: str | None = None
    models: tuple[str, ...] = ()
    workdir: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """What a probe found."""

    document: dict[str, Any]
    exit_code: ExitCode


def probe(
    request: ProbeRequest,
    environment: Mapping[str, str],
    *,
    ask_gpus: AskGpus | None = None,
    of_model: fit.OfModel = fit.without_requirements,
    progress: Progress | None = None,
) -> Probed:
    """Look at host, GPUs, torch and models, and try one rank.

    Args:
        request: what was asked.
        environment: of this process.
        ask_gpus: another source than NVML for the GPUs.
        of_model: all that is to be said of one model.
        progress: takes the events; they are dropped by default.

    Returns:
        The document, and `OK` where all was answered and nothing contradicted; else `NOT_PROVEN`.

    Raises:
        UsageProblem: the request makes no sense.
        OSError: there is no room for a run folder.
    """
    settled = settle_probe(request.python, request.models, request.workdir, environment, ask_gpus=ask_gpus)
    folder = Path(tempfile.mkdtemp(prefix="cpinfra-probe-"))
    try:
        learnt = _learn(settled, folder, environment, progress or (lambda _: None))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    document = probe_document.document(settled, learnt, of_model)
    code = _code(settled, learnt, document["self_consistency"])
    if code is ExitCode.OK:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        document["self_consistency"]["notes"].append(f"logs: {folder}")
    return Probed(document=document, exit_code=code)


def _learn(settled: Settled, path: Path, environment: Mapping[str, str], progress: Progress) -> Learnt:
    folder = run_folder.create(path, environment)
    try:
        with Job(settled, folder, progress, lambda: None) as job:
            job.run()
    finally:
        folder.close()
    return job.learnt


def _code(settled: Settled, learnt: Learnt, said: Mapping[str, Any]) -> ExitCode:
    """What was not answered counts like a no."""
    if learnt.interrupted:
        return ExitCode.INTERRUPTED
    answer = settled.device.answer
    answered = bool(learnt.software) and answer is not None and answer.state not in _UNANSWERED
    works = said["dtensor_mesh_check"] is True and said["consistent"] is not False
    works &= not learnt.models or said["model_import_check"] is True
    return ExitCode.OK if answered and works else ExitCode.NOT_PROVEN

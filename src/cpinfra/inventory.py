"""What is there, and which meshes can be tested with it. Starts no rank and needs no torch."""

from __future__ import annotations

import os

from .hardware import host as hosts
from .hardware.gpus import GpuAnswer
from .hardware.gpus import usable_gpus
from .judging import sections
from .outcome import ExitCode
from .planning import asked
from .planning import placement
from .planning.settle import NVML_TIMEOUT_S
from .report import Report


def inventory(workdir: str | None) -> tuple[Report, ExitCode]:
    """The host and its GPUs.

    Args:
        workdir: the folder whose disk is measured; None: FOLD_CP_WORKDIR, else the current folder.

    Returns:
        The partial report, and `NOT_PROVEN` where the driver could not be asked.

    Raises:
        UsageProblem: `workdir` is no folder.
    """
    mistakes = asked.Mistakes()
    folder = mistakes.attempt(lambda: asked.folder("--workdir", workdir))
    if mistakes.messages:
        raise mistakes.problem()
    facts = hosts.describe(hosts.workdir(folder, os.environ))
    answer = usable_gpus(os.environ, NVML_TIMEOUT_S, show_hidden=True)
    device = placement.decide("auto", answer, rehearsal=placement.BUILD_REHEARSAL)
    made = Report.made(
        host=sections.host(facts, hosts.findings(facts)),
        hardware=sections.hardware(device, placement.findings(device, for_a_run=False)),
    )
    return made, _code(answer)


def plan(gpus: str | None) -> tuple[Report, ExitCode]:
    """Which meshes a number of GPUs can test; of those that are free here where none is given.

    Returns:
        The partial report, and `NOT_PROVEN` where no mesh fits, or the GPUs could not be counted.

    Raises:
        UsageProblem: `gpus` is no number of GPUs.
    """
    if gpus is not None:
        made = Report.made(plan=sections.plan_of(asked.count("--gpus", gpus)))
    else:
        device = placement.decide("auto", usable_gpus(os.environ, NVML_TIMEOUT_S))
        made = Report.made(plan=sections.plan(device))
    fits = made.plan is not None and made.plan.chosen is not None
    return made, ExitCode.OK if fits else ExitCode.NOT_PROVEN


def _code(answer: GpuAnswer) -> ExitCode:
    return ExitCode.NOT_PROVEN if answer.state in placement.UNANSWERED else ExitCode.OK

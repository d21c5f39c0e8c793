"""Where a proof runs: on which device, on which of its GPUs, with how many ranks in which mesh.

A proof never falls back to the CPU by itself where GPUs are present: a GPU that is busy, a board without a
driver, or a driver that does not answer is an obstacle that is told, not a reason to test something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .. import mesh as meshes
from ..hardware.gpus import Gpu
from ..hardware.gpus import GpuAnswer
from ..hardware.gpus import Remark
from ..mesh import Mesh
from ..mesh import UsageProblem
from ..outcome import Finding
from ..outcome import Severity
from .asked import Numbers

_REHEARSAL = "a rehearsal over gloo, which proves nothing about GPUs"

CPU_RANKS = 4
"""Ranks of a rehearsal for which no number was given."""
FEWEST_GPUS = 4
"""GPUs that the smallest square mesh takes."""
FEWEST_RANKS = 2
"""Of a self-test: one rank alone waits for nobody, and gets back what it gave."""

PROVE_REHEARSAL = "cpinfra prove --device cpu"
BUILD_REHEARSAL = "cpinfra build --rehearse"
SELFTEST_REHEARSAL = "cpinfra selftest --device cpu"

_NO_GPUS = ("hidden", "absent")
"""What the driver's answer must be for `--device auto` to take the CPU: no GPU on purpose, or none at all."""

UNANSWERED = ("no-driver", "hung", "error")
"""Answers by which the number of GPUs is not known; a rehearsal leaves them alone and still tells of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The device of a proof."""

    kind: str
    """`cpu` or `cuda`."""
    says: str
    """Why it is this one, in a sentence for the first line."""
    answer: GpuAnswer | None = None
    """What the GPUs' driver said; None where it was not asked."""
    obstacle: Finding | None = None
    """Why nothing can run on it."""
    rehearsal: str = PROVE_REHEARSAL
    """The command that would rehearse instead."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that may be used; none for `cpu`."""
        return self.answer.gpus if self.kind == "cuda" and self.answer is not None else ()


def decide(asked: str, answer: GpuAnswer | None, *, rehearsal: str = PROVE_REHEARSAL) -> Device:
    """The device for `--device asked`.

    Args:
        asked: `auto`, `cpu` or `cuda`.
        answer: what the driver said; None where it was not asked.
        rehearsal: the command that would rehearse instead, for messages.
    """
    if asked == "cpu" or answer is None:
        says = f"cpu, as asked: {_REHEARSAL}"
        return Device(kind="cpu", says=says, answer=answer, rehearsal=rehearsal)
    if answer.state == "gpus":
        says = f"cuda: {_models(answer.gpus)} over nccl"
        return Device(kind="cuda", says=says, answer=answer, rehearsal=rehearsal)
    if asked == "auto" and answer.state in _NO_GPUS:
        says = f"cpu, as {answer.reason}: {_REHEARSAL}"
        return Device(kind="cpu", says=says, answer=answer, rehearsal=rehearsal)
    says = f"cuda: nothing can run: {answer.reason}"
    obstacle = _obstacle(answer, rehearsal)
    return Device(kind="cuda", says=says, answer=answer, obstacle=obstacle, rehearsal=rehearsal)


def _models(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{number} x {name}" for name, number in Counter(gpu.name for gpu in gpus).items())


def _obstacle(answer: GpuAnswer, rehearsal: str, severity: Severity = Severity.BLOCKING) -> Finding:
    busy = answer.state == "none" and answer.busy
    return Finding(
        id="gpus-busy" if busy else _NAMES.get(answer.state, "gpus-unknown"),
        severity=severity,
        what="no GPU can be used",
        got=answer.reason,
        expected="at least one GPU that answers and is free",
        remedy=f"{answer.remedy}; to rehearse without GPUs: {rehearsal}",
        command=rehearsal,
    )


_NAMES = {
    "none": "no-usable-gpu",
    "hidden": "no-usable-gpu",
    "absent": "no-gpu",
    "no-driver": "no-driver",
    "hung": "driver-hung",
}
OBSTACLES = (*_NAMES.values(), "gpus-busy", "gpus-unknown", "too-few-gpus")
"""Ids of the findings that say that GPUs are lacking."""


def missing_gpus(answer: GpuAnswer, rehearsal: str) -> Finding:
    """What blocks a proof on a machine without usable GPUs, where a rehearsal was not what was asked for."""
    return _obstacle(answer, rehearsal)


def findings(device: Device, *, for_a_run: bool = True) -> tuple[Finding, ...]:
    """What a reader of the report should know about the device.

    Args:
        device: the device.
        for_a_run: whether something is to run on it; else it is only looked at.
    """
    answer = device.answer
    if answer is None:
        return ()
    found = [_busy(gpu.label, gpu.reason) for gpu in answer.busy]
    found += [_remark(remark) for remark in answer.remarks]
    if device.gpus and for_a_run:
        found.append(_unclaimed(device.gpus))
    if 0 < len(device.gpus) < FEWEST_GPUS:
        found.append(_too_few(len(device.gpus), device.rehearsal))
    if device.obstacle is not None:
        found.append(device.obstacle)
    elif device.kind == "cpu" and answer.state in UNANSWERED:
        found.append(_obstacle(answer, device.rehearsal, Severity.WARNING))
    return tuple(found)


def _busy(label: str, reason: str) -> Finding:
    return Finding(
        id="gpu-not-used",
        severity=Severity.INFO,
        what=f"{label} was left alone",
        got=reason,
        expected="no compute process and at most 1 GiB in use",
        remedy="wait for it, or name it in CUDA_VISIBLE_DEVICES if it is yours",
    )


_REMARKS = {
    "order": {
        "what": "numbers in CUDA_VISIBLE_DEVICES can mean other GPUs to another program",
        "expected": "GPUs named by UUID, or CUDA_DEVICE_ORDER=PCI_BUS_ID",
        "remedy": "name GPUs by UUID in CUDA_VISIBLE_DEVICES (nvidia-smi -L lists them), or set "
        "CUDA_DEVICE_ORDER=PCI_BUS_ID everywhere",
    },
    "cut-short": {
        "what": "not all that CUDA_VISIBLE_DEVICES lists can be used",
        "expected": "entries that each name one GPU of this machine",
        "remedy": "correct or remove that entry (nvidia-smi -L lists the GPUs)",
    },
    "in-use": {
        "what": "a GPU that was named is in use",
        "expected": "GPUs that nobody else uses during the run",
        "remedy": "end what runs on it if it is yours (nvidia-smi lists it), or name another GPU",
    },
    "by-torch": {
        "what": "who uses the GPUs is known by their memory alone",
        "expected": "NVML's answer, which counts processes too",
        "remedy": "look with nvidia-smi whether somebody computes on them, or install nvidia-ml-py for this "
        "interpreter",
    },
}
"""What each kind of remark on the chosen GPUs means, and what to do about it."""


def _remark(remark: Remark) -> Finding:
    severity = Severity.WARNING if remark.is_warning else Severity.INFO
    return Finding(id=f"gpus-{remark.kind}", severity=severity, got=remark.text, **_REMARKS[remark.kind])


def _unclaimed(gpus: Sequence[Gpu]) -> Finding:
    return Finding(
        id="gpus-unclaimed",
        severity=Severity.INFO,
        what="the GPUs were not claimed: another program may start on them during the run",
        got=", ".join(gpu.uuid for gpu in gpus),
        expected="GPUs that nobody else uses meanwhile",
        remedy="on a shared machine, agree on who uses which, or let a batch system hand them out",
    )


def _too_few(number: int, rehearsal: str) -> Finding:
    return Finding(
        id="too-few-gpus",
        severity=Severity.BLOCKING,
        what="2D context parallelism cannot be proven on these GPUs",
        got=f"{number} usable GPU(s)",
        expected=f"{FEWEST_GPUS} or more, for a mesh of 2x2",
        remedy=f"free more GPUs or run on a machine that has them; to rehearse without GPUs: {rehearsal}",
        command=rehearsal,
    )


def pick_mesh(numbers: Numbers, kind: str, num_gpus: int, *, allow_1d: bool = True) -> Mesh:
    """The mesh that the numbers mean on this device.

    Args:
        numbers: what was asked.
        kind: `cpu` or `cuda`.
        num_gpus: how many GPUs may be used; 0 on `cuda` where an obstacle leaves none to count.
        allow_1d: whether a world that holds no square may be a 1-D mesh; else it is refused.

    Raises:
        UsageProblem: the numbers do not fit each other, or not the device.
    """
    ranks, cp, dp = numbers.ranks, numbers.cp, numbers.dp
    if ranks is None and cp is None and dp is None:
        return _default(kind, num_gpus)
    if kind == "cuda" and ranks is None and dp is None and cp is not None:
        dp = max(1, num_gpus // (cp[0] * cp[1]))  # the plan's own configuration for this side
    mesh = meshes.choose(ranks, cp, dp, allow_1d=allow_1d, world_option=numbers.ranks_option)
    if kind == "cpu" or num_gpus:
        _refuse_too_many(mesh, numbers, kind, num_gpus)
    return mesh


def _default(kind: str, num_gpus: int) -> Mesh:
    choice = meshes.chosen(num_gpus)
    if kind == "cuda" and choice is not None:
        return choice.mesh
    return meshes.one_dimensional(num_gpus) if kind == "cuda" and num_gpus else meshes.choose(CPU_RANKS)


def _refuse_too_many(mesh: Mesh, numbers: Numbers, kind: str, num_gpus: int) -> None:
    world = mesh.world_size
    named = numbers.ranks_option
    option = named if numbers.ranks is not None else f"{_options(numbers)}, which takes {named}"
    messages = meshes.limit_problems(world, device=kind, gpus=num_gpus, world_option=option)
    if not messages and kind == "cuda" and world > num_gpus:
        there = f"there are {num_gpus} usable GPU(s)"
        fitting = [f"--cp {c.cp0}x{c.cp1} --dp {c.dp}" for c in meshes.configs(num_gpus)]
        valid = ", ".join([f"up to {num_gpus}", *fitting, "or a rehearsal on CPU"])
        remedy = f"several ranks on one GPU are not supported; valid: {valid}"
        messages = (f"{option} {world}: {there}; {remedy}",)
    if messages:
        raise UsageProblem(messages)


def _options(numbers: Numbers) -> str:
    cp = f"--cp {numbers.cp[0]}x{numbers.cp[1]}" if numbers.cp else ""
    return " ".join(part for part in (cp, f"--dp {numbers.dp}" if numbers.dp else "") if part)

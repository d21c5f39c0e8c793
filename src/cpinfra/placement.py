"""Where a proof runs: on which device, on which of its GPUs, with how many ranks in which mesh.

`prove` never falls back to the CPU by itself where GPUs are present: a GPU that is busy, a board without a
driver, or a driver that does not answer is an obstacle that is told, not a reason to test something else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from . import mesh as meshes
from .asked import Numbers
from .hardware.gpus import Gpu
from .hardware.gpus import GpuAnswer
from .hardware.gpus import Remark
from .mesh import Mesh
from .mesh import UsageProblem
from .outcome import Finding
from .outcome import Severity

_REHEARSAL = "a rehearsal over gloo, which proves nothing about GPUs"

CPU_RANKS = 4
"""Ranks of a rehearsal for which no number was given."""
FEWEST_GPUS = 4
"""GPUs that the smallest square mesh takes."""

_NO_GPUS = ("hidden", "absent")
"""What the driver's answer must be for `--device auto` to take the CPU: no GPU on purpose, or none at all."""


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

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that may be used; none for `cpu`."""
        return self.answer.gpus if self.kind == "cuda" and self.answer is not None else ()


def decide(asked: str, answer: GpuAnswer | None) -> Device:
    """The device for `--device asked`, given what the driver said (None: it was not asked)."""
    if asked == "cpu" or answer is None:
        return Device(kind="cpu", says=f"cpu, as asked: {_REHEARSAL}")
    if answer.state == "gpus":
        return Device(kind="cuda", says=f"cuda: {_models(answer.gpus)} over nccl", answer=answer)
    if asked == "auto" and answer.state in _NO_GPUS:
        return Device(kind="cpu", says=f"cpu, as {answer.reason}: {_REHEARSAL}", answer=answer)
    says = f"cuda: nothing can run: {answer.reason}"
    return Device(kind="cuda", says=says, answer=answer, obstacle=_obstacle(answer))


def _models(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{number} x {name}" for name, number in Counter(gpu.name for gpu in gpus).items())


def _obstacle(answer: GpuAnswer) -> Finding:
    names = {
        "none": "gpus-busy" if answer.busy else "no-usable-gpu",
        "hidden": "no-usable-gpu",
        "absent": "no-gpu",
        "no-driver": "no-driver",
        "hung": "driver-hung",
    }
    return Finding(
        id=names.get(answer.state, "gpus-unknown"),
        severity=Severity.BLOCKING,
        what="no GPU can be used",
        got=answer.reason,
        expected="at least one GPU that answers and is free",
        remedy=f"{answer.remedy}; to rehearse without GPUs: --device cpu",
        command="cpinfra prove --device cpu",
    )


def findings(device: Device) -> tuple[Finding, ...]:
    """What a reader of the report should know about the device."""
    if device.answer is None:
        return ()
    found = [_busy(gpu.label, gpu.reason) for gpu in device.answer.busy]
    found += [_remark(remark) for remark in device.answer.remarks]
    if device.gpus:
        found.append(_unclaimed(device.gpus))
    if 0 < len(device.gpus) < FEWEST_GPUS:
        found.append(_too_few(len(device.gpus)))
    if device.obstacle is not None:
        found.append(device.obstacle)
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


def _too_few(number: int) -> Finding:
    return Finding(
        id="too-few-gpus",
        severity=Severity.BLOCKING,
        what="2D context parallelism cannot be proven on these GPUs",
        got=f"{number} usable GPU(s)",
        expected=f"{FEWEST_GPUS} or more, for a mesh of 2x2",
        remedy="free more GPUs or run on a machine that has them; to rehearse without GPUs: --device cpu",
        command="cpinfra prove --device cpu",
    )


def pick_mesh(numbers: Numbers, device: Device) -> Mesh:
    """The mesh that the numbers mean on this device.

    Raises:
        UsageProblem: the numbers do not fit each other, or not the device.
    """
    ranks, cp, dp = numbers.ranks, numbers.cp, numbers.dp
    num_gpus = len(device.gpus)
    if ranks is None and cp is None and dp is None:
        return _default(device.kind, num_gpus)
    if device.kind == "cuda" and ranks is None and dp is None and cp is not None:
        dp = max(1, num_gpus // (cp[0] * cp[1]))  # the plan's own configuration for this side
    mesh = meshes.choose(ranks, cp, dp)
    if device.obstacle is None:
        _refuse_too_many(mesh, numbers, device.kind, num_gpus)
    return mesh


def _default(kind: str, num_gpus: int) -> Mesh:
    choice = meshes.chosen(num_gpus)
    if kind == "cuda" and choice is not None:
        return choice.mesh
    return meshes.one_dimensional(num_gpus) if kind == "cuda" and num_gpus else meshes.choose(CPU_RANKS)


def _refuse_too_many(mesh: Mesh, numbers: Numbers, kind: str, num_gpus: int) -> None:
    world = mesh.world_size
    option = "--ranks" if numbers.ranks is not None else f"{_options(numbers)}, which takes --ranks"
    messages = meshes.limit_problems(world, device=kind, gpus=num_gpus, world_option=option)
    if not messages and kind == "cuda" and world > num_gpus:
        there = f"there are {num_gpus} usable GPU(s)"
        remedy = f"several ranks on one GPU are not supported; valid: up to {num_gpus}, or --device cpu"
        messages = (f"{option} {world}: {there}; {remedy}",)
    if messages:
        raise UsageProblem(messages)


def _options(numbers: Numbers) -> str:
    cp = f"--cp {numbers.cp[0]}x{numbers.cp[1]}" if numbers.cp else ""
    return " ".join(part for part in (cp, f"--dp {numbers.dp}" if numbers.dp else "") if part)

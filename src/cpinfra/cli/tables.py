"""Plans and inventories as plain text. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from ..text import one_line

if TYPE_CHECKING:
    from ..report import FindingFacts
    from ..report import GpuFacts
    from ..report import Host
    from ..report import Plan
    from ..report import Report


def plan(report: Report) -> str:
    """The meshes that fit, one a line."""
    return "".join(f"{line}\n" for line in _plan(report.plan))


def inventory(report: Report) -> str:
    """Host, GPUs, and what was noticed."""
    hardware = report.hardware
    gpus: Sequence[GpuFacts] = getattr(hardware, "gpus", ())
    found = [*getattr(report.host, "findings", ()), *getattr(hardware, "findings", ())]
    lines = [*_host(report.host), *_gpus(hardware, gpus), *_findings(found)]
    return "".join(f"{line}\n" for line in lines)


def check(report: Report, path: str) -> str:
    """What has changed since a report was made."""
    verdict = report.verdict or "none: it is a part of a report"
    still = f"{one_line(path)} is still true; its verdict: {verdict}"
    lines = [*_findings(report.findings or ())] or [still]
    return "".join(f"{line}\n" for line in lines)


def said(value: Any) -> str:
    """A value of the report, or why there is none."""
    why = getattr(value, "unavailable", None)
    return one_line(value) if why is None else f"unavailable ({one_line(why)})"


def _host(host: Host | Any) -> Iterator[str]:
    if not hasattr(host, "cpus"):
        yield f"host: {said(host)}"
        return
    yield f"host: {said(host.hostname)}, Linux {said(host.kernel)}, container: {said(host.container)}"
    yield (
        f"  CPUs: {said(host.cpus.affinity)} usable of {said(host.cpus.online)}, "
        f"quota {said(host.cpus.cgroup_quota)}"
    )
    yield (
        f"  memory: {said(host.memory.available_mib)} MiB available of {said(host.memory.total_mib)}, "
        f"limit {said(host.memory.cgroup_limit_mib)}"
    )
    yield f"  /dev/shm: {said(host.shm.free_mib)} MiB free of {said(host.shm.total_mib)}"
    yield f"  open files: {said(host.limits.nofile_soft)}, at most {said(host.limits.nofile_hard)}"
    yield (
        f"  disk of {one_line(host.disk.path)}: {said(host.disk.free_gib)} GiB free of "
        f"{said(host.disk.total_gib)}"
    )


def _gpus(hardware: Any, gpus: Sequence[GpuFacts]) -> Iterator[str]:
    if not hasattr(hardware, "gpus"):
        yield f"GPUs: {said(hardware)}"
        return
    yield f"GPUs: {len(gpus)}, driver {said(hardware.driver_version)}"
    for gpu in gpus:
        why = f": {'; '.join(map(one_line, gpu.reasons))}" if gpu.reasons else ""
        yield (
            f"  {gpu.index}  {said(gpu.name)}, {said(gpu.memory_total_mib)} MiB, "
            f"compute capability {said(gpu.compute_capability)}, {gpu.state}{why}"
        )


def _plan(plan: Plan | None) -> Iterator[str]:
    if plan is None:
        return
    yield f"free GPUs: {said(plan.gpus_free)}"
    if not isinstance(plan.gpus_free, int):
        yield "which 2D-CP meshes fit cannot be told"
        return
    if plan.chosen is None:
        yield "no 2D-CP mesh fits: the smallest takes 4 GPUs"
        return
    for config in plan.configs:
        mark = "  <- chosen" if config == plan.chosen else ""
        yield (
            f"  cp {config.cp0}x{config.cp1}, dp {config.dp}: {config.world_size} ranks, "
            f"integration {config.integration}{mark}"
        )
    yield f"copies of the chosen mesh that fit at once: {said(plan.slots)}"


def _findings(findings: Iterable[FindingFacts]) -> Iterator[str]:
    for number, finding in enumerate(findings):
        if number == 0:
            yield "findings:"
        yield f"  {finding.severity} {one_line(finding.id)}: {one_line(finding.what)}"
        if finding.severity != "info":
            yield f"      got {one_line(finding.got)}; expected {one_line(finding.expected)}"
            yield f"      {one_line(finding.remedy)}"

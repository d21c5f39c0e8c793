"""Pieces of Markdown: tables, items of lists, values and the reasons why there are none. Pure."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any

from .. import report
from . import words
from .markup import Markdown
from .markup import cell
from .markup import code
from .markup import prose


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Markdown:
    """A table whose cells are Markdown already, or words of ours."""
    lines = [head, ["---"] * len(head), *rows]
    return Markdown("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))


def safe(text: str) -> Markdown:
    """Words of ours and Markdown, put together by one who knows that all of it is safe."""
    return Markdown(text)


def items(*found: str) -> Markdown:
    """Items of a list, or paragraphs of lines, one below the other."""
    return Markdown("\n".join(found))


def is_missing(value: object) -> bool:
    """Whether the report says why there is no value."""
    return isinstance(value, report.Unavailable)


def why_not(value: Any) -> Markdown:
    """Why there is no value."""
    return safe(f"unavailable: {prose(value.unavailable)}")


def value_of(value: Any, show: Callable[[Any], object]) -> Markdown:
    """The value as it is to be shown, or why there is none."""
    return why_not(value) if is_missing(value) else Markdown(show(value))


def in_cell(value: object) -> Markdown:
    """A value of others in a cell of a table, or why there is none."""
    return value_of(value, cell)


def said(value: object) -> Markdown:
    """A value of others outside of tables, or why there is none."""
    return value_of(value, code)


def gib(value: object) -> Markdown:
    """A size."""
    return value_of(value, lambda gib: f"{gib:.1f} GiB")


def yes_no(value: object) -> Markdown:
    """A truth, or why it could not be told."""
    return value_of(value, lambda yes: "yes" if yes else "no")


def consistent(value: bool) -> str:
    """Whether hardware, driver, torch and model fit."""
    return "consistent" if value else "**not consistent**: see below"


def command_behind(command: str) -> str:
    """A command behind the sentence that it belongs to."""
    return f": {code(command)}" if command else ""


def nccl(facts: Any) -> str:
    """NCCL as compiled against and as loaded."""
    return f"compiled {in_cell(facts.compiled)}, loaded {in_cell(facts.loaded)} from {in_cell(facts.path)}"


def backends(found: dict[str, bool]) -> str:
    """The backends of torch.distributed."""
    return ", ".join(f"{cell(name)} {'yes' if there else 'no'}" for name, there in found.items())


def kernels_run(found: Sequence[report.GpuKernels]) -> str:
    """What was run on each GPU, and whether it was right."""

    def one(facts: report.GpuKernels) -> str:
        right = value_of(facts.right, lambda yes: "right" if yes else f"**wrong**: {prose(facts.error)}")
        return f"{cell(facts.uuid)}: {', '.join(map(cell, facts.kernels))} {right}"

    return "; ".join(map(one, found)) or "none"


def evidence(check: report.Check, name: str) -> Markdown:
    """One entry of the evidence; a list as its members, a list of shapes as their sizes."""
    value = check.evidence.get(name)
    if value is None:
        return Markdown("none")
    if isinstance(value, list):
        members = ["x".join(map(str, one)) if isinstance(one, list) else str(one) for one in value]
        return cell(", ".join(members), limit=160) if members else Markdown("none")
    return cell(value, limit=160)


def finding_items(found: Iterable[report.FindingFacts]) -> Markdown:
    """Findings as items of a list."""
    return items(
        *(
            f"- {one.severity} {code(one.id)}: {prose(one.what)}: got {prose(one.got)}; "
            f"expected {prose(one.expected)}. Remedy: {prose(one.remedy)}{command_behind(one.command)}"
            for one in found
        )
    )


def unpassed_item(group: Sequence[report.Check]) -> str:
    """Checks that say the same, as one item of a list."""
    first = group[0]
    ids = ", ".join(code(check.id) for check in group)
    run = f" in run {code(first.run)}" if first.run else ""
    return f"- **{first.outcome}** {ids}{run}: {prose(first.reason)}. Remedy: {prose(first.remedy)}"


def hang_items(hang: report.Hang | None) -> list[str]:
    """A hang and its culprits as items of a list."""
    if hang is None:
        return []
    waiting = f"; waiting: {', '.join(map(str, hang.waiting_ranks))}" if hang.waiting_ranks else ""
    waiting += f"; lost to it: {', '.join(hang.victims)}" if hang.victims else ""
    title = words.hang_title(hang).lower()
    found = [f"- **{title}** {code(hang.kind)} {prose(words.where(hang))}{waiting}"]
    for one in hang.culprits:
        asked = f"got {said(one.got)}, expected {said(one.expected)}"
        found.append(f"  - rank {one.rank}: {code(one.kind)}{words.place(one, code)}: {asked}")
    if not hang.culprits:
        found.append("  - no rank is to blame by what was recorded")
        found += [
            f"  - ranks {', '.join(map(str, side.ranks))} entered {prose(side.entered)}"
            for side in hang.sides
        ]
    found += [f"  - rank {prose(rank)} raised {said(text)}" for rank, text in hang.raised.items()]
    if hang.remedy:
        found.append(f"  - remedy: {prose(hang.remedy)}")
    return found


def blocking_item(one: report.Blocking) -> str:
    """What blocks, with the questions to the user, as an item of a list."""
    remedy = f"{prose(one.remedy)}{command_behind(one.command)}"
    found = [f"- **blocks** {code(one.id)}: {prose(one.what)}. Remedy: {remedy}"]
    for asked in one.needs_from_user:
        option = f" ({code(asked.option)}, such as {code(asked.example)})"
        found.append(
            f"  - needed from you for a SLURM job, {code(asked.key)}: {prose(asked.question)}{option}"
        )
    return "\n".join(found)


def resources(host: report.Host) -> Iterator[tuple[str, str]]:
    """Rows on CPUs, memory and limits."""
    cpus, memory, shm, limits = host.cpus, host.memory, host.shm, host.limits
    stale = value_of(shm.stale_segments, len)
    usable, quota = in_cell(cpus.affinity), in_cell(cpus.cgroup_quota)
    yield "CPUs", f"{usable} usable of {in_cell(cpus.online)}, quota {quota}"
    available, limit = in_cell(memory.available_mib), in_cell(memory.cgroup_limit_mib)
    yield "memory, MiB", f"{available} available of {in_cell(memory.total_mib)}, limit {limit}"
    yield (
        "/dev/shm, MiB",
        f"{in_cell(shm.free_mib)} free of {in_cell(shm.total_mib)}, stale segments: {stale}",
    )
    yield "open files", f"{in_cell(limits.nofile_soft)} soft, {in_cell(limits.nofile_hard)} hard"
    soft, hard = in_cell(limits.memlock_soft_kib), in_cell(limits.memlock_hard_kib)
    yield "locked memory, KiB", f"{soft} soft, {hard} hard"

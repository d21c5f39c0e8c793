"""The parts of a report as pieces of Markdown, for the template to put in order. Pure."""

from __future__ import annotations

import re
from typing import Any

from .. import report
from . import block
from . import words
from .markup import Markdown
from .markup import cell
from .markup import code
from .markup import prose
from .pieces import backends
from .pieces import blocking_item
from .pieces import command_behind
from .pieces import consistent
from .pieces import evidence
from .pieces import finding_items
from .pieces import gib
from .pieces import hang_items
from .pieces import in_cell
from .pieces import is_missing
from .pieces import items
from .pieces import kernels_run
from .pieces import nccl
from .pieces import resources
from .pieces import safe
from .pieces import said
from .pieces import table
from .pieces import unpassed_item
from .pieces import value_of
from .pieces import why_not
from .pieces import yes_no

NOT_MADE = report.Unavailable(unavailable="this report does not hold it")
RECOMMENDED_DISK_GIB = 150
KEPT_RUNS = 20
"""How many of the folders that runs make for themselves are kept."""
_OF_ITS_OWN = re.compile(r"runs(-\d+)?/\d{8}-\d{6}-[a-z0-9_]{8}/")
_KEPT = (
    f"They are gone after {KEPT_RUNS} more runs there; copy what you need, or name a folder of your own with "
    "`--run-dir`."
)


class View:
    """A report, section by section."""

    def __init__(self, made: report.Report) -> None:
        self._made = made

    # ------------------------------------------------------------------------------ Verdict, Launch

    @property
    def verdict(self) -> Markdown:
        """The verdict with its scope, in a sentence each."""
        verdict, scope = self._made.verdict, self._made.scope
        return safe(f"**{verdict or 'no verdict'}**: {words.meaning(verdict)}. Scope: {words.SCOPES[scope]}.")

    @property
    def why(self) -> Markdown:
        """The checks that did not pass, the hang, and what blocks, with remedies and questions."""
        checks = [unpassed_item(group) for group in words.alike(self._made.checks or ())]
        return items(*checks, *hang_items(self._made.hang), *map(blocking_item, self._made.blocking or ()))

    @property
    def warnings(self) -> Markdown:
        """The warnings, wherever in the report they stand."""
        return finding_items([one for one in words.findings(self._made) if one.severity == "warning"])

    @property
    def next(self) -> Markdown:
        """What to do next, in order."""
        steps = self._made.next or ()
        return items(*(f"1. {prose(one.why)}{command_behind(one.command)}" for one in steps))

    @property
    def standing(self) -> Markdown:
        """Whether exactly the mesh of the recipe is proven, rehearsed or not proven."""
        recipe = self.recipe
        if recipe is None:
            return why_not(self._made.recipe or NOT_MADE)
        standing = words.standing(self._made, recipe)
        ends = {
            "proven": "on GPUs",
            "rehearsed": "on the CPU, and nothing is proven about GPUs",
            "passed on GPUs, not proven": "its checks passed; what keeps it from being proven is "
            "under Verdict",
            "not proven": "this recipe has not been seen to work",
        }
        return safe(f"Exactly this mesh, {words.mesh(recipe.mesh)}, is **{standing}**: {ends[standing]}.")

    @property
    def recipe(self) -> report.Recipe | None:
        """The recipe, where there is one."""
        made = self._made.recipe
        return made if isinstance(made, report.Recipe) else None

    @property
    def launch_block(self) -> Markdown:
        """The lines of bash that launch."""
        return safe(block.launch(self.recipe)) if self.recipe is not None else Markdown()

    @property
    def spawn_block(self) -> Markdown:
        """The program that starts ranks by torch.multiprocessing.spawn."""
        text = self.recipe.commands.get("spawn", "") if self.recipe is not None else ""
        return safe(block.unbroken(text).rstrip("\n"))

    @property
    def sandbox(self) -> Markdown:
        """What a sandbox around the ranks would have to allow."""
        made = self.recipe.sandbox if self.recipe is not None else NOT_MADE
        if isinstance(made, report.Unavailable):
            return why_not(made)
        blocked = ", ".join(code(one) for one in made.blocked) or "nothing that was tried"
        needed = value_of(made.needed, lambda yes: "must run outside of it" if yes else "can run inside it")
        return safe(f"blocked: {blocked}; ranks: {needed}. {prose(made.how)}")

    # ------------------------------------------------------------------- Hardware, Topology, plan

    @property
    def host(self) -> Markdown:
        """The machine without its GPUs."""
        host = self._made.host or NOT_MADE
        if isinstance(host, report.Unavailable):
            return safe(f"Host: {why_not(host)}.")
        rows = [
            ("host", f"{in_cell(host.hostname)}, kernel {in_cell(host.kernel)}"),
            ("container", f"{in_cell(host.container)}, WSL: {yes_no(host.wsl)}"),
            *resources(host),
        ]
        return table(("what", "value"), rows)

    @property
    def driver(self) -> Markdown:
        """The driver's version."""
        hardware = self._hardware
        return why_not(hardware) if is_missing(hardware) else said(hardware.driver_version)

    @property
    def gpus(self) -> Markdown:
        """Every GPU that the driver shows."""
        hardware = self._hardware
        if is_missing(hardware):
            return Markdown()
        head = (
            "GPU",
            "model",
            "UUID",
            "capability",
            "memory used / total, MiB",
            "NUMA",
            "PCI",
            "MIG",
            "state",
        )
        rows = [
            (
                Markdown(gpu.index),
                in_cell(gpu.name),
                in_cell(gpu.uuid),
                in_cell(gpu.compute_capability),
                f"{in_cell(gpu.memory_used_mib)} / {in_cell(gpu.memory_total_mib)}",
                in_cell(gpu.numa_node),
                in_cell(gpu.pci_bus_id),
                yes_no(gpu.mig),
                ": ".join([gpu.state, *(["; ".join(map(prose, gpu.reasons))] if gpu.reasons else [])]),
            )
            for gpu in hardware.gpus
        ]
        return table(head, rows) if rows else Markdown("The driver shows no GPU.")

    @property
    def hardware_findings(self) -> Markdown:
        """What was noticed about the GPUs."""
        return Markdown() if is_missing(self._hardware) else finding_items(self._hardware.findings)

    @property
    def topology(self) -> Markdown:
        """How the GPUs are linked."""
        hardware = self._hardware
        facts = hardware if is_missing(hardware) else hardware.topology
        if isinstance(facts, report.Unavailable):
            return why_not(facts)
        numa = ", ".join(f"GPU {code(gpu)}: {node}" for gpu, node in facts.numa.items()) or "not told"
        nics = ", ".join(map(code, facts.nics)) or "none seen"
        links = table(("pair", "link"), [(cell(pair), cell(link)) for pair, link in facts.links.items()])
        head = f"By {prose(facts.source)}. NUMA nodes: {numa}. Network cards: {nics}."
        return safe(f"{head}\n\n{links}" if facts.links else f"{head} No pair of GPUs to link.")

    @property
    def configurations(self) -> Markdown:
        """Which meshes the free GPUs can test."""
        plan = self._made.plan
        if plan is None:
            return why_not(NOT_MADE)
        chosen = "none: 2D CP needs 4 GPUs or more" if plan.chosen is None else words.mesh(plan.chosen)
        slots = f"Copies of it that fit at once: {said(plan.slots)}."
        head = f"Free GPUs: {said(plan.gpus_free)}. Chosen: {chosen}. {slots}"
        rows = [(f"{one.cp0}x{one.cp1}", one.dp, one.world_size, one.integration) for one in plan.configs]
        made = table(("cp0 x cp1", "dp", "world size", "integration"), rows)
        return safe(f"{head}\n\n{made}" if rows else head)

    # --------------------------------------------------------------------- Software, prerequisites

    @property
    def software(self) -> Markdown:
        """The target interpreter, its torch and NCCL."""
        made = self._made.software
        if made is None:
            return why_not(NOT_MADE)
        rows = [
            ("interpreter", f"{cell(made.python)}, Python {in_cell(made.python_version)}"),
            ("torch", f"{in_cell(made.torch)} in {in_cell(made.torch_path)}"),
            ("CUDA build", in_cell(made.cuda_build)),
            ("CUDA of the driver", in_cell(made.cuda_driver)),
            ("ROCm build", in_cell(made.hip_build)),
            ("GPU architectures", value_of(made.arch_list, lambda found: ", ".join(map(cell, found)))),
            ("NCCL", value_of(made.nccl, nccl)),
            ("backends", value_of(made.backends, backends)),
            ("kernels run", value_of(made.kernels, kernels_run)),
        ]
        return table(("what", "value"), rows)

    @property
    def models(self) -> Markdown:
        """The user's models that were tried."""
        models = self._made.software.models if self._made.software is not None else ()
        rows = [
            (
                cell(one.name),
                yes_no(one.imported),
                in_cell(one.distribution),
                ", ".join(map(cell, one.requires)) or "nothing declared",
                prose(one.error) or "none",
            )
            for one in models
        ]
        return table(("model", "imported", "distribution", "requires", "error"), rows) if rows else Markdown()

    @property
    def prerequisites(self) -> Markdown:
        """What was found of the resources, beside what is recommended."""
        host, software = self._made.host, self._made.software
        disk = host.disk if isinstance(host, report.Host) else None
        driver = in_cell(self._hardware.driver_version) if not is_missing(self._hardware) else self.driver
        build = in_cell(software.cuda_build) if software is not None else why_not(NOT_MADE)
        supports = in_cell(software.cuda_driver) if software is not None else why_not(NOT_MADE)
        fits = software.consistency if software is not None else NOT_MADE
        whole = value_of(fits, lambda found: value_of(found.consistent, consistent))
        free = f"{gib(disk.free_gib)} free of {gib(disk.total_gib)} at {cell(disk.path)}" if disk else None
        rows = [
            ("disk", free or why_not(NOT_MADE), f"{RECOMMENDED_DISK_GIB} GiB free are recommended"),
            ("NVIDIA driver", driver, "one that supports the CUDA of torch"),
            ("CUDA of the driver", supports, f"not older than that of torch: {build}"),
            ("hardware, driver, torch and model", whole, "consistent"),
        ]
        return table(("what", "found", "expected"), rows)

    @property
    def prerequisite_findings(self) -> Markdown:
        """What was noticed about the host and about the software's consistency."""
        host, software = self._made.host, self._made.software
        fits = software.consistency if software is not None else None
        return finding_items([*getattr(host, "findings", ()), *getattr(fits, "findings", ())])

    # ------------------------------------------------------------------- Proof, Hardening, the rest

    @property
    def runs(self) -> Markdown:
        """The runs that were made."""
        rows = [
            (
                cell(run.id),
                run.role,
                words.mesh(run.mesh),
                run.device,
                in_cell(run.backend),
                in_cell(run.nccl),
            )
            for run in self._made.runs or ()
        ]
        head = ("run", "role", "mesh", "device", "backend", "NCCL")
        return table(head, rows) if rows else Markdown("No run was made.")

    @property
    def checks(self) -> Markdown:
        """What each check said, and for which sizes."""
        rows = [
            (
                cell(check.id),
                cell(check.run),
                check.outcome,
                len(check.ranks),
                evidence(check, "repetitions"),
                evidence(check, "comparisons"),
                evidence(check, "dtypes"),
                evidence(check, "shapes"),
                f"{check.seconds:.3f}",
            )
            for check in self._made.checks or ()
        ]
        head = (
            "check",
            "run",
            "outcome",
            "ranks",
            "repetitions",
            "comparisons",
            "dtypes",
            "shapes",
            "seconds",
        )
        return table(head, rows) if rows else Markdown("No check was made.")

    @property
    def proof_findings(self) -> Markdown:
        """What was noticed during the run."""
        return finding_items(self._made.findings or ())

    @property
    def hardening(self) -> Markdown:
        """What keeps a run from hanging in silence."""
        if self.recipe is None:
            return self.standing
        rows = [(prose(one.setting), cell(one.value), prose(one.reason)) for one in self.recipe.guards]
        return table(("setting", "value", "reason"), rows)

    @property
    def logs(self) -> Markdown:
        """Files that the run left, and for how long, where later runs remove them."""
        logs = self._made.logs or ()
        if not logs:
            return Markdown("No run left any.")
        rows = [(prose(one.what), cell(one.path), in_cell(one.bytes)) for one in logs]
        shown = table(("what", "path", "bytes"), rows)
        removed = any(_OF_ITS_OWN.search(one.path) for one in logs)
        return Markdown(f"{shown}\n\n{_KEPT}") if removed else shown

    @property
    def provenance(self) -> Markdown:
        """When, where and by what this was written."""
        host = self._made.host
        made = self._made.software.files if self._made.software is not None else NOT_MADE
        files = value_of(made, lambda found: ", ".join(cell(one.path) for one in found) or "none")
        ids = host if isinstance(host, report.Host) else None
        rows = [
            ("written", f"{cell(self._made.created)} by cpinfra {cell(self._made.tool.version)}"),
            ("machine", in_cell(ids.machine_id) if ids else why_not(NOT_MADE)),
            ("boot", in_cell(ids.boot_id) if ids else why_not(NOT_MADE)),
            ("files that decide whether it still holds", files),
        ]
        return table(("what", "value"), rows)

    @property
    def _hardware(self) -> Any:
        return self._made.hardware or NOT_MADE

"""Reports for tests: whole and valid, with neutral facts, to be changed section by section."""

from __future__ import annotations

from typing import Any
from typing import Literal

from cpinfra import report
from cpinfra.record import next_steps
from cpinfra.record.recipe import Launch
from cpinfra.record.recipe import recipe
from cpinfra.record.summary import summary

SEED = (
    "collective.all_reduce",
    "collective.all_gather",
    "collective.reduce_scatter",
    "p2p.ring",
    "dtensor.roundtrip",
)
UUIDS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(8))
PYTHON = "/home/you/envs/model/bin/python"


def missing(why: str) -> report.Unavailable:
    """In place of a value that could not be had."""
    return report.Unavailable(unavailable=why)


def mesh(dp: int = 1, side: int = 2) -> report.MeshFacts:
    """A square mesh."""
    return report.MeshFacts(dp=dp, cp0=side, cp1=side, world_size=dp * side * side)


def launch(**changes: Any) -> Launch:
    """What the recipe of a rehearsal is made of."""
    facts: dict[str, Any] = {
        "interpreter": PYTHON,
        "workdir": "/home/you/project",
        "dp": 1,
        "cp0": 2,
        "cp1": 2,
        "device": "cpu",
        "env": {
            "CUDA_VISIBLE_DEVICES": "",
            "NCCL_DEBUG": "WARN",
            "PYTHONWARNINGS": "",
            "OMP_NUM_THREADS": "1",
        },
        "proven": False,
        "torch": "2.13.0",
        "run_words": "rehearsed over gloo",
    }
    return Launch(**{**facts, **changes})


def host() -> report.Host:
    """A machine without its GPUs."""
    return report.Host(
        hostname="node-1",
        machine_id="00000000000000000000000000000001",
        boot_id="00000000-0000-0000-0000-000000000002",
        kernel="6.8.0",
        container="none",
        wsl=False,
        cpus=report.Cpus(affinity=16, cgroup_quota="unlimited", online=32),
        memory=report.Memory(total_mib=131072, available_mib=120000, cgroup_limit_mib="unlimited"),
        shm=report.Shm(total_mib=65536, free_mib=65000, stale_segments=[]),
        limits=report.Limits(
            nofile_soft=1024, nofile_hard=1048576, memlock_soft_kib="unlimited", memlock_hard_kib="unlimited"
        ),
        disk=report.Disk(path="/home/you/project", free_gib=80.5, total_gib=500.0),
        findings=[
            report.FindingFacts(
                id="disk-small",
                severity="warning",
                what="little disk is free",
                got="80.5 GiB",
                expected="150 GiB",
                remedy="free some, or name another folder with --workdir",
            )
        ],
    )


def gpu(index: int, **changes: Any) -> report.GpuFacts:
    """A free GPU."""
    facts: dict[str, Any] = {
        "index": index,
        "uuid": UUIDS[index],
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "memory_total_mib": 143771,
        "memory_used_mib": 0,
        "state": "free",
        "reasons": [],
        "numa_node": index // 4,
        "pci_bus_id": f"00000000:{index:02X}:00.0",
        "mig": False,
    }
    return report.GpuFacts(**{**facts, **changes})


def hardware(num_gpus: int) -> report.Hardware:
    """So many free GPUs, each linked to each."""
    pairs = [f"{i}-{j}" for i in range(num_gpus) for j in range(i + 1, num_gpus)]
    return report.Hardware(
        driver_version="580.159.04",
        gpus=[gpu(index) for index in range(num_gpus)],
        topology=report.Topology(
            source="NVML",
            links=dict.fromkeys(pairs, "NV18"),
            numa={str(index): index // 4 for index in range(num_gpus)},
            nics=["mlx5_0"],
            pairs=pairs,
        ),
        findings=[],
    )


def software(*, cuda: bool) -> report.Software:
    """A torch for GPUs, or one without CUDA."""
    none = missing("this torch was built without CUDA")
    nccl = report.Nccl(
        compiled="2.28.9", loaded="2.28.9", path="/home/you/envs/model/lib/libnccl.so.2", sha256="0" * 64
    )
    kernels = [report.GpuKernels(uuid=UUIDS[0], right=True, kernels=["matmul", "add"], error="", seconds=0.8)]
    return report.Software(
        python=PYTHON,
        python_version="3.12.3",
        torch="2.13.0+cu130" if cuda else "2.13.0+cpu",
        torch_path="/home/you/envs/model/lib/python3.12/site-packages/torch",
        cuda_build="13.0" if cuda else none,
        hip_build=missing("this torch was built without ROCm"),
        cuda_driver="13.0" if cuda else missing("no driver answered"),
        arch_list=["sm_90", "sm_100"] if cuda else none,
        nccl=nccl if cuda else missing("this torch was built without NCCL"),
        backends={"gloo": True, "nccl": cuda},
        kernels=kernels if cuda else missing("there is no GPU"),
        files=[
            report.FileIdentity(
                what="torch", path="/home/you/envs/model/torch/version.py", bytes=300, modified_ns=1
            )
        ],
        models=[
            report.Model(
                name="boltz",
                imported=True,
                error="",
                path="/home/you/boltz/__init__.py",
                distribution=missing("no distribution provides it"),
                requires=[],
                seconds=4.5,
            )
        ],
        consistency=report.Consistency(consistent=True, findings=[]),
    )


def plan(num_gpus: int) -> report.Plan:
    """What so many free GPUs can test."""
    side_2 = [mesh(dp=num_gpus // 4)] if num_gpus >= 4 else []
    configs = [
        report.PlanConfig(**one.model_dump(), integration="full" if num_gpus >= 8 else "limited")
        for one in side_2
    ]
    return report.Plan(
        gpus_free=num_gpus, configs=configs, chosen=configs[0] if configs else None, slots=len(configs)
    )


def run(role: str = "main", *, device: str = "cpu", dp: int = 1) -> report.Run:
    """A run of a square mesh, whose id is its role."""
    return report.Run.model_validate(
        {
            "id": role,
            "role": role,
            "mesh": mesh(dp),
            "device": device,
            "backend": "gloo" if device == "cpu" else "nccl",
            "nccl": "2.28.9" if device == "cuda" else missing("the run used gloo"),
        }
    )


def check(name: str, outcome: str = "pass", **changes: Any) -> report.Check:
    """A check of the main run with 4 ranks; one that did not pass has words of its own."""
    passed = outcome == "pass"
    evidence: dict[str, Any] = {
        "repetitions": 48,
        "comparisons": 960,
        "dtypes": ["int64", "bfloat16"],
        "shapes": [[69], [2049, 3]],
    }
    facts: dict[str, Any] = {
        "id": name,
        "tier": "smoke",
        "run": "main",
        "outcome": outcome,
        "reason": "" if passed else f"{name}: rank 2 got another chunk",
        "remedy": "" if passed else "run it again with NCCL_DEBUG=INFO",
        "ranks": [0, 1, 2, 3],
        "seconds": 0.125,
        "evidence": evidence if outcome in ("pass", "fail") else {},
    }
    return report.Check(**{**facts, **changes})


def hang() -> report.Hang:
    """Rank 1 did not enter what others wait in, and rank 3 raised for a reason of its own."""
    culprit = report.Culprit(
        rank=1,
        kind="never-entered",
        operation="all_reduce",
        group="world",
        site="train.py:12",
        expected="all_reduce of int64 [69]",
        got=missing("it entered nothing"),
    )
    return report.Hang(
        check="p2p.ring",
        kind="never-entered",
        culprit_ranks=[1],
        culprits=[culprit],
        waiting_ranks=[0, 2],
        raised={"3": "ValueError: x | `y`"},
        stacks={"1": 'File "train.py", line 12'},
        seconds_to_verdict=1.5,
    )


def too_few_gpus() -> report.Blocking:
    """What blocks where there are not enough GPUs; the questions come with `made`."""
    return report.Blocking(
        id="no-gpu",
        what="2D context parallelism cannot be proven here: got 0 usable GPUs, expected 4 or more",
        remedy="run it on a machine that has them",
        command="",
        needs_from_user=[],
    )


def made(**sections: Any) -> report.Report:
    """A report of a rehearsal with these sections changed; questions, next steps and summary follow."""
    whole: dict[str, Any] = {
        "verdict": "rehearsed",
        "scope": "rehearsal",
        "host": host(),
        "hardware": missing("not asked: --rehearse"),
        "plan": report.Plan(
            gpus_free=missing("not asked"), configs=[], chosen=None, slots=missing("not asked")
        ),
        "software": software(cuda=False),
        "runs": [run()],
        "checks": [check(name) for name in SEED],
        "hang": None,
        "recipe": recipe(launch()),
        "findings": [],
        "blocking": [],
        "logs": [
            report.Log(what="what happened, in order", path="/home/you/project/events.jsonl", bytes=1705)
        ],
        **sections,
    }
    first = stamped(**whole)
    asked = next_steps.questions(first)
    blocking = [one.model_copy(update={"needs_from_user": asked}) for one in whole["blocking"]]
    second = stamped(**{**whole, "blocking": blocking, "next": next_steps.next_steps(first)})
    return stamped(**{**whole, "blocking": blocking, "next": second.next, "summary": summary(second)})


def stamped(**sections: Any) -> report.Report:
    """A report of a fixed time and version, so that it can be compared."""
    return report.Report(
        schema=report.SCHEMA,
        created="2026-11-30T12:00:00Z",
        tool=report.Tool(version="0.0.0"),
        **sections,
    )


Kind = Literal["rehearsal", "not-proven", "failed", "proven"]
KINDS: tuple[Kind, ...] = ("rehearsal", "not-proven", "failed", "proven")


def of(kind: Kind) -> report.Report:
    """One report of each kind that a build comes to."""
    if kind == "not-proven":
        return _not_proven()
    if kind == "failed":
        return _failed()
    return _proven() if kind == "proven" else made()


def _not_proven() -> report.Report:
    return made(
        verdict="not-proven",
        hardware=missing("no driver, and no NVIDIA GPU on the PCI bus"),
        plan=plan(0),
        runs=[run("rehearsal")],
        checks=[check(name, run="rehearsal") for name in SEED],
        blocking=[too_few_gpus()],
    )


def _failed() -> report.Report:
    broken = {"p2p.ring": "fail", "dtensor.roundtrip": "unknown"}
    return made(
        verdict="failed",
        scope=None,
        hardware=hardware(4),
        plan=plan(4),
        software=software(cuda=True),
        runs=[run(device="cuda")],
        checks=[check(name, broken.get(name, "pass")) for name in SEED],
        hang=hang(),
        recipe=recipe(cuda_launch(4)),
        blocking=[],
    )


def _proven() -> report.Report:
    return made(
        verdict="proven",
        scope="full",
        hardware=hardware(8),
        plan=plan(8),
        software=software(cuda=True),
        runs=[run(device="cuda", dp=2)],
        checks=[check(name, ranks=list(range(8))) for name in SEED],
        recipe=recipe(cuda_launch(8, dp=2, proven=True, run_words="proven over NCCL")),
    )


def cuda_launch(num_gpus: int, **changes: Any) -> Launch:
    """What the recipe of a run on GPUs is made of."""
    facts: dict[str, Any] = {"device": "cuda", "gpu_uuids": UUIDS[:num_gpus], "run_words": "run over NCCL"}
    return launch(**{**facts, **changes})

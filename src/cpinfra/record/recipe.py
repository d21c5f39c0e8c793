"""The launch recipe: how to run another program as the ranks of a proof were run. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import Literal

from .. import report
from . import guards
from . import shell
from . import spawn

NCCL_TIMEOUT_S = 300
GLOO_TIMEOUT_S = 120
RUN_TIMEOUT_S = 3600
KILL_AFTER_S = 60
"""torchrun ends its ranks within 30 s of a SIGTERM: killed before that it would leave them behind."""

_HARDENING = {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "PYTHONFAULTHANDLER": "1",
    "RES_OPTIONS": "timeout:1 attempts:1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
_OUR_WORKERS_ONLY = {
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "PYTHONINSPECT",
    "PYTHONWARNINGS",
    "TORCHINDUCTOR_COMPILE_THREADS",
}
"""In force in the ranks so that they can be forked; a program that starts them anew needs none of these."""
_OURS = "CPINFRA_"
_LABELS = ("NCCL_VERSION", "CUDA_VERSION", "TORCH_CUDA_ARCH_LIST")
"""What images are labelled with; no library reads them at run time, and they may be untrue."""
_ALLOCATOR = "expandable_segments:True"
_ALLOCATOR_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_RENAMED_IN = (2, 10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What a recipe is made of."""

    interpreter: str
    """Absolute path of the target interpreter."""
    workdir: str | None
    """Folder for logs and results; None where none was found."""
    dp: int
    cp0: int
    cp1: int
    device: Literal["cpu", "cuda"]
    env: Mapping[str, str]
    """The variables that were in force in the ranks, ours among them."""
    proven: bool
    """Whether exactly this mesh was proven on GPUs."""
    pythonpath: tuple[str, ...] = ()
    """Folders that PYTHONPATH must hold, in order."""
    gpu_uuids: tuple[str, ...] = ()
    """The GPUs in rank order; none on the CPU."""
    torch: str | None = None
    """torch's version; None where it is not known."""
    nccl_library: str | None = None
    """NCCL library to load in place of torch's own."""
    run_words: str = ""
    """What was run with it, in a few words that follow "These ranks: "."""
    sandbox: report.Sandbox | report.Unavailable = field(
        default_factory=lambda: report.Unavailable(unavailable="it was not looked at")
    )

    def __post_init__(self) -> None:
        if not self.interpreter.startswith("/"):
            raise ValueError(f"interpreter {self.interpreter!r}: must be an absolute path")
        if min(self.dp, self.cp0, self.cp1) < 1:
            raise ValueError(f"dp {self.dp}, cp {self.cp0}x{self.cp1}: every axis needs at least one rank")

    @property
    def world_size(self) -> int:
        """How many ranks it starts."""
        return self.dp * self.cp0 * self.cp1


def recipe(launch: Launch) -> report.Recipe:
    """The recipe of a launch: environment, command lines, timeouts, and the guards that it rests on."""
    env = environment(launch)
    timeouts = {"nccl": NCCL_TIMEOUT_S, "gloo": GLOO_TIMEOUT_S, "run": RUN_TIMEOUT_S}
    library = _library(launch.nccl_library)
    preload = library if isinstance(library, str) else None
    mesh = {"dp": launch.dp, "cp0": launch.cp0, "cp1": launch.cp1, "world_size": launch.world_size}
    return report.Recipe(
        interpreter=report.plain(launch.interpreter),
        pythonpath=_pythonpath(launch.pythonpath),
        workdir=_text(launch.workdir, "no folder was given for it"),
        mesh=report.MeshFacts.model_validate(mesh),
        proven=launch.proven,
        env=report.plain(env),
        commands={
            "torchrun": torchrun(launch.interpreter, launch.world_size, preload),
            "spawn": spawn.program(_program(launch, env, timeouts)),
        },
        timeouts=timeouts,
        guards=guards.of(env, timeouts, device=launch.device, kill_after_s=KILL_AFTER_S, preload=preload),
        nccl_library=library,
        sandbox=launch.sandbox,
    )


def environment(launch: Launch) -> dict[str, str]:
    """The variables of a launch by name: what was in force, but for what only our own worker needs."""
    kept = {
        name: value
        for name, value in launch.env.items()
        if name not in _OUR_WORKERS_ONLY and name not in _LABELS and not name.startswith(_OURS)
    }
    made = {**_HARDENING, **kept}
    if launch.device == "cuda":
        made["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if launch.gpu_uuids:
            made["CUDA_VISIBLE_DEVICES"] = ",".join(launch.gpu_uuids)
        if not any(name in made for name in _ALLOCATOR_NAMES):
            made[allocator_variable(launch.torch)] = _ALLOCATOR
    return dict(sorted(made.items()))


def allocator_variable(torch: str | None) -> str:
    """The name under which this torch surely reads the settings of its CUDA allocator.

    Every version to 2.13 reads PYTORCH_CUDA_ALLOC_CONF, and 2.9 calls it deprecated in favour of
    PYTORCH_ALLOC_CONF, from which it yet does not take expandable_segments (pytorch#183387).
    """
    numbers = re.match(r"(\d+)\.(\d+)", torch or "", flags=re.ASCII)
    known = numbers is not None and (int(numbers[1]), int(numbers[2])) >= _RENAMED_IN
    return "PYTORCH_ALLOC_CONF" if known else "PYTORCH_CUDA_ALLOC_CONF"


def torchrun(interpreter: str, world_size: int, preload: str | None) -> str:
    """One line of bash that runs "$PROGRAM" with the caller's arguments and keeps its output in "$LOG".

    Its exit code is the program's; 124 when the time was over.
    """
    limit = f"timeout --foreground --kill-after={KILL_AFTER_S} ${{TIMEOUT_S:-{RUN_TIMEOUT_S}}}"
    loaded = f" env LD_PRELOAD={shell.word(preload)}" if preload is not None else ""
    agent = f"{shell.word(interpreter)} -m torch.distributed.run --standalone --nproc-per-node={world_size}"
    return f'set -o pipefail; {limit}{loaded} {agent} "$PROGRAM" "$@" 2>&1 | tee -i "$LOG"'


def _program(launch: Launch, env: Mapping[str, str], timeouts: Mapping[str, int]) -> spawn.Program:
    return spawn.Program(
        mesh=(launch.dp, launch.cp0, launch.cp1),
        device=launch.device,
        env=env,
        pythonpath=launch.pythonpath,
        nccl_library=launch.nccl_library,
        timeouts=timeouts,
        words=launch.run_words,
        interpreter=launch.interpreter,
    )


def _pythonpath(folders: tuple[str, ...]) -> list[str] | report.Unavailable:
    split = [folder for folder in folders if ":" in folder]
    if split:
        why = f"PYTHONPATH cannot name a folder with a colon in its path: {split[0]}"
        return report.Unavailable(unavailable=report.plain(why))
    return [report.plain(folder) for folder in folders]


def _library(path: str | None) -> str | report.Unavailable:
    if path is None:
        return report.Unavailable(unavailable="torch loads its own")
    if re.search(r"[\s:]", path) or not path.startswith("/"):
        why = f"LD_PRELOAD takes absolute paths without blanks and colons, got {path}: link it from one"
        return report.Unavailable(unavailable=report.plain(why))
    return str(report.plain(path))


def _text(value: str | None, why: str) -> str | report.Unavailable:
    return report.plain(value) if value is not None else report.Unavailable(unavailable=why)

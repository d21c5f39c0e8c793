"""What it means when something around the ranks goes wrong: one finding for each way."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence

from ..outcome import BUG_REMEDY
from ..outcome import Finding
from ..outcome import Severity
from ..worker.channel import Message
from ..worker.exceptions import DEVICE_REMEDY
from .findings import BUG
from .findings import blocking
from .findings import cannot_fork
from .findings import last_words
from .findings import quoted
from .findings import unwritten_remedy
from .idle_faults import Idle
from .slowness import Slow

_TEARDOWN = "read the traceback; the data was right, but a program that ends like this exits with an error"


def refused(python: str, world: int, message: Message) -> Finding:
    """The zygote did not fork a generation; its message says why."""
    if message["event"] == "no-room":
        return no_room(python, message["text"])
    if message["event"] == "cannot-fork":
        return cannot_fork(python, f"{message['text']} after {message['forked']} of {world} ranks")
    return fork_unsafe(python, message["unsafe"])


def after_all_checks(python: str, troubles: Mapping[int, Message]) -> list[Finding]:
    """What ranks raised when every check had been answered: of each kind the first."""
    by_kind: dict[str, Message] = {}
    for _, trouble in sorted(troubles.items()):
        by_kind.setdefault(trouble["kind"], trouble)
    return [after_all(python, kind, trouble) for kind, trouble in by_kind.items()]


def fork_unsafe(python: str, reasons: list[str]) -> Finding:
    """Something that torch imports started what a fork must not copy."""
    return blocking(
        "fork-unsafe",
        python,
        what="ranks cannot be forked safely from this interpreter after importing torch",
        got="; ".join(reasons),
        expected="one thread and no CUDA context after `import torch`",
        remedy="find what starts it at import: a .pth file, sitecustomize, an autoload backend "
        "(TORCH_DEVICE_BACKEND_AUTOLOAD=0)",
    )


def no_room(python: str, text: str) -> Finding:
    """No folder of this node could hold the ledger."""
    return blocking(
        "node-folder-no-room",
        python,
        what="no folder of this node can hold the ranks' ledger",
        got=text,
        expected="a few MiB in /dev/shm, TMPDIR or /tmp",
        remedy="free some space, or point TMPDIR to a local folder with room",
    )


def zygote_stopped(python: str, state: str) -> Finding:
    """The process that forks ranks does not run, so nothing that its ranks do can be told from it."""
    return blocking(
        "zygote-stopped",
        python,
        what="the process that forks and ends the ranks is stopped",
        got=f"process state {state} past its budget or that of its ranks",
        expected="that it runs until the proof is done",
        remedy="find who stopped it: a debugger, a scheduler, a person; then run again",
    )


def after_all(python: str, kind: str, trouble: Message) -> Finding:
    """Ranks raised when every check had been answered: while they closed their groups."""
    words = {
        "door": ("teardown-raised", "torch raised while ranks closed their groups", _TEARDOWN),
        "device": ("device-trouble", "a device failed when the checks were through", DEVICE_REMEDY),
        "ours": (BUG, "cpinfra itself failed in a rank, when the checks were through", BUG_REMEDY),
    }
    name, what, remedy = words[kind]
    text = f"rank {trouble['rank']}: {trouble['type']}: {trouble['text']}"
    return blocking(
        name,
        python,
        what=what,
        got=f"{text}\n{trouble.get('traceback', '')}".strip(),
        expected="that ranks leave their groups and end",
        remedy=remedy,
    )


def processes_left(python: str, pids: Collection[int]) -> Finding:
    """Processes of ours that SIGKILL does not end."""
    return blocking(
        "processes-left",
        python,
        what="processes of this run do not die",
        got=f"pids {', '.join(map(str, pids))} live after SIGKILL",
        expected="none",
        remedy="the kernel holds them, most often in a driver or on a dead file system: look at "
        "/proc/PID/stack and dmesg; only a restart of the machine may end them",
    )


def zygote_died(python: str, how: str, output: str) -> Finding:
    """The process that forks ranks ended on its own."""
    return blocking(
        "zygote-died",
        python,
        what="the process that forks the ranks died",
        got=f"{how}; its last output: {last_words(output)}",
        expected="that it lives until the proof is done",
        remedy="find who ended it: the out-of-memory killer (dmesg), a job's limit, a person; then run again",
    )


def worker_bug(python: str, text: str) -> Finding:
    """An exception of ours in the zygote."""
    return blocking(
        BUG,
        python,
        what="cpinfra itself failed in the target interpreter",
        got=quoted(text),
        expected="no error of ours",
        remedy=BUG_REMEDY,
    )


def kernels_hung(python: str, uuids: Collection[str]) -> Finding:
    """A GPU did not come back from kernels: nothing more is asked of any."""
    return blocking(
        "kernels-hung",
        python,
        what="a GPU does not come back from the first kernels, so no ranks were put on any",
        got=", ".join(uuids),
        expected="that kernels end within a minute",
        remedy="look at dmesg (Xid) and nvidia-smi -q; reset or drain that GPU, or leave it out of "
        "CUDA_VISIBLE_DEVICES",
    )


def not_fired(faults: Sequence[Idle]) -> Finding:
    """Planted faults did not act."""
    return Finding(
        id="fault-not-fired",
        severity=Severity.BLOCKING,
        what="a planted fault never acted, so nothing is known of whether it would be caught",
        got="; ".join(fault.why for fault in faults),
        expected="that it changes what the chosen checks do or receive",
        remedy="; ".join(dict.fromkeys(fault.remedy for fault in faults)),
    )


def not_caught(missed: Mapping[str, Collection[str]]) -> Finding:
    """Planted faults changed something, and checks that must catch them passed.

    Args:
        missed: fault -> checks in which it acted and that did not fail; none for a fault in a rank's conduct.
    """
    told = [f"{fault} in {', '.join(sorted(checks)) or 'every check'}" for fault, checks in missed.items()]
    return Finding(
        id="fault-not-caught",
        severity=Severity.BLOCKING,
        what="a planted fault acted, and was not noticed where it must be",
        got="; ".join(told),
        expected="that each check fails that declares this twin",
        remedy="a check that misses it proves nothing: mend it, or choose those that declare this twin",
    )


def logs_incomplete(troubles: Collection[str], errnos: Collection[int]) -> Finding:
    """The run folder could not be written to the end.

    Args:
        troubles: what could not be written, and why.
        errnos: the errors that the folder gave.
    """
    return Finding(
        id="run-folder-full",
        severity=Severity.WARNING,
        what="parts of the run folder could not be written",
        got="; ".join(troubles),
        expected="room for logs and the report, until the run is over",
        remedy=unwritten_remedy(errnos),
    )


def slow(slows: Collection[Slow]) -> Finding:
    """Ranks kept others waiting, and came before the deadline."""
    return Finding(
        id="slow",
        severity=Severity.WARNING,
        what="a rank kept others waiting in an operation for longer than it takes",
        got="; ".join(_late(one) for one in slows),
        expected="that all ranks come to an operation at about the same time",
        remedy="look at what that rank does before it: its CPU (taskset, cgroup), data loading, a GPU that "
        "throttles",
    )


def _late(slow: Slow) -> str:
    """Who came late to what, by how much, and what is usual."""
    usual = "none had completed before"
    if slow.usual_s is not None:
        usual = f"the slowest before took {slow.usual_s:.3f} s"
    where = f"{slow.operation} on {slow.group} at {slow.site} in {slow.check}"
    waited = f"others waited {slow.others_waited_s:.2f} s ({usual})"
    return f"rank {slow.rank} came {slow.late_s:.2f} s late to {where}: {waited}"

"""What torch's flight recorder holds of a rank, for code that does not go through the door.

torch itself keeps the last operations that a process has entered. One thread of the rank sleeps in a read of
a named pipe; when a byte comes it writes them to a file. That goes on while the main thread is blocked in an
operation, where torch has given up the interpreter's lock.

What torch records (2.13 on gloo and 2.11 on NCCL, measured): gloo's collectives, but neither its send nor
its recv; NCCL's collectives and both, in a recorder of its own. Only the pickled form of a recorder holds
Python frames. Who the members of a group are, gloo does not record, and entries outlive their group: a
program that leaves the group "0" and joins anew has operations of both under that name. So the groups that
live are asked for both.

Standard library only: the supervisor takes the names of the files from here. torch is used where the program
has imported it.

Used by launch, once programs are launched.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ENTRIES_MAX = 2000
_RENAMED_IN = (2, 8)
_DUMPS = ("_dump_nccl_trace", "_dump_fr_trace")
"""One recorder each: NCCL's is its own, the other one is gloo's. A CPU build has only the second."""
_KEPT = (
    "process_group",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "is_p2p",
    "profiling_name",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "output_dtypes",
    "time_created_ns",
    "state",
    "retired",
)
"""Of an entry, under torch's names."""
_COMPILER = "torch._inductor"
_OUTER = ("<frozen", "typing_extensions.py", "contextlib.py")
"""Begin or end of the files of frames that stand between torch's own: of its decorators."""


def environment(torch_version: str) -> dict[str, str]:
    """What must be in the environment before torch makes its first group.

    torch 2.8 has renamed the variable, and since then warns of the old name.
    """
    version = re.match(r"(\d+)\.(\d+)", torch_version)
    is_old = version is not None and (int(version[1]), int(version[2])) < _RENAMED_IN
    name = "TORCH_NCCL_TRACE_BUFFER_SIZE" if is_old else "TORCH_FR_BUFFER_SIZE"
    return {name: str(_ENTRIES_MAX)}


def request_path(folder: Path, rank: int) -> Path:
    """The named pipe in which a byte asks a rank for its dump."""
    return folder / f"rank-{rank}.flight"


def dump_path(folder: Path, rank: int) -> Path:
    """The dump, JSON, there as a whole or not at all."""
    return folder / f"rank-{rank}.flight.json"


class Unavailable(RuntimeError):
    """This torch cannot tell what was entered; the text says why."""


class Reporter:
    """The thread of one rank that answers requests. Start it in the rank itself, after the fork.

    Nothing that goes wrong in it reaches the program: it is said in the dump, or there is none.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._started_ns = time.monotonic_ns()

    def start(self) -> None:
        """Begin to answer; without effect where no pipe can be made in the folder."""
        try:
            path = request_path(self._folder, self._rank)
            path.unlink(missing_ok=True)  # of an earlier rank of this number
            os.mkfifo(path, 0o600)
            # For writing too: the read then waits for bytes, and sees no end when a writer closes.
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        threading.Thread(target=self._serve, args=(fd,), name="cpinfra-flight", daemon=True).start()

    def _serve(self, fd: int) -> None:
        while os.read(fd, 4096):
            try:
                self._write(self._text())
            except OSError:
                pass  # a full disk, or the folder is gone: whoever asked waits no longer than a bound

    def _text(self) -> str:
        """The dump as JSON."""
        facts = {
            "rank": self._rank,
            "started_ns": self._started_ns,
            "clock_offset_ns": time.time_ns() - time.monotonic_ns(),
        }
        try:
            return json.dumps({**facts, **_recorded(sys.modules.get("torch"))})
        except Exception as error:  # noqa: BLE001 - torch's private names may do anything, the program goes on
            why = str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
            return json.dumps({**facts, "unavailable": why})

    def _write(self, text: str) -> None:
        path = dump_path(self._folder, self._rank)
        whole = path.with_suffix(".new")
        whole.write_text(text)
        whole.replace(path)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """A process group that lives."""

    ranks: tuple[int, ...]
    """Global ranks, in the order of the group's own."""
    entered: Mapping[str, int]
    """Backend -> how many operations it counts: gloo all, NCCL the collectives."""


def _recorded(torch: Any) -> dict[str, Any]:
    """The groups that live, and what has been entered on them.

    Raises:
        Unavailable: nothing was recorded, and it is not that there was nothing.
    """
    if torch is None:
        return {"groups": {}, "recorded": 0, "entries": []}
    entries = _entries(torch)
    groups = _groups(torch.distributed)  # after the entries: it counts at least those
    if not entries and any(sum(group.entered.values()) for group in groups.values()):
        raise Unavailable(f"torch {torch.__version__} has recorded none of the operations that were entered")
    root = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120 - as torch's frames spell it
    return {
        "groups": {name: list(group.ranks) for name, group in groups.items()},
        "recorded": len(entries),
        "entries": [_slim(entry, root) for entry in _of_living(entries, groups)],
    }


def _entries(torch: Any) -> list[dict[str, Any]]:
    """All that torch's recorders hold, in the order of entering.

    Raises:
        Unavailable: this torch has no recorder.
    """
    core = torch._C._distributed_c10d
    dumps = [getattr(core, name) for name in _DUMPS if hasattr(core, name)]
    if not dumps:
        raise Unavailable(f"torch {torch.__version__} has none of {', '.join(_DUMPS)}")
    # For frames torch would import its compiler, if nobody has: 800 modules, a second or two (measured).
    with_frames = _COMPILER in sys.modules
    entries = []
    for dump in dumps:
        made_here = dump(True, with_frames, False)
        entries += pickle.loads(made_here).get("entries", ())  # noqa: S301 - by this process's own torch
    return sorted(entries, key=lambda entry: int(entry["time_created_ns"]))


def _groups(dist: Any) -> dict[str, _Group]:
    """The groups that this rank is in now, by torch's name."""
    if not dist.is_available() or not dist.is_initialized():
        return {}
    world = dist.distributed_c10d._world
    return {
        str(world.pg_names[group]): _Group(
            ranks=tuple(dist.get_process_group_ranks(group)), entered=_entered(group)
        )
        for group in list(world.pg_map)
    }


def _entered(group: Any) -> dict[str, int]:
    backends = [group._get_backend(device) for device in group._device_types]
    return {backend.name(): int(backend._get_sequence_number_for_group()) for backend in backends}


def _of_living(entries: Iterable[dict[str, Any]], groups: Mapping[str, _Group]) -> list[dict[str, Any]]:
    """Entries of the groups that live, without those of earlier groups of the same name."""
    by_group: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in entries:
        by_group.setdefault((entry["process_group"][0], _backend(entry)), []).append(entry)
    kept = []
    for (name, backend), found in by_group.items():
        newest = [entry for entry in found if entry["pg_id"] == found[-1]["pg_id"]]
        entered = groups[name].entered.get(backend, 0) if name in groups else -1
        # One that has entered less than was recorded is another group, which has recorded nothing yet.
        if all(entry["collective_seq_id"] <= entered for entry in newest):
            kept += newest
    return sorted(kept, key=lambda entry: int(entry["time_created_ns"]))


def _backend(entry: Mapping[str, Any]) -> str:
    return str(entry["profiling_name"]).partition(":")[0]


def _slim(entry: Mapping[str, Any], root: str) -> dict[str, Any]:
    """What the supervisor reads of an entry."""
    site = next((text for frame in entry.get("frames", ()) if (text := _site(frame, root))), "")
    return {**{name: entry.get(name) for name in _KEPT}, "site": site}


def _site(frame: Mapping[str, Any], root: str) -> str:
    """`file:line` of a frame outside of torch; empty for the others."""
    file = str(frame["filename"])
    is_torch = file.startswith((root, *_OUTER)) or file.endswith(_OUTER)
    return "" if is_torch else f"{file}:{frame['line']}"

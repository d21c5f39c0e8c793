"""Reads what faulthandler prints: the frames of a thread, the innermost first."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath

_HEADER = re.compile(r"^(?:Current thread|Thread) .*\(most recent call first\):$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
_END = re.compile(r"(?: in (?:<module>|_run_module_as_main)|^  \.\.\.)\n\Z", re.MULTILINE)
"""faulthandler prints line by line, the main thread last; of more than 100 frames it leaves the outer out."""
_PACKAGES = ("site-packages", "dist-packages")
_WORKER = "_cpinfra_worker"
_DOOR = ("comm.py", "calls.py")
"""Files of the door: where one of them is innermost, the rank is in C code of torch that it has called, or
waits for a GPU."""
_ASKED = "ledger.py"
"""File of the worker that the door asks meanwhile whether it still has to wait."""
_STARTERS = ("check_run.py", "rank.py", "zygote.py")
"""Files of the worker from which a check's own code is called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One frame of Python code."""

    file: PurePath
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self._place}:{self.line} in {self.name}"

    @property
    def _place(self) -> PurePath | str:
        """Of what is installed where in its package; of any other file its name."""
        for folder in _PACKAGES:
            if folder in self.file.parts:
                return PurePath(*self.file.parts[self.file.parts.index(folder) + 1 :])
        return PurePath(*self.file.parts[-2:]) if self.file.name == "__init__.py" else self.file.name

    @property
    def is_of_door(self) -> bool:
        """Whether it is in the door of our worker."""
        return self.file.name in _DOOR and _WORKER in self.file.parts

    @property
    def is_of_ledger(self) -> bool:
        """Whether it is in the ledger of our worker."""
        return self.file.name == _ASKED and _WORKER in self.file.parts


def frames(text: str) -> list[Frame]:
    """The frames of the thread that the text is about.

    That is the one called current, or the last of the others: faulthandler prints the main thread last.
    """
    headers = list(_HEADER.finditer(text))
    if not headers:
        return []
    current = [header for header in headers if header[0].startswith("Current")]
    start = (current or headers)[-1].end()
    end = next((header.start() for header in headers if header.start() > start), len(text))
    return [
        Frame(file=PurePath(str(found["file"])), line=found["line"], name=found["name"])
        for found in _FRAME.finditer(text, start, end)
    ]


def is_whole(text: str) -> bool:
    """Whether it has been written to its end, which is the main thread's outermost frame."""
    return _END.search(text) is not None


def place(text: str, depth: int = 3) -> str:
    """The innermost frames in one line; empty when the text holds no stack."""
    return ", called from ".join(map(str, frames(text)[:depth]))


def of_program(text: str) -> list[Frame]:
    """The frames without those at the outer end in which ranks are started and checks called."""
    found = frames(text)
    return list(takewhile(lambda frame: frame.file.name not in _STARTERS, found)) or found


def waits_for_peers(text: str, torch_path: str) -> bool | None:
    """Whether the main thread is inside of torch, where it waits for others; None where no stack is known.

    Inside of torch: a frame of its Python code is on the stack, or the door has called its C code, or waits
    for the GPU and asks the ledger meanwhile.

    Args:
        text: a stack.
        torch_path: the folder of the package.
    """
    found = frames(text)
    if not found or not torch_path:
        return None
    caller = next((frame for frame in found if not frame.is_of_ledger), found[0])
    return caller.is_of_door or any(frame.file.is_relative_to(torch_path) for frame in found)


def clustered(stacks: Mapping[int, str], *, whole: Collection[int]) -> dict[str, str]:
    """Ranks -> stack: those of `whole` each by itself and in full, of the others each distinct one once.

    Of others only the frames of the main thread are told, as far as they are those of a check, under a head
    such as `ranks 0,1,3: the same 6 frames`.
    """
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, text in sorted(stacks.items()):
        if rank not in whole:
            alike[tuple(map(str, of_program(text)))].append(rank)
    shown = {str(rank): stacks[rank] for rank in sorted(whole) if rank in stacks}
    return {**shown, **{_names(ranks): _told(ranks, found) for found, ranks in alike.items()}}


def _names(ranks: list[int]) -> str:
    return ",".join(map(str, ranks))


def _told(ranks: list[int], found: tuple[str, ...]) -> str:
    """The head and the frames of a stack that several ranks share."""
    if not found:
        return "no frames of Python code"
    count = f"{len(found)} frame{'s' if len(found) > 1 else ''}"
    head = f"ranks {_names(ranks)}: the same {count}" if len(ranks) > 1 else f"rank {ranks[0]}: {count}"
    return "\n".join([head, *(f"  {frame}" for frame in found)])

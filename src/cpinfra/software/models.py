"""Whether the user's models import in the target interpreter: each in a process of its own, some at once.

Standard library only.
"""

from __future__ import annotations

import json
import keyword
import select
import signal
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any

from ..worker.signals import RANK_BUG_EXIT
from ..worker.signals import RESULT_LOST_EXIT
from .model_process import Ended
from .model_process import ImportProcess

AT_ONCE_MAX = 4
TIMEOUT_S = 300.0
IDLE_S = 30.0
_TICK_S = 0.05


class How(str, Enum):
    """How an import ended."""

    IMPORTED = "imported"
    RAISED = "raised"
    ENDED = "ended"
    """The interpreter was gone before the import was through."""
    HUNG = "hung"
    """Nothing of it computed or read for a while."""
    OVERDUE = "overdue"
    """It was still at work when its time was over."""
    LOST = "lost"
    """The module closed the descriptor on which the answer is given."""
    CUT_SHORT = "cut-short"
    """It was not tried, or not waited for."""
    UNTOLD = "untold"
    """The interpreter could not be asked, or gave no answer that could be read."""
    BUG = "bug"
    """Our own code failed in the target interpreter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelResult:
    """What became of the import of one model, and what its distribution declares."""

    name: str
    imported: bool | None
    """None where it could not be told."""
    error: str
    """Why not, in one sentence; empty if it was imported."""
    traceback: str
    """Of what the import raised, or where it hung; its end, empty where there is none."""
    path: str | None
    """The module's file, or the folders of a namespace joined by colons."""
    distribution: str | None
    """The one that provides the module; None where none says so."""
    version: str | None
    requires_dist: tuple[str, ...]
    requires_python: str | None
    installed: Mapping[str, str | None]
    """Version by canonical name (PEP 503), of all distributions; None where the metadata say none."""
    markers: Mapping[str, str]
    """The interpreter's marker environment (PEP 508); empty where it could not be asked."""
    seconds: float | None
    """Duration of the import; until its end where it did not come back."""
    python: str = ""
    """The target interpreter."""
    how: How | None = None
    missing: str | None = None
    """The module that was not found, where that is why."""
    found: bool | None = None
    """Whether the top-level module is on the path; None where that could not be told."""
    locations: Mapping[str, str] = field(default_factory=dict)
    """Folder of metadata by canonical name."""
    duplicates: Mapping[str, tuple[tuple[str | None, str], ...]] = field(default_factory=dict)
    """(version, folder) of each, by canonical name, of what is installed more than once; the first counts."""
    others: tuple[str, ...] = ()
    """Further distributions that provide the same module."""
    shadowed: str | None = None
    """Folder of the distribution's metadata, where the module was found elsewhere."""
    output: str = ""
    """What the import printed, without the middle of much."""
    left: tuple[int, ...] = ()
    """pids that it started and that could not be ended."""


def mistakes(names: Iterable[str]) -> list[str]:
    """What is wrong with names of models, one sentence for each that cannot be a module; empty if nothing."""
    expected = "expected the dotted name of a module, such as boltz.model"
    return [f"--model {name!r}: {trouble}; {expected}" for name in names if (trouble := _trouble(name))]


def _trouble(name: str) -> str:
    if not name:
        return "no name"
    if name == "__main__":
        return "is the program itself in every interpreter"
    for part in name.split("."):
        if not part:
            return "begins or ends with a dot, or has two in a row"
        if not part.isidentifier():
            return f"{part!r} is no identifier"
        if keyword.iskeyword(part):
            return f"{part!r} is a keyword of Python"
    return ""


class ModelImports:
    """Imports models without waiting for them, some at once; ends all that they started."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        python: str,
        worker: Path,
        environment: Mapping[str, str],
        timeout_s: float = TIMEOUT_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """Nothing is started yet.

        Args:
            names: dotted names; one that comes twice is imported once.
            python: the target interpreter.
            worker: the worker's zip.
            environment: the user's own; PYTHONPATH is taken as it is.
            timeout_s: bound of one import that makes progress, in seconds.
            idle_s: without any progress it hangs after so many seconds.

        Raises:
            ValueError: a name cannot be a module's; see `mistakes`.
        """
        wrong = mistakes(names)
        if wrong:
            raise ValueError("; ".join(wrong))
        self._python = python
        self._options: dict[str, Any] = {
            "python": python,
            "worker": worker,
            "environment": dict(environment),
            "timeout_s": timeout_s,
            "idle_s": idle_s,
        }
        self._names = tuple(dict.fromkeys(names))
        self._waiting = list(self._names)
        self._running: dict[str, ImportProcess] = {}
        self._results: dict[str, ModelResult] = {}

    def __enter__(self) -> ModelImports:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start as many as may run at once; `poll` starts the others.

        The kernel ends an import with the thread that started it: call both from one that stays.
        """
        while self._waiting and len(self._running) < AT_ONCE_MAX:
            name = self._waiting.pop(0)
            try:
                self._running[name] = ImportProcess(name, **self._options)
            except OSError as error:
                why = f"the interpreter cannot be started: {error}"
                self._results[name] = _untold(name, self._python, How.UNTOLD, why)

    def poll(self) -> bool:
        """Look at those that run, without waiting; whether all are through."""
        for name, process in tuple(self._running.items()):
            ended = process.poll()
            if ended is not None:
                del self._running[name]
                self._results[name] = result_of(name, self._python, ended)
        self.start()
        return not self._running

    def wait(self, tick: Callable[[], None] | None = None) -> None:
        """Wait until all are through; each is bounded.

        Args:
            tick: called at every turn; may raise to interrupt.
        """
        self.start()
        while not self.poll():
            if tick is not None:
                tick()
            self._await_news()

    def close(self) -> None:
        """End all that run, with everything that they started; what has no result yet could not be told."""
        while self._running:
            name, process = self._running.popitem()
            self._results[name] = result_of(name, self._python, process.close())
        self._waiting.clear()

    def results(self) -> tuple[ModelResult, ...]:
        """One result for each name, in the order of the names; of one that is not through it says so."""
        why = "its import was not waited for"
        return tuple(
            self._results.get(name) or _untold(name, self._python, How.CUT_SHORT, why) for name in self._names
        )

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Those that run or have yet to be started, in the order of the names."""
        return tuple(name for name in self._names if name not in self._results)

    def _await_news(self) -> None:
        poller = select.poll()
        for process in self._running.values():
            for fd in process.readable_fds:
                poller.register(fd, select.POLLIN)
        poller.poll(_TICK_S * 1000)


def not_tried(names: Iterable[str], python: str) -> tuple[ModelResult, ...]:
    """Results of models whose import was not begun."""
    why = "its import was not begun"
    return tuple(_untold(name, python, How.CUT_SHORT, why) for name in dict.fromkeys(names))


def result_of(name: str, python: str, ended: Ended) -> ModelResult:
    """What the end of a process says of the import that was made in it."""
    try:
        answer, whole = _answer(ended.answer)
        facts = _facts(answer) if answer else {}
        verdict = _verdict(answer) if whole else _without_answer(ended, started=bool(answer))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"its answer cannot be read: {type(error).__name__}: {error}"
        return _untold(name, python, How.UNTOLD, why, output=ended.output, left=ended.left)
    nothing = _nothing(name, python)
    circumstances = {"output": ended.output, "left": ended.left}
    return ModelResult(**{**nothing, **facts, **circumstances, "seconds": ended.seconds, **verdict})


def _answer(data: bytes) -> tuple[dict[str, Any], bool]:
    """(What was answered, whether to its end): of one that was broken off, the first line is closed here.

    Raises:
        ValueError: it is not what the worker writes.
    """
    first, comma, rest = data.partition(b",\n")
    if comma and not rest:
        return json.loads(first + b"}"), False
    return (json.loads(data), True) if data else ({}, False)


def _facts(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the result that are known before the import."""
    best, *others = [one for one in answer["providers"] if one["holds"]] or answer["providers"] or [None]
    facts = {
        "path": answer["found_at"],
        "found": answer["found"],
        "installed": dict(answer["installed"]),
        "locations": dict(answer["locations"]),
        "markers": dict(answer["markers"]),
        "duplicates": {
            name: tuple((one["version"], one["location"]) for one in places)
            for name, places in answer["duplicates"].items()
        },
    }
    if best is None:
        return facts
    return {
        **facts,
        "distribution": best["name"],
        "version": best["version"],
        "requires_dist": tuple(best["requires_dist"]),
        "requires_python": best["requires_python"],
        "others": tuple(f"{one['name']} {one['version']}" for one in others),
        "shadowed": None if best["holds"] or answer["found_at"] is None else best["location"],
    }


def _verdict(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the result that an import tells which came back."""
    known: dict[str, Any] = {"seconds": float(answer["seconds"])}
    if answer["imported"] is True:
        return {**known, "imported": True, "how": How.IMPORTED, "path": answer["path"] or answer["found_at"]}
    error = answer["error"]
    known |= {"imported": False, "traceback": answer["traceback"], "missing": answer["missing"]}
    if answer["exit_code"] is not None:
        return {**known, "how": How.ENDED, "error": _ended_with(answer["exit_code"])}
    text = f"{error['type']}: {error['text']}" if error["text"] else error["type"]
    return {**known, "how": How.RAISED, "error": text}


def _without_answer(ended: Ended, *, started: bool) -> dict[str, Any]:
    """Fields of the result where the import did not come back.

    Args:
        ended: how its process ended.
        started: whether our code was through with what comes before the import.
    """
    how, error = _end_in_words(ended, started=started)
    told = started and how in (How.ENDED, How.HUNG)
    return {"imported": False if told else None, "how": how, "error": error, "traceback": ended.stack}


def _end_in_words(ended: Ended, *, started: bool) -> tuple[How, str]:
    if ended.why == "hung":
        seconds = f"{ended.seconds:.0f} s"
        return How.HUNG, f"it hangs: it neither computed nor read anything, and was ended after {seconds}"
    if ended.why == "overdue":
        return How.OVERDUE, f"it was still at work after {ended.seconds:.0f} s"
    if ended.returncode is None:
        return How.CUT_SHORT, "it was ended before its import was through"
    return _exit_in_words(ended.returncode, started=started)


def _exit_in_words(code: int, *, started: bool) -> tuple[How, str]:
    if code == RANK_BUG_EXIT:
        return How.BUG, "cpinfra's own code failed in the target interpreter"
    if not started:
        return How.UNTOLD, f"the interpreter ended by {_exit_text(code)} and did not answer"
    if code == RESULT_LOST_EXIT:
        return How.LOST, "the module closed descriptors that it had not opened, and with them the answer's"
    if code < 0:
        return How.ENDED, f"it was ended by {_exit_text(code)} before the import was through"
    return How.ENDED, _ended_with(code)


def _ended_with(code: int) -> str:
    return f"it ended the interpreter with exit code {code} before the import was through"


def _exit_text(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _nothing(name: str, python: str) -> dict[str, Any]:
    """Fields of a result of which nothing is known yet."""
    return {
        "name": name,
        "python": python,
        "imported": None,
        "error": "",
        "traceback": "",
        "path": None,
        "distribution": None,
        "version": None,
        "requires_dist": (),
        "requires_python": None,
        "installed": {},
        "markers": {},
        "seconds": None,
    }


def _untold(name: str, python: str, how: How, why: str, **circumstances: Any) -> ModelResult:
    return ModelResult(**{**_nothing(name, python), "how": how, "error": why, **circumstances})

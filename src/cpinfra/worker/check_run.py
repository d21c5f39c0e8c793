"""One check on one rank: runs its trials, judges what arrives, and turns whatever happens into an answer."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from typing import TypeVar

import torch
from torch import Tensor

from . import device
from .calls import Aborted
from .calls import DoorError
from .comm import Door
from .difference import Part
from .difference import explain
from .exceptions import DEVICE_REMEDY
from .exceptions import text_of
from .exceptions import traceback_of
from .oracle import same
from .registry import Check
from .trials import Trial
from .trials import TrialSpace

Item = TypeVar("Item")

_KEPT_MISMATCHES = 3

# What torch says of a dtype or an operation that a backend lacks, measured on gloo and read in c10d.
_NO_DTYPE = re.compile(
    r"invalid scalar type|unconvertible nccl type|data ?type is not supported"
    r"|unsupported (data ?type|dtype|scalar type)|not implemented for '",
    re.IGNORECASE,
)
_NO_REDUCTION = re.compile(r"unsupported reduce ?op|cannot use reduceop|unhandled reduceop", re.IGNORECASE)
_NO_OPERATION = re.compile(
    r"does not support|not (yet |currently )?(supported|implemented)|^unsupported", re.IGNORECASE
)
# "operation not supported" is also what CUDA says of a broken machine: never an absence.
_BROKEN = re.compile(
    r"nccl ?error|cuda (\w+ )?error|unhandled (cuda|system)|driver|connection|socket|time[d ]*out",
    re.IGNORECASE,
)

_WRONG_DATA = (
    "Do not train on this machine: its communication library, a link or device memory gave wrong data "
    "without an error. Repeat with `cpinfra prove --only {id}`; on GPUs look at the driver's log "
    "(`dmesg | grep -i -e xid -e nvrm`), set NCCL_DEBUG=INFO, and try NCCL_P2P_DISABLE=1, then another NCCL"
)
_TORCH_RAISED = (
    "Read the traceback in the check's evidence.errors in the report; repeat with "
    "`cpinfra prove --only {id}`, on GPUs under NCCL_DEBUG=INFO"
)
_NO_IMPORT = "Reinstall torch in that environment: a module that it needs cannot be imported"
_NO_RESULT = "Nothing was compared, so nothing is known; choose another backend, or a newer torch"


def _nothing_else() -> Iterable[tuple[str, Tensor]]:
    return ()


@dataclass(kw_only=True, slots=True)
class _Evidence:
    """What was tried and how much of it was compared."""

    trials: list[Trial] = field(default_factory=list)
    """Those in which something was compared."""
    absent: dict[str, str] = field(default_factory=dict)
    """dtype, form or reduction that this backend lacks -> torch's own words."""
    comparisons: int = 0
    elements: int = 0
    bytes_moved: int = 0
    """Of the results that operations moved to this rank, each of which was compared; what the transport
    carried for them is a matter of its algorithm.
    """
    wrong: int = 0
    """Comparisons that failed."""
    mismatches: list[str] = field(default_factory=list)
    """The first of them in words."""

    def as_json(self) -> dict[str, object]:
        return {
            "dtypes": _unique(trial.dtype for trial in self.trials),
            "absent": dict(self.absent),
            "shapes": [list(shape) for shape in _unique(trial.shape for trial in self.trials)],
            "forms": _unique(_form(trial) for trial in self.trials),
            "repetitions": len(self.trials),
            "trials": [
                " ".join([trial.dtype, _form(trial), *map(str, trial.shape)]) for trial in self.trials
            ],
            "comparisons": self.comparisons,
            "elements": self.elements,
            "bytes_moved": self.bytes_moved,
        }


@dataclass(kw_only=True, slots=True)
class CheckRun:
    """What a check's body sees: one check on one rank."""

    rank: int
    world: int
    dp: int
    cp0: int
    cp1: int
    device: torch.device
    backend: str
    door: Door
    check: Check
    salt: int
    _trial: Trial | None = None
    _calls_before: int = 0
    _evidence: _Evidence = field(default_factory=_Evidence)

    def compare(
        self,
        got: Tensor,
        expected: Tensor,
        *,
        what: str,
        hypotheses: Callable[[], Iterable[tuple[str, Tensor]]] = _nothing_else,
        describe: Callable[[float], str] = str,
    ) -> None:
        """Judge one tensor, bit by bit; a difference is kept in words and does not raise.

        Args:
            got: what arrived, on any device.
            expected: what must have arrived, on the CPU.
            what: names it in the message.
            hypotheses: what else could have arrived; asked only when something is wrong.
            describe: reads a single element (`Pattern.describe`).
        """

        def whole(arrived: Tensor) -> list[Part]:
            return [Part(name=what, belongs="", got=arrived, expected=expected, others=hypotheses)]

        self.compare_parts(got, expected, parts=whole, describe=describe)

    def compare_parts(
        self,
        got: Tensor,
        expected: Tensor,
        *,
        parts: Callable[[Tensor], list[Part]],
        describe: Callable[[float], str] = str,
    ) -> None:
        """Judge one tensor that consists of parts, so that a message names each part that is wrong.

        Args:
            got: what arrived, on any device.
            expected: what must have arrived, on the CPU.
            parts: cuts what arrived (given on the CPU) into parts; asked only when something is wrong.
            describe: reads a single element.
        """
        arrived = got.detach().cpu()
        evidence = self._evidence
        evidence.comparisons += 1
        evidence.elements += arrived.numel()
        evidence.bytes_moved += arrived.numel() * arrived.element_size()
        if same(arrived, expected):
            return
        evidence.wrong += 1
        if len(evidence.mismatches) < _KEPT_MISMATCHES:
            evidence.mismatches.append(self._in_words(arrived, expected, parts, describe))

    def _in_words(
        self,
        arrived: Tensor,
        expected: Tensor,
        parts: Callable[[Tensor], list[Part]],
        describe: Callable[[float], str],
    ) -> str:
        alike = arrived.shape == expected.shape
        whole = Part(name="the result", belongs="", got=arrived, expected=expected, others=_nothing_else)
        return f"{self._title()}: {explain(parts(arrived) if alike else [whole], describe)}"

    def _title(self) -> str:
        trial = self._trial
        if trial is None:
            return "outside any trial"
        reduction = f", {trial.reduction}" if trial.reduction else ""
        return f"{trial.dtype} {trial.shape}, form {trial.form}{reduction}, repetition {trial.repetition}"

    def try_all(self, on_trial: Callable[[Trial], None]) -> None:
        """Run every trial but those of a dtype, form or reduction found absent.

        Raises:
            DoorError: torch raised, and not to say that it lacks something.
        """
        self._calls_before = self.door.calls
        space = TrialSpace(world=self.world, cp0=self.cp0, cp1=self.cp1, backend=self.backend, salt=self.salt)
        for trial in self.check.trials(space):
            if not {trial.dtype, trial.form, trial.reduction} & set(self._evidence.absent):
                self._try(trial, on_trial)

    def _try(self, trial: Trial, on_trial: Callable[[Trial], None]) -> None:
        on_trial(trial)
        self._trial = trial
        compared = self._evidence.comparisons
        try:
            self.check.body(self, trial)
        except DoorError as error:
            missing = absence(error, trial)
            if not missing:
                raise
            self._evidence.absent[missing] = text_of(error.__cause__ or error)
        if self._evidence.comparisons > compared:
            self._evidence.trials.append(trial)

    def answer(self, started: float, outcome: str, reason: str = "", remedy: str = "") -> dict[str, object]:
        """The answer of this rank as JSON; `started` by the monotonic clock."""
        return {
            "check": self.check.id,
            "rank": self.rank,
            "outcome": outcome,
            "reason": reason,
            "remedy": remedy.format(id=self.check.id),
            "seconds": time.monotonic() - started,
            "broken": False,
            "bug": False,
            "error": None,
            "evidence": self._evidence.as_json(),
        }

    def judge(self, started: float) -> dict[str, object]:
        """The answer after all trials have run."""
        evidence = self._evidence
        if evidence.wrong:
            return self.answer(started, "fail", self._mismatch_text(), _WRONG_DATA)
        if evidence.comparisons and self.door.calls == self._calls_before:
            return self.answer(
                started, "unknown", "no operation was called: the check tests nothing", _NO_RESULT
            )
        if evidence.comparisons:
            return self.answer(started, "pass")
        if evidence.absent:
            lacks = "; ".join(f"{what}: {text}" for what, text in evidence.absent.items())
            return self.answer(started, "skip", f"measured: {self.backend} lacks {lacks}", _NO_RESULT)
        return self.answer(started, "unknown", "no trial compared anything", _NO_RESULT)

    def _mismatch_text(self) -> str:
        evidence = self._evidence
        more = evidence.wrong - len(evidence.mismatches)
        rest = [f"and {more} more"] if more else []
        head = f"{evidence.wrong} of {evidence.comparisons} comparisons differ"
        return " | ".join([head, *evidence.mismatches, *rest])


def run_check(run: CheckRun, on_trial: Callable[[Trial], None]) -> dict[str, object]:
    """Run one check on this rank and answer, whatever happens (see `CheckRun.answer` for the keys).

    Args:
        run: the check and its surroundings.
        on_trial: called before each trial.

    Raises:
        Aborted: the generation is being ended.
    """
    started = time.monotonic()
    obstacle = run.check.obstacle(world=run.world, cp0=run.cp0, cp1=run.cp1)
    if obstacle:
        return run.answer(started, "skip", obstacle.reason, obstacle.remedy)
    try:
        run.try_all(on_trial)
    except Aborted:
        raise
    except DoorError as error:
        text = f"{_type_of(error)} in {error.operation} ({error.site}): {text_of(error.__cause__ or error)}"
        if isinstance(error.__cause__, ImportError):  # its installation is broken, which says nothing of data
            return _broken(
                run.answer(started, "unknown", text, _NO_IMPORT), error, site=error.site, bug=False
            )
        return _broken(run.answer(started, "fail", text, _TORCH_RAISED), error, site=error.site, bug=False)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the one function from an exception to an outcome
        text = f"{type(error).__name__} in the code of {run.check.id}: {text_of(error)}"
        if device.is_at_fault(error):
            return _broken(run.answer(started, "unknown", text, DEVICE_REMEDY), error, site="", bug=False)
        # No remedy: the supervisor has one for all bugs.
        return _broken(run.answer(started, "unknown", text), error, site="", bug=True)
    return run.judge(started)


def _broken(answer: dict[str, object], error: BaseException, *, site: str, bug: bool) -> dict[str, object]:
    """The answer of a rank that left an operation or a body by an exception: its group cannot be used on."""
    cause = error.__cause__ if isinstance(error, DoorError) and error.__cause__ is not None else error
    told = {
        "type": type(cause).__name__,
        "text": text_of(cause),
        "traceback": traceback_of(error),
        "site": site,
    }
    return {**answer, "broken": True, "bug": bug, "error": told}


def absence(error: DoorError, trial: Trial) -> str:
    """Which of the trial's dtype, reduction or form this backend lacks; empty for any other failure."""
    text = text_of(error.__cause__ or error)
    if _BROKEN.search(text):
        return ""
    if _NO_DTYPE.search(text):
        return trial.dtype
    if _NO_REDUCTION.search(text):
        return trial.reduction
    if isinstance(error.__cause__, NotImplementedError) or _NO_OPERATION.search(text):
        return trial.form
    return ""


def _type_of(error: DoorError) -> str:
    return type(error.__cause__ or error).__name__


def _form(trial: Trial) -> str:
    """`tensor`; `tensor max` where something else than a sum is reduced."""
    return trial.form if trial.reduction in {"", "sum"} else f"{trial.form} {trial.reduction}"


def _unique(items: Iterable[Item]) -> list[Item]:
    """In the order of their first coming."""
    return list(dict.fromkeys(items))

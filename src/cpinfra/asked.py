"""What a user asks of `prove`, as written, and its reading: every mistake in it is found, not only the first.

Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .mesh import MAX_RANKS_CPU
from .mesh import MAX_RANKS_PER_GPU
from .mesh import UsageProblem
from .mesh import parse_cp
from .proof import faults as known_faults
from .proof.catalogue import TIERS

DEVICES = ("auto", "cpu", "cuda")
_MOST_S = 86_400
_MOST = 1 << 20  # more ranks than any machine takes; keeps the search for a mesh short

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProveRequest:
    """What was asked, as the user wrote it: messages quote it."""

    ranks: str | None = None
    cp: str | None = None
    dp: str | None = None
    device: str = "auto"
    python: str | None = None
    tier: str = "smoke"
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    inject: tuple[str, ...] = ()
    budget: str | None = None
    run_dir: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """The numbers and words of a request, read; None where nothing was said."""

    ranks: int | None
    cp: tuple[int, int] | None
    dp: int | None
    device: str
    tier: str
    budget_s: float | None
    run_dir: Path | None
    mesh_readable: bool
    """Whether ranks, cp and dp could be read, so that a mesh can be sought."""


class Mistakes:
    """Collects what is wrong with a request while the reading goes on."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def attempt(self, read: Callable[[], T]) -> T | None:
        """The value, or None with the mistakes kept."""
        try:
            return read()
        except UsageProblem as problem:
            self.messages += problem.messages
            return None

    def problem(self) -> UsageProblem:
        """All of them as one exception, each once."""
        return UsageProblem(dict.fromkeys(self.messages))


def read(request: ProveRequest, mistakes: Mistakes) -> Numbers:
    """Read each option by itself; what cannot be read is None and among the mistakes."""
    before = len(mistakes.messages)
    ranks = mistakes.attempt(lambda: _whole("--ranks", request.ranks))
    cp = mistakes.attempt(lambda: parse_cp(request.cp) if request.cp is not None else None)
    dp = mistakes.attempt(lambda: _whole("--dp", request.dp))
    mesh_readable = len(mistakes.messages) == before
    return Numbers(
        ranks=ranks,
        cp=cp,
        dp=dp,
        device=mistakes.attempt(lambda: _word("--device", request.device, DEVICES)) or "auto",
        tier=mistakes.attempt(lambda: _word("--tier", request.tier, TIERS)) or TIERS[0],
        budget_s=mistakes.attempt(lambda: _seconds("--budget", request.budget)),
        run_dir=mistakes.attempt(lambda: _folder("--run-dir", request.run_dir)),
        mesh_readable=mesh_readable,
    )


def check_faults(faults: tuple[str, ...], world: int | None) -> None:
    """Refuse faults that do not exist or do not fit `world` ranks (None: not known).

    Raises:
        UsageProblem: it names what exists.
    """
    messages = known_faults.mistakes(faults, world)
    if messages:
        raise UsageProblem(messages)


def _whole(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\s*[+-]?\d+\s*", text, flags=re.ASCII):
        raise UsageProblem([f"{option} {text!r}: expected a whole number of 1 or more"])
    number = int(text) if len(text) < 20 else _MOST + 1
    if number < 1:
        raise UsageProblem([f"{option} {number}: must be 1 or more"])
    if number > _MOST:
        limits = f"at most {MAX_RANKS_CPU} ranks run on CPU, {MAX_RANKS_PER_GPU} on a GPU"
        raise UsageProblem([f"{option} {text.strip()}: {limits}"])
    return number


def _seconds(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= _MOST_S:  # NaN is neither
        expected = f"expected a number of seconds above 0 and at most {_MOST_S}, such as 5"
        raise UsageProblem([f"{option} {text!r}: {expected}"])
    return seconds


def _word(option: str, text: str, valid: tuple[str, ...]) -> str:
    if text not in valid:
        raise UsageProblem([f"{option} {text!r}: valid are {', '.join(valid)}"])
    return text


def _folder(option: str, text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text).expanduser()
    if not text.strip() or "\0" in text:
        raise UsageProblem([f"{option} {text!r}: expected the path of a folder"])
    try:
        taken = path.exists() and not path.is_dir()
    except OSError as error:
        raise UsageProblem([f"{option} {text!r}: {error.strerror or error}"]) from error
    if taken:
        raise UsageProblem([f"{option} {text!r}: expected a folder, or a path where one can be made"])
    return path

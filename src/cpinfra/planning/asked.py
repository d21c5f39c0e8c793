"""What a user asks for, as written, and its reading: every mistake in it is found, not only the first.

Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import TypeVar

from ..mesh import MAX_RANKS_CPU
from ..mesh import MAX_RANKS_PER_GPU
from ..mesh import UsageProblem
from ..mesh import parse_cp
from ..proof import faults as known_faults
from ..proof.catalogue import TIERS
from ..software import models

DEVICES = ("auto", "cpu", "cuda")
SCOPES = ("limited", "full")
DOCS = "docs"
"""Where documents go if nothing else is said."""
_MOST_S = 86_400
_MOST = 1 << 20  # more ranks than any machine takes; keeps the search for a mesh short

_NO_SLURM = (
    "--slurm: submitting jobs is not there yet; until it is, fill in "
    "skills/build-infra/scripts/slurm_probe.sbatch, submit it with sbatch, and read its log; valid: leave "
    "--slurm out, on a node that has the GPUs"
)

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
    ranks_option: str = "--ranks"
    """What messages call the number of ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildRequest:
    """What was asked of `build`, as the user wrote it."""

    world: str | None = None
    cp: str | None = None
    dp: str | None = None
    local: bool = False
    slurm: bool = False
    rehearse: bool = False
    python: str | None = None
    model: tuple[str, ...] = ()
    workdir: str | None = None
    docs: str | None = None
    run_dir: str | None = None
    tier: str = "smoke"
    require: str | None = None

    @property
    def proof(self) -> ProveRequest:
        """What it asks to be proven."""
        return ProveRequest(
            ranks=self.world,
            cp=self.cp,
            dp=self.dp,
            device="cpu" if self.rehearse else "auto",
            python=self.python,
            tier=self.tier,
            run_dir=self.run_dir,
            ranks_option="WORLD",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SelfTestRequest:
    """What was asked of `selftest`, as the user wrote it."""

    ranks: str | None = None
    device: str = "auto"
    python: str | None = None
    only: tuple[str, ...] = ()
    fault: tuple[str, ...] = ()
    run_dir: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What only `build` is asked for, read."""

    rehearse: bool
    models: tuple[str, ...]
    workdir: Path | None
    """None: FOLD_CP_WORKDIR, else the current folder."""
    docs: Path
    require: str | None
    again: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values by option, by which another build is about the same interpreter, models and folders."""
    mesh: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Those by which it is about the same mesh; WORLD, which has no option, has the option ""."""
    same: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Those by which it makes the same runs as well."""


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
    ranks_option: str
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
    ranks = mistakes.attempt(lambda: _whole(request.ranks_option, request.ranks))
    cp = mistakes.attempt(lambda: parse_cp(request.cp) if request.cp is not None else None)
    dp = mistakes.attempt(lambda: _whole("--dp", request.dp))
    mesh_readable = len(mistakes.messages) == before
    return Numbers(
        ranks=ranks,
        cp=cp,
        dp=dp,
        device=mistakes.attempt(lambda: _word("--device", request.device, DEVICES)) or "auto",
        tier=mistakes.attempt(lambda: _word("--tier", request.tier, TIERS)) or TIERS[0],
        budget_s=mistakes.attempt(lambda: seconds("--budget", request.budget)),
        run_dir=mistakes.attempt(lambda: folder("--run-dir", request.run_dir)),
        ranks_option=request.ranks_option,
        mesh_readable=mesh_readable,
    )


def read_wishes(request: BuildRequest, mistakes: Mistakes) -> Wishes:
    """Read what only `build` has; what cannot be read is among the mistakes."""
    require = mistakes.attempt(lambda: _optional_word("--require", request.require, SCOPES))
    mistakes.messages += models.mistakes(request.model)
    if request.slurm:
        mistakes.messages.append(_NO_SLURM)
    if request.rehearse and require is not None:
        mistakes.messages.append(
            f"--require {require} with --rehearse: a rehearsal's scope is never more than `rehearsal`; "
            "leave out one of them"
        )
    if _same_folder(request.run_dir, request.docs):
        mistakes.messages.append(f"--docs {request.docs!r}: is --run-dir too; give them folders of their own")
    return Wishes(
        rehearse=request.rehearse,
        models=tuple(dict.fromkeys(request.model)),
        workdir=_attempted(mistakes, "--workdir", request.workdir),
        docs=_attempted(mistakes, "--docs", request.docs) or Path(DOCS),
        require=require,
        again=_again(request),
        mesh=_mesh(request),
        same={**_again(request), **_same_runs(request)},
    )


def _again(request: BuildRequest) -> dict[str, tuple[str, ...]]:
    """What was said of interpreter, models and folders, as it was said."""
    docs = request.docs if request.docs != DOCS else None
    said = {"--python": request.python, "--workdir": request.workdir, "--docs": docs}
    told = {option: (value,) for option, value in said.items() if value is not None}
    models = {"--model": tuple(dict.fromkeys(request.model))} if request.model else {}
    return {**told, **models}


def _same_folder(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return False
    return Path(one).absolute() == Path(other).absolute()


def _same_runs(request: BuildRequest) -> dict[str, tuple[str, ...]]:
    """What was said of the runs themselves, as it was said."""
    tier = request.tier if request.tier != BuildRequest().tier else None
    said = {"--tier": tier, "--require": request.require}
    told = {option: (value,) for option, value in said.items() if value is not None}
    return {**_mesh(request), **told, **({"--rehearse": ("",)} if request.rehearse else {})}


def _mesh(request: BuildRequest) -> dict[str, tuple[str, ...]]:
    """What was said of the mesh, as it was said."""
    said = {"": request.world, "--cp": request.cp, "--dp": request.dp}
    return {option: (value,) for option, value in said.items() if value is not None}


def _attempted(mistakes: Mistakes, option: str, text: str | None) -> Path | None:
    return mistakes.attempt(lambda: folder(option, text))


def check_faults(faults: tuple[str, ...], world: int | None) -> None:
    """Refuse faults that do not exist or do not fit `world` ranks (None: not known).

    Raises:
        UsageProblem: it names what exists.
    """
    messages = known_faults.mistakes(faults, world)
    if messages:
        raise UsageProblem(messages)


def twins(globs: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the faults that match; all where nothing was said.

    Raises:
        UsageProblem: a glob matches none; it names those there are.
    """
    there = ", ".join(known_faults.NAMES)
    lost = [glob for glob in globs if not known_faults.matching([glob])]
    if lost:
        raise UsageProblem([f"--fault {glob!r}: matches no fault; there are: {there}" for glob in lost])
    return known_faults.matching(globs)


def count(option: str, text: str) -> int:
    """A number of things, none of them included.

    Raises:
        UsageProblem: it is no whole number of 0 or more.
    """
    if not re.fullmatch(r"\s*\d{1,9}\s*", text, flags=re.ASCII):
        raise UsageProblem([f"{option} {text!r}: expected a whole number of 0 or more, such as 8"])
    return int(text)


def folder(option: str, text: str | None) -> Path | None:
    """The folder that an option names; None where nothing was said.

    Raises:
        UsageProblem: it is none, and none can be made there.
    """
    if text is None:
        return None
    if not text.strip() or "\0" in text:
        raise UsageProblem([f"{option} {text!r}: expected the path of a folder"])
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # no such user, or one without a home
        raise UsageProblem([f"{option} {text!r}: {error}; expected the path of a folder"]) from error
    if path.is_symlink() and not path.exists():
        raise UsageProblem([f"{option} {text!r}: a link that leads nowhere; expected a folder"])
    try:
        taken = path.exists() and not path.is_dir()
    except OSError as error:
        raise UsageProblem([f"{option} {text!r}: {error.strerror or error}"]) from error
    if taken:
        raise UsageProblem([f"{option} {text!r}: expected a folder, or a path where one can be made"])
    return path


def _whole(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"\s*[+-]?\d+\s*", text, flags=re.ASCII):
        raise UsageProblem([f"{option} {text!r}: expected a whole number of 1 or more"])
    digits = text.strip().lstrip("+-0") or "0"
    number = int(digits[:20]) * (-1 if text.strip().startswith("-") else 1)  # int refuses 4300 digits
    if number < 1:
        raise UsageProblem([f"{option} {number}: must be 1 or more"])
    if number > _MOST:
        limits = f"at most {MAX_RANKS_CPU} ranks run on CPU, {MAX_RANKS_PER_GPU} on a GPU"
        raise UsageProblem([f"{option} {text.strip()}: {limits}"])
    return number


def seconds(option: str, text: str | None) -> float | None:
    """A length of time; None where nothing was said.

    Raises:
        UsageProblem: it is no number of seconds above 0 and at most a day.
    """
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= _MOST_S:  # NaN is neither
        expected = f"expected a number of seconds above 0 and at most {_MOST_S}, such as 5"
        raise UsageProblem([f"{option} {text!r}: {expected}"])
    return number


def _word(option: str, text: str, valid: tuple[str, ...]) -> str:
    if text not in valid:
        raise UsageProblem([f"{option} {text!r}: valid are {', '.join(valid)}"])
    return text


def _optional_word(option: str, text: str | None, valid: tuple[str, ...]) -> str | None:
    return _word(option, text, valid) if text is not None else None

"""Which Python is the target interpreter.

Paths are made absolute and never resolved through symbolic links: the `python` of a virtual environment is
a link to its base, in which the user's torch is not.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class InterpreterError(ValueError):
    """The path that was given is no program that could be run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The target interpreter, and why it is this one."""

    python: str
    """Absolute path."""
    why: str


def named(text: str, environment: Mapping[str, str], *, option: str = "--python") -> Target:
    """The interpreter that the user named: a path, or a bare name that is on PATH.

    Raises:
        InterpreterError: it is not there, no file, or may not be executed.
    """
    if not text.strip() or "\0" in text:
        raise InterpreterError(f"{option} {text!r}: expected the path of a Python interpreter")
    path = _expanded(text, option)
    if "/" not in text and not os.path.lexists(path):
        found = next(_on_path(text, environment), None)
        if found is None:
            raise InterpreterError(f"{option} {text!r}: no such file here, nor on PATH")
        return Target(python=str(found), why=f"named with {option}, found on PATH")
    trouble = _trouble(path)
    if trouble:
        raise InterpreterError(f"{option} {text!r}: {trouble}; expected the path of a Python interpreter")
    return Target(python=str(path.absolute()), why=f"named with {option}")


def _expanded(text: str, option: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # no such user, or one without a home
        trouble = f"{error}; expected the path of a Python interpreter"
        raise InterpreterError(f"{option} {text!r}: {trouble}") from error


def default(environment: Mapping[str, str]) -> Target:
    """The interpreter to use where none is named: the first that may hold the user's torch.

    This very one if it has torch, else that of the active virtual environment, else the first `python3` on
    PATH that is not this one; this one where there is no other, so that its lack of torch is reported.
    """
    own = Path(sys.executable).absolute()
    if _has_torch():
        return Target(python=str(own), why="the one that runs cpinfra, which has torch")
    active = environment.get("VIRTUAL_ENV")
    if active:
        python = Path(active).absolute() / "bin" / "python"
        if not _trouble(python) and not _same(python, own):
            return Target(python=str(python), why="that of the active virtual environment (VIRTUAL_ENV)")
    for python in _on_path("python3", environment):
        if not _same(python, own):
            why = "the first python3 on PATH, as the one that runs cpinfra has no torch"
            return Target(python=str(python), why=why)
    return Target(python=str(own), why="the one that runs cpinfra, as there is no other")


def _has_torch() -> bool:
    """Whether this interpreter has a package `torch`, and not only a folder of that name.

    One without an `__init__.py` is found too, as a namespace, and `python -m` looks in the working directory.
    """
    spec = importlib.util.find_spec("torch")
    return spec is not None and spec.origin is not None


def _trouble(path: Path) -> str:
    """What keeps a file from being run, else empty."""
    try:
        if not path.exists():
            return "a link to nothing" if path.is_symlink() else "no such file"
        if path.is_dir():
            inside = path / "bin" / "python"
            return f"a folder (did you mean {inside}?)" if inside.exists() else "a folder"
        if not path.is_file():
            return "not a file"
        return "" if os.access(path, os.X_OK) else "not executable"
    except OSError as error:
        return error.strerror or str(error)


def _on_path(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Every program of that name on PATH, in order."""
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = Path(folder or ".").absolute() / name
        if not _trouble(path):
            yield path


def _same(one: Path, other: Path) -> bool:
    """Whether two paths start the same environment: the same program, in the same folder."""
    try:
        return one.samefile(other) and one.parent.samefile(other.parent)
    except OSError:
        return False

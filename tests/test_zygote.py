"""The supervisor's side of a zygote, with programs in its place that do what no sound one does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cpinfra.proof.zygote import Zygote


def zygote(program: Path, folder: Path, **environment: str) -> Zygote:
    """A zygote of that program."""
    cookie = os.urandom(8).hex()
    return Zygote(str(program), folder / "zip", {**os.environ, **environment}, cookie, folder / "zygote.log")


def open_files() -> list[str]:
    """What this process has open."""
    return sorted(str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink())


def test_one_that_cannot_be_executed_leaves_nothing_open(tmp_path: Path) -> None:
    """Neither pipes nor what waits for them."""
    before = open_files()

    with pytest.raises(FileNotFoundError):
        zygote(tmp_path / "no such python", tmp_path)

    assert open_files() == before

"""Tiny models and distributions for tests: folders to put on PYTHONPATH."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import cpinfra
from cpinfra.proof import delivery


def worker_zip(folder: Path) -> Path:
    """The worker's zip, made of the source under test."""
    return delivery.build_zip(Path(cpinfra.__file__).parent, folder)


def module(folder: Path, name: str, text: str = "") -> Path:
    """A module of this source in a folder for PYTHONPATH; returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def distribution(
    folder: Path,
    name: str,
    version: str | None = "1.0",
    *,
    requires: Sequence[str] = (),
    python: str | None = None,
    files: Sequence[str] | None = None,
    top_level: str | None = None,
    direct_url: str | None = None,
) -> Path:
    """A folder of metadata, as an installer leaves one; returns it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}"]
    lines += [f"Version: {version}"] if version is not None else []
    lines += [f"Requires-Python: {python}"] if python is not None else []
    lines += [f"Requires-Dist: {one}" for one in requires]
    (info / "METADATA").write_text("\n".join([*lines, "", "A description.", "Requires-Dist: none of it", ""]))
    if files is not None:
        (info / "RECORD").write_text("".join(f"{file},sha256=x,1\n" for file in files))
    if top_level is not None:
        (info / "top_level.txt").write_text(f"{top_level}\n")
    if direct_url is not None:
        (info / "direct_url.json").write_text(direct_url)
    return info


def environment(*folders: Path, **variables: str) -> dict[str, str]:
    """The environment of the tests with these folders as PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **variables}


PYTHON = sys.executable

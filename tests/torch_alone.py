"""An interpreter that has torch, and nothing that cpinfra needs or is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import venv
from pathlib import Path

LEFT_OUT = ("click", "cpinfra", "jinja2", "packaging", "pydantic", "pynvml", "rich")
"""What cpinfra depends on, and itself."""


def make(folder: Path) -> Path:
    """A virtual environment with links to all that lies beside torch, but for what is left out.

    Returns:
        Its interpreter; its site-packages are at `site_of` it.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise RuntimeError("these tests need torch")
    for entry in Path(spec.origin).parents[1].iterdir():
        name = entry.name.lower().lstrip("_").replace("editable___", "")
        if entry.suffix != ".pth" and not name.startswith(LEFT_OUT):
            (site_of(python) / entry.name).symlink_to(entry)
    return python


def site_of(python: Path) -> Path:
    """The site-packages of a virtual environment."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    return site


def run(
    *command: object, cwd: Path, timeout_s: float = 100, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment in which no variable tells Python where to look."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FOLD_CP"))}
    words = [str(word) for word in command]
    return subprocess.run(
        words,
        cwd=cwd,
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def absent(python: Path, cwd: Path) -> list[str]:
    """Those of `LEFT_OUT` that the interpreter does not find."""
    code = f"import importlib.util as u; print(*[n for n in {LEFT_OUT!r} if u.find_spec(n) is None])"
    return run(python, "-c", code, cwd=cwd).stdout.split()

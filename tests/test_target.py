from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from cpinfra.software import interpreters
from cpinfra.software.interpreters import InterpreterError


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """This interpreter has no torch."""
    real = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return None if name == "torch" else real(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def venv(folder: Path) -> Path:
    """The `python` of a virtual environment: a link to this interpreter's base."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    (folder / "bin" / "python3").symlink_to("python")
    return python


class TestNamed:
    """The interpreter that the user names."""

    def test_links_are_kept(self, tmp_path: Path) -> None:
        """A venv's python stays what it is: resolved, it would be its base, without the user's torch."""
        python = venv(tmp_path / "with space")

        assert interpreters.named(str(python), {}).python == str(python)

    def test_relative_becomes_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ranks may run elsewhere."""
        python = venv(tmp_path / "venv")
        monkeypatch.chdir(tmp_path)

        assert interpreters.named("venv/bin/python", {}).python == str(python)

    def test_bare_name_is_sought_on_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a shell would, the second folder here."""
        python = venv(tmp_path / "venv")
        monkeypatch.chdir(tmp_path)
        path = f"/nowhere:{python.parent}"

        assert interpreters.named("python3", {"PATH": path}).python == str(python.parent / "python3")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("absent/python", "no such file"),
            ("folder", "a folder"),
            ("venv", "a folder (did you mean venv/bin/python?)"),
            ("text.txt", "not executable"),
            ("dangling", "a link to nothing"),
            ("surely-no-such-python", "no such file here, nor on PATH"),
            ("text.txt/python", "no such file"),
            ("", "expected the path of a Python interpreter"),
            ("nul\0", "expected the path of a Python interpreter"),
        ],
    )
    def test_rejects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str) -> None:
        """What was got is quoted, with its own reason."""
        venv(tmp_path / "venv")
        (tmp_path / "folder").mkdir()
        (tmp_path / "text.txt").touch(mode=0o644)
        (tmp_path / "dangling").symlink_to("nowhere")
        monkeypatch.chdir(tmp_path)

        with pytest.raises(InterpreterError) as caught:
            interpreters.named(name, {"PATH": ""})

        assert str(caught.value).startswith(f"--python {name!r}: {reason}")


class TestDefault:
    """The interpreter that is taken where none is named."""

    @pytest.mark.parametrize(("file", "has_torch"), [("__init__.py", True), ("notes.txt", False)])
    def test_this_one_if_it_has_torch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, has_torch: bool
    ) -> None:
        """Even with a virtual environment active; a mere folder `torch` in the way of imports is none."""
        (tmp_path / "path" / "torch").mkdir(parents=True)
        (tmp_path / "path" / "torch" / file).touch()
        venv(tmp_path / "venv")
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setattr(sys, "path", [str(tmp_path / "path")])
        target = interpreters.default({"VIRTUAL_ENV": str(tmp_path / "venv"), "PATH": ""})

        assert (target.python == str(Path(sys.executable).absolute())) == has_torch
        assert ("has torch" in target.why) == has_torch
        assert importlib.util.find_spec("torch") is not None

    def test_else_the_active_environment(self, tmp_path: Path, without_torch: None) -> None:
        """VIRTUAL_ENV's python, not resolved."""
        python = venv(tmp_path / "venv")
        target = interpreters.default({"VIRTUAL_ENV": str(tmp_path / "venv"), "PATH": ""})

        assert target.python == str(python)
        assert "VIRTUAL_ENV" in target.why

    def test_else_the_first_other_python3(self, tmp_path: Path, without_torch: None) -> None:
        """Our own folder on PATH is passed over, also where it is the active environment."""
        own = Path(sys.executable).absolute().parent
        python = venv(tmp_path / "venv").with_name("python3")
        environment = {"VIRTUAL_ENV": str(own.parent), "PATH": f"{own}:{python.parent}"}

        assert interpreters.default(environment).python == str(python)

    def test_else_this_one(self, without_torch: None) -> None:
        """Its lack of torch is then what the report says."""
        target = interpreters.default({"PATH": "/nowhere"})

        assert target.python == str(Path(sys.executable).absolute())
        assert "no other" in target.why

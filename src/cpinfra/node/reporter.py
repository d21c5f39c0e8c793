"""Who hears of a command while it runs, and where it leaves what it learns. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Protocol

from ..mesh import UsageProblem
from ..proof import run_folder
from ..proof.run_folder import RunFolder


class Reporter(Protocol):
    """Who tells the user, while it happens. Its methods never raise."""

    def announce(self, text: str) -> None:
        """Show a sentence before anything runs; must import nothing heavy."""

    def engine_started(self) -> None:
        """The zygote is importing torch: now is the time for heavy imports."""

    def event(self, event: dict[str, Any]) -> None:
        """One event of the engine: `t` in seconds, `event` its name. May come before `engine_started`."""


def folder_of_run(run_dir: Path | None, environment: Mapping[str, str]) -> RunFolder:
    """The folder that a run writes into.

    Raises:
        UsageProblem: none can be written.
    """
    try:
        return run_folder.create(run_dir, environment)
    except run_folder.RunFolderError as error:
        raise UsageProblem([f"{error}; give a folder that can be written with --run-dir"]) from error

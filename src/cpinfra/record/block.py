"""The lines of bash that launch a program as the recipe says. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator

from .. import report
from ..text import one_line
from . import shell

_WHAT = "set PROGRAM to the Python file that each rank runs; its arguments follow the name of this script"


def launch(recipe: report.Recipe) -> str:
    """A script for bash: its exit code is the program's, 124 when the time is over."""
    return "\n".join(
        [
            "set -euo pipefail",
            *_timeouts(recipe),
            *_exports(recipe),
            f'PROGRAM="${{PROGRAM:?{_WHAT}}}"',
            f"WORKDIR={shell.word(recipe.workdir) if isinstance(recipe.workdir, str) else '$PWD'}",
            'LOG="${LOG:-$WORKDIR/launch-$(date +%Y%m%dT%H%M%S)-$$.log}"',
            'mkdir -p -- "$(dirname -- "$LOG")"',
            unbroken(recipe.commands.get("torchrun", "exit 2")).removeprefix("set -o pipefail; "),
        ]
    )


def _timeouts(recipe: report.Recipe) -> Iterator[str]:
    """What no variable sets: the program itself has to."""
    for backend in ("nccl", "gloo"):
        if backend in recipe.timeouts:
            seconds = recipe.timeouts[backend]
            yield f"# in PROGRAM, for {backend}: init_process_group(timeout=timedelta(seconds={seconds}))"


def unbroken(text: str) -> str:
    """A text that can stand in a block: no line of it can be taken for the block's end."""
    return text.replace("```", "` ` `")


def _exports(recipe: report.Recipe) -> Iterator[str]:
    for name, value in recipe.env.items():
        if shell.is_name(name):
            yield f"export {name}={shell.word(value)}"
        else:
            yield f"# bash cannot export a variable of this name: {unbroken(one_line(name, limit=80))}"
    if isinstance(recipe.pythonpath, list) and recipe.pythonpath:
        yield f"export PYTHONPATH={shell.word(os.pathsep.join(recipe.pythonpath))}"

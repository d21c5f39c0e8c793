"""What it means when a model does not import, and what else is to be told of where it was found.

Standard library only.
"""

from __future__ import annotations

import re
import shlex

from ..outcome import BUG_REMEDY
from ..outcome import Finding
from ..outcome import Severity
from ..text import one_line
from .models import How
from .models import ModelResult

QUOTED_MAX = 400
"""Characters of foreign text in a finding."""


def of_import(result: ModelResult) -> list[Finding]:
    """Why the model could not be imported; nothing if it was."""
    if result.imported is True:
        return []
    if result.missing is not None and result.how is How.RAISED:
        return [_not_found(result, result.missing)]
    if result.how is None:
        return [_failed(result) if result.imported is False else _untold(result)]
    return [
        {
            How.RAISED: _failed,
            How.ENDED: _ended,
            How.HUNG: _hung,
            How.OVERDUE: _overdue,
            How.LOST: _lost,
            How.CUT_SHORT: _cut_short,
        }.get(result.how, _untold)(result)
    ]


def _not_found(result: ModelResult, missing: str) -> Finding:
    """A module that was not found: the model itself, a part of it, or what it depends on."""
    top = result.name.partition(".")[0]
    if result.name == missing or result.name.startswith(f"{missing}."):
        return _submodule_absent(result, missing) if result.found else _model_absent(result, top)
    own = missing.startswith(f"{top}.")
    return _blocking(
        result,
        "model-dependency-missing",
        what=f"{result.name} is there, but imports {missing}, which is not found",
        got=f"{one_line(result.error)}{_where(result)}",
        expected=f"a module {missing} on the path of that interpreter",
        remedy=f"{missing} is a part of the model: install or build it again as a whole"
        if own
        else f"install what provides {missing} into that interpreter, or put its folder on PYTHONPATH",
    )


def _model_absent(result: ModelResult, top: str) -> Finding:
    return _blocking(
        result,
        "model-not-found",
        what=f"the model {result.name} is on no path of the target interpreter",
        got=one_line(result.error),
        expected=f"a module {top} that {result.python or 'the target interpreter'} finds",
        remedy=f"set PYTHONPATH to the folder that holds {top}, install the model into that interpreter, "
        "or name the one that has it with --python; look at the spelling of --model too",
    )


def _submodule_absent(result: ModelResult, missing: str) -> Finding:
    return _blocking(
        result,
        "model-not-found",
        what=f"there is no module {missing}",
        got=f"{one_line(result.error)}; its first part is at {result.path or 'an unknown place'}",
        expected=f"a module {missing} there",
        remedy="look at the spelling of --model; if that place is the wrong one, set PYTHONPATH to the "
        "folder that holds the right one",
    )


def _failed(result: ModelResult) -> Finding:
    return _blocking(
        result,
        "model-not-importable",
        what=f"importing {result.name} failed in the target interpreter",
        got=f"{one_line(result.error, limit=QUOTED_MAX)}{_where(result)}",
        expected="an import that succeeds",
        remedy="mend what it complains of; if this is not the interpreter of the model's environment, name "
        "that one with --python",
    )


def _ended(result: ModelResult) -> Finding:
    return _blocking(
        result,
        "model-ended-interpreter",
        what=f"{result.name} is not imported: the interpreter was gone first",
        got=f"{result.error}{_where(result)}{_printed(result)}",
        expected="a module whose import neither exits, nor crashes, nor executes another program",
        remedy="name the module that holds the model, not a script; after a crash look for libraries that do "
        "not fit each other; SIGKILL is often the memory's limit",
    )


def _hung(result: ModelResult) -> Finding:
    return _blocking(
        result,
        "model-import-hung",
        what=f"importing {result.name} hangs in the target interpreter",
        got=f"{result.error}{_where(result)}{_printed(result)}",
        expected="an import that ends, or at least computes or reads",
        remedy="look at what it waits for: a lock, a file system or a server that does not answer, input",
    )


def _overdue(result: ModelResult) -> Finding:
    return _blocking(
        result,
        "model-import-overdue",
        what=f"whether {result.name} can be imported could not be told: it took too long",
        got=f"{result.error}{_where(result)}{_printed(result)}",
        expected="an import that ends in time",
        remedy="import it once by hand, so that what it downloads, compiles or reads is there the next time",
    )


def _lost(result: ModelResult) -> Finding:
    return _blocking(
        result,
        "model-answer-lost",
        what=f"whether {result.name} can be imported could not be told: its answer was lost",
        got=result.error,
        expected="a module that closes only what it has opened",
        remedy="have it not close all descriptors while it is imported (os.closerange, a daemon library)",
    )


def _cut_short(result: ModelResult) -> Finding:
    return _blocking(
        result,
        "model-not-tried",
        what=f"whether {result.name} can be imported was not found out",
        got=result.error,
        expected="an import that was tried and waited for",
        remedy="run it again and let it come to its end",
    )


def _untold(result: ModelResult) -> Finding:
    return _blocking(
        result,
        "model-import-unknown",
        what=f"whether {result.name} can be imported could not be told",
        got=f"{one_line(result.error, limit=QUOTED_MAX) or 'no answer'}{_printed(result)}",
        expected="an answer of the target interpreter",
        remedy=BUG_REMEDY
        if result.how is How.BUG
        else "name a Python 3.10 or newer with --python, and import the model there by hand",
    )


def _blocking(result: ModelResult, name: str, *, what: str, got: str, expected: str, remedy: str) -> Finding:
    """A finding on the import, with the command that repeats it."""
    command = f'{shlex.quote(result.python)} -c "import {result.name}"' if result.python else ""
    return Finding(
        id=name,
        severity=Severity.BLOCKING,
        what=what,
        got=got,
        expected=expected,
        remedy=f"{remedy}; to see it again: {command}" if command else remedy,
        command=command,
    )


def _where(result: ModelResult) -> str:
    """The line that a traceback ends in; of a stack of faulthandler the innermost, with which it begins."""
    stands = result.how in (How.HUNG, How.OVERDUE)
    # The signal that asks for stacks goes to the main thread, which faulthandler then calls the current one.
    text = result.traceback.partition("Current thread")[2] if stands else result.traceback
    lines: list[str] = re.findall(r'File "[^"\n]+", line \d+', text)
    return f", at {one_line(lines[0 if stands else -1])}" if lines else ""


def _printed(result: ModelResult) -> str:
    """The end of what it printed."""
    text = one_line(" ".join(result.output.split()))
    return f"; it printed: {text[-QUOTED_MAX:]}" if text else ""


def of_leftovers(result: ModelResult) -> list[Finding]:
    """Processes that could not be ended."""
    if not result.left:
        return []
    return [
        Finding(
            id="model-left-processes",
            severity=Severity.WARNING,
            what=f"the import of {result.name} started processes that SIGKILL does not end",
            got="pids " + ", ".join(map(str, result.left)),
            expected="none that is left",
            remedy="look at what they wait for in the kernel (state D in ps): a disk, a driver",
        )
    ]


def of_origin(result: ModelResult) -> list[Finding]:
    """What makes the declarations less than certain."""
    found = []
    if result.imported is True and result.distribution is None:
        got = f"{result.path or result.name} belongs to no installed distribution"
        found.append(_origin(result, "model-requirements-unknown", "what it requires is not declared", got))
    if result.shadowed is not None and result.distribution is not None:
        got = f"found at {result.path}, while {declarer(result)} is in {result.shadowed}"
        found.append(_origin(result, "model-shadows-installed", "it is not the copy that is installed", got))
    if result.others:
        got = f"{declarer(result)} was judged; also {', '.join(result.others)}"
        found.append(_origin(result, "model-several-distributions", "several distributions provide it", got))
    return found


def _origin(result: ModelResult, name: str, what: str, got: str) -> Finding:
    return Finding(
        id=name,
        severity=Severity.INFO,
        what=f"{result.name}: {what}",
        got=one_line(got),
        expected="a module of one installed distribution, whose requirements can be compared",
        remedy="nothing, if that is meant; else install the model (pip install -e keeps a working copy)",
    )


def declarer(result: ModelResult) -> str:
    """Distribution and version."""
    return " ".join(filter(None, (result.distribution or result.name, result.version)))


def interpreter(result: ModelResult) -> str:
    """Where a sentence speaks of: the target interpreter, by its path where it is known."""
    return f"in {result.python}" if result.python else "in the target interpreter"

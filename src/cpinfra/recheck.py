"""Whether a report is still true: what it rests on is looked at again. torch is not imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .hardware import host as hosts
from .hardware.gpus import NOT_ASKED
from .hardware.gpus import usable_gpus
from .outcome import ExitCode
from .outcome import Finding
from .outcome import Severity
from .planning.settle import NVML_TIMEOUT_S
from .record import docs
from .record import errors
from .record import words
from .report import FileIdentity
from .report import Report
from .report import Unavailable
from .report import finding_from

_REMEDY = "make a new one: cpinfra build"
_COMMAND = "cpinfra build"
_UNTOLD = ("hung", "error")
"""Answers of the driver that say nothing about it."""
_OF_A_BUILD = {
    "expected": "the report of a build, which says what machine and files it rests on",
    "remedy": "name that of a build, docs/cp_infra.json, or make one with cpinfra build",
}


def recheck(path: Path) -> tuple[Report, ExitCode]:
    """Compare a report with the machine as it is now.

    Returns:
        A partial report with the old verdict, whose findings name what has changed (blocking) and what could
        not be told (warnings); `OK` where nothing has changed, `FAILED` where something has, `NOT_PROVEN`
        where nothing has and something could not be told.

    Raises:
        errors.RecordError: there is no report there that could be read, or it is that of a self-test or of a
            `prove`.
    """
    old = docs.read(path)
    maker = words.made_by(old)
    if maker == "selftest":
        raise errors.OfSelfTest(path, got="the report of a self-test", **_OF_A_BUILD)
    if maker == "prove":
        got = "the report of a prove, which does not record the machine"
        raise errors.OfProve(path, got=got, **_OF_A_BUILD)
    found = [*_boot(old), *_gpus(old), *_files(old)]
    made = Report.made(
        verdict=old.verdict, scope=old.scope, findings=[finding_from(finding) for finding in found]
    )
    if any(finding.severity is Severity.BLOCKING for finding in found):
        return made, ExitCode.FAILED
    return made, ExitCode.NOT_PROVEN if found else ExitCode.OK


def _boot(old: Report) -> Iterator[Finding]:
    """The same machine, since the same start of it."""
    if old.host is None or isinstance(old.host, Unavailable):
        yield _untold("host", "which machine it was made on", "none in the report")
        return
    machine, boot = hosts.machine_id(), hosts.boot_id()
    if isinstance(old.host.machine_id, str) and isinstance(machine, str):  # else the boot alone tells
        yield from _compared("machine-id", "another machine", old.host.machine_id, machine)
    yield from _compared("boot-id", "another boot of the machine", old.host.boot_id, boot)


def _gpus(old: Report) -> Iterator[Finding]:
    """The same driver and the same GPUs, also where a variable hides them now or did then."""
    if old.hardware is None or isinstance(old.hardware, Unavailable):
        yield _untold("gpus", "which GPUs there were", "none in the report")
        return
    answer = usable_gpus(os.environ, NVML_TIMEOUT_S, show_hidden=True)
    if answer.state in _UNTOLD and not isinstance(answer.driver_version, str):
        yield _untold("gpus", "whether driver and GPUs are the same", answer.reason)
        return
    before, now = _shown(old.hardware.driver_version), _shown(answer.driver_version)
    if before == _shown(NOT_ASKED):
        yield _untold("gpus", "whether driver and GPUs are the same", f"for the report {NOT_ASKED.why}")
        return
    if before != now:
        yield _changed("driver", "it is another driver", before, now)
    uuids = [_shown(gpu.uuid) for gpu in old.hardware.gpus], [_shown(gpu.uuid) for gpu in answer.shown]
    if uuids[0] != uuids[1]:
        yield _changed("gpus", "these are other GPUs", *(", ".join(some) or "none" for some in uuids))


def _shown(value: Any) -> str:
    """A value of the report or of the inventory, or why there is none: a reason that stays is no change."""
    why = getattr(value, "unavailable", None) or getattr(value, "why", None)
    return str(value) if why is None else f"unavailable: {why}"


def _files(old: Report) -> Iterator[Finding]:
    """torch's version file and the NCCL library, by size and time of modification."""
    files = getattr(old.software, "files", None)
    if files is None or isinstance(files, Unavailable):
        why = files.unavailable if files is not None else "none in the report"
        yield _untold("software", "which files of torch and NCCL it rests on", why)
        return
    for file in files:
        yield from _file(file)


def _file(file: FileIdentity) -> Iterator[Finding]:
    try:
        now = Path(file.path).stat()
    except (OSError, ValueError) as error:  # a path with a NUL is no path
        got = getattr(error, "strerror", None) or str(error)
        yield _changed(file.what, f"{file.path} is not what it was", "a file", got)
        return
    before = (file.bytes, file.modified_ns)
    if before != (now.st_size, now.st_mtime_ns):
        words = [f"{size} bytes, modified {ns} ns" for size, ns in (before, (now.st_size, now.st_mtime_ns))]
        yield _changed(file.what, f"{file.path} is not what it was", *words)


def _compared(name: str, what: str, before: Any, now: Any) -> Iterator[Finding]:
    """One value of the host; where either side has none it cannot be told."""
    unknown = [why for why in (getattr(before, "unavailable", ""), _why(now)) if why]
    if unknown:
        yield _untold(name, f"whether it is {what}", unknown[0])
    elif before != now:
        yield _changed(name, f"it is {what}", str(before), str(now))


def _changed(name: str, what: str, before: str, now: str) -> Finding:
    return Finding(
        id=f"changed-{name}",
        severity=Severity.BLOCKING,
        what=f"the report is no longer true: {what}",
        got=now,
        expected=before,
        remedy=_REMEDY,
        command=_COMMAND,
    )


def _why(value: Any) -> str:
    return str(value["unavailable"]) if isinstance(value, Mapping) else ""


def _untold(name: str, what: str, why: str) -> Finding:
    return Finding(
        id=f"untold-{name}",
        severity=Severity.WARNING,
        what=f"it could not be told {what}",
        got=why,
        expected="a value in the report and one now",
        remedy=_REMEDY,
        command=_COMMAND,
    )

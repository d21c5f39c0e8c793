"""docs/cp_infra.json and docs/cp_infra.md: written both or neither, read with reasons."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import NoReturn

from pydantic import ValidationError

from .. import report
from ..files import replace_file
from ..outcome import Finding
from ..outcome import Severity
from . import errors
from .errors import RecordError
from .markdown import MARKER
from .markdown import markdown

JSON_NAME = "cp_infra.json"
MARKDOWN_NAME = "cp_infra.md"
LOCK_TIMEOUT_S = 10.0
_LOCK_RETRY_S = 0.02
_MOST_BYTES = 256 << 20
_MARKER = re.compile(rb"<!-- cpinfra/(\d+) cp_infra\.md")
_CANNOT_LOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
"""EBADF: NFS locks no file for writing that is open for reading, as a folder always is."""
_ANEW = "make it anew with the command that wrote it, or name another file"
_MAKE = "make it anew with cpinfra build, or name another file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What became of a report's documents."""

    json_path: Path | None
    """Where the JSON lies; None if it could not be written, and then the Markdown could not either."""
    markdown_path: Path | None
    """Where the Markdown lies."""
    findings: tuple[Finding, ...] = ()
    """What was kept aside; or why nothing could be written, which blocks."""


def write(made: report.Report, folder: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> Written:
    """Put both documents into a folder, whole, and of the same report even if two builds write at once.

    What lies there and is not a report of this schema is kept aside under another name.

    Args:
        made: the report.
        folder: where to; made if it is not there.
        timeout_s: how long to wait for another build that writes.

    Raises:
        pydantic.ValidationError: what would be written is no valid report, and nothing was touched.
    """
    text = made.text()
    report.Report.model_validate_json(text)
    contents = {MARKDOWN_NAME: markdown(made).encode(), JSON_NAME: text.encode()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, timeout_s) as unlocked:
            found = [*unlocked, *_replaced(folder, contents)]
    except OSError as error:
        return Written(json_path=None, markdown_path=None, findings=(_unwritable(folder, error),))
    return Written(json_path=folder / JSON_NAME, markdown_path=folder / MARKDOWN_NAME, findings=tuple(found))


def read(path: Path) -> report.Report:
    """The report, whole or partial, that a file holds.

    Raises:
        RecordError: it holds none; the class and the message say why.
    """
    data = _parsed(path)
    version = _version(data)
    if version is None:
        got = _not_ours(data)
        raise errors.NotOurs(path, got=got, expected="a report of cpinfra", remedy=_MAKE)
    if version > 1:
        raise errors.NewerSchema(
            path,
            got=f"schema cpinfra/{version}",
            expected=f"schema {report.SCHEMA}",
            remedy="read it with the newer cpinfra that wrote it",
        )
    try:
        return report.Report.model_validate_json(json.dumps(data))
    except ValidationError as error:
        got = _mistakes(error)
        raise errors.Invalid(path, got=got, expected=f"schema {report.SCHEMA}", remedy=_ANEW) from error


def _parsed(path: Path) -> Any:
    try:
        content = _content(path, most=_MOST_BYTES + 1)
    except FileNotFoundError as error:
        remedy = "make one with cpinfra build, or name another file"
        raise errors.Absent(path, got="no such file", expected="a report", remedy=remedy) from error
    except OSError as error:
        got = error.strerror or str(error)
        denied = isinstance(error, PermissionError)
        remedy = f"{'give yourself the right to read it, or ' if denied else ''}name another file"
        raise errors.Unreadable(path, got=got, expected="a file that can be read", remedy=remedy) from error
    if len(content) > _MOST_BYTES:
        got, expected = (f"{words} {_MOST_BYTES >> 20} MiB" for words in ("more than", "a report of at most"))
        raise errors.Unreadable(path, got=got, expected=expected, remedy=_MAKE)
    try:
        return json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        got = f"{len(content)} bytes that are no JSON ({error})"
        raise errors.NotJson(path, got=got, expected="a report as JSON", remedy=_MAKE) from error


def _no_number(text: str) -> NoReturn:
    """NaN and the infinities are no JSON, though Python reads them."""
    raise ValueError(f"{text} is no number of JSON")


def _content(path: Path, most: int) -> bytes:
    """The bytes of a regular file; opening a pipe must not wait for its writer.

    Raises:
        errors.Unreadable: it is no file.
        OSError: it cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise _no_file(path, mode)
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(fd)


def _no_file(path: Path, mode: int) -> errors.Unreadable:
    """A folder, a pipe or a device, each with what to name instead."""
    expected = "a file that holds a report"
    if stat.S_ISDIR(mode):
        return errors.Unreadable(path, got="a folder", expected=expected, remedy="name the file in it")
    got = "a pipe" if stat.S_ISFIFO(mode) else "a device"
    remedy = "write the report into a file, and name that"
    return errors.Unreadable(path, got=got, expected=expected, remedy=remedy)


def _version(data: Any) -> int | None:
    schema = data.get("schema") if isinstance(data, dict) else None
    match = re.fullmatch(r"cpinfra/(\d{1,9})", schema, flags=re.ASCII) if isinstance(schema, str) else None
    return int(match[1]) if match else None


def _not_ours(data: Any) -> str:
    """What a document without a schema of ours is."""
    if not isinstance(data, dict):
        return f"JSON that is a {type(data).__name__}, not an object"
    return (
        f"JSON whose schema is {str(data['schema'])[:80]!r}" if "schema" in data else "JSON without a schema"
    )


def _mistakes(error: ValidationError, most: int = 3) -> str:
    found = error.errors(include_url=False, include_input=False)
    told = [": ".join(filter(None, (".".join(map(str, one["loc"])), one["msg"]))) for one in found[:most]]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"a report that breaks the schema: {'; '.join(told)}{more}"


@contextmanager
def _locked(folder: Path, timeout_s: float) -> Iterator[list[Finding]]:
    """Hold the folder against other builds; yields what is to be said of it.

    Raises:
        OSError: another build has held it all the time.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _held(fd, folder, time.monotonic() + timeout_s)
    finally:
        os.close(fd)


def _held(fd: int, folder: Path, end: float) -> list[Finding]:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise OSError(errno.EAGAIN, "another build holds it", str(folder)) from error
            time.sleep(_LOCK_RETRY_S)
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
            return [_no_lock(folder, error)]
        else:
            return []


def _replaced(folder: Path, contents: dict[str, bytes]) -> list[Finding]:
    """Stage all, then keep the strangers aside, then rename: a full disk is met before anything is moved."""
    staged = {name: folder / f".{name}.{os.getpid()}.next" for name in contents}
    try:
        for name, content in contents.items():
            replace_file(staged[name], content)
        found = [finding for name in contents for finding in _kept_aside(folder / name)]
        for name, path in staged.items():
            path.replace(folder / name)
    finally:
        for path in staged.values():
            path.unlink(missing_ok=True)
    return found


def _kept_aside(path: Path) -> list[Finding]:
    """Move what is not ours out of the way, to a name that nobody has."""
    stranger = _stranger(path)
    if stranger is None:
        return []
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.stem}.{stranger.kind}-{number}{path.suffix}")):
        number += 1
    path.rename(aside)
    return [
        Finding(
            id="docs-kept-aside",
            severity=Severity.WARNING,
            what=f"{path} was not written by this version of cpinfra, and is now {aside.name}",
            got=stranger.got,
            expected=stranger.expected,
            remedy="look whether you need it, else remove it; another folder: --docs DIR",
        )
    ]


def _stranger(path: Path) -> RecordError | None:
    """What is wrong with a document that lies where ours goes; None if it is ours or there is none."""
    try:
        if path.suffix == ".md":
            _read_markdown(path)
        else:
            read(path)
    except errors.Absent:
        return None if not path.is_symlink() else errors.NotOurs(path, got="a link to nothing", **_A_FILE)
    except RecordError as error:
        return error
    return None


_A_FILE = {"expected": "a report of cpinfra", "remedy": _MAKE}


def _read_markdown(path: Path) -> None:
    """Look whether it is ours, by its first line.

    Raises:
        RecordError: it is not.
    """
    expected = f"the line {MARKER} at its beginning"
    try:
        start = _content(path, most=len(MARKER) + 16)
    except FileNotFoundError as error:
        raise errors.Absent(path, got="no such file", expected=expected, remedy=_MAKE) from error
    except OSError as error:
        got = error.strerror or str(error)
        raise errors.Unreadable(path, got=got, expected=expected, remedy=_MAKE) from error
    match = _MARKER.match(start)
    if match is None:
        raise errors.NotOurs(path, got="a file without that line", expected=expected, remedy=_MAKE)
    if int(match[1]) > 1:
        got = f"a document of schema cpinfra/{int(match[1])}"
        raise errors.NewerSchema(path, got=got, expected=expected, remedy=_MAKE)


def _no_lock(folder: Path, error: OSError) -> Finding:
    return Finding(
        id="docs-not-locked",
        severity=Severity.WARNING,
        what=f"the file system of {folder} cannot lock files: two builds at once could mix their documents",
        got=error.strerror or str(error),
        expected="flock",
        remedy="run one build at a time with this folder, or give another one with --docs",
    )


def _unwritable(folder: Path, error: OSError) -> Finding:
    where = f" ({error.filename})" if error.filename else ""
    return Finding(
        id="docs-unwritable",
        severity=Severity.BLOCKING,
        what=f"the documents could not be written into {folder}",
        got=f"{error.strerror or error}{where}",
        expected=f"a folder that takes {JSON_NAME} and {MARKDOWN_NAME}",
        remedy="free some space, get the right to write there, or give another folder with --docs",
        command="cpinfra build --docs DIR",
    )

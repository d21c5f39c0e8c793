"""Why a report could not be read."""

from __future__ import annotations

from pathlib import Path


class RecordError(Exception):
    """No report could be read from a file; says what was got, what was expected, and what to do."""

    kind = "foreign"
    """In the name under which such a file is kept aside."""

    def __init__(self, path: Path, *, got: str, expected: str, remedy: str) -> None:
        self.path = path
        self.got = got
        self.expected = expected
        self.remedy = remedy
        super().__init__(f"{path}: got {got}; expected {expected}; {remedy}")


class Absent(RecordError):
    """There is no such file."""


class Unreadable(RecordError):
    """The file cannot be read."""

    kind = "unreadable"


class NotJson(RecordError):
    """The file holds no JSON, or half of it."""

    kind = "corrupt"


class NotOurs(RecordError):
    """The file holds JSON that is no report of cpinfra."""


class OfSelfTest(RecordError):
    """It is the report of a self-test, where that of a build is needed."""


class OfProve(RecordError):
    """It is the report of a `prove`, where that of a build is needed."""


class NewerSchema(RecordError):
    """A newer cpinfra wrote it."""

    kind = "newer"


class Invalid(RecordError):
    """It says that it is a report of this schema, and is not."""

    kind = "corrupt"

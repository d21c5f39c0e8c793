"""Start of the worker zip: `PYTHON cpinfra_worker-<hash>.zip zygote --events FD ...`, or `... probe`.

In the zip this file is `__main__.py`. It must run on every interpreter that somebody may name, Python 2.7
and 3.5 too, far enough to say that it is too old. So: the grammar of 2.7, no annotations, no f-strings.
"""

import json
import os
import struct
import sys

FOR_PEOPLE = ("probe", "smoke")
OLDEST = (3, 10)
TOO_OLD = 3


def event_fd(argv):
    # type: (list[str]) -> int | None
    """The number after `--events`, or None where it is absent or no number."""
    for option, value in zip(argv, argv[1:]):
        if option == "--events" and value.isdigit():
            return int(value)
    return None


def too_old_frame():
    # type: () -> bytes
    """The event `too-old` as one frame of `channel.py`, which itself cannot be imported here."""
    executable = sys.executable or ""
    if isinstance(executable, bytes):  # Python 2
        executable = executable.decode("utf-8", "replace")
    event = {"event": "too-old", "python": "%d.%d.%d" % sys.version_info[:3], "executable": executable}
    payload = json.dumps(event).encode("ascii")
    return struct.pack("<2sHHHiI", b"cp", 0, 1, len(payload), os.getpid(), 0) + payload


def refuse(argv):
    # type: (list[str]) -> int
    """Tell the supervisor, or a person where there is none, that this Python is too old."""
    fd = event_fd(argv)
    if fd is not None:
        os.write(fd, too_old_frame())
        return TOO_OLD
    got = "%d.%d.%d" % sys.version_info[:3]
    needed = "%d.%d" % OLDEST
    sys.stderr.write("cpinfra: needs Python %s or newer, got %s (%s)\n" % (needed, got, sys.executable))
    return TOO_OLD


def only_by_its_package(archive):
    # type: (str) -> None
    """Import the package, then take the zip off `sys.path`: no import of the user's is looked up in it.

    Submodules are found through the package's own `__path__`, which is absolute: the worker changes folder.
    """
    sys.path[0] = archive
    import _cpinfra_worker  # type: ignore[import-not-found]  # noqa: F401

    del sys.path[0]


def main(argv):
    # type: (list[str]) -> int
    """Refuse an old Python, else hand over to the part that is asked for; returns the exit status."""
    if sys.version_info < OLDEST:
        return refuse(argv)
    only_by_its_package(os.path.dirname(os.path.abspath(__file__)))
    if argv[:1] and argv[0] in FOR_PEOPLE:
        from _cpinfra_worker.node.main import main as part  # type: ignore[import-not-found]
    else:
        from _cpinfra_worker.worker.main import main as part  # type: ignore[import-not-found]
    return int(part(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

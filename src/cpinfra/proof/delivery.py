"""The worker as one zip, which any Python with torch runs with nothing installed.

Its only top-level names are `__main__.py` and `_cpinfra_worker`, a mirror of this package restricted to
what needs no third-party module but torch, so that neither side's modules get in the other's way. Its name
holds the hash of its bytes, and the same sources give the same bytes on every machine.

Standard library only; the build hook of the wheel imports this file from the source tree.
"""

from __future__ import annotations

import ast
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ..files import replace_file

PACKAGE = "_cpinfra_worker"
ENTRY = "worker/zip_main.py"
# What the zip mirrors: patterns below the folder of the package `cpinfra`.
PARTS = (
    "cgroup_tree.py",
    "files.py",
    "outcome.py",
    "mesh.py",
    "text.py",
    "worker/**/*.py",
    "proof/**/*.py",
    "hardware/**/*.py",
    "software/**/*.py",
    "planning/**/*.py",
    "node/**/*.py",
)
LEFT_OUT = ("software/requirements.py",)
"""Of those, what needs a third-party module; tests/test_import_rules.py holds the rest to it."""
SHIPPED = "_shipped"
# The earliest date that a zip can hold: contents alone decide the hash.
_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644
_UNIX = 3


class DeliveryError(RuntimeError):
    """The worker cannot be packed or staged: this installation is incomplete or damaged."""


def build_zip(source: Path, target_folder: Path) -> Path:
    """Pack the worker of the package in `source` into `target_folder`.

    Args:
        source: the folder that holds cpinfra's `__init__.py`.
        target_folder: made if absent.

    Returns:
        The zip, `cpinfra_worker-<first 12 hex digits of its sha256>.zip`.

    Raises:
        DeliveryError: a part of the package is not there.
        OSError: the folder cannot be written.
    """
    return _place(_packed(source), target_folder)


def stage(run_folder: Path) -> Path:
    """Put the worker's zip into the run folder: the shipped one, else one built from the source tree.

    Safe to call from several processes at once: each sees a whole file.

    Raises:
        DeliveryError: the shipped zip is damaged, or there is nothing to pack.
        OSError: the run folder cannot be written.
    """
    return _place(_own_bytes(), run_folder)


def zip_name(data: bytes) -> str:
    """The file name that belongs to these bytes."""
    return f"cpinfra_worker-{hashlib.sha256(data).hexdigest()[:12]}.zip"


def _own_bytes() -> bytes:
    archive = own_archive()
    if archive is not None:
        return archive.read_bytes()
    package = Path(__file__).resolve().parents[1]
    shipped = sorted((package / SHIPPED).glob("cpinfra_worker-*.zip"))
    if not shipped:
        return _packed(package)
    if len(shipped) > 1:
        names = ", ".join(path.name for path in shipped)
        raise DeliveryError(f"{package / SHIPPED}: expected one worker zip, got {names}; reinstall cpinfra")
    return _checked(shipped[0])


def own_archive() -> Path | None:
    """The zip that this very module was loaded from, if it was: on a node that has nothing else of ours."""
    archive = getattr(__spec__.loader, "archive", None)
    return Path(archive) if isinstance(archive, str) else None


def _checked(path: Path) -> bytes:
    data = path.read_bytes()
    if zip_name(data) != path.name:
        raise DeliveryError(f"{path}: damaged, its bytes belong to {zip_name(data)}; reinstall cpinfra")
    return data


def _packed(source: Path) -> bytes:
    """The bytes of the zip: sorted, fixed dates and modes, nothing compressed (zlib builds differ)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(_members(source)):
            entry = zipfile.ZipInfo(name, date_time=_DATE)
            entry.create_system = _UNIX
            entry.external_attr = _MODE << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def _members(source: Path) -> Iterator[tuple[str, bytes]]:
    """Names in the zip with their contents."""
    yield "__main__.py", _read(source / ENTRY)
    yield f"{PACKAGE}/__init__.py", _package_init(source).encode()
    for part in PARTS:
        paths = [path for path in source.glob(part) if path.is_file()]
        paths = [path for path in paths if path.relative_to(source).as_posix() not in LEFT_OUT]
        if not paths:
            raise DeliveryError(f"{source}: expected {part}, got nothing; reinstall cpinfra")
        for folder in {path.parent for path in paths}:
            _read(folder / "__init__.py")  # a zip has no namespace packages: without it nothing is found
        for path in paths:
            yield f"{PACKAGE}/{path.relative_to(source).as_posix()}", _read(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DeliveryError(f"{path}: not there; reinstall cpinfra") from error


def _package_init(source: Path) -> str:
    """The zip's own `__init__.py`: the package's version, none of its imports."""
    version = _version(_read(source / "__init__.py").decode(), source)
    return f'"""The worker of cpinfra {version}."""\n\n__version__ = "{version}"\n'


def _version(text: str, source: Path) -> str:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise DeliveryError(f"{source / '__init__.py'}: expected __version__ = '...', got none")


def _place(data: bytes, folder: Path) -> Path:
    """Write the bytes under their name, by atomic rename."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / zip_name(data)
    replace_file(target, data, durable=False)
    return target

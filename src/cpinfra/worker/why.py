"""Why `import torch` does not work: looks at what is there, and never imports it.

For an interpreter that died or hung at that import. The answer is one JSON document. Standard library only.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import signal
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import loading
from . import processes
from .signals import RANK_BUG_EXIT

_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(.+)")
_OLD_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def run(result_fd: int, parent_pid: int | None = None) -> int:
    """Write the answer to `result_fd`; returns the exit status.

    Args:
        result_fd: an open descriptor.
        parent_pid: whose death ends this process; None where nobody's does.
    """
    if parent_pid is not None:
        processes.die_with_parent(parent_pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whatever the caller had blocked
    os.set_inheritable(result_fd, False)
    try:
        data = json.dumps(describe()).encode("ascii")
    except Exception:  # noqa: BLE001 - reported as our bug
        traceback.print_exc()
        return RANK_BUG_EXIT
    while data:
        data = data[os.write(result_fd, data) :]
    return 0


def describe() -> dict[str, Any]:
    """All that can be told without importing torch.

    Returns:
        `python`, `python_version`, `prefix`; `torch` (`kind`: `package`, `module`, `namespace`, `absent`;
        `path`, `error` of the search); `copies` on the path, in its order; `working_folder`: a torch that
        lies there; and, where the one that is found is a package: `version`, `distributions`, `libraries`,
        `duplicates`, `wheels`, `first` (see `loading`).
    """
    found = _found()
    facts: dict[str, Any] = {
        "python": sys.executable,
        "python_version": platform.python_version(),
        "prefix": sys.prefix,
        "torch": found,
        "copies": list(_copies()),
        "working_folder": next((copy["path"] for copy in _copies_in(Path.cwd())), None),
    }
    if found["kind"] == "package":
        facts.update(_of_package(Path(found["path"]).parent))
    return facts


def _of_package(folder: Path) -> dict[str, Any]:
    files = loading.of_torch(folder)
    return {
        "version": _version(folder / "version.py"),
        "distributions": [_distribution(path) for path in sorted(_metadata(folder.parent))],
        "libraries": loading.try_all(files),
        "duplicates": loading.copies(folder, os.environ),
        "wheels": loading.wheels(folder),
        "first": loading.first(files, os.environ),
    }


# ------------------------------------------------------------------------------- which torch it is


def _found() -> dict[str, Any]:
    """What `import torch` would take; to look for a top-level package executes nothing of it."""
    try:
        spec = importlib.util.find_spec("torch")
    except Exception as error:  # noqa: BLE001 - a foreign finder, of an editable install for example
        return {"kind": "absent", "path": None, "error": f"{type(error).__name__}: {error}"}
    if spec is None:
        return {"kind": "absent", "path": None, "error": ""}
    if spec.origin is None:
        places = list(spec.submodule_search_locations or ())
        return {"kind": "namespace", "path": places[0] if places else None, "error": ""}
    kind = "package" if spec.submodule_search_locations is not None else "module"
    return {"kind": kind, "path": spec.origin, "error": ""}


def _copies() -> Iterator[dict[str, Any]]:
    """Every torch on the path, each file once, in the order in which they would be found."""
    seen = set()
    for entry in sys.path:
        for copy in _copies_in(Path(entry or ".").absolute()):
            if (real := os.path.realpath(copy["path"])) not in seen:
                seen.add(real)
                yield copy


def _copies_in(folder: Path) -> Iterator[dict[str, Any]]:
    """What in one folder would be taken for torch.

    A package comes before a module; a folder without `__init__.py` is taken only where no entry has anything
    else.
    """
    package, suffixes = folder / "torch", importlib.machinery.all_suffixes()
    modules = [folder / f"torch{suffix}" for suffix in suffixes]
    kinds = [("package", package / f"__init__{suffix}") for suffix in suffixes]
    kinds += [("module", module) for module in modules]
    for kind, path in kinds:
        if path.is_file():
            whole = kind == "package" and (package / "version.py").is_file()
            yield {"kind": kind, "path": str(path), "whole": whole, "user_site": _is_user_site(folder)}
            return


def _is_user_site(folder: Path) -> bool:
    user = site.getusersitepackages()
    return os.path.realpath(folder) == os.path.realpath(user)


# --------------------------------------------------------------------------------- what it says it is


def _version(file: Path) -> dict[str, Any]:
    """`torch`, `cuda` and `hip` as constants of the version file, which is read and not executed."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        return {"unavailable": f"{file}: {error}"}
    constants = {name: value for node in tree.body for name, value in _assigned(node)}
    return {
        "torch": constants.get("__version__"),
        "cuda": constants.get("cuda"),
        "hip": constants.get("hip"),
    }


def _assigned(node: ast.stmt) -> Iterator[tuple[str, str | None]]:
    """Names to which a statement assigns a text or None."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, str)):
        yield from ((target.id, value.value) for target in targets if isinstance(target, ast.Name))


def _metadata(site_folder: Path) -> Iterator[Path]:
    """Folders of metadata of torch, of which there should be one."""
    yield from site_folder.glob("torch-*.dist-info")
    yield from site_folder.glob("torch-*.egg-info")


def _distribution(path: Path) -> dict[str, Any]:
    """One installed distribution: its version, and whether its wheel was made for this interpreter."""
    version = path.name.removeprefix("torch-").rsplit(".", 1)[0].split("-py")[0]
    try:
        lines = (path / "WHEEL").read_text(errors="replace").splitlines()
    except OSError:
        lines = []  # installed by conda, or from source
    tags = [line.split(":", 1)[1].strip() for line in lines if line.startswith("Tag:")]
    reasons = [unfit(tag) for tag in tags]
    fits = None if not tags else "" in reasons
    return {
        "path": str(path),
        "version": version,
        "tags": tags,
        "fits": fits,
        "why": "; ".join(filter(None, reasons)),
    }


def unfit(tag: str) -> str:
    """Why a wheel with this tag is not for this interpreter, else empty."""
    parts = tag.split("-", 2)
    if len(parts) != 3:
        return f"{tag} is no tag of a wheel"
    pythons, abis, platforms = (part.split(".") for part in parts)
    number = "{}{}".format(*sys.version_info[:2])
    abi = f"cp{number}" + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
    if not {f"cp{number}", "py3", f"py{number}"} & set(pythons) and "abi3" not in abis:
        return f"{tag} is for {parts[0]}, this is cp{number}"
    if not {abi, "abi3", "none"} & set(abis):
        return f"{tag} is for the ABI {parts[1]}, this has {abi}"
    reasons = [_platform_unfit(name) for name in platforms]
    return "" if "" in reasons else f"{tag}: {reasons[0]}"


def _platform_unfit(name: str) -> str:
    """Why a platform is not this one, else empty."""
    if name == "any":
        return ""
    machine, libc = platform.machine(), _glibc()
    if not name.startswith(("linux", "manylinux")) or not name.endswith(f"_{machine}"):
        return f"it is for {name}, this is linux_{machine}"
    least = _least_glibc(name)
    if least is not None and libc is not None and libc < least:
        return f"it needs glibc {least[0]}.{least[1]}, this has {libc[0]}.{libc[1]}"
    return ""


def _least_glibc(name: str) -> tuple[int, int] | None:
    """The glibc that a platform tag asks for; None where it asks for none."""
    if found := _MANYLINUX.fullmatch(name):
        return int(found[1]), int(found[2])
    return _OLD_MANYLINUX.get(name.split("_", 1)[0])


def _glibc() -> tuple[int, int] | None:
    """This system's glibc; None where its C library is another."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (OSError, ValueError):
        return None
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found is not None else None

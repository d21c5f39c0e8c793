"""What is installed in this interpreter, and which distribution provides a module, by their metadata.

Metadata are other people's files: one that cannot be read is told, and spoils nothing else. Nothing is
imported here.

Standard library only.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import urllib.parse
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

_MODULE_SUFFIX = r"(?:/|\.py|\.(?:[^/,\"]+\.)?so)"
"""After a module's name in a RECORD: it is a folder, a source file or an extension."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """One distribution, as far as its metadata could be read."""

    name: str
    """As it spells itself."""
    version: str | None
    location: str
    """Its folder of metadata; absolute, without symbolic links."""
    headers: Message
    source: importlib.metadata.Distribution

    @property
    def canonical(self) -> str:
        """The name by which it is compared (PEP 503)."""
        return re.sub(r"[-_.]+", "-", self.name).lower()


def describe(module: str) -> dict[str, Any]:
    """All that the answer holds beside the import itself, as plain JSON values."""
    everything, unreadable = _read_all(importlib.metadata.distributions())
    found, origin = locate(module.partition(".")[0])
    first: dict[str, Installed] = {}
    for one in everything:
        first.setdefault(one.canonical, one)  # an import takes the first on sys.path too
    return {
        "found": found,
        "found_at": origin,
        "providers": [_provider(one, origin, how) for how, one in providers(module, first.values(), origin)],
        "installed": {name: one.version for name, one in first.items()},
        "locations": {name: one.location for name, one in first.items()},
        "duplicates": _duplicates(everything),
        "unreadable": unreadable,
        "markers": marker_environment(),
    }


def locate(top: str) -> tuple[bool | None, str | None]:
    """(Whether a top-level module is on the path, None where that cannot be told; its file or folder)."""
    try:
        spec = importlib.util.find_spec(top)
    except Exception:  # noqa: BLE001 - finders of editable installations are foreign code
        return None, None
    if spec is None:
        return False, None
    if spec.origin is not None:
        return True, spec.origin
    return True, os.pathsep.join(spec.submodule_search_locations or []) or None


def _read_all(
    distributions: Iterable[importlib.metadata.Distribution],
) -> tuple[list[Installed], list[str]]:
    """(Those that say a name, in the order of sys.path; locations of those that do not)."""
    read: dict[str, Installed] = {}
    unreadable: dict[str, None] = {}
    for source in distributions:
        location = _location(source)
        headers = _headers(source)
        name = headers.get("Name")
        if not name:
            unreadable[location] = None
            continue
        version = headers.get("Version")
        one = Installed(name=name, version=version, location=location, headers=headers, source=source)
        read.setdefault(location, one)  # a folder may be on sys.path twice, as lib and as lib64
    return list(read.values()), list(unreadable)


def _location(source: importlib.metadata.Distribution) -> str:
    path = getattr(source, "_path", None)  # there is no public name for it
    return os.path.realpath(str(path)) if path is not None else repr(source)


def _headers(source: importlib.metadata.Distribution) -> Message:
    """The metadata without the description, which is long; empty if they cannot be read."""
    text = _text(source, "METADATA") or _text(source, "PKG-INFO") or _text(source, "")
    return HeaderParser().parsestr(text)


def _text(source: importlib.metadata.Distribution, name: str) -> str:
    """One file of the metadata; empty if it is absent or no text."""
    try:
        return source.read_text(name) or ""
    except (OSError, ValueError):
        return ""


def providers(
    module: str, distributions: Iterable[Installed], origin: str | None
) -> list[tuple[str, Installed]]:
    """Which distributions provide a module, each with how that is known.

    Of several that share a top-level name (a namespace) only those that hold the longest part of the dotted
    name. By the name alone only where no metadata say more.
    """
    parts = module.split(".")
    everything = list(distributions)
    depths = [(_depth(one, parts), one) for one in everything]
    deepest = max((depth for depth, _ in depths), default=0)
    if deepest:
        return [("files", one) for depth, one in depths if depth == deepest]
    editable = [one for one in everything if _is_below(origin, editable_root(one))]
    if editable:
        return [("editable", one) for one in editable]
    canonical = re.sub(r"[-_.]+", "-", parts[0]).lower()
    return [("name", one) for one in everything if one.canonical == canonical]


def _depth(one: Installed, parts: Sequence[str]) -> int:
    """How many parts of a dotted name are among the files of a distribution."""
    record = _text(one.source, "RECORD") or _text(one.source, "SOURCES.txt")
    for depth in range(len(parts), 0, -1):
        path = re.escape("/".join(parts[:depth]))
        if re.search(rf'^"?{path}{_MODULE_SUFFIX}', record, flags=re.MULTILINE):
            return depth
    return int(parts[0] in _text(one.source, "top_level.txt").split())


def editable_root(one: Installed) -> str | None:
    """The source tree that an editable installation stands for (PEP 610), else None."""
    try:
        direct = json.loads(_text(one.source, "direct_url.json") or "{}")
        if not direct["dir_info"]["editable"]:
            return None
        url = urllib.parse.urlparse(direct["url"])
        return urllib.parse.unquote(url.path) if url.scheme == "file" else None
    except (ValueError, KeyError, TypeError):
        return None


def _is_below(path: str | None, folder: str | None) -> bool:
    if path is None or folder is None:
        return False
    root = os.path.realpath(folder)
    return any(Path(os.path.realpath(one)).is_relative_to(root) for one in path.split(os.pathsep))


def _provider(one: Installed, origin: str | None, how: str) -> dict[str, Any]:
    beside = str(Path(one.location).parent)
    return {
        "name": one.name,
        "version": one.version,
        "requires_dist": _requires(one),
        "requires_python": one.headers.get("Requires-Python"),
        "location": one.location,
        "how": how,
        "holds": _is_below(origin, beside) or _is_below(origin, editable_root(one)),
    }


def _requires(one: Installed) -> list[str]:
    """Its Requires-Dist; those of an egg, which are written otherwise, as importlib.metadata puts them."""
    declared = one.headers.get_all("Requires-Dist")
    if declared is not None:
        return [" ".join(str(text).split()) for text in declared]
    if not _text(one.source, "requires.txt"):
        return []
    return list(one.source.requires or [])


def _duplicates(everything: Iterable[Installed]) -> dict[str, list[dict[str, str | None]]]:
    """Distributions of one name that lie in several places, the one that counts first."""
    places: dict[str, list[dict[str, str | None]]] = {}
    for one in everything:
        places.setdefault(one.canonical, []).append({"version": one.version, "location": one.location})
    return {name: found for name, found in places.items() if len(found) > 1}


def marker_environment() -> dict[str, str]:
    """The values of the variables that PEP 508 gives to markers, in this interpreter."""
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": _implementation_version(),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def _implementation_version() -> str:
    """As PEP 508 computes it."""
    info = sys.implementation.version
    text = f"{info.major}.{info.minor}.{info.micro}"
    return text if info.releaselevel == "final" else f"{text}{info.releaselevel[0]}{info.serial}"

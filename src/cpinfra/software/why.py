"""Why `import torch` does not work in the target interpreter: asks it, and says what to do.

For an interpreter that died or hung at that import. Standard library only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..outcome import BUG_REMEDY
from ..outcome import Finding
from ..outcome import Severity
from .why_process import ask

__all__ = ["ask", "findings"]

_SHOWN = 5
"""Of many files that suffer the same, so many are named."""

_RELEASE = re.compile(r"(?P<release>\d+(?:\.\d+)*)(?:[^+]*\+(?P<build>cpu|cu\d+)$)?", re.ASCII)
_REINSTALL = "pip install --force-reinstall --no-deps torch, or the package of the named file"
_BY_WORDS = (
    (
        r"file too short|invalid elf|elf header|wrong elf|truncated",
        "the file is damaged, by a full disk or a broken copy for example: install its package again",
    ),
    (
        r"glibc_|glibcxx_|cxxabi_",
        "the system, or a libstdc++ before its own, is too old: unset LD_LIBRARY_PATH, or take an old torch",
    ),
    (
        r"undefined symbol|symbol lookup|version .* not found",
        "versions are mixed: unset LD_LIBRARY_PATH and LD_PRELOAD, then install torch with what it asks for",
    ),
    (
        r"cannot open shared object file",
        "install the package that holds the missing library; torch's own wheels ask for theirs",
    ),
    (
        r"static tls",
        "have torch imported before other packages",
    ),
    (
        r"failed to map segment|executable stack|operation not permitted",
        "the file system is mounted noexec, or a security policy forbids it: move the environment",
    ),
)


def findings(facts: Mapping[str, Any]) -> list[Finding]:
    """What the facts say against this torch; one finding that says so where they say nothing."""
    if "unavailable" in facts:
        return [_unanswered(facts)]
    found = [*_which_torch(facts), *_what_it_says(facts), *_libraries(facts), *_others_first(facts)]
    return found or [_nothing(facts)]


def _finding(
    name: str, facts: Mapping[str, Any], severity: Severity = Severity.BLOCKING, **words: str
) -> Finding:
    """A finding, with the command that shows where torch is found."""
    code = "import importlib.util as u; print(u.find_spec('torch'))"
    python = shlex.quote(str(facts.get("python") or "python"))
    command = words.pop("command", f"{python} -c {shlex.quote(code)}")
    return Finding(id=name, severity=severity, command=command, **words)


def _unanswered(facts: Mapping[str, Any]) -> Finding:
    return _finding(
        "why-unanswered",
        facts,
        Severity.WARNING,
        what="why torch does not import could not be looked into",
        got=str(facts["unavailable"]),
        expected="an answer of the target interpreter",
        remedy=BUG_REMEDY if facts.get("bug") else "run the import by hand, with `python -X importtime -v`",
    )


def _nothing(facts: Mapping[str, Any]) -> Finding:
    return _finding(
        "why-nothing-found",
        facts,
        Severity.INFO,
        what="nothing was found that explains why torch does not import",
        got=f"torch {_told(facts, 'torch')} at {facts['torch']['path']}, "
        f"{facts['libraries']['tried']} libraries that each load",
        expected="an import that ends",
        remedy="look at the stack in the log of the worker: a file system, a lock or a .pth file may be slow",
        command=f"{shlex.quote(str(facts['python']))} -X importtime -c 'import torch'",
    )


def _told(facts: Mapping[str, Any], name: str) -> str:
    return str(facts.get("version", {}).get(name) or "of unknown version")


def _which_torch(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Is there a torch, and is it the right one."""
    kind, path = facts["torch"]["kind"], facts["torch"]["path"]
    whole = [copy for copy in facts["copies"] if copy["whole"]]
    first = facts["copies"][0] if facts["copies"] else None
    if first is not None and not first["whole"]:
        yield _shadowed(facts, first["path"], whole)
    elif kind == "namespace":
        yield _shadowed(facts, f"{path} (a folder without __init__.py)", whole)
    elif kind == "absent":
        yield _absent(facts)
    elif len(whole) > 1:
        yield _twice(facts, whole)
    lying = facts["working_folder"]
    if lying is not None and lying != path:
        yield _in_working_folder(facts, lying)


def _absent(facts: Mapping[str, Any]) -> Finding:
    return _finding(
        "torch-missing",
        facts,
        what="the target interpreter has no torch",
        got=facts["torch"]["error"] or f"no torch on the path of {facts['python']}",
        expected="an interpreter in which `import torch` works",
        remedy="install torch there, or name another interpreter with --python",
    )


def _shadowed(facts: Mapping[str, Any], path: str, whole: Sequence[Mapping[str, Any]]) -> Finding:
    behind = f"; the real one is at {whole[0]['path']}" if whole else "; no other torch is on the path"
    return _finding(
        "torch-shadowed",
        facts,
        what="something that is not PyTorch is found as torch",
        got=f"{path}{behind}",
        expected="the package torch with its version.py",
        remedy="rename that file or folder, or take its folder off PYTHONPATH"
        + ("" if whole else "; then install torch, or name another interpreter with --python"),
    )


def _twice(facts: Mapping[str, Any], whole: Sequence[Mapping[str, Any]]) -> Finding:
    by_user = any(copy["user_site"] for copy in whole)
    user = "set PYTHONNOUSERSITE=1, or remove the one in ~/.local" if by_user else "remove one of them"
    return _finding(
        "torch-twice",
        facts,
        Severity.WARNING,
        what=f"{len(whole)} copies of torch are on the path",
        got=", ".join(copy["path"] for copy in whole),
        expected=f"one, below {facts['prefix']}",
        remedy=f"{user}, and look which of them PYTHONPATH puts first",
    )


def _in_working_folder(facts: Mapping[str, Any], path: str) -> Finding:
    return _finding(
        "torch-in-working-folder",
        facts,
        Severity.WARNING,
        what="a torch lies in the working folder, which `python -m` and `python -c` look into first",
        got=path,
        expected="no file or folder named torch there",
        remedy="rename it, or start programs from another folder",
    )


def _what_it_says(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Do its version and its metadata fit each other and this interpreter."""
    distributions = facts.get("distributions", ())
    for distribution in distributions:
        if distribution["fits"] is False:
            yield _unfit(facts, distribution)
    versions = {distribution["version"] for distribution in distributions}
    told = facts.get("version", {}).get("torch")
    if _differ([*versions, *([told] if told is not None else [])]):
        yield _half_installed(facts, sorted(versions))
    elif facts["torch"]["kind"] == "package" and told is None:
        yield _half_installed(facts, sorted(versions) or ["none"])


def _differ(versions: Sequence[str]) -> bool:
    """Whether versions contradict each other: PyPI's wheels leave `+cu128` out of their metadata alone."""
    read = [found for version in versions if (found := _RELEASE.match(version))]
    return any(len({found[group] for found in read} - {None}) > 1 for group in ("release", "build"))


def _unfit(facts: Mapping[str, Any], distribution: Mapping[str, Any]) -> Finding:
    return _finding(
        "torch-wheel-unfit",
        facts,
        what="the installed torch was built for another interpreter or system",
        got=f"{distribution['path']}: {distribution['why']}",
        expected=f"a wheel for Python {facts['python_version']} on this machine",
        remedy="install torch anew with this very interpreter, never by copying an environment",
        command=f"{shlex.quote(facts['python'])} -m pip install --force-reinstall torch",
    )


def _half_installed(facts: Mapping[str, Any], versions: Sequence[str]) -> Finding:
    version = facts["version"]
    return _finding(
        "torch-half-installed",
        facts,
        what="torch's files and its metadata tell of different versions: an installation was broken off",
        got=f"files: {version.get('torch') or version.get('unavailable') or 'no version'}; "
        f"metadata: {', '.join(versions)}",
        expected="one version",
        remedy="uninstall torch until pip finds none, remove what is left of its folder, install it again",
        command=f"{shlex.quote(facts['python'])} -m pip uninstall torch",
    )


def _libraries(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Which libraries cannot be loaded; those that suffer the same are one finding."""
    libraries = facts.get("libraries", {"failed": [], "untried": []})
    causes: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for failure in libraries["failed"]:
        causes.setdefault((failure["how"], failure["words"]), []).append(failure)
    needed = " ".join(failure["words"] for failure in libraries["failed"] if failure["essential"])
    for (how, words), failures in causes.items():
        yield _unloadable(facts, how, words, failures, needed)
    if libraries["untried"]:
        yield _untried(facts, libraries)


def _unloadable(
    facts: Mapping[str, Any], how: str, words: str, failures: Sequence[Mapping[str, Any]], needed: str
) -> Finding:
    """It blocks if `import torch` loads it; torch's optional parts may want what is not there."""
    names = [Path(failure["path"]).name for failure in failures]
    blocks = any(failure["essential"] for failure in failures) or any(name in needed for name in names)
    shown = ", ".join(failure["path"] for failure in failures[:_SHOWN])
    more = f" and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
    return _finding(
        "torch-library-unloadable" if blocks else "torch-library-optional",
        facts,
        Severity.BLOCKING if blocks else Severity.INFO,
        what=f"{len(failures)} shared libraries of torch cannot be loaded"
        + ("" if blocks else ", though `import torch` may not need them"),
        got=f"{words or _ended(how)}: {shown}{more}",
        expected="that each loads in a process of its own",
        remedy=_remedy(how, words),
        command=f"ldd {shlex.quote(failures[0]['path'])}",
    )


def _ended(how: str) -> str:
    return "loading did not come back" if how == "hung" else f"loading ended with {how}"


def _remedy(how: str, words: str) -> str:
    if how == "hung":
        return "look at the file system that holds it; copy the environment to a local disk"
    return next((text for sign, text in _BY_WORDS if re.search(sign, words, re.IGNORECASE)), _REINSTALL)


def _untried(facts: Mapping[str, Any], libraries: Mapping[str, Any]) -> Finding:
    return _finding(
        "torch-libraries-untried",
        facts,
        Severity.WARNING,
        what="loading torch's libraries took so long that not all were tried",
        got=f"{libraries['tried']} tried, {len(libraries['untried'])} not",
        expected="that all load within 90 s",
        remedy="look at the file system that holds them; copy the environment to a local disk",
    )


def _others_first(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Other copies of libraries that the loader takes first, or may take."""
    for entry in facts.get("first", ()):
        yield _before(facts, entry)
    for name, wheels in facts.get("wheels", {}).items():
        yield _mixed(facts, f"{name}: {', '.join(wheels)}", "wheels of several versions share one folder")
    for name, files in facts.get("duplicates", {}).items():
        yield _mixed(facts, f"{name}: {', '.join(files)}", f"several copies of {name} could be loaded")


def _before(facts: Mapping[str, Any], entry: Mapping[str, Any]) -> Finding:
    variable, own = entry["variable"], entry["instead_of"]
    python = shlex.quote(str(facts["python"]))
    return _finding(
        "library-comes-first",
        facts,
        Severity.WARNING,
        what=f"{variable} has the loader take another library " + ("than torch's own" if own else "first"),
        got=entry["file"] + (f" instead of {own}" if own else ""),
        expected="torch's own libraries, unless this one is wanted",
        remedy=f"try without {variable}; if that helps, take the entry out of it",
        command=f"env -u {variable} {python} -c 'import torch'",
    )


def _mixed(facts: Mapping[str, Any], got: str, what: str) -> Finding:
    return _finding(
        "libraries-mixed",
        facts,
        Severity.WARNING,
        what=what,
        got=got,
        expected="one, of the version that torch asks for",
        remedy="uninstall them all, then install torch, which brings its own",
    )

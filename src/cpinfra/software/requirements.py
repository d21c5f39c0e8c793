"""Where what a model declares contradicts what is installed, and all findings on one model.

Pure functions of a `ModelResult`: nothing is looked up here, neither on disk nor in our own interpreter.
"""

from __future__ import annotations

import shlex

from packaging.markers import Marker
from packaging.markers import UndefinedComparison
from packaging.markers import UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier
from packaging.specifiers import Specifier
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion
from packaging.version import Version

from ..outcome import Finding
from ..outcome import Severity
from ..text import one_line
from .model_findings import QUOTED_MAX
from .model_findings import declarer
from .model_findings import interpreter
from .model_findings import of_import
from .model_findings import of_leftovers
from .model_findings import of_origin
from .models import ModelResult

MARKER_NAMES = (
    "implementation_name",
    "implementation_version",
    "os_name",
    "platform_machine",
    "platform_python_implementation",
    "platform_release",
    "platform_system",
    "platform_version",
    "python_full_version",
    "python_version",
    "sys_platform",
)
"""All that PEP 508 lets a marker ask for; one that is absent would be filled in from our own interpreter."""


def findings(result: ModelResult) -> list[Finding]:
    """All that is to be said of one model: its import, what is known of its origin, and contradictions."""
    told = [*of_import(result), *of_leftovers(result), *of_origin(result)]
    return told + _of_duplicates(result) + contradictions(result)


def contradictions(result: ModelResult) -> list[Finding]:
    """Where the declarations of the model's distribution and what is installed exclude each other.

    Every Requires-Dist whose marker holds in the target interpreter, without extras, and Requires-Python.
    Only what the model itself declares: not what its requirements require in turn.
    """
    found = _of_python(result)
    for text in dict.fromkeys(result.requires_dist):
        found += _of_requirement(result, text)
    return found


def _of_python(result: ModelResult) -> list[Finding]:
    wanted = result.requires_python
    if not wanted:
        return []
    allowed = _bounds(wanted)
    if allowed is None:
        return [_unreadable(result, f"Requires-Python: {wanted}")]
    full = result.markers.get("python_full_version", "")
    try:
        # As pip does: of a pre-release only the numbers count. A build from a checkout ends in "+".
        python = Version(full.rstrip("+")).base_version
    except InvalidVersion:
        return [_unjudged(result, f"Python {wanted}", f"the interpreter's version is told as {full!r}")]
    if allowed.contains(python, prereleases=True):
        return []
    return [
        Finding(
            id="model-python-version",
            severity=_weight(result),
            what=f"{result.name} does not accept the Python of the target interpreter",
            got=f"Python {full}, {interpreter(result)}",
            expected=f"Python {wanted}, which {declarer(result)} requires",
            remedy=f"name an interpreter with such a Python by --python, or install a release of "
            f"{result.distribution} that accepts Python {python}",
        )
    ]


def _of_requirement(result: ModelResult, text: str) -> list[Finding]:
    requirement = _requirement(text)
    if requirement is None:
        return [_unreadable(result, f"Requires-Dist: {text}")]
    applies = _applies(requirement.marker, result)
    if applies is None:
        return [_unjudged(result, text, "its marker cannot be evaluated for the target interpreter")]
    if not applies:
        return []
    name = canonicalize_name(requirement.name)
    if name not in result.installed:
        return [_absent(result, requirement)]
    version = result.installed[name]
    fits = _fits(requirement, version)
    if fits is None:
        return [_unjudged(result, text, f"the installed version is told as {version!r}")]
    return [] if fits else [_other_version(result, requirement, str(version))]


def _requirement(text: str) -> Requirement | None:
    """A line of Requires-Dist; None if it is none of PEP 508."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    return requirement if _bounds(str(requirement.specifier)) is not None else None


def _bounds(text: str) -> SpecifierSet | None:
    """Versions that are allowed; None if a bound is none of PEP 440."""
    try:
        bounds = SpecifierSet(text)
        for one in bounds:
            Specifier(str(one))  # packaging 21 takes any text for a bound of old times, which lets much pass
    except InvalidSpecifier:
        return None
    return bounds


def _applies(marker: Marker | None, result: ModelResult) -> bool | None:
    """Whether a requirement holds in the target interpreter; None where that cannot be told."""
    if marker is None:
        return True
    if any(name not in result.markers for name in MARKER_NAMES):
        return None
    try:
        return bool(marker.evaluate({**result.markers, "extra": ""}))
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion):
        return None


def _fits(requirement: Requirement, version: str | None) -> bool | None:
    """Whether the installed version is an allowed one; None where it is no version (PEP 440).

    A pre-release that is installed counts like any other: PEP 440 leaves them out of searches only.
    """
    if not requirement.specifier:
        return True
    try:
        return requirement.specifier.contains(Version(version or ""), prereleases=True)
    except InvalidVersion:
        return None


def _absent(result: ModelResult, requirement: Requirement) -> Finding:
    wanted = _wanted(requirement)
    return Finding(
        id="model-requirement-missing",
        severity=_weight(result),
        what=f"{result.name} requires {requirement.name}, which is not installed",
        got=f"no {requirement.name}, {interpreter(result)}",
        expected=f"{wanted}, which {declarer(result)} requires",
        remedy=f"install {wanted} there, or name another interpreter with --python",
        command=_install(result, wanted),
    )


def _other_version(result: ModelResult, requirement: Requirement, version: str) -> Finding:
    wanted, name = _wanted(requirement), canonicalize_name(requirement.name)
    place = result.locations.get(name)
    other_release = f"install a release of {result.distribution} that accepts {requirement.name} {version}"
    remedy, command = f"install {wanted} there, or {other_release}", _install(result, wanted)
    if name == "torch":
        # One that works on this machine is not given up for a line of metadata.
        remedy, command = f"{other_release}, or name with --python an interpreter that has {wanted}", ""
    return Finding(
        id="model-requirement-version",
        severity=_weight(result),
        what=f"{result.name} does not accept the {requirement.name} that is installed",
        got=f"{requirement.name} {version}" + (f" in {place}" if place else f", {interpreter(result)}"),
        expected=f"{wanted}, which {declarer(result)} requires",
        remedy=remedy,
        command=command,
    )


def _unreadable(result: ModelResult, line: str) -> Finding:
    return Finding(
        id="model-requirement-unreadable",
        severity=Severity.WARNING,
        what=f"a line of the metadata of {declarer(result)} cannot be read, so it is not judged",
        got=one_line(line, limit=QUOTED_MAX),
        expected="a requirement as PEP 508 writes it, a version as PEP 440 does",
        remedy=f"tell the authors of {result.distribution}; look yourself whether it is met",
    )


def _unjudged(result: ModelResult, text: str, why: str) -> Finding:
    return Finding(
        id="model-requirement-unjudged",
        severity=Severity.WARNING,
        what=f"whether what {declarer(result)} requires is met could not be told",
        got=one_line(f"{text}: {why}", limit=QUOTED_MAX),
        expected="a requirement that can be compared with what is installed",
        remedy=f"look yourself whether it is met, {interpreter(result)}",
    )


def _wanted(requirement: Requirement) -> str:
    """A requirement without its marker, as one gives it to pip."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    version = f" @ {requirement.url}" if requirement.url else str(requirement.specifier)
    return f"{requirement.name}{extras}{version}"


def _weight(result: ModelResult) -> Severity:
    """What a contradiction weighs: with a model that imports all the same it is no obstacle yet."""
    return Severity.WARNING if result.imported is True else Severity.BLOCKING


def _of_duplicates(result: ModelResult) -> list[Finding]:
    """Distributions that the model is or needs, in several versions at once."""
    concerned = {canonicalize_name(result.distribution)} if result.distribution else set()
    needed = filter(None, map(_requirement, result.requires_dist))
    concerned |= {canonicalize_name(requirement.name) for requirement in needed}
    return [
        _duplicate(name, places)
        for name, places in sorted(result.duplicates.items())
        if name in concerned and len({version for version, _ in places}) > 1
    ]


def _duplicate(name: str, places: tuple[tuple[str | None, str], ...]) -> Finding:
    return Finding(
        id="model-duplicate-distributions",
        severity=Severity.WARNING,
        what=f"{name} is installed in several versions, of which the first on the path counts",
        got="; ".join(f"{version or 'no version'} in {place}" for version, place in places),
        expected=f"one {name}",
        remedy="uninstall all but one, or take the other folder off PYTHONPATH",
    )


def _install(result: ModelResult, wanted: str) -> str:
    return shlex.join([result.python, "-m", "pip", "install", wanted]) if result.python else ""

"""What a model declares against what is installed, and what is said of an import that failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from cpinfra.outcome import BUG_REMEDY
from cpinfra.outcome import Finding
from cpinfra.outcome import Severity
from cpinfra.software.models import How
from cpinfra.software.models import ModelResult
from cpinfra.software.requirements import MARKER_NAMES
from cpinfra.software.requirements import contradictions
from cpinfra.software.requirements import findings

PYTHON = "/env with space/bin/python"
TRY = "'/env with space/bin/python' -c \"import fold\""
MARKERS = {
    "implementation_name": "cpython",
    "implementation_version": "3.12.4",
    "os_name": "posix",
    "platform_machine": "aarch64",
    "platform_python_implementation": "CPython",
    "platform_release": "6.8.0-45-generic",
    "platform_system": "Linux",
    "platform_version": "#45~22.04.1-Ubuntu SMP",
    "python_full_version": "3.12.4",
    "python_version": "3.12",
    "sys_platform": "linux",
}
INSTALLED = {
    "fold-cp": "0.3",
    "torch": "2.13.0+cpu",
    "numpy": "2.1.0",
    "nightly": "2.14.0.dev20261101+cu130",
    "candidate": "3.0rc1",
    "odd": "2004d",
    "unversioned": None,
}
GOOD = ModelResult(
    name="fold",
    imported=True,
    error="",
    traceback="",
    path="/env/fold/__init__.py",
    distribution="Fold_CP",
    version="0.3",
    requires_dist=(),
    requires_python=None,
    installed=INSTALLED,
    markers=MARKERS,
    seconds=1.5,
    python=PYTHON,
    how=How.IMPORTED,
    found=True,
    locations={"numpy": "/site/numpy-2.1.0.dist-info"},
)
BAD = replace(GOOD, imported=False, how=How.RAISED, error="RuntimeError: no", traceback="")


def wanting(*requires: str, **facts: Any) -> ModelResult:
    """A model that imports and declares this."""
    return replace(GOOD, requires_dist=requires, **facts)


def ids(found: list[Finding]) -> list[str]:
    """Their ids."""
    return [finding.id for finding in found]


def test_nothing_is_found_in_a_model_that_fits() -> None:
    """Neither of its import nor of its declarations."""
    fits = wanting("torch>=2.2,<3", "numpy", "Fold.CP", requires_python=">=3.10,<3.14")

    assert findings(fits) == []


@pytest.mark.parametrize(
    "requirement",
    [
        "torch==2.13.0",
        "torch==2.13.*",
        "torch==2.13.0+cpu",
        "torch===2.13.0+cpu",
        "torch~=2.2",
        "Torch (>=2.2)",
        "torch[optree]>=2",
        "nightly>=2.13",
        "candidate>=2",
        "numpy @ https://example.org/numpy-9.9.whl",
        "odd",
        "unversioned",
    ],
)
def test_what_is_met(requirement: str) -> None:
    """By the rules of PEP 440; a pre-release that is installed counts like any other."""
    assert contradictions(wanting(requirement)) == []


@pytest.mark.parametrize(
    "requirement",
    [
        "torch==2.13.0+cu130",
        "torch>2.13.0",
        "torch<2.13",
        "torch!=2.13.0",
        "nightly>=2.14",
        "candidate>=3.0",
        "nightly<2.14",
        "candidate<3",
    ],
)
def test_versions_that_are_not_met(requirement: str) -> None:
    """A local version counts where one is asked for; a pre-release is neither its release nor below it."""
    assert ids(contradictions(wanting(requirement))) == ["model-requirement-version"]


def test_another_version_tells_both_sides() -> None:
    """What the model wants, what is installed, where, and how to change it; two of them are told apart."""
    first, second = contradictions(wanting("numpy<2", "odd==1; os_name == 'nt'", "candidate>=4,<5"))

    assert first == Finding(
        id="model-requirement-version",
        severity=Severity.WARNING,
        what="fold does not accept the numpy that is installed",
        got="numpy 2.1.0 in /site/numpy-2.1.0.dist-info",
        expected="numpy<2, which Fold_CP 0.3 requires",
        remedy="install numpy<2 there, or install a release of Fold_CP that accepts numpy 2.1.0",
        command="'/env with space/bin/python' -m pip install 'numpy<2'",
    )
    assert second.got == f"candidate 3.0rc1, in {PYTHON}"
    assert second.expected == "candidate<5,>=4, which Fold_CP 0.3 requires"


def test_no_other_torch_is_installed() -> None:
    """One that works on the machine is not replaced for a line of metadata."""
    (finding,) = contradictions(wanting("torch<2.13"))

    assert finding.command == ""
    assert "pip" not in finding.remedy
    assert "accepts torch 2.13.0+cpu" in finding.remedy
    assert "--python" in finding.remedy


def test_what_is_absent() -> None:
    """The command installs it, without its marker, into that interpreter."""
    (finding,) = contradictions(wanting("triton[all]>=3; sys_platform == 'linux'"))

    assert (finding.id, finding.severity) == ("model-requirement-missing", Severity.WARNING)
    assert finding.got == f"no triton, in {PYTHON}"
    assert finding.expected == "triton[all]>=3, which Fold_CP 0.3 requires"
    assert finding.command == "'/env with space/bin/python' -m pip install 'triton[all]>=3'"


@pytest.mark.parametrize(
    ("marker", "holds"),
    [
        ("platform_machine == 'aarch64'", True),
        ("platform_machine == 'x86_64'", False),
        ("python_version < '3.12'", False),
        ("python_version >= '3.9' and sys_platform != 'win32'", True),
        ("python_full_version < '3.12.5'", True),
        ("extra == 'gpu'", False),
        ("extra == 'gpu' or os_name == 'posix'", True),
        ("platform_python_implementation == 'PyPy'", False),
    ],
)
def test_markers_are_those_of_the_target(marker: str, holds: bool) -> None:
    """Not those of the interpreter that judges; extras that nobody asked for are left out."""
    assert ids(contradictions(wanting(f"absent; {marker}"))) == ["model-requirement-missing"] * holds


@pytest.mark.parametrize("name", MARKER_NAMES)
def test_a_marker_without_its_value_is_not_judged(name: str) -> None:
    """Our own interpreter's value must not take its place; that it could not be told is said."""
    markers = {key: value for key, value in MARKERS.items() if key != name}

    (finding,) = contradictions(wanting("absent; os_name == 'posix'", markers=markers))

    assert (finding.id, finding.severity) == ("model-requirement-unjudged", Severity.WARNING)


@pytest.mark.parametrize(("name", "told"), [("odd", "'2004d'"), ("unversioned", "None")])
def test_a_version_that_is_none_is_not_judged(name: str, told: str) -> None:
    """It is never taken for one that fits."""
    (finding,) = contradictions(wanting(f"{name}>=1"))

    assert (finding.id, finding.severity) == ("model-requirement-unjudged", Severity.WARNING)
    assert finding.got == f"{name}>=1: the installed version is told as {told}"


@pytest.mark.parametrize("text", ["numpy >=", "two names", "", "=1", "numpy; extra =", "evil\x1b[2J ("])
def test_a_requirement_that_cannot_be_read_is_quoted(text: str) -> None:
    """And the others are judged all the same."""
    unreadable, other = contradictions(wanting(text, "numpy<2"))

    assert (unreadable.id, unreadable.severity) == ("model-requirement-unreadable", Severity.WARNING)
    assert unreadable.got == "Requires-Dist: " + text.replace("\x1b", "\\x1b")
    assert other.id == "model-requirement-version"


@pytest.mark.parametrize(
    ("wanted", "full", "found"),
    [
        (">=3.10", "3.12.4", []),
        (">=3.10,<3.12", "3.12.4", ["model-python-version"]),
        (">=3.13", "3.12.4", ["model-python-version"]),
        (">=3.14", "3.14.0rc1", []),
        (">=3.12", "3.12.4+", []),
        ("three", "3.12.4", ["model-requirement-unreadable"]),
        (">=3.10", "", ["model-requirement-unjudged"]),
        ("", "3.12.4", []),
    ],
)
def test_requires_python(wanted: str, full: str, found: list[str]) -> None:
    """Of a pre-release of Python the numbers count, as for pip; what cannot be compared is said."""
    markers = {**MARKERS, "python_full_version": full}

    assert ids(contradictions(wanting(requires_python=wanted, markers=markers))) == found


def test_another_python_tells_both_sides() -> None:
    """What is wanted, by whom, and what there is."""
    (finding,) = contradictions(wanting(requires_python="<3.12"))

    assert finding.got == f"Python 3.12.4, in {PYTHON}"
    assert finding.expected == "Python <3.12, which Fold_CP 0.3 requires"
    assert "--python" in finding.remedy


@pytest.mark.parametrize(
    ("imported", "severity"),
    [(True, Severity.WARNING), (False, Severity.BLOCKING), (None, Severity.BLOCKING)],
)
def test_a_contradiction_weighs_what_the_import_says(imported: bool | None, severity: Severity) -> None:
    """While the model imports it is no obstacle."""
    declared = wanting("absent", "numpy<2", imported=imported, requires_python="<3")

    assert {finding.severity for finding in contradictions(declared)} == {severity}


versions = st.builds(
    lambda numbers, end: ".".join(map(str, numbers)) + end,
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.sampled_from(["", "a1", "rc2", ".dev3", ".post1", "+cpu", "rc1+cu130"]),
)


@given(versions, versions)
def test_bounds_agree_with_the_order_of_versions(installed: str, bound: str) -> None:
    """For whatever is installed: `>=` holds exactly where the version without its local part is no lower."""
    public = bound.partition("+")[0]
    found = contradictions(wanting(f"some>={public}", installed={"some": installed}))

    holds = Version(Version(installed).public) >= Version(public)
    assert ids(found) == ["model-requirement-version"] * (not holds)


@given(st.text(), st.text() | st.none(), st.dictionaries(st.text(max_size=3), st.text() | st.none()))
def test_any_metadata_give_findings(text: str, python: str | None, installed: dict[str, str | None]) -> None:
    """Other people's words, of whatever kind, are no error of ours."""
    declared = wanting(text, f"numpy; {text}", requires_python=python, installed=installed)

    for finding in findings(declared):
        assert finding.got
        assert finding.remedy


def test_the_same_line_twice_is_one_finding() -> None:
    """As some tools write it."""
    assert len(contradictions(wanting("absent", "absent"))) == 1


# ----------------------------------------------------------------------------------------- the import


def only(found: list[Finding]) -> Finding:
    """The one finding, which blocks and says how to see it again."""
    (finding,) = found
    assert finding.severity is Severity.BLOCKING
    assert finding.command == TRY
    assert TRY in finding.remedy
    return finding


def test_a_model_on_no_path() -> None:
    """PYTHONPATH, the installation, and the interpreter are what may be wrong."""
    error = "ModuleNotFoundError: No module named 'fold'"

    finding = only(findings(replace(BAD, missing="fold", found=False, distribution=None, error=error)))

    assert finding.id == "model-not-found"
    assert finding.got == error
    assert "set PYTHONPATH to the folder that holds fold" in finding.remedy
    assert "--python" in finding.remedy


def test_a_part_of_a_dotted_name_that_is_absent() -> None:
    """The package is there: where it was found is said."""
    part = replace(
        BAD, name="fold.x", missing="fold.x", error="ModuleNotFoundError: No module named 'fold.x'"
    )

    (finding,) = findings(part)

    assert finding.id == "model-not-found"
    assert finding.what == "there is no module fold.x"
    assert "/env/fold/__init__.py" in finding.got
    assert "spelling" in finding.remedy


def test_a_dependency_that_is_absent() -> None:
    """Another name than the model's: the model is not what has to be found."""
    finding = only(findings(replace(BAD, missing="einops.layers", error="No module named 'einops'")))

    assert finding.id == "model-dependency-missing"
    assert finding.what == "fold is there, but imports einops.layers, which is not found"
    assert "install what provides einops.layers into that interpreter" in finding.remedy


def test_a_dependency_whose_name_begins_like_the_model() -> None:
    """`folding` is no part of `fold`, while `fold.kernels` is one."""
    other = only(findings(replace(BAD, missing="folding")))
    own = only(findings(replace(BAD, missing="fold.kernels")))

    assert other.id == own.id == "model-dependency-missing"
    assert "install what provides folding" in other.remedy
    assert "part of the model" in own.remedy


def test_an_import_that_raises() -> None:
    """The last line of its traceback is quoted, what it raised is on one line."""
    trace = 'File "/a.py", line 1, in <module>\n  x\n  File "/b.py", line 7, in f\nRuntimeError: no\n'

    finding = only(findings(replace(BAD, error="RuntimeError: no\n\x1b[2J", traceback=trace)))

    assert finding.id == "model-not-importable"
    assert finding.got == 'RuntimeError: no\\n\\x1b[2J, at File "/b.py", line 7'


@pytest.mark.parametrize(
    ("how", "imported", "name"),
    [
        (How.RAISED, False, "model-not-importable"),
        (How.ENDED, False, "model-ended-interpreter"),
        (How.HUNG, False, "model-import-hung"),
        (How.OVERDUE, None, "model-import-overdue"),
        (How.LOST, None, "model-answer-lost"),
        (How.CUT_SHORT, None, "model-not-tried"),
        (How.UNTOLD, None, "model-import-unknown"),
        (How.BUG, None, "model-import-unknown"),
        (None, False, "model-not-importable"),
        (None, None, "model-import-unknown"),
    ],
)
def test_each_way_to_fail_is_a_finding_of_its_own(how: How | None, imported: bool | None, name: str) -> None:
    """All of them block, contradictions come with them, and only our own bug is called one."""
    failed = replace(BAD, how=how, imported=imported, error="so it is")

    assert only(findings(failed)).id == name
    assert "so it is" in only(findings(failed)).got
    assert (BUG_REMEDY in only(findings(failed)).remedy) is (how is How.BUG)
    assert ids(findings(replace(failed, requires_dist=("numpy<2",)))) == [name, "model-requirement-version"]


def test_a_hang_tells_where_it_stands_and_what_it_printed() -> None:
    """Of a stack of faulthandler the first line is the innermost."""
    stack = (
        'Current thread 0x1 (most recent call first):\n  File "/wait.py", line 3\n  File "/a.py", line 1\n'
    )

    finding = only(findings(replace(BAD, how=How.HUNG, error="it hangs", traceback=stack, output="a\nb")))

    assert finding.got == 'it hangs, at File "/wait.py", line 3; it printed: a b'


def test_processes_that_could_not_be_ended() -> None:
    """A warning that names them."""
    (finding,) = findings(replace(GOOD, left=(17, 18)))

    assert (finding.id, finding.severity, finding.got) == (
        "model-left-processes",
        Severity.WARNING,
        "pids 17, 18",
    )


@pytest.mark.parametrize(
    ("facts", "name", "said"),
    [
        ({"distribution": None}, "model-requirements-unknown", "/env/fold/__init__.py belongs to no"),
        ({"shadowed": "/site/fold.dist-info"}, "model-shadows-installed", "is in /site/fold.dist-info"),
        (
            {"others": ("fold-gpu 1.0",)},
            "model-several-distributions",
            "Fold_CP 0.3 was judged; also fold-gpu",
        ),
    ],
)
def test_declarations_that_are_less_than_certain(facts: dict[str, Any], name: str, said: str) -> None:
    """They are told for information: what was compared is perhaps not what was imported."""
    (finding,) = findings(replace(GOOD, **facts))

    assert (finding.id, finding.severity) == (name, Severity.INFO)
    assert said in finding.got


def test_several_versions_of_what_the_model_needs() -> None:
    """A warning; not for what does not concern it, nor for two copies of one version."""
    two = (("2.1.0", "/a"), ("1.9", "/b"))
    duplicates = {"numpy": two, "other": two, "torch": (("1", "/a"), ("1", "/b"))}

    (finding,) = findings(wanting("NumPy>=2", "torch", duplicates=duplicates))

    assert (finding.id, finding.severity) == ("model-duplicate-distributions", Severity.WARNING)
    assert finding.got == "2.1.0 in /a; 1.9 in /b"

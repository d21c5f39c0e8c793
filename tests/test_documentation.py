"""The documentation holds: its links lead somewhere, its example is a check that works."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cpinfra import outcome
from cpinfra.cli.exit_codes import SELFTEST
from cpinfra.cli.selftest import EPILOG
from cpinfra.proof import deadlines
from cpinfra.proof import hang
from cpinfra.record import docs
from cpinfra.record.markdown import markdown
from cpinfra.worker import injection
from cpinfra.worker import registry
from cpinfra.worker.check_run import CheckRun
from cpinfra.worker.check_run import run_check
from cpinfra.worker.oracle import Pattern
from cpinfra.worker.registry import Check
from cpinfra.worker.trials import Trial

PROJECT = Path(__file__).parents[1]
EXAMPLES = PROJECT / "docs" / "examples"
PAGES = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(#[^)\s]+)?\)")


def local_links(page: Path) -> list[str]:
    """Targets within the project, as written."""
    return [target for target, _ in LINK.findall(page.read_text()) if "://" not in target]


def test_links_within_the_project_resolve() -> None:
    """Every relative link of every page names a file or folder that is there."""
    links = [(page, target) for page in PAGES for target in local_links(page)]
    broken = [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()]

    assert len(links) >= 8
    assert broken == []


@pytest.mark.parametrize("kind", [outcome.Outcome, outcome.Verdict, outcome.Scope])
def test_page_on_verdicts_explains_every_word(kind: Any) -> None:
    """Whatever a report can say is a row of docs/verdicts.md."""
    page = (PROJECT / "docs" / "verdicts.md").read_text()

    assert [word.value for word in kind if f"| `{word.value}` |" not in page] == []


def test_page_on_verdicts_lists_the_kinds_of_hang_that_there_are() -> None:
    """Every one that attribution can name, and none that it cannot."""
    page = (PROJECT / "docs" / "verdicts.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \|", page[page.index("## Hang kinds") :], re.MULTILINE)

    assert sorted(rows) == sorted([*hang.REMEDIES, "slow"])


def test_page_on_faults_lists_those_that_there_are() -> None:
    """Each as `--inject` spells it, and none that does not exist."""
    rows = re.findall(r"^\| `([^`]+)` \|", (PROJECT / "docs" / "faults.md").read_text(), re.MULTILINE)
    control = [
        text if name in injection.STAGE_TWINS else f"{text}[@CALL]"
        for name, text in injection.CONTROL_TWINS.items()
    ]

    assert sorted(rows) == sorted([*injection.DATA_TWINS, *control])


def too_long(text: str, most: int = 40) -> list[str]:
    """Functions of more than so many lines."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= most]


def test_functions_are_as_short_as_contributing_says() -> None:
    """Never over 40 lines."""
    files = list((PROJECT / "src").rglob("*.py"))

    assert "never over 40" in (PROJECT / "CONTRIBUTING.md").read_text()
    assert len(files) > 50
    assert [(file.name, too_long(file.read_text())) for file in files if too_long(file.read_text())] == []


def test_a_long_function_is_found() -> None:
    """One of 40 lines is not, one of 41 is."""
    text = "".join(f"def lines_{n}():\n" + "    pass\n" * (n - 1) for n in (40, 41))

    assert too_long(text) == ["lines_41"]


def test_exit_codes_are_documented_twice() -> None:
    """In the readme and in docs/verdicts.md, so that neither falls behind the code."""
    for page in (PROJECT / "README.md", PROJECT / "docs" / "verdicts.md"):
        rows = re.findall(r"^\| (\d+) \|", page.read_text(), re.MULTILINE)
        assert sorted(map(int, rows)) == sorted(code.value for code in outcome.ExitCode), page.name


def exit_codes_of(command: str, text: str) -> dict[int, str]:
    """What each exit code of a command means by the table of docs/verdicts.md."""
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]
    head = next(row for row in rows if row[0] == "code")
    column = head.index(f"`{command}`")
    meanings = {int(row[0]): (row[column], row[1]) for row in rows if row[0].isdigit()}
    return {code: first if own == "the same" else own for code, (own, first) in meanings.items()}


def test_exit_codes_of_selftest_mean_the_same_in_the_documentation_and_in_the_code() -> None:
    """The help and the end of a run are made from one table; docs/verdicts.md has the same words."""
    documented = exit_codes_of("selftest", (PROJECT / "docs" / "verdicts.md").read_text())
    told = " ".join(EPILOG.split())

    assert documented == SELFTEST
    assert list(SELFTEST) == [code.value for code in outcome.ExitCode]
    assert [f"{code} {meaning}" in told for code, meaning in SELFTEST.items()] == [True] * 5
    assert max(map(len, EPILOG.splitlines())) <= 100


def test_deadlines_of_operations_are_documented_as_they_are() -> None:
    """A group's first gets more times the slowest, and no more than any first where nothing is known."""
    text = (PROJECT / "docs" / "verdicts.md").read_text()
    usual, first = deadlines.TIMES_THE_SLOWEST, deadlines.TIMES_THE_SLOWEST * deadlines.TIMES_FIRST
    least = deadlines.FIRST_LEAST_S

    assert (
        f"| {usual} times the slowest completed same operation, at least {deadlines.OPERATION_LEAST_S:.0f} s;"
        in text
    )
    assert (
        f"| the same, but at least {least['cpu']:.0f} s, on GPUs {least['cuda']:.0f} s; "
        f"for a group's first {first} times the slowest in place of {usual} |"
    ) in text
    assert f"No operation gets more than {deadlines.OPERATION_MOST_S:.0f} s, but by `--budget`" in text
    assert (deadlines.COMPUTING_TIMES, deadlines.PROGRESS_TIMES) == (3, 6)


def example() -> str:
    """The check in CONTRIBUTING.md."""
    text = (PROJECT / "CONTRIBUTING.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (found,) = [block for block in blocks if "@check(" in block]
    return str(found)


@pytest.fixture
def halo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """The example, loaded as if it lay among the checks; the register forgets it afterwards."""
    monkeypatch.setattr(registry, "_registered", {})
    path = tmp_path / "halo.py"
    path.write_text(example())
    name = "cpinfra.worker.checks.halo"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return registry._registered["halo.right"][1]


def answer_of(halo: Check, arriving: Callable[[Pattern, int], Tensor]) -> dict[str, Any]:
    """Rank 1 of 4 runs the example; `arriving` makes what the door delivers from a rank."""
    at: dict[str, Trial] = {}

    def exchange(sends: list[tuple[int, Tensor]], receives: list[tuple[int, Tensor]]) -> None:
        pattern = Pattern.of(at["trial"], sources=4)
        assert [to for to, _ in sends] == [2]
        for source, buffer in receives:
            buffer.copy_(arriving(pattern, source))
        door.calls += 1

    door: Any = SimpleNamespace(exchange=exchange, calls=0)
    place: dict[str, Any] = {"rank": 1, "world": 4, "dp": 1, "cp0": 2, "cp1": 2, "backend": "gloo"}
    run = CheckRun(**place, device=torch.device("cpu"), door=door, check=halo, salt=7)
    return run_check(run, lambda trial: at.update(trial=trial))


def test_example_passes_on_the_right_data(halo: Check) -> None:
    """What CONTRIBUTING.md shows is a check that runs."""
    answer = answer_of(halo, lambda pattern, source: pattern.chunk(source))

    assert (answer["outcome"], answer["reason"]) == ("pass", "")
    assert answer["evidence"]["comparisons"] >= 16


def test_example_fails_on_another_ranks_data_and_says_whose(halo: Check) -> None:
    """And it can fail, with a reason that names what arrived."""
    answer = answer_of(halo, lambda pattern, _: pattern.chunk(3))

    assert answer["outcome"] == "fail"
    assert "the chunk of rank 3" in answer["reason"]


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in EXAMPLES.glob("*/cp_infra.json")))
def test_examples_are_reports(folder: str) -> None:
    """Each can be read, and its Markdown is what is written for it."""
    made = docs.read(EXAMPLES / folder / "cp_infra.json")

    assert (EXAMPLES / folder / "cp_infra.md").read_text() == markdown(made)


def test_there_are_examples() -> None:
    """Of a rehearsal, and of one, two and four GPUs."""
    assert len(list(EXAMPLES.glob("*/cp_infra.json"))) == 4

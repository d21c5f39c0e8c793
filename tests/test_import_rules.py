"""Who may import what, read from the source: the prover and the zip must run where nothing is installed.

import-linter holds the layers within the package (pyproject.toml); it sees neither the standard library
nor which relative imports stay true in the zip. These tests do.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from pathlib import Path

import pytest

import cpinfra
from cpinfra.proof import delivery

SOURCE = Path(cpinfra.__file__).parent
STDLIB = sys.stdlib_module_names

# Modules of worker/ that the supervisor, which has no torch, imports too; pyproject.toml permits the same.
SHARED = (
    "channel",
    "checks",
    "children",
    "exceptions",
    "flight",
    "injection",
    "ledger",
    "node_local",
    "processes",
    "progress",
    "registry",
    "signals",
    "spec",
    "trials",
)
# What a check may take of torch.distributed: words for how a tensor is placed, which move no data.
PLACEMENTS = ("Partial", "Placement", "Replicate", "Shard")
STDLIB_ONLY = [
    "cpinfra.outcome",
    "cpinfra.mesh",
    "cpinfra.text",
    "cpinfra.files",
    "cpinfra.cgroup_tree",
    *(f"cpinfra.worker.{name}" for name in SHARED),
]


def source_of(module: str) -> Path:
    """The file of a module or package of ours, by its dotted name."""
    path = SOURCE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def modules_below(package: str) -> list[str]:
    """Dotted names of all modules of a package of ours, itself first."""
    paths = sorted(source_of(package).parent.rglob("*.py"))
    names = [".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def is_type_checking(node: ast.If) -> bool:
    """Whether it is `if TYPE_CHECKING:`, whose body never runs."""
    return ast.unparse(node.test).split(".")[-1] == "TYPE_CHECKING"


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """This node and all below it, but for those that only a type checker reads."""
    yield node
    below = node.orelse if isinstance(node, ast.If) and is_type_checking(node) else ast.iter_child_nodes(node)
    for child in below:
        yield from running_nodes(child)


def imports_of(text: str, module: str, *, is_package: bool = False) -> Iterator[tuple[str, bool]]:
    """Each imported module, wherever it stands: (absolute dotted name, whether it was written relatively)."""
    parts = module.split(".")
    package = parts if is_package else parts[:-1]
    for node in running_nodes(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or "", False
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            yield from ((imported_from(base, alias.name, bare=not node.module), True) for alias in node.names)


def imported_from(base: list[str], name: str, *, bare: bool) -> str:
    """`from .x import y` is x, unless y is a module of it; `from . import y` is y."""
    inner = ".".join([*base, name])
    return inner if bare or source_of(inner).is_file() else ".".join(base)


def imports_in(module: str) -> list[tuple[str, bool]]:
    """What a module of ours imports."""
    path = source_of(module)
    return list(imports_of(path.read_text(), module, is_package=path.name == "__init__.py"))


def allowed(imported: str, names: list[str]) -> bool:
    """Whether it is one of these modules or below one."""
    return any(imported == name or imported.startswith(f"{name}.") for name in names)


def allowed_of_ours(imported: str, names: list[str]) -> bool:
    """Whether it is exactly one of these modules, or below one that is written with a final dot."""
    return imported in names or any(imported.startswith(name) for name in names if name.endswith("."))


def strangers(module: str, *, third_party: list[str], ours: list[str]) -> list[str]:
    """Imports that are neither standard library, nor in these lists, nor relative where they must be."""
    found = []
    for imported, relative in imports_in(module):
        if relative and not allowed_of_ours(imported, ours):
            found.append(f"{module} imports {imported}, allowed of ours: {', '.join(ours)}")
        elif not relative and imported.split(".")[0] not in STDLIB and not allowed(imported, third_party):
            found.append(f"{module} imports {imported}, allowed: standard library {' '.join(third_party)}")
    return found


def test_standard_library_modules_import_nothing_else() -> None:
    """outcome, mesh and what worker shares with the supervisor run on a bare Python, each on its own."""
    shared = [name for name in STDLIB_ONLY if name.startswith("cpinfra.worker.")]
    found: list[str] = []
    for module in STDLIB_ONLY:
        found += strangers(module, third_party=[], ours=shared if module in shared else [])

    assert found == []


def test_proof_imports_the_standard_library_and_what_the_zip_holds() -> None:
    """The prover runs from the zip too: relative imports, of leaves and of shared modules of worker."""
    modules = modules_below("cpinfra.proof")
    ours = [
        "cpinfra.proof.",
        "cpinfra.cgroup_tree",
        "cpinfra.files",
        "cpinfra.outcome",
        "cpinfra.text",
        *(f"cpinfra.worker.{name}" for name in SHARED),
    ]
    found = [line for module in modules for line in strangers(module, third_party=[], ours=ours)]

    assert "cpinfra.proof.delivery" in modules
    assert len(modules) >= 5
    assert found == []


@pytest.mark.parametrize("package", ["planning", "node"])
def test_what_runs_on_a_node_needs_nothing_installed(package: str) -> None:
    """The zip holds it too: relative imports, and none of what needs pydantic, jinja2, rich or packaging."""
    modules = modules_below(f"cpinfra.{package}")
    software = [
        f"cpinfra.software.{name}"
        for name in ("consistency", "interpreters", "model_findings", "models", "why")
    ]
    ours = [
        *(f"cpinfra.{name}." for name in ("planning", "hardware", "proof")),
        *(["cpinfra.node.", "cpinfra.node", "cpinfra.__version__"] if package == "node" else []),
        *("cpinfra.mesh", "cpinfra.outcome", "cpinfra.text", "cpinfra.files", "cpinfra.planning"),
        *software,
    ]
    found = [line for module in modules for line in strangers(module, third_party=[], ours=ours)]

    assert len(modules) >= 4
    assert found == []


@pytest.mark.parametrize(
    ("name", "third_party"),
    [
        ("build", []),
        ("inventory", []),
        ("recheck", []),
        ("judging", []),
        ("record", ["jinja2", "pydantic"]),
        ("report", ["pydantic"]),
    ],
)
def test_each_part_imports_only_what_it_is_there_for(name: str, third_party: list[str]) -> None:
    """What judges a proof asks others for a report; only they know the libraries that it is made with."""
    modules = modules_below(f"cpinfra.{name}") if source_of(f"cpinfra.{name}").parent.name == name else []
    found = []
    for module in modules or [f"cpinfra.{name}"]:
        found += strangers(module, third_party=third_party, ours=["cpinfra."])

    assert [line for line in found if "imports cpinfra" not in line] == []


def in_the_zip() -> list[str]:
    """Dotted names of all that is delivered, as `delivery` names it."""
    paths = {path for part in delivery.PARTS for path in SOURCE.glob(part)}
    kept = [path for path in paths if path.relative_to(SOURCE).as_posix() not in delivery.LEFT_OUT]
    names = (".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in sorted(kept))
    return [name.removesuffix(".__init__") for name in names]


def test_the_zip_imports_nothing_that_it_does_not_hold() -> None:
    """Of ours only what is delivered with it; of others torch, and NVML's module where it is at hand."""
    modules = [name for name in in_the_zip() if name != "cpinfra.worker.zip_main"]
    third_party = {"cpinfra.hardware.nvml_child": ["pynvml"]}
    ours = [*modules, "cpinfra", "cpinfra.__version__"]
    found: list[str] = []
    for module in modules:
        torch = ["torch"] if module.startswith("cpinfra.worker.") else []
        found += strangers(module, third_party=third_party.get(module, torch), ours=ours)

    assert {"cpinfra.node.main", "cpinfra.hardware.gpus", "cpinfra.software.why"} <= set(modules)
    assert "cpinfra.software.requirements" not in modules
    assert found == []


def test_worker_imports_torch_the_standard_library_and_itself() -> None:
    """Whatever the target interpreter has besides torch, the worker does not ask for it."""
    modules = [name for name in modules_below("cpinfra.worker") if name != "cpinfra.worker.zip_main"]
    found = []
    for module in modules:
        found += strangers(module, third_party=["torch"], ours=["cpinfra.worker."])

    assert len(modules) >= 12
    assert found == []


def distributed_names(text: str) -> list[str]:
    """What a file takes of torch.distributed, by import or by attribute: dotted names, at their longest."""
    tree = ast.parse(text)
    found = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    taken = {name for name in found if name.startswith(("torch.distributed", "torch.ops"))}
    return sorted(name for name in taken if not any(other.startswith(f"{name}.") for other in taken))


def past_the_door(text: str) -> list[str]:
    """What a file takes of torch.distributed beyond the names of placements."""
    homes = ("torch.distributed.tensor", "torch.distributed.tensor.placement_types")
    placements = {f"{home}.{name}" for home in homes for name in PLACEMENTS}
    return [name for name in distributed_names(text) if name not in placements]


def test_checks_do_nothing_past_the_door() -> None:
    """What a check does with its peers it does through the door, where the ledger sees it."""
    files = [source_of(name) for name in modules_below("cpinfra.worker.checks")]
    taken = [name for file in files for name in distributed_names(file.read_text())]

    assert len(files) >= 4
    assert "torch.distributed.tensor.Shard" in taken
    assert [
        (file.name, past_the_door(file.read_text())) for file in files if past_the_door(file.read_text())
    ] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch.distributed as dist", ["torch.distributed"]),
        ("from torch import distributed", ["torch.distributed"]),
        ("from torch.distributed import all_reduce", ["torch.distributed.all_reduce"]),
        ("from torch.distributed.tensor import DTensor, Shard", ["torch.distributed.tensor.DTensor"]),
        ("from torch.distributed.tensor import *", ["torch.distributed.tensor.*"]),
        ("import torch\ndef f(x):\n    torch.distributed.barrier()", ["torch.distributed.barrier"]),
        ("import torch\ntorch.ops.c10d.allreduce_(x)", ["torch.ops.c10d.allreduce_"]),
        ("from torch.distributed.tensor.placement_types import Placement, Partial", []),
        ("import torch\nfrom torch import Tensor\ntorch.zeros(3)", []),
    ],
)
def test_reader_of_torch_distributed_finds_it(text: str, expected: list[str]) -> None:
    """However it is written; the names of placements are allowed."""
    assert past_the_door(text) == expected


def importers_of_worker(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Modules that import worker without being allowed to: all of the top level but a few."""
    permitted = [f"cpinfra.{name}" for name in ("proof", "software", "launch", "worker")]
    found = [
        module
        for module, imported in imports.items()
        if not allowed(module, permitted) and any(allowed(name, ["cpinfra.worker"]) for name in imported)
    ]
    return sorted(found)


def test_only_proof_software_and_launch_look_into_worker() -> None:
    """The linter says the same, of the modules that it lists: here none is left out."""
    imports = {module: [name for name, _ in imports_in(module)] for module in modules_below("cpinfra")}

    for package in ("planning.asked", "judging.store", "node.job", "record.docs", "inventory", "recheck"):
        assert f"cpinfra.{package}" in imports
    assert "cpinfra.worker.injection" in imports["cpinfra.proof.faults"]
    assert importers_of_worker(imports) == []


def test_an_importer_of_worker_is_found() -> None:
    """Both a module of the top level and one below it, and none that may."""
    worker = ["cpinfra.worker.injection"]
    imports = {
        "cpinfra.inventory": worker,
        "cpinfra.cli.prove": worker,
        "cpinfra.node.job": worker,
        "cpinfra.proof.faults": worker,
    }

    assert importers_of_worker(imports) == ["cpinfra.cli.prove", "cpinfra.inventory", "cpinfra.node.job"]


def test_start_of_the_zip_imports_what_python_2_has() -> None:
    """Its first imports exist in every Python; its others only name the zip's own package."""
    imported = {name.split(".")[0] for name, _ in imports_in("cpinfra.worker.zip_main")}

    assert imported == {"_cpinfra_worker", "json", "os", "struct", "sys"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os.path, numpy", [("os.path", False), ("numpy", False)]),
        ("from torch.distributed import nn", [("torch.distributed", False)]),
        ("from ..outcome import Outcome", [("cpinfra.outcome", True)]),
        ("from . import a, b", [("cpinfra.proof.a", True), ("cpinfra.proof.b", True)]),
        ("from .x.y import z", [("cpinfra.proof.x.y", True)]),
        ("from ..worker import channel", [("cpinfra.worker.channel", True)]),
        ("def late():\n    import click", [("click", False)]),
        ("try:\n    import click\nexcept ImportError:\n    import rich", [("click", False), ("rich", False)]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", [("typing", False)]),
        ("import typing as t\nif t.TYPE_CHECKING:\n    import torch\nelse:\n    import click",
         [("typing", False), ("click", False)]),
    ],
)  # fmt: skip
def test_reader_of_imports_finds_them(text: str, expected: list[tuple[str, bool]]) -> None:
    """The rules are worth what this reader sees: in functions, in branches, relative ones, none for types."""
    assert list(imports_of(text, "cpinfra.proof.module")) == expected


def test_reader_counts_levels_from_a_package() -> None:
    """In an `__init__.py` one dot is the package itself."""
    assert list(imports_of("from . import a", "cpinfra.proof", is_package=True)) == [
        ("cpinfra.proof.a", True)
    ]


def test_absolute_imports_of_cpinfra_are_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be somebody else's module, or none, once the package is called `_cpinfra_worker`."""
    monkeypatch.setattr(Path, "read_text", lambda self: "import cpinfra.outcome\nfrom ..cli import main")

    found = strangers("cpinfra.proof.delivery", third_party=[], ours=["cpinfra.outcome"])

    assert [line.split(",")[0] for line in found] == [
        "cpinfra.proof.delivery imports cpinfra.outcome",
        "cpinfra.proof.delivery imports cpinfra.cli",
    ]

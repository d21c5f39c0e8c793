"""The catalogue, read without torch, is what torch's side registers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

import cpinfra
from cpinfra.proof import catalogue as module
from cpinfra.proof.catalogue import SEED
from cpinfra.proof.catalogue import TIERS
from cpinfra.proof.catalogue import CatalogueError
from cpinfra.proof.catalogue import CheckInfo
from cpinfra.proof.catalogue import catalogue
from cpinfra.proof.delivery import build_zip
from cpinfra.worker import checks
from cpinfra.worker import registry

SOURCE = Path(cpinfra.__file__).parent
FILES = Callable[..., tuple[CheckInfo, ...]]

GOOD = """
from ..registry import check

@check("{id}", tier="smoke", claim="It works.", trials=lambda space: [], min_ranks=1)
def body(run, trial):
    pass
"""


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FILES]:
    """Reads a catalogue from check files given as texts by name."""

    def _read(**texts: str) -> tuple[CheckInfo, ...]:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        return catalogue()

    monkeypatch.setattr(checks, "__path__", [str(tmp_path)])
    catalogue.cache_clear()
    yield _read
    catalogue.cache_clear()


def refused(read: FILES, **texts: str) -> str:
    """The message with which these files are refused."""
    with pytest.raises(CatalogueError) as raised:
        read(**texts)
    return str(raised.value)


def test_it_equals_the_registry_that_the_ranks_load() -> None:
    """Every check, with every field, is the same on both sides: no check escapes the supervisor or torch."""
    registered = registry.load()
    listed = {info.id: info for info in catalogue()}

    assert listed.keys() == registered.keys()
    for name, check in registered.items():
        info = asdict(listed[name])
        assert info.pop("file") == name.partition(".")[0]
        assert info == {field: getattr(check, field) for field in info}


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 1, 1), (1, 3, 1), (1, 2, 2), (2, 2, 2), (3, 1, 2)])
def test_both_sides_refuse_a_mesh_in_the_same_words(mesh: tuple[int, int, int]) -> None:
    """What the supervisor leaves out and what a rank would skip are the same, reason and remedy."""
    dp, cp0, cp1 = mesh
    given = {"world": dp * cp0 * cp1, "cp0": cp0, "cp1": cp1}
    registered = registry.load()
    said = {info.id: info.obstacle(**given) for info in catalogue()}

    assert said == {name: registered[name].obstacle(**given) for name in said}
    assert (said["dtensor.roundtrip"] is None) is (cp0 == cp1 == 2)


def test_it_holds_the_checks_that_every_proof_requires() -> None:
    """The seed's five, each with a claim, at least two twins and the smallest tier."""
    listed = {info.id: info for info in catalogue()}

    assert set(SEED) <= listed.keys()
    for name in SEED:
        assert listed[name].tier == TIERS[0]
        assert len(listed[name].twins) >= 2
        assert listed[name].claim.endswith(".")


def test_what_needs_no_import_comes_first() -> None:
    """Within a tier the checks that can start at once lead: the others' imports are hidden behind them."""
    order = [(TIERS.index(info.tier), bool(info.needs)) for info in catalogue()]

    assert order == sorted(order)


def test_tiers_come_in_their_order(read: FILES) -> None:
    """Whatever the files are called."""
    listed = read(
        a=GOOD.format(id="a.x").replace("smoke", "full"),
        b=GOOD.format(id="b.x").replace("smoke", "patterns"),
        c=GOOD.format(id="c.x").replace('tier="smoke"', 'tier="smoke", needs=("json",)'),
        d=GOOD.format(id="d.x"),
    )

    assert [info.id for info in listed] == ["d.x", "c.x", "b.x", "a.x"]


def test_every_field_is_read_from_its_source(read: FILES) -> None:
    """All literal arguments, in any order, also through the module; `trials` may be anything."""
    text = """
from .. import registry

@registry.check(
    "a.one",
    trials=[n for n in range(3)],
    twins=("shifted", "bit-flip"),
    claim="It " "works.",
    min_ranks=2,
    mesh="square",
    needs=("torch.distributed.tensor",),
    tier="smoke",
)
@staticmethod
def body(run, trial):
    pass

@other("a.two")
def helper():
    pass
"""
    assert read(a=text) == (
        CheckInfo(
            id="a.one",
            tier="smoke",
            claim="It works.",
            needs=("torch.distributed.tensor",),
            mesh="square",
            min_ranks=2,
            twins=("shifted", "bit-flip"),
            file="a",
        ),
    )


@pytest.mark.parametrize(
    ("tier", "why"),
    [
        ("SMOKE", "malformed node or string"),
        ("f'{1}'", "malformed node or string"),
        ('"smoke", twins=tuple("ab")', "malformed node or string"),
        ('"smoke", **OPTIONS', "malformed node or string"),
        ('"smoke", **{"mesh": "any"}', "unexpected keyword argument"),
        ('"smoke", colour="red"', "unexpected keyword argument 'colour'"),
    ],
)
def test_what_is_no_literal_is_refused_with_its_place(read: FILES, tier: str, why: str) -> None:
    """File, line and rule: a value that only torch's side could know would make both sides differ."""
    message = refused(read, a=GOOD.format(id="a.x").replace('"smoke"', tier))

    assert message.startswith("worker/checks/a.py:4: all arguments of @check but `trials` must be literals: ")
    assert why in message


@pytest.mark.parametrize(("argument", "name"), [('tier="smoke", ', "tier"), (", min_ranks=1", "min_ranks")])
def test_a_declaration_without_what_has_no_default_is_refused(read: FILES, argument: str, name: str) -> None:
    """A missing argument is named. The least world is one: whoever forgets it would pass for nothing."""
    message = refused(read, a=GOOD.format(id="a.x").replace(argument, ""))

    assert message.startswith("worker/checks/a.py:4: ")
    assert f"'{name}'" in message


def test_a_tier_that_does_not_exist_is_refused(read: FILES) -> None:
    """With what was got and what there is."""
    message = refused(read, good=GOOD.format(id="good.x"), a=GOOD.format(id="a.x").replace("smoke", "smoky"))

    assert message == "worker/checks/a.py:4: got tier 'smoky', expected one of smoke, patterns, full"


def test_a_duplicate_is_refused_with_both_places(read: FILES) -> None:
    """In two files and in one."""
    one = GOOD.format(id="a.x")

    assert refused(read, a=one, b="\n\n" + one) == (
        "worker/checks/b.py:6: a.x is declared already, in worker/checks/a.py:4"
    )
    assert refused(read, b=GOOD.format(id="b.x"), a=one + one) == (
        "worker/checks/a.py:10: a.x is declared already, in worker/checks/a.py:4"
    )


def test_no_check_at_all_is_refused(read: FILES) -> None:
    """An installation that lost its checks must not prove anything."""
    assert refused(read, a="x = 1\n") == (
        "worker/checks/: expected at least one function with @check, got none"
    )


IN_THE_ZIP = """
import json, sys
from dataclasses import asdict
from importlib.util import find_spec
sys.path.insert(0, sys.argv[1])
import _cpinfra_worker
del sys.path[0]
from _cpinfra_worker.proof.catalogue import catalogue
seen = [name for name in ("torch", "cpinfra") if name in sys.modules or find_spec(name)]
print(json.dumps({"checks": [asdict(info) for info in catalogue()], "seen": seen}))
"""


def test_it_is_read_from_inside_the_zip_where_there_is_no_torch(tmp_path: Path) -> None:
    """A node with nothing installed lists the same checks from the zip, which is off the path by then."""
    archive = build_zip(SOURCE, tmp_path / "with space")
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IN_THE_ZIP, archive],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["seen"] == []
    assert told["checks"] == json.loads(json.dumps([asdict(info) for info in catalogue()]))


def test_the_sources_in_the_zip_are_those_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same files, same names, same order: a refusal names the same place."""
    in_folder = list(module._sources())
    archive = build_zip(SOURCE, tmp_path)
    monkeypatch.setattr(checks, "__path__", [f"{archive}/_cpinfra_worker/worker/checks"])

    assert list(module._sources()) == in_folder
    assert len(in_folder) >= 3

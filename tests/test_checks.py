from __future__ import annotations

import ast
import itertools
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import NoReturn
from typing import cast

import pytest
import torch

from cpinfra.proof.catalogue import CheckInfo
from cpinfra.proof.results import troubled
from cpinfra.worker import ledger
from cpinfra.worker import registry
from cpinfra.worker.calls import Aborted
from cpinfra.worker.calls import DoorError
from cpinfra.worker.check_run import CheckRun
from cpinfra.worker.check_run import absence
from cpinfra.worker.check_run import run_check
from cpinfra.worker.comm import Door
from cpinfra.worker.injection import DATA_TWINS
from cpinfra.worker.registry import Check
from cpinfra.worker.registry import RegistryError
from cpinfra.worker.registry import check
from cpinfra.worker.trials import Trial
from cpinfra.worker.trials import TrialSpace

DRIVER = Path(__file__).with_name("check_driver.py")
CHECK_FILES = Path(registry.__file__).with_name("checks")
SOURCES = Path(registry.__file__).parents[2]

ALL = (
    "collective.all_reduce",
    "collective.all_gather",
    "collective.reduce_scatter",
    "p2p.ring",
    "dtensor.roundtrip",
    "dtensor.roundtrip_1d",
)
ANY_MESH = tuple(name for name in ALL if name != "dtensor.roundtrip")
COLLECTIVES = ALL[:3]
ONE_RANK = ("collective.all_gather", "collective.reduce_scatter")

Answers = list[dict[str, Any]]
"""Of one check, by rank."""


def drive(folder: Path, jobs: Sequence[dict[str, Any]], *, optimise: bool = False) -> list[Answers]:
    """Run jobs (see `check_driver.Job`) on real ranks: per job what each rank said."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONOPTIMIZE": "1" if optimise else "",
    }
    command = [sys.executable, str(DRIVER), json.dumps(list(jobs)), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results: list[Answers] = json.loads(done.stdout)
    broken = [rank["broken"] for job in results for rank in job if "broken" in rank]
    assert not broken, broken[0]
    return results


def answers(ranks: Answers, place: int = 0) -> Answers:
    """What the ranks answered to the check at this place of their job."""
    return [rank["answers"][place] for rank in ranks]


# ------------------------------------------------------------------------------------ real ranks, clean


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> list[Answers]:
    """All checks on 2 x 2, on two replicas of it, on 3 x 3; those for any mesh on 2 and 3 ranks, or 1."""
    jobs: list[dict[str, Any]] = [
        {"cp0": 2, "cp1": 2, "checks": ALL},
        {"dp": 2, "cp0": 2, "cp1": 2, "checks": ALL},
        {"cp0": 3, "cp1": 3, "checks": ALL},
        {"dp": 1, "checks": ONE_RANK},
        {"dp": 2, "checks": ANY_MESH},
        {"dp": 3, "checks": ANY_MESH},
    ]
    return drive(tmp_path_factory.mktemp("clean"), jobs)


def test_healthy_ranks_pass_every_check_on_every_mesh(clean: list[Answers]) -> None:
    """No false alarm, with a reason or remedy for nothing, on 1 to 9 ranks."""
    said = [answer for job in clean for rank in job for answer in rank["answers"]]

    assert len(said) == 4 * 6 + 8 * 6 + 9 * 6 + 1 * 2 + 2 * 5 + 3 * 5
    assert {(a["outcome"], a["reason"], a["remedy"], a["broken"], a["bug"]) for a in said} == {
        ("pass", "", "", False, False)
    }


@pytest.mark.parametrize("name", ALL)
def test_a_pass_says_what_it_covers(clean: list[Answers], name: str) -> None:
    """Dtypes, sizes, forms, and how many elements were compared."""
    evidence = answers(clean[0], ALL.index(name))[0]["evidence"]

    assert sorted(evidence["dtypes"]) == ["bfloat16", "float16", "float32", "float64", "int32", "int64"]
    assert evidence["absent"] == {}
    assert evidence["repetitions"] in {8, 9, 18}
    assert evidence["comparisons"] >= 9
    assert evidence["bytes_moved"] > evidence["elements"] > 10_000
    assert evidence["shapes"]


def test_both_forms_are_covered(clean: list[Answers]) -> None:
    """Where an operation has two."""
    forms = {name: answers(clean[0], ALL.index(name))[0]["evidence"]["forms"] for name in ALL}

    assert forms["collective.all_reduce"] == ["tensor", "tensor max"]
    assert forms["collective.all_gather"] == ["tensor", "list"]
    assert forms["collective.reduce_scatter"] == ["tensor", "list"]
    assert forms["dtensor.roundtrip_1d"] == ["rows", "columns"]


def test_healthy_ranks_enter_the_same_calls_at_the_same_numbers(clean: list[Answers]) -> None:
    """Check, site, repetition, operation, group, shape and dtype: what differs in any would be a divergence.

    Of DTensor, too, whose tiles differ from rank to rank, and the digests of all that was entered agree.
    """
    identity = ("check", "site", "repetition", "operation", "group", "shape", "dtype", "count", "first")
    for ranks in clean:
        entered = [
            [(call["call"], *(call.get(word) for word in identity)) for call in rank["entered"]]
            for rank in ranks
        ]
        assert [number for number, *_ in entered[0]] == list(range(1, len(entered[0]) + 1))
        assert all(each == entered[0] for each in entered)
        assert all(rank["history"] == ranks[0]["history"] for rank in ranks)
        assert ranks[0]["history"]["count"] == len(entered[0])


def calls_of(clean: list[Answers], checks: Sequence[str], world: int, backend: str) -> int:
    """How many calls of the door these checks make of each rank of a world.

    From the lists of trials there, and from what real ranks call in a first repetition and in further ones.
    """
    made = Counter((call["check"], call["repetition"]) for call in clean[0][0]["entered"])
    side = math.isqrt(world) if math.isqrt(world) ** 2 == world else 1
    space = TrialSpace(world=world, cp0=side, cp1=side, backend=backend, salt=1)
    total = 0
    for name in checks:
        first, *further = [number for (check, _), number in sorted(made.items()) if check == name]
        total += first + max(further) * (len(registry.load([name])[name].trials(space)) - 1)
    return total


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("world", [2, 3, 4, 5, 8, 9, 16, 17, 64, 256, 257, 1024])
def test_the_ledger_keeps_every_call_of_all_checks(clean: list[Answers], world: int, backend: str) -> None:
    """A rank that parts from the others and blocks nobody may be through before it is looked at.

    A check that is added, or made longer, and does not fit needs a larger ring (`_RECORDS` of the ledger).
    """
    needed = 2 * calls_of(clean, sorted(registry.load()), world, backend)  # each is entered and left

    assert needed <= ledger.records_per_rank(world), f"{world} ranks over {backend} write {needed} records"


def test_the_calls_of_a_proof_follow_from_its_trials(clean: list[Answers]) -> None:
    """Counted so they are as many as real ranks have made, on 4, 8, 9, 2 and 3 ranks."""
    for place, checks, world in ((0, ALL, 4), (1, ALL, 8), (2, ALL, 9), (4, ANY_MESH, 2), (5, ANY_MESH, 3)):
        assert len(clean[place][0]["entered"]) == calls_of(clean, checks, world, "gloo")


def test_healthy_ranks_pass_what_their_plan_says(clean: list[Answers]) -> None:
    """In every call of every check on every mesh; and each but the first few knows a slowest one."""
    calls = [call for ranks in clean for rank in ranks for call in rank["entered"]]

    assert {call["check"] for call in calls} == set(ALL) == set(registry.load())
    assert [call for call in calls if "planned" in call] == []
    assert sum("slowest_s" in call for call in calls) > len(calls) / 2
    assert all(0 < call["slowest_s"] < 60 for call in calls if "slowest_s" in call)


# ------------------------------------------------------------------------------------ real ranks, twins

# What the first rank that fails must say: of two subjects where the operation has two.
SAYS = {
    ("collective.all_reduce", "reversed-shard"): ("the sum is reversed",),
    ("collective.all_reduce", "first-element-only"): ("the sum holds its first element everywhere",),
    ("collective.all_reduce", "shifted"): ("the sum is shifted by 1 towards its end",),
    ("collective.all_reduce", "stale-buffer"): ("the sum holds rank 0's own contribution, not reduced",),
    ("collective.all_reduce", "bit-flip"): ("the sum differs in one bit, at index 34",),
    ("collective.all_gather", "wrong-chunk"): (
        "slot 0 holds the chunk of rank 1",
        "slot 3 holds the chunk of rank 0",
    ),
    ("collective.all_gather", "reversed-shard"): ("slot 0 is reversed", "slot 3 is reversed"),
    ("collective.all_gather", "first-element-only"): (
        "slot 0 holds its first element everywhere",
        "slot 3 holds its first element everywhere",
    ),
    ("collective.all_gather", "shifted"): ("slot 0 is shifted by 1", "slot 3 is shifted by 1"),
    ("collective.all_gather", "swapped-slots"): (
        "slot 0 holds the chunk of rank 1",
        "slot 1 holds the chunk of rank 0",
        "slot 0 and slot 1 are exchanged",
    ),
    ("collective.all_gather", "stale-buffer"): ("slot 0 was never written", "slot 3 was never written"),
    ("collective.all_gather", "bit-flip"): ("slot 3 differs in one bit, at index 0",),
    ("collective.reduce_scatter", "wrong-chunk"): ("the sum for rank 0 holds the sum for rank 1",),
    ("collective.reduce_scatter", "reversed-shard"): ("the sum for rank 0 is reversed",),
    ("collective.reduce_scatter", "first-element-only"): ("rank 0 holds its first element everywhere",),
    ("collective.reduce_scatter", "shifted"): ("the sum for rank 0 is shifted by 1",),
    ("collective.reduce_scatter", "stale-buffer"): ("the sum for rank 0 was never written",),
    ("collective.reduce_scatter", "bit-flip"): ("the sum for rank 3 differs in one bit, at index 34",),
    ("p2p.ring", "wrong-chunk"): (
        "the message from the left (rank 3) holds what rank 1 sent to its left",
        "the message from the right (rank 1) holds what rank 3 sent to its right",
    ),
    ("p2p.ring", "reversed-shard"): ("left (rank 3) is reversed", "right (rank 1) is reversed"),
    ("p2p.ring", "first-element-only"): ("left (rank 3) holds its first", "right (rank 1) holds its first"),
    ("p2p.ring", "shifted"): ("left (rank 3) is shifted by 1", "right (rank 1) is shifted by 1"),
    ("p2p.ring", "swapped-slots"): (
        "the message from the left (rank 3) and the message from the right (rank 1) are exchanged",
    ),
    ("p2p.ring", "stale-buffer"): ("left (rank 3) was never written", "right (rank 1) was never written"),
    ("p2p.ring", "bit-flip"): ("the message from the right (rank 0) differs in one bit, at index 34",),
    ("dtensor.roundtrip", "wrong-chunk"): ("tile (0, 0) holds tile (0, 1)", "of the whole holds tile"),
    ("dtensor.roundtrip", "reversed-shard"): ("tile (0, 0) is reversed",),
    ("dtensor.roundtrip", "first-element-only"): ("tile (0, 0) holds its first element everywhere",),
    ("dtensor.roundtrip", "shifted"): ("tile (0, 0) is shifted by 1", "(1, 1) of the whole is shifted"),
    ("dtensor.roundtrip", "swapped-slots"): (
        "tile (0, 0) of the whole and tile (0, 1) of the whole are exchanged",
    ),
    ("dtensor.roundtrip", "stale-buffer"): ("tile (0, 0) differs (90 of 90",),
    ("dtensor.roundtrip", "swapped-axes"): ("tile (0, 1) holds tile (1, 0)",),
    ("dtensor.roundtrip", "bit-flip"): ("tile (1, 1) of the whole differs in one bit",),
    ("dtensor.roundtrip_1d", "wrong-chunk"): ("shard 0 holds shard 1", "shard 0 of the whole holds shard 1"),
    ("dtensor.roundtrip_1d", "reversed-shard"): ("shard 0 of the whole holds shard 3",),
    ("dtensor.roundtrip_1d", "first-element-only"): ("shard 0 holds its first element everywhere",),
    ("dtensor.roundtrip_1d", "shifted"): ("shard 0 is shifted by 1 towards its end",),
    ("dtensor.roundtrip_1d", "stale-buffer"): ("shard 0 differs (90 of 90",),
    ("dtensor.roundtrip_1d", "bit-flip"): ("shard 3 of the whole differs in one bit",),
}
TWO_RANK_TWINS = ("wrong-chunk", "swapped-slots", "shifted")


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Answers]:
    """Every check with every twin that it declares, on 2 x 2 ranks, without asserts.

    Two trials each; all of them for the twin that is the hardest to see. And a ring of two ranks.
    """
    jobs = {(name, twin): _twin_job(name, twin) for name, twin in SAYS}
    for twin in TWO_RANK_TWINS:
        jobs["two ranks", twin] = {"dp": 2, "checks": ["p2p.ring"], "twin": twin, "limit": 2}
    results = drive(tmp_path_factory.mktemp("spoiled"), list(jobs.values()), optimise=True)
    return dict(zip(jobs, results, strict=True))


def _twin_job(name: str, twin: str) -> dict[str, Any]:
    limit = {} if twin == "bit-flip" else {"limit": 2}
    return {"cp0": 2, "cp1": 2, "checks": [name], "twin": twin, **limit}


@pytest.mark.parametrize(("name", "twin"), SAYS, ids=lambda value: value)
def test_each_check_catches_each_of_its_twins_for_the_right_reason(
    spoiled: dict[tuple[str, str], Answers], name: str, twin: str
) -> None:
    """The fault fired, the check failed, and its words name what arrived instead. With -O, too."""
    ranks = spoiled[name, twin]
    failed = [answer for answer in answers(ranks) if answer["outcome"] == "fail"]

    assert sum(rank["fired"] for rank in ranks) > 0
    assert failed, answers(ranks)
    assert all(phrase in failed[0]["reason"] for phrase in SAYS[name, twin]), failed[0]["reason"]
    assert {answer["outcome"] for answer in answers(ranks)} <= {"fail", "pass"}
    assert not any(answer["broken"] for answer in failed)
    assert f"--only {name}" in failed[0]["remedy"]
    assert "its communication library, a link or device memory gave wrong data" in failed[0]["remedy"]


@pytest.mark.parametrize("name", ALL)
def test_one_flipped_bit_is_caught_in_every_trial(spoiled: dict[tuple[str, str], Answers], name: str) -> None:
    """On the last rank, in every dtype, size and form that is tried.

    The grid's whole is flipped once in its tile and once more after it was put together, which undoes it:
    there only the tile differs.
    """
    last = answers(spoiled[name, "bit-flip"])[3]
    expected = last["evidence"]["repetitions" if name == "dtensor.roundtrip" else "comparisons"]

    assert expected >= 8
    assert last["reason"].startswith(f"{expected} of {last['evidence']['comparisons']} comparisons")


@pytest.mark.parametrize("twin", TWO_RANK_TWINS)
def test_two_ranks_whose_neighbours_are_the_same_peer_tell_the_messages_apart(
    spoiled: dict[tuple[str, str], Answers], twin: str
) -> None:
    """Left and right are both the other rank: the payload decides."""
    said = answers(spoiled["two ranks", twin])[0]

    assert said["outcome"] == "fail"
    assert "from the left (rank 1)" in said["reason"]
    assert "from the right (rank 1)" in said["reason"]


@pytest.mark.parametrize("name", ALL)
def test_each_check_declares_the_twins_that_are_tested_here(name: str) -> None:
    """At least two, and why all others cannot act: a new twin or check must come with its words above."""
    found = registry.load([name])[name]
    twins = found.twins

    assert len(twins) >= 2
    assert sorted([*twins, *found.immune]) == sorted(DATA_TWINS)
    assert all(why.endswith(".") for why in found.immune.values())
    assert {twin for check_name, twin in SAYS if check_name == name} == set(twins)


def test_what_a_check_is_immune_to_cannot_act_on_it(tmp_path: Path) -> None:
    """Planted all the same, in every trial, it changes nothing on any rank."""
    immune = [(name, twin) for name, found in registry.load().items() for twin in found.immune]
    jobs = [{"cp0": 2, "cp1": 2, "checks": [name], "twin": twin} for name, twin in immune]

    for (name, twin), ranks in zip(immune, drive(tmp_path, jobs), strict=True):
        assert sum(rank["fired"] for rank in ranks) == 0, (name, twin)
        assert {answer["outcome"] for answer in answers(ranks)} == {"pass"}


# ------------------------------------------------------------------------- operations that do nothing


@dataclass(frozen=True)
class Untouched:
    """A DTensor of which every part is what was given."""

    given: torch.Tensor

    def to_local(self) -> torch.Tensor:
        """The same."""
        return self.given


class IdleDoor:
    """A door whose operations leave everything as it is, and hand back what they were given."""

    def __init__(self) -> None:
        self._looks = itertools.count()

    @property
    def calls(self) -> int:
        """Another number at every look: operations were called."""
        return next(self._looks)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def distribute(self, tensor: torch.Tensor, mesh: object, placements: object) -> Untouched:
        """Every rank keeps what it gave."""
        return Untouched(tensor)

    def full_tensor(self, dtensor: Untouched) -> torch.Tensor:
        """The local part passes for the whole."""
        return dtensor.given


def idle_answers(name: str, side: int | None, world: int) -> Answers:
    """What each rank answers where nothing is done: on a square of this side, else on so many ranks."""
    found = replace(registry.load([name])[name], min_ranks=1)
    cp = {"cp0": side, "cp1": side} if side else {"cp0": world, "cp1": 1}
    place: dict[str, Any] = {"world": world, "dp": 1, **cp, "device": torch.device("cpu"), "backend": "gloo"}
    doors = [cast(Door, IdleDoor()) for _ in range(world)]
    runs = [CheckRun(rank=rank, **place, door=door, check=found, salt=5) for rank, door in enumerate(doors)]
    return [run_check(run, lambda _: None) for run in runs]


def test_in_its_least_world_every_check_fails_if_its_operation_does_nothing() -> None:
    """On every rank and in every trial: what a pass says there was done, not found."""
    for name, found in registry.load().items():
        # The round trip runs at any world size; what one rank says of it is little.
        world = 2 if name == "dtensor.roundtrip_1d" else found.min_ranks
        side = math.isqrt(world) if found.mesh == "square" else None
        for answer in idle_answers(name, side, world):
            assert (answer["outcome"], answer["broken"]) == ("fail", False), name
            wrong = int(answer["reason"].partition(" of ")[0])
            assert wrong >= answer["evidence"]["repetitions"] >= 6, name


@pytest.mark.parametrize("name", ["collective.all_reduce", "dtensor.roundtrip_1d"])
def test_in_a_smaller_world_an_operation_that_does_nothing_would_pass(name: str) -> None:
    """Which is why all_reduce needs another rank, and why a pass claims no more than its world size."""
    (answer,) = idle_answers(name, None, 1)

    assert answer["outcome"] == "pass"


# ----------------------------------------------------------------------------------------- the registry


def test_all_checks_are_found() -> None:
    """Each file is imported and each decorated function is there, under its id."""
    found = registry.load()

    assert set(ALL) <= set(found)
    assert all(name == check.id for name, check in found.items())
    assert all(check.claim.endswith(".") for check in found.values())


def test_asking_for_collectives_does_not_import_dtensor() -> None:
    """The first generation of ranks is forked before half a second is spent on it."""
    code = (
        "import sys; from cpinfra.worker import registry; "
        f"registry.load({COLLECTIVES!r}); print('torch.distributed.tensor' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout.strip() == "False"


def test_every_argument_of_the_decorator_but_trials_is_a_literal() -> None:
    """The supervisor has no torch and reads them from the source."""
    for path in sorted(CHECK_FILES.glob("*.py")):
        for call in _decorators(path):
            ast.literal_eval(call.args[0])
            for word in call.keywords:
                if word.arg != "trials":
                    ast.literal_eval(word.value)


def _decorators(path: Path) -> list[ast.Call]:
    functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return [call for function in functions for call in function.decorator_list if isinstance(call, ast.Call)]


def test_there_is_a_decorator_for_every_check() -> None:
    """A guard for the test above: it has looked at all of them."""
    ids = [ast.literal_eval(c.args[0]) for path in CHECK_FILES.glob("*.py") for c in _decorators(path)]

    assert sorted(ids) == sorted(registry.load())


def test_rejects_two_checks_of_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever came first would win silently."""
    monkeypatch.setattr(registry, "_registered", {})

    def body(run: CheckRun, trial: Trial) -> None: ...

    body.__module__ = "elsewhere.mine"
    declare = check("mine.a", tier="smoke", claim="x", trials=lambda _: (), min_ranks=1)
    declare(body)

    with pytest.raises(RegistryError, match=r"'mine.a' is declared twice: in elsewhere.mine and in else"):
        declare(body)


def test_rejects_an_id_that_does_not_name_its_file() -> None:
    """The prefix is how one check is loaded without the needs of all others."""

    def body(run: CheckRun, trial: Trial) -> None: ...

    with pytest.raises(RegistryError, match=r"'yours.a' is declared in test_checks.py: its id must say so"):
        check("yours.a", tier="smoke", claim="x", trials=lambda _: (), min_ranks=1)(body)


def test_rejects_checks_that_do_not_exist() -> None:
    """All of them at once, with the files that do."""
    with pytest.raises(
        RegistryError, match=r"no such check: collective.b, p2p.a; files of checks: collective, dtensor, p2p"
    ):
        registry.load(["p2p.a", "p2p.ring", "collective.b"])


# -------------------------------------------------------------------------- one check, without any ranks


class NoDoor:
    """A door that no test opens; it counts as used unless `unused`."""

    def __init__(self, *, unused: bool = False) -> None:
        self._looks = itertools.repeat(0) if unused else itertools.count()

    @property
    def calls(self) -> int:
        """Another number at every look, unless nothing was ever called."""
        return next(self._looks)

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"unexpected use of the door: {name}")


def trial(repetition: int, dtype: str = "int64", form: str = "tensor", reduction: str = "") -> Trial:
    """A trial of four elements."""
    kind = {"dtype": dtype, "form": form, "reduction": reduction}
    return Trial(shape=(4,), repetition=repetition, salt=1, **kind)


def made(
    body: Callable[[CheckRun, Trial], None],
    trials: Sequence[Trial] = (trial(1), trial(2)),
    *,
    mesh: str = "any",
    min_ranks: int = 1,
    unused: bool = False,
) -> CheckRun:
    """A run of a check with this body, on rank 1 of 4."""
    own = Check(
        id="own.check",
        tier="smoke",
        claim="x.",
        needs=(),
        mesh=mesh,
        min_ranks=min_ranks,
        twins=(),
        immune={},
        trials=lambda _: trials,
        body=body,
    )
    return CheckRun(
        rank=1,
        world=4,
        dp=2,
        cp0=1,
        cp1=2,
        device=torch.device("cpu"),
        backend="gloo",
        door=cast(Door, NoDoor(unused=unused)),
        check=own,
        salt=5,
    )


def answer_of(run: CheckRun) -> dict[str, Any]:
    """Run it."""
    return run_check(run, lambda _: None)


def equal(run: CheckRun, _: Trial) -> None:
    """A body whose comparison holds."""
    run.compare(torch.arange(4), torch.arange(4), what="it")


def refused(text: str, cause: type[Exception] = RuntimeError) -> DoorError:
    """What the door raises when torch has raised."""
    error = DoorError("all_reduce", "collective.py:9", f"{cause.__name__}: {text}")
    error.__cause__ = cause(text)
    return error


def test_an_answer_is_json_with_its_evidence() -> None:
    """Counts are of this rank."""
    answer = answer_of(made(equal))

    assert json.loads(json.dumps(answer)) == answer
    assert 0 <= answer.pop("seconds") < 5
    assert answer == {
        "check": "own.check",
        "rank": 1,
        "outcome": "pass",
        "reason": "",
        "remedy": "",
        "broken": False,
        "bug": False,
        "error": None,
        "evidence": {
            "dtypes": ["int64"],
            "absent": {},
            "shapes": [[4]],
            "forms": ["tensor"],
            "repetitions": 2,
            "trials": ["int64 tensor 4", "int64 tensor 4"],
            "comparisons": 2,
            "elements": 8,
            "bytes_moved": 64,
        },
    }


def test_each_trial_is_announced_before_it_runs() -> None:
    """The rank writes it into the ledger."""
    order: list[str] = []

    run_check(
        made(lambda _, t: order.append(f"run {t.repetition}")), lambda t: order.append(f"at {t.repetition}")
    )

    assert order == ["at 1", "run 1", "at 2", "run 2"]


def test_differences_do_not_stop_a_check_and_the_first_three_are_told() -> None:
    """Which trial, which part, what was expected and what came; the rest by number."""

    def body(run: CheckRun, t: Trial) -> None:
        run.compare(torch.tensor([1, 2, 9, t.repetition]), torch.tensor([1, 2, 3, 4]), what="the sum")

    answer = answer_of(made(body, [trial(n, reduction="sum") for n in range(1, 6)]))

    assert (answer["outcome"], answer["broken"], answer["bug"]) == ("fail", False, False)
    assert answer["reason"].startswith("5 of 5 comparisons differ | int64 (4,), form tensor, sum, repet")
    assert "the sum differs (2 of 4 elements wrong; element 2: expected 3; got 9)" in answer["reason"]
    assert answer["reason"].count("repetition") == 3
    assert answer["reason"].endswith("| and 2 more")
    assert "--only own.check" in answer["remedy"]


def test_a_result_of_another_shape_or_dtype_is_a_difference() -> None:
    """Both are told: the tile of DTensor is compared in shape too."""

    def body(run: CheckRun, t: Trial) -> None:
        got = torch.zeros(2, 3) if t.repetition == 1 else torch.zeros(2, 2, dtype=torch.float64)
        run.compare(got, torch.zeros(2, 2), what="tile (0, 1)")

    reason = answer_of(made(body))["reason"]

    assert "the result: shape (2, 3) instead of (2, 2)" in reason
    assert "tile (0, 1): dtype torch.float64 instead of torch.float32" in reason


def test_hypotheses_are_asked_only_when_something_is_wrong() -> None:
    """They cost more than the comparison."""

    def body(run: CheckRun, _: Trial) -> None:
        run.compare(torch.ones(2), torch.ones(2), what="it", hypotheses=lambda: pytest.fail("was asked"))

    assert answer_of(made(body))["outcome"] == "pass"


def test_a_check_that_calls_no_operation_is_unknown() -> None:
    """What compares its own expectation with itself proves nothing, however much it compares."""

    def body(run: CheckRun, tried: Trial) -> None:
        run.compare(torch.ones(4), torch.ones(4), what="itself")

    answer = answer_of(made(body, unused=True))

    assert answer["outcome"] == "unknown"
    assert answer["reason"] == "no operation was called: the check tests nothing"
    assert answer_of(made(body))["outcome"] == "pass"


def test_a_check_that_compares_nothing_is_unknown() -> None:
    """Never a pass: nothing was seen."""
    answer = answer_of(made(lambda _run, _trial: None))

    assert (answer["outcome"], answer["reason"]) == ("unknown", "no trial compared anything")
    assert answer["remedy"]
    assert answer["evidence"]["dtypes"] == []


def test_a_dtype_that_the_backend_lacks_is_left_out_from_then_on() -> None:
    """It is recorded in torch's words, and the others decide."""
    tried: list[str] = []

    def body(run: CheckRun, t: Trial) -> None:
        tried.append(t.dtype)
        if t.dtype == "bfloat16":
            raise refused("Invalid scalar type")
        equal(run, t)

    answer = answer_of(made(body, [trial(1, "bfloat16"), trial(2), trial(3, "bfloat16")]))

    assert tried == ["bfloat16", "int64"]
    assert answer["outcome"] == "pass"
    assert answer["evidence"]["absent"] == {"bfloat16": "Invalid scalar type"}
    assert answer["evidence"]["dtypes"] == ["int64"]


def test_a_check_whose_every_trial_is_absent_is_skipped_as_measured() -> None:
    """Two dtypes, both in torch's words; a skip is never a pass."""

    def body(_run: CheckRun, t: Trial) -> None:
        raise refused(f"Unconvertible NCCL type {t.dtype}")

    answer = answer_of(made(body, [trial(1, "int64"), trial(2, "int32")]))

    assert (answer["outcome"], answer["broken"]) == ("skip", False)
    assert answer["reason"] == (
        "measured: gloo lacks int64: Unconvertible NCCL type int64; int32: Unconvertible NCCL type int32"
    )
    assert answer["remedy"]


@pytest.mark.parametrize(
    ("text", "cause", "expected"),
    [
        ("Invalid scalar type", RuntimeError, "bfloat16"),
        ("Unconvertible NCCL type Short", RuntimeError, "bfloat16"),
        ("Input tensor data type is not supported for NCCL process group: Short", TypeError, "bfloat16"),
        ("Unsupported data type.", RuntimeError, "bfloat16"),
        ("\"sum_cpu\" not implemented for 'BFloat16'", NotImplementedError, "bfloat16"),
        ("ProcessGroupGloo does not support reduce_scatter", RuntimeError, "list"),
        ("Cannot use ReduceOp.AVG with Gloo", RuntimeError, "max"),
        ("this backend has none", NotImplementedError, "list"),
        ("Connection closed by peer [127.0.0.1]:4242", RuntimeError, ""),
        ("Timed out waiting 1000ms; operation not supported", RuntimeError, ""),
        ("NCCL error: unhandled cuda error. Last error: operation not supported", RuntimeError, ""),
        ("CUDA driver error: operation not supported", RuntimeError, ""),
        ("CUDA error: operation not supported", RuntimeError, ""),
        ("tensor sizes do not match", RuntimeError, ""),
    ],
)
def test_absence_is_told_from_failure(text: str, cause: type[Exception], expected: str) -> None:
    """What torch lacks is no fault of the machine; what CUDA calls unsupported may be."""
    assert absence(refused(text, cause), trial(1, "bfloat16", "list", "max")) == expected


def test_an_error_of_torch_in_the_door_is_a_failure() -> None:
    """With torch's own type, text and traceback, and where the door was called."""

    def body(_run: CheckRun, _trial: Trial) -> None:
        raise refused("Connection closed by peer")

    answer = answer_of(made(body))

    assert (answer["outcome"], answer["broken"], answer["bug"]) == ("fail", True, False)
    assert answer["reason"] == ("RuntimeError in all_reduce (collective.py:9): Connection closed by peer")
    assert answer["error"]["type"] == "RuntimeError"
    assert answer["error"]["text"] == "Connection closed by peer"
    assert answer["error"]["site"] == "collective.py:9"
    assert "DoorError" in answer["error"]["traceback"]
    assert answer["remedy"]


@pytest.mark.parametrize(
    ("error", "text"), [(KeyError("ours"), "KeyError {}: 'ours'"), (SystemExit(5), "SystemExit {}: 5")]
)
def test_an_error_of_ours_is_unknown_and_a_bug(error: BaseException, text: str) -> None:
    """It says nothing about the machine, and its traceback is kept; one that would end the rank, too."""

    def body(_run: CheckRun, _trial: Trial) -> None:
        raise error

    answer = answer_of(made(body))

    assert (answer["outcome"], answer["broken"], answer["bug"]) == ("unknown", True, True)
    assert answer["reason"] == text.format("in the code of own.check")
    assert "in body" in answer["error"]["traceback"]
    assert answer["remedy"] == ""  # the supervisor's, which is the same for all bugs


def test_a_device_at_fault_has_one_remedy_in_a_check_and_before_any() -> None:
    """A rank without memory in its own code says what the supervisor says of one that cannot join."""

    def body(_run: CheckRun, _trial: Trial) -> None:
        raise MemoryError("no memory")

    answer = answer_of(made(body))
    info = CheckInfo(id="own.check", tier="smoke", claim="", min_ranks=2, file="")
    trouble = {"rank": 0, "kind": "device", "type": "MemoryError", "text": "no memory"}
    before = troubled(info, "main", {0: trouble})

    assert (answer["outcome"], answer["bug"]) == ("unknown", False)
    assert answer["remedy"] == before.remedy
    for word in ("nvidia-smi", "free -m", "ulimit -n", "df", "dmesg | grep"):
        assert word in before.remedy


def test_an_error_in_the_list_of_trials_is_ours_too() -> None:
    """It happens before any trial."""

    def broken(_: TrialSpace) -> Sequence[Trial]:
        raise ZeroDivisionError("no ranks")

    run = made(equal)
    run.check = Check(**{**_fields(run.check), "trials": broken})

    assert answer_of(run)["reason"] == "ZeroDivisionError in the code of own.check: no ranks"


def _fields(own: Check) -> dict[str, Any]:
    return {name: getattr(own, name) for name in Check.__slots__}


def test_the_end_of_a_generation_is_no_outcome() -> None:
    """A rank that is told to leave leaves."""

    def body(_run: CheckRun, _trial: Trial) -> None:
        raise Aborted

    with pytest.raises(Aborted):
        answer_of(made(body))


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        ({"min_ranks": 5}, "own.check needs at least 5 ranks, got 4"),
        ({"mesh": "square"}, "own.check needs a square mesh with cp0 = cp1 >= 2, got cp0=1, cp1=2"),
    ],
)
def test_a_mesh_that_does_not_fit_is_a_skip(needs: dict[str, Any], reason: str) -> None:
    """Known before running, so no trial runs."""
    answer = answer_of(made(lambda _run, _trial: pytest.fail("ran"), **needs))

    assert (answer["outcome"], answer["reason"]) == ("skip", reason)
    assert answer["remedy"]

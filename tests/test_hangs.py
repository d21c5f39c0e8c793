"""Every fault in a rank's conduct ends in the name of that rank, and in what it did: real ranks on gloo."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engine
import processes
import subgroup
from cpinfra.proof import attribution
from cpinfra.proof import watch
from cpinfra.proof.contract import Proof
from cpinfra.proof.evidence import Evidence
from cpinfra.proof.hang import Hang
from cpinfra.worker.injection import CONTROL_TWINS

ALL_REDUCE = "collective.all_reduce"
KINDS = {
    "skip": "never-entered",
    "swap-order": "mismatched-operation",
    "wrong-shape": "mismatched-shape",
    "wrong-dtype": "mismatched-dtype",
    "exit": "process-died",
    "kill": "process-died",
    "stop": "process-stopped",
    "stall-inside": "stuck-inside-backend",
    "never-join": "never-joined",
    "stall-init": "stuck-in-init",
    "stall-teardown": "stuck-in-teardown",
}
"""Twin -> kind of the hang that it is."""
OUTSIDE = ("never-join", "stall-init", "stall-teardown")
"""Twins that act outside of all checks."""
NO_HANG = ("delay", "raise")
IN_CALLS = [name for name in KINDS if name not in OUTSIDE]


def test_every_twin_has_its_kind() -> None:
    """A new one comes with a test here."""
    assert {*KINDS, *NO_HANG} == {*CONTROL_TWINS}


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Hang | None]:
    """Every judgement of this process is made twice, once with the planted fault deleted.

    The answers must be the same. They come back, so that a test can assert that any was made at all.
    """
    made: list[Hang | None] = []

    def twice(evidence: Evidence) -> Hang | None:
        found = attribution.attribute(evidence)
        generation = replace(evidence.generation, spec=replace(evidence.generation.spec, faults=()))
        assert attribution.attribute(replace(evidence, generation=generation)) == found
        made.append(found)
        return found

    monkeypatch.setattr(watch, "attribute", twice)
    return made


def told(proof: Proof, judged: list[Hang | None]) -> tuple[str, tuple[int, ...]]:
    """Kind and culprits of a hang, which was judged twice."""
    assert proof.hang is not None
    assert proof.hang in judged
    return proof.hang.kind, proof.hang.culprit_ranks


class OnRanks:
    """All twins on one number of ranks, through one zygote."""

    mesh: tuple[int, int, int]
    check = ALL_REDUCE

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Bench]:
        """One zygote for all."""
        with engine.Bench(tmp_path_factory.mktemp("bench"), mesh=cls.mesh) as bench:
            yield bench

    @pytest.mark.parametrize("name", KINDS)
    def test_the_rank_is_named_with_what_it_did(
        self, bench: engine.Bench, name: str, judged: list[Hang | None]
    ) -> None:
        """Its kind, the rank alone, the operation; the check fails, or passes in a new generation."""
        proof = bench.prove(self.check, f"{name}:1")

        assert told(proof, judged) == (KINDS[name], (1,))
        assert proof.hang is not None
        assert 1 not in proof.hang.waiting_ranks
        outcome = proof.results[self.check].outcome.value
        if name in OUTSIDE:
            assert (proof.hang.check, outcome) == (None, "pass")
        else:
            assert (proof.hang.check, outcome) == (self.check, "fail")
            (culprit,) = proof.hang.culprits
            assert culprit.operation
            assert culprit.site.startswith(self.check.partition(".")[0])
        assert bench.prove(self.check).results[self.check].outcome.value == "pass"

    def test_a_rank_that_raises_is_no_hang(self, bench: engine.Bench, judged: list[Hang | None]) -> None:
        """Its own text is the reason."""
        proof = bench.prove(self.check, "raise:1")

        assert (proof.hang, judged) == (None, [None])
        assert proof.results[self.check].reason.startswith("rank 1: InjectedError")

    def test_a_rank_that_is_late_is_slow(self, bench: engine.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        """A warning with figures; nothing fails.

        Time that ranks were starved of does not count, so the delay is five times what counts as slow, and
        a tenth of any deadline.
        """
        patient = replace(bench._engine.budgets, operation_s=20.0, is_fixed=True)
        monkeypatch.setattr(bench._engine, "budgets", patient)
        proof = bench.prove(self.check, "delay:1:2@6")

        assert (proof.hang, proof.results[self.check].outcome.value) == (None, "pass")
        (slow,) = [finding for finding in proof.findings if finding.id == "slow"]
        assert "rank 1" in slow.got


class TestTwoRanks(OnRanks):
    """There is no majority."""

    mesh = (1, 1, 2)


class TestThreeRanks(OnRanks):
    """A ring in which every rank has two neighbours, and no square."""

    mesh = (1, 1, 3)
    check = "p2p.ring"


class TestFourRanks(OnRanks):
    """The smallest square."""

    mesh = (1, 2, 2)
    check = "dtensor.roundtrip"


class TestTogether:
    """Independent faults are all named, each for its own."""

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Bench]:
        """One zygote for all."""
        with engine.Bench(tmp_path_factory.mktemp("bench"), mesh=(1, 2, 2)) as bench:
            yield bench

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("kill:1", "stop:3"),
            ("skip:1", "kill:3"),
            ("skip:1", "skip:2"),
            ("wrong-shape:1", "stop:2"),
            ("wrong-shape:3", "wrong-dtype:0"),
            ("exit:1", "stall-inside:3"),
            ("stop:0", "stall-inside:2"),
            ("skip:2", "stall-inside:0"),
            ("never-join:0", "stall-init:1"),
        ],
    )
    def test_two_faults_are_both_named(
        self, bench: engine.Bench, first: str, second: str, judged: list[Hang | None]
    ) -> None:
        """Whoever they are, in one verdict."""
        proof = bench.prove(ALL_REDUCE, first, second)

        assert proof.hang is not None
        assert proof.hang in judged
        named = {culprit.rank: culprit.kind for culprit in proof.hang.culprits}
        expected = {int(fault[-1]): KINDS[fault.partition(":")[0]] for fault in (first, second)}
        assert named == expected
        assert all(f"{kind}: rank" in proof.hang.sentence() for kind in expected.values())

    @pytest.mark.parametrize(("delay", "named"), [("delay:2:0.5", (1,)), ("delay:2:60", (1, 2))])
    def test_beside_a_death_only_who_does_not_come_is_blamed(
        self, bench: engine.Bench, delay: str, named: tuple[int, ...], judged: list[Hang | None]
    ) -> None:
        """One that is late for less than its peers wait is no culprit."""
        assert told(bench.prove(ALL_REDUCE, "kill:1", delay), judged) == ("process-died", named)

    @pytest.mark.parametrize("other", ["kill:2", "stop:2", "skip:2", "stall-inside:2"])
    def test_an_exception_beside_a_hang_is_told_too(
        self, bench: engine.Bench, other: str, judged: list[Hang | None]
    ) -> None:
        """The reason has both."""
        proof = bench.prove(ALL_REDUCE, "raise:0", other)

        assert told(proof, judged) == (KINDS[other.partition(":")[0]], (2,))
        assert "rank 0 raised InjectedError" in proof.results[ALL_REDUCE].reason


class TestAtAnEdge:
    """The last call of a check, after which the rank is in the next one."""

    @pytest.mark.parametrize("rank", [0, 1])
    @pytest.mark.parametrize("name", ["skip", "swap-order"])
    def test_the_check_that_fails_is_the_one_whose_call_was_due(
        self, name: str, rank: int, tmp_path: Path, judged: list[Hang | None]
    ) -> None:
        """Whichever rank it is; the other check passes in a new generation."""
        only = "collective.all_*"
        ran = engine.prove(tmp_path, only=only, faults=[f"{name}:{rank}@9"], mesh=(1, 1, 2))

        assert told(ran.proof, judged) == (KINDS[name], (rank,))
        assert ran.outcomes() == {ALL_REDUCE: "fail", "collective.all_gather": "pass"}

    def test_a_run_folder_below_one_called_torch(self, tmp_path: Path, judged: list[Hang | None]) -> None:
        """Only torch's own folder says that a rank waits inside of it."""
        ran = engine.prove(tmp_path / "torch" / "run", only="p2p.ring", faults=["stall-inside:1"])

        assert told(ran.proof, judged) == ("stuck-inside-backend", (1,))


NCCL_COUNTS = """

_BUDGETS["gloo"] = _BUDGETS["nccl"]
_of_gloo = number


def number(
    space: TrialSpace, check_id: str, drafts: Iterable[Draft], *, comparisons: int = 1, rounds: int = 1
) -> tuple[Trial, ...]:
    return _of_gloo(space, check_id, drafts, comparisons=comparisons, rounds=comparisons)
"""
"""Appended to `worker/trials.py`: gloo makes as many trials as NCCL does."""
SMALL_RING = """

_RECORDS = ((4, 8),)
"""
"""Appended to `worker/ledger.py`: room for the last four calls."""


class TestManyCalls:
    """Checks as long as those over NCCL: nobody blocks, so all ranks run on while they are looked at."""

    @pytest.mark.parametrize("mesh", [(1, 1, 2), (1, 2, 2)])
    def test_a_rank_that_blocks_nobody_is_named_after_all_checks(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        mesh: tuple[int, int, int],
        judged: list[Hang | None],
    ) -> None:
        """Kind, rank, operation and line, however many calls all have made since."""
        engine.altered_worker(monkeypatch, tmp_path, {"worker/trials.py": NCCL_COUNTS})
        ran = engine.prove(tmp_path / "run", faults=["wrong-dtype:1"], mesh=mesh)

        assert told(ran.proof, judged) == ("mismatched-dtype", (1,))
        assert ran.proof.hang is not None
        assert ran.proof.hang.check == ALL_REDUCE
        (culprit,) = ran.proof.hang.culprits
        assert culprit.operation == "all_reduce"
        assert culprit.site.startswith("collective.py:")
        assert ran.proof.hang.seconds_to_verdict > 0
        assert ran.outcomes()[ALL_REDUCE] == "fail"
        assert ran.proof.results["p2p.ring"].evidence["repetitions"] == 48

    def test_of_calls_that_are_no_longer_kept_nothing_is_claimed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judged: list[Hang | None]
    ) -> None:
        """In a ring that is too small for one check only the digests tell that ranks parted."""
        engine.altered_worker(monkeypatch, tmp_path, {"worker/ledger.py": SMALL_RING})
        ran = engine.prove(tmp_path / "run", only=ALL_REDUCE, faults=["wrong-dtype:1"], mesh=(1, 1, 2))

        assert told(ran.proof, judged) == ("diverged", ())
        assert ran.proof.hang is not None
        assert ran.proof.hang.check == ALL_REDUCE
        assert ran.proof.hang.seconds_to_verdict > 0
        assert "--only" in ran.proof.results[ALL_REDUCE].remedy


class TestPairs:
    """Operations of groups of two inside of four ranks."""

    check = "collective.test_pairs"

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[engine.Bench]:
        """One zygote whose worker has a check of pairs."""
        changes = {"worker/checks/collective.py": subgroup.PAIRS}
        with pytest.MonkeyPatch.context() as patch:
            engine.altered_worker(patch, tmp_path_factory.mktemp("worker"), changes)
            with engine.Bench(tmp_path_factory.mktemp("bench"), mesh=(1, 2, 2)) as bench:
                yield bench

    @pytest.mark.parametrize("name", IN_CALLS)
    def test_the_fault_in_repetition_3_of_5_is_named_within_its_pair(
        self, bench: engine.Bench, name: str, judged: list[Hang | None]
    ) -> None:
        """Call 4 of the rank, after the mesh: its partner waits, the other pair does not."""
        proof = bench.prove(self.check, f"{name}:2@4")

        assert told(proof, judged) == (KINDS[name], (2,))
        assert proof.hang is not None
        assert set(proof.hang.waiting_ranks) <= {3}
        (culprit,) = proof.hang.culprits
        assert (culprit.operation, culprit.group) == ("all_reduce", "cp1")
        assert "repetition 3" in culprit.expected + culprit.got


class CommandLine:
    """What a person, and a program, is told."""

    def test_each_kind_ends_in_1_with_its_name(self, tmp_path: Path, name: str) -> None:
        """Exit code, the rendered message, the report, and no process that is left."""
        run = processes.Run(tmp_path, "--only", "p2p.ring", "--inject", f"{name}:2")
        code, out, err = run.end()
        report = run.report()

        assert (code, err) == (1, "")
        hang: dict[str, Any] = report["hang"]
        assert (hang["kind"], hang["culprit_ranks"], report["verdict"]) == (KINDS[name], [2], "failed")
        assert hang["remedy"]
        stage = "after the checks" if name == "stall-teardown" else "before the checks"
        where = stage if name in OUTSIDE else "in p2p.ring"
        assert f": {KINDS[name]} {where}, told after" in out
        assert f"  rank 2: {KINDS[name]}" in out
        assert f"planted fault {name}:2 acts on rank 2" in out
        run.assert_nothing_left()


@pytest.mark.parametrize("name", list(KINDS)[::2])
class TestCommandLine(CommandLine):
    """One half."""


@pytest.mark.parametrize("name", list(KINDS)[1::2])
class TestCommandLineToo(CommandLine):
    """The other half: classes are spread over processes."""


def test_two_culprits_on_the_command_line(tmp_path: Path) -> None:
    """Both with their own got and expected; stacks of those who wait are told once."""
    run = processes.Run(tmp_path, "--only", ALL_REDUCE, "--inject", "stop:1", "--inject", "stall-inside:3")
    code, out, _ = run.end()

    assert code == 1
    assert "  rank 1: process-stopped in or before all_reduce at collective.py:" in out
    assert "  rank 3: stuck-inside-backend in all_reduce at collective.py:" in out
    assert "  ranks 0,2: the same " in out
    assert "  rank 3 stands at" in out
    assert "  rank 1: no stack: it was stopped, and could not answer\n" in out
    run.assert_nothing_left()

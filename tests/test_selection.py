from __future__ import annotations

import pytest

from cpinfra.mesh import Mesh
from cpinfra.mesh import UsageProblem
from cpinfra.mesh import choose
from cpinfra.planning import selection
from cpinfra.proof.catalogue import SEED
from cpinfra.proof.catalogue import CheckInfo
from cpinfra.proof.catalogue import catalogue

ONE_D = "dtensor.roundtrip_1d"


def info(name: str, tier: str = "smoke", mesh: str = "any", min_ranks: int = 1) -> CheckInfo:
    """A check of the catalogue."""
    return CheckInfo(id=name, tier=tier, claim="c", mesh=mesh, min_ranks=min_ranks)


SMOKE = tuple(check for check in catalogue() if check.tier == "smoke")
ALL = (*SMOKE, info("ring.attention", tier="patterns"))


def ran(made: selection.Selection) -> list[str]:
    """Ids of those that run."""
    return [check.id for check in made.run]


def reasons(made: selection.Selection) -> dict[str, str]:
    """Why each of the others does not."""
    return {omitted.check.id: omitted.reason for omitted in made.omitted}


class TestSelect:
    """By tier and globs."""

    def test_a_tier_requires_the_seed_and_all_of_its_own(self) -> None:
        """Everything of the tier runs and is required; nothing of a later tier is."""
        made = selection.select(ALL, tier="smoke")

        assert ran(made) == [check.id for check in SMOKE]
        assert made.required == {*SEED, ONE_D}
        assert made.omitted == ()

    def test_a_tier_holds_the_ones_before_it(self) -> None:
        """`patterns` runs and requires the smoke tier as well."""
        made = selection.select(ALL, tier="patterns")

        assert ran(made) == [check.id for check in ALL]
        assert made.required == {*SEED, ONE_D, "ring.attention"}

    def test_seed_is_required_even_where_the_catalogue_lacks_it(self) -> None:
        """A seed check that went missing cannot pass by its absence."""
        assert set(SEED) <= selection.select(ALL[-1:], tier="patterns").required

    def test_rejects_a_tier_without_a_check_of_its_own(self) -> None:
        """The tiers that have one are named."""
        with pytest.raises(UsageProblem, match=r"--tier full: .* no check yet; valid are smoke, patterns$"):
            selection.select(ALL, tier="full")

    def test_only_makes_the_named_ones_required(self) -> None:
        """The others are skipped with that reason, and are not required."""
        made = selection.select(ALL, tier="smoke", only=["*gather", "p2p.*"])

        assert ran(made) == ["collective.all_gather", "p2p.ring"]
        assert made.required == {"collective.all_gather", "p2p.ring"}
        assert reasons(made)["collective.all_reduce"] == "not named by --only"
        assert len(made.omitted) == 4

    def test_skip_leaves_out_and_keeps_required(self) -> None:
        """What is skipped stays required, so that the report is not proven."""
        made = selection.select(ALL, tier="smoke", skip=["p2p.ring", "*1d"])

        assert reasons(made) == {"p2p.ring": "left out by --skip", ONE_D: "left out by --skip"}
        assert made.required == {*SEED, ONE_D}

    def test_skip_outranks_only(self) -> None:
        """A check that both name is skipped, and required: asked for and not passed."""
        made = selection.select(ALL, tier="smoke", only=["collective.*"], skip=["*gather"])

        assert reasons(made)["collective.all_gather"] == "left out by --skip"
        assert "collective.all_gather" in made.required

    def test_rejects_globs_that_match_nothing_all_at_once(self) -> None:
        """Two unknown globs and an empty tier: three messages, with what there is."""
        with pytest.raises(UsageProblem) as caught:
            selection.select(SMOKE, tier="patterns", only=["p2p"], skip=["Collective.*"])

        tier, only, skip = caught.value.messages
        assert tier.startswith("--tier patterns")
        assert only.startswith("--only 'p2p': matches no check; there are: collective.all_reduce, ")
        assert skip.startswith("--skip 'Collective.*'")


class TestFitted:
    """By mesh."""

    def test_a_square_keeps_all(self) -> None:
        """2x2 has a place for every check."""
        made = selection.fitted(selection.select(ALL, tier="smoke"), choose(4))

        assert ran(made) == [check.id for check in SMOKE]

    @pytest.mark.parametrize(
        ("world", "omitted"),
        [
            (5, ["dtensor.roundtrip"]),
            (2, ["dtensor.roundtrip"]),
            (1, ["collective.all_reduce", "p2p.ring", "dtensor.roundtrip"]),
        ],
    )
    def test_what_has_no_place_is_skipped_and_stays_required(self, world: int, omitted: list[str]) -> None:
        """No square: no 2D round trip. One rank: no ring. Both with reasons, both still required."""
        made = selection.fitted(selection.select(ALL, tier="smoke"), choose(world))

        assert list(reasons(made)) == omitted
        assert set(omitted) <= made.required
        assert "needs a square mesh" in reasons(made)["dtensor.roundtrip"]
        assert all(leave.remedy for leave in made.omitted)

    def test_reasons_name_the_mesh(self) -> None:
        """Two misfits, each with its own need, what the run has, and how to give it more."""
        made = selection.fitted(selection.select(ALL, tier="smoke"), Mesh(dp=1, cp0=1, cp1=1))

        assert reasons(made)["p2p.ring"] == "p2p.ring needs at least 2 ranks, got 1"
        assert reasons(made)["dtensor.roundtrip"].endswith("cp0 = cp1 >= 2, got cp0=1, cp1=1")
        assert {omitted.remedy for omitted in made.omitted} == {
            "run it with more ranks: --ranks 2",
            "give a number of ranks that holds a square, such as 4, 8 or 9 (--ranks 4 --cp 2x2)",
        }

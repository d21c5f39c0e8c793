from __future__ import annotations

import sys
from collections.abc import Callable
from math import isqrt
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpinfra import mesh
from cpinfra.mesh import Mesh
from cpinfra.mesh import UsageProblem

WORLDS = st.integers(min_value=1, max_value=4096)
GPUS = st.integers(min_value=0, max_value=16384)


def square(dp: int, side: int) -> Mesh:
    """A mesh of dp copies of a side x side grid."""
    return Mesh(dp=dp, cp0=side, cp1=side)


def lines_run(work: Callable[[], object]) -> int:
    """How many lines it runs, each as often as it is: a measure of time that no busy machine changes."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


class TestConfigs:
    """The table of the plan: which meshes a number of free GPUs can test."""

    @pytest.mark.parametrize(
        ("gpus", "dp", "integration"),
        [(4, 1, "limited"), (7, 1, "limited"), (8, 2, "full"), (9, 2, "full"), (16, 4, "full")],
    )
    def test_chosen_is_2x2_with_all_the_dp_that_fits(self, gpus: int, dp: int, integration: str) -> None:
        """4 to 7 GPUs are limited, 8 and more are full."""
        choice = mesh.chosen(gpus)

        assert choice is not None
        assert (choice.cp0, choice.cp1, choice.dp, choice.integration) == (2, 2, dp, integration)
        assert mesh.slots(gpus) == 1

    @pytest.mark.parametrize("gpus", [0, 1, 2, 3])
    def test_nothing_is_chosen_below_four(self, gpus: int) -> None:
        """0 to 3 GPUs hold no square: no configuration, no choice, no slot."""
        assert mesh.configs(gpus) == ()
        assert mesh.chosen(gpus) is None
        assert mesh.slots(gpus) == 0

    def test_every_side_is_listed_once(self) -> None:
        """9 GPUs hold 2x2 with dp 2 and 3x3 with dp 1; the latter is limited though its world is 9."""
        shapes = [(c.cp0, c.cp1, c.dp, c.world_size, c.integration) for c in mesh.configs(9)]

        assert shapes == [(2, 2, 2, 8, "full"), (3, 3, 1, 9, "limited")]

    @given(GPUS)
    def test_configs_follow_the_formula(self, gpus: int) -> None:
        """Sides 2..isqrt(n), dp = n // side², full exactly for world >= 8 and dp >= 2."""
        found = mesh.configs(gpus)

        assert [config.cp0 for config in found] == list(range(2, isqrt(gpus) + 1))
        for config in found:
            assert config.cp0 == config.cp1
            assert config.dp == gpus // config.cp0**2
            assert config.world_size <= gpus < config.world_size + config.cp0**2
            assert (config.integration == "full") == (config.world_size >= 8 and config.dp >= 2)

    @given(GPUS)
    def test_chosen_and_slots_agree_with_the_table(self, gpus: int) -> None:
        """`chosen` is one of the configurations, and its copies fit; null means no slot."""
        choice = mesh.chosen(gpus)

        assert (choice is None) == (gpus < 4)
        if choice is None:
            assert mesh.slots(gpus) == 0
        else:
            assert choice in mesh.configs(gpus)
            assert mesh.slots(gpus) == gpus // choice.world_size >= 1

    def test_a_whole_cluster_is_mapped_at_once(self) -> None:
        """16384 GPUs cost a few steps for each side of a square, of which there are 128: not for each GPU."""

        def each_gpu() -> None:
            for _ in range(16384):
                pass

        assert lines_run(lambda: mesh.configs(16384)) < 16384 / 4
        assert lines_run(lambda: mesh.factorisations(16384)) < 16384 / 4
        assert lines_run(each_gpu) > 16384

    def test_rejects_negative(self) -> None:
        """A negative number of GPUs is an error of the caller."""
        with pytest.raises(ValueError, match="gpus_free -1"):
            mesh.configs(-1)


class TestFactorisations:
    """Every mesh of exactly a given world."""

    @given(WORLDS)
    def test_each_has_that_world_and_a_square(self, world: int) -> None:
        """Nothing but square meshes of exactly that many ranks, and none is left out."""
        found = mesh.factorisations(world)

        assert all(m.world_size == world and m.cp0 == m.cp1 >= 2 for m in found)
        assert {m.cp0 for m in found} == {
            s for s in range(2, world + 1) if s * s <= world and world % s**2 == 0
        }

    @pytest.mark.parametrize("world", [0, 1, 2, 3, 5, 6, 7, 15, -4])
    def test_none_where_no_square_divides(self, world: int) -> None:
        """Worlds without a square divisor have none."""
        assert mesh.factorisations(world) == ()


class TestChoose:
    """Any two of world, cp and dp give the third."""

    @pytest.mark.parametrize(
        ("world", "expected"),
        [
            (4, square(1, 2)),
            (8, square(2, 2)),
            (9, square(1, 3)),
            (12, square(3, 2)),
            (16, square(4, 2)),
            (18, square(2, 3)),
            (25, square(1, 5)),
            (1, Mesh(dp=1, cp0=1, cp1=1)),
            (5, Mesh(dp=1, cp0=5, cp1=1)),
            (6, Mesh(dp=1, cp0=6, cp1=1)),
        ],
    )
    def test_world_alone(self, world: int, expected: Mesh) -> None:
        """2x2 if 4 divides it, else the smallest square that does, else 1-D."""
        assert mesh.choose(world) == expected

    @given(st.integers(1, 64), st.integers(2, 16))
    def test_any_two_give_the_third(self, dp: int, side: int) -> None:
        """Whichever is left out is found again."""
        whole = square(dp, side)

        assert mesh.choose(whole.world_size, (side, side)) == whole
        assert mesh.choose(whole.world_size, None, dp) == whole
        assert mesh.choose(None, (side, side), dp) == whole
        assert mesh.choose(whole.world_size, (side, side), dp) == whole

    @given(WORLDS)
    def test_world_alone_always_gives_that_world(self, world: int) -> None:
        """Whatever the world, the mesh has exactly that many ranks."""
        assert mesh.choose(world).world_size == world

    def test_cp_alone_has_dp_1(self) -> None:
        """Without a world, dp is 1."""
        assert mesh.choose(None, (3, 3)) == square(1, 3)

    def test_dp_alone_has_2x2(self) -> None:
        """Without a world and a grid, the grid is the smallest."""
        assert mesh.choose(None, None, 3) == square(3, 2)

    def test_rejects_a_world_that_cp_does_not_divide(self) -> None:
        """The message names got, expected, the options, and what fits on either side."""
        with pytest.raises(UsageProblem) as caught:
            mesh.choose(5, (2, 2))

        (message,) = caught.value.messages
        assert message.startswith("--cp 2x2 with --ranks 5: 5 is not a multiple of 4")
        assert "worlds that fit 2x2: 4, 8;" in message
        assert "meshes that fit 5: 1-D only" in message

    def test_rejects_with_the_meshes_that_fit(self) -> None:
        """Where other meshes fit the world, the message lists them as options."""
        with pytest.raises(
            UsageProblem, match="meshes that fit 36: --cp 2x2 --dp 9, --cp 3x3 --dp 4, --cp 6x6"
        ):
            mesh.choose(36, (4, 4))

    def test_rejects_a_dp_that_leaves_no_square(self) -> None:
        """A dp that divides, but leaves no square, is told apart from one that does not divide."""
        with pytest.raises(UsageProblem, match=r"--dp 2 with --ranks 12: 12/2 is 6, which is not a square"):
            mesh.choose(12, None, 2)
        with pytest.raises(UsageProblem, match=r"--dp 5 with --ranks 12: 12 is not a multiple of 5"):
            mesh.choose(12, None, 5)

    def test_rejects_three_that_contradict(self) -> None:
        """All three given must multiply to the world; the product is named."""
        with pytest.raises(UsageProblem, match=r"dp\*cp0\*cp1 is 12, not 8; the world that fits: 12"):
            mesh.choose(8, (2, 2), 3)

    def test_rejects_all_small_numbers_at_once(self) -> None:
        """Each number that is too small is named, together with a grid that is not square."""
        with pytest.raises(UsageProblem) as caught:
            mesh.choose(0, (2, 3), -1)

        assert [message.split(":")[0] for message in caught.value.messages] == [
            "--ranks 0",
            "--dp -1",
            "--cp 2x3",
        ]

    def test_rejects_1d_where_it_is_no_answer(self) -> None:
        """A caller that needs a square gets a refusal in its own words, with worlds on either side."""
        with pytest.raises(UsageProblem, match=r"WORLD 5: no square CP grid divides it; .* 2x2: 4, 8"):
            mesh.choose(5, allow_1d=False, world_option="WORLD")

    def test_needs_a_number(self) -> None:
        """Without any number there is nothing to choose by."""
        with pytest.raises(ValueError, match="at least one"):
            mesh.choose()


class TestParseCp:
    """The spelling AxB."""

    @pytest.mark.parametrize(("text", "cp"), [("2x2", (2, 2)), (" 3X3 ", (3, 3)), ("16 x 16", (16, 16))])
    def test_allows(self, text: str, cp: tuple[int, int]) -> None:
        """Squares, in either case, with blanks."""
        assert mesh.parse_cp(text) == cp

    @pytest.mark.parametrize(
        "text", ["axb", "", "2", "2x", "x2", "2x2x2", "-2x-2", "2.0x2.0", "²x²", "2x2\n3x3"]
    )
    def test_rejects_what_is_no_grid(self, text: str) -> None:
        """What was got is quoted, with an example."""
        with pytest.raises(UsageProblem, match="expected AxB with two whole numbers, such as 2x2") as caught:
            mesh.parse_cp(text)

        assert repr(text) in caught.value.messages[0]

    @pytest.mark.parametrize(
        ("text", "valid"), [("2x3", "2x2, 3x3"), ("1x1", "2x2"), ("0x0", "2x2"), ("1x4", "2x2, 4x4")]
    )
    def test_rejects_what_is_not_square(self, text: str, valid: str) -> None:
        """The squares next to it are named."""
        with pytest.raises(UsageProblem, match=f"must be square.*; valid: {valid}$"):
            mesh.parse_cp(text)


class TestLimits:
    """How many ranks a device takes."""

    @pytest.mark.parametrize(
        ("world", "device", "gpus"), [(1024, "cpu", 0), (64, "cuda", 1), (512, "cuda", 8), (1, "cpu", 0)]
    )
    def test_allows(self, world: int, device: str, gpus: int) -> None:
        """Up to the limit nothing is said."""
        assert mesh.limit_problems(world, device=device, gpus=gpus) == ()

    @pytest.mark.parametrize(
        ("world", "device", "gpus", "text"),
        [
            (1025, "cpu", 0, "--ranks 1025: at most 1024 ranks on CPU"),
            (129, "cuda", 2, r"--ranks 129: at most 128 ranks on 2 GPU\(s\), 64 a GPU"),
        ],
    )
    def test_rejects(self, world: int, device: str, gpus: int, text: str) -> None:
        """One more is refused, with the limit and the device."""
        with pytest.raises(UsageProblem, match=text):
            raise UsageProblem(mesh.limit_problems(world, device=device, gpus=gpus))


class TestMesh:
    """The mesh itself."""

    def test_knows_its_shape(self) -> None:
        """World and shape follow from the axes."""
        assert square(2, 2).shape == (2, 2, 2)
        assert square(2, 2).world_size == 8

    def test_says_what_it_is(self) -> None:
        """Two meshes, two texts: a grid by its axes, a 1-D mesh by its ranks."""
        assert str(square(2, 3)) == "dp 2, cp 3x3"
        assert str(mesh.one_dimensional(5)) == "1-D mesh of 5"

    @pytest.mark.parametrize("axes", [(0, 2, 2), (1, 0, 2), (1, 2, -1)])
    def test_rejects_empty_axes(self, axes: tuple[int, int, int]) -> None:
        """An axis without ranks is an error of the caller."""
        with pytest.raises(ValueError, match="every axis needs at least one rank"):
            Mesh(dp=axes[0], cp0=axes[1], cp1=axes[2])

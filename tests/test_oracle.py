from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from cpinfra.worker import registry
from cpinfra.worker.difference import Part
from cpinfra.worker.difference import explain
from cpinfra.worker.layout import Layout
from cpinfra.worker.oracle import DTYPES
from cpinfra.worker.oracle import EXACT
from cpinfra.worker.oracle import MODULUS
from cpinfra.worker.oracle import Contributions
from cpinfra.worker.oracle import Pattern
from cpinfra.worker.oracle import bits
from cpinfra.worker.oracle import blank
from cpinfra.worker.oracle import coordinates
from cpinfra.worker.oracle import same
from cpinfra.worker.oracle import sentinel
from cpinfra.worker.trials import ITEMSIZE
from cpinfra.worker.trials import MAX_REPETITIONS
from cpinfra.worker.trials import Trial
from cpinfra.worker.trials import TrialSpace

CPU = torch.device("cpu")
INJECTIVE = ("int64", "float64", "int32", "float32")
salts = st.integers(0, 2**63 - 1)
repetitions = st.integers(1, MAX_REPETITIONS)


def pattern(
    dtype: str, *, sources: int = 4, chunks: int = 2, count: int = 64, repetition: int = 3, salt: int = 9
) -> Pattern:
    """A pattern of flat chunks."""
    return Pattern(
        dtype=DTYPES[dtype],
        sources=sources,
        chunks=chunks,
        shape=(count,),
        repetition=repetition,
        salt=salt,
    )


def contributions(
    dtype: str,
    *,
    sources: int = 4,
    count: int = 64,
    repetition: int = 3,
    salt: int = 9,
    reduction: str = "sum",
) -> Contributions:
    """Contributions of flat shape."""
    return Contributions(
        dtype=DTYPES[dtype],
        sources=sources,
        shape=(count,),
        reduction=reduction,
        repetition=repetition,
        salt=salt,
    )


def whole_numbers(tensor: Tensor) -> list[int]:
    """The elements as Python's whole numbers; fails where one is none."""
    values = tensor.to(torch.float64) if tensor.dtype in {torch.bfloat16, torch.float16} else tensor
    numbers = [int(value) for value in values.flatten().tolist()]
    assert numbers == values.flatten().tolist()
    return numbers


# ---------------------------------------------------------------------------------- data that is moved


@given(
    dtype=st.sampled_from(INJECTIVE),
    sources=st.integers(1, 40),
    chunks=st.integers(1, 4),
    count=st.integers(1, 100),
    repetition=repetitions,
    data=st.data(),
)
@settings(deadline=None)
def test_an_element_tells_where_it_comes_from(
    dtype: str, sources: int, chunks: int, count: int, repetition: int, data: st.DataObject
) -> None:
    """Rank, chunk, index and repetition can be read from any single element of an injective dtype."""
    source = data.draw(st.integers(0, sources - 1))
    chunk = data.draw(st.integers(0, chunks - 1))
    index = data.draw(st.integers(0, count - 1))
    made = pattern(dtype, sources=sources, chunks=chunks, count=count, repetition=repetition)

    value = made.chunk(source, chunk)[index].item()

    assert made.describe(value) == f"rank {source}, chunk {chunk}, index {index}, repetition {repetition}"


@given(
    dtype=st.sampled_from(INJECTIVE),
    sources=st.integers(1, 8),
    count=st.integers(1, 60),
    first=repetitions,
    second=repetitions,
)
@settings(deadline=None)
def test_no_two_elements_of_an_injective_dtype_are_alike(
    dtype: str, sources: int, count: int, first: int, second: int
) -> None:
    """Over all ranks, chunks, indices and two repetitions."""
    seen = [
        value
        for repetition in {first, second}
        for source in range(sources)
        for chunk in (0, 1)
        for value in whole_numbers(
            pattern(dtype, sources=sources, count=count, repetition=repetition).chunk(source, chunk)
        )
    ]

    assert len(set(seen)) == len(seen)


@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    sources=st.integers(1, 1024),
    count=st.integers(1, 3000),
    repetition=repetitions,
    salt=salts,
)
@settings(deadline=None)
def test_elements_are_positive_exact_and_never_the_sentinel(
    dtype: str, sources: int, count: int, repetition: int, salt: int
) -> None:
    """So a buffer of zeros, of NaN or never written is wrong everywhere."""
    made = pattern(dtype, sources=sources, count=count, repetition=repetition, salt=salt)

    numbers = whole_numbers(made.chunk(sources - 1, 1))

    assert min(numbers) >= 1
    assert max(numbers) <= EXACT[made.dtype]
    assert sentinel(made.dtype) not in numbers
    assert made.chunk(0).dtype == made.dtype


@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    count=st.integers(1, 500),
    pair=st.lists(repetitions, min_size=2, max_size=2, unique=True),
    salt=salts,
)
@settings(deadline=None)
def test_another_repetition_is_wrong_at_every_element(
    dtype: str, count: int, pair: list[int], salt: int
) -> None:
    """Also in the dtypes that carry hashes: not one element of a stale buffer can pass."""
    made = pattern(dtype, count=count, repetition=pair[0], salt=salt)

    assert bool((made.chunk(1) != made.at(pair[1]).chunk(1)).all())


@given(dtype=st.sampled_from(["bfloat16", "float16", "float32", "int32"]), salt=salts, repetition=repetitions)
@settings(max_examples=60, deadline=None)
def test_a_hash_tells_chunks_and_places_apart(dtype: str, salt: int, repetition: int) -> None:
    """Of 64 elements nearly all differ from any other chunk's, and from their neighbours."""
    count = 64 if dtype in {"bfloat16", "float16"} else 2**17
    sources = 4 if dtype == "float32" else 2**10
    made = pattern(dtype, sources=sources, chunks=1, count=count, repetition=repetition, salt=salt)
    assert not made.injective
    chunk = made.chunk(1)

    for other in (made.chunk(0), made.chunk(2), chunk.roll(1), chunk.flip(0)):
        assert int((chunk != other).sum()) > 0.8 * count


NO_ELEMENT = "(no element of this trial)"


def with_flipped_bit(made: Pattern, index: int, bit: int) -> str:
    """What an element of the chunk of rank 1 says of itself when one of its bits is another."""
    chunk = made.chunk(1)
    bits(chunk)[index] ^= 1 << bit if bit < 8 * chunk.element_size() - 1 else -(1 << bit)
    return made.describe(chunk[index].item())


@given(dtype=st.sampled_from(["int64", "int32"]), index=st.integers(0, 63), bit=st.integers(0, 63))
@settings(deadline=None)
def test_one_flipped_bit_of_an_integer_never_makes_another_element(dtype: str, index: int, bit: int) -> None:
    """Elements are multiples of three: a flipped bit is told from a chunk that went astray."""
    assert with_flipped_bit(pattern(dtype), index, bit % (8 * ITEMSIZE[dtype])).endswith(NO_ELEMENT)


@pytest.mark.parametrize(("dtype", "mantissa", "sign"), [("float64", 52, 63), ("float32", 23, 31)])
def test_one_flipped_bit_of_a_float_can_make_another_element_in_its_exponent_alone(
    dtype: str, mantissa: int, sign: int
) -> None:
    """Twice or half a multiple of three may be one, too: it names the wrong place, and still differs."""
    made = pattern(dtype, repetition=2)
    flipped = {bit: with_flipped_bit(made, 6, bit) for bit in range(sign + 1)}
    misleading = {bit for bit, text in flipped.items() if not text.endswith(NO_ELEMENT)}

    assert misleading
    assert misleading <= set(range(mantissa, sign))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_single_element_of_a_small_dtype_is_a_hash_as_well(dtype: str) -> None:
    """One element of one source would be numbered without need of any room: there is no such encoding."""
    made = pattern(dtype, sources=1, chunks=1, count=1)

    assert not made.injective
    assert 1 <= float(made.chunk(0)[0]) <= MODULUS[made.dtype]
    assert made.describe(7.0) == "7.0"


@pytest.mark.parametrize("dtype", sorted(MODULUS, key=str))
def test_a_hash_uses_its_whole_modulus(dtype: torch.dtype) -> None:
    """251 values in bfloat16, 2039 in float16, up to the largest; more in the wider dtypes."""
    made = Pattern(dtype=dtype, sources=2**10, chunks=1, shape=(2**17,), repetition=5, salt=3)
    values = set(whole_numbers(made.chunk(7)))

    assert (min(values) >= 1, max(values) <= MODULUS[dtype]) == (True, True)
    assert len(values) == MODULUS[dtype] if MODULUS[dtype] < 2**12 else len(values) > 0.99 * 2**17
    assert all(MODULUS[dtype] % divisor for divisor in range(2, math.isqrt(MODULUS[dtype]) + 1))


def test_float32_numbers_its_elements_while_they_fit() -> None:
    """24 bits: beyond them float32 carries a hash; float64 has room for 1024 ranks of 16 million."""
    assert pattern("float32", sources=4, chunks=1, count=2**14).injective
    assert not pattern("float32", sources=4, chunks=1, count=2**14 + 1).injective
    assert pattern("float64", sources=1024, chunks=2, count=2**24).injective


@pytest.mark.parametrize("repetition", [0, MAX_REPETITIONS + 1])
def test_rejects_a_repetition_without_room(repetition: int) -> None:
    """Six bits hold 1 to 63."""
    with pytest.raises(ValueError, match=f"repetition {repetition}: the encodings hold 1 to 63"):
        pattern("int64", repetition=repetition)


def test_rejects_more_elements_than_int64_numbers() -> None:
    """A hash in int64 would hide that its claim is weaker."""
    with pytest.raises(ValueError, match="cannot number 1024 sources x 1024 chunks"):
        pattern("float64", sources=1024, chunks=1024, count=2**25 + 1)


def test_an_index_in_a_matrix_is_told_as_row_and_column() -> None:
    """DTensor's elements are named by their place in the whole matrix."""
    made = Pattern(dtype=torch.int64, sources=1, chunks=1, shape=(3, 5), repetition=2, salt=1)

    assert made.describe(made.chunk(0)[2, 4].item()) == "rank 0, chunk 0, index (2, 4), repetition 2"
    assert coordinates(14, (3, 5)) == (2, 4)


# ------------------------------------------------------------------------------- data that is reduced

worlds = st.one_of(st.integers(1, 20), st.sampled_from([64, 255, 256, 257, 300, 1024]))


@given(dtype=st.sampled_from(sorted(DTYPES)), world=worlds, count=st.integers(1, 90), salt=salts)
@settings(max_examples=60, deadline=None)
def test_sums_are_exact_in_any_order_and_right(dtype: str, world: int, count: int, salt: int) -> None:
    """All contributions are whole and not negative, their sum fits, and it is Python's own sum."""
    made = contributions(dtype, sources=world, count=count, salt=salt)
    parts = [whole_numbers(made.of_rank(rank)) for rank in range(world)]

    expected = whole_numbers(made.reduced())

    assert expected == [sum(column) for column in zip(*parts, strict=True)]
    assert all(0 <= value for part in parts for value in part)
    # One contribution counted twice stays exact too, so that it cannot vanish in a rounding.
    assert all(sum(column) + max(column) <= EXACT[DTYPES[dtype]] for column in zip(*parts, strict=True))


@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    world=st.sampled_from([2, 3, 8, 64, 256, 1024]),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=30, deadline=None)
def test_adding_up_in_the_dtype_itself_gives_the_same_bits_in_any_order(
    dtype: str, world: int, order: random.Random
) -> None:
    """A backend may add as it likes: nothing is rounded on the way."""
    made = contributions(dtype, sources=world)
    ranks = list(range(world))
    order.shuffle(ranks)
    total = torch.zeros(64, dtype=made.dtype)

    for rank in ranks:
        total += made.of_rank(rank)

    assert same(total, made.reduced())


@given(dtype=st.sampled_from(sorted(DTYPES)), world=worlds, salt=salts, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_missing_or_doubled_contribution_changes_the_sum(
    dtype: str, world: int, salt: int, data: st.DataObject
) -> None:
    """Every rank takes part in some element within ceil(ranks / window), with at least 1."""
    made = contributions(dtype, sources=world, salt=salt)
    count = math.ceil(world / made.window)
    short = contributions(dtype, sources=world, salt=salt, count=count)
    rank = data.draw(st.integers(0, world - 1))
    part = whole_numbers(short.of_rank(rank))

    assert max(part) >= 1
    assert short.window == made.window


@given(dtype=st.sampled_from(sorted(DTYPES)), world=st.integers(2, 300), salt=salts, repetition=repetitions)
@settings(max_examples=60, deadline=None)
def test_the_sum_of_another_chunk_or_repetition_differs(
    dtype: str, world: int, salt: int, repetition: int
) -> None:
    """On 64 elements, in most places: a reduce_scatter that delivers the neighbour's chunk is seen."""
    made = contributions(dtype, sources=world, salt=salt, repetition=repetition)
    right = made.reduced(0)

    for other in (made.reduced(1), made.at(repetition % MAX_REPETITIONS + 1).reduced(0), right.roll(1)):
        assert int((right != other).sum()) > 32


@given(dtype=st.sampled_from(sorted(DTYPES)), world=st.integers(1, 16), salt=salts)
@settings(max_examples=20, deadline=None)
def test_every_rank_holds_the_maximum_somewhere(dtype: str, world: int, salt: int) -> None:
    """On 1021 elements, so that a rank that was left out changes the result."""
    made = contributions(dtype, sources=world, count=1021, salt=salt, reduction="max")
    parts = [whole_numbers(made.of_rank(rank)) for rank in range(world)]

    assert whole_numbers(made.reduced()) == [max(column) for column in zip(*parts, strict=True)]
    for rank in range(world):
        others = [part for other, part in enumerate(parts) if other != rank] or [[0] * 1021]
        assert any(own > max(rest) for own, *rest in zip(parts[rank], *others, strict=True))


@pytest.mark.parametrize("world", [1, 4, 16, 300])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_what_goes_to_all_is_what_goes_to_each(dtype: str, world: int) -> None:
    """The input of a reduce_scatter holds one contribution per rank, in rank order."""
    made = contributions(dtype, sources=world)
    given_to_all = made.to_all(world - 1)

    assert given_to_all.shape == (world, 64)
    assert all(
        same(given_to_all[chunk], made.of_rank(world - 1, chunk)) for chunk in (0, world // 2, world - 1)
    )


# ------------------------------------------------------------------------------------------ comparing


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_comparison_is_of_bits_shape_and_dtype(dtype: str) -> None:
    """Equal is equal in every bit; a tensor that would broadcast, or that was cast, is another."""
    chunk = pattern(dtype).chunk(1)
    flipped = chunk.clone()
    bits(flipped)[40] ^= 1

    assert same(chunk, chunk.clone())
    assert not same(flipped, chunk)
    assert not same(chunk[:1], chunk)
    assert not same(chunk.view(8, 8), chunk)
    assert not same(chunk.to(torch.float64 if dtype != "float64" else torch.float32), chunk)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_nan_and_signed_zero_are_values_like_any_other(dtype: str) -> None:
    """NaN equals NaN and nothing else; minus zero is not zero."""
    nan = blank((3,), DTYPES[dtype], CPU)
    zero = torch.zeros(3, dtype=DTYPES[dtype])

    assert same(nan, nan.clone())
    assert not same(nan, zero)
    assert not same(-zero, zero)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_blank_buffer_holds_the_sentinel_everywhere(dtype: str) -> None:
    """NaN, or the least integer."""
    buffer = blank((2, 3), DTYPES[dtype], CPU)

    assert buffer.shape == (2, 3)
    assert bool(
        (buffer.isnan() if buffer.is_floating_point() else buffer == torch.iinfo(buffer.dtype).min).all()
    )


# ------------------------------------------------------------------- what arrived instead, in words


def chunk_name(source: int, _chunk: int) -> str:
    """The words of the tests for a chunk."""
    return f"the chunk of rank {source}"


def slots(made: Pattern, got: Tensor) -> list[Part]:
    """One part per source."""

    def part(slot: int) -> Part:
        return Part(
            name=f"slot {slot}",
            belongs=chunk_name(slot, 0),
            got=got[slot],
            expected=made.chunk(slot),
            others=lambda: made.others(slot, 0, chunk_name),
        )

    return [part(slot) for slot in range(len(got))]


def gathered(made: Pattern) -> Tensor:
    """What an all_gather must deliver: [sources, count]."""
    return made.table([(source, 0) for source in range(made.sources)])


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_two_exchanged_slots_are_both_named(dtype: str) -> None:
    """Each by what it holds, and the exchange itself; the slots that are right are not mentioned."""
    made = pattern(dtype, chunks=1)
    got = gathered(made)[[0, 3, 2, 1]]

    text = explain(slots(made, got), made.describe)

    assert "slot 1 holds the chunk of rank 3" in text
    assert "slot 3 holds the chunk of rank 1" in text
    assert text.endswith("slot 1 and slot 3 are exchanged")
    assert not any(right in text for right in ("slot 0", "slot 2"))


def test_the_first_wrong_element_is_decoded() -> None:
    """Where the dtype can tell: rank, chunk, index and repetition of what was expected and what came."""
    made = pattern("int64", chunks=1)
    got = gathered(made)
    got[2, 17:] = got[1, 17:]

    text = explain(slots(made, got), made.describe)

    assert (
        "element 17: expected rank 2, chunk 0, index 17, repetition 3; "
        "got rank 1, chunk 0, index 17, repetition 3"
    ) in text
    assert "slot 2 holds the chunk of rank 1 there (47 of 64 elements wrong" in text


SPOILS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "reversed": (lambda t: t.flip(0), "is reversed"),
    "shifted": (lambda t: t.roll(1), "is shifted by 1 towards its end"),
    "shifted-back": (lambda t: t.roll(-3), "is shifted by 3 towards its beginning"),
    "first": (lambda t: t[:1].repeat(len(t)), "holds its first element everywhere"),
    "zeros": (torch.zeros_like, "holds zeros"),
    "blank": (lambda t: blank(t.shape, t.dtype, CPU), "was never written"),
}


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_right_data_in_the_wrong_place_is_recognised(dtype: str, spoil: str) -> None:
    """In two slots at once, each with its own words."""
    made = pattern(dtype, chunks=1)
    change, phrase = SPOILS[spoil]
    got = gathered(made)
    got[1], got[2] = change(got[1]), change(got[2])

    text = explain(slots(made, got), made.describe)

    assert f"slot 1 {phrase}" in text
    assert f"slot 2 {phrase}" in text


@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    index=st.integers(0, 63),
    bit=st.integers(0, 63),
    slot=st.integers(0, 3),
)
@settings(deadline=None)
def test_any_single_flipped_bit_is_caught_and_named(dtype: str, index: int, bit: int, slot: int) -> None:
    """Whichever bit, element and dtype: the slot, the index, and that it is one bit."""
    made = pattern(dtype, chunks=1)
    got = gathered(made)
    width = 8 * got.element_size()
    mask = 1 << (bit % width)
    bits(got)[slot, index] ^= mask - (1 << width) if mask >> (width - 1) else mask

    text = explain(slots(made, got), made.describe)

    assert text.startswith(f"slot {slot} differs in one bit, at index {index} (1 of 64 elements wrong;")


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_an_earlier_repetition_is_named(dtype: str) -> None:
    """A stale buffer is told from any other wrong data, also in part."""
    made = pattern(dtype, chunks=1)
    got = gathered(made)
    got[0] = made.at(2).chunk(0)
    got[3, 50:] = made.at(1).chunk(3)[50:]

    text = explain(slots(made, got), made.describe)

    assert "slot 0 holds the chunk of rank 0 of repetition 2 (64 of 64" in text
    assert "slot 3 holds the chunk of rank 3 of repetition 1 there (14 of 64" in text


def test_elements_that_were_never_written_are_named() -> None:
    """Also where the rest of the buffer is right."""
    made = pattern("float32", chunks=1)
    got = gathered(made)
    got[2, 60:] = math.nan

    text = explain(slots(made, got), made.describe)

    assert text.startswith("slot 2 was never written there (4 of 64 elements wrong; element 60")
    assert "got nan (never written)" in text


def test_what_nothing_explains_is_shown_as_it_is() -> None:
    """A few wrong elements of a hash could agree with anything by chance, so nothing is claimed."""
    made = pattern("bfloat16", chunks=1)
    got = gathered(made)
    got[1, 5] = 251 - got[1, 5]
    got[1, 6] = 251 - got[1, 6]

    text = explain(slots(made, got), made.describe)

    assert text.startswith("slot 1 differs (2 of 64 elements wrong; element 5: expected ")


def test_many_wrong_parts_are_counted() -> None:
    """Six are named, two with their elements, the rest by number."""
    made = pattern("int64", sources=10, chunks=1)

    text = explain(slots(made, gathered(made).roll(1, 0)), made.describe)

    assert [f"slot {k} holds" in text for k in range(7)] == [True] * 6 + [False]
    assert text.count("element 0: expected") == 2
    assert text.endswith("4 more are wrong, up to slot 9")


def test_a_wrong_shape_and_a_wrong_dtype_are_named() -> None:
    """Two parts, one of each."""
    made = pattern("int64", chunks=1)
    right = made.chunk(0)
    nothing: Callable[[], list[tuple[str, Tensor]]] = list
    parts = [
        Part(name="tile a", belongs="", got=right[:60], expected=right, others=nothing),
        Part(name="tile b", belongs="", got=right.to(torch.int32), expected=right, others=nothing),
    ]

    assert explain(parts) == (
        "tile a: shape (60,) instead of (64,); tile b: dtype torch.int32 instead of torch.int64"
    )


def test_exchanged_tiles_are_both_named() -> None:
    """A whole put together with cp0 and cp1 mixed up names tile (0, 1) and tile (1, 0)."""
    made = Pattern(dtype=torch.bfloat16, sources=1, chunks=1, shape=(16, 16), repetition=2, salt=4)
    layout, matrix = Layout(shape=(16, 16), grid=(2, 2)), made.chunk(0)
    got = matrix.clone()
    got[:8, 8:], got[8:, :8] = matrix[8:, :8], matrix[:8, 8:]

    def part(i: int, j: int) -> Part:
        return Part(
            name=layout.name(i, j),
            belongs=layout.name(i, j),
            got=layout.tile(got, i, j),
            expected=layout.tile(matrix, i, j),
            others=lambda: layout.others(made, matrix, i, j),
        )

    text = explain([part(i, j) for i, j in layout.places()], made.describe)

    assert "tile (0, 1) holds tile (1, 0) (64 of 64" in text
    assert "tile (1, 0) holds tile (0, 1) (6" in text
    assert text.endswith("tile (0, 1) and tile (1, 0) are exchanged")


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_miscounted_contribution_is_named(dtype: str) -> None:
    """One that is missing, one that came twice, and a result that was never reduced."""
    made = contributions(dtype)
    right, part = made.reduced(), made.of_rank(2)
    cases = {
        "holds the sum without rank 2's contribution": right - part,
        "holds the sum with rank 2's contribution twice": right + part,
        "holds rank 1's own contribution, not reduced": made.of_rank(1),
        "holds the sum for rank 3": made.reduced(3),
        "holds the sum of repetition 2": made.at(2).reduced(),
    }

    for phrase, got in cases.items():
        whole = Part(
            name="the sum",
            belongs="",
            got=got,
            expected=right,
            others=lambda: made.others(1, 0, chunks=4),
        )
        assert f"the sum {phrase} (" in explain([whole])


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
@settings(deadline=None)
def test_tiles_are_cut_as_torch_cuts_them(rows: int, columns: int, grid: tuple[int, int]) -> None:
    """Shards of ceil(n / k), the last ones shorter or empty: the layout agrees with torch.chunk."""
    matrix = torch.arange(rows * columns).view(rows, columns)
    layout = Layout(shape=(rows, columns), grid=grid)

    for i, j in layout.places():
        bands = torch.chunk(matrix, grid[0], 0)
        band = bands[i] if i < len(bands) else matrix[:0]
        tiles = torch.chunk(band, grid[1], 1)
        assert same(layout.tile(matrix, i, j), tiles[j] if j < len(tiles) else band[:, :0])


# --------------------------------------------------- what the trials really use: every dtype and size

MUTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "next slot": lambda t: t.roll(1, 0),
    "reversed": lambda t: t.flip(1),
    "shifted": lambda t: t.roll(1, 1),
    "first element": lambda t: t[:, :1].expand_as(t).contiguous(),
    "zeros": torch.zeros_like,
}
NEEDS_ELEMENTS = {"reversed", "shifted", "first element"}


def trials(check: str, world: int) -> list[Trial]:
    """What a check tries at a world size, of at most some 100,000 elements."""
    where = TrialSpace(world=world, cp0=1, cp1=1, backend="gloo", salt=11)
    return [t for t in registry.load([check])[check].trials(where) if t.count * world < 300_000]


@pytest.mark.parametrize("world", [2, 3, 4, 9, 16, 64])
def test_moved_data_is_caught_at_every_size_that_is_tried(world: int) -> None:
    """Swapped, reversed, shifted, constant or stale data is wrong in every dtype and size."""
    for trial in trials("collective.all_gather", world):
        made = Pattern.of(trial, sources=world)
        right = gathered(made)
        wrong = {name: change(right) for name, change in MUTATIONS.items()}
        if trial.repetition > 1:
            wrong["stale"] = gathered(made.at(trial.repetition - 1))
        for name, got in wrong.items():
            harmless = trial.count == 1 and name in NEEDS_ELEMENTS
            assert same(got, right) is harmless, (name, trial)


@pytest.mark.parametrize("world", [2, 3, 4, 9, 16, 64, 300])
def test_reduced_data_is_caught_at_every_size_that_is_tried(world: int) -> None:
    """The neighbour's chunk, a stale sum, a sum that lacks a rank, in every dtype and size."""
    for trial in trials("collective.reduce_scatter", world):
        made = Contributions.of(trial, sources=world)
        right = torch.stack([made.reduced(chunk) for chunk in (0, 1)])
        for name, change in MUTATIONS.items():
            assert same(change(right), right) is (trial.count == 1 and name in NEEDS_ELEMENTS), (name, trial)
        for name, got in made.others(1, 0, chunks=3):
            left_out = "contribution" in name and trial.count * made.window < world
            assert left_out or not same(got, right[0]), (name, trial)


def test_the_tests_above_know_what_a_mutation_needs() -> None:
    """A guard: with one element a reversal changes nothing, and the tests must not call that caught."""
    one = pattern("int64", chunks=1, count=1)

    assert [name for name, change in MUTATIONS.items() if same(change(gathered(one)), gathered(one))] == [
        "reversed",
        "shifted",
        "first element",
    ]

"""Entropy coding of masks: the bytes of a slow coder made from FORMAT.md, their number, and bytes of no writer."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sepal.errors import WireError
from sepal.wire import IndexCoding, encode, inspect, members
from sepal.wire.ans import SYMBOLS_OF_LANE, decode_ans, encode_ans, frequencies, lanes, least_bytes, symbols

SIZES, DENSITIES, SEEDS = st.integers(2, 3_000), st.floats(0.001, 0.999), st.integers(0, 2**32 - 1)


def drawn(size: int, density: float, seed: int = 0) -> tuple[np.ndarray, int]:
    """A bitmap and its number of present entries, neither none nor all."""
    mask = np.random.default_rng(seed).random(size) < density
    mask[:2] = True, False
    return np.packbits(mask, bitorder="little"), int(mask.sum())


def entropy_bytes(size: int, count: int) -> float:
    """Bytes of ``size`` independent entries of the frequency ``count`` / ``size``."""
    shares = (count / size, 1 - count / size)
    return -size * sum(share * math.log2(share) for share in shares) / 8


def slow_coder(data: bytes, count: int, size: int) -> bytes:
    """The coding, made symbol by symbol from FORMAT.md."""
    share = Fraction(count, size)
    table = [max(1, math.floor(2**16 * share**k * (1 - share) ** (8 - k))) for k in map(int.bit_count, range(256))]
    table[0 if share <= Fraction(1, 2) else 255] += 2**16 - sum(table)
    width = -(-len(data) // 4_096)
    states, words = [2**24] * width, []
    for number in reversed(range(len(data))):
        symbol, lane = data[number], number % width
        x, f = states[lane], table[symbol]
        if x >= f * 2**24:
            words.append(x % 2**16)
            x //= 2**16
        states[lane] = 2**16 * (x // f) + x % f + sum(table[:symbol])
    heads = b"".join(x.to_bytes(5, "little") for x in states)
    return heads + b"".join(word.to_bytes(2, "little") for word in reversed(words))


@given(SIZES, DENSITIES, SEEDS)
@example(70_001, 0.38, 0)  # three lanes, and a last step of one symbol
@example(2, 0.5, 0)
def test_bytes_are_those_of_the_slow_coder(size, density, seed):
    bitmap, count = drawn(size, density, seed)
    assert encode_ans(bitmap, count, size) == slow_coder(bitmap.tobytes(), count, size)


@given(st.integers(2, 70_000), DENSITIES, SEEDS, st.integers(0, 2**31))
def test_whatever_its_count_says_a_mask_comes_back_and_takes_at_least_the_bytes_that_were_expected(
    size, density, seed, claimed
):
    bitmap, true_count = drawn(size, density, seed)
    for count in (true_count, 1 + claimed % (size - 1)):
        data = encode_ans(bitmap, count, size)
        assert decode_ans(np.frombuffer(data, np.uint8), count, size, "m").tobytes() == bitmap.tobytes()
        assert least_bytes(bitmap, count, size) <= len(data)


@given(st.integers(2, 60_000), DENSITIES, SEEDS, st.data())
def test_other_bytes_are_refused_or_are_the_only_coding_of_another_mask(size, density, seed, data):
    bitmap, count = drawn(size, density, seed)
    coded = bytearray(encode_ans(bitmap, count, size))
    for _ in range(data.draw(st.integers(1, 3))):
        coded[data.draw(st.integers(0, len(coded) - 1))] = data.draw(st.integers(0, 255))
    try:
        other = decode_ans(np.frombuffer(bytes(coded), np.uint8), count, size, "m")
    except WireError:
        return
    assert encode_ans(other, count, size) == bytes(coded)


@given(st.integers(0, 40), st.randoms(use_true_random=False))
def test_any_short_bytes_are_refused_or_read_once(length, random):
    size = 300
    data = random.randbytes(5 + 2 * length)
    count = random.randrange(1, size)
    try:
        other = decode_ans(np.frombuffer(data, np.uint8), count, size, "m")
    except WireError:
        return
    assert encode_ans(other, count, size) == data


@given(st.integers(2, 2**31 - 1), st.data())
def test_frequencies_are_positive_and_fill_the_slots(size, data):
    count = data.draw(st.integers(1, size - 1))
    table = frequencies(count, size)
    assert (min(table) >= 1, sum(table)) == (True, 2**16)


@pytest.mark.parametrize("size", [2, 8, 32_768, 32_769, 10_000_000, 2**31 - 1])
def test_a_tensor_of_any_size_takes_at_most_4096_steps(size):
    assert -(-symbols(size) // lanes(size)) <= SYMBOLS_OF_LANE == 4_096


@pytest.mark.parametrize(("size", "steps"), [(10_000, 30), (40_000, 12), (1_000_000, 8)])
def test_a_mask_is_within_2_percent_of_the_entropy_of_its_frequency(size, steps):
    """The sizes at which a lane costs most, and a large one; at least 100 entries of the rarer kind."""
    half = np.concatenate([np.geomspace(0.012, 0.5, steps), np.linspace(0.05, 0.5, steps)])
    above = {}
    for density in sorted({*half, *(1 - half)}):
        mask = np.random.default_rng(1).random(size) < density
        (entry,) = inspect(encode({"m": members(mask, entropy_coded=True)})).tensors
        ratio = entry.index_bytes / entropy_bytes(size, entry.count)
        if ratio > 1.02:
            above[density] = (entry.index.value, ratio)
    assert not above


@pytest.mark.parametrize(("density", "most"), [(0.5, 1.0001), (0.38, 1.0015), (0.21, 1.0018), (0.1, 1.0027)])
def test_a_large_mask_is_as_near_to_the_entropy_as_the_format_says(density, most):
    size = 10_000_000
    drawn_mask = np.random.default_rng(3).random(size, np.float32) < density
    for mask in (drawn_mask, ~drawn_mask):
        (entry,) = inspect(encode({"m": members(mask, entropy_coded=True)})).tensors
        assert entry.index_bytes <= most * entropy_bytes(size, entry.count)


@pytest.mark.parametrize("density", [0.004, 0.1, 0.38, 0.5, 0.7])
@pytest.mark.parametrize("size", [100, 3_000, 50_000])
def test_ans_is_chosen_only_where_it_is_shorter(size, density):
    mask = np.random.default_rng(2).random(size) < density
    (without,), (entry,) = (inspect(encode({"m": members(mask, agreed)})).tensors for agreed in (False, True))
    assert without.index is not IndexCoding.ANS
    coded = len(encode_ans(np.packbits(mask, bitorder="little"), int(mask.sum()), size))
    assert entry.index_bytes == min(without.index_bytes, coded)
    assert (entry.index is IndexCoding.ANS) == (coded < without.index_bytes)

"""The index bytes are those of a slow writer, made from FORMAT.md in strings of the characters 0 and 1."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sepal.wire import SparseTensor, ValueCoding, encode, inspect


def as_bytes(bits: str) -> bytes:
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))


def quotients(gaps: list[int], k: int) -> str:
    return "".join("0" * (gap >> k) + "1" for gap in gaps)


def low_parts(gaps: list[int], k: int) -> str:
    return "".join(str(gap >> plane & 1) for plane in range(k) for gap in gaps)


def shortest(positions: list[int], size: int) -> tuple[str, int, bytes]:
    """Coding, ``low_bits`` and bytes, of the codings of any support; it is not empty or full."""
    present = set(positions)
    bitmap = as_bytes("".join("01"[entry in present] for entry in range(size)))
    coded = positions if 2 * len(positions) <= size else [entry for entry in range(size) if entry not in present]
    gaps = [after - before - 1 for before, after in zip([-1, *coded], coded, strict=False)]
    strings = {k: quotients(gaps, k) for k in range(12)}
    k = min(strings, key=lambda k: (k * len(gaps) + len(strings[k]), k))
    choices = [("bitmap", 0, bitmap), ("gaps", k, as_bytes(low_parts(gaps, k) + strings[k]))]
    return min(choices, key=lambda choice: len(choice[-1]))  # the first on a tie


@given(st.integers(2, 2_000), st.floats(0.001, 0.999), st.integers(0, 2**32 - 1))
@example(2_000, 0.38, 0)
@example(2_000, 0.62, 0)
@example(2_000, 0.21, 0)
@example(2_000, 0.79, 0)
@example(2_000, 0.11, 0)
def test_index_bytes_are_those_of_the_slow_writer(size, density, seed):
    count = min(size - 1, max(1, round(density * size)))
    index = np.sort(np.random.default_rng(seed).choice(size, count, replace=False)).astype(np.int64)
    assert_as_the_slow_writer(index, size)


@given(st.lists(st.integers(0, 2_000), min_size=1, max_size=60, unique=True))
def test_index_bytes_of_uneven_supports_are_those_of_the_slow_writer(positions):
    assert_as_the_slow_writer(np.array(sorted(positions)), 2_001)


def assert_as_the_slow_writer(index: np.ndarray, size: int) -> None:
    data = encode({"m": SparseTensor((size,), index, None, coding=ValueCoding.NONE)})
    contents = inspect(data)
    (entry,) = contents.tensors
    got = (entry.index.value, entry.low_bits, data[contents.header_bytes :])
    assert got == shortest(index.tolist(), size)

"""Top-k against a stable sort, the rounding rule by hand, and every refusal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sepal.errors import SepalError
from sepal.masks import selection
from sepal.rng import derive


def oracle(values, k):
    """A stable sort by falling magnitude keeps equal entries in order of index; its first k are the answer."""
    return np.sort(np.argsort(-np.abs(values), kind="stable")[:k])


@st.composite
def values_and_k(draw, elements):
    values = draw(
        hnp.arrays(draw(st.sampled_from([np.float16, np.float32, np.float64])), st.integers(0, 60), elements=elements)
    )
    return values, draw(st.integers(0, values.size))


MANY_TIES = st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, float("inf")])
ANY = st.floats(width=16, allow_nan=False)


@given(values_and_k(MANY_TIES | ANY))
def test_top_k_is_the_stable_sort(case):
    values, k = case
    before = values.copy()
    index = selection.top_k(values, k)
    assert index.dtype == np.int64
    np.testing.assert_array_equal(index, oracle(values, k))
    np.testing.assert_array_equal(values, before)


@given(values_and_k(MANY_TIES))
def test_top_k_with_many_ties(case):
    values, k = case
    np.testing.assert_array_equal(selection.top_k(values, k), oracle(values, k))


@pytest.mark.parametrize("k", [0, 1, 20_000, 199_999, 200_000])
def test_top_k_on_a_large_array(k):
    values = derive(1, "test").integers(-50, 51, 200_000).astype(np.float32)
    np.testing.assert_array_equal(selection.top_k(values, k), oracle(values, k))


def test_ties_go_to_the_lowest_index():
    assert selection.top_k(np.array([1.0, -3.0, 2.0, -2.0, 2.0]), 3).tolist() == [1, 2, 3]
    assert selection.top_k(np.zeros(5, np.float32), 2).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("values", "k", "words"),
    [
        (np.zeros((2, 2)), 1, r"one axis, got shape \(2, 2\)"),
        (np.zeros(3), 4, r"k: expected 0 … 3, got 4"),
        (np.zeros(3), -1, "k: expected"),
        (np.array([0.0, np.nan, np.inf]), 1, "1 NaN of 3"),
        (np.array([np.nan]), 0, "1 NaN of 1"),
    ],
)
def test_top_k_refuses(values, k, words):
    with pytest.raises(SepalError, match=words):
        selection.top_k(values, k)


@pytest.mark.parametrize(
    ("keep", "size", "expected"),
    [
        (0.1, 25, 3),  # 2.5, half up (Python's round would give 2)
        (0.5, 5, 3),  # 2.5
        (0.29, 50, 15),  # 14.5 in decimal; as floats 14.499999999999998
        (0.1, 24, 2),  # 2.4
        (0.001, 10, 1),  # .01, but at least 1
        (0.0, 10, 0),
        (1.0, 10, 10),
        (0.5, 0, 0),
        (0.9999, 3, 3),
        (np.float64(0.1), 582_026, 58_203),  # 58,202.6
    ],
)
def test_count_by_hand(keep, size, expected):
    assert selection.count(keep, size) == expected


@pytest.mark.parametrize(("keep", "size"), [(-0.1, 3), (1.1, 3), (float("nan"), 3), (0.5, -1)])
def test_count_refuses(keep, size):
    with pytest.raises(SepalError):
        selection.count(keep, size)


def test_per_layer_top_k_by_hand():
    # half of 3 entries is 1.5, so 2; half of 1 is .5, so 1
    index = selection.per_layer_top_k({"a": np.array([1.0, 3.0, -2.0]), "b": np.array([[0.0]])}, 0.5)
    assert {name: part.tolist() for name, part in index.items()} == {"a": [1, 2], "b": [0]}


@given(st.integers(0, 40), st.data())
def test_random_subset_is_a_sorted_subset(size, data):
    index = np.arange(size, dtype=np.int64) * 3
    k = data.draw(st.integers(0, size))
    chosen = selection.random_subset(index, k, derive(data.draw(st.integers(0, 9)), "test"))
    assert chosen.dtype == np.int64
    assert len(set(chosen.tolist())) == k
    assert set(chosen.tolist()) <= set(index.tolist())
    assert chosen.tolist() == sorted(chosen.tolist())


def test_random_subset_is_fair_and_repeatable():
    index = np.array([2, 5, 7, 11], np.int64)
    first, second = (selection.random_subset(index, 2, derive(1, "test")) for _ in range(2))
    assert first.tolist() == second.tolist()
    # each of the 4 is in half of the 2-subsets: 2,000 draws, standard deviation √(2000/4) = 22
    rng = derive(2, "test")
    hits = np.sum([np.isin(index, selection.random_subset(index, 2, rng)) for _ in range(2000)], axis=0)
    assert np.abs(hits - 1000).max() < 100


def test_random_subset_refuses_more_than_there_is():
    with pytest.raises(SepalError, match="0 … 2"):
        selection.random_subset(np.arange(2), 3, derive(1, "test"))

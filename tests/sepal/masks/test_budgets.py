"""Layer budgets by hand, and ERK's exact total over random layers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepal.errors import SepalError
from sepal.masks import budgets
from sepal.masks.selection import count

SHAPES = {"conv": (4, 1, 3, 3), "wide": (100, 50), "head": (10, 100)}  # sizes 36, 5000, 1000


def test_uniform_by_hand():
    assert budgets.uniform(SHAPES, 0.5) == {"conv": 18, "wide": 2500, "head": 500}
    assert budgets.uniform(SHAPES, 0.5, dense=["conv"]) == {"conv": 36, "wide": 2500, "head": 500}
    assert budgets.uniform(SHAPES, 0.125) == {"conv": 5, "wide": 625, "head": 125}  # 4.5, half up


def test_erk_by_hand():
    # Sides: 4+1+3+3 = 11, 150, 110. Total at .1: 603.6, so 604.
    # First: 604·11/271 = 24.517, 604·150/271 = 334.317, 604·110/271 = 245.166: none above its size.
    # Floors 24 + 334 + 245 = 603; the one left goes to the largest remainder, conv.
    assert budgets.erk(SHAPES, 0.1) == {"conv": 25, "wide": 334, "head": 245}


def test_erk_redistributes_what_a_full_layer_cannot_take():
    # Total at .5: 3018. conv: 3018·11/271 = 122.5 > 36: whole. head: 3018·110/271 = 1225.0 > 1000: whole.
    # wide gets the rest: 3018 - 36 - 1000 = 1982.
    assert budgets.erk(SHAPES, 0.5) == {"conv": 36, "wide": 1982, "head": 1000}


def test_erk_fills_a_layer_only_after_another_is_full():
    # Total at .75 of 4 + 16 + 64 = 84: 63. Sides 4, 8, 16 (of 28): 9.0 > 4, 18.0 > 16, 36.0: rest 63 - 20 = 43.
    assert budgets.erk({"a": (2, 2), "b": (4, 4), "c": (8, 8)}, 0.75) == {"a": 4, "b": 16, "c": 43}
    # Total at .6: 50.4, so 50: 7.14 > 4 first; then 46·8/24 = 15.33, 46·16/24 = 30.67: floors 15, 30, one left to c.
    assert budgets.erk({"a": (2, 2), "b": (4, 4), "c": (8, 8)}, 0.6) == {"a": 4, "b": 15, "c": 31}


def test_erk_with_a_dense_layer():
    # Total at .1: 604, of which conv takes 36; 568·150/260 = 327.69, 568·110/260 = 240.31: one left to wide.
    assert budgets.erk(SHAPES, 0.1, dense=["conv"]) == {"conv": 36, "wide": 328, "head": 240}


def test_erk_limits():
    assert budgets.erk(SHAPES, 1.0) == {"conv": 36, "wide": 5000, "head": 1000}
    assert budgets.erk(SHAPES, 0.0) == {"conv": 0, "wide": 0, "head": 0}
    assert budgets.erk({}, 0.5) == {}
    assert budgets.erk({"scalar": ()}, 1.0) == {"scalar": 1}


@given(
    st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=4).map(tuple), min_size=1, max_size=6),
    st.floats(0, 1),
)
def test_erk_lands_on_the_total(shapes, keep):
    named = {f"layer{number}": shape for number, shape in enumerate(shapes)}
    budget = budgets.erk(named, keep)
    sizes = {name: math.prod(shape) for name, shape in named.items()}
    assert list(budget) == list(named)
    assert sum(budget.values()) == count(keep, sum(sizes.values()))
    assert all(0 <= budget[name] <= sizes[name] for name in named)
    # One ε for all that are not whole: rounding moves each by less than one entry.
    partial = [name for name in named if budget[name] < sizes[name]]
    at_least = [(budget[name] - 1) / sum(named[name]) for name in partial]
    at_most = [(budget[name] + 1) / sum(named[name]) for name in partial]
    assert max(at_least, default=0) <= min(at_most, default=1)


@pytest.mark.parametrize("budget", [budgets.uniform, budgets.erk])
def test_refusals(budget):
    with pytest.raises(SepalError, match="one of conv, wide, head, got tail"):
        budget(SHAPES, 0.5, dense=["tail"])
    with pytest.raises(SepalError, match="keep: expected a fraction"):
        budget(SHAPES, 1.5)


def test_erk_refuses_dense_layers_beyond_the_total():
    with pytest.raises(SepalError, match="at most 604 entries, got 5000"):
        budgets.erk(SHAPES, 0.1, dense=["wide"])

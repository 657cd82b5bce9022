"""pFedGate's knapsack: exact on small problems, within the budget on all, and the published code's greedy."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepal import models
from sepal.errors import ConfigError
from sepal.layout import Parameter, Role
from sepal.strategies.pfedgate import knapsack
from sepal.strategies.pfedgate.blocks import Blocks, split
from sepal.strategies.pfedgate.knapsack import Knapsack

SHAPES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 9)) | st.tuples(st.integers(1, 60)), min_size=1, max_size=10
)
SHARES = st.integers(1, 100).map(lambda percent: percent / 100)


def blocks_of(*sizes, first=()):
    on = np.isin(np.arange(len(sizes)), first)
    linear = np.ones(len(sizes), bool)
    return Blocks(("w",) * len(sizes), np.cumsum([0, *sizes]), on, linear, Fraction(0))


def layout(shapes):
    roles = {1: Role.BIAS}
    return tuple(Parameter(f"l{i}.w", shape, roles.get(len(shape), Role.WEIGHT)) for i, shape in enumerate(shapes))


def test_exact_and_greedy_on_the_worked_example():
    # Room ⌊.6 · 12⌋ = 7. {1} is worth .9 and leaves 2, in which nothing fits; {2, 3} weighs 7 and is worth 1.2.
    blocks, values = blocks_of(5, 4, 3), np.array([[0.9, 0.7, 0.5]], np.float32)
    assert Knapsack(blocks, 0.6)(values).tolist() == [[False, True, True]]
    assert Knapsack(blocks, 0.6, "greedy-value")(values).tolist() == [[True, False, False]]


def test_a_share_is_the_decimal_number_that_it_is_written_as():
    # .29 · 100 is 28.999… in floats; a block of 29 fits.
    assert Knapsack(blocks_of(29, 71), 0.29)(np.ones((1, 2), np.float32)).tolist() == [[True, False]]


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9),
    SHARES,
    st.integers(0, 2**32 - 1),
)
def test_exact_is_as_good_as_the_best_of_all_choices(sizes, keep, seed):
    blocks = blocks_of(*sizes)
    values = np.random.default_rng(seed).random((3, len(sizes))).astype(np.float32)
    room = int(Fraction(str(keep)) * sum(sizes))
    choices = np.array(list(itertools.product([False, True], repeat=len(sizes))))
    choices = choices[choices @ np.array(sizes) <= room]
    on = Knapsack(blocks, keep)(values)
    assert ((on @ np.array(sizes)) <= room).all()
    np.testing.assert_allclose((on * values).sum(1), (values @ choices.T).max(1), rtol=1e-6)


@given(SHAPES, st.integers(2, 12), SHARES, st.sampled_from(["exact", "greedy-value"]), st.integers(0, 2**32 - 1))
def test_share_never_exceeds_the_budget(shapes, parts, keep, solver, seed):
    blocks = split(layout(shapes), parts, keep)
    rng = np.random.default_rng(seed)
    values = rng.random((4, len(blocks.names))).astype(np.float32)
    costs = blocks.costs({f"l{i}.w": int(rng.integers(0, 9)) * int(np.prod(s)) for i, s in enumerate(shapes)})
    for on in Knapsack(blocks, keep, solver)(values):
        assert blocks.share(on) <= keep
        assert on[blocks.first].all()
    if costs.sum():
        for on in Knapsack(blocks, keep, solver, costs)(values):
            assert costs[on].sum() / costs.sum() <= keep
            assert on[blocks.first].all()


@given(SHAPES, st.integers(2, 12), SHARES, st.integers(0, 2**32 - 1))
def test_greedy_beyond_the_table_keeps_the_budget_and_takes_by_value_over_cost(shapes, parts, keep, seed):
    blocks = split(layout(shapes), parts, keep)
    values = np.random.default_rng(seed).random((1, len(blocks.names))).astype(np.float32)
    before, knapsack.ENTRIES = knapsack.ENTRIES, 0
    try:
        on = Knapsack(blocks, keep)(values)[0]
    finally:
        knapsack.ENTRIES = before
    left = int(Fraction(str(keep)) * int(blocks.bounds[-1])) - blocks.sizes[blocks.first].sum()
    for item in sorted(np.flatnonzero(~blocks.first), key=lambda j: -values[0, j] / blocks.sizes[j]):
        assert on[item] == (blocks.sizes[item] <= left)
        left -= blocks.sizes[item] * on[item]


@pytest.mark.parametrize(("keep", "share"), [(0.5, 0.4342), (0.3, 0.2456)])
def test_the_published_codes_greedy_achieves_the_published_share(keep, share):
    # EMNIST CNN, 62 classes, B = 5, s_min = .2. First blocks: .2 of 2,278,334. Linear layers' other blocks weigh
    # .8 · 2,226,238; room at s = .5 is .3 of that, 534,297: in any order one block of fc1 (419,430) and all of fc2
    # (101,580) and the biases fit. Convolutions: .3 · .8 · 52,096: one block of conv2 (10,240) and all the rest.
    # At s = .3 the room is a third of that: no block of fc1 or conv2 fits, all others do.
    blocks = split(models.layout(models.build("cnn-emnist", (1, 28, 28), 62)), 5, keep)
    values = np.random.default_rng(0).random((50, len(blocks.names))).astype(np.float32)
    masks = Knapsack(blocks, keep, "greedy-value")(values)
    assert {round(blocks.share(on), 4) for on in masks} == {share}
    assert len({on.tobytes() for on in masks}) == {0.5: 16, 0.3: 1}[keep]  # 4 blocks of fc1 times 4 of conv2, or none


def test_greedy_by_value_rounds_to_tenths_and_breaks_ties_by_the_lowest_index():
    # .64 and .56 are both 6 tenths: the first is taken, and fills the room of 5.
    blocks, values = blocks_of(5, 5), np.array([[0.56, 0.64]], np.float32)
    assert Knapsack(blocks, 0.5, "greedy-value")(values).tolist() == [[True, False]]
    assert Knapsack(blocks, 0.5)(values).tolist() == [[False, True]]


@pytest.mark.parametrize("solver", ["exact", "greedy-value"])
@pytest.mark.parametrize("name", ["lenet-cifar10", "cnn-cifar100", "resnet18-gn"])
def test_the_whole_budget_keeps_everything(name, solver):
    blocks = split(models.layout(models.build(name, (3, 32, 32), 10)), 5, 1.0)
    values = np.full((2, len(blocks.names)), 1e-6, np.float32)
    assert Knapsack(blocks, 1.0, solver)(values).all()


def test_the_table_is_small_for_the_papers_models():
    for name, shape, classes in (("lenet-cifar10", (3, 32, 32), 10), ("cnn-emnist", (1, 28, 28), 62)):
        for parts, keep in itertools.product((2, 5, 10), (0.2, 0.3, 0.5, 0.7)):
            solver = Knapsack(split(models.layout(models.build(name, shape, classes)), parts, keep), keep)
            assert solver._table is not None, (name, parts, keep)


def test_samples_do_not_see_each_other():
    blocks = split(models.layout(models.build("lenet-cifar10", (3, 32, 32), 10)), 5, 0.5)
    values = np.random.default_rng(1).random((20, 50)).astype(np.float32)
    for solver in ("exact", "greedy-value"):
        solve = Knapsack(blocks, 0.5, solver)
        together = solve(values)
        assert len({on.tobytes() for on in together}) > 1
        for solution, row in zip(together, values, strict=True):
            assert np.array_equal(solve(row[None])[0], solution)


def test_what_costs_nothing_is_on():
    blocks = blocks_of(4, 4, 4)
    on = Knapsack(blocks, 0.1, costs=np.array([0, 8, 0]))(np.full((1, 3), 0.5, np.float32))
    assert on.tolist() == [[True, False, True]]


def test_a_budget_below_the_first_blocks_is_refused():
    with pytest.raises(ConfigError, match=r"pfedgate.keep: expected at least the first blocks' share .*, 0.5, got 0.3"):
        Knapsack(blocks_of(6, 6, first=[0]), 0.3)

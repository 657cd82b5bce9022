"""Cosine annealing and prune-and-regrow by hand; the count never changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sepal.errors import SepalError
from sepal.masks import schedules
from sepal.masks.selection import count


def test_cosine_by_hand():
    # .5 · (1 + cos 0)/2 = .5;  cos(π/3) = .5 → .5 · .75 = .375;  cos(π/2) = 0 → .25;  cos π = -1 → 0
    values = [schedules.cosine(0.5, step, 6) for step in (0, 2, 3, 6, 7)]
    assert values == pytest.approx([0.5, 0.375, 0.25, 0, 0])
    assert values[-2:] == [0, 0]
    assert [schedules.cosine(0.5, step, 1) for step in (0, 1)] == [0.5, 0]


@pytest.mark.parametrize(("first", "step", "steps"), [(1.5, 0, 5), (-0.1, 0, 5), (0.5, -1, 5), (0.5, 0, 0)])
def test_cosine_refuses(first, step, steps):
    with pytest.raises(SepalError):
        schedules.cosine(first, step, steps)


def test_prune_and_regrow_by_hand():
    # Kept: positions 0 1 2 3 with |w| 4 1 3 2. Half of 4 is 2: prune 1 and 3. Outside: 1 3 4 5 with |g| 0 9 5 7:
    # regrow 3, which comes back, and 5.
    weights = np.array([[4.0, -1.0, 3.0], [2.0, 0.0, 0.0]])
    gradient = np.array([[9.0, 0.0, 9.0], [-9.0, 5.0, 7.0]])
    mask = np.array([[True, True, True], [True, False, False]])
    new = schedules.prune_and_regrow(weights, gradient, mask, 0.5)
    assert new.tolist() == [[True, False, True], [True, False, True]]
    assert mask.sum() == 4  # the argument is left alone


def test_ties_go_by_index():
    # All equal: of positions 0 1 2 3 kept, 2 and 3 are pruned; of 2 3 4 5 outside, 2 and 3 come back.
    mask = np.array([True] * 4 + [False] * 2)
    assert schedules.prune_and_regrow(np.ones(6), np.ones(6), mask, 0.5).tolist() == mask.tolist()


def test_limits():
    weights, gradient = np.array([3.0, 2.0, 1.0]), np.array([0.0, 1.0, 2.0])
    mask = np.array([True, False, False])
    assert schedules.prune_and_regrow(weights, gradient, mask, 0.0).tolist() == mask.tolist()
    assert schedules.prune_and_regrow(weights, gradient, mask, 1.0).tolist() == [False, False, True]
    assert schedules.prune_and_regrow(weights, gradient, np.ones(3, bool), 0.7).all()
    assert not schedules.prune_and_regrow(weights, gradient, np.zeros(3, bool), 0.7).any()


SMALL = st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0])


@given(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5), st.floats(0, 1), st.data())
def test_count_is_kept_and_the_choice_is_right(shape, fraction, data):
    weights, gradient = (data.draw(hnp.arrays(np.float32, shape, elements=SMALL)) for _ in range(2))
    mask = data.draw(hnp.arrays(np.bool_, shape))
    new = schedules.prune_and_regrow(weights, gradient, mask, fraction)
    assert new.dtype == np.bool_
    assert new.shape == shape
    assert new.sum() == mask.sum()
    gone, come = mask & ~new, new & ~mask
    assert gone.sum() <= count(fraction, int(mask.sum()))
    if gone.any():  # what went has no larger |weight| than what stayed for its weight, nor |gradient| than what came
        assert np.abs(gradient[gone]).max() <= np.abs(gradient[come]).min()


@pytest.mark.parametrize(
    ("weights", "gradient", "mask", "fraction"),
    [
        (np.ones(2), np.ones(3), np.ones(2, bool), 0.5),
        (np.ones(2), np.ones(2), np.ones((2, 1), bool), 0.5),
        (np.array([np.nan, 1]), np.ones(2), np.ones(2, bool), 0.5),
        (np.ones(2), np.array([np.nan, 1]), np.array([False, True]), 1.0),
        (np.ones(2), np.ones(2), np.ones(2, bool), 1.1),
    ],
)
def test_refusals(weights, gradient, mask, fraction):
    with pytest.raises(SepalError):
        schedules.prune_and_regrow(weights, gradient, mask, fraction)

"""The statistics of the comparison, by hand and against known variances."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.leaderboard.statistics import Draws, draw, holm, interval, matrix, mean, means, spread, wins

NAN = np.nan


def everyone(values):
    """Return who took part."""
    return ~np.isnan(values)


def test_an_estimate_is_the_mean_over_seeds_of_means_over_clients():
    # Seed 0: (.2 + .4) / 2 = .3; seed 1: .9 alone. (.3 + .9) / 2 = .6, not the mean of all three, .5.
    values = np.array([[0.2, 0.4], [NAN, 0.9]])
    assert mean(values) == pytest.approx(0.6)
    assert spread(values) == pytest.approx(np.std([0.3, 0.9], ddof=1))
    assert spread(values[:1]) is None


def test_the_weights_of_a_draw_by_hand():
    values = np.array([[0.2, 0.4], [0.6, 1.0]])
    # Draw 0: seed 0 twice, its second client twice: .4. Draw 1: each seed once, (2·.2 + 0·.4)/2 = .2 and
    # (1·.6 + 1·1)/2 = .8: .5.
    seeds = np.array([[2.0, 0.0], [1.0, 1.0]])
    clients = np.array([[[0.0, 2.0], [1.0, 1.0]], [[2.0, 0.0], [1.0, 1.0]]])
    np.testing.assert_allclose(means(values, Draws(seeds, clients)), [0.4, 0.5])


@pytest.mark.parametrize("same", [False, True])
def test_equal_values_have_an_interval_of_no_width(same):
    values = np.full((5, 8), 0.25)
    found = interval(values, draw(everyone(values), same, count=500))
    assert (found.mean, found.low, found.high) == pytest.approx((0.25, 0.25, 0.25))
    assert found.p == pytest.approx(2 / 501)  # no draw is at or below 0


def test_the_variance_of_the_mean_is_the_known_one_with_independent_clients():
    # Draws of k of k seeds and n of n clients, with replacement. With b the variance (ddof 0) of the seeds' means and
    # w the mean variance (ddof 0) within: var = b/k + w/(k·n).
    rng = np.random.default_rng(1)
    k, n = 5, 12
    values = rng.normal(0.5, 0.1, (k, 1)) + rng.normal(0, 0.2, (k, n))
    b, w = values.mean(1).var(), values.var(1).mean()
    found = means(values, draw(everyone(values), count=20_000)).var()
    assert found == pytest.approx(b / k + w / (k * n), rel=0.05)


def test_the_same_people_are_not_more_people_with_more_seeds():
    # Only people differ: seeds add nothing, so the variance is w/n, not w/(k·n).
    people = np.random.default_rng(2).normal(0.5, 0.2, 12)
    values = np.tile(people, (5, 1))
    there = everyone(values)
    assert means(values, draw(there, True, 20_000)).var() == pytest.approx(people.var() / 12, rel=0.05)
    assert means(values, draw(there, False, 20_000)).var() == pytest.approx(people.var() / 60, rel=0.05)


def test_those_who_did_not_take_part_are_not_drawn():
    values = np.array([[0.2, NAN, 0.4], [NAN, 0.6, 0.6]])
    for same in (False, True):
        draws = draw(everyone(values), same, count=200)
        assert draws.clients[:, 0, 1].sum() == draws.clients[:, 1, 0].sum() == 0
        found = means(values, draws)
        found = found[np.isfinite(found)]
        assert found.min() >= 0.2 - 1e-12
        assert found.max() <= 0.6 + 1e-12
    draws = draw(everyone(values), count=50)
    np.testing.assert_array_equal(draws.clients.sum(2), 2 * draws.seeds)  # two clients each time a seed is drawn


def test_p_is_about_one_around_nothing_and_small_far_from_it():
    values = np.random.default_rng(3).normal(0, 0.1, (5, 20))
    values -= values.mean(1, keepdims=True)
    draws = draw(everyone(values), count=2000)
    assert interval(values, draws).p > 0.8
    far = interval(values + 1, draws)
    assert (far.p, far.low > 0.9, far.high < 1.1) == (2 / 2001, True, True)
    assert interval(values - 1, draws).p == far.p


def test_the_text_of_an_interval():
    values = np.full((2, 2), -0.0123)
    assert interval(values, draw(everyone(values), count=10)).text() == "−1.2 [−1.2, −1.2]"


def test_wins_ties_and_losses_by_hand():
    # A tie is half a point or less. Seeds are separate clients, or one person with the mean over seeds.
    differences = np.array([[0.02, 0.004, -0.03], [-0.04, NAN, 0.02]])
    assert wins(differences) == (2, 1, 2)
    assert wins(differences, same_people=True) == (0, 2, 1)  # means: -.01, .004, -.005


def test_holm_by_hand():
    # Sorted: .01 ×4 = .04, .02 ×3 = .06, .03 ×2 = .06, .5 ×1.
    assert holm([0.02, 0.5, 0.01, 0.03]) == pytest.approx([0.06, 0.5, 0.04, 0.06])
    # .04·2 = .08 is not above the .03·3 = .09 before it; and .4·1 stays.
    assert holm([0.03, 0.04, 0.4]) == pytest.approx([0.09, 0.09, 0.4])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_matrix_has_nan_where_a_client_is_missing():
    found = matrix({0: {"a": 0.1}, 1: {"a": 0.2, "b": 0.3}}, [0, 1], ["a", "b"])
    np.testing.assert_array_equal(found, [[0.1, NAN], [0.2, 0.3]])

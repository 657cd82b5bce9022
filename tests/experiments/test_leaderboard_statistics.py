"""The statistics of the comparison, by hand, and simulated without a difference."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.leaderboard.statistics import LEVEL, holm, interval, matrix, mean, spread, wins

NAN = np.nan


def test_an_estimate_is_the_mean_over_seeds_of_means_over_clients():
    # Seed 0: (.2 + .4) / 2 = .3; seed 1: .9 alone. (.3 + .9) / 2 = .6, not the mean of all three, .5.
    values = np.array([[0.2, 0.4], [NAN, 0.9]])
    assert mean(values) == pytest.approx(0.6)
    assert spread(values) == pytest.approx(np.std([0.3, 0.9], ddof=1))
    assert spread(values[:1]) is None


def test_an_interval_over_seeds_by_hand():
    # Means by seed .3, .5, .7: mean .5, SD .2, error .2/√3 = .11547; t(.975, 2) = 4.302653: ± .496828. t = 4.330127 has
    # p = 1 - t/√(t² + 2) = .049414.
    found = interval(np.array([[0.2, 0.4, NAN], [0.4, 0.6, 0.5], [NAN, 0.7, 0.7]]), same_people=False)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.003172, 0.996828), abs=1e-6)
    assert found.p == pytest.approx(0.049414, abs=1e-6)


def test_an_interval_over_people_by_hand():
    # Their means over seeds are .3, .5, .7, and the fourth never took part: the same figures.
    values = np.array([[0.2, 0.5, 0.6, NAN], [0.4, 0.5, 0.8, NAN]])
    found = interval(values, same_people=True)
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.003172, 0.996828), abs=1e-6)
    assert interval(values, same_people=False).p != pytest.approx(found.p, abs=1e-3)


@pytest.mark.parametrize("same", [False, True])
def test_what_does_not_vary_has_an_interval_of_no_width(same):
    found = interval(np.full((5, 8), 0.25), same)
    assert (found.mean, found.low, found.high, found.p) == (0.25, 0.25, 0.25, 0.0)
    # No difference, but for rounding
    values = np.random.default_rng(1).normal(0, 1e-17, (5, 8)) + 1e-17
    assert interval(values, same).p == 1.0
    assert interval(values[:1, :1], same) is None


@pytest.mark.parametrize(("seeds", "clients", "same"), [(5, 40, False), (3, 16, False), (5, 30, True)])
def test_without_a_difference_five_per_cent_of_tests_find_one(seeds, clients, same):
    # As much spread between seeds as between clients; people keep theirs over the seeds.
    rng, count = np.random.default_rng(37), 2000
    common = rng.normal(0, 0.02, (count, 1, clients) if same else (count, seeds, 1))
    found = [interval(values, same) for values in common + rng.normal(0, 0.02, (count, seeds, clients))]
    assert 0.03 <= sum(each.p < LEVEL for each in found) / count <= 0.07
    assert all((each.p < LEVEL) == (each.low > 0 or each.high < 0) for each in found)


def test_the_text_of_an_interval():
    assert interval(np.full((2, 2), -0.0123), same_people=False).text() == "−1.2 [−1.2, −1.2]"


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

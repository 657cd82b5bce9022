"""The statistics by hand, and simulated without a difference."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sepal.study.statistics import LEVEL, holm, interval, matrix, mean, spread, wins

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
    result = interval(np.array([[0.2, 0.4, NAN], [0.4, 0.6, 0.5], [NAN, 0.7, 0.7]]), "seeds")
    assert (result.mean, result.low, result.high) == pytest.approx((0.5, 0.003172, 0.996828), abs=1e-6)
    assert result.p == pytest.approx(0.049414, abs=1e-6)


def test_an_interval_over_seeds_and_people_by_hand():
    # People's means over seeds are .3, .5, .7, and the fourth never took part: variance .04/3 = .0133333 of the mean.
    # Seeds' means are .4333333 and .5666667: variance (.1333333²/2)/2 = .0044444. Sum .0177778, error .1333333;
    # Satterthwaite: .0177778² / (.0133333²/2 + .0044444²/1) = 16²/(12²/2 + 4²) = 256/88 = 2.9090909 degrees of freedom.
    # t(.975, 2.909091) = 3.23945, times .1333333: ± .43193. t = .5 / .1333333 = 3.75.
    result = interval(np.array([[0.2, 0.5, 0.6, NAN], [0.4, 0.5, 0.8, NAN]]), "both")
    half = stats.t.ppf(0.975, 256 / 88) * 2 / 15
    assert (result.mean, result.low, result.high) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-9)
    assert half == pytest.approx(0.43193, abs=1e-5)
    assert result.p == pytest.approx(2 * stats.t.sf(3.75, 256 / 88), abs=1e-9)


@pytest.mark.parametrize("over", ["seeds", "clients", "both"])
def test_what_does_not_vary_has_an_interval_of_no_width(over):
    result = interval(np.full((5, 8), 0.25), over)
    assert (result.mean, result.low, result.high, result.p) == (0.25, 0.25, 0.25, 0.0)
    # No difference, but for rounding
    values = np.random.default_rng(1).normal(0, 1e-17, (5, 8)) + 1e-17
    assert interval(values, over).p == 1.0
    assert interval(values[:1, :1], over) is None


# Standard deviations between seeds and between people, in points, beside 2 within: who differs is not known before.
@pytest.mark.parametrize(
    ("seeds", "clients", "same", "of_seeds", "of_people", "least"),
    [
        (5, 40, False, 2, 0, 0.03),
        (3, 16, False, 2, 0, 0.03),
        (5, 30, True, 0, 2, 0.02),
        (5, 30, True, 1, 2, 0.02),
        (5, 30, True, 2, 0, 0.03),
        (5, 30, True, 0, 0, 0.0),  # the spread within is counted twice
    ],
)
def test_without_a_difference_at_most_seven_per_cent_of_tests_find_one(
    seeds, clients, same, of_seeds, of_people, least
):
    rng, count = np.random.default_rng(37), 2000
    common = rng.normal(0, 0.01 * of_seeds, (count, seeds, 1)) + rng.normal(0, 0.01 * of_people, (count, 1, clients))
    over = "both" if same else "seeds"
    results = [interval(values, over) for values in common + rng.normal(0, 0.02, (count, seeds, clients))]
    assert least <= sum(result.p < LEVEL for result in results) / count <= 0.07
    assert all((result.p < LEVEL) == (result.low > 0 or result.high < 0) for result in results)


def test_the_text_of_an_interval():
    assert interval(np.full((2, 2), -0.0123), "seeds").text() == "−1.2 [−1.2, −1.2]"


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
    values = matrix({0: {"a": 0.1}, 1: {"a": 0.2, "b": 0.3}}, [0, 1], ["a", "b"])
    np.testing.assert_array_equal(values, [[0.1, NAN], [0.2, 0.3]])

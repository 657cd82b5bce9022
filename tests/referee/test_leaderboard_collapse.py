"""A seed that has collapsed: which have, and that it is told wherever its figures are."""

from __future__ import annotations

import pytest

from referee.leaderboard.design import Design
from referee.leaderboard.measures import HOLDS, NEWCOMER, BlockResults
from referee.leaderboard.pages import _headline
from referee.leaderboard.points import points_of
from referee.leaderboard.tables import block_tables
from sepal.study.statistics import Interval
from tests.referee.test_leaderboard_design import BLOCK, OWN
from tests.referee.test_leaderboard_pages import stored


def measured(*levels):
    """Return a block in which Ditto has these levels, a seed each; all others have the same."""
    block = BLOCK.model_copy(update={"seeds": tuple(range(len(levels)))})
    rows = [run_record for run_record in stored() if run_record.seed != 1]
    for run_record in [run_record for run_record in rows if run_record.seed == 0]:
        for seed, level in enumerate(levels):
            accuracies = [level, level, 0.3] if run_record.labels["contender"] == "ditto" else [0.6, 0.6, 0.3]
            clients = {**run_record.clients, "trained": accuracies}
            rows.append(
                run_record.model_copy(update={"config": {**run_record.config, "seed": seed}, "clients": clients})
            )
    return BlockResults(Design(block, rows))


@pytest.mark.parametrize(
    ("levels", "low"),
    [
        ((0.88, 0.46, 0.9, 0.61), {1}),  # more than half of .9: what a client's largest class alone has
        ((0.2, 0.2, 0.9, 0.2), {0, 1, 3}),  # however many
        ((0.88, 0.61, 0.9, 0.9), set()),
    ],
)
def test_a_seed_far_below_the_best_has_collapsed(levels, low):
    results = measured(*levels)
    assert results.collapsed(OWN) == low
    assert results.figure(OWN, HOLDS).collapsed == tuple(levels[seed] for seed in sorted(low))


def test_it_is_told_in_every_view_of_that_seed_and_in_the_picture():
    results = measured(0.88, 0.46, 0.9, 0.8)
    assert results.figure(OWN, NEWCOMER).collapsed == (0.4,)
    label, bar = next((p.entry.label, p.entry.bar) for p in points_of(results) if p.contender is OWN)
    assert label == "ditto (1 fell)"
    assert bar == pytest.approx((0.76, 0.76))
    words = "76.0 ± 20.5 (1 of 4 seeds collapsed: 46.0; others 86.0 ± 5.3)"
    assert words in "\n".join(block_tables(results)).partition("equal bytes")[0]


def test_a_budget_that_buys_all_rounds_is_judged_and_one_that_does_not_is_not():
    dear = BLOCK.model_copy(update={"dense": "ditto"})  # 100 % of its own bytes buy all its rounds
    results = measured(0.88, 0.46, 0.9, 0.8)
    results = BlockResults(
        Design(dear.model_copy(update={"seeds": results.block.seeds}), list(results.design.rows.values()))
    )
    assert results.figure(OWN, HOLDS, 1.0).collapsed == (0.46,)
    fewer = measured(0.88, 0.46, 0.9, 0.8).figure(OWN, HOLDS, 0.3)  # 6 rounds
    assert (fewer.count, fewer.collapsed) == (4, ())


def test_what_has_no_verdict_is_not_bold():
    family = {("x", "ditto", HOLDS): (Interval(0.07, 0.05, 0.09, 0.001), 0.01)}
    assert "**" not in "\n".join(_headline([measured(0.88, 0.46, 0.9, 0.8)], HOLDS, family))
    assert "**+7.0" in "\n".join(_headline([measured(0.88, 0.86, 0.9, 0.8)], HOLDS, family))


def test_the_difference_without_it_leaves_out_the_seeds_of_both_sides():
    results, fedavg = measured(0.88, 0.46, 0.9, 0.8), BLOCK.contenders[0]
    # .88, .9 and .8 less .6
    assert results.without_collapsed(OWN, fedavg).mean == pytest.approx(0.26)
    assert measured(0.88, 0.1, 0.1, 0.1).without_collapsed(OWN, fedavg) is None

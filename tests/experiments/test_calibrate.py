"""The search for default rates, and that the stored table and page follow from the stored trials."""

from __future__ import annotations

import math

import pytest

from experiments.calibrate.pages import PAGE, TABLE, markdown, toml
from experiments.calibrate.rows import Evidence
from experiments.calibrate.search import GROWTH, MOST, SEEDS, Trial, Trials
from experiments.calibrate.settings import SETTINGS
from experiments.calibrate.trial import run_trial


def search(accuracy, grid=(0.1, 0.2, 0.4), own=None):
    """Run all needed trials on a function of (rate, own value, seed) and return the search."""
    trials = Trials("digits", "ditto", grid, own=own or {})
    count = 0
    while needed := trials.needed():
        for trial in needed:
            keys = dict(trial.keys)
            found = accuracy(keys["lr"], keys.get("ditto.lambda"), trial.seed)
            trials.found.setdefault(trial.keys, {})[trial.seed] = found
            count += 1
    return trials, count


def test_the_best_rate_of_all_seeds_is_chosen():
    # Best at .2 by a constant margin. Runs: 3 rates with the first seed, and 3 finalists with two more seeds.
    trials, count = search(lambda lr, _, seed: 0.9 - abs(lr - 0.2) + (seed - 102) / 100)
    assert (dict(trials.chosen()), count) == ({"lr": 0.2}, 9)


def test_the_grid_grows_while_its_best_is_at_an_edge():
    trials, _ = search(lambda lr, _, seed: 0.9 - abs(lr - 0.8) / 10)
    assert trials.rates() == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert dict(trials.chosen()) == {"lr": 0.8}
    trials, _ = search(lambda lr, _, seed: 0.9 - abs(lr - 0.025))
    assert trials.rates() == [0.013, 0.025, 0.05, 0.1, 0.2, 0.4]


def test_the_grid_ends_somewhere():
    trials, _ = search(lambda lr, _, seed: lr / 100)
    assert 2 * max(trials.rates()) > MOST


def test_a_smaller_rate_is_kept_if_the_best_is_not_ahead_by_more_than_a_standard_error():
    # Gaps of .4 to .2 by seed: .01, .02, -.01. Mean .00667; standard error: the deviations .00333, .01333, -.01667 have
    # the sum of squares .000467; /2 = .000233, /3 = .0000778, root .00882.
    gaps = dict(zip(SEEDS, (0.01, 0.02, -0.01), strict=True))
    trials, _ = search(lambda lr, _, seed: {0.1: 0.5, 0.2: 0.8, 0.4: 0.8 + gaps[seed]}.get(lr, 0.1))
    assert dict(trials.chosen()) == {"lr": 0.2}
    gaps = dict(zip(SEEDS, (0.01, 0.02, 0.01), strict=True))  # mean .0133, standard error .0033
    trials, _ = search(lambda lr, _, seed: {0.1: 0.5, 0.2: 0.8, 0.4: 0.8 + gaps[seed]}.get(lr, 0.1))
    assert dict(trials.chosen()) == {"lr": 0.4}


def test_own_keys_are_searched_at_the_chosen_rate_and_the_first_value_is_preferred():
    own = {"lambda": (1.0, 0.1)}
    better = {1.0: 0.0, 0.1: 0.05}
    trials, count = search(lambda lr, own, seed: 0.8 - abs(lr - 0.2) + better.get(own, 0.0), own=own)
    assert (dict(trials.chosen()), count) == ({"lr": 0.2, "ditto.lambda": 0.1}, 9 + 3 + 3)  # and at .01
    trials, _ = search(lambda lr, own, seed: 0.8 - abs(lr - 0.2), own=own)
    assert dict(trials.chosen()) == {"lr": 0.2, "ditto.lambda": 1.0}


def test_the_grid_grows_where_the_smaller_rate_is_kept_at_its_edge():
    # .2 is best with the first seed, and .1 as good over all: so .05 is tried, which is far behind with the first seed.
    shifts = dict(zip(SEEDS, (-0.01, 0.01, 0.0), strict=True))
    trials, _ = search(lambda lr, _, seed: {0.1: 0.8 + shifts[seed], 0.2: 0.8, 0.4: 0.7}.get(lr, 0.1))
    assert trials.rates() == [0.05, 0.1, 0.2, 0.4]
    assert dict(trials.chosen()) == {"lr": 0.1}


@pytest.mark.parametrize(
    ("best", "tried"),
    [(0.1, [0.01, 0.1, 1.0]), (0.01, [0.001, 0.01, 0.1, 1.0]), (1e-6, [0.0001, 0.001, 0.01, 0.1, 1.0])],
)
def test_the_grid_of_an_own_key_grows_at_most_twice(best, tried):
    own = {"lambda": (0.1, 0.01, 1.0)}
    trials, _ = search(lambda lr, own, seed: 0.8 - abs(lr - 0.2) - abs(math.log10(own / best)) / 10, own=own)
    assert sorted(dict(keys)["ditto.lambda"] for keys in next(iter(trials.own_grids()))[1]) == tried


def test_the_grid_of_an_own_key_does_not_grow_where_runs_are_shortened():
    assert {name: setting.growth for name, setting in SETTINGS.items() if setting.growth} == {"digits": GROWTH}
    grid = [(("ditto.lambda", value), ("lr", 0.1)) for value in (0.1, 1.0)]
    found = {keys: dict.fromkeys(SEEDS, dict(keys)["ditto.lambda"]) for keys in grid}
    short, whole = (Trials("har", "ditto", (0.1,), found, growth=growth) for growth in (0, GROWTH))
    assert len(short._grown(grid, "ditto.lambda")) == 2
    assert len(whole._grown(grid, "ditto.lambda")) == 3


def test_nothing_is_tried_below_0_or_above_a_whole():
    trials, _ = search(lambda lr, own, seed: 0.8 - abs(lr - 0.2) - own, own={"lambda": (0.0, 0.1)})
    assert len(next(iter(trials.own_grids()))[1]) == 2
    whole = Trials("digits", "apfl", (0.1,), own={"alpha": (0.5, 0.75)})
    grown = whole._grown([(("apfl.alpha", value), ("lr", 0.1)) for value in (0.5, 0.75)], "apfl.alpha")
    assert len(grown) == 2
    for keys in grown:
        whole.found[keys] = dict.fromkeys(SEEDS, dict(keys)["apfl.alpha"])
    assert len(whole._grown(grown, "apfl.alpha")) == 2  # not 1.1


def test_a_stored_trial_is_not_needed_again(tmp_path):
    from experiments.calibrate.rows import Row

    stored = Evidence(tmp_path / "trials.ndjson")
    first = stored.trials("digits", "fedavg", (0.1, 0.2), {})
    wanted = first.needed()
    stored.add(Row.of(wanted[0], 0.5, 30, 1.0, "abc"), [first])
    assert wanted[0] not in first.needed()
    again = Evidence.read(tmp_path / "trials.ndjson").trials("digits", "fedavg", (0.1, 0.2), {})
    assert again.needed() == first.needed()


def test_table_and_page_are_made_from_the_stored_trials():
    evidence = Evidence.read()
    assert TABLE.read_text() == toml(evidence), "run `python -m experiments.calibrate --pages`"
    assert PAGE.read_text() == markdown(evidence), "run `python -m experiments.calibrate --pages`"


@pytest.mark.parametrize("method", ["fedavg", "fedpse"])
def test_a_cell_again(method):
    # Another kind of processor rounds differently, and a validation part has about 15 examples: within 4 points.
    trials = Evidence.read().trials("digits", method, (), {})
    keys, by_seed = max(trials.found.items(), key=lambda item: (len(item[1]), item[1][SEEDS[0]]))
    validation, _, _ = run_trial(Trial("digits", method, keys, SEEDS[0]))
    assert validation == pytest.approx(by_seed[SEEDS[0]], abs=0.04)

"""The search for default rates."""

from __future__ import annotations

import math

import pytest

from referee.calibrate import pages
from referee.calibrate.search import CLIP, MOST, SEEDS, Evidence, RateTrial, Trials, run_trial
from referee.calibrate.settings import GROWTH, SETTINGS
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.record import RunRecord


def search(accuracy, grid=(0.1, 0.2, 0.4), own_values=None):
    """Run all needed trials on a function of (rate, own value, seed) and return the search."""
    trials = Trials("digits", "ditto", grid, own_values=own_values or {})
    count = 0
    while needed := trials.needed():
        for trial in needed:
            keys = dict(trial.keys)
            measured = accuracy(keys["lr"], keys.get("ditto.lambda"), trial.seed)
            trials.accuracies.setdefault(trial.keys, {})[trial.seed] = measured
            count += 1
    return trials, count


def with_margin(accuracy, diverges=lambda lr, seed: 0, grid=(0.1, 0.2, 0.4, 0.8)):
    """The same with a margin, of functions of (rate, seed)."""
    trials = Trials("digits", "ditto", grid, clip=5.0)
    while needed := trials.needed():
        for trial in needed:
            lr = dict(trial.keys)["lr"]
            trials.accuracies.setdefault(trial.keys, {})[trial.seed] = accuracy(lr, trial.seed)
            trials.diverged.setdefault(trial.keys, {})[trial.seed] = diverges(lr, trial.seed)
    return trials, dict(trials.chosen())


def test_with_a_margin_a_rate_below_one_that_collapses_on_any_seed_is_not_chosen():
    """.4 is best, but of .8 the fifth seed has .5, less than two thirds of .93: so .2."""
    trials, chosen = with_margin(lambda lr, seed: 0.5 if (lr, seed) == (0.8, 105) else 0.93 - abs(lr - 0.4) / 10)
    assert chosen == {"lr": 0.2, "clip-gradient": 5.0}
    assert not trials.eligible((("clip-gradient", 5.0), ("lr", 0.4)))


def test_with_a_margin_a_diverged_client_of_any_seed_excludes_a_rate_and_the_one_below():
    trials, chosen = with_margin(
        lambda lr, seed: 0.9 - abs(lr - 0.8) / 10, lambda lr, seed: int((lr, seed) == (0.8, 104)) * 3
    )
    assert chosen["lr"] == 0.2
    assert {seed for by_seed in trials.accuracies.values() for seed in by_seed} == {101, 102, 103, 104, 105}


def test_with_a_margin_the_highest_mean_minus_its_standard_error_is_chosen():
    """.2 has .80 for all five seeds. .4 has .85 .85 .85 .85 .65: mean .81, standard deviation .0894, error .04: .77."""
    _, chosen = with_margin(
        lambda lr, seed: {0.1: 0.7, 0.2: 0.8, 0.4: 0.65 if seed == 105 else 0.85, 0.8: 0.6}.get(lr, 0.5)
    )
    assert chosen["lr"] == 0.2


def test_with_a_margin_the_best_rate_at_the_end_needs_the_next_one():
    trials, chosen = with_margin(lambda lr, seed: 0.9 - abs(lr - 0.8) / 10)
    assert chosen["lr"] == 0.8
    assert (("clip-gradient", 5.0), ("lr", 1.6)) in trials.accuracies


def test_if_all_rates_diverge_one_is_chosen_all_the_same():
    _, chosen = with_margin(lambda lr, seed: 0.5, lambda lr, seed: 1)
    assert chosen


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
    candidates = {"lambda": (1.0, 0.1)}
    better = {1.0: 0.0, 0.1: 0.05}
    trials, count = search(
        lambda lr, strength, seed: 0.8 - abs(lr - 0.2) + better.get(strength, 0.0), own_values=candidates
    )
    assert (dict(trials.chosen()), count) == ({"lr": 0.2, "ditto.lambda": 0.1}, 9 + 3 + 3)  # and at .01
    trials, _ = search(lambda lr, strength, seed: 0.8 - abs(lr - 0.2), own_values=candidates)
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
    own_value = {"lambda": (0.1, 0.01, 1.0)}
    trials, _ = search(
        lambda lr, own_value, seed: 0.8 - abs(lr - 0.2) - abs(math.log10(own_value / best)) / 10, own_values=own_value
    )
    assert sorted(dict(keys)["ditto.lambda"] for keys in next(iter(trials.own_grids()))[1]) == tried


def test_the_grid_of_an_own_key_does_not_grow_where_runs_are_shortened():
    assert {name: setting.growth for name, setting in SETTINGS.items() if setting.growth} == {"digits": GROWTH}
    grid = [(("ditto.lambda", value), ("lr", 0.1)) for value in (0.1, 1.0)]
    accuracies = {keys: dict.fromkeys(SEEDS, dict(keys)["ditto.lambda"]) for keys in grid}
    short, whole = (Trials("har", "ditto", (0.1,), accuracies, growth=growth) for growth in (0, GROWTH))
    assert len(short._grown(grid, "ditto.lambda")) == 2
    assert len(whole._grown(grid, "ditto.lambda")) == 3


def test_nothing_is_tried_below_0_or_above_a_whole():
    trials, _ = search(lambda lr, strength, seed: 0.8 - abs(lr - 0.2) - strength, own_values={"lambda": (0.0, 0.1)})
    assert len(next(iter(trials.own_grids()))[1]) == 2
    whole = Trials("digits", "apfl", (0.1,), own_values={"alpha": (0.5, 0.75)})
    grown = whole._grown([(("apfl.alpha", value), ("lr", 0.1)) for value in (0.5, 0.75)], "apfl.alpha")
    assert len(grown) == 2
    for keys in grown:
        whole.accuracies[keys] = dict.fromkeys(SEEDS, dict(keys)["apfl.alpha"])
    assert len(whole._grown(grown, "apfl.alpha")) == 2  # not 1.1


@pytest.mark.parametrize(("method", "clip"), [("pfedgate", None), ("pfedgate", 10.0), ("scaffold", 0.0)])
def test_a_stored_trial_is_not_needed_again(method, clip):
    """All keys that its record has but those of the search are the setting's, or were the defaults of then."""
    evidence, setting = Evidence([]), SETTINGS["digits"]
    first = evidence.trials("digits", method, setting, clip)
    missing_run = first.needed()[0]
    evidence.add(RunRecord(config=missing_run.config, deployed="trained", validation={"trained": 0.5}, diverged=2))
    assert missing_run not in first.needed()
    assert first.accuracies == {missing_run.keys: {missing_run.seed: 0.5}}
    assert first.diverged == {missing_run.keys: {missing_run.seed: 2}}
    assert evidence.trials("digits", method, setting, clip).needed() == first.needed()
    assert not evidence.trials("digits", method, setting, 10.0 if clip is None else None).accuracies


def test_a_method_that_refuses_clipping_is_searched_with_a_margin_and_without_clipping():
    for name, setting in SETTINGS.items():
        clipped = [method for method in setting.all_methods if setting.clip(method)]
        for method in setting.all_methods:
            assemble({"dataset": name, "method": method, "clip-gradient": setting.clip(method) or 0.0})
        assert clipped
    assert SETTINGS["digits"].clip("scaffold") == 0.0
    assert len(SETTINGS["digits"].all_methods) == len(registry.METHODS)


@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=pytest.mark.long), "fedpse"])
def test_a_cell_again(method):
    """With the smallest rate, far from divergence, a processor that rounds differently changes hardly anything.

    Measured on an AMD EPYC, ATEN_CPU_CAPABILITY = default, avx2 and avx512, each with ONEDNN_MAX_CPU_ISA = SSE41 and
    AVX512_CORE: FedAvg is the stored figure in all six, FedPSE in four; in two it is .0053 above, which is one example.
    """
    trials = Evidence.read().trials("digits", method, SETTINGS["digits"])
    keys = min((keys for keys in trials.accuracies), key=lambda keys: dict(keys)["lr"])
    record = run_trial(RateTrial("digits", method, keys, SEEDS[0]), "abc")
    assert record.held_out == pytest.approx(trials.accuracies[keys][SEEDS[0]], abs=0.01)
    assert (record.diverged, record.accuracy) == (0, {})


def test_a_trial_of_before_has_the_defaults_of_then_and_one_with_a_margin_those_of_now():
    """pFedGate's stored trials without clipping had s = 1 without a key; a search with a margin clips, and names it."""
    before, now = (
        RateTrial("digits", "pfedgate", keys, SEEDS[0]).config
        for keys in ((("lr", 0.2),), (("clip-gradient", 10.0), ("lr", 0.2)))
    )
    former = {key: value for key, value in registry.former("pfedgate").items() if key != "method"}
    assert {key: before[key] for key in former} == former
    assert before["pfedgate.keep"] == 0.0
    assert (now["clip-gradient"], now["pfedgate.gating"]) == (10.0, "batch")
    assert not {"pfedgate.keep", "on-divergence"} & now.keys()


def test_a_trial_that_lacks_a_pinned_key_is_in_the_search_of_before_it_was_pinned():
    """pFedGate's trials with one gate for an example were judged with a margin before the gate for a batch."""
    evidence, setting = Evidence([]), SETTINGS["digits"]
    missing_run = evidence.trials("digits", "pfedgate", setting, 5.0).needed()[0]
    config = {key: value for key, value in missing_run.config.items() if key != "pfedgate.gating"}
    evidence.add(RunRecord(config=config, deployed="trained", validation={"trained": 0.5}))
    assert missing_run in evidence.trials("digits", "pfedgate", setting, 5.0).needed()
    assert missing_run not in evidence.trials("digits", "pfedgate", setting, 5.0, pinned=False).needed()


@pytest.mark.parametrize("default", [False, True])
def test_the_search_with_pinned_keys_counts_once_they_are_defaults(default, monkeypatch):
    """On digits the search of before has a margin, too. Until that with pinned keys ends, the earliest one is left."""
    monkeypatch.setattr(pages, "pinned_by_default", lambda method: default or method != "pfedgate")
    stored = Evidence.read().records
    without = [record for record in stored if "pfedgate.gating" not in record.config]
    clips = [
        dict(trials.chosen()).get(CLIP) for trials in pages._ended(Evidence(without), "digits", SETTINGS["digits"])
    ]
    assert clips.count(None) == default
    assert len(clips) > 30


def test_a_search_that_has_begun_without_an_earlier_one_is_not_waited_for():
    stored, setting = Evidence.read(), SETTINGS["digits"]
    fedavg = [record for record in stored.records if (record.dataset, record.method) == ("digits", "fedavg")]
    begun = next(record for record in fedavg if record.config.get(CLIP))
    evidence = Evidence([*(record for record in stored.records if record not in fedavg), begun])
    ended = list(pages._ended(evidence, "digits", setting))
    assert ended
    assert all(trials.margin and trials.method != "fedavg" for trials in ended)


def test_a_method_without_trials_does_not_undo_the_searches_of_the_others():
    """All methods of digits that have trials have ended the search with a margin, so its results count."""
    stored, setting = Evidence.read(), SETTINGS["digits"]
    without = Evidence([record for record in stored.records if record.method != "fedavg"])
    ended, others = (list(pages._ended(evidence, "digits", setting)) for evidence in (stored, without))
    assert all(trials.margin for trials in (*ended, *others))
    assert {trials.method for trials in ended} - {trials.method for trials in others} == {"fedavg"}

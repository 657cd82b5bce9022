"""How trials choose, by hand."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from sepal.errors import SepalError
from sepal.study.search import (
    beyond,
    choose,
    error_over_clients,
    mean_of_trials,
    measure_in,
    standard_error,
    validation,
)

STORED = Path(__file__).parents[2] / "data" / "run_of_0_1"

VALUES = {0.1: 0.8, 0.2: 0.9, 0.4: 0.9, 0.8: 0.89}


def test_the_best_is_chosen_the_first_in_a_tie_or_the_least_in_an_order():
    assert choose(list(VALUES), VALUES.get) == 0.2
    assert choose(list(VALUES), VALUES.get, order=lambda rate: -rate) == 0.4


def test_what_is_close_to_the_best_may_be_preferred():
    def close(best, candidate):
        return VALUES[candidate] >= VALUES[best] - 0.02

    assert choose(list(VALUES), VALUES.get, lambda rate: -rate, close) == 0.8
    assert choose(list(VALUES), VALUES.get, lambda rate: rate, close) == 0.2


@pytest.mark.parametrize(("value", "expected"), [(0.1, 0.05), (0.8, 1.6), (0.2, None)])
def test_beyond_an_end_the_grid_goes_on_with_its_last_step(value, expected):
    assert beyond(value, sorted(VALUES)) == expected


def test_beyond_zero_there_is_nothing():
    assert beyond(0.0, (0.0, 0.1)) is None
    assert beyond(0.1, (0.0, 0.1)) is None


def test_means_of_the_same_values_tie_and_one_value_has_no_error():
    assert mean_of_trials([0.1, 0.2, 0.3]) == mean_of_trials([0.3, 0.2, 0.1])
    assert standard_error([0.5]) is None
    assert standard_error([0.1, 0.2, 0.3]) == pytest.approx(0.1 / 3**0.5)


@pytest.mark.parametrize("odd", [None, 1, "x", [], {}, {"kept": 1}, {"kept": {}}, {"kept": {"mean": [], "std": "x"}}])
def test_odd_figures_of_a_trial_name_its_run(odd, tmp_path):
    run = Path(shutil.copytree(STORED, tmp_path / "run"))
    *lines, last = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines, json.dumps({**json.loads(last), "validation": odd}), ""]))
    for read in (validation, lambda path, view: error_over_clients([path], view)):
        with pytest.raises(SepalError, match=r"run: expected figures|that run has validation"):
            read(run, "kept")
    (run / "summary.json").write_text(json.dumps({"complete": True, "headline": odd, "metric": odd}))
    with suppress(SepalError):
        measure_in([run])

"""``lr = "search"``: a short search of the learning rate before a run, on validation data."""

from __future__ import annotations

import logging
from typing import Literal, get_args, get_origin

import numpy as np
import pytest

import sepal
from sepal.config import RunConfig, key_fields, parse
from sepal.errors import ConfigError, SepalError
from sepal.runs.stored_run import stored_config
from sepal.strategies.assembly import assemble
from sepal.strategies.calibrated import FINDS
from sepal.strategies.registry import Hypers
from sepal.study import rate_search
from sepal.study.plans.plan import check_keys, read_plan
from sepal.study.rate_search import searched_rate
from sepal.study.run import prepare
from sepal.study.search import two_digits

KEYS = {"method": "fedavg", "dataset": "digits", "clients": 4, "rounds": 3}


CALIBRATED = assemble({**KEYS}).setup.config.lr  # the search begins there
LOWER = two_digits(CALIBRATED / 4)


@pytest.fixture
def trials(monkeypatch):
    """A search whose trials are not run: the next lower rate is best on validation data; those from 10 on diverge."""
    tried = []

    def value(flat, view, workers):
        tried.append(flat)
        if flat["lr"] >= 10:
            raise SepalError("round 1", "training that converges", "NaN")
        return 1 - abs(np.log(flat["lr"] / best[0])) / 100

    best = [LOWER]
    monkeypatch.setattr(rate_search, "_validation", value)
    return tried, best


def test_the_best_of_rates_around_the_calibrated_one_is_chosen_by_validation_data(trials):
    tried, _ = trials
    result = searched_rate({**KEYS, "lr": "search", "rounds": 40})
    assert result.lr == LOWER
    rates = [two_digits(CALIBRATED * 4.0**power) for power in (-2, -1, 0, 1, 2)]
    assert sorted(flat["lr"] for flat in tried) == rates
    assert {(flat["rounds"], flat.get("seed", 0), flat["on-divergence"]) for flat in tried} == {(10, 0, "stop")}
    begin = f"lr = {LOWER:g}: searched in 10 rounds, accuracy on validation data: {rates[0]:g}: "
    assert result.note.startswith(begin)


@pytest.mark.parametrize(("best", "edge"), [(1e-4, min), (1e5, max)])
def test_rates_at_an_edge_lead_to_the_next_one_and_those_that_diverge_are_left_out(trials, best, edge):
    tried, where = trials
    where[0] = best
    rate = searched_rate({**KEYS, "lr": "search"}).lr
    assert rate == edge(flat["lr"] for flat in tried if flat["lr"] < 10)
    assert 5 < len(tried) <= rate_search.MOST_TRIALS


def test_a_search_in_which_every_trial_fails_is_an_error(monkeypatch):
    def fails(flat, view, workers):
        raise SepalError("round 1", "training that converges", "NaN")

    monkeypatch.setattr(rate_search, "_validation", fails)
    with pytest.raises(ConfigError, match=r"lr: needed a search in which one of 5 trials .* NaN"):
        searched_rate({**KEYS, "lr": "search"})


def test_a_run_stores_its_rate_and_is_continued_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = {"clients": 3, "rounds": 1, "name": "mine", "progress": False, "workers": 1}
    run = sepal.run("fedavg", "digits", lr="search", **keys)
    rate = stored_config(run.path)["lr"]
    assert isinstance(rate, float)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mine"], "trials leave nothing behind"
    monkeypatch.setattr(rate_search, "_validation", None)
    assert prepare({**KEYS, "clients": 3, "rounds": 1, "name": "mine", "lr": "search"}, tmp_path).settings.lr == rate
    assert sepal.run("fedavg", "digits", lr="search", **keys).stored.config["lr"] == rate


def choices():
    """Every value of every key that has a fixed set of them."""
    for key, info in key_fields(RunConfig):
        values = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
        yield from ((key, value) for value in (values or ((True, False) if info.annotation is bool else ())))


def is_accepted(flat):
    try:
        parse(flat, Hypers())
    except ConfigError:
        return False
    return True


def test_a_run_that_is_accepted_has_trials_that_are():
    """A trial has fewer rounds and evaluations than its run, which not every value of the other keys goes with."""
    values = [(key, value) for key, value in choices() if is_accepted({**KEYS, key: value})]
    assert ("final-model", "best") in values
    assert [pair for pair in values if not is_accepted({**KEYS, pair[0]: pair[1], **rate_search._OF_A_TRIAL})] == []


def test_what_every_trial_warns_of_is_told_once_with_a_count(monkeypatch, caplog):
    def value(flat, view, workers):
        logging.getLogger("sepal").warning("round 3: most clients diverged")
        return 0.5

    monkeypatch.setattr(rate_search, "_validation", value)
    searched_rate({**KEYS, "lr": "search"})
    assert caplog.messages == ["round 3: most clients diverged", "5 times: round 3: most clients diverged"]


def test_the_best_model_of_a_run_with_a_searched_rate_is_kept(tmp_path):
    keys = {**KEYS, "lr": "search", "final-model": "best", "rounds": 2, "evaluate-every": 1, "clients": 2}
    settings = prepare({**keys, "partition.subsample": 80}, tmp_path, workers=1).settings
    assert settings.final_model == "best"
    assert settings.lr > 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"split.validation": 0.0}, r"lr: expected a number with split\.validation = 0"),
        ({"privacy.noise": 1.0, "privacy.clip": 1.0}, r"lr: expected a number with privacy\.noise"),
        ({"lr": "find"}, r"lr: expected a valid number, or 'search', got 'find'"),
        ({"lr": -1.0}, r"lr: expected greater than or equal to 0, or 'search', got -1"),
        ({"clip-gradient": -1.0}, r"clip-gradient: expected greater than or equal to 0, or 'auto', got -1"),
    ],
)
def test_what_cannot_be_searched_is_refused(more, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        prepare({**KEYS, "lr": "search", **more}, tmp_path)


def test_where_nothing_searches_the_word_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"lr: expected a number: the rate is searched by `sepal run`"):
        assemble({**KEYS, "lr": "search"})
    (tmp_path / "plan.toml").write_text('methods = ["fedavg", "local"]\n[settings]\nlr = "search"\n')
    plan = read_plan(tmp_path / "plan.toml")
    with pytest.raises(ConfigError, match=r"lr: expected a number, or 0: in a plan, `tune = true` searches"):
        check_keys("plan.toml", list(plan.runs()))


# What finds a rate


def table(tmp_path):
    tmp_path.joinpath("all.csv").write_text("a,label\n" + "".join(f"{n},{n % 2}\n" for n in range(90)))
    return {"dataset": "folder", "data-dir": str(tmp_path), "clients": 3}


@pytest.mark.parametrize(
    "more", [{"method": "fedavg"}, {"method": "pfedme"}, {"method": "fedavg", "optimizer": "adam"}]
)
def test_data_without_a_calibrated_rate_name_what_finds_one_in_one_line(more, tmp_path):
    flat = {**table(tmp_path), **more}
    (line,) = [note for note in assemble(flat).notes if note.startswith("lr = ")]
    assert "calibrated" in line
    assert line.endswith(f"; {FINDS}")
    assert not [note for note in assemble({**flat, "lr": 0.1}).notes if note.startswith("lr = ")]

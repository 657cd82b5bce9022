"""`sepal tune`: the same number of trials for each method, chosen on validation data alone."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.errors import ConfigError
from sepal.study.plans.plan import check_keys, read_plan
from sepal.study.plans.tune import choose, read_search
from tests.sepal.cli.runs_for_tests import write_run

PLAN = """
methods = ["ditto", "fedavg"]
trials = 2
views = { fedavg = "trained" }
[settings]
dataset = "digits"
rounds = 2
clients = 3
[settings.ditto]
epochs = 1
[grid]
lr = [0.01, 0.1]
[grid.ditto]
lambda = [0.5, 1.0]
"""


def plan_file(path: Path, text: str) -> Path:
    """Write a plan."""
    file = path / "small.toml"
    file.write_text(text)
    return file


def test_each_method_has_as_many_trials_and_its_own_keys(tmp_path):
    """Ditto's grid has 4 combinations, of which 2 are drawn, the same ones every time; FedAvg's has 2."""
    search = read_search(plan_file(tmp_path, PLAN))
    assert [trial.method for trial in search.trials] == ["ditto", "ditto", "fedavg", "fedavg"]
    assert search.trials == read_search(plan_file(tmp_path, PLAN)).trials
    assert all(set(trial.settings) == {"lr", "ditto.lambda"} for trial in search.trials[:2])
    assert [dict(trial.settings) for trial in search.trials[2:]] == [{"lr": 0.01}, {"lr": 0.1}]
    runs = list(search.plan.runs())
    check_keys("small.toml", runs)
    assert len({run.name for run in runs}) == 4
    assert [run.keys.get("ditto.epochs") for run in runs] == [1, 1, None, None]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("trials = 2", "", "small.toml: grid of fedavg: expected as many trials as for ditto, 4, or `trials`, got 2"),
        ("trials = 2", "trials = 3", "small.toml: grid of fedavg: expected at least trials = 3 combinations, got 2"),
        ("trials = 2", "trials = 0", "small.toml: trials: expected a whole number, at least 1, got 0"),
        ('"trained" }', '"pooled" }', "small.toml: views.fedavg: expected one of the methods, with received or tr"),
        ("[grid.ditto]", "[grid.dito]", "small.toml: settings.dito: expected one of the methods ditto, fedavg"),
        ("rounds = 2", "split.validation = 0", "split.validation: expected more than 0: trials are chosen by it"),
        ("rounds = 2", "rounds = [2, 3]", r"settings: expected lists in \[grid\] alone"),
    ],
)
def test_an_unfair_or_impossible_search_is_one_line(tmp_path, old, new, words):
    def check(search):
        search.check_validation(list(search.plan.runs()))

    with pytest.raises(ConfigError, match=words):
        check(read_search(plan_file(tmp_path, PLAN.replace(old, new))))


def test_validation_decides_and_test_data_does_not(tmp_path):
    """The trial with the higher validation accuracy wins although its test accuracy is lower.

    Ditto is judged by the model that it deploys, and FedAvg, which deploys the received one, as the plan says.
    """
    search = read_search(plan_file(tmp_path, PLAN))
    runs = list(search.plan.runs())
    for run, value in zip(runs, (0.9, 0.5, 0.5, 0.9), strict=True):
        path = write_run(tmp_path / run.name, method=str(run.keys["method"]), closing=[value] * 3)
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for view in ("trained", "received", "kept"):
            lines[-1]["validation"][view] = {"mean": 1 - value}
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    trials = search.judged(tmp_path, runs)
    best = choose(trials)
    assert (best["ditto"], best["fedavg"]) == (trials[1], trials[2])
    chosen, grid = search.write(tmp_path, runs, trials)
    rows = [json.loads(line) for line in grid.read_text().splitlines()]
    assert [row["chosen"] for row in rows] == [False, True, True, False]
    assert [row["view"] for row in rows] == ["kept", "kept", "trained", "trained"]
    assert {row["rounds"] for row in rows} == {2}
    assert tomllib.loads(chosen.read_text())["settings"]["fedavg"] == {"lr": 0.01}
    plan = f'tuned = "{chosen.name}"\nmethods = ["fedavg", "ditto"]\n[settings]\ndataset = "digits"\n'
    keys = [run.keys for run in read_plan(plan_file(tmp_path, plan)).runs()]
    assert keys[0]["lr"] == 0.01
    assert keys[1]["ditto.lambda"] == trials[1].settings["ditto.lambda"]

    (tmp_path / runs[0].name / "summary.json").unlink()  # a trial is missing: nothing is chosen for its method
    assert set(choose(search.judged(tmp_path, runs))) == {"fedavg"}


def test_a_small_search_runs(tmp_path, runs_in_this_process):
    text = PLAN.replace('["ditto", "fedavg"]', '["fedavg"]').partition("[settings.ditto]")[0] + "[grid]\nlr = [0.1]\n"
    text = text.replace("trials = 2", "").replace("clients = 3", 'clients = 2\n"partition.subsample" = 200')
    result = CliRunner().invoke(app, ["tune", str(plan_file(tmp_path, text)), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "chosen" in result.stdout
    assert tomllib.loads((tmp_path / "out" / "chosen.toml").read_text()) == {"settings": {"fedavg": {"lr": 0.1}}}

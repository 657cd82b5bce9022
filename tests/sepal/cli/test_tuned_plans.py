"""`tune = true` in a plan: the same search for each method, on validation data alone, before the reported seeds."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.errors import ConfigError
from sepal.report.markdown import write_markdown
from sepal.report.tables import print_comparison
from sepal.report.text_tables import tuning_note
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.comparison import Comparison, read_comparison
from sepal.study.plans import trials
from sepal.study.plans.plan import read_plan
from sepal.study.plans.rates import ONE_RATE, rate_notes
from sepal.study.plans.trials import chosen, tuning_results
from sepal.study.plans.tune import read_search
from sepal.study.plans.tuning import around
from sepal.user_modules import VARIABLE
from tests.sepal.cli.runs_for_tests import write_run

PLAN = """
tune = true
methods = ["fedavg", "local", "ditto"]
seeds = [0, 1000]
[settings]
dataset = "digits"
rounds = 2
clients = 3
[grid]
lr = [0.1, 0.3]
"""


def plan_file(path: Path, text: str = PLAN) -> Path:
    """Write a plan."""
    file = path / "small.toml"
    file.write_text(text)
    return file


def sepal(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


# where rates come from


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("", ["rates that the plan does not set: {}"]),
        ("lr = 0.05", [ONE_RATE]),
        ("lr = 0.05\n[settings.fedavg]\nlr = 0.1", []),  # the author has chosen one for each
        ("[settings.fedavg]\nlr = 0.1\n[settings.local]\nlr = 0.1", []),
    ],
)
def test_a_plan_says_where_its_rates_come_from(tmp_path, settings, words):
    plan = read_plan(plan_file(tmp_path, f'methods = ["fedavg", "local"]\n[settings]\ndataset = "digits"\n{settings}'))
    methods: dict[float, list[str]] = {}
    for method in ("fedavg", "local"):
        methods.setdefault(assemble({"method": method, "dataset": "digits"}).setup.config.lr, []).append(method)
    rates = [f"lr = {rate:g} for {', '.join(names)}, calibrated on digits" for rate, names in methods.items()]
    assert rate_notes(plan, list(plan.runs())) == [line.format("; ".join(rates)) for line in words]
    assert ONE_RATE == (
        "all methods have the same learning rate, which may explain differences; `tune = true` searches one for each"
    )


def test_a_rate_of_other_data_is_called_that(tmp_path):
    text = 'methods = ["fedavg", "fedpse"]\n[settings]\ndataset = "own"\nmodel = "a.b:build"\n'
    text += '[settings.own]\nshape = "30"\nclasses = 2\n'
    plan = read_plan(plan_file(tmp_path, text))
    (line,) = rate_notes(plan, list(plan.runs()))
    assert "not on own; `sepal tune`, or --set lr=search, searches for yours" in line


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    """A method of one's own, which no calibration knows."""
    lines = (
        "from sepal.method import Settings",
        "from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer",
        "from sepal.strategies.registration import register",
        "class Hyper(Settings):",
        "    part: float = 0.1",
        'OwnRate = register("ownrate", "", "", FedAvgServer, FedAvgClient, Hyper)',
    )
    (tmp_path / "own_rate.py").write_text("\n".join(lines))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(registry, "_loaded", {})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    return "own_rate:OwnRate"


def test_a_rate_that_was_calibrated_for_another_method_is_named_below_the_tables(tmp_path, own_method):
    for name, method, keys in (("a", own_method, {}), ("b", own_method, {"lr": 0.1}), ("c", "fedavg", {})):
        write_run(tmp_path / name, method=method, **keys)
    lr = assemble({"method": "fedavg", "dataset": "digits"}).setup.config.lr
    line = f"Rate calibrated for another method: ownrate (lr = {lr:g}, for fedavg): differences may be the rate's; "
    for names, said in (("ac", True), ("bc", False)):
        comparison = read_comparison([str(tmp_path / name) for name in names])
        console = Console(width=1000, file=StringIO())
        print_comparison(console, comparison)
        markdown = write_markdown(comparison, tmp_path / f"{names}.md").read_text()
        for text in (console.file.getvalue(), markdown):
            assert (line in text.replace(own_method, "ownrate")) == ("Rate calibrated" in text) == said


# a method of one's own in a plan


@pytest.mark.parametrize("name", ["ownrate", '"own_rate:OwnRate"'])
def test_a_method_of_ones_own_has_its_registered_name_in_a_plan(tmp_path, own_method, name):
    text = (
        f'methods = ["{own_method}", "fedavg"]\n[settings]\ndataset = "digits"\n[settings.{name}]\npart = [0.2, 0.3]\n'
    )
    runs = list(read_plan(plan_file(tmp_path, text)).runs())
    assert [run.name for run in runs] == ["ownrate_part_0.2-seed0", "ownrate_part_0.3-seed0", "fedavg-seed0"]
    assert [run.keys["method"] for run in runs] == [own_method, own_method, "fedavg"]
    assert [run.keys.get("ownrate.part") for run in runs] == [0.2, 0.3, None]
    search = f"{text}[grid]\nlr = [0.1, 0.2]\n[grid.{name}]\nlr = [0.3, 0.4]\n".replace("[0.2, 0.3]", "0.2")
    trials = read_search(plan_file(tmp_path, search)).trials
    assert [(trial.method, trial.settings["lr"]) for trial in trials] == [
        ("ownrate", 0.3),
        ("ownrate", 0.4),
        ("fedavg", 0.1),
        ("fedavg", 0.2),
    ]


@pytest.mark.parametrize(
    ("methods", "more", "words"),
    [
        ('"ownrate"', "", "methods: expected each name once; [settings.NAME] with method"),
        (
            '"fedavg"',
            "[settings.ownrate]\nlr = 0.1\n[settings.'own_rate:OwnRate']\nlr = 0.2",
            "settings.ownrate: expected one",
        ),
        ('"fedavg"', '[settings.ownrate]\nmethod = "fedavg"', "settings.ownrate: expected keys of own_rate:OwnRate"),
    ],
)
def test_two_meanings_of_a_registered_name_are_refused(tmp_path, own_method, methods, more, words):
    with pytest.raises(ConfigError) as refused:
        read_plan(plan_file(tmp_path, f'methods = ["{own_method}", {methods}]\n{more}\n'))
    assert words in str(refused.value)


# what is searched


def test_each_method_has_five_rates_around_its_own_and_seeds_that_are_not_reported(tmp_path):
    plan = read_plan(plan_file(tmp_path, PLAN.partition("[grid]")[0]))
    runs = [run for run in plan.runs() if run.block == "tune"]
    assert {run.seed for run in runs} == {1001, 1002}, "1000 is reported"
    for method in ("fedavg", "local", "ditto"):
        rate = assemble({"method": method, "dataset": "digits"}).setup.config.lr
        lrs = [run.keys["lr"] for run in runs if (run.variant, run.seed) == (method, 1001)]
        assert lrs == [float(f"{rate * step:.2g}") for step in (0.25, 0.5, 1, 2, 4)]
    assert around(0.05) == (0.013, 0.025, 0.05, 0.1, 0.2)
    reported = [run for run in plan.runs() if not run.block]
    assert [run.name for run in reported[:3]] == ["fedavg-seed0", "local-seed0", "ditto-seed0"]
    assert not any(run.ready for run in reported)


def test_a_method_keeps_what_its_settings_say_and_every_swept_cell_is_searched(tmp_path):
    text = PLAN.replace("clients = 3", 'clients = 3\n"partition.alpha" = [0.1, 1.0]\n[settings.ditto]\nlr = 0.7')
    plan = read_plan(
        plan_file(tmp_path, text.replace("lr = [0.1, 0.3]", "lr = [0.1, 0.3]\n[grid.local]\nmomentum = 0.5"))
    )
    blocks = {block.name: block for block in plan.block}
    assert list(blocks) == ["tune-alpha=0.1", "alpha=0.1", "tune-alpha=1.0", "alpha=1.0"]
    assert blocks["tune-alpha=1.0"].variants == ("fedavg", "local")
    runs = {run.name: run for run in plan.runs()}
    assert (runs["alpha_1.0-ditto-seed0"].ready, runs["alpha_1.0-ditto-seed0"].keys["lr"]) == (False, 0.7)
    assert runs["tune-alpha_1.0-lr_0.3_momentum_0.5-local-seed1001"].keys["partition.alpha"] == 1.0
    choices = chosen(plan, tmp_path)
    assert choices["alpha=1.0"] == {"ditto": {}}, "which waits for no trial"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tune = true", "", r"small.toml: grid: expected tune = true with it, or --tune, got a grid alone"),
        ("tune = true", 'tune = "yes"', "small.toml: grid: expected tune = true with it"),
        ("[grid]\nlr = [0.1, 0.3]", "lr = [0.1, 0.3]", "settings.lr: expected no list, as the trials search it"),
        ("rounds = 2", "split.validation = 0", "split.validation: expected more than 0: trials are chosen by it"),
        (
            "[grid]",
            "[grid.ditto]\nlambda = [1.0, 2.0]\n[grid]",
            "grid of ditto: expected as many trials as for fedavg, 2",
        ),
        ("[grid]", "[grid.dito]\nlambda = 1.0\n[grid]", "grid: settings.dito: expected one of the methods"),
        ("lr = [0.1, 0.3]", "lr = [0.1, -0.3]", "fedavg, lr=-0.3: lr: expected greater than or equal to 0"),
        ("lr = [0.1, 0.3]", "lr = []", "lr: expected a number, a text, true or false, or a list of them"),
    ],
)
def test_a_bad_search_is_one_line(tmp_path, old, new, words):
    result = sepal("compare", plan_file(tmp_path, PLAN.replace(old, new)), "--out", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert words in result.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=r"tune: expected methods and \[settings\]"):
        read_plan(plan_file(tmp_path, 'tune = true\n[[block]]\nname = "a"\nvariants = ["local"]\n'))


# what is chosen

VIEWS = {"fedavg": "received", "local": "kept", "ditto": "kept"}  # what each of them deploys


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Runs that end at once: .1 is better in the view that the method deploys, .3 in all others and on test data."""
    calls: list[list[str]] = []
    diverged: set[str] = set()

    def fake(runs, out, display, **_):
        with display:
            display.start(len(runs), len(runs), out)
        for run in runs:
            if run.name in diverged or (out / run.name).exists():
                continue
            method, lr = str(run.keys["method"]), run.keys["lr"]
            good = {0.1: 0.8, 0.3: 0.7}.get(lr, 0.5)
            closing = [{0.1: 0.4, 0.3: 0.9}.get(lr, 0.5)] * 3
            write_run(
                out / run.name, method=method, seed=run.seed, lr=lr, closing=closing, validation={VIEWS[method]: good}
            )
        calls.append([run.name for run in runs])
        return {run.name: "model: diverged" for run in runs if run.name in diverged}

    monkeypatch.setattr(trials, "execute", fake)
    return calls, diverged


def test_the_deployed_models_validation_accuracy_decides(tmp_path, execute):
    calls, _ = execute
    result = sepal("compare", plan_file(tmp_path), "--out", tmp_path / "out", "--no-report", "--all")
    assert result.exit_code == 0, result.output
    assert [len(names) for names in calls] == [12, 6]
    assert not (tmp_path / "out" / "failed.txt").exists(), "nothing has failed"
    assert "lr=0.1: 80.0, lr=0.3: 70.0" in " ".join(result.stdout.split())
    assert "Searched before the runs, with seeds 1001, 1002: accuracy on validation data" in " ".join(
        result.stdout.split()
    )
    plan = read_plan(plan_file(tmp_path))
    assert chosen(plan, tmp_path / "out")[""] == {name: {"lr": 0.1} for name in VIEWS}
    first = tuning_results(plan, tmp_path / "out")[0]
    assert (first.view, first.chosen, first.edge) == ("received", "lr=0.1", True)
    index = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert [row["name"] for row in index["runs"]] == calls[1], "trials are not compared"
    assert [row["chosen"] for row in index["tuning"]] == ["lr=0.1"] * 3
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "| fedavg | received | lr=0.1: 80.0, lr=0.3: 70.0 | lr=0.1 (edge) |" in tables
    assert "| accuracy, % | deployed | trained | received |" in tables
    assert "| fedavg | 40.0 ± 0.0 | 40.0 ± 0.0 |" in tables
    result = sepal("show", tmp_path / "out", "--all")
    assert "lr=0.1: 80.0, lr=0.3: 70.0" in " ".join(result.stdout.split())


def test_a_trial_that_diverges_with_one_seed_is_not_chosen_and_is_no_error(tmp_path, execute):
    _, diverged = execute
    diverged.add("tune-lr_0.1-fedavg-seed1002")
    result = sepal("compare", plan_file(tmp_path), "--out", tmp_path / "out", "--no-report", "--all")
    assert result.exit_code == 0, result.output
    assert "lr=0.1: failed, lr=0.3: 70.0" in " ".join(result.stdout.split())
    plan = read_plan(plan_file(tmp_path))
    assert chosen(plan, tmp_path / "out", diverged)[""]["fedavg"] == {"lr": 0.3}
    diverged.add("fedavg-seed0")
    result = sepal("compare", plan_file(tmp_path), "--out", tmp_path / "again", "--no-report")
    assert (result.exit_code, "1 that failed, the first: fedavg-seed0" in result.stderr) == (2, True)
    diverged |= {f"tune-lr_{lr}-local-seed{seed}" for lr in (0.1, 0.3) for seed in (1001, 1002)}
    result = sepal("compare", plan_file(tmp_path), "--out", tmp_path / "third", "--no-report")
    assert (result.exit_code, "5 that failed, the first: tune-lr_0.1-local-seed1001" in result.stderr) == (2, True)


@pytest.mark.parametrize(("spread", "rate"), [(0.01, 0.4), (0.03, 0.2), (0.3, 0.2), (0.0, 0.4)])
def test_the_calibrated_rate_is_kept_unless_another_is_better_by_more_than_a_standard_error(tmp_path, spread, rate):
    """Three clients and two seeds: a spread of .03 over clients is a standard error of .03 / √3 / √2 = .0122."""
    plan = read_plan(plan_file(tmp_path, PLAN.partition("[grid]")[0].replace('"fedavg", "local", "ditto"', '"local"')))
    assert assemble({"method": "local", "dataset": "digits"}).setup.config.lr == 0.2
    accuracies = {0.05: 0.5, 0.1: 0.7, 0.2: 0.79, 0.4: 0.8, 0.8: 0.795}
    for run in plan.runs("tune"):
        mean = accuracies[float(run.keys["lr"])]
        keys = {"method": "local", "seed": run.seed, "lr": run.keys["lr"], "validation": {"kept": mean}}
        lines = write_run(tmp_path / run.name, **keys, closing=[mean] * 3) / "metrics.jsonl"
        lines.write_text(lines.read_text().replace('"std": 0.0', f'"std": {spread}'))
    assert chosen(plan, tmp_path)[""]["local"] == {"lr": rate}
    assert (tuning_note(Comparison("", (), tuning=tuple(tuning_results(plan, tmp_path)))) != "") == (rate == 0.2)


def test_a_search_runs_once(tmp_path, runs_in_this_process):
    """In real runs: two trials, then the chosen rate; a second call starts nothing."""
    text = 'methods = ["local"]\nseeds = [5]\n[settings]\ndataset = "digits"\nrounds = 1\nclients = 2\n'
    text += '"partition.subsample" = 200\n[grid]\nlr = [0.0001, 0.1]\n'
    file = plan_file(tmp_path, text)
    for words in ("0 of 4 runs are there already", "5 of 5 runs are there already"):
        result = sepal("compare", file, "--tune", "--out", tmp_path / "out", "--no-report", "--workers", "1")
        assert result.exit_code == 0, result.output
        assert words in result.stderr
    config = json.loads((tmp_path / "out" / "comparison.json").read_text())["tuning"][0]
    assert (config["chosen"], config["view"]) == ("lr=0.1", "kept")
    assert "lr = 0.1\n" in (tmp_path / "out" / "local-seed5" / "config.toml").read_text()

"""Blocks whose cells are trials, and plans at another scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from referee.paper import __main__ as paper
from referee.paper.plan import read_plan
from sepal.errors import ConfigError
from sepal.report.progress import PlanDisplay
from sepal.study.plans import trials
from sepal.study.plans.model import PlannedRun
from sepal.study.plans.trials import Executor, chosen, failures, in_stages
from tests.sepal.cli.runs_for_tests import write_run

PLAN = """
title = "Tried"
hours = 1
keys = { dataset = "digits", rounds = 2, clients = 3 }
[scale.quick]
seeds = [5]
keys = { rounds = 1, "partition.alpha" = 9.0 }
[[block]]
name = "rates"
variants = ["fedavg", "local"]
[block.grid]
lr = [0.1, 0.3]
[[block]]
name = "main"
tables = ["1", "figure 2"]
trials = "rates"
variants = ["fedavg", "local"]
seeds = [0, 1]
[[block]]
name = "small"
scales = ["quick"]
variants = ["fedavg"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The plan."""
    path = tmp_path / "tried.toml"
    path.write_text(PLAN)
    return path


def test_the_best_trial_gives_its_values_and_runs_wait_for_it(file: Path, tmp_path: Path) -> None:
    """FedAvg's second rate is better on validation data; one of Local's trials is missing."""
    plan, out = read_plan(file), tmp_path / "out"
    write_run(out / "rates-lr_0.1-fedavg-seed0", closing=[0.5] * 3)
    write_run(out / "rates-lr_0.3-fedavg-seed0", closing=[0.6] * 3)
    write_run(out / "rates-lr_0.1-local-seed0", method="local")
    choices = chosen(plan, out)
    assert choices == {"main": {"fedavg": {"lr": 0.3}}}
    runs = list(plan.runs("main", choices))
    assert [(run.variant, run.seed, run.ready) for run in runs] == [
        ("fedavg", 0, True),
        ("local", 0, False),
        ("fedavg", 1, True),
        ("local", 1, False),
    ]
    assert (runs[0].keys["lr"], dict(runs[0].chosen)) == (0.3, {"lr": 0.3})
    write_run(out / "rates-lr_0.3-local-seed0", method="local")  # as good as the first: the first is taken
    assert chosen(plan, out)["main"]["local"] == {"lr": 0.1}


def test_equal_accuracies_tie_although_their_floats_differ(file: Path, tmp_path: Path) -> None:
    """.1 + .2 + .3 is above .3 + .2 + .1 by a rounding error, and so are means over seeds."""
    rates = 'name = "rates"'
    file.write_text(file.read_text().replace(rates, f"{rates}\nseeds = [0, 1, 2]"))
    plan, out = read_plan(file), tmp_path / "out"
    values = [(0.1, seed, value) for seed, value in enumerate((0.3, 0.2, 0.1))]
    values += [(0.3, seed, value) for seed, value in enumerate((0.1, 0.2, 0.3))]
    assert 0.1 + 0.2 + 0.3 > 0.3 + 0.2 + 0.1
    for rate, seed, value in values:
        path = write_run(out / f"rates-lr_{rate}-fedavg-seed{seed}")
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        lines[-1]["validation"]["trained"]["mean"] = value
        (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert chosen(plan, out)["main"]["fedavg"] == {"lr": 0.1}


def test_a_trial_that_fails_is_not_chosen_and_does_not_hold_its_variant_up(file: Path, tmp_path: Path) -> None:
    """FedAvg diverges at the larger rate."""
    plan, out, ended = read_plan(file), tmp_path / "out", []

    def execute(runs):
        diverged = [run.name for run in runs if run.name == "rates-lr_0.3-fedavg-seed0"]
        for run in runs:
            if run.name not in diverged:
                write_run(out / run.name, method=str(run.keys["method"]), lr=run.keys["lr"], seed=run.keys["seed"])
                ended.append((run.block, run.variant, run.seed, run.keys["lr"]))
        return diverged

    assert in_stages(plan, "main", out, execute) == ["rates-lr_0.3-fedavg-seed0"]
    assert {("main", "fedavg", 0, 0.1), ("main", "fedavg", 1, 0.1)} <= set(ended)


def test_a_later_call_knows_which_trials_failed(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--report`` names the rate with which a variant ran; a trial that ends at a later try is chosen from again."""
    plan, out, diverged = read_plan(file), tmp_path / "out", {"rates-lr_0.3-fedavg-seed0", "rates-lr_0.3-local-seed0"}

    def execute(runs, *_, **__):
        for run in runs:
            if run.name not in diverged and not (out / run.name).exists():
                keys = {key: run.keys[key] for key in ("lr", "seed")}
                write_run(out / run.name, method=str(run.keys["method"]), closing=[0.9] * 3, **keys)
        return {run.name: "model: diverged" for run in runs if run.name in diverged}

    monkeypatch.setattr(trials, "execute", execute)
    in_stages(plan, "main", out, Executor(out, lambda: PlanDisplay(Console(stderr=True)), jobs=1, workers=1, hours=1))
    assert failures(out) == dict.fromkeys(sorted(diverged), "model: diverged")
    assert chosen(plan, out, failures(out))["main"] == {"fedavg": {"lr": 0.1}, "local": {"lr": 0.1}}
    diverged.remove("rates-lr_0.3-local-seed0")
    Executor(out, lambda: PlanDisplay(Console(stderr=True)), jobs=1, workers=1, hours=1)(list(plan.runs("rates")))
    assert list(failures(out)) == ["rates-lr_0.3-fedavg-seed0"]
    reported: list[PlannedRun] = []
    monkeypatch.setattr(paper, "write_report", lambda _, runs, __: reported.extend(runs) or [])
    paper.main([str(file), "--out", str(out), "--report"])
    assert [dict(run.chosen) for run in reported if (run.block, run.variant) == ("main", "fedavg")] == [{"lr": 0.1}] * 2


def test_trials_run_before_what_waits_for_them_and_a_block_brings_its_trials(file: Path, tmp_path: Path) -> None:
    plan, out, calls = read_plan(file), tmp_path / "out", []

    def execute(runs):
        calls.append([run.name for run in runs])
        for run in runs:
            keys = {key: run.keys[key] for key in ("lr", "seed") if key in run.keys}
            write_run(out / run.name, method=str(run.keys["method"]), **keys)
        return []

    assert in_stages(plan, "main", out, execute) == []
    assert [len(names) for names in calls] == [4, 4]
    assert all(name.startswith("rates-") for name in calls[0])
    assert in_stages(plan, "main", out, lambda runs: [runs[-1].name]) == [calls[1][-1]]  # nothing waits any more
    with pytest.raises(ConfigError, match="--only: expected one of rates, main, small, got mian"):
        in_stages(plan, "mian", out, execute)


def test_a_block_runs_before_trials_further_down(tmp_path: Path) -> None:
    """Trials, their block, other trials, their block: in this order, and a variant whose trials fail is left out."""
    (tmp_path / "two.toml").write_text(
        'title = "Two"\nkeys = { dataset = "digits", rounds = 2, clients = 3 }\n'
        + "".join(
            f'[[block]]\nname = "{n}-rates"\nvariants = ["fedavg", "local"]\n[block.grid]\nlr = [0.1]\n'
            f'[[block]]\nname = "{n}"\ntrials = "{n}-rates"\nvariants = ["fedavg", "local"]\n'
            for n in "ab"
        )
    )
    calls: list[list[str]] = []

    def execute(runs):
        calls.append([run.name for run in runs])
        for run in runs:
            if run.name != "a-rates-lr_0.1-local-seed0":
                write_run(tmp_path / run.name, method=str(run.keys["method"]))
        return []

    in_stages(read_plan(tmp_path / "two.toml"), "", tmp_path, execute)
    assert [name.rpartition("-seed0")[0] for names in calls for name in names] == [
        "a-rates-lr_0.1-fedavg",
        "a-rates-lr_0.1-local",
        "a-fedavg",
        "b-rates-lr_0.1-fedavg",
        "b-rates-lr_0.1-local",
        "b-fedavg",
        "b-local",
    ]


def test_a_scale_changes_blocks_seeds_and_keys_but_not_how_long_trials_are(file: Path) -> None:
    quick = read_plan(file).at("quick")
    assert quick.note.startswith("At scale quick, with rounds = 1, partition.alpha = 9.0;")
    runs = list(quick.runs())
    assert {run.block for run in runs} == {"rates", "main", "small"}
    assert {(run.block, run.seed, run.keys["rounds"]) for run in runs} == {
        ("rates", 0, 2),
        ("main", 5, 1),
        ("small", 5, 1),
    }
    assert {run.keys["partition.alpha"] for run in runs} == {9.0}
    assert {block.name for block in read_plan(file).at("cpu").block} == {"rates", "main"}
    with pytest.raises(ConfigError, match="--scale: expected quick or cpu, which Tried has, got full"):
        read_plan(file).at("full")


def test_a_table_brings_the_trials_of_its_blocks(file: Path) -> None:
    assert [block.name for block in read_plan(file).of_table("figure 2").block] == ["rates", "main"]
    with pytest.raises(ConfigError, match="--table: expected one of 1, figure 2, got 7"):
        read_plan(file).of_table("7")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('trials = "rates"', 'trials = "small"', "tried.toml: main.trials: expected the name of a block before it"),
        ("[scale.quick]", "[scale.fast]", "tried.toml: scale.fast"),
        (
            "seeds = [5]",
            'seeds = [5]\nblocks = ["smal"]',
            "tried.toml: scale.quick.blocks: expected names of blocks: rat",
        ),
        ('scales = ["quick"]', 'scales = ["fast"]', "tried.toml: block.2.scales.0: expected"),
    ],
)
def test_a_bad_plan_is_one_line(file: Path, old: str, new: str, words: str) -> None:
    file.write_text(PLAN.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        read_plan(file)

"""Plans of the papers' tables: what runs there are, what they find, and that nothing runs twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from referee.paper.__main__ import main
from referee.paper.differences import difference, difference_by_seed
from referee.paper.optional_tables import (
    by_capacity,
    by_round,
    of_novel_clients,
    of_the_clients,
    of_the_method,
    privacy_table,
)
from referee.paper.plan import SCALES, Scale, read_plan
from referee.paper.report import accuracy, all_tables, block_tables, trial_tables
from sepal.errors import ConfigError
from sepal.report.data import datasets
from sepal.report.learned_rows import masks as analyse
from sepal.report.markdown import table
from sepal.strategies.assembly import assemble
from sepal.study.comparison import read_comparison
from sepal.study.record import RunRecord, read

PLANS = Path(__file__).parents[2] / "referee" / "papers"
NAMES = sorted(path.stem for path in PLANS.glob("*.toml"))
AT_SCALES = [(name, scale) for name in NAMES for scale in read_plan(PLANS / f"{name}.toml").known_scales]
SMALL = """
title = "Small"
hours = 1
keys = { dataset = "digits", rounds = 2, local-epochs = 2, clients = 3, "evaluate.shift" = true, "ditto.lambda" = 2.0 }
[variants]
"half" = { method = "dmpfl", "dmpfl.readjust-every" = 1 }
[[block]]
name = "first"
variants = ["half", "local"]
seeds = [0, 1]
published = [
    { views = ["received"], values = { half = 50 } },
    { views = ["trained"], values = { half = 50.0, other = 10 } },
]
"""


def refused(capsys: Any, *arguments: object) -> str:
    """Run the command; return what it says when it refuses."""
    with pytest.raises(SystemExit, match="2"):
        main([str(argument) for argument in arguments])
    return str(capsys.readouterr().err)


def plan_file(path: Path, text: str) -> Path:
    """Write a plan."""
    file = path / "small.toml"
    file.write_text(text)
    return file


def test_the_papers_have_all_scales() -> None:
    """`python -m referee.paper NAME --scale quick` of each method's paper takes minutes."""
    for name in ("fedpse", "dmpfl", "subfedavg", "pfedgate", "pa3dfl"):
        assert read_plan(PLANS / f"{name}.toml").known_scales == list(SCALES), name


@pytest.mark.parametrize(("name", "scale"), AT_SCALES)
def test_every_run_of_the_papers_is_a_valid_config(name: str, scale: Scale) -> None:
    """Each block's variants assemble as far as keys and values go, and names are unique."""
    runs = list(read_plan(PLANS / f"{name}.toml").at(scale).runs())
    assert len({run.name for run in runs}) == len(runs)
    for run in {(run.block, run.variant): run for run in runs if run.keys["dataset"] != "imdb"}.values():
        assert assemble(dict(run.keys)).setup.config.name == run.name


def test_grid_seeds_and_who_wins(tmp_path: Path) -> None:
    """2 cells × 2 seeds × 2 variants; a variant's key wins over the grid's, the grid's over the block's."""
    grid = (
        SMALL.partition("published")[0]
        + 'grid = { clients = [2, 5], "split.validation" = [0.2] }\nkeys = { clients = 4, rounds = 3 }\n'
    )
    text = grid.replace('"dmpfl.readjust-every" = 1', "rounds = 7")
    runs = list(read_plan(plan_file(tmp_path, text)).runs())
    assert [(run.cell, run.seed, run.variant) for run in runs[:4]] == [
        ("clients=2,validation=0.2", 0, "half"),
        ("clients=2,validation=0.2", 0, "local"),
        ("clients=5,validation=0.2", 0, "half"),
        ("clients=5,validation=0.2", 0, "local"),
    ]
    assert len(runs) == 8
    assert [runs[0].keys[key] for key in ("clients", "rounds", "method", "seed")] == [2, 7, "dmpfl", 0]
    assert [runs[7].keys[key] for key in ("clients", "rounds", "method", "seed")] == [5, 3, "local", 1]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("hours = 1", "hours = 0", "small.toml: hours: expected"),
        ('name = "first"', 'nam = "first"', "small.toml: block.0.name: expected"),
        ('title = "Small"', "title =", "plan: expected a TOML file"),
        (
            "values = { half = 50 }",
            'cell = "c=1", values = { half = 50 }',
            "small.toml: first.published.cell: expected",
        ),
    ],
)
def test_a_bad_plan_is_one_line(tmp_path: Path, old: str, new: str, words: str) -> None:
    """Key, expected and got."""
    with pytest.raises(ConfigError, match=words):
        read_plan(plan_file(tmp_path, SMALL.replace(old, new)))


def test_a_small_paper(tmp_path: Path, capsys: Any, runs_in_this_process: None) -> None:
    """Runs, tables and data; a second call runs nothing; a failing variant fails the command and leaves the others."""
    plan, out = plan_file(tmp_path, SMALL), tmp_path / "out"
    arguments = [str(plan), "--out", str(out), "--jobs", "2", "--workers", "1"]
    main([*arguments, "--hours", "0"])
    assert "Not there: 4 of 4 runs: first-half-seed0" in (out / "tables.md").read_text()
    main(arguments)
    tables = (out / "tables.md").read_text()
    assert "Not there" not in tables
    assert "| half |" in tables
    assert "| trained, shift % | 0 | 20 | 40 | 60 | 80 | 100 |" in tables
    assert "| half − local |" in tables
    assert "| published beside measured, view | accuracy, published | accuracy, measured | accuracy, diff" in tables
    assert "| other, trained | 10.0 | – | – |" in tables
    records = read(out / "results.ndjson")
    names = [(record.labels["variant"], record.seed) for record in records]
    assert names == [("half", 0), ("local", 0), ("half", 1), ("local", 1)]
    assert records[0].bytes["up"] > 0 == records[1].bytes["up"]
    assert 0 < records[0].figures["multiply_adds"] < records[1].figures["multiply_adds"]
    assert set(records[0].clients) >= {"trained", "trained-shift-100", "received-shift-20"}
    assert records[0].clients["name"] == [f"client-0000{number}" for number in range(3)]
    assert records[0].figures["method"]["round"] == [1, 2]
    assert 0 < records[0].figures["method"]["overlap-mean"][0] < 1

    plan.write_text(SMALL.replace('"local"]', '"local", "no-method"]'))
    before = (out / "first-half-seed0" / "summary.json").stat().st_mtime_ns
    failed = refused(capsys, *arguments)
    assert "2 that failed, the first: first-no-method-seed0" in failed
    assert "method: expected one of" in failed
    assert (out / "first-half-seed0" / "summary.json").stat().st_mtime_ns == before

    plan.write_text(SMALL.replace("rounds = 2", "rounds = 3"))
    message = refused(capsys, *arguments)
    expected = "3, as in the plan, got 2; give another --out (in Python out=), or delete"
    assert f"first-half-seed0: rounds: expected {expected}" in message

    masks = analyse(out / "first-half-seed0")
    similarity = np.array(masks["similarity"])
    assert similarity.shape == (3, 3)
    np.testing.assert_array_equal(np.diag(similarity), 1)
    np.testing.assert_allclose(similarity, similarity.T)  # masks are of one size
    assert 0 < similarity.min() < 1
    assert masks["correlation"]["similarity"] is not None
    personal = {layer["name"]: layer["personal"] for layer in masks["layers"]}
    assert 0 < min(personal.values()) <= max(personal.values()) <= 1
    records = datasets(read_comparison([str(out / "first-half-seed0")]))
    assert len(records["masks"]) == 9
    assert {row["mask"] for row in records["layers"]} == {"personal", "global"}
    assert "masks" not in datasets(read_comparison([str(out / "first-local-seed0")]))
    with pytest.raises(ConfigError, match="run: expected the directory of a run of dmpfl or subfedavg or pfedgate"):
        analyse(out / "first-local-seed0")


def run_of(seed: int, values: dict[str, float]) -> RunRecord:
    """Make a run's figures."""
    views = {"name": list(values), "trained": list(values.values())}
    mean = sum(values.values()) / len(values)
    return RunRecord(config={"seed": seed}, clients=views, accuracy={"trained": {"mean": mean}, "received": None})


def having(seed: int = 0, accuracy: Any = None, **figures: Any) -> RunRecord:
    """Make a run with figures of its own."""
    return RunRecord(config={"seed": seed}, accuracy=accuracy or {}, figures=figures)


def test_figures_over_seeds_and_pairs() -> None:
    """Means .6 and .7: 65.0 ± 7.1 points (ddof 1). Differences 10, 20, 30 over three: 20 ± 4.303·10/√3 = 24.8."""
    first_runs = [run_of(0, {"a": 0.5, "b": 0.7, "c": 0.6}), run_of(1, {"a": 0.6, "b": 0.8, "c": 0.7})]
    second_runs = [run_of(0, {"a": 0.4, "b": 0.5, "c": 0.3}), run_of(1, {"a": 0.5, "b": 0.6, "c": 0.4})]
    assert accuracy(first_runs, "trained") == "65.0 ± 7.1"
    assert accuracy(first_runs[:1], "trained") == "60.0"
    assert accuracy(first_runs, "received") == "–"
    assert difference(first_runs, second_runs, "trained") == "+20.0 [-4.8, +44.8]"
    assert difference(first_runs, second_runs[1:], "trained") == "+20.0 [-4.8, +44.8]"  # seeds that both have
    assert difference(first_runs, second_runs, "received") == "–"


def test_a_difference_over_seeds_counts_each_seed_once() -> None:
    """Differences 10, 20, 30 of three seeds, whose clients differ by 0: 20 ± 4.303·10/√3 = 24.8, not 0."""
    first_runs = [run_of(seed, dict.fromkeys("abcd", 0.5 + seed / 10)) for seed in range(3)]
    second_runs = [run_of(seed, dict.fromkeys("abcd", 0.4)) for seed in range(4)]
    assert difference_by_seed(first_runs, second_runs, "trained") == "+20.0 [-4.8, +44.8]"
    assert difference(first_runs, second_runs, "trained") == "+20.0 [+20.0, +20.0]"
    assert difference_by_seed(first_runs[:2], second_runs, "trained") == "–"
    assert difference_by_seed(first_runs, second_runs, "received") == "–"


def test_accuracy_by_capacity_is_a_mean_over_seeds_in_each_variants_view() -> None:
    """.5 and .7 of two seeds: 60.0; without clients of a quarter a dash, without any clients no table."""
    capacity_runs = [
        having(by_capacity={"0-0.25": {"kept": {"mean": 0.1}, "trained": {"mean": mean}}}) for mean in (0.5, 0.7)
    ]
    other_runs = [having(by_capacity={"0.75-1": {"received": {"mean": 0.9}, "trained": {"mean": 0.2}}})]
    views = {"ours": "trained", "theirs": "received", "old": "kept"}
    header, rows = by_capacity({"ours": capacity_runs, "theirs": other_runs, "old": [having()]}, "deployed", views)
    assert header == ["deployed by capacity", "0-0.25", "0.75-1"]
    assert rows == [["ours", "60.0", "–"], ["theirs", "–", "90.0"], ["old", "–", "–"]]
    assert by_capacity({"old": [having()]}, "deployed", views)[1] == []


def test_the_tables_of_a_plan_have_it():
    """The largest ε of a variant's seeds; none where one of them has none."""
    settings = {"clip": 1.0, "noise": 2.0, "delta": 1e-5}
    budgets = [{**settings, "epsilon": e, "epsilon_zero_out": e and e / 3, "uploads": 4} for e in (1.0, 3.0, None)]
    groups = {
        "plain": [having()],
        "two": [having(privacy=budget) for budget in budgets[:2]],
        "odd": [having(privacy=budgets[2])],
    }
    assert list(privacy_table(groups)[1]) == [
        ["two", "1", "2", "1e-05", "3", "1", "4"],
        ["odd", "1", "2", "1e-05", "none", "none", "4"],
    ]


def test_clients_own_figures_novel_clients_and_running_totals() -> None:
    """Shares .2 and .4 of one seed, .6 of another: .4. Novel clients are apart. paper-cost of rounds adds up."""
    gate_runs = [having(own={"name": ["a", "b"], "share": [0.2, 0.4]}), having(own={"name": ["a"], "share": [0.6]})]
    header, rows = of_the_clients({"gate": gate_runs, "local": [having()]})
    assert header[1:] == ["share"]
    assert rows == [["gate", "0.4 (0.2 to 0.6)"]]
    trained = [{"trained": {"mean": mean}, "received": None, "pooled": None} for mean in (0.8, 0.7)]
    seeds = [having(accuracy=trained[0], novel={"accuracy": trained[1], "gap": {}})]
    header, rows = of_novel_clients({"gate": seeds, "local": [having(accuracy=trained[0])]})
    assert header[4:7] == ["trained, participants", "trained, novel", "trained, gap"]
    assert rows == [["gate", "–", "–", "–", "80.0", "70.0", "+10.0", "–", "–", "–"]]
    method = {"round": [1, 2], "paper-cost": [1e6, 3e6], "pruned": [0.1, 0.3]}
    header, rows = of_the_method({"un": [having(method=method)]})
    assert dict(zip(header[1:], rows[0][1:], strict=True)) == {"paper-cost, MB in all": "3.000", "pruned": "0.200"}


def test_deployed_is_the_view_of_the_method_and_differences_are_across_views(tmp_path: Path) -> None:
    """Ditto's user has the kept model, 80 %; FedAvg's the received one, 50 %, although its clients keep one of 90 %.

    So the difference is +30, where that of the kept models is -10.
    """
    text = SMALL.replace('"half", "local"', '"ditto", "fedavg"').replace("half", "ditto")
    plan = read_plan(plan_file(tmp_path, text))
    sizes = dict.fromkeys(("up", "down", "up_dense", "down_dense"), 1e6)
    results = {}
    for name, kept, received in (("ditto", 0.8, 0.2), ("fedavg", 0.9, 0.5)):
        views = {"kept": kept, "received": received, "trained": 0.1}
        accuracy = {view: {"mean": mean, "std": 0.0, "bottom_decile": mean} for view, mean in views.items()}
        clients = {"name": ["a", "b", "c"], **{view: [mean] * 3 for view, mean in views.items()}}
        rest = {"config": {"seed": 0}, "bytes": sizes, "seconds": 1.0, "figures": {"multiply_adds": 1.0}}
        results[f"first-{name}-seed0"] = RunRecord(**rest, accuracy=accuracy, clients=clients)
    text = "\n".join(block_tables(plan, "first", results))
    assert "| ditto | 80.0 | 80.0 (0.0) |" in text
    assert "| fedavg | 50.0 | 90.0 (0.0) |" in text
    assert "| paired difference, points | deployed | kept |" in text
    assert "| ditto − fedavg | +30.0 [+30.0, +30.0] | -10.0 [-10.0, -10.0] |" in text


def test_the_grid_of_trials_stands_on_the_page(tmp_path: Path) -> None:
    """Validation accuracy by variant and rate, mean over seeds; a trial at 1 has none, as where training diverged."""
    text = SMALL[: SMALL.index("seeds")] + "seeds = [0, 1]\ngrid = { lr = [0.1, 1.0] }\n"
    plan = read_plan(plan_file(tmp_path, text))
    trials = {"first-lr_0.1-half-seed0": RunRecord(validation={"received": 0.9, "trained": 0.7})}
    for name, value in (("0.1-local-seed0", 0.375), ("0.1-local-seed1", 0.625), ("1.0-local-seed0", 0.625)):
        trials[f"first-lr_{name}"] = RunRecord(validation={"trained": value})
    page_lines = list(trial_tables(plan, "first", trials))
    assert "| validation, % | lr = 0.1 | lr = 1.0 |" in page_lines
    assert "| half | **70.0** | – |" in page_lines
    assert "| local | 50.0 | **62.5** |" in page_lines


def test_a_methods_own_figures_by_round() -> None:
    """The first of six rounds, then those at a sixth, a third, two thirds and the end. Others have no table."""
    method = {"round": [1, 2, 3, 5, 6, 8], "absorbed": [0.1, 0.2, 0.3, None, 0.5, 60.0]}
    header, rows = by_round("pa3dfl", [having(1, method=method), having(2)])
    assert header == ["pa3dfl by round, seed 1", "1", "2", "5", "8"]
    assert rows == [["absorbed", "0.1", "0.2", "–", "60"]]
    assert by_round("local", [having(1)])[1] == []


def test_two_clients_give_a_difference_without_an_interval() -> None:
    """One degree of freedom: its interval is 12.7 standard errors wide, which says nothing."""
    first_runs, second_runs = [run_of(0, {"a": 0.5, "b": 0.7})], [run_of(0, {"a": 0.4, "b": 0.5})]
    assert difference(first_runs, second_runs, "trained") == "+15.0"


def test_a_block_s_tables_say_what_is_missing_and_where_the_runs_are_from(tmp_path: Path) -> None:
    plan, run = read_plan(plan_file(tmp_path, SMALL)), run_of(0, {"a": 0.5, "b": 0.75})
    sizes = dict.fromkeys(("up", "down", "up_dense", "down_dense"), 1e6)
    accuracy = {view: {"mean": 0.625, "std": 0.125, "bottom_decile": 0.5} for view in ("kept", "trained")}
    rest = {"bytes": sizes, "seconds": 1.0, "figures": {"multiply_adds": 2e9}, "machine": "a processor"}
    rest |= {"curve": {"round": [2], "megabytes": [2.0], "trained": [0.625]}, "accuracy": accuracy}
    row = run.model_copy(update={**rest, "commit": "abc1234"})
    rows = {"first-half-seed0": row, "first-local-seed0": row.model_copy(update={"commit": ""})}
    lines = list(all_tables(plan, rows))
    assert list(all_tables(plan, {})) == []
    assert "Not there: 2 of 4 runs: first-half-seed1, first-local-seed1." in lines
    header = next(line for line in lines if line.startswith("| method |"))
    assert header.startswith("| method | deployed | kept (over clients) | trained (over clients) | worst 10 % |")
    assert "| half | 62.5 | 62.5 (12.5) | 62.5 (12.5) | 50.0 | 1.00 | 1.00 | 100.0 | 1.00 | 1 |" in lines
    assert "2 runs, 0.0 minutes of wall time in all, on a processor; commit abc1234, and unknown for 1." in lines


def test_a_table_leaves_empty_columns_out() -> None:
    """Nothing but dashes is no column; no rows are no table."""
    assert list(table(["a", "b", "c"], [["x", "–", "1"], ["y", "–", "–"]])) == [
        "| a | c |",
        "| --- | --- |",
        "| x | 1 |",
        "| y | – |",
        "",
    ]
    assert list(table(["a"], [])) == []

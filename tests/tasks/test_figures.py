"""Figures and tables are of the task's headline metric."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.errors import ConfigError
from sepal.protocol.types import Plan
from sepal.report.page import render
from sepal.report.sentences import headline as sentence
from sepal.report.text_tables import accuracy_table, conclusions, cost_table
from sepal.server.accuracy import figures, view_figures
from sepal.server.report import RunFigures
from sepal.server.run_state import RoundRecord
from sepal.server.status import Status
from sepal.server.stopping import Stopping
from sepal.server_app.metrics import ServerFigures
from sepal.strategies.assembly import assemble
from sepal.study.comparison import read_comparison
from sepal.study.frontier import entries, frontier
from sepal.study.plans.tune import Trial, choose
from sepal.study.search import measure_in, validation
from sepal.tasks import Measure
from sepal.tasks.builtin import regression
from tests.sepal.cli.runs_for_tests import write_run
from tests.sepal.example_messages import REPLY
from tests.tasks.settings import DIABETES, closing

# Figures


def test_the_line_of_a_round_follows_from_the_clients_sums():
    last = closing(DIABETES, method="fedavg", rounds=1)
    replies = last.record.replies.values()
    scoring = regression((10,), 1, "points").scoring
    values = [scoring.value(reply.sums["trained.sums"]) for reply in replies]
    together = [sum(sums) for sums in zip(*(reply.sums["trained.sums"] for reply in replies), strict=True)]
    figures = last.line["headline"]["trained"]
    assert figures["mean"] == pytest.approx(np.mean(values))
    assert figures["bottom_decile"] == max(values), "the worst client has the largest error"
    assert figures["weighted"] == pytest.approx(scoring.value(together)), "that of all examples, no mean of values"
    assert last.line["metrics"]["trained"]["r2"] == pytest.approx(scoring.value(together, "r2"))
    assert {client["trained"] for client in last.line["clients"]} == set(values)
    assert "trained.validation-sums" in next(iter(replies)).sums
    assert not [name for name in next(iter(replies)).metrics if name.partition(".")[2]], "no counts beside them"


def test_the_best_round_and_the_worst_decile_go_by_the_direction():
    scoring = regression((10,), 1).scoring
    assert figures([1.0, 2.0, 5.0], [1, 1, 1], scoring.measure)["bottom_decile"] == 5
    assert figures([0.1, 0.2, 0.5], [1, 1, 1])["bottom_decile"] == 0.1
    first = closing(DIABETES, method="fedavg", rounds=2, **{"evaluate-every": 1})
    assert first.report.best["trained"].validation > 0

    def record(number, error):
        sums = (4.0, 1.0, 4.0 * error**2, 4.0, 4.0 * error, 4.0, 4.0 * error**2, 30.0, 10.0, 4.0)
        replies = {"c": replace(REPLY, metrics={}, sums={"trained.sums": sums, "trained.validation-sums": sums})}
        return replace(first.record, round=number, replies=replies, full=True, ledger=(), novel=())

    report = RunFigures(scoring=scoring)
    for number, error in enumerate((3.0, 1.0, 2.0), 1):
        report = report.plus(record(number, error))
    assert (report.best["trained"].round, report.best["trained"].mean) == (2, 1.0)


def test_a_client_without_a_value_is_left_out_of_the_mean():
    assembled = assemble({"dataset": "own", "own.shape": "2", "own.classes": 2, "metric": "auroc", "model": "har-mlp"})
    task = assembled.setup.task
    torch.manual_seed(0)
    undefined = task.sums(torch.randn(5, 2), torch.zeros(5, dtype=torch.int64))
    defined = task.sums(torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]))
    figures = view_figures([{"kept.sums": undefined}, {"kept.sums": defined}], "kept", "", task.scoring)
    assert figures["clients"] == 1
    assert figures["mean"] == task.scoring.value(defined)


def test_another_metric_of_a_classification_is_measured_by_sums():
    flat = {"dataset": "digits", "clients": 3, "rounds": 1, "method": "fedavg", "partition.subsample": 300}
    by_sums = closing(flat, metric="balanced-accuracy", **{"evaluate.shift": True})
    counted = closing(flat, **{"evaluate.shift": True})
    for view, values in counted.line["accuracy"].items():
        if values:
            assert by_sums.line["metrics"][view]["accuracy"] == pytest.approx(values["weighted"]), view
    assert by_sums.line["headline"]["trained-shift-40"]["mean"] > 0
    assert "balanced-accuracy" in by_sums.line["metrics"]["pooled"]


# Tables


def errors(path, values, seed=0, unit="mmol/l", **more):
    """A run whose figures are the RMSE of three clients."""
    write_run(path, seed=seed, full=[9.0, 8.0], closing=values, **more)
    for name in ("metrics.jsonl", "summary.json"):
        rows = [json.loads(row) for row in (path / name).read_text().splitlines()]
        for row in rows:
            row["headline"], row["metric"] = row.pop("accuracy"), {"name": "rmse", "unit": unit, "higher": False}
        (path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_tables_and_frontiers_take_the_lower_error_for_better(tmp_path):
    paths = [errors(tmp_path / f"good-{n}", [4.0, 5.0, 6.0 + n / 10], n, method="fedavg-ft") for n in range(3)]
    paths += [errors(tmp_path / f"bad-{n}", [14.0, 15.0, 16.0 + n / 10], n, volume=9) for n in range(3)]
    comparison = read_comparison(paths)
    variants = comparison.variants("")
    good, bad = comparison.labels
    assert accuracy_table(variants).head[0] == "rmse, mmol/l"
    assert accuracy_table(variants).rows[0][1] == "5.033 ± 0.03333"
    assert "5.25 mmol/l\ntrained" in cost_table(variants).head[4], "5 % worse than the best"
    assert sentence(comparison, "").startswith(f"{good} is best of 2: 5.033 mmol/l with 0.0009 MB, clearly below")
    places = frontier(entries(variants), comparison.measure)
    assert [(point.entry.label, point.frontier) for point in places] == [(good, True), (bad, False)]
    assert cost_table(variants).head[6] == f"MB to\nwithin 1\n% of\n{good}"
    assert f"{good}: better than {bad} (-10" in next(conclusions(comparison, ""))
    assert "Mmol/l of deployed models" in next(conclusions(comparison, ""))
    page = render(comparison)
    for words in ("Rmse by round", "rmse, mmol/l", "Rmse in mmol/l on test data", "difference, mmol/l"):
        assert words in page, words
    assert "ccuracy" not in page.split("<script")[0].replace("accuracy:Q", "")
    other_run = write_run(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"metric: expected rmse, mmol/l, as in .*, got accuracy, %"):
        read_comparison([*paths, str(other_run)])


def test_a_search_chooses_the_lowest_error(tmp_path):
    for name, error in (("a", 3.0), ("b", 2.0), ("c", 4.0)):
        errors(tmp_path / name, [error] * 3)
    measure = measure_in(tmp_path / name for name in "abc")
    assert measure == Measure("rmse", "mmol/l", higher=False)
    trials = [Trial("fedavg", name, {}, validation(tmp_path / name, "trained")) for name in "abc"]
    assert choose(trials, measure)["fedavg"].variant == "b"
    assert choose(trials)["fedavg"].variant == "c"


def test_a_run_from_elsewhere_brings_no_markup(tmp_path):
    errors(tmp_path / "run", [1.0, 2.0, 3.0], unit="[red]<b>")
    comparison = read_comparison([str(tmp_path / "run")])
    assert comparison.measure == Measure("rmse", "", higher=False)
    result = CliRunner().invoke(app, ["show", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "[red]" not in result.output


def test_the_figures_of_a_server_name_the_metric():
    figures = ServerFigures(lambda: Status(1, "", 1, 1))
    metric = {"name": "rmse", "unit": "", "higher": False}
    line = {"phase": "evaluate", "headline": {"trained": {"mean": 2.5}}, "metric": metric}
    record = SimpleNamespace(round=1, ledger=(), seconds={}, diverged=())
    figures.round(None, record, line)
    families = {family.name: family for family in figures.collect()}
    assert families["sepal_accuracy"].samples == []
    (sample,) = families["sepal_headline"].samples
    assert (sample.labels, sample.value) == ({"view": "trained", "metric": "rmse"}, 2.5)


def test_a_run_ends_when_its_error_has_stopped_falling():
    scoring = regression((10,), 1, "kg").scoring
    assembled = assemble({**DIABETES, "method": "fedavg", "rounds": 99, "stop-after": 2, "evaluate-every": 1})
    stopping = Stopping.of(assembled.setup.config, assembled.method, Plan, scoring)
    for number, error in enumerate([5.0, 4, 3, 2, 1, *[1.0] * 40], 1):
        sums = (4.0, 1.0, 4 * error**2, 4.0, 4 * error, 4.0, 4 * error**2, 30.0, 10.0, 4.0)
        replies = {"c": replace(REPLY, metrics={}, sums={"received.validation-sums": sums})}
        stopping = stopping.plus(
            RoundRecord(number, ("c",), (), {}, replies, (), True, {"total": 1.0, "train": 1.0, "server": 0.0})
        )
        if stopping.stopped:
            break
    assert number == 11, "the mean of five points falls until round 9"
    assert (
        "validation rmse (received, mean of 5 points) has not fallen since 1 kg in round 9" in stopping.stopped.reason
    )


# Imports


def test_a_classification_imports_no_torchmetrics():
    code = (
        "import sys, sepal\n"
        "from sepal.engines.in_process.run import run_in_process\n"
        "from sepal.strategies.assembly import assemble\n"
        "keys = {'clients': 2, 'rounds': 1, 'partition.subsample': 200, 'method': 'fedavg'}\n"
        "run_in_process(assemble(keys), workers=1)\n"
        "print([name for name in sys.modules if name.startswith('torchmetrics')])"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(completed.stdout.splitlines()[-1]) == []

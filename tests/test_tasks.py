"""Tasks from data to tables: the examples learn, figures are of the task's headline, refusals are one line."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from torch import nn
from typer.testing import CliRunner

import sepal
from examples.tasks import diabetes, loops, shapes, zen
from sepal import user_modules
from sepal.cli.main import app
from sepal.cli.report import render
from sepal.cli.sentences import headline as sentence
from sepal.cli.sheets import accuracy_sheet, conclusions, cost_sheet
from sepal.client_app.build import Node
from sepal.client_app.guard import local_config
from sepal.client_app.views import class_weights
from sepal.engines.in_process.run import run_in_process
from sepal.errors import ConfigError, DataError, ModelError, ProtocolError
from sepal.protocol.messages import Content, read_reply, version, write_reply
from sepal.protocol.method import Plan
from sepal.protocol.tasks import LearningTask, Measure, Metric, Scoring, Targets
from sepal.protocol.tasks.builtin import regression
from sepal.protocol.tasks.learning import LABELS, PER_EXAMPLE
from sepal.protocol.tasks.scoring import BY_ACCURACY
from sepal.server.accuracy import figures, view_figures
from sepal.server.answers import check_reply
from sepal.server.report import Report
from sepal.server.run_state import RoundRecord
from sepal.server.status import Status
from sepal.server.stopping import Stopping
from sepal.server_app.metrics import ServerFigures
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.study.comparison import read_comparison
from sepal.study.frontier import frontier
from sepal.study.plans.search import Trial, choose, measure_in, validation
from tests.cli.runs_for_tests import write_run
from tests.sepal.example_messages import CONTENT, ORDER, REPLY

ROOT = Path(__file__).resolve().parents[1]
METHODS = ("fedavg", "fedavg-ft", "fedpse", "dmpfl", "subfedavg")
SMALL = {"clients": 4, "local-epochs": 2, "batch-size": 16, "subfedavg.accuracy": 0.2, "evaluate-every": 0}


def keys(example, task, shape, classes=0, **more):
    place = f"examples.tasks.{example.__name__.rpartition('.')[2]}"
    own = {"own.shape": shape, "own.classes": classes, "own.data": f"{place}:load", "model": f"{place}:build"}
    return {"dataset": "own", "task": task, **own, **SMALL, **{key.replace("_", "-"): v for key, v in more.items()}}


DIABETES = keys(diabetes, "regression", "10", lr=0.05, rounds=12, target_unit="points")
LOOPS = keys(loops, "multilabel", "64", 3, lr=0.5, rounds=8)
SHAPES = keys(shapes, "segmentation", "1x32x32", 3, lr=0.3, rounds=5)
ZEN = {**keys(zen, "tokens", "16", lr=1.0, rounds=8), "own.vocabulary": len(zen.LETTERS)}


class Last:
    """An observer that keeps the last line."""

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.line, self.record = line, record

    def closed(self, progress, report):
        self.report = report


def closing(flat, **more):
    last = Last()
    run_in_process(assemble({**flat, **more}), observers=[last], workers=1)
    return last


def constant_rmse():
    """Of the mean of the training targets, the best constant that a client knows."""
    parts = [diabetes.load(client) for client in range(4)]
    return np.mean([np.sqrt(np.mean((test - train.mean()) ** 2)) for _, train, _, test in parts])


def constant_f1():
    """Of saying that each label is there, which no other constant beats."""
    share = np.mean([loops.load(client)[3].mean(0) for client in range(4)], 0)
    return np.mean(2 * share / (1 + share))


def constant_dice():
    """Of saying that each pixel is of the larger class but the background."""
    share = np.mean([[np.mean(shapes.load(client)[3] == label) for label in (1, 2)] for client in range(4)], 0)
    return max(2 * share / (1 + share)) / 2


def constant_perplexity():
    """Of the letters' frequencies in the client's own training part."""
    found = []
    for client in range(4):
        _, train, _, test = zen.load(client)
        share = (np.bincount(train.ravel(), minlength=len(zen.LETTERS)) + 1) / (train.size + len(zen.LETTERS))
        found.append(np.exp(-np.log(share[test]).mean()))
    return np.mean(found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("flat", "metric", "unit", "at_least"),
    [
        (DIABETES, "rmse", "points", lambda value: value < constant_rmse() - 0.15),
        (LOOPS, "macro-f1", "%", lambda value: value > constant_f1() + 0.1),
        (SHAPES, "dice", "%", lambda value: value > constant_dice() + 0.2),
        (ZEN, "perplexity", "", lambda value: value < 0.85 * constant_perplexity()),
    ],
    ids=["regression", "multilabel", "segmentation", "tokens"],
)
def test_an_example_beats_the_constant_predictor(flat, metric, unit, at_least, method):
    """By .15 of 100 points of RMSE, ten points of F1, twenty of Dice, and 15 % of the perplexity."""
    last = closing(flat, method=method)
    found = last.line["headline"][registry.get(method).deployed]
    assert last.line["metric"] == {"name": metric, "unit": unit, "higher": metric not in ("rmse", "perplexity")}
    assert "accuracy" not in last.line
    assert at_least(found["mean"]), found
    assert found["clients"] == 4


# Figures


def test_the_line_of_a_round_follows_from_the_clients_sums():
    last = closing(DIABETES, method="fedavg", rounds=1)
    replies = last.record.replies.values()
    scoring = regression((10,), 1, "points").scoring
    values = [scoring.value(reply.sums["trained.sums"]) for reply in replies]
    together = [sum(each) for each in zip(*(reply.sums["trained.sums"] for reply in replies), strict=True)]
    found = last.line["headline"]["trained"]
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["bottom_decile"] == max(values), "the worst client has the largest error"
    assert found["weighted"] == pytest.approx(scoring.value(together)), "that of all examples, no mean of values"
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

    report = Report(scoring=scoring)
    for number, error in enumerate((3.0, 1.0, 2.0), 1):
        report = report.plus(record(number, error))
    assert (report.best["trained"].round, report.best["trained"].mean) == (2, 1.0)


def test_a_client_without_a_value_is_left_out_of_the_mean():
    made = assemble({"dataset": "own", "own.shape": "2", "own.classes": 2, "metric": "auroc", "model": "har-mlp"})
    learning = made.task.learning
    torch.manual_seed(0)
    one = learning.sums(torch.randn(5, 2), torch.zeros(5, dtype=torch.int64))
    other = learning.sums(torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]))
    found = view_figures([{"kept.sums": one}, {"kept.sums": other}], "kept", "", learning.scoring)
    assert found["clients"] == 1
    assert found["mean"] == learning.scoring.value(other)


def test_another_metric_of_a_classification_is_measured_by_sums():
    flat = {"dataset": "digits", "clients": 3, "rounds": 1, "method": "fedavg", "partition.subsample": 300}
    by_sums = closing(flat, metric="balanced-accuracy", **{"evaluate.shift": True})
    counted = closing(flat, **{"evaluate.shift": True})
    for view, found in counted.line["accuracy"].items():
        if found:
            assert by_sums.line["metrics"][view]["accuracy"] == pytest.approx(found["weighted"]), view
    assert by_sums.line["headline"]["trained-shift-40"]["mean"] > 0
    assert "balanced-accuracy" in by_sums.line["metrics"]["pooled"]


# The wire


def test_sums_arrive_as_they_left_and_are_bounded():
    reply = replace(REPLY, sums={"trained.sums": (3.0, -0.1, 1e-300), "kept.sums": ()})
    assert read_reply(write_reply(reply, Content()))[0] == reply
    assert "sums" not in write_reply(REPLY, Content())

    def refused(value, words, key="trained.sums"):
        records = write_reply(REPLY, Content())
        records["sums"] = ConfigRecord({key: value})
        with pytest.raises(ProtocolError, match=words):
            read_reply(records)

    refused(np.array([1.0, np.nan]).tobytes(), "finite numbers")
    refused(b"1234567", "bytes of at most 1024 float64")
    refused(bytes(8 * 1025), "bytes of at most 1024 float64")
    refused(1.0, "bytes of at most 1024 float64")
    refused(b"", "names of at most 64", "a/b")


def test_a_server_takes_only_the_sums_that_its_task_has():
    scoring = regression((10,), 1).scoring
    good = (4.0, 1.0, 4.0, 4.0, 4.0, 4.0, 4.0, 30.0, 10.0, 4.0)
    order = replace(ORDER, views=("trained",), keep=False)
    reached = version(order.plan.round, order.base, REPLY.download, CONTENT.digest())
    bare = replace(REPLY, metrics={}, facts={}, state="", version=reached)

    def check(sums, scoring=scoring):
        check_reply(order, REPLY.client, REPLY.download, replace(bare, sums=sums), CONTENT, scoring)

    check({})
    check({"trained.sums": good, "trained.validation-sums": good})
    for sums, words in (
        ({"kept.sums": good}, "sums of trained"),
        ({"trained.others": good}, "sums of trained"),
        ({"trained.sums": good[1:]}, "10 sums"),
    ):
        with pytest.raises(ProtocolError, match=words):
            check(sums)
    with pytest.raises(ProtocolError, match="if any"):
        check({"trained.sums": good}, BY_ACCURACY)


# Refusals


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "heterofl"}, f"task: expected one with {LABELS}, which heterofl needs, got regression"),
        ({"method": "fedrolex"}, f"one with {LABELS}, which fedrolex needs"),
        ({"method": "fjord"}, f"one with {LABELS}, which fjord needs"),
        ({"method": "pa3dfl"}, f"one with {LABELS}, which pa3dfl needs"),
        ({"metric": "dice"}, "metric: expected one of rmse, mae, r2, got dice"),
        ({"own.class-weights": "balanced"}, "own.class-weights: expected none for the task regression"),
        ({"task": "regresion"}, "task: expected classification, multilabel, regression, segmentation, tokens, or"),
        ({"task": "multilabel", "own.classes": 2}, "target-unit: expected nothing for the task multilabel"),
        ({"target-unit": "%"}, "target-unit: expected a unit without %, brackets and quotes"),
        ({"task": "segmentation", "target-unit": "", "own.classes": 2}, "task: expected images"),
        ({"task": "tokens", "target-unit": "", "own.classes": 0}, "own.classes: expected at least 2"),
        (
            {"task": "no.such:Task", "target-unit": "", "own.classes": 1},
            "task: expected package.module:function that can be imported",
        ),
        ({"dataset": "digits", "model": "auto"}, "task: expected classification for digits"),
        (
            {"model": "har-mlp", "task": "tokens", "target-unit": "", "own.classes": 5},
            "package.module:function of your",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(more, words):
    with pytest.raises((ConfigError, ModelError)) as refused:
        assemble({**DIABETES, "method": "fedavg", **more})
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_adaptive_inference_needs_classes():
    made = assemble({**DIABETES, "method": "dmpfl", "dmpfl.adaptive-inference": True})
    with pytest.raises(ConfigError, match=r"dmpfl\.adaptive-inference: expected false for the task regression"):
        made.method.make_server(made.task)


def test_fedem_needs_a_loss_for_each_example(monkeypatch):
    def lacking(shape, numbers):
        return replace(regression(shape, numbers), loss_each=None, share="")

    name = user_modules.name_of(lacking)
    for method, need in (("fedem", PER_EXAMPLE), ("subfedavg", "a metric from 0 to 1")):
        with pytest.raises(ConfigError, match=f"task: expected one with {need}, which {method} needs"):
            assemble({**DIABETES, "target-unit": "", "own.classes": 1, "task": name, "method": method})


# Own tasks


def huber(shape, numbers):
    """A regression with another loss, and one metric of its own."""

    def within(outputs, targets):
        return [float(((outputs - targets).abs() < 0.5).sum()), float(targets.numel())]

    metric = Metric("within-half", 2, within, lambda sums: sums[0] / sums[1])
    loss = nn.functional.huber_loss
    return LearningTask(
        "huber",
        Targets((numbers,), floating=True),
        (numbers,),
        loss,
        Scoring((metric,), "within-half"),
        lambda outputs: outputs,
        share="within-half",
    )


def test_an_own_task_runs_and_is_named_by_its_metric(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = sepal.own(diabetes.load, shape=(10,), classes=1, task=huber)
    run = sepal.run("subfedavg", data, diabetes.build, clients=4, rounds=2, lr=0.05, workers=2, progress=False)
    assert list(run.frame.columns) == ["round", "client", "view", "within-half"]
    assert 0 < run.summary["headline"]["kept"]["mean"] <= 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": lambda outputs, targets: outputs - targets}, "a loss that is one finite number"),
        ({"scoring": Scoring((), "nothing")}, "metric: expected one of , got nothing"),
        ({"share": "other"}, "metric: expected one of within-half, got other"),
        ({"scoring": Scoring((Metric("a b", 1, lambda o, t: [1.0], lambda s: s[0]),), "a b")}, "metrics with names"),
        ({"scoring": Scoring((Metric("a", 2, lambda o, t: [1.0], lambda s: s[0]),), "a"), "share": ""}, "2 sums of a"),
    ],
)
def test_an_own_task_is_tried_before_the_run(change, words):
    def broken(shape, numbers):
        return replace(huber(shape, numbers), **change)

    with pytest.raises(ConfigError) as refused:
        assemble({**DIABETES, "target-unit": "", "own.classes": 1, "task": user_modules.name_of(broken)})
    assert words in str(refused.value)


def test_the_pages_own_task_is_one(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "tasks.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    (tmp_path / "task_of_the_page.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    learning = assemble(
        {**DIABETES, "target-unit": "", "own.classes": 1, "task": "task_of_the_page:Task", "method": "subfedavg"}
    ).task.learning
    assert learning.scoring.measure.axis == "within-half, %"
    assert tomllib.loads((ROOT / "examples" / "tasks" / "diabetes.toml").read_text())["task"] == "regression"


@pytest.mark.parametrize("name", ["mine:Task", "os:getcwd"])
def test_a_node_uses_an_own_task_only_if_it_allows_it(name):
    with pytest.raises(ProtocolError, match="task: expected code that this node allows"):
        local_config({"task": name}, Node(0, 1))
    assert local_config({"task": name}, Node(0, 1, allow=frozenset({name})))["task"] == name


# Data


def test_targets_of_the_wrong_shape_or_type_are_refused_by_name():
    for targets, given, words in (
        (Targets((2,), above=2), np.zeros((3, 3), int), r"shape \(3, 2\)"),
        (Targets((2,), above=2), np.array([[0, 1], [1, 0], [0, 2]]), "whole numbers from 0 to 1, got 0 to 2"),
        (Targets((2,), above=2), np.full((3, 2), 0.5), "whole numbers"),
        (Targets((1,), floating=True), np.array([1.0, np.nan, 0]), "finite numbers"),
        (Targets((1,), floating=True), np.array(["a", "b", "c"]), "finite numbers"),
        (Targets((2, 2), least=-1, above=3), np.full((3, 2, 2), -2), "whole numbers from -1 to 2"),
    ):
        with pytest.raises(DataError, match=words):
            targets.checked("y", given, 3)
    assert Targets((1,), floating=True).checked("y", np.arange(3), 3).shape == (3, 1)


def folder(place, **more):
    keys = {"dataset": "folder", "data-dir": str(place), "clients": 3, "rounds": 2, "method": "fedavg", "lr": 0.05}
    return {**keys, "evaluate-every": 0, **more}


def write_csv(place, targets, rows=90):
    rng = np.random.default_rng(0)
    x = rng.normal(50, 10, (rows, 3))
    made = {"price": x[:, 0] / 10, "one": (x[:, 0] > 50).astype(int), "two": (x[:, 1] > 50).astype(int)}
    columns = {f"c{k}": x[:, k] for k in range(3)} | {
        f"label:{name}" if len(targets) > 1 else "label": made[name] for name in targets
    }
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    place.mkdir(exist_ok=True)
    (place / "all.csv").write_text("\n".join(lines))
    return place


def test_a_csv_of_numbers_is_learned_exported_and_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = write_csv(tmp_path / "houses", ["price"])
    flat = folder(place, task="regression", **{"target-unit": "k€", "name": "houses", "rounds": 20})
    options = [word for key, value in flat.items() for word in ("--set", f"{key}={value}")]
    done = CliRunner().invoke(app, ["run", "--workers", "1", *options])
    assert done.exit_code == 0, done.output
    assert "rmse in k€" in done.stdout
    assert "Rmse in k€ on test data" in done.stdout
    assert "%" not in done.stdout.split("Bytes of payloads")[0].replace("bottom 10 %", "").replace("10 %", "")
    shown = CliRunner().invoke(app, ["show", "runs/houses", "--csv", "out.csv"])
    assert shown.exit_code == 0, shown.output
    assert "rmse/trained/mean" in (tmp_path / "out.csv").read_text()
    assert "together/trained/r2" in (tmp_path / "out.csv").read_text()
    assert CliRunner().invoke(app, ["export", "runs/houses", "0", "--out", "m.safetensors"]).exit_code == 0
    told = CliRunner().invoke(app, ["predict", "m.safetensors", str(place)])
    rows = told.stdout.splitlines()
    assert rows[0] == "example,prediction"
    assert len(rows) == 91
    assert float(rows[1].split(",")[1]) == pytest.approx(5, abs=4)
    assert "rmse " in told.stderr
    assert "r2 " in told.stderr
    page = render(read_comparison(["runs/houses"]))
    assert "rmse, k€" in page
    assert "Targets of the task regression are no class numbers." in page


def test_a_csv_with_several_labels_is_learned_and_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = write_csv(tmp_path / "tags", ["one", "two"])
    run = sepal.run(
        "fedavg",
        "folder",
        task="multilabel",
        data_dir=str(place),
        clients=3,
        rounds=3,
        lr=0.2,
        progress=False,
        workers=1,
    )
    assert run.summary["metric"]["name"] == "macro-f1"
    assert CliRunner().invoke(app, ["export", str(run.path), "0", "--out", "m.safetensors"]).exit_code == 0
    told = CliRunner().invoke(app, ["predict", "m.safetensors", str(place)])
    assert told.stdout.splitlines()[0] == "example,one probability,two probability"
    assert "macro-f1" in told.stderr


def test_an_npz_of_masks_is_learned_and_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y, x_test, y_test = shapes.load(0)
    (tmp_path / "masks").mkdir()
    np.savez(tmp_path / "masks" / "all.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    run = sepal.run(
        "fedavg",
        "folder",
        shapes.build,
        task="segmentation",
        data_dir=str(tmp_path / "masks"),
        clients=2,
        rounds=1,
        workers=1,
        progress=False,
    )
    assert run.summary["metric"]["name"] == "dice"
    model = "m.safetensors"
    exported = CliRunner().invoke(app, ["export", str(run.path), "0", "--out", model])
    assert exported.exit_code == 0, exported.output
    allow = ["--allow", run.stored.config["model"]]
    told = CliRunner().invoke(app, ["predict", model, str(tmp_path / "masks"), "--out", "y.npz", *allow])
    assert told.exit_code == 0, told.output
    assert np.load(tmp_path / "y.npz")["prediction"].shape == y.shape
    refused = CliRunner().invoke(app, ["predict", model, str(tmp_path / "masks"), *allow])
    assert refused.exit_code != 0
    assert "an .npz file for predictions" in str(refused.exception) + refused.output


def test_rules_that_deal_by_label_are_refused_without_labels(tmp_path):
    place = write_csv(tmp_path / "houses", ["price"])
    assert assemble(folder(place, task="regression")).task.config.partition.name == "iid"
    for key, value in (("partition.name", "dirichlet"), ("split.by", "time")):
        with pytest.raises(ConfigError, match=f"{key}: expected"):
            assemble(folder(place, task="regression", **{key: value}))
    with pytest.raises(DataError, match="whole number or a text"):
        assemble(folder(place))


# Class weights


def test_class_weights_make_classes_count_alike():
    """Of six examples, four of class 0 and two of class 2: weights 6 / (2 · 4) and 6 / (2 · 2)."""
    assert class_weights(torch.tensor([0, 0, 2, 0, 2, 0]), 4).tolist() == [0.75, 0, 1.5, 0]


def test_balanced_weights_raise_the_recall_of_a_rare_class_and_are_not_sent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def rare(client):
        rng = np.random.default_rng(client)
        y = (rng.random(400) < 0.08).astype(np.int64)
        x = (rng.normal(size=(400, 2)) + 1.2 * y[:, None]).astype(np.float32)
        return x[:200], y[:200], x[200:], y[200:]

    def linear(shape, classes):
        return nn.Linear(2, classes)

    found = {}
    for weights in ("none", "balanced"):
        data = sepal.own(rare, shape=(2,), classes=2)
        run = sepal.run(
            "fedavg",
            data,
            linear,
            name=weights,
            clients=3,
            rounds=5,
            lr=0.5,
            metric="balanced-accuracy",
            progress=False,
            workers=1,
            **{"own.class-weights": weights},
        )
        found[weights] = run.summary["headline"]["received"]["mean"]
        sent = run.stored.lines[-1]["clients"][0]["metrics"].keys()
        assert not [name for name in sent if "weight" in name]
    assert found["balanced"] > found["none"] + 0.1, found
    compared = read_comparison(["none", "balanced"])
    assert [variant.measure.name for variant in compared.all_variants()] == ["balanced-accuracy"] * 2


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
    places = [errors(tmp_path / f"good-{n}", [4.0, 5.0, 6.0 + n / 10], n, method="fedavg-ft") for n in range(3)]
    places += [errors(tmp_path / f"bad-{n}", [14.0, 15.0, 16.0 + n / 10], n, volume=9) for n in range(3)]
    comparison = read_comparison(places)
    variants = comparison.variants("")
    good, bad = comparison.labels
    assert accuracy_sheet(variants).head[0] == "rmse, mmol/l"
    assert accuracy_sheet(variants).rows[0][1] == "5.033 ± 0.03333"
    assert "5.25 mmol/l\ntrained" in cost_sheet(variants).head[4], "5 % worse than the best"
    assert sentence(comparison, "").startswith(f"Lowest mean rmse of 2: {good}, 5.033 ± 0.03333 mmol/l")
    assert [(place.variant.label, place.frontier) for place in frontier(variants)] == [(good, True), (bad, False)]
    assert f"{good}: better than {bad} (-10" in next(conclusions(comparison, ""))
    assert "Mmol/l of deployed models" in next(conclusions(comparison, ""))
    page = render(comparison)
    for words in ("Rmse by round", "rmse, mmol/l", "Rmse in mmol/l on test data", "difference, mmol/l"):
        assert words in page, words
    assert "ccuracy" not in page.split("<script")[0].replace("accuracy:Q", "")
    other = write_run(tmp_path / "other")
    with pytest.raises(ConfigError, match=r"metric: expected rmse, mmol/l, as in .*, got accuracy, %"):
        read_comparison([*places, str(other)])


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
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")])
    assert shown.exit_code == 0
    assert "[red]" not in shown.output


def test_the_figures_of_a_server_name_the_metric():
    figures = ServerFigures(lambda: Status(1, "", 1, 1))
    metric = {"name": "rmse", "unit": "", "higher": False}
    line = {"phase": "evaluate", "headline": {"trained": {"mean": 2.5}}, "metric": metric}
    record = SimpleNamespace(round=1, ledger=(), seconds={})
    figures.round(None, record, line)
    found = {family.name: family for family in figures.collect()}
    assert found["sepal_accuracy"].samples == []
    (sample,) = found["sepal_headline"].samples
    assert (sample.labels, sample.value) == ({"view": "trained", "metric": "rmse"}, 2.5)


def test_a_run_ends_when_its_error_has_stopped_falling():
    scoring = regression((10,), 1, "kg").scoring
    made = assemble({**DIABETES, "method": "fedavg", "rounds": 99, "stop-after": 2, "evaluate-every": 1})
    stopping = Stopping.of(made.task.config, made.method, Plan, scoring)
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []

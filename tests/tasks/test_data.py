"""Data of other tasks than classification, and class weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import sepal
from examples.tasks import shapes
from sepal.cli.main import app
from sepal.client_app.views import class_weights
from sepal.errors import ConfigError, DataError
from sepal.report.page import render
from sepal.strategies.assembly import assemble
from sepal.study.comparison import read_comparison
from sepal.tasks import Targets

# Data


def test_targets_of_the_wrong_shape_or_type_are_refused_by_name():
    for targets, array, words in (
        (Targets((2,), above=2), np.zeros((3, 3), int), r"shape \(3, 2\)"),
        (Targets((2,), above=2), np.array([[0, 1], [1, 0], [0, 2]]), "whole numbers from 0 to 1, got 0 to 2"),
        (Targets((2,), above=2), np.full((3, 2), 0.5), "whole numbers"),
        (Targets((1,), floating=True), np.array([1.0, np.nan, 0]), "finite numbers"),
        (Targets((1,), floating=True), np.array(["a", "b", "c"]), "finite numbers"),
        (Targets((2, 2), least=-1, above=3), np.full((3, 2, 2), -2), "whole numbers from -1 to 2"),
    ):
        with pytest.raises(DataError, match=words):
            targets.checked("y", array, 3)
    assert Targets((1,), floating=True).checked("y", np.arange(3), 3).shape == (3, 1)


def folder(directory, **more):
    keys = {"dataset": "folder", "data-dir": str(directory), "clients": 3, "rounds": 2, "method": "fedavg", "lr": 0.05}
    return {**keys, "evaluate-every": 0, **more}


def write_csv(directory, targets, rows=90):
    rng = np.random.default_rng(0)
    x = rng.normal(50, 10, (rows, 3))
    targets_by_name = {"price": x[:, 0] / 10, "one": (x[:, 0] > 50).astype(int), "two": (x[:, 1] > 50).astype(int)}
    columns = {f"c{k}": x[:, k] for k in range(3)} | {
        f"label:{name}" if len(targets) > 1 else "label": targets_by_name[name] for name in targets
    }
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    directory.mkdir(exist_ok=True)
    (directory / "all.csv").write_text("\n".join(lines))
    return directory


def test_a_csv_of_numbers_is_learned_exported_and_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = write_csv(tmp_path / "houses", ["price"])
    flat = folder(directory, task="regression", **{"target-unit": "k€", "name": "houses", "rounds": 20})
    options = [word for key, value in flat.items() for word in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, ["run", "--workers", "1", *options])
    assert result.exit_code == 0, result.output
    assert "rmse in k€" in result.stdout
    assert "Rmse in k€ on test data" in result.stdout
    assert "%" not in result.stdout.split("Bytes of payloads")[0].replace("worst 10 %", "").replace("10 %", "")
    result = CliRunner().invoke(app, ["show", "runs/houses", "--csv", "out.csv"])
    assert result.exit_code == 0, result.output
    assert "rmse/trained/mean" in (tmp_path / "out.csv").read_text()
    assert "together/trained/r2" in (tmp_path / "out.csv").read_text()
    assert CliRunner().invoke(app, ["export", "runs/houses", "0", "--out", "m.safetensors"]).exit_code == 0
    prediction = CliRunner().invoke(app, ["predict", "m.safetensors", str(directory)])
    rows = prediction.stdout.splitlines()
    assert rows[0] == "example,prediction"
    assert len(rows) == 91
    assert float(rows[1].split(",")[1]) == pytest.approx(5, abs=4)
    assert "rmse " in prediction.stderr
    assert "r2 " in prediction.stderr
    page = render(read_comparison(["runs/houses"]))
    assert "rmse, k€" in page
    assert "Targets of the task regression are no class numbers." in page


def test_a_csv_with_several_labels_is_learned_and_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = write_csv(tmp_path / "tags", ["one", "two"])
    run = sepal.run(
        "fedavg",
        "folder",
        task="multilabel",
        data_dir=str(directory),
        clients=3,
        rounds=3,
        lr=0.2,
        progress=False,
        workers=1,
    )
    assert run.summary["metric"]["name"] == "macro-f1"
    assert CliRunner().invoke(app, ["export", str(run.path), "0", "--out", "m.safetensors"]).exit_code == 0
    prediction = CliRunner().invoke(app, ["predict", "m.safetensors", str(directory)])
    assert prediction.stdout.splitlines()[0] == "example,one probability,two probability"
    assert "macro-f1" in prediction.stderr


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
    allow = ["--allow", run.stored.config["model"]]
    exported = CliRunner().invoke(app, ["export", str(run.path), "0", "--out", model, *allow])
    assert exported.exit_code == 0, exported.output
    prediction = CliRunner().invoke(app, ["predict", model, str(tmp_path / "masks"), "--out", "y.npz", *allow])
    assert prediction.exit_code == 0, prediction.output
    assert np.load(tmp_path / "y.npz")["prediction"].shape == y.shape
    refused = CliRunner().invoke(app, ["predict", model, str(tmp_path / "masks"), *allow])
    assert refused.exit_code != 0
    assert "an .npz file for predictions" in str(refused.exception) + refused.output


def test_rules_that_deal_by_label_are_refused_without_labels(tmp_path):
    directory = write_csv(tmp_path / "houses", ["price"])
    assert assemble(folder(directory, task="regression")).setup.config.partition.name == "iid"
    for key, value in (("partition.name", "dirichlet"), ("split.by", "time")):
        with pytest.raises(ConfigError, match=f"{key}: expected"):
            assemble(folder(directory, task="regression", **{key: value}))
    with pytest.raises(DataError, match="whole number or a text"):
        assemble(folder(directory))


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

    recalls = {}
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
        recalls[weights] = run.summary["headline"]["received"]["mean"]
        sent = run.stored.lines[-1]["clients"][0]["metrics"].keys()
        assert not [name for name in sent if "weight" in name]
    assert recalls["balanced"] > recalls["none"] + 0.1, recalls
    compared = read_comparison(["none", "balanced"])
    assert [variant.measure.name for variant in compared.all_variants()] == ["balanced-accuracy"] * 2

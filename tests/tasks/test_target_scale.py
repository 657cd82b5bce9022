"""Each client standardises the targets of a regression; what is shown, exported and predicted is in their unit."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from sklearn.datasets import load_diabetes, load_iris, load_linnerud, load_wine
from typer.testing import CliRunner

import sepal
from sepal.cli.main import app
from sepal.config import RunConfig
from sepal.errors import ConfigError, RosterError, StateError
from sepal.export.portable import load
from sepal.strategies.assembly import assemble
from sepal.strategies.registry import as_begun
from sepal.training.target_scale import TargetScale
from tests.tasks.settings import DIABETES, closing


def generated(unit, rows=300, level=0.0):
    rng = np.random.default_rng(3)
    x = rng.normal(50, 10, (rows, 4)) * [1, 100, 0.01, 1]
    score = (x / [1, 100, 0.01, 1] - 50) @ [0.6, -0.3, 0.4, 0] / 10 + rng.normal(0, 0.3, rows)
    return pd.DataFrame(x, columns=list("abcd")).assign(label=unit * (score + level))


def scikit_learns(data):
    targets = data.target if isinstance(data.target, pd.DataFrame) else data.target.to_frame("label")
    many = targets.shape[1] > 1
    return data.data.join(targets.rename(columns=lambda name: f"label:{name}" if many else "label"))


TABLES = {
    "diabetes": lambda: scikit_learns(load_diabetes(as_frame=True, scaled=False)),
    "wine": lambda: load_wine(as_frame=True).data.rename(columns={"alcohol": "label"}),
    "iris": lambda: load_iris(as_frame=True).data.rename(columns={"petal width (cm)": "label"}),
    "thousandths": lambda: generated(1e-3),
    "millions": lambda: generated(1e6),
    "far from zero": lambda: generated(10, level=40.0),  # such as a blood pressure
}
# 20 rows, three targets. Nobody predicts them better than by their mean: ridge regression has an r² below 0, too.
ALL = {**TABLES, "linnerud": lambda: scikit_learns(load_linnerud(as_frame=True))}


def write(directory, name):
    directory.mkdir()
    ALL[name]().to_csv(directory / "all.csv", index=False)
    return directory


def learn(directory, method="fedavg", **more):
    rest = {"task": "regression", "data_dir": str(directory), "progress": False, "workers": 1, "evaluate_every": 0}
    return sepal.run(method, "folder", **{**rest, **more})


def of_the_mean(run):
    """Return the rmse of predicting the mean of a client's training targets, mean over clients."""
    data, clients = assemble(run.stored.config).data, run.stored.config["clients"]
    parts = [data.client(number, clients, f"client-{number:05d}") for number in range(clients)]
    return np.mean([np.sqrt(np.mean((part.test.y - part.train.y.mean(0)) ** 2)) for part in parts])


@pytest.mark.parametrize("method", [RunConfig().method, "fedavg"])
@pytest.mark.parametrize("name", TABLES)
def test_the_first_run_on_a_table_is_better_than_predicting_the_mean(name, method, tmp_path, monkeypatch):
    """With the default method, all keys but the clients' number as by default."""
    monkeypatch.chdir(tmp_path)
    run = learn(write(tmp_path / "data", name), method, clients=5, metric="rmse")
    error, mean = run.summary["headline"][run.deployed]["mean"], of_the_mean(run)
    assert error < mean, f"{error:.4g} is no better than {mean:.4g}"


@pytest.mark.parametrize("name", ["thousandths", "millions", "linnerud"])
def test_metrics_models_files_and_predictions_are_in_the_unit_of_the_targets(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = ALL[name]()
    run = learn(write(tmp_path / "data", name), clients=2, rounds=5, name="run")
    named = [column for column in table.columns if column.startswith("label")]
    rows, truth = table.drop(columns=named), table[named].to_numpy()
    part = assemble(run.stored.config).data.raw(0, 2)
    predicted = run.model(0)(torch.from_numpy(part.test.x.astype(np.float32))).detach().numpy()
    rmse = np.sqrt(np.mean((predicted - part.test.y) ** 2))
    shown = run.frame[(run.frame["client"] == "client-00000") & (run.frame["view"] == run.deployed)]
    assert rmse == pytest.approx(shown["rmse"].iloc[-1], rel=1e-4)
    predictions = run.predict(0, rows)
    assert np.abs(predictions.drop(columns="example").to_numpy() - truth).mean() < 2 * truth.std(0).mean()
    result = CliRunner().invoke(app, ["export", "runs/run", "0", "--out", "m.safetensors"])
    assert result.exit_code == 0, result.output
    file = load("m.safetensors")(part.test.x.astype(np.float32))
    np.testing.assert_allclose(file, predicted, rtol=1e-6, atol=1e-6 * truth.std())
    assert file.std() > 0.1 * truth.std()


def test_an_onnx_file_gives_targets_in_their_unit(tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    learn(write(tmp_path / "data", "millions"), clients=2, rounds=3, name="run")
    result = CliRunner().invoke(app, ["export", "runs/run", "1", "--out", "m.safetensors", "--onnx"])
    assert result.exit_code == 0, result.output
    session, rows = onnxruntime.InferenceSession("m.onnx"), generated(1e6).drop(columns="label").to_numpy("float32")
    kind = {"tensor(float)": np.float32, "tensor(double)": np.float64}[session.get_inputs()[0].type]
    outputs = session.run(None, {"x": rows.astype(kind)})[0]
    np.testing.assert_allclose(outputs, load("m.safetensors")(rows), rtol=1e-4, atol=100)


def test_test_examples_of_others_are_judged_in_the_unit_too(tmp_path):
    directory = write(tmp_path / "data", "millions")
    flat = {"dataset": "folder", "data-dir": str(directory), "task": "regression", "clients": 2, "evaluate-every": 0}
    headline = closing(flat, method="fedavg", rounds=5, **{"evaluate.shift": True}).line["headline"]
    views = [view for view in headline if view.startswith("trained-shift-") or view == "pooled"]
    assert len(views) == 7
    assert all(headline[view]["mean"] == pytest.approx(headline["trained"]["mean"], rel=0.5) for view in views), (
        headline
    )


def test_targets_that_are_all_alike_are_predicted_as_they_are():
    scale = TargetScale.of(np.array([[7.0, 1.0], [7.0, 3.0]], np.float32))
    assert (scale.mean, scale.spread) == ((7.0, 2.0), (0.0, 1.0))
    assert scale.standardized(torch.tensor([[9.0, 3.0]])).tolist() == [[0.0, 1.0]]
    assert scale.undone(torch.tensor([[0.5, 0.5]])).tolist() == [[7.0, 2.5]]


def test_a_run_begun_before_the_key_goes_on_without_scaling(tmp_path):
    directory = write(tmp_path / "data", "diabetes")
    flat = {"method": "fedavg", "dataset": "folder", "data-dir": str(directory), "task": "regression"}
    assert assemble(flat).setup.config.target_scale == "client"
    assert assemble(flat).setup.config.clip_gradient == 5, "standardised targets have gradients of one size"
    begun = assemble(as_begun(flat)).setup.config
    assert (begun.target_scale, begun.clip_gradient) == ("none", 0)
    assert assemble({**flat, "folder.standardize": False}).setup.config.target_scale == "none"
    assert assemble(DIABETES).setup.config.target_scale == "none", "own inputs are as the user scales them"


def test_own_arrays_are_standardised_when_asked_for():
    """With targets a million times as large, only the unit of the figures changes."""
    plain = closing({**DIABETES, "target-scale": "client"}, method="fedavg", rounds=2).line["headline"]["trained"]
    million = {**DIABETES, "target-scale": "client", "own.data": f"{__name__}:in_millionths"}
    figures = closing(million, method="fedavg", rounds=2).line["headline"]["trained"]
    assert figures["mean"] == pytest.approx(1e6 * plain["mean"], rel=1e-3)


def in_millionths(client):
    from examples.tasks.diabetes import load as parts

    x, y, x_test, y_test = parts(client)
    return x, 1e6 * y, x_test, 1e6 * y_test


class Patients(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.full(10, index, np.float32), float(index)


def datasets(client):
    return Patients(), Patients()


def test_what_cannot_be_standardised_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"target-scale: expected none for the task multilabel"):
        assemble({**DIABETES, "task": "multilabel", "target-unit": "", "own.classes": 2, "target-scale": "client"})
    read_batch_by_batch = {**DIABETES, "target-scale": "client", "own.data": f"{__name__}:datasets"}
    with pytest.raises(RosterError, match=r"target-scale: expected none with a Dataset"):
        closing(read_batch_by_batch, method="fedavg", rounds=1)


@pytest.mark.parametrize(("key", "value"), [("target_mean", [1.0, 2.0]), ("target_spread", []), ("task", "multilabel")])
def test_a_file_whose_numbers_do_not_fit_is_refused(key, value, tmp_path, monkeypatch):
    from safetensors.numpy import load_file, save_file

    monkeypatch.chdir(tmp_path)
    learn(write(tmp_path / "data", "diabetes"), clients=2, rounds=1, name="run")
    assert CliRunner().invoke(app, ["export", "runs/run", "0", "--out", "m.safetensors"]).exit_code == 0
    with safe_open("m.safetensors", "np") as file:
        about = dict(file.metadata())
    origin = json.loads(about["origin"])
    assert len(origin["target_mean"]) == len(origin["target_spread"]) == 1
    about["origin"] = json.dumps({**origin, key: value})
    save_file(load_file("m.safetensors"), "m.safetensors", about)
    with pytest.raises(StateError, match=r"target_mean and origin\.target_spread"):
        load("m.safetensors")

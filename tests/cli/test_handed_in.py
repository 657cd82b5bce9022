"""What a user may hand in, sentence by sentence of docs/own-data.md, from the files to predictions."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

import sepal as library
from sepal.cli.main import app
from sepal.study.runs import model_of
from tests.cli.test_inspect import patients


def sepal(*arguments):
    """Run a command in the working directory; return what it printed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))


def predicted(result):
    return pd.read_csv(io.StringIO(result.stdout))


def test_a_mixed_table_by_site_in_three_commands(tmp_path):
    table = patients(tmp_path) / "patients.csv"
    keys = ("data-dir=patients.csv", "folder.label=diagnosis", "folder.person=site")
    sepal("run", "--dataset", "folder", *(f"--set={key}" for key in keys), "--name=first", "--rounds=12")
    sepal("export", "first", "berlin", "--out=berlin.safetensors")
    told = sepal("predict", "berlin.safetensors", table)
    frame = pd.read_csv(table)
    assert (predicted(told)["name"] == frame["diagnosis"]).mean() > 0.75
    assert "accuracy" in told.stderr, "labels are in the column that the run was told of"
    unlabelled = frame.drop(columns=["diagnosis", "site"])[["sex", "visit", "smoker", "bmi", "age"]]
    unlabelled.to_csv("new.csv", index=False)
    assert sepal("predict", "berlin.safetensors", "new.csv").stdout == told.stdout, "columns go by their names"
    run = library.load("first")
    assert run.predict("berlin", unlabelled)["label"].tolist() == predicted(told)["label"].tolist()
    typed = unlabelled.assign(visit=pd.to_datetime(unlabelled["visit"]), smoker=pd.Categorical(unlabelled["smoker"]))
    assert run.predict("berlin", typed)["label"].tolist() == predicted(told)["label"].tolist()


def test_the_exported_model_refuses_a_category_that_it_does_not_know_and_onnx_takes_what_is_prepared(tmp_path):
    import onnxruntime

    table = patients(tmp_path) / "patients.csv"
    keys = ("data-dir=patients.csv", "folder.label=diagnosis", "folder.person=site")
    sepal("run", "--dataset=folder", *(f"--set={key}" for key in keys), "--name=first", "--rounds=1")
    sepal("export", "first", "rome", "--out=m.safetensors", "--onnx")
    Path("odd.csv").write_text(table.read_text().replace("yes", "perhaps"))
    odd = CliRunner().invoke(app, ["predict", "m.safetensors", "odd.csv"])
    assert odd.exit_code != 0
    assert "column smoker: expected one of no, yes, got 'perhaps'" in str(odd.exception or "") + odd.output
    found = model_of(tmp_path / "runs" / "first", "rome")
    (logits,) = onnxruntime.InferenceSession("m.onnx").run(None, {"x": found.inputs})
    np.testing.assert_allclose(logits, found.logits, atol=1e-4)
    assert set(np.unique(found.inputs[:, 2])) <= {0.0, 1.0}, "categories as they are"


def test_a_schema_of_one_machine_is_what_another_ones_table_is_read_by(tmp_path):
    patients(tmp_path / "a")
    patients(tmp_path / "b", ("oslo", "wien"), seed=1)
    sepal("data", "inspect", "a", "--label=diagnosis", "--person=site", "--write")
    Path("b/schema.toml").write_bytes(Path("a/schema.toml").read_bytes())
    sepal("run", "--dataset=folder", "--set=data-dir=b", "--name=other", "--rounds=2")
    assert set(library.load("other").frame["client"]) == {"oslo", "wien"}


def test_photographs_by_owner_in_three_commands(tmp_path):
    rng = np.random.default_rng(0)
    for site in ("berlin", "paris", "rome"):
        for place, name in enumerate(("dark", "light")):
            home = tmp_path / "photos" / site / name
            home.mkdir(parents=True)
            for n in range(12):
                pixels = rng.integers(0, 100, (24, 30, 3), dtype=np.uint8) + 120 * place
                Image.fromarray(pixels.astype(np.uint8)).save(home / f"{n}.jpg")
    told = sepal("run", "--dataset=folder", "--set=data-dir=photos", "--set=folder.resize=16", "--name=p", "--rounds=8")
    assert "client/class: 3 owners, 2 classes" in told.stderr
    sepal("export", "p", "paris", "--out=paris.safetensors")
    told = sepal("predict", "paris.safetensors", "photos")
    assert "accuracy" in told.stderr
    frame = predicted(told)
    assert len(frame) == 72
    assert (frame["name"] == frame["example"].str.split("/").str[1]).mean() > 0.9


@pytest.mark.parametrize("name", ["diabetes", "linnerud", "dates"])
def test_a_regression_target_in_three_commands_is_better_than_the_mean(tmp_path, name):
    table, targets = regression(name)
    table.to_csv("all.csv", index=False)
    keys = ("data-dir=all.csv", f"folder.label={','.join(targets)}", "task=regression", "clients=3")
    sepal("run", "--dataset=folder", "--method=fedavg-ft", *(f"--set={key}" for key in keys), "--name=r", "--rounds=20")
    run = library.load("r")
    (view,) = {run.stored.deployed}
    rmse = run.stored.summary["headline"][view]["mean"]
    sepal("export", "r", "1", "--out=m.safetensors")
    told = predicted(sepal("predict", "m.safetensors", "all.csv"))
    columns = ["prediction"] if len(targets) == 1 else list(targets)
    error = np.sqrt(((told[columns].to_numpy() - table[list(targets)].to_numpy()) ** 2).mean())
    spread = np.sqrt(((table[list(targets)] - table[list(targets)].mean()) ** 2).to_numpy().mean())
    assert rmse < spread
    assert error < spread, "predictions are in the unit of the targets"


def regression(name):
    """A table and the names of its targets."""
    from sklearn import datasets

    if name in ("diabetes", "linnerud"):
        found = getattr(datasets, f"load_{name}")(as_frame=True)
        targets = ["target"] if name == "diabetes" else list(found.target.columns)
        return found.frame, targets
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3))
    y = x @ [1.0, -2.0, 0.5] + rng.normal(size=240) / 5
    table = pd.DataFrame(x * [1e-3, 1.0, 1e6] + [5.0, 0.0, 1e7], columns=["a", "b", "c"])
    table["b"] = (pd.Timestamp("2026-01-01") + pd.to_timedelta(np.round(x[:, 1] * 3600), "s")).strftime("%F %T")
    return table.assign(y=10 * y + 120), ["y"]

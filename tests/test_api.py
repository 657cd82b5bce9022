"""Sepal from Python: the same runs as the command's, functions of a notebook, frames, models, comparisons."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_wine
from torch import nn
from typer.testing import CliRunner

import sepal
from sepal import user_modules
from sepal.cli.main import app
from sepal.errors import ConfigError, ModelError

SMALL = {"clients": 2, "rounds": 1, "partition": {"subsample": 200}, "progress": False}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def wine(client):
    """A client's share of a small public data set."""
    x, y = load_wine(return_X_y=True)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)[client::3]
    y = y[client::3]
    return x[::2], y[::2], x[1::2], y[1::2]


def linear(shape, classes):
    return nn.Linear(shape[0], classes)


def test_a_run_is_the_commands():
    """Same keys, same figures and weights: both prepare and execute it with sepal.study.run."""
    ours = sepal.run("fedavg", name="ours", workers=1, **SMALL)
    keys = ("clients=2", "rounds=1", "partition.subsample=200", "method=fedavg", "name=theirs")
    assert (
        CliRunner().invoke(app, ["run", "--workers", "1", *(part for key in keys for part in ("--set", key))]).exit_code
        == 0
    )
    theirs = sepal.load("theirs")
    assert ours.frame.equals(theirs.frame)
    for one, other in zip(
        ours.model("client-00001").parameters(), theirs.model("client-00001").parameters(), strict=True
    ):
        assert one.equal(other)
    assert list(ours.frame.columns) == ["round", "client", "view", "accuracy"]
    assert set(ours.frame.client) == {"client-00000", "client-00001"}
    closing = ours.frame[(ours.frame["round"] == 2) & (ours.frame.view == "received")]
    assert closing.accuracy.mean() == pytest.approx(ours.summary["accuracy"]["received"]["mean"])
    assert list(ours.rounds["round"]) == [1, 2]


@pytest.mark.e2e  # a run in processes of its own
def test_functions_of_a_notebook_run_in_workers_and_come_back_as_a_model():
    """Neither can be imported: they are closures. Two worker processes get them by value."""
    hidden = 3

    def load(client):
        return wine(client)

    def build(shape, classes):
        return nn.Sequential(nn.Linear(shape[0], hidden), nn.ReLU(), nn.Linear(hidden, classes))

    data = sepal.own(load, shape=(13,), classes=3)
    run = sepal.run("fedpse", data, build, clients=2, rounds=2, workers=2, lr=0.5, progress=False, fedpse={"keep": 0.5})
    model = run.model("client-00001")
    assert [tuple(p.shape) for p in model.parameters()] == [(3, 13), (3,), (3, 3), (3,)]
    assert not model.training
    assert run.stored.config["fedpse.keep"] == 0.5


def test_a_function_that_can_be_imported_keeps_its_name():
    assert user_modules.name_of(linear) == "tests.test_api:linear"
    assert user_modules.name_of(lambda: 1).startswith(f"{user_modules.DEFINED}:lambda_")


def test_a_function_of_another_session_is_refused_by_name():
    with pytest.raises(ModelError, match="a function of this session") as refused:
        user_modules.load("model", f"{user_modules.DEFINED}:build_0", ModelError)
    assert "build_0" in str(refused.value)


def test_a_comparison_has_frames_a_frontier_and_a_report(runs_in_this_process):
    def build(shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

    made = sepal.compare(["fedavg", "local", "fedpse"], seeds=range(2), model=build, out="all", **SMALL)
    assert sorted(made.frame.name) == ["fedavg", "fedpse", "local"]
    assert set(made.frame.seeds) == {2}
    frontier = made.frontier()
    assert frontier.name.iloc[0] == "local"
    assert frontier.megabytes.is_monotonic_increasing
    assert bool(frontier.frontier.iloc[0])
    on = frontier[frontier.frontier]
    assert on.accuracy.is_monotonic_increasing
    assert "<iframe srcdoc=" in made.plot()._repr_html_()
    assert made.plot().save("page.html").stat().st_size > 10_000


def test_a_wrong_key_is_one_line():
    with pytest.raises(ConfigError, match="roundz"):
        sepal.run("fedavg", roundz=3, progress=False)


def test_importing_sepal_imports_nothing_heavy():
    code = "import sepal, sys; print([m for m in ('torch', 'flwr', 'pandas', 'numpy', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

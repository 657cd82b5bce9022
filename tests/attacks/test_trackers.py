"""Directories of trackers that are from elsewhere: nothing is written through a link, and no model goes elsewhere."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from sepal.cli import trackers
from sepal.cli.trackers import mlflow as mlflow_tracker
from sepal.cli.trackers import wandb as wandb_tracker
from sepal.errors import ConfigError
from sepal.runs.stored_run import read_run
from tests.sepal.cli.runs_for_tests import write_run


@pytest.mark.parametrize("where", ["plan", "plan/a"])
def test_no_link_in_a_trackers_directory_is_written_through(where, tmp_path):
    """A directory of event files may be from elsewhere, and those that are there are removed."""
    pytest.importorskip("tensorboard")
    mine = tmp_path / "mine"
    (mine / "a").mkdir(parents=True)
    for directory in (mine, mine / "a"):
        (directory / "events.out.tfevents.1").write_text("mine")
    link = tmp_path / "board" / where
    link.parent.mkdir(parents=True)
    link.symlink_to(mine)
    tracker = trackers.tracker_of(f"tensorboard={tmp_path}/board")
    with pytest.raises(ConfigError, match="a link that leads out of it"):
        list(trackers.log_runs([tracker], "plan", [write_run(tmp_path / "a", closing=[0.5, 0.6])]))
    assert sorted(path.name for path in mine.rglob("*")) == ["a", *["events.out.tfevents.1"] * 2]


def test_a_mark_of_a_tracker_that_is_a_pipe_or_endless_keeps_nobody_waiting(tmp_path):
    pytest.importorskip("tensorboard")
    run, events = write_run(tmp_path / "a", closing=[0.5, 0.6]), tmp_path / "board" / "plan" / "a"
    events.mkdir(parents=True)
    (events / ".logged-by-sepal").symlink_to("/dev/zero")
    tracker = trackers.tracker_of(f"tensorboard={tmp_path}/board")
    assert next(trackers.log_runs([tracker], "plan", [run])).startswith("1 runs")
    assert next(trackers.log_runs([tracker], "plan", [run])).startswith("0 runs")


def test_a_trackers_directory_that_leads_out_is_refused_before_weights_and_biases_is_asked(tmp_path):
    (tmp_path / "board").mkdir()
    (tmp_path / "board" / "wandb").symlink_to(tmp_path)
    tracker = wandb_tracker.make(str(tmp_path / "board"), "--tracker")
    with pytest.raises(ConfigError, match="a link that leads out of it"):
        tracker.log("plan", [])


def stored(location, monkeypatch, of_run=""):
    """The client of an MLflow whose store names where the files of an experiment, and of its runs, go."""
    client = MagicMock()
    client.get_experiment_by_name.return_value = SimpleNamespace(experiment_id="1", artifact_location=location)
    client.get_run.return_value.info.artifact_uri = of_run or f"{location}/2/artifacts"
    client.search_runs.return_value = []
    modules = {"mlflow": MagicMock(), "mlflow.entities": MagicMock()}
    modules["mlflow.exceptions"] = SimpleNamespace(MlflowException=RuntimeError)
    modules["mlflow.tracking"] = SimpleNamespace(MlflowClient=lambda uri: client)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(mlflow_tracker, "find_spec", lambda name: None)
    return client


@pytest.mark.parametrize(
    ("place", "location", "stays"),
    [
        ("{}/m", "{}/m/1", True),
        ("file://{}/m", "file://{}/m/1", True),
        ("sqlite:///{}/m.db", "{}/mlruns/1", True),
        ("http://127.0.0.1:5000", "mlflow-artifacts:/1", True),
        ("postgresql://host/db", "s3://bucket/1", True),
        ("{}/m", "s3://bucket/1", False),
        ("{}/m", "http://x.example/1", False),
        ("{}/m", "file://x.example/{}/m", False),
        ("{}/m", "{}/elsewhere", False),
        ("{}/m", "{}/m/../elsewhere", False),
        ("file://{}/m", "file:///home/somebody", False),
        ("sqlite:///{}/m.db", "ftp://x.example/1", False),
        ("sqlite:///{}/m.db", "/home/somebody", False),
        ("sqlite+pysqlite:///{}/m.db", "http://x.example/1", False),
    ],
)
def test_an_experiment_of_a_planted_store_takes_no_model_elsewhere(place, location, stays, tmp_path, monkeypatch):
    """An MLflow store on disk names for each experiment where its files go: config, model, report."""
    place, location = place.format(tmp_path), location.format(tmp_path)
    client = stored(location, monkeypatch)
    run = read_run(write_run(tmp_path / "a", closing=[0.5, 0.6]))
    tracker = mlflow_tracker.make(place, "--mlflow")
    if stays:
        assert tracker.log("sepal", [run]) == 1
        return
    with pytest.raises(ConfigError, match="an experiment whose files stay in it"):
        tracker.log("sepal", [run])
    assert not client.create_run.called
    assert not client.log_artifact.called


@pytest.mark.parametrize("existing", [True, False], ids=["an experiment that is there", "a new one"])
@pytest.mark.parametrize("of_run", ["http://x.example/1", "s3://bucket/1", "/home/somebody", "{}/planted"])
def test_a_run_in_a_planted_store_takes_no_model_elsewhere(of_run, existing, tmp_path, monkeypatch):
    """A trigger of an SQLite file changes where the files of a run go, once its experiment was looked at."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "planted" / "config.toml").symlink_to(tmp_path / "mine")
    client = stored(str(tmp_path / "mlruns"), monkeypatch, of_run.format(tmp_path))
    if not existing:
        client.get_experiment_by_name.return_value = None
    tracker = mlflow_tracker.make(f"sqlite:///{tmp_path}/m.db", "--mlflow")
    with pytest.raises(ConfigError, match=r"files stay in it|in which there is nothing"):
        tracker.log("sepal", [read_run(write_run(tmp_path / "a", closing=[0.5, 0.6]))])
    assert not client.log_artifact.called
    assert (tmp_path / "mine").read_text() == "mine"


def test_files_of_a_run_go_where_its_store_says(tmp_path, monkeypatch):
    client = stored(str(tmp_path / "mlruns" / "1"), monkeypatch)
    tracker = mlflow_tracker.make(f"sqlite:///{tmp_path}/m.db", "--mlflow")
    assert tracker.log("sepal", [read_run(write_run(tmp_path / "a", closing=[0.5, 0.6]))]) == 1
    assert not client.log_artifact.called
    names = {path.name for path in (tmp_path / "mlruns" / "1" / "2" / "artifacts").iterdir()}
    assert {"config.toml", "summary.json", "metrics.jsonl"} <= names

"""Runs in MLflow, in a store of files on this machine; where MLflow is absent, one line says what to install."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from referee.paper.__main__ import parser
from sepal.cli import tracking
from sepal.cli.main import app
from sepal.errors import ConfigError
from tests.sepal.cli.runs_for_tests import write_run

KEYS = ["dataset=digits", "method=fedavg", "clients=2", "rounds=2", "partition.subsample=60", "evaluate-every=1"]


def sepal(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def client(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    return lambda: mlflow.tracking.MlflowClient(f"file://{tmp_path}/mlflow")  # once Sepal has written there


def logged(client, experiment):
    client = client()
    stored_experiment = client.get_experiment_by_name(experiment)
    return client.search_runs([stored_experiment.experiment_id]) if stored_experiment else []


def test_a_run_has_its_keys_figures_report_and_model_once(client, tmp_path):
    uri = f"file://{tmp_path}/mlflow"
    arguments = ["run", "--name", "first", "--out", tmp_path / "runs", "--mlflow", uri]
    for key in KEYS:
        arguments += ["--set", key]
    for _ in range(2):  # the second time it is complete already
        result = sepal(*arguments)
        assert result.exit_code == 0, result.output
    (run,) = logged(client, "sepal")
    assert run.info.status == "FINISHED"
    assert (run.info.run_name, run.data.params["method"], run.data.params["rounds"]) == ("first", "fedavg", "2")
    client = client()
    series = client.get_metric_history(run.info.run_id, "accuracy/received/mean")
    lines = [json.loads(line) for line in (tmp_path / "runs" / "first" / "metrics.jsonl").read_text().splitlines()]
    expected = [(line["round"], line["accuracy"]["received"]["mean"]) for line in lines if line["accuracy"]["received"]]
    assert sorted((metric.step, metric.value) for metric in series) == expected
    artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert artifacts >= {"config.toml", "summary.json", "metrics.jsonl", "report.html", "model"}
    (model,) = client.list_artifacts(run.info.run_id, "model")
    assert model.path == "model/round-000003.safetensors"


def test_incomplete_runs_are_left_out(client, tmp_path):
    whole = write_run(tmp_path / "a", closing=[0.5, 0.6])
    begun = write_run(tmp_path / "b")
    (begun / "summary.json").unlink(missing_ok=True)
    assert tracking.log_runs(f"file://{tmp_path}/mlflow", "plan", [whole, begun, tmp_path / "none"]).startswith(
        "1 runs"
    )
    assert [run.info.run_name for run in logged(client, "plan")] == ["a"]


def test_a_store_that_cannot_be_written_is_named(client, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--mlflow: expected a tracking URI that takes runs"):
        tracking.log_runs(f"file://{tmp_path}/file", "plan", [])


@pytest.mark.parametrize("command", [["run"], ["compare", "plan.toml"]])
def test_without_mlflow_one_line_says_what_to_install_before_anything_runs(command, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    result = sepal(*command, "--mlflow", "file:///nowhere")
    assert result.exit_code == 2
    assert (
        result.stderr.strip() == "sepal: --mlflow: expected MLflow: pip install 'mlflow-skinny>=3', got no such package"
    )


def test_paper_takes_it_too():
    assert parser().parse_args(["fedpse", "--mlflow", "http://localhost:5000"]).mlflow == "http://localhost:5000"

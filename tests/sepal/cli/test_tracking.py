"""Runs in MLflow, TensorBoard and Weights & Biases, on this machine; an absent one is named with what installs it."""

from __future__ import annotations

import json
import socket

import pytest
from typer.testing import CliRunner

from referee.paper.__main__ import parser
from sepal.cli import trackers
from sepal.cli.main import app
from sepal.cli.trackers.wandb import nameless
from sepal.errors import ConfigError
from sepal.report.files import by_round
from sepal.runs.stored_run import read_run
from tests.attacks.looking import changed
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
    tracker = trackers.tracker_of(f"mlflow=file://{tmp_path}/mlflow")
    (line,) = trackers.log_runs([tracker], "plan", [whole, begun, tmp_path / "none"])
    assert line.startswith("1 runs")
    assert [run.info.run_name for run in logged(client, "plan")] == ["a"]


def test_a_store_that_cannot_be_written_is_named(client, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--mlflow: expected a tracking URI that takes runs"):
        list(trackers.log_runs(trackers.trackers_of((), f"file://{tmp_path}/file"), "plan", []))


@pytest.mark.parametrize("command", [["run"], ["compare", "plan.toml"]])
def test_without_mlflow_one_line_says_what_to_install_before_anything_runs(command, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    result = sepal(*command, "--mlflow", "file:///nowhere")
    assert result.exit_code == 2
    assert (
        result.stderr.strip() == "sepal: --mlflow: expected MLflow: pip install 'mlflow-skinny>=3', got no such package"
    )


def test_paper_takes_it_too():
    assert parser().parse_args(["fedpse", "--mlflow", "http://localhost:5000"]).mlflow == "http://localhost:5000"


@pytest.mark.parametrize(("kind", "name"), [("wandb", "Weights & Biases"), ("tensorboard", "TensorBoard")])
def test_another_tracker_that_is_not_there_is_named_before_anything_runs(kind, name, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda package: None)
    done = sepal("run", "--tracker", kind)
    assert (done.exit_code, "got no such package" in done.stderr) == (2, True)
    assert f"--tracker: expected {name}: pip install" in done.stderr
    assert "--tracker: expected mlflow, tensorboard, wandb, or one of" in sepal("run", "--tracker", "comet").stderr


def test_tensorboard_gets_a_directory_for_each_run_once_and_again_after_a_cut(tmp_path):
    pytest.importorskip("tensorboard")
    runs = [write_run(tmp_path / name) for name in "ab"]
    tracker = trackers.tracker_of(f"tensorboard={tmp_path}/board")
    assert [next(trackers.log_runs([tracker], "plan", runs))[:6] for _ in range(2)] == ["2 runs", "0 runs"]
    (mark,) = (tmp_path / "board/plan/a").glob(".logged*")
    mark.unlink()
    assert next(trackers.log_runs([tracker], "plan", runs)).startswith("1 runs")
    assert len(list((tmp_path / "board/plan/a").glob("events*"))) == 1, "the events of before are gone"


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The real client of Weights & Biases; a connection to anywhere but its own process on this machine is an error."""
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "WANDB_BASE_URL"):  # if it sent anything, it would come to this port
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    return tmp_path


def records(directory):
    """What an offline run holds. Its file is a log of LevelDB: blocks of 32 KiB; length and kind before each part."""
    from wandb.proto import wandb_internal_pb2

    (file,) = directory.glob("*.wandb")
    content, place, whole = file.read_bytes(), 7, b""  # the client's own header
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@pytest.mark.parametrize("name", ["client-00000", "st.-mary", "a_b"])
def test_wandb_gets_no_figure_that_is_of_one_client(name, tmp_path):
    """DM-PFL and FedPSE name figures by clients."""
    run = write_run(tmp_path / "a")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["clients"][0]["name"] = name
        line["method"] = {f"overlap.{name}": 0.5, f"distance/{name}": 0.5, "overlap": 0.25}
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rows = list(nameless(read_run(run)))
    assert [key for row in rows for key in row if name in key] == []
    assert {row["method/overlap"] for row in rows} == {0.25}
    assert [set(row) for row in rows] == [{key for key in row if name not in key} for row in by_round(read_run(run))], (
        "nothing else is left out"
    )


def test_wandb_has_the_figures_offline_once_and_nothing_of_the_machine(offline):
    run = write_run(offline / "a")
    changed(run, **{"data-dir": "/home/somebody/data"})
    tracker = trackers.tracker_of(f"wandb={offline}/board")
    assert [next(trackers.log_runs([tracker], "plan", [run]))[:6] for _ in range(2)] == ["1 runs", "0 runs"]
    (directory,) = (offline / "board" / "wandb").glob("offline-run-*")
    stored = list(records(directory))
    values = {}
    for record in stored:
        if record.WhichOneof("record_type") == "history":
            row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            values[row["_step"]] = row["accuracy/received/mean"]
    assert values == {row["round"]: row["accuracy/received/mean"] for row in by_round(read_run(run))}
    sent = [*directory.glob("*.wandb"), *(path for path in (directory / "files").rglob("*") if path.is_file())]
    everything = b"".join(path.read_bytes() for path in sent)
    assert b"partition.alpha" in everything
    for private in ("client-0", "somebody", socket.gethostname(), str(offline)):
        assert private.encode() not in everything, private
    (directory / "logged-by-sepal").unlink()  # it was cut off
    assert next(trackers.log_runs([tracker], "plan", [run])).startswith("1 runs")
    assert len(list((offline / "board" / "wandb").glob("offline-run-*"))) == 1

"""A run that is no better than the most frequent label gets a warning, wherever it is shown."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.data import ClientData, Examples
from sepal.report.page import live_parts
from sepal.report.text_tables import remarks
from sepal.study.comparison import read_comparison
from sepal.study.majority import error_of_the_mean, majority, note, warning
from tests.sepal.cli.runs_for_tests import write_run


class Data:
    """Two clients: always answering 1 is right in half of the test data of the first, and in all of the second."""

    def client(self, number, clients, name):
        labels = [([1, 1, 0], [1, 2]), ([1, 0, 1], [1, 1, 1])][number]
        train, test = (Examples(np.zeros((len(y), 1), np.float32), np.array(y, np.int64)) for y in labels)
        return ClientData(train, train, test)


ASSEMBLY = SimpleNamespace(data=Data(), setup=SimpleNamespace(config=SimpleNamespace(clients=2)))


def test_the_mean_over_clients_of_the_most_frequent_labels_share():
    assert majority(Data(), 2) == 0.75


@pytest.mark.parametrize(("mean", "warned"), [(0.74, True), (0.75, True), (0.76, False)])
def test_runs_that_are_no_better_are_warned_of(mean, warned):
    runs = [
        {"accuracy": {"kept": {"mean": mean + x}, "received": {"mean": 0.1}}, "majority": 0.75} for x in (-0.1, 0.1)
    ]
    words = warning([*runs, {"accuracy": {"kept": {"mean": 0.0}}}], "kept", 0.2)
    assert bool(words) == warned
    if warned:
        assert words.startswith(f"{100 * mean:.1f} % (kept) is not above 75.0 %")
        assert words.endswith(
            "the lr of 0.2 may be too small or too large, the rounds too few, or clients too different for one model; "
            "`sepal tune` tries several rates"
        )
    assert not warning([{"accuracy": {"kept": None}, "majority": 0.75}, {}], "kept", 0.2)


class Numbers:
    """Two clients: the mean of the training targets is 1 off for the first, and 3 off for the second."""

    def client(self, number, clients, name):
        train, test = [([1.0, 3.0], [1.0, 3.0]), ([0.0, 4.0], [5.0, -1.0])][number]
        parts = [Examples(np.zeros((2, 1), np.float32), np.array(y, np.float32)) for y in (train, test)]
        return ClientData(parts[0], parts[0], parts[1])


def test_the_error_of_the_mean_of_the_training_targets():
    assert error_of_the_mean(Numbers(), 2) == 2.0


@pytest.mark.parametrize(("mean", "warned"), [(2.1, True), (2.0, True), (1.9, False)])
def test_a_regression_that_is_no_better_than_the_mean_is_warned_of(mean, warned, tmp_path):
    assembly = SimpleNamespace(
        data=Numbers(), setup=SimpleNamespace(config=SimpleNamespace(clients=2, task="regression"))
    )
    summary = {"headline": {"kept": {"mean": mean}}, "metric": {"name": "rmse", "unit": "mmHg", "higher": False}}
    note(tmp_path, summary, assembly)
    noted = json.loads((tmp_path / "summary.json").read_text())
    assert noted["error_of_the_mean"] == 2.0
    words = warning([noted, summary], "kept", 0.2)
    assert bool(words) == warned
    if warned:
        assert words.startswith(
            f"rmse {mean:.4g} mmHg (kept) is not below 2 mmHg, that of always predicting the mean of"
        )
    by_mae = {**summary, "metric": {"name": "mae", "unit": "", "higher": False}}
    (tmp_path / "summary.json").unlink()
    note(tmp_path, by_mae, assembly)
    assert not (tmp_path / "summary.json").exists()
    assert not warning([by_mae], "kept", 0.2)


def test_show_and_reports_say_it_of_a_run_that_has_ended(tmp_path):
    """FedAvg deploys received models, which have 60 %."""
    run = write_run(tmp_path / "flat")

    def shown():
        return CliRunner().invoke(app, ["show", str(run)]).stdout

    assert "is not above" not in shown()
    note(run, json.loads((run / "summary.json").read_text()), ASSEMBLY)
    words = "60.0 % (received) is not above 75.0 %"
    assert f"Warning: {words}" in shown()
    comparison = read_comparison([str(run)])
    assert any(line.startswith(f"fedavg: {words}") for line in remarks(comparison, ""))
    assert any("<code>sepal tune</code>" in part for part in live_parts(comparison)["overview"].splitlines())


def test_a_run_in_process_notes_it(tmp_path):
    from sepal.runs.stored_run import stored_summary
    from sepal.study.run import execute, prepare

    keys = {"method": "local", "dataset": "digits", "clients": 2, "rounds": 1, "lr": 1e-9, "out": str(tmp_path)}
    prepared = prepare({**keys, "partition.subsample": 200, "name": "a"}, tmp_path)
    assert execute(prepared, workers=1)
    summary = stored_summary(prepared.path)
    assert 0 < summary["majority"] == majority(prepared.assembly.data, 2) < 1

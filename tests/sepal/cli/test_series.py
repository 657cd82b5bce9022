"""A run's figures by round as CSV and for TensorBoard."""

from __future__ import annotations

import csv
import sys

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.report.files import by_round
from sepal.runs.stored_run import read_run
from tests.sepal.cli.runs_for_tests import write_run


def test_a_line_a_round_with_every_figure(tmp_path):
    run = write_run(tmp_path / "a", full=[0.2, 0.4], closing=[0.5, 0.6, 0.7])
    result = CliRunner().invoke(app, ["show", str(run), "--csv", str(tmp_path / "a.csv")])
    assert result.exit_code == 0, result.output
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    assert float(rows[2]["accuracy/trained/mean"]) == pytest.approx(0.6)
    assert [row["bytes/up"] for row in rows] == ["300", "600", "600"]
    assert [row.keys() >= {"validation/received/mean", "seconds/total"} for row in rows] == [True] * 3
    assert "accuracy/pooled/mean" not in rows[0]


def test_tensorboard_gets_the_same_scalars(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_run(tmp_path / "a")
    result = CliRunner().invoke(app, ["show", str(run), "--tensorboard", str(tmp_path / "events")])
    assert result.exit_code == 0, result.output
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    scalars = [(event.step, event.value) for event in events.Scalars("accuracy/trained/mean")]
    assert scalars == [(row["round"], pytest.approx(row["accuracy/trained/mean"])) for row in by_round(read_run(run))]


def test_without_tensorboard_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = CliRunner().invoke(app, ["show", str(write_run(tmp_path / "a")), "--tensorboard", str(tmp_path / "b")])
    assert result.exit_code == 2
    assert "pip install tensorboard" in result.stderr

"""Simulated hours in the terminal, files, report and Python; ``tests/sepal/study`` has them by hand."""

from __future__ import annotations

import csv
import json
import re

import pytest
from typer.testing import CliRunner

import sepal
from sepal.cli.main import app
from sepal.errors import ConfigError
from sepal.report.charts import figures
from sepal.report.data import datasets
from sepal.report.simulated import simulated_words, speed_table
from sepal.study.comparison import read_comparison
from tests.sepal.cli.runs_for_tests import write_run

PROFILE = "name = 'slow'\nspeed.median = 1e3\ndown.median = 1e3\nup.median = 1e3\nmemory.median = 1e9\n"
HOURS = 2 * (8 * 150 / 1e3 + 1.0) / 3600  # of two rounds: 1000 multiply-adds, 50 bytes down and 100 up


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.toml").write_text(PROFILE)
    (tmp_path / "both").mkdir()
    return [str(write_run(tmp_path / "both" / method, method=method, kept=True)) for method in ("fedavg", "local")]


def test_commands_show_the_hours_of_a_profile_and_none_without(runs, tmp_path):
    def output(*words):
        result = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert result.exit_code == 0
        return re.sub(r"\s+", " ", result.output)

    assert "simulated" not in output("show", runs[0])
    refused = CliRunner().invoke(app, ["show", runs[0], "--devices", "nosuch"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    shown = output("show", runs[1], "--devices", "slow.toml")
    assert f"local: simulated hours to 57 % (trained): {HOURS + 1.4 / 3600:.4f}; to the end: {HOURS:.4f}" in shown
    both = output("show", "both", "--all", "--devices", "slow.toml", "--csv", str(tmp_path / "rows.csv"))
    assert "Simulated hours, by slow: speed 1e-06 G multiply-adds/s;" in both
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [row["devices"] for row in rows] == ["slow", "slow"]
    assert float(rows[1]["simulated_hours"]) == pytest.approx(HOURS)
    output("report", "both", "--devices", "slow.toml", "--out", str(tmp_path / "page.html"))
    assert "Accuracy against simulated hours" in (tmp_path / "page.html").read_text()


def test_the_chart_has_every_evaluation_and_says_that_it_is_simulated(runs):
    comparison = read_comparison(runs, devices="phones")
    data = datasets(comparison)
    rows = [row for row in data["simulated"] if row["label"] == "local" and row["view"] == "kept"]
    assert [row["mean"] for row in rows] == [20.0, 40.0, 60.0]
    assert all(row["early"] < row["hours"] < row["later"] for row in rows[1:]), "five draws"
    figure = next(figure for figure in figures(comparison, data) if figure.name == "simulated")
    assert figure.title == "Accuracy against simulated hours"
    assert "Simulated, not measured" in figure.reading
    assert (
        "phones: speed 1 G multiply-adds/s (log-normal, σ 0.6); down 35 Mbit/s (log-normal, σ 0.47)" in figure.reading
    )
    assert "simulated hours" in json.dumps(figure.chart)
    assert "simulated" not in datasets(read_comparison(runs))


def test_clients_are_shown_in_thirds_of_their_devices_and_those_without_room_named(runs, tmp_path):
    lines = ["name = 'three'", "speed.median = 1e3", "down.median = 1e6", "up.median = 1e6", "memory.median = 199.0e3"]
    for number, speed in enumerate((3e3, 1e3, 2e3)):  # accuracies .5, .6, .7
        lines.append(f"[clients.client-0000{number}]\nspeed = {speed}")
    (tmp_path / "three.toml").write_text("\n".join(lines))
    comparison = read_comparison(runs[:1], devices="three.toml")
    table = speed_table(comparison.variants(""))
    assert table.rows == [["fedavg", "50.0", "33", "70.0", "33", "60.0", "33"]]
    assert list(simulated_words(comparison.variants("")))[1:] == []
    rows = [json.loads(line) for line in (tmp_path / "both/fedavg/ledger.jsonl").read_text().splitlines()]
    text = "".join(f"{json.dumps({**row, 'dense': 100_000})}\n" for row in rows)
    (tmp_path / "both/fedavg/ledger.jsonl").write_text(text)
    words = list(simulated_words(read_comparison(runs[:1], devices="three.toml").variants("")))
    assert words[1].startswith("fedavg: 3 clients have less memory than weights and gradients of the whole model take")


def test_python_has_the_hours_and_the_report(runs):
    frame = sepal.load(runs[1]).hours("slow.toml")
    assert list(frame.columns) == ["draw", "round", "view", "hours", "accuracy"]
    kept = frame[frame.view == "kept"]
    assert list(kept.hours) == pytest.approx([0.0, HOURS / 2, HOURS])
    assert list(kept.accuracy) == pytest.approx([0.2, 0.4, 0.6])
    assert set(sepal.load(runs[1]).hours("phones").draw) == {0, 1, 2, 3, 4}
    both = sepal.api.Compared(sepal.load(runs[1]).path.parent).hours("slow.toml")
    assert list(both.name.unique()) == ["fedavg", "local"]
    assert "simulated" in sepal.load(runs[1]).plot(devices="phones")._repr_html_()
    with pytest.raises(ConfigError, match="devices: expected a profile, which these runs have not"):
        sepal.load(runs[1]).hours()

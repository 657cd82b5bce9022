"""Which of a method's models a figure shows: its own deployed ones when the page is opened; and how rounds count."""

from __future__ import annotations

import json

import pytest

from tests.sepal.cli.runs_for_tests import figures, write_run

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal.report.charts import figures as charts
from sepal.report.data import datasets, first_shown
from sepal.report.marks import CLIENTS, client_axis
from sepal.report.page import render
from sepal.study.comparison import read_comparison
from tests.sepal.cli.test_report_figures import in_browser, look


def better_trained(run, *, full=True):
    """Let the run's trained models have 90 %; without ``full``, its last line but one is of a single client."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["accuracy"]["trained"] = figures([0.9] * 3)
        line["clients"] = [{**client, "trained": 0.9} for client in line["clients"]]
    if not full:
        lines = [*lines[:-2], {**lines[-2], "full": False, "clients": lines[-2]["clients"][:1]}]
        (run / "summary.json").unlink()
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


@pytest.fixture
def beside(tmp_path):
    """Ditto deploys kept models, FedAvg-FT trained ones, Local kept ones; kept ones have 60 %, trained ones 90 %."""
    for method in ("ditto", "fedavg-ft", "local"):
        shift = method != "local"
        better_trained(write_run(tmp_path / method, method=method, kept=True, closing=[0.6] * 3, shift=shift))
    return read_comparison([str(tmp_path)])


def test_every_client_is_shown_beside_the_yardsticks_own_deployed_models(beside):
    rows = datasets(beside)["clients"]
    opened = first_shown(beside, rows)
    assert {row["label"]: row["accuracy"] for row in opened} == {"ditto": 60, "fedavg-ft": 90, "local": 60}
    assert [row["beside"] for row in opened if row["label"] == "ditto"] == [[["fedavg-ft", 90], ["local", 60]]] * 3
    own_rows = [row["beside"] for row in rows if row["label"] == "ditto" and row["view"] == "kept"]
    assert own_rows == [[["fedavg-ft", 60], ["local", 60]]] * 3


def test_where_one_method_was_not_evaluated_so_its_trained_models_stand_in(beside, tmp_path):
    """Both runs have trained models under shift; Ditto has kept ones, too, and deploys these."""
    run = tmp_path / "ditto"
    summary = json.loads((run / "summary.json").read_text())
    summary["further"] |= {"kept-shift-100": figures([0.3])}
    (run / "summary.json").write_text(json.dumps(summary))
    comparison = read_comparison([str(tmp_path)])
    data = datasets(comparison)
    shifted = {(row["label"], row["mean"]) for row in data["shift"] if row["view"] == "kept" and row["shift"] == 100}
    assert shifted == {("ditto", 30), ("fedavg-ft", 60)}
    (shift,) = (chart for chart in charts(comparison, data) if chart.name == "shift")
    assert shift.words.endswith("deployed models under full shift: ditto 30.0 %; fedavg-ft 60.0 %.")


def test_a_live_page_has_capacities_of_clients_that_the_last_round_did_not_draw(tmp_path):
    run = better_trained(write_run(tmp_path / "a", capacities=[0.2, 0.5, 1.0]), full=False)
    rows = datasets(read_comparison([str(run)]))["capacity"]
    assert {row["capacity"] for row in rows} == {20, 50, 100}


def test_a_curve_counts_rounds_as_they_were_set_and_the_closing_evaluation_after_the_last(tmp_path):
    """`sepal show` has rounds 1, 2 and closing."""
    comparison = read_comparison([str(write_run(tmp_path / "a"))])
    data = datasets(comparison)
    curve = [row for row in data["curve"] if row["view"] == "trained"]
    assert [(row["round"], row["at"], row["last"]) for row in curve] == [
        (1, "round 1", False),
        (2, "round 2", False),
        (2, "closing, after round 2", True),
    ]
    (by_round,) = (chart for chart in charts(comparison, data) if chart.name == "round")
    assert "ends at 60.0 % after 2 rounds" in by_round.words
    assert "The last point is the closing evaluation, after the last round." in by_round.reading


def test_the_words_say_why_points_of_fine_tuned_models_lie_off_their_line(tmp_path):
    for method in ("fedavg-ft", "fedavg"):
        run = write_run(tmp_path / method, method=method)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        lines[0]["full"] = lines[1]["full"] = False
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    comparison = read_comparison([str(tmp_path)])
    (by_round,) = (chart for chart in charts(comparison, datasets(comparison)) if chart.name == "round")
    assert "Trained, of fedavg-ft: points are fine-tuned as for a user, thin lines trained as" in by_round.reading


# who is who


@in_browser
def test_few_clients_are_named_on_the_axis_and_numbered_ones_by_their_number(tmp_path):
    run = write_run(tmp_path / "a", closing=[0.7, 0.5, 0.6, 0.8])
    for file in ("metrics.jsonl", "ledger.jsonl"):
        (run / file).write_text((run / file).read_text().replace("client-00003", "clinic-north"))
    script = """
    const words = (name) => all(`#chart-${name} .role-axis-label text`).map((each) => each.textContent);
    found.clients = words("clients").slice(0, 4);
    found.bytes = words("bytes").slice(0, 4);
    """
    measured = look(render(read_comparison([str(run)])), script, tmp_path)
    assert measured["clients"] == ["1", "2", "0", "clinic-north"], "the worst first"
    assert sorted(measured["bytes"]) == ["0", "1", "2", "clinic-north"]


def test_many_clients_are_named_in_tooltips_alone():
    few, many = ([f"client-{number:05}" for number in range(count)] for count in (CLIENTS, CLIENTS + 1))
    assert "labels" not in client_axis(few).to_dict()
    assert client_axis(many).to_dict() == {"labels": False, "ticks": False}

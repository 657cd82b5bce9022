"""What tells nothing is not drawn: a heat map of one value, an axis far beyond its tree, figures that never change."""

from __future__ import annotations

import pytest

from sepal.study.comparison import read_comparison
from tests.sepal.cli.runs_for_tests import write_run
from tests.sepal.cli.test_report_figures import in_browser, look

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal.report import charts, page
from sepal.report.data import _changing
from sepal.report.page import render


def pairs(label, share):
    names = ("client-00000", "client-00001", "client-00002")
    return [
        {"cell": "", "label": label, "one": first, "other": second, "similarity": share(first, second), "labels": 50.0}
        for first in names
        for second in names
    ]


@pytest.fixture
def two(tmp_path):
    write_run(tmp_path / "a", method="fedavg")
    write_run(tmp_path / "d", method="ditto")
    return read_comparison([str(tmp_path)])


def test_masks_that_are_all_alike_are_a_sentence_and_no_figure(two):
    alike = pairs("fedavg", lambda first, second: 100.0)
    varied = pairs("ditto", lambda first, second: 100.0 if first == second else float(int(first[-1]) + int(second[-1])))
    for name in ("masks", "similar"):
        (masks_figure,) = (figure for figure in charts.figures(two, {"masks": alike}) if figure.name == name)
        assert masks_figure.chart == {}
        assert masks_figure.words == "All clients have the same: fedavg 100 %."
        (masks_figure,) = (figure for figure in charts.figures(two, {"masks": alike + varied}) if figure.name == name)
        assert masks_figure.chart
        assert masks_figure.reading.endswith("Not drawn, as all clients have the same: fedavg 100 %.")


def tree(label, height):
    link = [(0.0, 0.0), (height, 0.0), (height, 1.0), (0.0, 1.0)]
    rows = [{"kind": "link", "link": 0, "step": n, "distance": d, "place": p} for n, (d, p) in enumerate(link)]
    rows += [{"kind": "leaf", "distance": 0.0, "place": p, "client": "c", "words": f"leaf {p:g}"} for p in (0.0, 1.0)]
    return [{"cell": "", "label": label, **row} for row in rows]


@in_browser
def test_the_axis_of_a_tree_ends_where_the_tree_does(two, tmp_path, monkeypatch):
    """Two trees, one below 1 and one up to 15: each has an axis of its own."""
    rows = tree("fedavg", 0.8) + tree("ditto", 15.0)
    plain = page.datasets
    monkeypatch.setattr(page, "datasets", lambda comparison: {**plain(comparison), "tree": rows})
    script = """
    const numbers = () => all("#chart-tree text").map((each) => parseFloat(each.textContent));
    const ticks = () => numbers().filter((each) => !isNaN(each));
    found.first = Math.max(...ticks());
    document.querySelector('[name="label"]').value = "ditto";
    document.querySelector(".controls").dispatchEvent(new Event("change"));
    await later();
    found.second = Math.max(...ticks());
    """
    measured = look(render(two), script, tmp_path)
    assert 0.5 <= measured["first"] <= 0.8
    assert 10 <= measured["second"] <= 15


def test_figures_that_never_change_are_left_out():
    rows = [
        {"figure": name, "round": n, "value": n * by} for name, by in (("same", 0.0), ("grows", 1.0)) for n in (1, 2)
    ]
    assert {row["figure"] for row in _changing(rows)} == {"grows"}
    assert {row["figure"] for row in _changing(rows[:1])} == {"same"}

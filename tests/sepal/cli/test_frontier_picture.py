"""The picture of the frontier: its line goes where it should, names are apart, colours follow a theme or the reader."""

from __future__ import annotations

import itertools
import re

import pytest

from sepal.study.frontier import FrontierEntry, frontier

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal.cli.comparing import _write_pages
from sepal.report.frontier import HEIGHT, WIDTH, Panels, picture
from sepal.report.frontier_rows import standing_rows
from sepal.report.markdown import write_markdown
from sepal.report.page import write_picture
from sepal.study.comparison import read_comparison
from sepal.tasks.scoring import ACCURACY
from tests.sepal.cli.runs_for_tests import write_run

LABEL = re.compile(r'<text aria-label="place[^>]*translate\(\d+,([-\d.]+)\)[^>]*font-weight="(\w+)"[^>]*>([^<]*)')
STAIRS = re.compile(r'aria-roledescription="line mark" d="([^"]*)" stroke="#59636e"')


def four(most):
    """Local, two on the frontier of which the dearer has ``most`` MB, and one as dear that has less."""
    values = {"local": (0, 0.5), "a": (1, 0.6), "b": (most, 0.7), "c": (most, 0.65)}
    return frontier([FrontierEntry(label, megabytes, {0: value}) for label, (megabytes, value) in values.items()])


def test_the_line_is_a_step_from_local_to_the_right_edge():
    """Values of .5 to .7 are 300 to 0 pixels. MB from 1/1.25 to 12.5 × 1.25: ln 1.25 / ln 19.53 of the width, .0751."""
    drawing = picture(Panels({"x": four(12.5)}), "light")
    corners = [tuple(map(float, corner.split(","))) for corner in re.split("[ML]", STAIRS.search(drawing)[1])[1:]]
    first, last = WIDTH * 0.0751, WIDTH * (1 - 0.0751)
    expected = [(0, HEIGHT), (first, HEIGHT), (first, 150), (last, 150), (last, 0), (WIDTH, 0), (WIDTH, 0)]
    assert [pytest.approx(point, abs=0.1) for point in expected] == corners
    assert {name: weight for _, weight, name in LABEL.findall(drawing)} == {
        **dict.fromkeys(("local", "a", "b"), "bold"),
        "c": "normal",
    }


def test_an_axis_is_logarithmic_from_more_than_ten_times():
    """On one from 0 to 12.5 MB, 1 MB is at 8 % of the width."""
    corners = STAIRS.search(picture(Panels({"x": four(10)}), "light"))[1]
    assert corners.startswith(f"M0,300L{WIDTH * 0.08},300L")
    rows = [row["x"] for row in standing_rows(four(10), ACCURACY, wide=False)]
    assert rows == [0, 1, 10, 10, 12.5]
    assert next(standing_rows(four(10), ACCURACY, wide=True))["x"] == 0.8


def test_a_long_name_is_whole():
    """In the report, whose tooltips have the rest, names are cut at 17 letters; this one has 21."""
    name = "fedavg-ft-stc-untuned"
    assert f">{name}<" in picture(
        Panels({"x": frontier([FrontierEntry(name, 1, {0: 0.5}), FrontierEntry("b", 2, {0: 0.6})])})
    )


def test_thirteen_names_are_apart_in_every_panel():
    names = [f"method-{number}" for number in range(13)]
    close = [FrontierEntry(name, 10, {0: 0.9 + rank / 1e4, 1: 0.9}) for rank, name in enumerate(names)]
    apart = [FrontierEntry(name, rank, {0: 0.9 - rank / 100, 1: 0.9}) for rank, name in enumerate(names)]
    drawing = picture(Panels({"close": frontier(close), "apart": frontier(apart)}), "dark")
    assert 'fill="#6cb2ee"' in drawing, "dark"
    assert "var(" not in drawing
    labels = LABEL.findall(drawing)
    assert sorted(name for _, _, name in labels) == sorted(2 * names)
    panels = drawing.split('concat_1_group"')
    for panel in panels:
        tops = sorted(float(top) for top, _, _ in LABEL.findall(panel))
        assert len(tops) == 13
        assert all(below - above > 10 for above, below in itertools.pairwise(tops))


def test_bars_are_a_standard_deviation_or_what_is_given():
    by_seeds = FrontierEntry("a", 1, {0: 0.5, 1: 0.7})  # .6 ± .1414
    with_interval = FrontierEntry("b", 2, {0: 0.8}, interval=(0.7, 0.85))
    rows = [
        (row["low"], row["high"]) for row in standing_rows(frontier([by_seeds, with_interval]), ACCURACY, wide=False)
    ]
    assert rows == [(45.86, 74.14), (70.0, 85.0), (70.0, 85.0)]


def test_a_comparison_has_the_picture_beside_its_report_and_a_run_alone_none(tmp_path):
    for method in ("fedavg", "local"):
        write_run(tmp_path / "both" / method, method=method, kept=True)
    both = read_comparison([str(tmp_path / "both")])
    pages = _write_pages(both, tmp_path / "both", "")
    assert [page.name for page in pages] == ["report.html", "frontier.svg"]
    assert "\n![The frontier](frontier.svg)\n" in write_markdown(both, tmp_path / "tables.md", pages).read_text()
    drawing = pages[1].read_text()
    assert len(LABEL.findall(drawing)) == 2
    assert 'fill="var(--c0)"' in drawing, "the reader's theme"
    assert all(f"--c0: {colour}" in drawing for colour in ("#0b62a8", "#6cb2ee"))
    alone = read_comparison([str(write_run(tmp_path / "alone"))])
    assert write_picture(alone, tmp_path / "none.svg") is None
    assert not (tmp_path / "none.svg").exists()

"""``sepal watch --web``: its address, its browser, its end; and how far a run is."""

from __future__ import annotations

import os
import webbrowser

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.study.comparison import read_comparison
from tests.sepal.cli.runs_for_tests import write_run
from tests.sepal.cli.test_report_figures import stretch

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal.report.live import ReportServer
from sepal.report.state import progress, state


@pytest.mark.parametrize(("screen", "opened"), [(":0", True), ("", False)])
def test_the_address_is_printed_and_opened_where_there_is_a_screen(tmp_path, monkeypatch, screen, opened):
    addresses = []
    monkeypatch.setattr(webbrowser, "open", lambda url: addresses.append(url) or True)
    monkeypatch.setattr(ReportServer, "serve_forever", lambda server: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    result = CliRunner().invoke(app, ["watch", "--web", "--web-port", "0", str(write_run(tmp_path / "a"))])
    assert result.exit_code == 0, result.output  # Ctrl-C is how a page ends
    address, how, *rest = result.stdout.splitlines()
    assert address.startswith("http://127.0.0.1:")
    assert how == "Ctrl-C ends the page, not the run."
    assert rest == ["opened in the browser"] * opened
    assert addresses == [address] * opened


def test_a_run_says_its_round_the_time_left_and_its_clients(tmp_path):
    """A round takes 1.5 s; 28 of 40 and the closing one are left; 2 of 3 clients were in the last."""
    run = stretch(write_run(tmp_path / "a"), rounds=40, every=10, done=12)
    (result,) = read_comparison([str(run)]).results
    written = os.stat(run / "metrics.jsonl").st_mtime
    words = "running, round 12 of 40, about 44 s left, 2 of 3 clients present in the last round"
    assert progress(result, written + 1) == words
    assert progress(result, written + 600).startswith(
        "no round for 10 min: perhaps it was stopped, round 12 of 40, 2 of"
    )


def test_the_state_of_a_comparison_counts_what_has_ended(tmp_path):
    write_run(tmp_path / "a")
    stretch(write_run(tmp_path / "b", method="ditto"), rounds=40, every=10, done=12)
    ended, (words, going) = state(read_comparison([str(tmp_path)]))
    assert ended == ("1 of 2 runs have ended.", False)
    assert words.startswith("ditto, seed 0: running, round 12 of 40")
    assert going


def test_a_run_that_begins_says_when_its_line_and_its_first_point_come(tmp_path):
    run = stretch(write_run(tmp_path / "a"), rounds=40, every=10, done=12)
    (run / "metrics.jsonl").write_text("")
    ((words, _),) = state(read_comparison([str(run)]))
    assert "round 0 of 40; the line begins when round 1 ends." in words
    assert "first point comes in round 10 (evaluate-every = 10)" in words

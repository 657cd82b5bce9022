"""report.html: every figure with title, units and a text alternative; in a browser, without console errors."""

from __future__ import annotations

import html
import http.client
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.cli.running import run_flat
from sepal.runs.stored_run import Allowed
from sepal.study.comparison import read_comparison
from tests.sepal.cli.runs_for_tests import write_run

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal import report
from sepal.report.data import COLOURS, datasets
from sepal.report.live import ReportServer
from sepal.report.page import render, write_html

FIRST = ["frontier", "round", "mb", "clients", "bytes", "labels"]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A comparison of two methods with two seeds each, and Local, which is never received."""
    directory = tmp_path_factory.mktemp("report")
    for seed in (0, 1):
        for method, accuracy in (("fedavg", 0.6), ("ditto", 0.7)):
            closing = [accuracy, accuracy + 0.1, accuracy + 0.01 * seed]
            write_run(directory / f"{method}-{seed}", method=method, seed=seed, closing=closing, shift=True, kept=True)
    write_run(directory / "local-0", method="local", capacities=[0.25, 0.5, 1.0], kept=True)
    return write_html([str(directory)], directory / "report.html")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A comparison of methods whose masks, gates and embeddings are figures of their own."""
    directory = tmp_path_factory.mktemp("learned")
    keys = {"dataset": "digits", "clients": 4, "rounds": 3, "partition.subsample": 400, "evaluate-every": 1}
    methods = {"dmpfl": {}, "subfedavg": {"subfedavg.accuracy": 0.0}, "pfedgate": {"pfedgate.keep": 0.5}, "pa3dfl": {}}
    for method, method_keys in methods.items():
        run_flat({**keys, **method_keys, "method": method, "name": method, "out": str(directory)}, directory, workers=1)
    return write_html([str(directory)], directory / "report.html", Allowed(data=True))


def specs(text):
    return json.loads(re.search(r'id="specs">(.*?)</script>', text, re.S)[1].replace("<\\/", "</"))


@pytest.mark.parametrize("which", ["page", "learned"])
def test_every_figure_has_title_units_and_words(which, request):
    text = request.getfixturevalue(which).read_text()
    figures = specs(text)
    assert list(figures)[:6] == FIRST
    for name, figure in figures.items():
        title = re.search(rf'<h3 id="figure-{name}">(.+?)</h3>\s*<p class="reading">(.+?)</p>', text, re.S)
        words = re.search(rf'id="figure-{name}-words">(.+?)</p>', text, re.S)
        assert re.search(r"%|MB|seconds|area|unit", title[2]), name
        assert html.unescape(words[1]) == figure["spec"]["description"]


def test_a_report_names_no_directory_of_the_machine(learned, tmp_path_factory):
    text = learned.read_text()
    assert "Settings that all runs share" in text
    assert str(tmp_path_factory.getbasetemp()) not in text


def test_every_label_has_a_colour_in_each_theme():
    """The charts and the page count the same colours, and the style sheet defines them all, light and dark."""
    style = (Path(report.__file__).parent / "templates/page.css").read_text()
    for number in range(COLOURS):
        assert style.count(f"--c{number}: #") == 2, number
    assert f"--c{COLOURS}:" not in style


def test_labels_have_the_names_of_the_users_directories(tmp_path):
    for name in ("wren", "finch"):
        (tmp_path / "birds" / name).mkdir(parents=True)
        for number in range(12):
            np.save(tmp_path / "birds" / name / f"{number}.npy", np.zeros((1, 8, 8)))
    keys = {"data-dir": str(tmp_path / "birds"), "model": "digits-cnn", "partition.name": "iid"}
    write_run(tmp_path / "run", dataset="folder", **keys)
    rows = datasets(read_comparison([str(tmp_path / "run")]))["labels"]
    assert {(row["number"], row["class"]) for row in rows} == {(0, "finch"), (1, "wren")}


def test_a_report_of_many_runs_says_their_number(tmp_path):
    for number in range(4):
        write_run(tmp_path / f"run-{number}", method="local")
    places = [str(tmp_path / f"run-{number}") for number in range(4)]
    assert read_comparison(places[:3]).title == "run-0, run-1, run-2"
    assert read_comparison(places).title == "4 runs"


def test_a_figure_is_shown_where_runs_have_its_data(page, learned):
    text = page.read_text()
    assert "fedavg ends at 63.5 ± 0.2 %" in text  # means of .6, .7, .6 and of .6, .7, .61
    assert {"pairs", "seconds", "shift", "capacity", "own"} < set(specs(text))
    mask_figures = {"masks", "similar", "layers", "pruning", "tree"}
    assert mask_figures < set(specs(learned.read_text()))
    assert "All clients have the same: dmpfl 100 %." in learned.read_text()  # of the overlap, which is not drawn
    assert not mask_figures & set(specs(text))


def test_figures_about_masks_and_gates_have_the_rows_that_they_need(learned):
    """Four clients: 16 pairs of masks for each method that has some, three brackets of four points, and four leaves."""
    rows = datasets(read_comparison([str(learned.parent)], Allowed(data=True)))
    pairs = [(row["label"], row["one"], row["other"]) for row in rows["masks"]]
    assert len(set(pairs)) == len(pairs) == 48
    assert {row["label"] for row in rows["overlap"]} == {"dmpfl"}
    assert {(row["label"], row["mask"]) for row in rows["layers"]} == {
        ("dmpfl", "personal"),
        ("dmpfl", "global"),
        ("subfedavg", "personal"),
        ("pfedgate", "personal"),
    }
    assert all(
        row["kept"] < 100 for row in rows["layers"] if row["label"] == "subfedavg"
    )  # pruned twice, at least once
    assert {row["label"] for row in rows["tree"]} == {"pfedgate", "pa3dfl"}
    tree = [row for row in rows["tree"] if row["label"] == "pfedgate"]
    assert [row["kind"] for row in tree] == ["link"] * 12 + ["leaf"] * 4
    assert sorted(row["place"] for row in tree if row["kind"] == "leaf") == [0, 1, 2, 3]
    heights = [row["distance"] for row in tree if row["kind"] == "link" and row["step"] in (1, 2)]
    assert heights == sorted(heights)  # Ward's merges grow
    assert heights[0] > 0
    pruned = {row["round"]: row["pruned"] for row in rows["pruning"] if row["client"] == "client-00000"}
    assert pruned[3] > pruned[2] > 0


def test_a_report_without_the_data_says_that_masks_of_gates_need_it(learned):
    words = "pfedgate: masks follow from the clients' examples, which `sepal report --data` reads."
    alone, together = [str(learned.parent / "pfedgate")], [str(learned.parent)]
    for places, data, count in ((alone, False, 1), (together, False, 1), (alone, True, 0), (together, True, 0)):
        text = html.unescape(render(read_comparison(places, Allowed(data=data))))
        assert text.count(words) == count, (places, data)
    assert "masks follow" not in render(read_comparison([str(learned.parent / "dmpfl")]))


def test_figures_about_masks_are_there_without_the_data_but_for_gates_which_need_it(learned):
    rows, whole = (datasets(read_comparison([str(learned.parent)], Allowed(data=data))) for data in (False, True))
    assert {row["label"] for row in rows["masks"]} == {"dmpfl", "subfedavg"}
    for name, method in itertools.product(("masks", "layers", "overlap"), ("dmpfl", "subfedavg")):
        stored, computed = ([row for row in table[name] if row["label"] == method] for table in (rows, whole))
        assert stored == computed, "as from the data, bit for bit"
    assert rows["tree"] == whole["tree"]
    assert rows["labels"] == whole["labels"]


def test_the_page_is_one_file_of_at_most_3_mb_that_asks_for_nothing(page):
    text = page.read_text()
    page_text = re.sub(r"<script>.*?</script>", "", text, count=1, flags=re.S)  # without the library
    assert len(text) < 3e6
    assert re.findall(r'(?:src|href)="(?!data:)', page_text) == []
    assert "url(" not in page_text
    assert "&lt;processor&gt;" in page_text  # what a run says of itself is text


def test_a_method_without_a_view_stands_beside_the_others_with_its_trained_models(tmp_path):
    run = write_run(tmp_path / "local", method="local")
    for name in ("metrics.jsonl", "summary.json"):
        text = (run / name).read_text()
        (run / name).write_text(re.sub(r'("accuracy": \{"received": )\{.*?\}', r"\1null", text))
    write_run(tmp_path / "fedavg")
    rows = datasets(read_comparison([str(tmp_path)]))["curve"]
    stands = {(row["label"], row["stand_in"]) for row in rows if row["view"] == "received"}
    assert stands == {("local", True), ("fedavg", False)}


def test_one_run_and_one_that_goes_on_have_a_report_and_one_without_rounds_not(tmp_path):
    run = write_run(tmp_path / "a")
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0])
    assert "1 run, 0 ended" in render(read_comparison([str(run)]))
    (run / "metrics.jsonl").unlink()
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 2
    assert result.stderr.startswith("sepal: run: expected a run with at least one round")


def test_the_page_of_several_runs_leaves_the_report_of_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, far = (write_run(tmp_path / name, seed=seed) for seed, name in enumerate(("a/1", "a/2", "b/3")))
    for runs, file in (([first], first / "report.html"), ([first, second], first.parent / "comparison.html")):
        assert CliRunner().invoke(app, ["report", *map(str, runs)]).stdout == f"written to {file}\n"
        assert file.is_file()
    before = (first / "report.html").read_bytes()
    assert f"written to {Path.cwd() / 'comparison.html'}\n" == CliRunner().invoke(app, ["report", "a", str(far)]).stdout
    assert (first / "report.html").read_bytes() == before
    assert len(list(tmp_path.rglob("*.html"))) == 3


def test_without_the_extra_one_line_says_what_to_install(tmp_path, monkeypatch):
    run = write_run(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "altair", None)
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 2
    assert "pip install 'altair<7' vl-convert-python" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian's package chromium)")
@pytest.mark.parametrize(("which", "scheme"), [("page", "light"), ("page", "dark"), ("learned", "dark")])
def test_a_browser_draws_every_figure_without_console_messages(which, scheme, tmp_path, request):
    page = request.getfixturevalue(which)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path}", "--window-size=500,1200", "--virtual-time-budget=20000", "--dump-dom"]
    command += [f"--blink-settings=preferredColorScheme={'01'[scheme == 'light']}", page.as_uri()]
    environment = {**os.environ, "HOME": str(tmp_path)}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True)
    assert [line for line in completed.stderr.splitlines() if "CONSOLE" in line] == []
    assert f'data-theme="{scheme}"' in completed.stdout
    assert 'data-drawn="yes"' in completed.stdout
    for name, figure in specs(page.read_text()).items():
        drawn = completed.stdout.split(f'id="chart-{name}"')[1].split("</figure>")[0]
        svg = re.search(r"<svg[^>]*>", drawn)[0]
        assert 'role="graphics-document"' in drawn, name
        assert f'aria-label="{figure["spec"]["description"]}"' in html.unescape(drawn), name
        assert len(re.findall("<path ", drawn)) > 3, name
        texts = re.findall(r"<text [^>]*>", drawn)
        assert [text for text in texts if 'fill="var(' not in text] == [], name  # black on the dark page
        assert 0 < float(re.search(r'width="([\d.]+)"', svg)[1]) <= 500, name


def ask(server, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", f"/{server.secret}{path}", headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_page_of_a_run_that_goes_on_is_served_here_alone_and_grows(tmp_path):
    run = write_run(tmp_path / "a")
    summary = (run / "summary.json").read_text()
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("")
    with ReportServer([str(run)], 0) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            assert server.server_address[0] == "127.0.0.1"
            waiting = ask(server, "/")[1]
            assert "Waiting for the first round" in waiting
            assert "round 0 of 2; the line begins when round 1 ends." in waiting
            (run / "metrics.jsonl").write_text(lines[0])
            assert '<html lang="en" data-live>' in ask(server, "/")[1]
            first = json.loads(ask(server, "/data")[1])
            (run / "metrics.jsonl").write_text("".join(lines))
            (run / "summary.json").write_text(summary)
            second = json.loads(ask(server, "/data")[1])
            assert (first["over"], second["over"]) == (False, True)
            assert "running, round 1 of 2, about 3 s left, 3 of 3 clients present in the last round" in first["state"]
            assert "Ended after 2 rounds." in second["state"]
            assert [len({row["at"] for row in state["data"]["curve"]}) for state in (first, second)] == [1, 3]
            assert ask(server, "/data", host="attacker.example:80")[0] == 403
            assert ask(server, "/etc/passwd")[0] == 404
        finally:
            server.shutdown()
            thread.join()
    assert "data-live" not in render(read_comparison([str(run)])).partition("<head>")[0]

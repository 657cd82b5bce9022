"""report.html: every figure with title, units and a text alternative; in a browser, without console errors."""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from threading import Thread

import pytest
from typer.testing import CliRunner

from sepal_cli.comparison import read_comparison
from sepal_cli.main import app
from tests.sepal_cli.runs_for_tests import write_run

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal_cli.report import render, write_html
from sepal_cli.report.live import ReportServer

FIRST = ["round", "mb", "clients", "bytes", "labels"]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A comparison of two methods with two seeds each, and Local, which is never received."""
    directory = tmp_path_factory.mktemp("report")
    for seed in (0, 1):
        for method, accuracy in (("fedavg", 0.6), ("ditto", 0.7)):
            closing = [accuracy, accuracy + 0.1, accuracy + 0.01 * seed]
            write_run(directory / f"{method}-{seed}", method=method, seed=seed, closing=closing, shift=True)
    write_run(directory / "local-0", method="local", capacities=[0.25, 0.5, 1.0])
    return write_html([str(directory)], directory / "report.html")


def specs(text):
    return json.loads(re.search(r'id="specs">(.*?)</script>', text, re.S)[1].replace("<\\/", "</"))


def test_every_figure_has_title_units_and_words(page):
    text = page.read_text()
    found = specs(text)
    assert list(found)[:5] == FIRST
    assert {"pairs", "seconds", "shift", "capacity", "own"} < set(found)
    for name, figure in found.items():
        title = re.search(rf'<h3 id="figure-{name}">(.+?)</h3>\s*<p class="reading">(.+?)</p>', text, re.S)
        words = re.search(rf'id="figure-{name}-words">(.+?)</p>', text, re.S)
        assert re.search(r"%|MB|seconds|area|unit", title[2]), name
        assert html.unescape(words[1]) == figure["spec"]["description"]
    assert "fedavg ends at 63.5 ± 0.2 %" in text  # means of .6, .7, .6 and of .6, .7, .61


def test_the_page_is_one_file_of_at_most_3_mb_that_asks_for_nothing(page):
    text = page.read_text()
    own = re.sub(r"<script>.*?</script>", "", text, count=1, flags=re.S)  # without the library
    assert len(text) < 3e6
    assert re.findall(r'(?:src|href)="(?!data:)', own) == []
    assert "url(" not in own
    assert "&lt;processor&gt;" in own  # what a run says of itself is text


def test_a_method_without_a_view_stands_beside_the_others_with_its_trained_models(tmp_path):
    run = write_run(tmp_path / "local", method="local")
    for name in ("metrics.jsonl", "summary.json"):
        text = (run / name).read_text()
        (run / name).write_text(re.sub(r'("accuracy": \{"received": )\{.*?\}', r"\1null", text))
    write_run(tmp_path / "fedavg")
    from sepal_cli.report.data import datasets

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


def test_without_the_extra_one_line_says_what_to_install(tmp_path, monkeypatch):
    run = write_run(tmp_path / "a")
    monkeypatch.setitem(sys.modules, "altair", None)
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 2
    assert "pip install 'sepal-fl[report]'" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian's package chromium)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_every_figure_without_console_messages(page, tmp_path, scheme):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path}", "--window-size=500,1200", "--virtual-time-budget=20000", "--dump-dom"]
    command += [f"--blink-settings=preferredColorScheme={'01'[scheme == 'light']}", page.as_uri()]
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert f'data-theme="{scheme}"' in done.stdout
    assert 'data-drawn="yes"' in done.stdout
    for name, figure in specs(page.read_text()).items():
        drawn = done.stdout.split(f'id="chart-{name}"')[1].split("</figure>")[0]
        svg = re.search(r"<svg[^>]*>", drawn)[0]
        assert 'role="graphics-document"' in drawn, name
        assert f'aria-label="{figure["spec"]["description"]}"' in html.unescape(drawn), name
        assert len(re.findall("<path ", drawn)) > 3, name
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
            assert "Waiting for the first round" in ask(server, "/")[1]
            (run / "metrics.jsonl").write_text(lines[0])
            assert '<html lang="en" data-live>' in ask(server, "/")[1]
            first = json.loads(ask(server, "/data")[1])
            (run / "metrics.jsonl").write_text("".join(lines))
            (run / "summary.json").write_text(summary)
            second = json.loads(ask(server, "/data")[1])
            assert (first["over"], second["over"]) == (False, True)
            assert [len({row["round"] for row in found["data"]["curve"]}) for found in (first, second)] == [1, 3]
            assert ask(server, "/data", host="attacker.example:80")[0] == 403
            assert ask(server, "/etc/passwd")[0] == 404
        finally:
            server.shutdown()
            thread.join()
    assert "data-live" not in render(read_comparison([str(run)])).partition("<head>")[0]

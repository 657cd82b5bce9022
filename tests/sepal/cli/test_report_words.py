"""What a report says of itself: which runs a figure shows, what is absent and why; on the page, in words, on paper."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest
from rich.console import Console

from sepal.report.tables import print_comparison
from sepal.runs.stored_run import Allowed
from sepal.study.comparison import read_comparison
from tests.sepal.cli.runs_for_tests import write_run
from tests.sepal.cli.test_report import BROWSER, specs

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal.report.figure import first_own
from sepal.report.page import render
from sepal.report.personal import _ticks

THREE, FOUR = [0.5, 0.6, 0.7], [0.1, 0.8, 0.8, 0.9]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A comparison of two methods with three clients and with four."""
    directory, rows = tmp_path_factory.mktemp("swept"), []
    for values in (THREE, FOUR):
        for method in ("fedavg", "ditto"):
            cell = f"clients={len(values)}"
            run = write_run(directory / f"{method}-{len(values)}", method=method, closing=values, shift=True)
            rows.append({"name": run.name, "label": method, "cell": cell})
    index = {"title": "swept", "view": "trained", "target": None, "runs": rows}
    (directory / "comparison.json").write_text(json.dumps(index))
    return read_comparison([str(directory)])


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """FedAvg with seeds 1 and 2, and Local with seed 0, which has no received models."""
    directory = tmp_path_factory.mktemp("mixed")
    for seed in (1, 2):
        write_run(directory / f"fedavg-{seed}", seed=seed)
    run = write_run(directory / "local", method="local")
    for name in ("metrics.jsonl", "summary.json"):
        text = (run / name).read_text()
        (run / name).write_text(re.sub(r'("accuracy": \{"received": )\{.*?\}', r"\1null", text))
    return read_comparison([str(directory)])


def words_of(page, name):
    return html.unescape(re.search(rf'id="figure-{name}-words">(.+?)</p>', page, re.S)[1])


def printed(comparison):
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    print_comparison(console, comparison, everything=True)
    return console.export_text()


def test_words_of_a_swept_comparison_name_the_setting_and_the_unit(swept):
    page = render(swept)
    assert "worst 10 % of fedavg (clients=3): 50.0 %" in words_of(page, "clients")
    assert "worst 10 % of fedavg (clients=4): 10.0 %" in words_of(page, "clients")
    assert "fedavg (clients=3) 60.0 %" in words_of(page, "shift")
    assert "fedavg (clients=4) 65.0 %" in words_of(page, "shift")
    for cell in ("clients=3", "clients=4"):
        assert f"fedavg − ditto ({cell}): +0.0 points" in words_of(page, "pairs")
    assert re.search(r"fedavg \(clients=3\) ends at 60\.0 % after 2 rounds", words_of(page, "round"))
    assert re.search(r"fedavg \(clients=3\) ends at 60\.0 % after 0\.0009 MB", words_of(page, "mb"))
    assert re.search(r"fedavg \(clients=3\) ends at 60\.0 % after \d+\.\d seconds", words_of(page, "seconds"))


def test_the_page_says_how_many_clients_there_are_what_its_columns_mean_and_of_which_view(swept):
    page = render(swept)
    assert "digits · 3, 4 clients · 2 rounds · seed 0 · 4 runs" in page
    assert "worst 10 %<br>deployed" in page
    for view in ("kept", "received", "trained", "pooled"):
        assert f"{view}: " in re.search(r'<p class="reading"[^>]*>(Accuracy in %.+?)</p>', page, re.S)[1]


def test_yardsticks_that_are_not_among_the_runs_are_named(swept, mixed):
    both, without_one = "Without local and fedavg-ft: add them to ", "Without fedavg-ft: add it to "
    assert f"{both}<code>methods</code>." in render(swept)
    assert f"{without_one}<code>methods</code>." in render(mixed)
    assert f"{both}`methods`." in printed(swept)
    assert f"{without_one}`methods`." in printed(mixed)


def test_a_rate_of_another_method_is_named_on_the_page_as_in_the_terminal(tmp_path):
    runs = [write_run(tmp_path / method, method=method) for method in ("fedavg", "ditto")]
    about = json.loads((runs[1] / "about.json").read_text())
    (runs[1] / "about.json").write_text(json.dumps({**about, "rate_of": "fedavg"}))
    comparison = read_comparison([str(run) for run in runs])
    words = "Rate calibrated for another method: ditto (lr = "
    assert words in html.unescape(render(comparison))
    assert words in printed(comparison)


def test_an_empty_line_follows_every_table(swept):
    lines = [line.rstrip() for line in printed(swept).splitlines()]
    for head in ("cost", "points, 95 % interval", "Accuracy in %"):
        at = next(number for number, line in enumerate(lines) if line.lstrip().startswith(head))
        before = next(number for number in range(at, 0, -1) if not lines[number])  # heads have two lines or three
        assert at - before <= 3, head
        assert lines[before - 1], head


def test_where_labels_are_not_known_a_sentence_stands_in_place_of_them(tmp_path):
    birds = tmp_path / "birds"
    for name in ("wren", "finch"):
        (birds / name).mkdir(parents=True)
        for number in range(12):
            np.save(birds / name / f"{number}.npy", np.zeros((1, 8, 8)))
    keys = {"data-dir": str(birds), "model": "digits-cnn", "partition.name": "iid"}
    write_run(tmp_path / "run", dataset="folder", about=False, **keys)
    paths, reading = [str(tmp_path / "run")], Allowed(data=True)
    assert "labels" in specs(render(read_comparison(paths, reading)))
    shutil.rmtree(birds)
    reasons = {"This run has stored no label counts": Allowed(), "The data (folder) is not on the machine": reading}
    for words, allowed in reasons.items():
        page = render(read_comparison(paths, allowed))
        assert "labels" not in specs(page)
        assert 'id="chart-labels"' not in page
        assert words_of(page, "labels").startswith(words)
        assert str(tmp_path) not in page


def test_the_first_of_the_own_figures_is_one_that_changes():
    rows = [
        {"cell": "", "label": label, "round": number, "figure": figure, "value": value}
        for label, at in (("a", 1.0), ("b", 2.0))  # other in each run, the same in every round
        for number in (1, 2)
        for figure, value in (("constant", at), ("growing", at * number))
    ]
    assert first_own(rows) == "growing"
    assert first_own(rows[::2]) == "constant"


@pytest.mark.parametrize("most", [0.0031, 0.29, 1.0, 3.7, 450.0])
def test_a_trees_ticks_are_equally_far_apart(most):
    ticks = _ticks(most)
    assert ticks[0] == 0
    assert np.allclose(np.diff(ticks), ticks[1])
    assert 0.5 * most <= ticks[-1] <= 1.001 * most
    assert 2 <= len(ticks) <= 5


LOOK = """<script type="module">
const text = (name) => document.getElementById(`chart-${name}`).textContent;
const opened = () => document.querySelectorAll("details[open]").length;
const width = () => Number(document.querySelector("#chart-round svg").getAttribute("width"));
const later = () => new Promise((done) => setTimeout(done, 400));
async function look() {
  while (!document.documentElement.dataset.drawn) await later();
  await later();
  const found = { first: text("clients"), own: text("own"), closed: opened(), screen: width() };
  document.querySelector('[name="label"]').value = "local";
  document.querySelector('[value="received"]').checked = true;
  document.querySelector(".controls").dispatchEvent(new Event("change"));
  await later();
  found.second = text("clients");
  dispatchEvent(new Event("beforeprint"));
  await later();
  Object.assign(found, { open: opened(), paper: width() });
  dispatchEvent(new Event("afterprint"));
  await later();
  Object.assign(found, { after: opened(), again: width() });
  document.title = JSON.stringify(found);
}
look();
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian's package chromium)")
def test_a_browser_shows_which_run_a_figure_is_of_and_opens_the_words_for_paper(mixed, tmp_path):
    file = tmp_path / "report.html"
    page, _, end = render(mixed).rpartition("</body>")
    file.write_text(page + LOOK + end)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    command += ["--window-size=600,900", "--virtual-time-budget=30000", file.as_uri()]
    environment = {**os.environ, "HOME": str(tmp_path)}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True)
    measured = json.loads(html.unescape(re.search(r"<title>(.+?)</title>", completed.stdout)[1]))
    assert "fedavg, deployed models, seed 1" in measured["first"]
    assert "local, trained models in place of received, seed 0" in measured["second"]
    assert "pruned, mean over clientsthe first seed of each run" in measured["own"]  # a long name has a line of its own
    assert (measured["closed"], measured["after"]) == (0, 0)
    assert measured["open"] >= 6
    assert measured["screen"] == measured["again"] < 600 < measured["paper"]

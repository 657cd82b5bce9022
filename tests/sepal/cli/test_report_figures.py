"""The report's curves, table and frontier: every round, marks and labels, sorting, width; in a browser where needed."""

from __future__ import annotations

import html
import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from sepal.report.answer import answer
from sepal.report.sentences import frontier_sentence, headline
from sepal.report.sizes import size
from sepal.report.tables import print_comparison
from sepal.report.text_tables import basis, cost_table
from sepal.study.comparison import read_comparison
from sepal.study.frontier import close_to, entries, frontier
from tests.sepal.cli.runs_for_tests import figures, write_run
from tests.sepal.cli.test_report import BROWSER

pytest.importorskip("altair", reason="the extra report is not installed")

from sepal import report
from sepal.report.data import COLOURS, datasets
from sepal.report.page import render
from sepal.report.shapes import DASHES, SHAPES

LONG = "a-variant-with-a-rather-long-name-alpha=0.25"
in_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian's package chromium)")


def stretch(run: Path, rounds: int, every: int, done: int | None = None) -> Path:
    """Make a run of many rounds of one that :func:`write_run` made: all clients are evaluated every few rounds."""
    text = (run / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(text[0]), json.loads(text[-1])
    lines = []
    for number in range(1, (done or rounds) + 1):
        full, size = number % every == 0, 1000 * (number - 1)
        some = first["accuracy"]["trained"] if full else figures([0.3 + 0.01 * number])
        views = {"received": some, "trained": some, "pooled": None, "kept": None}
        sizes = {**first["bytes"], "up": size, "down": size}
        lines.append({**first, "round": number, "model_round": number - 1, "full": full, "accuracy": views})
        lines[-1] |= {"bytes": sizes, "clients": first["clients"][: None if full else 2]}
    if done is None:
        lines.append({**last, "round": rounds + 1, "model_round": rounds})
    else:
        (run / "summary.json").unlink()
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    config = (run / "config.toml").read_text()
    config = re.sub(r"(?m)^rounds = .*", f"rounds = {rounds}", config)
    (run / "config.toml").write_text(re.sub(r"(?m)^evaluate-every = .*", f"evaluate-every = {every}", config))
    return run


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Eleven variants whose ends are close together, one with a long name; Local sends nothing."""
    directory = tmp_path_factory.mktemp("many")
    rows = []
    for number in range(11):
        name = LONG if number == 8 else "local" if number == 9 else "fedavg-ft" if number == 10 else f"fedavg-{number}"
        method = name if name in ("local", "fedavg-ft") else "fedavg"
        keys = {"kept": True, "volume": 0 if method == "local" else 10_000 * (1 + number)}
        run = write_run(directory / f"run-{number}", method=method, closing=[0.5 + 0.004 * number, 0.6, 0.7], **keys)
        rows.append({"name": run.name, "label": name, "cell": ""})
    index = {"title": "Many", "view": "trained", "target": None, "runs": rows, "notes": [], "tuning": []}
    (directory / "comparison.json").write_text(json.dumps(index))
    return read_comparison([str(directory)])


def look(page: str, script: str, directory: Path, width: int = 1200):
    """Return what a script that fills ``found`` sees on a page that is ``width`` pixels wide."""
    script = f"""<script type="module">
    const later = () => new Promise((done) => setTimeout(done, 400));
    const all = (what) => [...document.querySelectorAll(what)];
    const found = {{}};
    while (!document.documentElement.dataset.drawn) await later();
    let size = 0, same = 0;  // figures are drawn again where their width changes, on a busy machine late
    while (same < 3) {{
        await later();
        same = size === document.body.innerHTML.length ? same + 1 : 0;
        size = document.body.innerHTML.length;
    }}
    {script}
    parent.document.title = JSON.stringify(found);
    </script></body>"""
    begin, _, end = page.rpartition("</body>")
    frame = html.escape(begin + script + end)
    file = directory / "frame.html"  # a window of a browser without a screen is at least 500 pixels wide
    file.write_text(f'<iframe srcdoc="{frame}" style="border:0;width:{width}px;height:900px"></iframe>')
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={directory}", "--dump-dom"]
    command += ["--window-size=1300,1000", "--virtual-time-budget=30000", file.as_uri()]
    environment = {**os.environ, "HOME": str(directory)}
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=True)
    return json.loads(html.unescape(re.search(r"<title>(.+?)</title>", completed.stdout)[1]))


# every round


def test_a_curve_has_every_round_and_its_points_are_full_evaluations(tmp_path):
    run = stretch(write_run(tmp_path / "a"), rounds=23, every=10)
    rows = [row for row in datasets(read_comparison([str(run)]))["curve"] if row["view"] == "trained"]
    kinds = {kind: [row["round"] for row in rows if row["kind"] == kind] for kind in ("full", "sampled")}
    assert kinds["full"] == [10, 20, 23]  # and the closing evaluation
    assert sorted(kinds["full"] + kinds["sampled"]) == [*range(1, 24), 23]
    assert [row["at"] for row in rows if row["last"]] == ["closing, after round 23"]


def test_a_run_without_a_full_evaluation_has_its_line_and_says_when_the_first_point_comes(tmp_path):
    run = stretch(write_run(tmp_path / "a"), rounds=40, every=10, done=7)
    comparison = read_comparison([str(run)])
    rows = [row for row in datasets(comparison)["curve"] if row["view"] == "trained"]
    assert [(row["kind"], row["round"]) for row in rows] == [("sampled", number) for number in range(1, 8)]
    words = "the first point comes in round 10 (evaluate-every = 10)"
    assert words in headline(comparison, "")
    page = render(comparison, live=True)
    assert words in page
    assert "not reached" not in page.partition("<table>")[2].partition("</table>")[0]


# what is shown first


@pytest.fixture
def unlike(tmp_path):
    """FedAvg, which deploys what is received, with trained models that are far better; and Ditto, which keeps them."""
    for method in ("fedavg", "ditto"):
        run = write_run(tmp_path / method, method=method, kept=True)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line["accuracy"]["trained"] = figures([0.9] * 3)
            line["clients"] = [{**client, "trained": 0.9} for client in line["clients"]]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return read_comparison([str(tmp_path)])


@in_browser
def test_a_report_opens_on_the_deployed_models_and_the_others_are_a_click_away(unlike, tmp_path):
    script = """
    const ends = () => all("#chart-round .mark-symbol path")
      .map((each) => each.getAttribute("aria-label")).filter((text) => /evaluation: closing/.test(text))
      .map((text) => Number(/accuracy, %: ([\\d.]+)/.exec(text)[1])).sort();
    found.first = document.querySelector('[name="view"]:checked').value;
    found.before = ends();
    document.querySelector('[value="trained"]').checked = true;
    document.querySelector(".controls").dispatchEvent(new Event("change"));
    await later();
    found.after = ends();
    """
    page = render(unlike)
    measured = look(page, script, tmp_path)
    assert measured == {"first": "deployed", "before": [60, 60], "after": [90, 90]}
    assert "Accuracy by round, deployed models: ditto ends at 60.0 % after 2 rounds; fedavg ends at 60.0 %" in page
    assert "Paired differences, deployed models: ditto − fedavg: +0.0 points" in page


def test_between_full_evaluations_a_kept_model_is_as_just_trained(tmp_path):
    run = stretch(write_run(tmp_path / "a", method="ditto", kept=True), rounds=23, every=10)
    rows = [row for row in datasets(read_comparison([str(run)]))["curve"] if row["view"] == "kept"]
    assert [row["round"] for row in rows if row["kind"] == "full"] == [23]
    assert len(rows) > 20


# the sentence on top


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "(60.0 % with 0.0009 MB); one seed is too few to tell them apart."),
        (2, "(60.0 % with 0.0009 MB); 2 seeds are too few to tell them apart."),
        (3, "ditto is best of 2: 70.0 % with 0.0009 MB, clearly above fedavg (60.0 % with 0.0009 MB)."),
    ],
)
def test_the_sentence_on_top_says_what_is_highest_with_its_caveat(tmp_path, seeds, words):
    for seed in range(seeds):
        write_run(tmp_path / f"a{seed}", method="fedavg", seed=seed)
        write_run(tmp_path / f"d{seed}", method="ditto", seed=seed, kept=True, closing=[0.6, 0.7, 0.8])
    comparison = read_comparison([str(tmp_path)])
    sentence = headline(comparison, "")
    assert seeds == 3 or sentence.startswith(
        "ditto has the highest mean accuracy of 2 (70.0 % with 0.0009 MB), before fedavg"
    )
    assert sentence.endswith(words)
    page = render(comparison)
    assert page.index(html.escape(sentence)) < page.index("<table>")


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_sentence_on_top_calls_equal_figures_level(tmp_path, seeds):
    for seed in range(seeds):
        for method in ("fedavg", "ditto"):
            write_run(tmp_path / f"{method}{seed}", method=method, seed=seed, kept=True)
    words = headline(read_comparison([str(tmp_path)]), "")
    level = r"\w+ \(60\.0 % with .* MB\) and \w+ \(60\.0 % with .* MB\) are level with the highest mean accuracy of 2"
    assert re.fullmatch(level + ("" if seeds == 3 else "; one seed is too few to tell them apart") + r"\.", words)


def test_the_sentence_on_top_says_that_a_lead_is_within_noise(tmp_path):
    for seed, lead in enumerate((0.01, 0.02, 0.09)):
        write_run(tmp_path / f"a{seed}", method="fedavg", seed=seed)
        write_run(tmp_path / f"d{seed}", method="ditto", seed=seed, kept=True, closing=[0.6 + lead] * 3)
    assert headline(read_comparison([str(tmp_path)]), "") == (
        "No clear best of 2: ditto has the highest mean accuracy (64.0 % with 0.0009 MB), and fedavg "
        "(60.0 % with 0.0009 MB) is within noise of it."
    )


def test_the_answer_is_a_short_table_with_clear_differences_marked(tmp_path):
    """Leads of .1 each: clear. Of .01, .02 and .09: mean .04, half-width .108, so 0 is in it."""
    for seed, lead in enumerate((0.01, 0.02, 0.09)):
        for method, more in (("ditto", 0.1), ("fedavg-ft", 0.1 - lead), ("local", 0.0)):
            write_run(
                tmp_path / f"{method}{seed}",
                method=method,
                seed=seed,
                kept=True,
                closing=[0.6 + more] * 3,
                volume=int(method != "local"),
            )
    comparison = read_comparison([str(tmp_path)])
    text_table, clear, reading = answer(comparison, "")
    assert text_table.head == ("accuracy, %", "deployed", "worst\n10 %", "MB", "difference to\nditto")
    assert [row[0] for row in text_table.rows] == ["ditto", "fedavg-ft", "local"]
    assert [row[-1] for row in text_table.rows] == ["best", "-4.0 [-14.8, +6.8]", "-10.0 [-10.0, -10.0]"]
    assert clear == [False, False, True]
    assert reading.endswith("In brackets: the 95 % interval over seeds; bold where it excludes 0.")
    page = render(comparison)
    first = page.partition("<table>")[2].partition("</table>")[0]
    assert re.findall("<strong>(.+?)</strong>", first) == ["-10.0 [-10.0,\xa0-10.0]"]
    (tmp_path / "local0" / "summary.json").unlink()
    one_seed = answer(read_comparison([str(tmp_path / "ditto0"), str(tmp_path / "local1")]), "")
    assert one_seed.clear == [False, False], "an interval over clients marks nothing"


def test_the_sentence_of_one_run_says_accuracy_cost_and_that_it_goes_on(tmp_path):
    run = write_run(tmp_path / "a", method="local", kept=True)
    (run / "summary.json").unlink()
    words = headline(read_comparison([str(run)]), "")
    assert words.startswith("local: 60.0 % mean accuracy over clients, 50.0 % for the worst 10 %, with 0.0009 MB")
    assert "another seed may give another figure. The run has not ended." in words


# marks without colour


def test_marks_and_dashes_tell_labels_apart_without_colour():
    looks = [(SHAPES[n % len(SHAPES)], tuple(DASHES[n % len(DASHES)])) for n in range(COLOURS)]
    assert len(set(looks)) == COLOURS
    assert len(set(SHAPES)) == len(SHAPES) == COLOURS


def oklab(colour: str) -> tuple[float, float, float]:
    """Return Oklab coordinates of ``#rrggbb`` (B. Ottosson, 2020)."""
    part = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in part)
    long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    medium = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    short = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )


@pytest.mark.parametrize("theme", [0, 1])
def test_every_two_colours_are_apart(theme):
    style = (Path(report.__file__).parent / "templates/page.css").read_text()
    colours = [re.findall(rf"--c{n}: (#\w+)", style)[theme] for n in range(COLOURS)]
    for first, second in itertools.combinations(colours, 2):
        distance = sum((a - b) ** 2 for a, b in zip(oklab(first), oklab(second), strict=True)) ** 0.5
        assert distance > 0.08, (first, second, distance)


# the page in a browser


@in_browser
@pytest.mark.parametrize("width", [1200, 400])
def test_lines_are_labelled_at_their_ends_apart_and_the_axis_begins_where_asked(many, tmp_path, width):
    script = """
    const texts = (name) => all(`#chart-${name} text`).filter((each) => each.textContent.trim());
    const tick = () => texts("round").map((each) => each.textContent).filter((text) => /^\\d+$/.test(text));
    const labels = texts("round").filter((each) => /fedavg|local|varian/.test(each.textContent));
    found.labels = labels.map((each) => each.textContent);
    const edge = document.querySelector("#chart-round svg").getBoundingClientRect().right;
    found.beyond = labels.filter((each) => each.getBoundingClientRect().right > edge).length;
    found.tops = labels.map((each) => each.getBoundingClientRect().top).sort((a, b) => a - b);
    found.marks = new Set(all("#chart-round .mark-symbol path").map((each) => each.getAttribute("d"))).size;
    found.before = tick();
    document.querySelector('[name="zero"]').checked = true;
    document.querySelector(".controls").dispatchEvent(new Event("change"));
    await later();
    found.after = tick();
    """
    measured = look(render(many), script, tmp_path, width)
    assert len(measured["labels"]) == 11
    assert {"local", "fedavg-ft", "fedavg-0", "a-varian…pha=0.25"} < set(measured["labels"])
    assert measured["beyond"] == 0
    assert all(below - above > 10 for above, below in itertools.pairwise(measured["tops"]))
    assert measured["marks"] == 11
    counts = [sum(text == "0" for text in measured[when]) for when in ("before", "after")]
    assert counts == [1, 2]  # of rounds, and of accuracy


@in_browser
def test_the_table_is_sorted_by_a_click_with_figures_that_are_not_there_last(many, tmp_path):
    script = """
    const names = () => all(".overview tbody th").map((each) => each.textContent);
    const head = (text) => all(".sort").find((each) => each.textContent.startsWith(text));
    head("MB").click();
    found.down = names();
    head("MB").click();
    found.up = names();
    found.marked = all("[aria-sort]").map((each) => [each.textContent, each.ariaSort]);
    head("difference").click();
    found.behind = names();
    const other = all(".sorted .sort").find((each) => each.textContent.startsWith("MB to"));
    const column = other.parentElement.cellIndex;
    document.querySelector(".sorted tbody tr").cells[column].textContent = "–";
    other.click();
    found.missing = all(".sorted tbody tr").map((row) => row.cells[column].textContent);
    """
    measured = look(render(many), script, tmp_path)
    assert measured["down"][0] == "fedavg-ft"
    assert measured["up"] == measured["down"][::-1]
    assert measured["up"][0] == "local"
    assert measured["marked"] == [["MB", "ascending"]]
    assert measured["behind"][0] == "fedavg-ft", "the best, which is behind nobody"
    assert [text == "–" for text in measured["missing"]] == [False] * 10 + [True]


@in_browser
@pytest.mark.parametrize("width", [1200, 400])
def test_a_wide_page_has_all_columns_and_a_phone_has_figures_beside_the_names(many, tmp_path, width):
    script = """
    const table = document.querySelector(".overview");
    const name = Math.max(...all(".overview tbody th").map((each) => each.getBoundingClientRect().right));
    Object.assign(found, { name, page: document.documentElement.scrollWidth, inside: innerWidth });
    Object.assign(found, { hidden: table.scrollWidth - table.clientWidth, plot: 0 });
    const axis = document.querySelector("#chart-round .mark-rule.role-axis-domain line");
    found.plot = axis ? axis.getBoundingClientRect().width : 0;
    """
    measured = look(render(many), script, tmp_path, width)
    assert measured["page"] <= measured["inside"] == width
    if width == 1200:
        assert measured["hidden"] <= 0
    else:
        assert measured["name"] < 0.45 * width


@in_browser
@pytest.mark.parametrize("width", [1200, 400])
def test_no_text_of_a_chart_is_cut(many, tmp_path, width):
    script = """
    document.querySelector('[name="label"]').value = LONG;
    document.querySelector(".controls").dispatchEvent(new Event("change"));
    await later();
    const box = (each) => each.getBoundingClientRect();
    const inside = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1
      && one.top >= other.top - 1 && one.bottom <= other.bottom + 1;
    const texts = all(".chart svg text").filter((each) => each.textContent.trim());
    found.count = texts.length;
    const cut = texts.filter((each) => !inside(box(each), box(each.ownerSVGElement)));
    found.cut = cut.map((each) => each.textContent);
    """
    measured = look(render(many), script.replace("LONG", json.dumps(LONG)), tmp_path, width)
    assert measured["count"] > 100
    assert measured["cut"] == []


@in_browser
def test_paired_differences_have_a_line_at_zero(many, tmp_path):
    measured = look(render(many), 'found.zero = all("#chart-pairs .layer_0_marks line").length;', tmp_path)
    assert measured["zero"] == 1


# sizes, and the best of a column


@pytest.mark.parametrize(
    ("megabytes", "words"),
    [
        (0, "0"),
        (3.2e-5, "0.00003"),
        (0.00056, "0.0006"),
        (0.0346, "0.035"),
        (0.1, "0.10"),
        (9.994, "9.99"),
        (12.34, "12.3"),
        (512.3, "512"),
    ],
)
def test_a_small_size_has_figures_and_a_large_one_no_needless_ones(megabytes, words):
    assert size(megabytes) == words


# the frontier


def test_the_frontier_and_the_megabytes_to_within_a_point_of_fine_tuning(tmp_path):
    """Local sends nothing; FedAvg sends as much as FedAvg-FT for less; Ditto is within a point of it in round 2."""
    ends = {"fedavg": 0.5, "fedavg-ft": 0.8, "ditto": 0.79, "local": 0.4}
    for method, end in ends.items():
        keys = {
            "kept": True,
            "volume": 10_000 * (method != "local"),
            "full": [0.2, 0.795 if method == "ditto" else 0.4],
        }
        write_run(tmp_path / method, method=method, closing=[end] * 3, **keys)
    comparison = read_comparison([str(tmp_path)])
    variants = comparison.variants("")
    assert [point.entry.label for point in frontier(entries(variants)) if point.frontier] == ["local", "fedavg-ft"]
    near = close_to(variants)
    assert (near.label, near.target) == ("fedavg-ft", pytest.approx(0.79))
    text_table = cost_table(variants)
    assert text_table.head[-1] == "MB to\nwithin 1\npoint of\nfedavg-ft"
    cells = {row[0]: row[-1] for row in text_table.rows}
    assert cells == {"local": "–", "fedavg": "–", "fedavg-ft": "9.00", "ditto": "4.50"}
    assert "within 1 point of fedavg-ft: until the deployed models' mean over seeds reaches 79.0 %" in basis(variants)
    words = frontier_sentence(comparison, "")
    assert words.startswith("Best for their bytes: local (0 MB), fedavg-ft (9.00 MB). One seed is too few to tell")
    page = render(comparison)
    assert html.escape(words) in page
    rows = {row["label"]: (row["on"], row["mb"]) for row in datasets(comparison)["frontier"]}
    assert rows["local"] == (True, 0.0)
    assert not rows["fedavg"][0]


def test_one_run_has_no_frontier(tmp_path):
    comparison = read_comparison([str(write_run(tmp_path / "a"))])
    assert frontier_sentence(comparison, "") == ""
    assert "frontier" not in datasets(comparison)


# the terminal


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("width", [80, 60])
def test_tables_of_eleven_long_names_fit_the_terminal(many, width, everything):
    console = Console(record=True, width=width, file=open(os.devnull, "w"))  # noqa: SIM115
    print_comparison(console, many, everything)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    head = next(number for number, line in enumerate(lines) if line.startswith("accuracy, %"))
    for label in ("fedavg-0", "local", "fedavg-ft"):
        row = next(line for line in lines[head:] if line.startswith(f"{label} "))
        assert re.search(r"\d\d\.\d", row), label


@in_browser
def test_a_wide_table_fits_and_no_point_is_loose(tmp_path):
    for seed in range(3):
        for method in ("fedavg", "fedavg-ft"):
            closing = [0.3 + 0.1 * seed, 0.6, 0.7]
            run = write_run(tmp_path / f"{method}-{seed}", method=method, seed=seed, closing=closing, kept=True)
            stretch(run, rounds=10, every=5)
    script = """
    for (const fold of all(".fold")) fold.open = true;
    await later();
    const [table] = all(".sorted");
    found.hidden = table.scrollWidth - table.clientWidth;
    found.lines = all('#chart-round .mark-line path[stroke-width="2"]').length;
    """
    page = render(read_comparison([str(tmp_path)]))
    assert look(page, script, tmp_path, width=960) == {"hidden": 0, "lines": 2}
    assert "Kept: points are from before the round&#39;s training, thin lines from after it." in page

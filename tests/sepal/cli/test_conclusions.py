"""What a comparison says in words: leads that an interval over seeds carries, and curves that are still rising."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest
from rich.console import Console

from referee.paper.figures import figures
from sepal.report.charts import figures as charts
from sepal.report.data import datasets
from sepal.report.files import by_variant, write_csv
from sepal.report.markdown import write_markdown
from sepal.report.tables import print_comparison
from sepal.report.text_tables import conclusions, difference_table, legend, remarks
from sepal.study.comparison import read_comparison
from sepal.study.plans.model import PlannedRun
from sepal.study.statistics import mean_rise, rise
from tests.sepal.cli.runs_for_tests import write_run


def lines(values, full=False, **others):
    """Lines of rounds with these accuracies on validation data."""
    means = {"trained": None, "received": None} | {"trained": 0.0} | others
    return [
        {
            "round": number,
            "full": full,
            "phase": "",
            "accuracy": {view: {"mean": 0.5} for view in means},
            "validation": {view: {"mean": value if mean is None else mean} for view, mean in means.items()},
        }
        for number, value in enumerate(values, 1)
    ]


def verdict(values, **keys):
    conclusion = rise(lines(values, **keys), "received")
    return conclusion and conclusion.goes_on


# whether a curve has converged


@pytest.mark.parametrize(
    ("values", "rising"),
    [
        (np.linspace(0.2, 0.8, 30), True),
        (0.9 - 0.7 * np.exp(-np.arange(30) / 20), True),
        (0.9 - 0.7 * np.exp(-np.arange(30) / 3), False),  # .0002 points a round at the end
        (np.full(30, 0.8), False),
        (np.linspace(0.8, 0.2, 30), False),
        (0.8 + 0.0009 * np.arange(30), False),  # .27 points in three rounds
        (0.8 + 0.002 * np.arange(30), True),  # .6 points
        (np.linspace(0.2, 0.8, 5), None),  # too few points
    ],
)
def test_a_curve_without_noise_is_rising_or_not(values, rising):
    assert verdict(values) is rising


def test_noise_alone_is_rarely_called_a_rise_and_a_rise_in_noise_is_found():
    """Noise of two points: flat, 4 to 7 % of curves; rising by two points a round, nearly all."""
    rng = np.random.default_rng(0)
    for rounds in (20, 30, 200):
        flat = [verdict(0.8 + rng.normal(0, 0.02, rounds)) for _ in range(300)]
        assert sum(flat) <= 30, rounds
    steep = [verdict(0.2 + 0.02 * np.arange(30) + rng.normal(0, 0.02, 30)) for _ in range(300)]
    assert sum(steep) >= 200
    over_five = [
        mean_rise([rise(lines(0.8 + rng.normal(0, 0.02, 30)), "received") for _ in range(5)]) for _ in range(100)
    ]
    assert sum(conclusion.goes_on for conclusion in over_five) <= 10


def test_a_steady_rise_has_no_noise_and_its_scatter_is_left_to_noise():
    """A line of 2 points a round, windows of 3: variance .02² · 3 · 4 / 12, so error √(2 · .0004 / 3) = .01633.

    Windows .31, .31, .35 and .37, .37, .41 rise by .06, too: variance .000533 in each, error √(2 · .000533 / 3) =
    .018856; the line's part of its square is again .016330² = .000267, so the noise is √(.000356 - .000267) = .009428.
    """
    steady = rise(lines(0.02 * np.arange(20)), "received")
    assert (steady.mean, steady.error) == pytest.approx((0.06, 0.016330), rel=1e-4)
    assert steady.noise == pytest.approx(0, abs=1e-8)
    noisy = rise(lines([0.0] * 14 + [0.31, 0.31, 0.35, 0.37, 0.37, 0.41]), "received")
    assert (noisy.mean, noisy.error, noisy.noise) == pytest.approx((0.06, 0.018856, 0.009428), rel=1e-3)
    two = mean_rise([noisy, noisy])
    assert (two.mean, two.noise) == pytest.approx((0.06, 0.009428 / 2**0.5), rel=1e-3)


def test_it_is_the_deployed_models_curve_on_the_sampled_rounds():
    """A kept model is judged by the trained one's curve. Full evaluations count only where there are no others."""
    rising = lines(np.linspace(0.2, 0.8, 20))
    assert rise(rising, "received").goes_on
    assert not rise(rising, "kept").goes_on
    assert rise(lines([0.5] * 20, trained=None) + lines([0.9] * 3, full=True, trained=None), "kept").mean == 0
    assert rise(lines(np.linspace(0.2, 0.8, 6), full=True, trained=None), "kept").goes_on
    without = [{**line, "validation": {"received": None}} for line in rising]
    for line, value in zip(without, np.linspace(0.2, 0.8, 20), strict=True):
        line["accuracy"] = {"received": {"mean": value}}
    assert rise(without, "received").goes_on, "without validation data, by accuracy on test data"


@pytest.fixture
def rising(tmp_path):
    """FedAvg, whose received model is still rising with both seeds, and Local, which has converged."""
    for method in ("fedavg", "local"):
        for seed in (0, 1):
            path = write_run(tmp_path / f"{method}-seed{seed}", method=method, seed=seed)
            first, *_, last = (json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines())
            rows = [{**first, "full": False, "round": n, "validation": {}} for n in range(1, 13)]
            for row in rows:
                for view in ("received", "trained"):
                    mean = 0.05 * row["round"] if method == "fedavg" and view == "received" else 0.5
                    row["validation"][view] = {**first["validation"][view], "mean": mean}
            rows.append({**last, "round": len(rows) + 1})
            (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def test_what_has_not_converged_is_marked_in_tables_and_files(rising):
    comparison, text = read_comparison([str(rising)]), printed(rising)
    assert "* not converged, still rising at the last round: fedavg (+15.0 points in 3 rounds)" in text
    assert "fedavg * 60.0" in text
    assert "local * " not in text
    write_csv(list(by_variant(comparison)), rising / "comparison.csv")
    rises = {row["name"]: row["rise_at_the_end"] for row in csv.DictReader((rising / "comparison.csv").open())}
    assert (float(rises["fedavg"]), rises["local"]) == (pytest.approx(0.15), "")
    run = PlannedRun("", "", "fedavg", 0, {"name": "fedavg-seed0", "method": "fedavg", "seed": 0})
    assert figures(run, rising).figures["rise"]["mean"] == pytest.approx(0.15)
    (rising / "fedavg-seed0" / "summary.json").unlink()
    (rising / "fedavg-seed1" / "summary.json").unlink()
    assert not any(variant.rising for variant in read_comparison([str(rising)]).all_variants()), "while a run goes on"


def test_what_has_not_converged_is_marked_in_the_report(rising):
    pytest.importorskip("altair", reason="the extra report is not installed")
    from sepal.report.page import render

    page = render(read_comparison([str(rising)]))
    assert '<th scope="row">fedavg *</th>' in page
    assert "* not converged, still rising at the last round: fedavg (+15.0 points in 3 rounds)" in page
    assert '<th scope="row">local</th>' in page


# too few points for a verdict

SHORT = "too short to say whether they have converged: fewer than 6 evaluations to compare."
SOME = "Too short a curve to say whether it has converged, with fewer than 6 evaluations to compare: "


def short(path, *methods):
    """Runs of two rounds and the closing one: three full evaluations."""
    for method in methods:
        write_run(path / f"{method}-short", method=method, seed=5)


def printed(path):
    """What `sepal compare` prints of the runs in a directory."""
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    print_comparison(console, read_comparison([str(path)]), everything=True)
    return " ".join(console.export_text().split())


def test_runs_too_short_for_a_verdict_are_said_to_be(tmp_path):
    short(tmp_path, "fedavg", "local")
    assert f"The curves are {SHORT}" in printed(tmp_path)
    assert f"The curves are {SHORT}" in list(remarks(read_comparison([str(tmp_path)]), ""))


def test_one_short_run_among_others_is_named(rising):
    short(rising, "fedprox")
    text = printed(rising)
    assert f"{SOME}fedprox." in text
    assert "* not converged, still rising at the last round: fedavg (" in text


def test_of_a_method_with_a_verdict_from_another_seed_or_no_run_that_has_ended_it_is_not_said(rising):
    assert "too short" not in printed(rising).lower()
    short(rising, "local", "fedprox")
    (rising / "fedprox-short" / "summary.json").unlink()
    assert "too short" not in printed(rising).lower()


def test_runs_too_short_for_a_verdict_are_said_to_be_in_report_and_markdown(rising):
    pytest.importorskip("altair", reason="the extra report is not installed")
    from sepal.report.page import render

    short(rising, "fedprox")
    comparison = read_comparison([str(rising)])
    assert f"{SOME}fedprox." in render(comparison)
    assert f"{SOME}fedprox." in write_markdown(comparison, rising / "comparison.md").read_text()


# leads


def conclusions_of(path, seeds, **accuracies):
    """What is said of runs with these accuracies by method: a list has one for each seed."""
    for method, values in accuracies.items():
        for seed in range(seeds):
            value = values[seed]
            write_run(path / f"{method}-{seed}", method=method, seed=seed, closing=[value - 0.1, value, value + 0.1])
    return list(conclusions(read_comparison([str(path)]), ""))


def test_a_lead_needs_an_interval_over_seeds_that_excludes_none(tmp_path):
    """.2, .1, .3: .2 ± 4.303 · .1 / √3 = .248. All clients are ahead each time, and still it is no lead."""
    (line,) = conclusions_of(tmp_path / "a", 3, fedavg=[0.7, 0.6, 0.8], fedem=[0.5, 0.5, 0.5], fedprox=[0.1, 0.1, 0.1])
    assert line == (
        "fedavg: better than fedprox (+60.0 [+35.2, +84.8]); no clear difference from fedem (+20.0 [-4.8, +44.8]). "
        "Points of deployed models, 95 % interval over 3 seeds."
    )
    (line,) = conclusions_of(tmp_path / "b", 3, fedavg=[0.3, 0.31, 0.3], fedem=[0.8, 0.8, 0.8])
    assert line.startswith("fedavg: worse than fedem (-49.7 [-51.1, -48.2]).")


def test_one_seed_or_two_establish_no_lead(tmp_path):
    (line,) = conclusions_of(tmp_path / "a", 1, fedavg=[0.8], fedem=[0.2])
    assert line == "One seed is too few to say which is better: fedavg 80.0 %, fedem 20.0 % (deployed models)."
    (line,) = conclusions_of(tmp_path / "b", 2, fedavg=[0.8, 0.8], fedem=[0.2, 0.3])
    assert line.startswith("Two seeds are too few to say which is better: fedavg 80.0 ± 0.0 %, fedem 25.0 ± 7.1 %")
    assert conclusions_of(tmp_path / "c", 1, fedavg=[0.8]) == []


@pytest.mark.parametrize(
    ("seeds", "over", "figures"), [(3, "seeds", "+20.0 [-4.8, +44.8]"), (1, "clients", "+20.0 [+20.0, +20.0]")]
)
def test_of_one_difference_there_is_one_interval(tmp_path, seeds, over, figures):
    """Clients differ by the same: over them the interval is 0, and it must not stand beside that of the conclusion."""
    concluded = conclusions_of(tmp_path, seeds, fedavg=[0.7, 0.6, 0.8], fedem=[0.5, 0.5, 0.5])
    comparison = read_comparison([str(tmp_path)])
    text_table = difference_table(comparison, "")
    assert text_table.head[0].startswith(f"paired difference over {over},")
    assert text_table.rows[0][1] == figures
    assert (figures in concluded[0]) == (seeds == 3)
    (reading,) = (chart.reading for chart in charts(comparison, datasets(comparison)) if chart.name == "pairs")
    assert f"with the 95 % interval over {over}." in reading
    assert ("a guide and no test" in reading) == (seeds == 1)
    assert ("standard deviation over seeds" in legend(comparison)) == (seeds == 3)

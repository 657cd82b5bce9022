"""The frontier, who is there within the noise, and MB to within one point of a yardstick, by numbers worked by hand."""

from __future__ import annotations

import json

import pytest

from sepal.report.sentences import on_frontier
from sepal.study.comparison import read_comparison
from sepal.study.frontier import Arrival, FrontierEntry, Step, close, close_to, frontier, mean_curve
from sepal.study.results import CurvePoint
from sepal.tasks.scoring import Measure
from tests.sepal.cli.runs_for_tests import write_run

RMSE = Measure("rmse", "mmol/l", higher=False)


def entry(label, megabytes, *values, curve=()):
    return FrontierEntry(label, megabytes, dict(enumerate(values)), [Step(*step) for step in curve])


def on(*entries, measure=None):
    places = frontier(entries, measure) if measure else frontier(entries)
    return [point.entry.label for point in places if point.frontier]


def test_on_the_frontier_is_who_is_beaten_by_no_other():
    """b costs more than a for less; d costs what c does for less; e has no more than c for more MB."""
    entries = [entry("e", 9, 0.8), entry("d", 4, 0.7), entry("c", 4, 0.8), entry("b", 2, 0.3), entry("a", 1, 0.5)]
    assert on(*entries) == ["a", "c"]
    assert [point.entry.label for point in frontier(entries)] == ["a", "b", "c", "d", "e"], "by MB, the best first"


def test_equals_share_the_frontier():
    assert on(entry("local", 0, 0.5), entry("b", 3, 0.9), entry("a", 3, 0.9)) == ["local", "b", "a"]


def test_of_an_error_the_lower_is_better():
    entries = entry("a", 1, 5.0), entry("b", 2, 6.0), entry("c", 3, 4.0)
    assert on(*entries, measure=RMSE) == ["a", "c"]
    assert on(*entries) == ["a", "b"]


def test_a_place_is_within_the_noise_if_the_interval_over_seeds_of_its_lead_has_0():
    """Leads of .01, .02, .03: mean .02, half-width 4.303 × .01 / √3 = .0248, so 0 is in it. Of .02 each: 0."""
    local, noisy = entry("local", 0, 0.50, 0.60, 0.70), entry("fedpse", 1, 0.51, 0.62, 0.73)
    clear = entry("ft", 2, 0.53, 0.64, 0.75)
    rivals = {point.entry.label: point.rival for point in frontier([local, noisy, clear])}
    assert rivals == {"local": "", "fedpse": "local", "ft": ""}
    words = on_frontier(frontier([local, noisy, clear]))
    assert words == (
        "Best for their bytes: local (0 MB), fedpse (1.00 MB), ft (2.00 MB). "
        "Within noise of each other: local and fedpse."
    )
    both = on_frontier(frontier([local, noisy, entry("ft", 2, 0.52, 0.64, 0.76)]))
    assert both.endswith("ft (2.00 MB). The differences between neighbours are within noise.")
    apart = on_frontier(frontier([local, entry("ft", 2, 0.53, 0.64, 0.75)]))
    assert apart == "Best for their bytes: local (0 MB), ft (2.00 MB). The difference between them is clear."
    assert on_frontier(frontier([entry("a", 0, 0.9, 0.9, 0.9), local])) == "Best for its bytes: a (0 MB)."
    swapped = [
        entry(variant.label, variant.megabytes, *(-v for v in variant.by_seed.values())) for variant in (local, noisy)
    ]
    dear = entry("dear", 3, 0.51, 0.62, 0.74)  # .001 above fedpse, and off the frontier
    assert frontier([local, noisy, clear, dear])[-1].rival == ""
    error = {point.entry.label: point.rival for point in frontier(swapped, RMSE)}
    assert error == {"local": "", "fedpse": "local"}


@pytest.mark.parametrize(("seeds", "words"), [(1, "One seed is too few"), (2, "2 seeds are too few"), (3, None)])
def test_with_fewer_than_three_seeds_the_sentence_says_so_and_nothing_of_noise(seeds, words):
    places = frontier([entry("local", 0, *[0.5] * seeds), entry("a", 1, *[0.6, 0.4, 0.6][:seeds])])
    sentence = on_frontier(places)
    assert (words in sentence) if words else ("too few" not in sentence)
    assert ("within noise" in sentence) == (seeds == 3)
    assert on_frontier(places[:1]) == ""


def test_megabytes_to_within_a_point_are_those_from_which_a_curve_stays():
    """FT ends at 80 %, so 79 % is close: a is there at 3 MB, falls back at 4, and returns at 5; b ends below."""
    ft = entry("ft", 9, 0.7, 0.9, curve=[(0, 0, 0.2), (1, 4, 0.5), (2, 8, 0.79), (3, 9, 0.8)])
    a = entry("a", 6, 0.79, curve=[(0, 0, 0.1), (2, 3, 0.795), (3, 4, 0.78), (4, 5, 0.79 - 1e-12), (5, 6, 0.79)])
    b = entry("b", 6, 0.78, curve=[(0, 0, 0.9), (1, 3, 0.9), (2, 6, 0.78)])
    few = entry("few", 6, 0.9, curve=[(0, 0, 0.9), (1, 3, 0.9)])
    local = entry("local", 0, 0.9, curve=[(2, 0, 0.9), (5, 0, 0.9), (6, 0, 0.9)])
    near = close([ft, a, b, few, local], ft)
    assert near.target == pytest.approx(0.79)
    assert near.reached == {"ft": (8, False), "a": (5, False), "b": None, "local": (0, False)}
    assert close([few], ft) is None


def test_megabytes_are_at_most_those_where_rounds_before_were_not_evaluated():
    ft = entry("ft", 8, 0.5, curve=[(4, 4, 0.2), (9, 9, 0.6), (10, 10, 0.5)])
    assert close([ft], ft).reached == {"ft": Arrival(9, at_most=True)}


def test_a_point_of_a_metric_that_is_no_share_is_one_per_cent_of_the_yardstick():
    ft = entry("ft", 9, 5.0, curve=[(0, 0, 9.0), (1, 3, 5.06), (2, 6, 5.04), (3, 9, 5.0)])
    near = close([ft], ft, RMSE)
    assert near.target == pytest.approx(5.05)
    assert near.reached == {"ft": (6, False)}


def test_a_mean_curve_takes_the_last_of_a_seed_that_has_stopped():
    """Seed 0 ends after two rounds with 2 MB and .4; the other goes on. Before both have a point there is none."""
    first = [CurvePoint(2, 1, 1.0, 0.0, 0.2, 0.0), CurvePoint(2, 2, 2.0, 0.0, 0.4, 0.0)]
    second = [
        CurvePoint(1, 0, 0.0, 0.0, 0.1, 0.0),
        CurvePoint(2, 1, 3.0, 0.0, 0.4, 0.0),
        CurvePoint(4, 4, 8.0, 0.0, 0.8, 0.0),
    ]
    steps = [pytest.approx(expected) for expected in [(1, 2.0, 0.3), (2, 2.5, 0.4), (4, 5.0, 0.6)]]
    assert list(mean_curve([first, second, []])) == steps


def test_the_yardstick_is_the_variant_named_fedavg_ft_or_else_the_best(tmp_path):
    ends = {"fedavg-ft": 0.8, "small": 0.9, "large": 0.7}
    for label, end in ends.items():
        write_run(tmp_path / label, method="fedavg-ft", closing=[end] * 3)
    for labels, yardstick in ((list(ends), "fedavg-ft"), (["large", "small"], "small")):
        rows = [{"name": label, "label": label, "cell": ""} for label in labels]
        index = {"title": "t", "view": "trained", "target": None, "runs": rows}
        (tmp_path / "comparison.json").write_text(json.dumps(index))
        assert close_to(read_comparison([str(tmp_path)]).variants("")).label == yardstick

"""The rows behind a report's figures, as plain lists. Accuracies and shares are in per cent, sizes in MB.

What is called accuracy is the headline metric of the runs' task, as it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sepal.data.feature_noise import noise_level
from sepal.protocol.views import CLOSING_VIEWS, MODELS, SHIFTS
from sepal.report.frontier_rows import frontier_rows
from sepal.report.learned_rows import Row, Rows, learned
from sepal.runs.about import Labels, labels_of
from sepal.strategies import registry
from sepal.study.comparison import Comparison
from sepal.study.results import DIRECTIONS, CurvePoint, RunResult, Variant
from sepal.study.statistics import over_seeds

At = tuple[int, int]  # a point's round, and the rounds completed: the last round and the closing one differ in these
COLOURS = 12  # of the page, --c0 to --c11; further labels start again at --c0
DEPLOYED = "deployed"  # the view in which a user predicts: of each method its own
STAND_IN = "trained"  # shown, and named, in place of a view that a method does not have
PLACE = 8  # letters before a client's name in its place on an axis
MOST_ROUNDS = 500  # of a curve that are drawn: a run of thousands would make a page of many MB


def with_cell(label: str, cell: str) -> str:
    """Return a label, with its cell if there are several."""
    return f"{label} ({cell})" if cell else label


def datasets(comparison: Comparison) -> dict[str, Rows]:
    """Return the rows of every figure that the runs have data for, by data set."""
    rows_of = {name: list(_of_variants(comparison, rows)) for name, rows in BY_VARIANT.items()}
    rows_of |= {
        "labels": list(_labels(comparison)),
        "sizes": list(_sizes(comparison)),
        "pairs": list(_pairs(comparison)),
        **learned(comparison),
    }
    rows_of |= {"frontier": list(frontier_rows(comparison)), "own": _changing(rows_of["own"])}
    return {name: rows for name, rows in rows_of.items() if rows}


def views(comparison: Comparison) -> list[str]:
    """Return the views that any run has, the first shown first; ``trained`` if no client has sent an accuracy."""
    reported = [view for view in CLOSING_VIEWS if any(_has(result, view) for result in comparison.results)]
    users = any(_has(result, v.deployed) for v in comparison.all_variants() for result in v.results)
    return [*[DEPLOYED] * users, *reported] or [STAND_IN]


def deployed(comparison: Comparison) -> dict[str, str]:
    """Return the view that stands for ``deployed``, by ``CELL/LABEL``: rows are stored once, under its own name."""
    return {f"{v.cell}/{v.label}": _shown(v, v.deployed or STAND_IN) for v in comparison.all_variants()}


def first_shown(comparison: Comparison, rows: Rows) -> Rows:
    """Return the rows with a view that figures show when the page is opened."""
    first, deployed_views = views(comparison)[0], deployed(comparison)
    if first != DEPLOYED or any(row["view"] == DEPLOYED for row in rows):  # some figures have rows of that name
        return [row for row in rows if row["view"] == first]
    return [row for row in rows if row["view"] == deployed_views.get(f"{row['cell']}/{row.get('label')}", first)]


def _stored(comparison: Comparison) -> list[str]:
    return [view for view in views(comparison) if view != DEPLOYED]


def _has(result: RunResult, view: str) -> bool:
    return bool(result.points(view) or result.sampled(view))


def _shown(variant: Variant, view: str) -> str:
    """Return the view itself, or the one that stands in for it."""
    view = variant.view_of(view)
    return view if any(_has(result, view) for result in variant.results) else STAND_IN


def stand_ins(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return cell, label and view wherever a method lacks the view, so that another one is shown."""
    return [
        (variant.cell, variant.label, view)
        for variant in comparison.all_variants()
        for view in views(comparison)
        if _shown(variant, view) != variant.view_of(view)
    ]


def _curve(comparison: Comparison, variant: Variant) -> Iterator[Row]:
    """Yield the points of full evaluations, and of the rounds between, whose mean is over their own clients alone."""
    for view in _stored(comparison):
        deployed_view = _shown(variant, view)
        full = _by_round(result.points(deployed_view) for result in variant.results)
        between = _by_round(result.sampled(_just_trained(deployed_view)) for result in variant.results)
        for kind, rounds in (("sampled", between), ("full", full)):
            for at in _thinned(sorted(rounds)):
                points = rounds[at]
                yield {
                    "view": view,
                    "stand_in": deployed_view != view,
                    "kind": kind,
                    **_evaluation(variant, at, points),
                    "mb": _rounded(float(np.mean([point.megabytes for point in points]))),
                    "seconds": round(float(np.mean([point.seconds for point in points])), 2),
                    "last": at == max(full or between) and (kind == "full" or not full),
                }


def _evaluation(variant: Variant, at: At, points: Sequence[CurvePoint]) -> Row:
    """Return the round of an evaluation, and its mean over seeds with one standard deviation on both sides."""
    estimate, measure, (number, completed) = over_seeds([point.mean for point in points]), variant.measure, at
    mean, spread = (estimate.mean, estimate.spread or 0.0) if estimate else (0.0, 0.0)
    low, high = mean - spread, mean + spread
    if measure.percent:
        low, high = max(0.0, low), min(1.0, high)
    return {
        "round": number,
        "at": f"closing, after round {number}" if completed == number else f"round {number}",
        "mean": measure.rounded(mean),
        "low": measure.rounded(low),
        "high": measure.rounded(high),
    }


def _simulated(comparison: Comparison, variant: Variant) -> Iterator[Row]:
    """Yield the points of full evaluations with simulated hours, and one standard deviation on both sides of these."""
    for view in _stored(comparison) if variant.profile and not variant.why_no_hours else ():
        deployed_view = _shown(variant, view)
        rounds: dict[At, list[tuple[RunResult, CurvePoint]]] = {}
        for result in variant.results:
            for point in result.points(deployed_view):
                rounds.setdefault((point.round, point.completed), []).append((result, point))
        for at in _thinned(sorted(rounds)):
            hours = variant.simulated([(result, deployed_view, point.completed) for result, point in rounds[at]])
            if hours:
                spread = hours.spread or 0.0
                yield {
                    "view": view,
                    "stand_in": deployed_view != view,
                    **_evaluation(variant, at, [point for _, point in rounds[at]]),
                    "hours": _rounded(hours.mean),
                    "early": _rounded(max(0.0, hours.mean - spread)),
                    "later": _rounded(hours.mean + spread),
                    "last": at == max(rounds),
                }


def _just_trained(view: str) -> str:
    """Return the view that a round's own clients have: a client keeps what it has just trained."""
    return "trained" if view == "kept" else view


def _rounded(megabytes: float) -> float:
    return float(f"{megabytes:.5g}")  # also of a few bytes something is left


def _by_round(curves: Iterable[Sequence[CurvePoint]]) -> dict[At, list[CurvePoint]]:
    points: dict[At, list[CurvePoint]] = {}
    for curve in curves:
        for point in curve:
            points.setdefault((point.round, point.completed), []).append(point)
    return points


def _thinned(rounds: Sequence[At]) -> Sequence[At]:
    """Return all rounds, or of more than :data:`MOST_ROUNDS` evenly spaced ones and the last."""
    step = -(-len(rounds) // MOST_ROUNDS) or 1
    return [*rounds[:-1:step], *rounds[-1:]]


def _clients(comparison: Comparison, variant: Variant) -> Iterator[Row]:
    """Yield each client's accuracy in each view, and beside it the client's accuracy with the yardsticks."""
    for view in views(comparison):
        deployed_view = _shown(variant, view)
        accuracy, measure = variant.first.clients(deployed_view), variant.measure
        beside = {
            yardstick.label: yardstick.first.clients(_shown(yardstick, view))
            for yardstick in comparison.variants(variant.cell)
            if yardstick.method in registry.YARDSTICKS and yardstick.label != variant.label
        }
        ranked = sorted(accuracy, key=lambda name: (measure.sign * accuracy[name], name))
        low = max(1, len(ranked) // 10)
        for rank, name in enumerate(ranked, 1):
            yield {
                "view": view,
                "client": name,
                "place": _ranked_name(rank, name),
                "accuracy": measure.rounded(accuracy[name]),
                "part": "worst 10 %" if rank <= low else "other clients",
                "decile": measure.rounded(accuracy[ranked[low - 1]]),
                "beside": [
                    [label, measure.rounded(accuracies[name])]
                    for label, accuracies in beside.items()
                    if name in accuracies
                ],
            }


def _ranked_name(rank: int, name: str) -> str:
    return f"{rank:0{PLACE - 1}} {name}"  # in alphabetical order of the ranks


def _bytes(comparison: Comparison, variant: Variant) -> Iterator[Row]:
    sent = variant.first.sent
    names = sorted({name for way in DIRECTIONS for name in sent[way]})
    total = {name: sum(sent[way].get(name, 0.0) for way in DIRECTIONS) for name in names}
    for rank, name in enumerate(sorted(names, key=lambda client: (-total[client], client)), 1):
        for way in DIRECTIONS:
            size = _rounded(sent[way].get(name, 0.0))
            yield {
                "client": name,
                "place": _ranked_name(rank, name),
                "direction": way,
                "mb": size,
            }


def _labels(comparison: Comparison) -> Iterator[Row]:
    """Yield the number of training examples of each label that each client has; nothing if that is not known."""
    for cell in comparison.cells:
        variants = comparison.variants(cell)
        labels = labels_of(variants[0].first.stored) if variants else Labels()
        for client, client_counts in (labels.counts or {}).items():
            for number, count in enumerate(client_counts):
                if count:
                    label = labels.names[number] if labels.names else str(number)
                    row = {"cell": cell, "client": client, "class": label, "number": number}
                    yield {**row, "examples": int(count)}


def _sizes(comparison: Comparison) -> Iterator[Row]:
    """Yield each client's number of training examples, strength of noise and domain; nothing where all are alike."""
    for cell in comparison.cells:
        variants = comparison.variants(cell)
        run = variants[0].first.stored if variants else None
        labels = labels_of(run) if run else Labels()
        counts, noise = labels.counts or {}, run.config.get("partition.noise", 0.0) if run else 0.0
        noise = noise if isinstance(noise, float) and 0 <= noise < math.inf else 0.0
        sizes = [sum(client_counts) for client_counts in counts.values()]
        if not noise and len(set(labels.domains)) < 2 and max(sizes, default=0) - min(sizes, default=0) < 2:
            continue
        for number, (client, size) in enumerate(zip(counts, sizes, strict=True)):
            domain = f"domain {labels.domains[number] + 1}" if labels.domains else "all"
            level = float(f"{noise_level(noise, number, len(counts)):.4g}")
            yield {"cell": cell, "client": client, "examples": size, "noise": level, "domain": domain}


def _shift(comparison: Comparison, variant: Variant) -> Iterator[Row]:
    for view in MODELS:
        for percent in SHIFTS:
            names = (f"{shown}-shift-{percent}" for shown in dict.fromkeys((view, STAND_IN)))
            if estimate := next(filter(None, map(variant.accuracy_further, names)), None):
                mean = variant.measure.rounded(estimate.mean)
                yield {"view": view, "shift": percent, "mean": mean}


def _pairs(comparison: Comparison) -> Iterator[Row]:
    for cell in comparison.cells:
        for view in (DEPLOYED, *CLOSING_VIEWS):
            for label, difference in comparison.differences(cell, view):
                mean, half = difference.mean, difference.spread or 0.0
                row = {"mean": mean, "low": mean - half, "high": mean + half}
                rounded_row = {name: comparison.measure.rounded(value) for name, value in row.items()}
                yield {"cell": cell, "view": view, "pair": label, **rounded_row}


def _capacity(comparison: Comparison, variant: Variant) -> Iterator[Row]:
    """Yield the capacity and accuracy of clients, if their capacities differ."""
    result = variant.first
    capacity = {client["name"]: client["capacity"] for line in result.stored.lines for client in line["clients"]}
    if len(set(capacity.values())) < 2:
        return
    for view in _stored(comparison):
        for name, accuracy in result.clients(_shown(variant, view)).items():
            yield {
                "view": view,
                "client": name,
                "capacity": round(100 * capacity[name], 1),
                "accuracy": variant.measure.rounded(accuracy),
            }


def _own_figures(comparison: Comparison, variant: Variant) -> Iterator[Row]:
    """Yield the methods' own figures by round, and the means over clients of what clients report."""
    for line in variant.first.stored.lines:
        if line["phase"] == "closing":
            continue
        figures = {name: value for name, value in line["method"].items() if ".client-" not in name}
        for name, value in {**figures, **_client_means(line["clients"])}.items():
            if value is not None:
                row = {
                    "round": line["round"],
                    "figure": name,
                    "value": float(f"{value:.5g}"),
                }
                yield {"cell": variant.cell, **row}


def _changing(rows: Rows) -> Rows:
    """Return the rows without figures that are the same in all rounds of all runs."""
    values: dict[str, set[float]] = {}
    for row in rows:
        values.setdefault(row["figure"], set()).add(row["value"])
    several = len({row["round"] for row in rows}) > 1
    return [row for row in rows if len(values[row["figure"]]) > 1 or not several]


COMMON = ("seconds", "steps", "multiply-adds", "unseen-test-labels")  # of every method: shown elsewhere, or the same


def _client_means(clients: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    reported: dict[str, list[float]] = {}
    for client in clients:
        for name, value in client["metrics"].items():
            if name not in COMMON and value is not None:
                reported.setdefault(f"{name}, mean over clients", []).append(value)
    return {name: sum(values) / len(values) for name, values in reported.items()}


def _of_variants(comparison: Comparison, rows: Callable[[Comparison, Variant], Iterator[Row]]) -> Iterator[Row]:
    for variant in comparison.all_variants():
        yield from ({"cell": variant.cell, "label": variant.label, **row} for row in rows(comparison, variant))


BY_VARIANT = {
    "curve": _curve,
    "simulated": _simulated,
    "clients": _clients,
    "bytes": _bytes,
    "shift": _shift,
    "capacity": _capacity,
    "own": _own_figures,
}

"""The rows behind a report's figures, as plain lists. Accuracies and shares are in per cent, sizes in MB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from sepal.cli.comparison import Comparison, Group
from sepal.cli.comparison_tables import YARDSTICKS
from sepal.cli.report.learned import Row, Rows, learned
from sepal.cli.results import DIRECTIONS
from sepal.errors import SepalError
from sepal.protocol.views import CLOSING_VIEWS, MODELS, SHIFTS

COLOURS = 12  # of the page, --c0 to --c11; further labels start again at --c0
STAND_IN = "trained"  # shown dashed in place of a view that a method does not have


def datasets(comparison: Comparison) -> dict[str, Rows]:
    """Return the rows of every figure that the runs have data for, by data set."""
    found = {
        "curve": list(_curve(comparison)),
        "clients": list(_clients(comparison)),
        "bytes": list(_bytes(comparison)),
        "labels": list(_labels(comparison)),
        "shift": list(_shift(comparison)),
        "pairs": list(_pairs(comparison)),
        "capacity": list(_capacity(comparison)),
        "own": list(_own(comparison)),
        **learned(comparison),
    }
    return {name: rows for name, rows in found.items() if rows}


def views(comparison: Comparison) -> list[str]:
    """Return the views that any run has; ``trained`` if no client has sent an accuracy."""
    found = [view for view in CLOSING_VIEWS if any(result.points(view) for result in comparison.results)]
    return found or [STAND_IN]


def _shown(group: Group, view: str) -> str:
    """Return the view itself, or the one that stands in for it."""
    return view if any(result.points(view) for result in group.results) else STAND_IN


def stand_ins(comparison: Comparison) -> list[tuple[str, str, str]]:
    """Return cell, label and view wherever a method lacks the view, so that another one is shown."""
    return [
        (group.cell, group.label, view)
        for group in comparison.all_groups()
        for view in views(comparison)
        if _shown(group, view) != view
    ]


def _curve(comparison: Comparison) -> Iterator[Row]:
    for group in comparison.all_groups():
        for view in views(comparison):
            shown = _shown(group, view)
            by_round: dict[int, list[Any]] = {}
            for result in group.results:
                for point in result.points(shown):
                    by_round.setdefault(point.round, []).append(point)
            for number, points in by_round.items():
                means = [100 * point.mean for point in points]
                spread = float(np.std(means, ddof=1)) if len(means) > 1 else 0.0
                mean = float(np.mean(means))
                yield {
                    "cell": group.cell,
                    "label": group.label,
                    "view": view,
                    "stand_in": shown != view,
                    "round": number,
                    "mb": round(float(np.mean([point.megabytes for point in points])), 4),
                    "seconds": round(float(np.mean([point.seconds for point in points])), 2),
                    "mean": round(mean, 2),
                    "low": round(max(0.0, mean - spread), 2),
                    "high": round(min(100.0, mean + spread), 2),
                    "last": number == max(by_round),
                }


def _clients(comparison: Comparison) -> Iterator[Row]:
    groups = list(comparison.all_groups())
    for group in groups:
        for view in views(comparison):
            shown = _shown(group, view)
            accuracy = group.first.clients(shown)
            beside = {
                other.label: other.first.clients(_shown(other, view))
                for other in groups
                if other.cell == group.cell and other.method in YARDSTICKS and other.label != group.label
            }
            ranked = sorted(accuracy, key=lambda name: (accuracy[name], name))
            low = max(1, len(ranked) // 10)
            for rank, name in enumerate(ranked, 1):
                yield {
                    "cell": group.cell,
                    "label": group.label,
                    "view": view,
                    "client": name,
                    "rank": rank,
                    "accuracy": round(100 * accuracy[name], 2),
                    "part": "bottom 10 %" if rank <= low else "other clients",
                    "decile": round(100 * accuracy[ranked[low - 1]], 2),
                    "beside": [
                        [other, round(100 * there[name], 2)] for other, there in beside.items() if name in there
                    ],
                }


def _bytes(comparison: Comparison) -> Iterator[Row]:
    for group in comparison.all_groups():
        sent = group.first.sent
        names = sorted({name for way in DIRECTIONS for name in sent[way]})
        total = {name: sum(sent[way].get(name, 0.0) for way in DIRECTIONS) for name in names}
        for rank, name in enumerate(sorted(names, key=lambda each: (-total[each], each)), 1):
            for way in DIRECTIONS:
                size = round(sent[way].get(name, 0.0), 5)
                yield {
                    "cell": group.cell,
                    "label": group.label,
                    "client": name,
                    "rank": rank,
                    "direction": way,
                    "mb": size,
                }


def _labels(comparison: Comparison) -> Iterator[Row]:
    """Yield the number of training examples of each label that each client has; nothing if the data is not here."""
    for cell in comparison.cells:
        groups = comparison.groups(cell)
        names, counts, _ = label_counts(groups[0].first.stored.config) if groups else ((), {}, "")
        for client, found in counts.items():
            for number, count in enumerate(found):
                if count:
                    label = names[number] if names else str(number)
                    row = {"cell": cell, "client": client, "class": label, "number": number}
                    yield {**row, "examples": int(count)}


def label_counts(config: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, list[int]], str]:
    """Return the labels' names, if they have any, each client's number of training examples by label, and a reason.

    If the data is private or not on this machine, the first two are empty and the reason is a sentence that says so.
    """
    return _label_counts(tuple(config.items()))


@lru_cache(maxsize=64)
def _label_counts(items: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, ...], dict[str, list[int]], str]:
    from sepal.client_app.build import client_name
    from sepal.config import parse
    from sepal.data import federated_data
    from sepal.strategies.registry import Hypers

    try:  # without the run's model: for a run from elsewhere, building it could import code
        config, _ = parse(dict(items), Hypers())
        data = federated_data(config)
        if data.private:
            return (), {}, "The clients bring data of their own, and only they know its labels."
        classes, found = data.info.classes, {}
        for number in range(config.clients):
            name = client_name(number)
            labels = data.client(number, config.clients, name).train.y
            found[name] = np.bincount(labels, minlength=classes).tolist()
    except SepalError:  # its text is not shown: it may name a directory of this machine
        name = dict(items).get("dataset", "")
        return (), {}, f"The data ({name}) is not on the machine that wrote this report, or cannot be read there."
    return data.info.class_names, found, ""


def _shift(comparison: Comparison) -> Iterator[Row]:
    for group in comparison.all_groups():
        for view in MODELS:
            for percent in SHIFTS:
                found = group.accuracy_further(f"{view}-shift-{percent}")
                if found:
                    mean = round(100 * found.mean, 2)
                    yield {"cell": group.cell, "label": group.label, "view": view, "shift": percent, "mean": mean}


def _pairs(comparison: Comparison) -> Iterator[Row]:
    for cell in comparison.cells:
        for view in CLOSING_VIEWS:
            for label, found in comparison.differences(cell, view):
                mean, half = 100 * found.mean, 100 * (found.spread or 0.0)
                row = {"mean": mean, "low": mean - half, "high": mean + half}
                yield {"cell": cell, "view": view, "pair": label, **{k: round(v, 2) for k, v in row.items()}}


def _capacity(comparison: Comparison) -> Iterator[Row]:
    """Yield the capacity and accuracy of clients, if their capacities differ."""
    for group in comparison.all_groups():
        result = group.first
        capacity = {client["name"]: client["capacity"] for client in result.stored.lines[-1]["clients"]}
        if len(set(capacity.values())) < 2:
            continue
        for view in views(comparison):
            for name, accuracy in result.clients(_shown(group, view)).items():
                yield {
                    "cell": group.cell,
                    "label": group.label,
                    "view": view,
                    "client": name,
                    "capacity": round(100 * capacity[name], 1),
                    "accuracy": round(100 * accuracy, 2),
                }


def _own(comparison: Comparison) -> Iterator[Row]:
    """Yield the methods' own figures by round, and the means over clients of what clients report."""
    for group in comparison.all_groups():
        for line in group.first.stored.lines:
            if line["phase"] == "closing":
                continue
            own = {name: value for name, value in line["method"].items() if ".client-" not in name}
            for name, value in {**own, **_client_means(line["clients"])}.items():
                if value is not None:
                    row = {"label": group.label, "round": line["round"], "figure": name, "value": float(f"{value:.5g}")}
                    yield {"cell": group.cell, **row}


COMMON = ("seconds", "steps", "multiply-adds", "unseen-test-labels")  # of every method: shown elsewhere, or the same


def _client_means(clients: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for client in clients:
        for name, value in client["metrics"].items():
            if name not in COMMON and value is not None:
                found.setdefault(f"{name}, mean over clients", []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}

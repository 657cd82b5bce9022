"""The rows and tables of referee/results/defaults.md: one row a run, one table a data set."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sepal.storage.files import write_atomically
from sepal.strategies import registry
from sepal.study.results import Variant

RESULTS = Path(__file__).parents[2] / "referee" / "results"
ROWS, PAGE = RESULTS / "defaults.ndjson", RESULTS / "defaults.md"
YARDSTICK = "fedavg-ft"
HEAD = (
    "| method | lr | deployed | accuracy | minus FedAvg-FT | worst seed | commit |\n"
    "| --- | --- | --- | --- | --- | --- | --- |\n"
)

Row: TypeAlias = dict[str, Any]


def rows_of(dataset: str, groups: Mapping[str, Variant], seeds: Sequence[int], commit: str) -> list[Row]:
    """Return a row for each method and seed. ``accuracy``, in [0, 1], is None where the run ended with an error."""
    found = []
    for group in groups.values():
        there = by_seed(group)
        rate = group.results[0].stored.config["lr"]
        for seed in seeds:
            row = {"dataset": dataset, "method": group.method, "seed": seed, "lr": rate, "view": group.deployed}
            found.append({**row, "accuracy": there.get(seed), "commit": commit})
    return found


def by_seed(group: Variant) -> dict[int, float | None]:
    """Return seed → accuracy of the deployed model, mean over clients; None where there is none."""
    return {result.seed: mean_of(result.accuracy(group.deployed)) for result in group.results}


def worst(ours: Mapping[int, float | None], theirs: Mapping[int, float | None]) -> tuple[float, int] | None:
    """Return the lowest difference of one seed, in points, and the seed; −∞ where we have no figure.

    None without a seed in which the other has one.
    """
    pairs = [(seed, ours.get(seed), value) for seed, value in theirs.items() if value is not None]
    gaps = [(-math.inf if mine is None else 100 * (mine - value), seed) for seed, mine, value in pairs]
    return min(gaps, default=None)


def lowest_words(lowest: tuple[float, int] | None) -> str:
    """Return ``-12.6 (0)``: the points of the worst seed, and which it is; ``ended (0)`` where it has no figure."""
    if lowest is None:
        return "-"
    return f"{lowest[0]:+.1f} ({lowest[1]})" if math.isfinite(lowest[0]) else f"ended ({lowest[1]})"


def mean_of(figures: Mapping[str, float] | None) -> float | None:
    """Return the mean over clients, None without figures."""
    return figures["mean"] if figures else None


def read_rows() -> list[Row]:
    """Return all stored rows."""
    return [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]


def store(new: Iterable[Row]) -> None:
    """Put rows in the place of those of the same data set, method and seed, and write the page's tables anew."""

    def name(row: Row) -> tuple[Any, ...]:
        return row["dataset"], row["method"], row["seed"]

    merged = {name(row): row for row in (*read_rows(), *new)}
    order = list(registry.METHODS)
    rows = sorted(merged.values(), key=lambda row: (row["dataset"] != "har", order.index(row["method"]), row["seed"]))
    write_atomically(ROWS, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    write_atomically(PAGE, with_tables(PAGE.read_text(encoding="utf-8"), rows).encode())


def with_tables(page: str, rows: Sequence[Row]) -> str:
    """Return the page with the table of each data set, which follows its heading up to the page's end or the next."""
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        lines = table([row for row in rows if row["dataset"] == dataset])
        heading = f"## {dataset}\n"
        if heading not in page:
            page += f"\n{heading}"
        page = re.sub(rf"(?s){heading}.*?(?=\n## |\Z)", (heading + lines).replace("\\", r"\\"), page)
    return page


def table(rows: Sequence[Row]) -> str:
    """Return the table of one data set's rows."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    return HEAD + "".join(_line(method, found, by_method[YARDSTICK]) for method, found in by_method.items())


def seeds_of(rows: Sequence[Row]) -> dict[int, float | None]:
    """Return seed → accuracy of one method's rows."""
    return {row["seed"]: row["accuracy"] for row in rows}


def gap(rows: Sequence[Row], yardstick: float) -> float:
    """Return the mean of a method's rows minus ``yardstick``, in points."""
    values: list[float] = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    return 100 * (statistics.mean(values) - yardstick)


def _line(method: str, rows: Sequence[Row], yardstick: Sequence[Row]) -> str:
    values = [100 * row["accuracy"] for row in rows if row["accuracy"] is not None]
    ended = len(rows) - len(values)
    words = f"{statistics.mean(values):.1f}" if values else "-"
    words += f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    words += f" ({ended} of {len(rows)} ended)" if ended else ""
    behind = f"{gap(rows, statistics.mean(row['accuracy'] for row in yardstick)):+.1f}" if values else "-"
    lowest = lowest_words(worst(seeds_of(rows), seeds_of(yardstick)))
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(row["commit"] for row in rows))
    return f"| `{method}` | {rows[0]['lr']:g} | {rows[0]['view']} | {words} | {behind} | {lowest} | {commits} |\n"

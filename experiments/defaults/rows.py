"""The rows and tables of docs/results/defaults.md: one row a run, one table a data set."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from sepal.storage.files import write_atomically
from sepal.strategies import registry
from sepal.study.results import Variant

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ROWS, PAGE = RESULTS / "defaults.ndjson", RESULTS / "defaults.md"
YARDSTICK = "fedavg-ft"
HEAD = "| method | lr | deployed | accuracy | minus FedAvg-FT | commit |\n| --- | --- | --- | --- | --- | --- |\n"

Row: TypeAlias = dict[str, Any]


def rows_of(dataset: str, groups: Mapping[str, Variant], seeds: Sequence[int], commit: str) -> list[Row]:
    """Return a row for each method and seed. ``accuracy``, in [0, 1], is None where the run ended with an error."""
    found = []
    for group in groups.values():
        by_seed = {result.seed: mean_of(result.accuracy(group.deployed)) for result in group.results}
        rate = group.results[0].stored.config["lr"]
        for seed in seeds:
            row = {"dataset": dataset, "method": group.method, "seed": seed, "lr": rate, "view": group.deployed}
            found.append({**row, "accuracy": by_seed.get(seed), "commit": commit})
    return found


def mean_of(figures: Mapping[str, float] | None) -> float | None:
    """Return the mean over clients, None without figures."""
    return figures["mean"] if figures else None


def read_rows() -> list[Row]:
    """Return all stored rows."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()]


def store(new: Iterable[Row]) -> None:
    """Put rows in the place of those of the same data set, method and seed, and write the page's tables anew."""

    def name(row: Row) -> tuple[Any, ...]:
        return row["dataset"], row["method"], row["seed"]

    merged = {name(row): row for row in (*read_rows(), *new)}
    order = list(registry.METHODS)
    rows = sorted(merged.values(), key=lambda row: (row["dataset"] != "har", order.index(row["method"]), row["seed"]))
    write_atomically(ROWS, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
    write_atomically(PAGE, with_tables(PAGE.read_text(), rows).encode())


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
    yardstick = statistics.mean(row["accuracy"] for row in by_method[YARDSTICK])
    return HEAD + "".join(_line(method, found, yardstick) for method, found in by_method.items())


def gap(rows: Sequence[Row], yardstick: float) -> float:
    """Return the mean of a method's rows minus ``yardstick``, in points."""
    values: list[float] = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    return 100 * (statistics.mean(values) - yardstick)


def _line(method: str, rows: Sequence[Row], yardstick: float) -> str:
    values = [100 * row["accuracy"] for row in rows if row["accuracy"] is not None]
    ended = len(rows) - len(values)
    words = f"{statistics.mean(values):.1f}" if values else "-"
    words += f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    words += f" ({ended} of {len(rows)} ended)" if ended else ""
    behind = f"{gap(rows, yardstick):+.1f}" if values else "-"
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(row["commit"] for row in rows))
    return f"| `{method}` | {rows[0]['lr']:g} | {rows[0]['view']} | {words} | {behind} | {commits} |\n"

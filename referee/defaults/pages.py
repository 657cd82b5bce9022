"""Makes ``referee/results/defaults.md``, and ``stability.md`` once kinds of arithmetic have run, from the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from referee.checkout import RESULTS, render
from referee.defaults.runs import COLLAPSED, MOST_DIFFERENCE, YARDSTICK, MethodResults, established, method_results
from sepal.report.markdown import table
from sepal.strategies import registry
from sepal.study.record import RunRecord, read

ROWS, STABILITY = RESULTS / "defaults.ndjson", RESULTS / "stability.ndjson"
HEAD = ["method", "lr", "deployed", "accuracy", "minus FedAvg-FT", "worst seed", "commit"]


def pages() -> dict[Path, str]:
    """Return path → text of the pages."""
    results = method_results(read(ROWS))
    datasets = dict.fromkeys(result.dataset for result in results)
    tables = {name: default_table([result for result in results if result.dataset == name]) for name in datasets}
    texts = {ROWS.with_suffix(".md"): render("defaults.md", tables=tables, worst_seeds=_worst_seeds(results))}
    if rows := read(STABILITY):
        texts[STABILITY.with_suffix(".md")] = render("stability.md", **_stability(rows))
    return texts


def default_table(results: Sequence[MethodResults]) -> str:
    """Return the table of one data set: the deployed model's accuracy, and how far each is behind the yardstick."""
    yardstick = next((result for result in results if result.method == YARDSTICK), None)
    return "\n".join(table(HEAD, [_line(result, yardstick) for result in results])).rstrip()


def _worst_seeds(results: Sequence[MethodResults]) -> dict[tuple[str, bool], dict[str, dict[str, float]]]:
    """Return how many points each method is behind the yardstick with its worst seed, by its verdict.

    The groups are by data set and whether clients deploy models of their own.
    """
    yardsticks = {result.dataset: result for result in results if result.method == YARDSTICK}
    groups: dict[tuple[str, bool], dict[str, dict[str, float]]] = {}
    for result in results:
        yardstick = yardsticks[result.dataset]
        key = result.dataset, result.rows[0].deployed != "received"
        by_verdict = groups.setdefault(key, {"behind": {}, "explained": {}, "": {}})
        if lowest := result.worst(yardstick):
            by_verdict[result.verdict(yardstick)][result.method] = -lowest[0]
    return groups


def _line(result: MethodResults, yardstick: MethodResults | None) -> list[str]:
    values = [100 * value for value in result.accuracies()]
    ended = len(result.rows) - len(values)
    words = f"{mean(values):.1f}" if values else "-"
    words += f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    words += f" ({ended} of {len(result.rows)} ended)" if ended else ""
    yardstick_values = yardstick.accuracies() if yardstick else []
    behind = (
        f"{100 * (mean(result.accuracies()) - mean(yardstick_values)):+.1f}" if values and yardstick_values else "-"
    )
    lowest = result.worst(yardstick) if yardstick else None
    worst = "-"
    if lowest:
        worst = f"{lowest[0]:+.1f} ({lowest[1]})" if math.isfinite(lowest[0]) else f"ended ({lowest[1]})"
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(row.commit for row in result.rows))
    return [f"`{result.method}`", f"{result.lr:g}", result.rows[0].deployed, words, behind, worst, commits]


def _stability(rows: Sequence[RunRecord]) -> dict[str, Any]:
    results = method_results(rows)
    bad, datasets = established(results), []
    for dataset in dict.fromkeys(result.dataset for result in results):
        dataset_results = [result for result in results if result.dataset == dataset]
        dataset_rows = [row for result in dataset_results for row in result.rows]
        datasets.append(
            {
                "name": dataset,
                "methods": len(dataset_results),
                "processors": sorted({row.machine for row in dataset_rows}),
                "commits": sorted({row.commit for row in dataset_rows}),
                "hours": sum(row.seconds for row in dataset_rows) / 3600,
                "rows": [_of_kinds(result, (dataset, result.method) in bad) for result in dataset_results],
            }
        )
    share = {"collapsed": COLLAPSED, "most": 100 * MOST_DIFFERENCE}
    return {"datasets": datasets, "methods": len(registry.METHODS), **share}


def _of_kinds(result: MethodResults, differs: bool) -> list[str]:
    by_kind, collapsed = result.by_kind(), result.collapsed()
    accuracies = [value for by_seed in by_kind.values() for value in by_seed.values()]
    largest = max((difference.largest for difference in result.differences()), default=None)
    words = [f"{len(collapsed)} collapsed"] * bool(collapsed) + ["kinds differ"] * differs
    sizes = f"{max(len(by_seed) for by_seed in by_kind.values())} × {len(by_kind)}"
    figures = [
        "–" if value is None else f"{100 * value:.1f}" for value in (result.over_seeds(), result.over_kinds(), largest)
    ]
    counts = [str(sum(getattr(row, name) for row in result.rows)) for name in ("diverged", "undone")]
    about = [f"`{result.method}`", f"{result.lr:g}", sizes, f"{100 * mean(accuracies):.1f}"]
    return [*about, *figures, *counts, ", ".join(words)]

"""Figures as files: a run by round as CSV and for TensorBoard, a comparison as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sepal.errors import ConfigError, printable
from sepal.protocol.views import CLOSING_VIEWS
from sepal.runs.stored_run import StoredRun
from sepal.storage.files import write_atomically
from sepal.study.comparison import Comparison
from sepal.study.frontier import close_to, entries, frontier
from sepal.study.results import DIRECTIONS, Variant
from sepal.tasks.scoring import ACCURACY, headline

FORMULAS = ("=", "+", "-", "@")
FIGURES = ("mean", "weighted", "std", "bottom_decile")


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Write rows of figures (:func:`by_round`, :func:`by_variant`); a missing figure is an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_atomically(path, csv_text(names, ([row.get(name, "") for name in names] for row in rows)).encode())
    return path


def csv_text(heads: Sequence[str], rows: Iterable[Sequence[Any]], form: str = "") -> str:
    """Return a table as CSV in which no text is a formula.

    A spreadsheet computes a cell that begins with ``=``, ``+``, ``-`` or ``@``, which can start programs and send what
    is in other cells. Such a text gets an apostrophe before it, which spreadsheets take for "this is text".

    Args:
        heads: Names of the columns.
        rows: The cells of each row.
        form: How fractions are written, such as ``.4f``; empty: with all digits.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_cell(value, form) for value in row] for row in (heads, *rows))
    return text.getvalue()


def _cell(value: Any, form: str) -> Any:
    if isinstance(value, float) and form:
        return f"{value:{form}}"
    if not isinstance(value, str):
        return value
    value = printable(value)
    return f"'{value}" if value.lstrip().startswith(FORMULAS) else value


def by_round(run: StoredRun) -> Iterator[dict[str, float]]:
    """Yield a row per round: accuracies as fractions, ``accuracy/trained/mean``; bytes so far; seconds; own figures.

    Of another headline, ``rmse/trained/mean``, and all of the task's metrics over all test examples together,
    ``together/trained/r2``.
    """
    for line in run.lines:
        row: dict[str, float] = {"round": line["round"]}
        for kind, views in ((run.measure.name, headline(line)), ("validation", line["validation"])):
            for view, view_figures in views.items():
                row |= {f"{kind}/{view}/{name}": view_figures[name] for name in FIGURES if name in (view_figures or {})}
        for view, metrics in line.get("metrics", {}).items():
            row |= {f"together/{view}/{name}": value for name, value in metrics.items() if value is not None}
        row |= {f"bytes/{key}": size for key, size in line["bytes"].items() if not isinstance(size, dict)}
        row |= {f"seconds/{key}": value for key, value in line["seconds"].items()}
        row |= {f"method/{key}": value for key, value in line["method"].items() if value is not None}
        yield row


def by_variant(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Yield a row of figures for each variant of a comparison; accuracies and other shares are fractions.

    ``lr`` is the rate that the runs had: after a search, the one that it chose. ``megabytes_near``: MB until a variant
    is within one point of FedAvg-FT and stays there.
    """
    for cell in comparison.cells:
        variants = comparison.variants(cell)
        near = close_to(variants) if variants else None
        on = {standing.entry.label: standing.frontier for standing in frontier(entries(variants), comparison.measure)}
        for variant in variants:
            arrival = near and near.reached.get(variant.label)
            further = {"frontier": on.get(variant.label), "megabytes_near": arrival.megabytes if arrival else None}
            yield {**_row(variant), **further}


def _row(variant: Variant) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": variant.cell, "name": variant.label, "method": variant.method}
    row["lr"] = variant.first.stored.config.get("lr")
    row |= {} if variant.measure == ACCURACY else {"metric": variant.measure.axis}
    row |= {"deployed_view": variant.deployed, "seeds": len(variant.results), "rounds": variant.rounds}
    row["rise_at_the_end"] = variant.rising.mean if variant.rising else None  # None: converged, or no verdict
    figures = {view: variant.accuracy(view) for view in ("deployed", *CLOSING_VIEWS)}
    figures["bottom_decile"] = variant.accuracy(variant.view, "bottom_decile")
    figures |= {"rounds_to_target": variant.rounds_to, "megabytes_to_target": variant.megabytes_to}
    for name, estimate in figures.items():
        row[name] = estimate.mean if estimate else None
        row[f"{name}_std"] = estimate.spread if estimate else None
    row |= {f"megabytes_{way}": variant.megabytes(way) for way in DIRECTIONS}
    row |= {"giga_multiply_adds_a_client": variant.multiply_adds, "target": variant.target}
    if variant.profile:
        row["devices"] = variant.profile.name
        for name, estimate in {"simulated_hours": variant.hours, "simulated_hours_to_target": variant.hours_to}.items():
            row |= {name: estimate and estimate.mean, f"{name}_std": estimate and estimate.spread}
    row["seeds_at_target"] = variant.rounds_to.count if variant.rounds_to else 0
    return {**row, "processors": ", ".join(dict.fromkeys(kind for r in variant.results for kind in r.processors))}


def write_tensorboard(run: StoredRun, directory: Path) -> Path:
    """Write a run's figures as TensorBoard event files, with rounds as steps.

    Raises:
        ConfigError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as missing:
        expected = "TensorBoard: pip install tensorboard"
        raise ConfigError("--tensorboard", expected, str(missing)) from None
    with SummaryWriter(str(directory)) as writer:
        for row in by_round(run):
            for name, value in row.items():
                writer.add_scalar(name, value, int(row["round"]))
    return directory

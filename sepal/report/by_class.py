"""The table by class of runs whose headline is another metric than accuracy: their clients send counts by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.report.text_tables import NONE, TextTable
from sepal.runs.about import labels_of
from sepal.study.results import Variant

TITLE = "By class, deployed models, over all clients' test examples together and all seeds"
READING = (
    "Recall: the share of a class's examples that are predicted as the class. Precision: the share of the examples "
    "predicted as the class that belong to it. F1: their harmonic mean."
)
COUNTS = ("tp", "fp", "fn")  # true positives, false positives, false negatives


def class_table(variants: Sequence[Variant]) -> TextTable | None:
    """Return a row for each class: its test examples (of a segmentation its pixels), recall, precision and F1 in %.

    Of several variants each has its recall and its F1. None where no variant has counts by class of all its runs.
    """
    counted_variants = [(variant, counts) for variant in variants if (counts := _counts(variant)) is not None]
    if not counted_variants:
        return None
    several = len(counted_variants) > 1
    (first, counted), *_ = counted_variants
    heads, columns = ["class", "examples"], [[f"{number:g}" for number in counted[0] + counted[2]]]
    for variant, (tp, fp, fn) in counted_variants:
        shares = {"recall": (tp, tp + fn), "F1": (2 * tp, 2 * tp + fp + fn)}
        if not several:
            shares = {"recall": (tp, tp + fn), "precision": (tp, tp + fp), "F1": shares["F1"]}
        for name, (part, whole) in shares.items():
            heads.append(f"{variant.label}\n{name}" if several else f"{name}, %")
            columns.append([_share(*pair) for pair in zip(part, whole, strict=True)])
    names = labels_of(first.first.stored).names
    if len(names) != len(columns[0]):
        names = tuple(map(str, range(len(columns[0]))))
    return TextTable(tuple(heads), [list(row) for row in zip(names, *columns, strict=True)])


def _counts(variant: Variant) -> npt.NDArray[np.float64] | None:
    """Return the counts of the deployed view, added over seeds: float64 (3, classes). None if a run has none."""
    by_seed = [_read((result.stored.summary or {}).get("classes"), variant.deployed) for result in variant.results]
    counts = [seed_counts for seed_counts in by_seed if seed_counts is not None]
    complete = len(counts) == len(by_seed) and len({seed_counts.shape for seed_counts in counts}) == 1
    return np.sum(counts, axis=0) if complete else None


def _read(stored: Any, view: str) -> npt.NDArray[np.float64] | None:
    """Return a view's counts; None where they are not as Sepal writes them, as in a run from elsewhere."""
    try:
        counts = np.array([stored[view][name] for name in COUNTS], np.float64)
    except (KeyError, TypeError, ValueError):
        return None
    return counts if counts.ndim == 2 and np.isfinite(counts).all() and (counts >= 0).all() else None


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else NONE

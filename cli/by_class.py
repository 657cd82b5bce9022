"""The table by class of runs whose headline is another metric than accuracy: their clients send counts by class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sepal.cli.report.learned import label_counts
from sepal.cli.sheets import NONE, Sheet
from sepal.study.results import Variant

TITLE = "By class, deployed models, over all clients' test examples together and all seeds"
READING = (
    "Recall: the share of a class's examples that was found. Precision: of those taken for it, the share that was "
    "right. F1: their harmonic mean."
)
COUNTS = ("tp", "fp", "fn")  # true positives, false positives, false negatives


def class_sheet(variants: Sequence[Variant]) -> Sheet | None:
    """Return a row for each class: its test examples (of a segmentation its pixels), recall, precision and F1 in %.

    Of several variants each has its recall and its F1. None where no run that has ended has counts by class.
    """
    found = [(variant, counts) for variant in variants if (counts := _counts(variant)) is not None]
    if not found:
        return None
    several = len(found) > 1
    (first, counted), *_ = found
    heads, columns = ["class", "examples"], [[f"{number:g}" for number in counted[0] + counted[2]]]
    for variant, (tp, fp, fn) in found:
        shares = {"recall": (tp, tp + fn), "F1": (2 * tp, 2 * tp + fp + fn)}
        if not several:
            shares = {"recall": (tp, tp + fn), "precision": (tp, tp + fp), "F1": shares["F1"]}
        for name, (part, whole) in shares.items():
            heads.append(f"{variant.label}\n{name}" if several else f"{name}, %")
            columns.append([_share(*pair) for pair in zip(part, whole, strict=True)])
    names = label_counts(first.first.stored.config)[0] or tuple(map(str, range(len(columns[0]))))
    return Sheet(tuple(heads), [list(row) for row in zip(names, *columns, strict=True)])


def _counts(variant: Variant) -> npt.NDArray[np.float64] | None:
    """Return the counts of the deployed view, added over seeds: float64 (3, classes)."""
    stored: list[Mapping[str, Any]] = [(result.stored.summary or {}).get("classes", {}) for result in variant.results]
    views = [each[variant.deployed] for each in stored if variant.deployed in each]
    return np.sum([[view[name] for name in COUNTS] for view in views], axis=0) if views else None


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else NONE

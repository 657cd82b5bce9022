"""The task's headline metric over clients, by default accuracy, computed from each client's counts or sums.

:mod:`sepal.protocol.views` defines the views. Each figure comes with the number of clients it covers, because a mean
over the sampled clients of one round is not a mean over all clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from sepal.tasks.scoring import ACCURACY, BY_ACCURACY, Measure, Scoring, added, measured

Figures: TypeAlias = dict[str, float]


def figures(accuracies: Sequence[float], weights: Sequence[float], measure: Measure = ACCURACY) -> Figures:
    """Return mean, weighted mean, standard deviation and bottom decile over clients.

    Args:
        accuracies: One per client, in [0, 1]; of another metric, its values.
        weights: Test examples per client.
        measure: The metric.

    The bottom decile is the accuracy of the ⌊C/10⌋-th worst of C clients (pFedGate, section 6.1): the worst client
    where C < 20. Tables and reports call it the worst 10 %. The standard deviation is over the population (ddof 0).
    """
    values, shares = np.asarray(accuracies, np.float64), np.asarray(weights, np.float64)
    worst = measure.sign * np.sort(measure.sign * values)[max(1, len(values) // 10) - 1]
    weighted = float((values * shares).sum() / shares.sum()) if shares.sum() else float(values.mean())
    return {
        "mean": float(values.mean()),
        "weighted": weighted,
        "std": float(values.std()),
        "bottom_decile": float(worst),
    }


def view_figures(
    client_counts: Sequence[Mapping[str, Any]], view: str, part: str = "", scoring: Scoring = BY_ACCURACY
) -> Figures | None:
    """Return the figures of one view over clients' counts; None where no client has it.

    Args:
        client_counts: Per client, counts named ``VIEW.correct`` and ``VIEW.examples``, or sums named ``VIEW.sums``.
        view: Name of the view.
        part: ``validation-`` selects those on validation data.
        scoring: The metrics of the run's task. With sums, ``weighted`` is the metric over all clients' examples: the
            value of their added sums.
    """
    values = [value for counts in client_counts if (value := measured(counts, view, part, scoring))]
    if not values:
        return None
    summary = figures([value for value, _ in values], [n for _, n in values], scoring.measure)
    if not scoring.counted:
        together = scoring.value(merged(client_counts, view, part))
        summary["weighted"] = summary["weighted"] if together is None else together
    return {**summary, "clients": len(values)}


def summed_figures(sums: Mapping[str, float], view: str, part: str = "") -> Figures | None:
    """Return the figures of one view from sums over clients (:mod:`sepal.protocol.summed`); None if it is empty.

    Only the sums are known, so there is no standard deviation and no bottom decile.
    """
    clients = sums.get(f"{view}.{part}clients", 0.0)
    if clients <= 0:
        return None
    mean, correct, examples = (sums[f"{view}.{part}{name}"] for name in ("accuracy", "correct", "examples"))
    return {"mean": mean / clients, "weighted": correct / examples, "clients": int(clients)}


def merged(client_counts: Sequence[Mapping[str, Any]], view: str, part: str = "") -> tuple[float, ...]:
    """Return the sums of all clients in a view, added; empty if no client has sent any."""
    return added([counts[f"{view}.{part}sums"] for counts in client_counts if f"{view}.{part}sums" in counts])


def capacity_group(capacity: float) -> str:
    """Return the quarter of (0, 1] that a capacity lies in, such as ``0.25-0.5``; its upper bound belongs to it."""
    quarter = min(3, max(0, math.ceil(4 * capacity - 1e-9) - 1))
    return f"{quarter / 4:g}-{(quarter + 1) / 4:g}"


def client_accuracy(counts: Mapping[str, Any], view: str, scoring: Scoring = BY_ACCURACY) -> float | None:
    """Return one client's headline on its test data, or None."""
    value = measured(counts, view, "", scoring)
    return value[0] if value else None

"""Accuracy over clients, in three views: from each client's counts to the figures of a line and of the summary.

*received*: what the server's message gives before any local step. *trained*: after the client's local steps.
*pooled*: the trained model on the distinct test data of all clients. Each with its population, because a mean over
the sampled clients of one round is not a mean over all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from sepal.errors import ContractError

VIEWS = ("received", "trained", "pooled")
SHIFTS = (0, 20, 40, 60, 80, 100)  # per cent of a client's test data replaced (DM-PFL, Table 2)
Figures: TypeAlias = dict[str, float]


def figures(accuracies: Sequence[float], weights: Sequence[float]) -> Figures:
    """Return mean, weighted mean, standard deviation and bottom decile over clients.

    Args:
        accuracies: One per client, in [0, 1].
        weights: Test examples per client.

    The bottom decile is the accuracy of the ⌊C/10⌋-th worst of C clients (pFedGate, section 6.1), the worst client
    where C < 10. The standard deviation is over the population (ddof 0).
    """
    values, shares = np.asarray(accuracies, np.float64), np.asarray(weights, np.float64)
    worst = np.sort(values)[max(1, len(values) // 10) - 1]
    weighted = float((values * shares).sum() / shares.sum()) if shares.sum() else float(values.mean())
    return {
        "mean": float(values.mean()),
        "weighted": weighted,
        "std": float(values.std()),
        "bottom_decile": float(worst),
    }


def view_figures(metrics: Sequence[Mapping[str, float]], view: str, part: str = "") -> Figures | None:
    """Return the figures of one view over clients' counts; None where no client has it.

    Args:
        metrics: Per client, counts named ``VIEW.correct`` and ``VIEW.examples``.
        view: received, trained or pooled.
        part: ``validation-`` for the counts on validation data.
    """
    counts = [(m[f"{view}.{part}correct"], m[f"{view}.{part}examples"]) for m in metrics if _has(m, view, part)]
    if not counts:
        return None
    return {**figures([c / n for c, n in counts], [n for _, n in counts]), "clients": len(counts)}


def further_views(shift: bool, corruption: bool) -> tuple[str, ...]:
    """Return the views of the closing round beyond the three: under test-time shift, and on corrupted inputs."""
    models = VIEWS[:2]
    shifted = [f"{view}-shift-{percent}" for view in models for percent in SHIFTS] if shift else []
    return (*shifted, *(f"{view}-corrupted" for view in models if corruption))


def degree(view: str) -> int | None:
    """Return the per cent of a view like ``trained-shift-40``; None for any other view."""
    _, found, percent = view.partition("-shift-")
    return int(percent) if found and percent.isdigit() else None


def check_counts(metrics: Mapping[str, float], views: Sequence[str]) -> None:
    """Refuse counts that cannot be: nothing is divided or looked up by them before.

    Args:
        metrics: One client's, as they came.
        views: The views that were asked for.

    Raises:
        ContractError: A view that was not asked for, one count without the other, or more correct than there are.
    """
    for key in metrics:
        view, dot, _ = key.partition(".")
        if dot and view.partition("-")[0] in VIEWS and view not in views:
            raise ContractError(f"metrics.{key}", f"counts of {', '.join(views) or 'no view'}", "another view")
    for name in (f"{view}.{part}" for view in views for part in ("", "validation-")):
        correct, examples = metrics.get(f"{name}correct", -1.0), metrics.get(f"{name}examples", -1.0)
        whole = correct.is_integer() and examples.is_integer() and examples < 2**40
        if not whole or correct > examples or (correct < 0 <= examples):
            raise ContractError(f"metrics.{name}correct", "a count, at most examples", f"{correct:g} of {examples:g}")


def _has(metrics: Mapping[str, float], view: str, part: str) -> bool:
    return metrics.get(f"{view}.{part}examples", 0) > 0


def client_accuracy(metrics: Mapping[str, float], view: str) -> float | None:
    """Return one client's accuracy on its test data, or None."""
    return metrics[f"{view}.correct"] / metrics[f"{view}.examples"] if _has(metrics, view, "") else None

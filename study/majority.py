"""Compares a run's accuracy with that of always answering a client's most frequent label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sepal.data import FederatedData
    from sepal.strategies.assembly import Assembly

MOST = 100  # clients whose labels are counted


def warning(assembly: Assembly, summary: Mapping[str, Any]) -> str:
    """Return a line if the deployed models of a complete run are no better than the most frequent label; else nothing.

    Args:
        assembly: The run's parts, in process: all clients' data is at hand.
        summary: Content of summary.json.
    """
    found = summary.get("accuracy", {}).get(assembly.method.deployed)  # nothing of another headline
    if not found:
        return ""
    share = majority(assembly.data, assembly.task.config.clients)
    if found["mean"] > share:
        return ""
    return (
        f"{100 * found['mean']:.1f} % ({assembly.method.deployed}) is not above {100 * share:.1f} %, the accuracy of "
        "always answering the most frequent label of a client's training data: more rounds, or another lr?"
    )


def majority(data: FederatedData, clients: int) -> float:
    """Return the mean over clients of the share of test labels that equal the most frequent training label."""
    shares = []
    for number in range(min(clients, MOST)):
        part = data.client(number, clients, f"client-{number:05d}")
        if len(part.test):
            shares.append(float(np.mean(part.test.y == np.bincount(part.train.y).argmax())))
    return float(np.mean(shares)) if shares else 0.0

"""Compares a run's accuracy with that of always answering a client's most frequent label."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sepal.data.streams import Stream
from sepal.storage.files import write_atomically

if TYPE_CHECKING:
    from sepal.data import Examples, FederatedData
    from sepal.strategies.assembly import Assembly

MOST = 100  # clients whose labels are counted
MOST_READ = 1000  # examples of each part of a Dataset whose labels are read, evenly spaced


def note(path: Path, summary: Mapping[str, Any], assembly: Assembly) -> None:
    """Add ``majority`` to a complete run's summary.json: the accuracy that :func:`warning` compares with.

    Args:
        path: The run directory.
        summary: Content of its summary.json; one of another headline than accuracy is left as it is.
        assembly: The run's parts, in process: all clients' data is at hand.
    """
    if "accuracy" not in summary:
        return
    found = {**summary, "majority": majority(assembly.data, assembly.task.config.clients)}
    text = json.dumps(found, indent=2, ensure_ascii=False)
    write_atomically(path / "summary.json", f"{text}\n".encode())


def warning(summaries: Sequence[Mapping[str, Any]], view: str, lr: float) -> str:
    """Return a line if models are no better than the most frequent label, mean over runs; else nothing.

    Args:
        summaries: Content of the summary.json of runs that differ in their seeds; those without ``majority`` are left
            out.
        view: The view, of deployed models.
        lr: The runs' learning rate.
    """
    ends = [(summary.get("majority"), (summary.get("accuracy") or {}).get(view)) for summary in summaries]
    found = [(end["mean"], share) for share, end in ends if share is not None and end]
    if not found:
        return ""
    mean, share = (sum(values) / len(found) for values in zip(*found, strict=True))
    if mean > share:
        return ""
    return (
        f"{100 * mean:.1f} % ({view}) is not above {100 * share:.1f} %, the accuracy of always answering the most "
        f"frequent label of a client's training data: the lr of {lr:g} may be too small or too large, the rounds too "
        "few, or clients too different for one model; `sepal tune` tries several rates"
    )


def majority(data: FederatedData, clients: int) -> float:
    """Return the mean over clients of the share of test labels that equal the most frequent training label."""
    shares = []
    for number in range(min(clients, MOST)):
        part = data.client(number, clients, f"client-{number:05d}")
        if len(part.test) and len(part.train):
            shares.append(float(np.mean(_labels(part.test) == np.bincount(_labels(part.train)).argmax())))
    return float(np.mean(shares)) if shares else 0.0


def _labels(part: Examples | Stream) -> npt.NDArray[np.int64]:
    labels: npt.NDArray[np.int64] = (part.sample(MOST_READ) if isinstance(part, Stream) else part).y
    return labels

"""Compares a run with the simplest answer: a client's most frequent label, or the mean of its targets."""

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
RMSE, ERROR = "rmse", "error_of_the_mean"
ADVICE = (
    "the lr of {:g} may be too small or too large, the rounds too few or too many, or clients too different for one "
    "model; `sepal tune` tries several rates"
)
MOST_READ = 1000  # examples of each part of a Dataset whose labels are read, evenly spaced


def note(path: Path, summary: Mapping[str, Any], assembly: Assembly) -> None:
    """Add ``majority`` or ``error_of_the_mean`` to a complete run's summary.json, with which :func:`warning` compares.

    Args:
        path: The run directory.
        summary: Content of its summary.json; one of another headline than accuracy or rmse is left as it is.
        assembly: The run's parts, in process: all clients' data is at hand.
    """
    data, clients = assembly.data, assembly.setup.config.clients
    if "accuracy" in summary:
        completed = {**summary, "majority": majority(data, clients)}
    elif (summary.get("metric") or {}).get("name") == RMSE and assembly.setup.config.task == "regression":
        completed = {**summary, **({} if (error := error_of_the_mean(data, clients)) is None else {ERROR: error})}
    else:
        return
    text = json.dumps(completed, indent=2, ensure_ascii=False)
    write_atomically(path / "summary.json", f"{text}\n".encode())


def warning(summaries: Sequence[Mapping[str, Any]], view: str, lr: float) -> str:
    """Return a line if models are no better than the simplest answer, mean over runs; else nothing.

    Args:
        summaries: Content of the summary.json of runs that differ in their seeds; those without its figure are
            left out.
        view: The view, of deployed models.
        lr: The runs' learning rate.
    """
    ends = [(summary.get("majority"), (summary.get("accuracy") or {}).get(view)) for summary in summaries]
    pairs = [(end["mean"], share) for share, end in ends if share is not None and end]
    if not pairs:
        return _warning_of_numbers(summaries, view, lr)
    mean, share = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    if mean > share:
        return ""
    return (
        f"{100 * mean:.1f} % ({view}) is not above {100 * share:.1f} %, the accuracy of always answering the most "
        f"frequent label of a client's training data: the lr of {lr:g} may be too small or too large, the rounds too "
        "few, or clients too different for one model; `sepal tune` tries several rates"
    )


def _warning_of_numbers(summaries: Sequence[Mapping[str, Any]], view: str, lr: float) -> str:
    """Return the line about a regression."""
    ends = [(summary.get(ERROR), (summary.get("headline") or {}).get(view)) for summary in summaries]
    pairs = [(end["mean"], error) for error, end in ends if error is not None and end]
    if not pairs:
        return ""
    mean, error = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    if mean < error:
        return ""
    unit = next((f" {s['metric']['unit']}" for s in summaries if (s.get("metric") or {}).get("unit")), "")
    return (
        f"{RMSE} {mean:.4g}{unit} ({view}) is not below {error:.4g}{unit}, that of always predicting the mean of a "
        f"client's training targets: {ADVICE.format(lr)}"
    )


def error_of_the_mean(data: FederatedData, clients: int) -> float | None:
    """Return the mean over clients of the root mean squared error of the mean of a client's training targets.

    None if no client has training and test examples.
    """
    errors = []
    for number in range(min(clients, MOST)):
        part = data.client(number, clients, f"client-{number:05d}")
        if len(part.test) and len(part.train):
            train, test = (_labels(examples).astype(np.float64) for examples in (part.train, part.test))
            errors.append(float(np.sqrt(np.mean((test - train.mean(0)) ** 2))))
    return float(np.mean(errors)) if errors else None


def majority(data: FederatedData, clients: int) -> float:
    """Return the mean over clients of the share of test labels that equal the most frequent training label."""
    shares = []
    for number in range(min(clients, MOST)):
        part = data.client(number, clients, f"client-{number:05d}")
        if len(part.test) and len(part.train):
            shares.append(float(np.mean(_labels(part.test) == np.bincount(_labels(part.train)).argmax())))
    return float(np.mean(shares)) if shares else 0.0


def _labels(part: Examples | Stream) -> npt.NDArray[Any]:
    labels: npt.NDArray[Any] = (part.sample(MOST_READ) if isinstance(part, Stream) else part).y
    return labels

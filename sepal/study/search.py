"""How trials choose: by validation data alone, in one way for all searches.

``lr = "search"`` (:mod:`sepal.study.rate_search`), ``tune = true`` of a plan (:mod:`sepal.study.plans.tuning`), `sepal
tune` (:mod:`sepal.study.plans.tune`), the calibration of default rates and the leaderboard differ in which trials they
run and in how close to the best a value must be to replace it (``close``), not in how they choose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sepal.errors import ConfigError
from sepal.study.runs import naming
from sepal.tasks.scoring import ACCURACY, Measure, measure_of

C = TypeVar("C")


def choose(
    candidates: Sequence[C],
    value: Callable[[C], Any],
    order: Callable[[C], Any] | None = None,
    close: Callable[[C, C], bool] | None = None,
) -> C:
    """Return the candidate that is preferred among those that are as good as the best one, or close to it.

    Args:
        candidates: What was tried; at least one.
        value: Larger is better.
        order: The preferred one has the least of this; by default the first listed is preferred.
        close: Whether the second candidate may stand for the first, the best; by default where their values are equal.
    """
    best = max(candidates, key=value)
    good_enough = [
        candidate for candidate in candidates if (close(best, candidate) if close else value(candidate) == value(best))
    ]
    return min(good_enough, key=order) if order else good_enough[0]


def two_digits(rate: float) -> float:
    """Return a rate with two digits."""
    return float(f"{rate:.2g}")


def beyond(value: float, values: Sequence[float]) -> float | None:
    """Return the value that follows beyond the end of ascending ``values`` at which ``value`` is; None elsewhere.

    The step is that of the two values at the end.
    """
    for end, near in ((values[0], values[1]), (values[-1], values[-2])):
        if value == end and value > 0 and near > 0:
            return two_digits(value * value / near)
    return None


def mean_of_trials(values: Iterable[float]) -> float:
    """Return the mean, rounded: sums of the same accuracies in another order must tie."""
    listed = list(values)
    return round(sum(listed) / len(listed), 9)


def standard_error(values: Iterable[float]) -> float | None:
    """Return the standard error of a mean over seeds; None for a single one."""
    listed = list(values)
    if len(listed) < 2:
        return None
    centre = sum(listed) / len(listed)
    return math.sqrt(sum((value - centre) ** 2 for value in listed) / (len(listed) - 1) / len(listed))


def error_over_clients(runs: Sequence[Path], view: str) -> float:
    """Return the standard error of the mean validation accuracy of runs that have ended, of its spread over clients."""
    from sepal.runs.stored_run import read_run

    squares = []
    for run in runs:
        with naming(run):
            figure = read_run(run).lines[-1]["validation"][view]
            squares.append(float(figure["std"]) ** 2 / figure["clients"])
    return math.sqrt(sum(squares)) / len(squares)


def validation(run: Path, view: str) -> float | None:
    """Return a run's mean validation accuracy in its closing round; None if it has not ended.

    Raises:
        ConfigError: The method has no such view.
        StateError: The run's figures are none that a run writes.
    """
    from sepal.runs.stored_run import read_run, stored_summary

    if stored_summary(run) is None:
        return None
    with naming(run):
        figures = read_run(run).lines[-1]["validation"].get(view)
        if figures is None:
            raise ConfigError("views", f"a view that {run.name} has validation accuracy in", view)
        return float(figures["mean"])


def mean_validation(runs: Sequence[Path], view: str) -> float | None:
    """Return the mean of :func:`validation` over seeds; None until all have ended."""
    values = [value for run in runs if (value := validation(run, view)) is not None]
    return mean_of_trials(values) if values and len(values) == len(runs) else None


def measure_in(paths: Iterable[Path]) -> Measure:
    """Return the headline metric of the first run that has ended; accuracy if none has."""
    from sepal.runs.stored_run import stored_summary

    for path in paths:
        with naming(path):
            if summary := stored_summary(path):
                return measure_of(summary)
    return ACCURACY

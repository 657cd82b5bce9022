"""Whether a round's result may be sent to clients.

One absurd upload can make a mean that nobody can train from: then the run would be over for everybody. So the result of
each round is looked at before it counts (:meth:`sepal.server.round.Round.record`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sepal.protocol.algorithms import ServerAlgorithm
from sepal.protocol.layout import trained
from sepal.protocol.method import Task, Weights
from sepal.storage.serialize import flatten

# An honest round changes a model by a part of its norm. Ten times its norm is a model from which training diverges.
MOST_GROWTH = 10.0


def unusable(algorithm: ServerAlgorithm[Any], task: Task, before: Any, after: Any) -> str:
    """Return why the server algorithm's state ``after`` cannot be used; empty if it can.

    It has a number that is not finite, or the trained tensors of its model have changed by more than ``MOST_GROWTH``
    times their norm (of at least 1).

    Args:
        algorithm: Returns the models of the two states.
        task: Says which tensors are trained.
        before: The state from which the round started.
        after: The state after it.
    """
    for name, array in flatten(after)[0].items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"{name} is not finite"
    old, new = algorithm.model(before), algorithm.model(after)
    names = [p.name for p in trained(task.layout) if p.name in new and p.name in old]
    most = MOST_GROWTH * max(1.0, _norm({name: old[name] for name in names}))
    change = _norm({name: new[name] - old[name] for name in names})
    return "" if change <= most else f"the model changes by a norm of {change:.4g}, expected at most {most:.4g}"


def _norm(weights: Weights) -> float:
    return math.sqrt(sum(float(np.square(array, dtype=np.float64).sum()) for array in weights.values()))

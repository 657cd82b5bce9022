"""What a round's uploads come to, and which of them are refused for it after they were accepted.

One absurd upload can make a mean that nobody can train from: then the run would be over for everybody. So the result of
each round is looked at before it counts.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from sepal.protocol.algorithms import ServerAlgorithm
from sepal.protocol.layout import trained
from sepal.protocol.method import Metrics, Task, Weights
from sepal.server.run_state import RoundStart
from sepal.server.uploads import RoundUploads
from sepal.storage.serialize import flatten

log = logging.getLogger("sepal")

Outcome: TypeAlias = tuple[Any, Metrics]

# An honest round changes a model by a part of its norm. Ten times its norm is a model from which training diverges.
MOST_GROWTH = 10.0


def too_large(norms: Mapping[str, float], factor: float) -> dict[str, str]:
    """Return client name to reason, for the uploads above ``factor`` times the median norm of the round's uploads.

    Args:
        norms: Client name to the norm of its change.
        factor: ``max-update-norm``.
    """
    most = factor * statistics.median(norms.values()) if norms else 0.0
    return {
        name: f"upload: expected a change of at most {most:.4g} (max-update-norm), got {norm:.4g}"
        for name, norm in norms.items()
        if norm > most
    }


def aggregate(start: RoundStart, task: Task, uploads: RoundUploads) -> tuple[Outcome, dict[str, str]]:
    """Compute the round's result. If it cannot be used, refuse the uploads to blame, or else all of the round.

    To blame are the fewest of the largest changes, fewer than half of the uploads, without which the rest has a
    usable result. If there are none such, the model is kept.

    Args:
        start: What the round starts from.
        task: Says which tensors are trained.
        uploads: The accepted uploads. Those that are refused are removed.

    Returns:
        The result, and client name to reason for the refused uploads.
    """
    names = [client.name for client in uploads.clients]
    outcome, first = _attempt(start, task, uploads)
    if not first:
        return outcome, {}
    size = {name: uploads.norm(name) for name in names}
    largest = sorted(names, key=lambda name: (-size[name], name))
    why, refused, most = first, 0, max(0, len(names) - 1) // 2
    while why and refused < most:
        uploads.refuse(largest[refused])
        refused += 1
        outcome, why = _attempt(start, task, uploads)
    if why:
        said = "round %d: %s: its uploads are refused and the model is kept (a lower lr, or scaled targets, may help)"
        log.warning(said, start.plan.round, first)
        for name in largest[refused:]:
            uploads.refuse(name)
        refused, outcome = len(names), start.algorithm.aggregate(start.state.server, uploads, start.plan)
    reason = f"upload: expected a result of the round that can be used, got {first}, with it"
    return outcome, dict.fromkeys(largest[:refused], reason)


def _attempt(start: RoundStart, task: Task, uploads: RoundUploads) -> tuple[Outcome, str]:
    """Compute the round's result, and why it cannot be used, which is empty if it can."""
    outcome = start.algorithm.aggregate(start.state.server, uploads, start.plan)
    return outcome, unusable(start.algorithm, task, start.state.server, outcome[0])


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

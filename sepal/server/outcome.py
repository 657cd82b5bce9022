"""What a round's uploads come to, and which of them are refused for it after they were accepted."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping
from typing import Any, TypeAlias

from sepal.protocol.method import Metrics, Task
from sepal.server.run_state import RoundStart
from sepal.server.uploads import RoundUploads
from sepal.server.usable import unusable

log = logging.getLogger("sepal")

Outcome: TypeAlias = tuple[Any, Metrics]


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
        log.warning("round %d: %s: its uploads are refused and the model is kept", start.plan.round, first)
        for name in largest[refused:]:
            uploads.refuse(name)
        refused, outcome = len(names), start.algorithm.aggregate(start.state.server, uploads, start.plan)
    reason = f"upload: expected a result of the round that can be used, got {first}, with it"
    return outcome, dict.fromkeys(largest[:refused], reason)


def _attempt(start: RoundStart, task: Task, uploads: RoundUploads) -> tuple[Outcome, str]:
    """Compute the round's result, and why it cannot be used, which is empty if it can."""
    outcome = start.algorithm.aggregate(start.state.server, uploads, start.plan)
    return outcome, unusable(start.algorithm, task, start.state.server, outcome[0])

"""What a round's uploads come to, and which of them are refused for it after they were accepted.

Uploads that pass one by one can make a mean that nobody can train from: then the run would be over for everybody. So
the result of each round is looked at before it counts (:mod:`sepal.server.guard`).
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from sepal.method.aggregation import aggregated
from sepal.protocol.types import Metrics, Uploads
from sepal.server.guard import Guard
from sepal.server.run_state import RoundStart
from sepal.server.uploads import RoundUploads

log = logging.getLogger("sepal")

Outcome: TypeAlias = tuple[Any, Metrics]


@dataclass(frozen=True)
class Result:
    """A round's result.

    Attributes:
        outcome: What ``aggregate`` returns for the uploads that count.
        refused: Client name to reason, for the uploads that do not.
        spoilt: Why no part of the uploads has a usable result; empty if one has.
    """

    outcome: Outcome
    refused: Mapping[str, str] = field(default_factory=dict)
    spoilt: str = ""


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


def aggregate(start: RoundStart, guard: Guard, uploads: RoundUploads) -> Result:
    """Compute the round's result. If it cannot be used, refuse the uploads to blame, or else all of the round.

    To blame are the fewest of the largest changes, fewer than half of the uploads, without which the rest has a
    usable result. If there are none such, the model is the one from which the round starts.

    Args:
        start: What the round starts from.
        guard: Says what is usable.
        uploads: The accepted uploads. Those that are refused are removed.
    """
    names = [client.name for client in uploads.clients]
    outcome, first = _attempt(start, guard, uploads)
    if not first:
        return Result(outcome)
    size = {name: uploads.norm(name) for name in names}
    largest = sorted(names, key=lambda name: (-size[name], name))
    why, refused, most = first, 0, max(0, len(names) - 1) // 2
    while why and refused < most:
        uploads.refuse(largest[refused])
        refused += 1
        outcome, why = _attempt(start, guard, uploads)
    if why:
        for name in largest[refused:]:
            uploads.refuse(name)
        refused, outcome = len(names), aggregated(start.algorithm, start.state.server, uploads, start.plan)
    reason = f"upload: expected a result of the round that can be used, got {first}, with it"
    return Result(outcome, dict.fromkeys(largest[:refused], reason), first if why else "")


def aggregate_sum(start: RoundStart, guard: Guard, uploads: Uploads, void: str) -> tuple[Outcome, str]:
    """Compute the result of a round with secure sums, and why it is void, which is empty if it is not.

    The server's state of a void round is that from which it starts. No upload is to blame: only their sum is known.

    Args:
        start: What the round starts from.
        guard: Says what is usable.
        uploads: The mean of the uploads; nobody's if there is none.
        void: Why there is no sum; empty if there is one.
    """
    before = start.state.server
    if void or (not len(uploads) and start.plan.who != "none"):
        return (before, {}), void or "no client is in the sum"
    outcome = aggregated(start.algorithm, before, uploads, start.plan)
    why = guard.unusable(outcome[0])
    return ((before, {}), f"expected a sum from which a model can be made, got {why}") if why else (outcome, "")


def aggregate_released(start: RoundStart, guard: Guard, uploads: Uploads) -> tuple[Outcome, str]:
    """Compute the result of a round with central noise, and why it is void, which is empty if it is not.

    What is decided here follows from the noised mean, so it tells no more than that does. The round counts as released
    either way.

    Args:
        start: What the round starts from.
        guard: Says what is usable.
        uploads: The noised mean, as one upload.
    """
    before = start.state.server
    outcome = aggregated(start.algorithm, before, uploads, start.plan)
    why = guard.unusable(outcome[0])
    return ((before, {}), f"expected a noised mean from which a model can be made, got {why}") if why else (outcome, "")


def _attempt(start: RoundStart, guard: Guard, uploads: RoundUploads) -> tuple[Outcome, str]:
    """Compute the round's result, and why it cannot be used, which is empty if it can."""
    outcome = aggregated(start.algorithm, start.state.server, uploads, start.plan)
    return outcome, guard.unusable(outcome[0])

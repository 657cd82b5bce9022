"""What a client's work takes on its device, and when a round ends: the formulas of ``docs/simulated-time.md``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
FIGURES = {"multiply-adds": 3, "steps": 4}  # what clients report → its column in ClientWork


class ClientWork(NamedTuple):
    """What one client does in one round.

    Attributes:
        down: Payload bytes to it.
        up: Payload bytes from it.
        messages: How many messages these are.
        multiply_adds: Multiply-adds, forward and backward.
        steps: Training steps, for devices of which the seconds of a step were measured.
    """

    down: float
    up: float
    messages: float
    multiply_adds: float
    steps: float


def seconds(work: Matrix, rates: Matrix) -> Matrix:
    """Return the seconds of downloads, training and uploads, one after the other.

    8·down/(bits a second) + 8·up/(bits a second) + messages·round trip + multiply-adds/speed + steps·(seconds a step).

    Args:
        work: Rows as in :class:`ClientWork`, float64 (n, 5).
        rates: The clients' rates, float64 (n, 5), of :attr:`sepal.simulated_time.profile.SimulatedDevice.rates`.

    Returns:
        float64 (n,).
    """
    products = work * rates
    total: Matrix = products[:, 0] + products[:, 1] + products[:, 2] + products[:, 3] + products[:, 4]
    return total


def training_work(
    entries: Iterable[Mapping[str, Any]], figures: Mapping[str, Mapping[str, float]]
) -> dict[str, ClientWork]:
    """Return the work of a round's clients that were asked to train and whose uploads came, by name.

    Args:
        entries: The round's rows of ledger.jsonl.
        figures: Client name to what it reports: ``multiply-adds`` and ``steps``.

    An order that was sent again counts once: the device gets it once.
    """
    down, up = dict[str, int](), dict[str, int]()
    for entry in entries:
        if entry["purpose"] != "training" or entry["status"] == "undone":
            continue
        sizes = down if entry["direction"] == "down" else up if entry["client"] in figures else {}
        sizes[entry["client"]] = max(entry["payload"], sizes.get(entry["client"], 0))
    return {
        name: ClientWork(
            down.get(name, 0),
            up[name],
            2,
            figures[name].get("multiply-adds", 0.0),
            figures[name].get("steps", 0.0),
        )
        for name in sorted(up)
    }


@dataclass(frozen=True)
class RoundEnd:
    """When a round ended, and whose uploads are in its mean.

    Attributes:
        seconds: From its start.
        counted: Names of the clients that count, sorted.
        late: Names of the others, sorted.
    """

    seconds: float
    counted: tuple[str, ...]
    late: tuple[str, ...]


def end_of_round(clients: Mapping[str, float], needed: int, deadline: float = 0.0, least: int = 1) -> RoundEnd:
    """Return when a round ends and whose uploads count; ties are broken by name.

    The round ends with the upload number ``needed``, or at the deadline, whichever comes first; but not before there
    are ``least`` uploads. A server cannot know that a client will come too late, so it waits until the deadline.

    Args:
        clients: Client name to the seconds after which its upload is there.
        needed: How many uploads make the round; of fewer, the server waits for the rest until the deadline.
        deadline: Seconds; 0: none.
        least: ``min-replies``.
    """
    order = sorted(clients, key=lambda name: (clients[name], name))
    count = min(needed, len(order))
    end = clients[order[count - 1]] if count else 0.0
    if deadline and (end > deadline or len(order) < needed):
        in_time = sum(clients[name] <= deadline for name in order[:count])
        count = min(max(in_time, least), count)
        end = max([deadline, *(clients[name] for name in order[:count])])
    return RoundEnd(end, tuple(sorted(order[:count])), tuple(sorted(order[count:])))

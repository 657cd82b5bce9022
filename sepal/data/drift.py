"""Temporal drift: in each round a client trains on a window of its training examples, which moves (``drift.*``).

The window of round r of R has m = min(n, max(10, round(w · n))) of the client's n training examples, w =
``drift.window``, at least .1: the server sets the key, and each client computes its window, so that no update is of a
single example that the server has chosen. It begins after round((n - m) · (r - 1)/(R - 1)) examples, and stays at the
last ones after round R. So the number of examples of a client, and with it its weight, is the same in each round.
Two orders of the examples:

- ``time``: that of the data, for data in which it is that of their recording. This is streaming.
- ``label``: label drift. Of each class c a share p_c ~ Beta(α, α) comes early and the rest late, α = ``drift.alpha``.
  This order is cut in the middle, and each half is shuffled. So with w = 1/2 the shares of labels go, but for chance,
  in a straight line from those of the first half to those of the second: π(r) = (1 - t) · π(1) + t · π(R) with
  t = (r - 1)/(R - 1). α → ∞ is no drift, α → 0 makes each class early or late as a whole.

Only examples of the training part are in an order, so an example of the validation or test part is never trained on,
and evaluations of all rounds are on the same examples. Data of a round are a function of seed, client and round alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sepal.config import DriftSettings
from sepal.data.examples import Index, Labels
from sepal.rng import derive

LEAST = 10  # examples in a window, of a client that has them


@dataclass(frozen=True)
class Window:
    """Which places of an order of a client's training examples it trains on in which round.

    Attributes:
        examples: n, the number of training examples.
        size: m, the number of them in the window.
        rounds: R, the round from which on the window is at the end.
    """

    examples: int
    size: int
    rounds: int

    @classmethod
    def of(cls, settings: DriftSettings, examples: int, rounds: int) -> Window:
        """Return the window of a client with so many training examples, in a run with so many rounds.

        >>> window = Window.of(DriftSettings(name="time", window=0.5), examples=20, rounds=6)
        >>> window.places(1), window.places(3), window.places(7)
        (slice(0, 10, None), slice(4, 14, None), slice(10, 20, None))
        """
        return cls(examples, min(examples, max(LEAST, round(settings.window * examples))), settings.rounds or rounds)

    def places(self, round: int) -> slice:
        """Return the places in the order that the window has in ``round``, from 1; with R = 1, the first ones."""
        share = min(max(round - 1, 0) / (self.rounds - 1), 1.0) if self.rounds > 1 else 0.0
        start = int(share * (self.examples - self.size) + 0.5)
        return slice(start, start + self.size)


def order_of(settings: DriftSettings, labels: Labels, seed: int, client: str) -> Index:
    """Return a client's training examples in the order in which the window goes over them, int64 (n,).

    Args:
        settings: The keys ``drift.*``.
        labels: Class numbers of the examples, int64 (n,), in the order of the data.
        seed: Seed of partition and split.
        client: The client's name.
    """
    if settings.name == "time":
        return np.arange(len(labels))
    rng, order = derive(seed, "drift-halves", client), np.concatenate(early_and_late(settings, labels, seed, client))
    halves = np.split(order, [len(order) // 2])
    return np.concatenate([rng.permutation(half) for half in halves])


def early_and_late(settings: DriftSettings, labels: Labels, seed: int, client: str) -> tuple[Index, Index]:
    """Return the early and the late examples of label drift, each in random order; arguments as :func:`order_of`."""
    rng = derive(seed, "drift", client)
    early, late = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for c in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == c))
        count = int(rng.beta(settings.alpha, settings.alpha) * len(rows) + 0.5)
        early.append(rows[:count])
        late.append(rows[count:])
    return rng.permutation(np.concatenate(early)), rng.permutation(np.concatenate(late))

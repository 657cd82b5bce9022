"""Two rules that flwr-datasets lacks, as ``Partitioner`` subclasses. Importing this module imports flwr-datasets.

- :class:`LambdaMixPartitioner`: FedPSE, appendix C.1.
- :class:`TwoClassPartitioner`: DM-PFL, appendix A.1.3 ("pathological distribution").
"""

from __future__ import annotations

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from sepal.data.examples import Index, Labels
from sepal.data.sampling import draw_by_class


class _IndexPartitioner(Partitioner):  # type: ignore[misc]  # flwr_datasets ships no types
    """A partitioner that computes all partitions at the first request."""

    def __init__(self, num_partitions: int, partition_by: str, seed: int) -> None:
        super().__init__()
        self._partitions = num_partitions
        self._partition_by = partition_by
        self._rng = np.random.default_rng(seed)
        self._index: list[Index] | None = None

    @property
    def num_partitions(self) -> int:
        return self._partitions

    def load_partition(self, partition_id: int) -> Dataset:
        if self._index is None:
            self._index = self._deal(np.asarray(self.dataset[self._partition_by], dtype=np.int64))
        return self.dataset.select(self._index[partition_id])

    def _deal(self, labels: Labels) -> list[Index]:
        """Return the rows of each partition; ``labels`` is int64 (n,)."""
        raise NotImplementedError


class LambdaMixPartitioner(_IndexPartitioner):
    """FedPSE C.1: a fraction λ is sorted by label and split into chunks, the rest is distributed uniformly.

    The paper does not say how the fraction is drawn. Here it is drawn by class, so that the chunks of training and test
    part end at the same labels.

    Args:
        num_partitions: Number of clients N.
        partition_by: Name of the label column.
        fraction: λ in [0, 1]. 0 is IID; 1 with N = 5 on ten balanced classes gives each client exactly two.
        seed: Seed of the choice of sorted rows and of the distribution of the others.
    """

    def __init__(self, num_partitions: int, partition_by: str, fraction: float, seed: int) -> None:
        super().__init__(num_partitions, partition_by, seed)
        self._fraction = fraction

    def _deal(self, labels: Labels) -> list[Index]:
        chosen = draw_by_class(labels, round(self._fraction * len(labels)), self._rng)
        ordered = np.array_split(chosen[np.argsort(labels[chosen], kind="stable")], self._partitions)
        others = self._rng.permutation(np.setdiff1d(np.arange(len(labels)), chosen))
        # The larger parts of both divisions are at opposite ends, so that sizes differ by at most one.
        spread = np.array_split(others, self._partitions)[::-1]
        return [np.concatenate(pair) for pair in zip(ordered, spread, strict=True)]


class TwoClassPartitioner(_IndexPartitioner):
    """DM-PFL A.1.3: two classes per client; 90 % of the clients hold 50 % of the examples, the other 10 % the rest.

    Quantities are uniform within each of the two groups (between .1 and 1 before scaling; the paper gives no range).
    Classes are drawn such that each is used about equally often in each group. Quantities and class sizes are
    reconciled by iterative proportional fitting, with exact class sizes. Of ten draws, the one in which the large
    clients' share is closest to .5 is used; ``partition.deal`` raises if it is too far off.

    Args:
        num_partitions: Number of clients.
        partition_by: Name of the label column.
        seed: Seed of quantities, classes and rows, and of which clients are large.
    """

    large = 0.1
    draws = 10

    def _deal(self, labels: Labels) -> list[Index]:
        names, codes = np.unique(labels, return_inverse=True)
        counts = min((self._counts(np.bincount(codes)) for _ in range(self.draws)), key=lambda drawn: drawn[0])[1]
        parts: list[list[Index]] = [[] for _ in range(self._partitions)]
        for c in range(len(names)):
            rows = self._rng.permutation(np.flatnonzero(codes == c))
            for client, piece in enumerate(np.split(rows, np.cumsum(counts[:, c]))[: self._partitions]):
                parts[client].append(piece)
        return [np.concatenate(pieces) for pieces in parts]

    def _counts(self, sizes: Labels) -> tuple[float, Labels]:
        """Draw once. Return the deviation of the large clients' share from .5, and the counts (clients, classes)."""
        quantities, is_large = self._quantities()
        owned = np.zeros((self._partitions, len(sizes)), dtype=bool)
        for group in (np.flatnonzero(is_large), np.flatnonzero(~is_large)):
            owned[np.repeat(group, min(2, len(sizes))), self._classes(len(group), len(sizes)).ravel()] = True
        counts = _fit(owned, quantities * sizes.sum(), sizes)
        return abs(float(counts[is_large].sum() / sizes.sum()) - 0.5), counts

    def _quantities(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return each client's share of all examples (sums to 1), and which clients are large."""
        is_large = np.zeros(self._partitions, dtype=bool)
        is_large[self._rng.permutation(self._partitions)[: max(1, round(self.large * self._partitions))]] = True
        quantities = self._rng.uniform(0.1, 1.0, self._partitions)
        for group in (is_large, ~is_large):
            if group.any():
                quantities[group] *= 0.5 / quantities[group].sum()
        return quantities / quantities.sum(), is_large

    def _classes(self, clients: int, classes: int) -> NDArray[np.int64]:
        """Deal two different classes to each client (one, where there is only one), all about equally often."""
        per_client = min(2, classes)
        used = np.zeros(classes, dtype=np.int64)
        dealt = np.empty((clients, per_client), dtype=np.int64)
        for client in range(clients):
            # The least used first, ties in random order.
            dealt[client] = np.lexsort((self._rng.random(classes), used))[:per_client]
            used[dealt[client]] += 1
        return dealt


def _fit(owned: NDArray[np.bool_], quantities: NDArray[np.float64], sizes: Labels) -> NDArray[np.int64]:
    """Return counts (clients, classes), 0 outside ``owned``; columns sum to ``sizes`` (0 for a class without owner)."""
    table = owned * quantities[:, None]
    for _ in range(200):
        table *= (quantities / np.maximum(table.sum(axis=1), 1e-12))[:, None]
        table *= sizes / np.maximum(table.sum(axis=0), 1e-12)
    counts = np.zeros(table.shape, dtype=np.int64)
    for c, size in enumerate(sizes):
        owners = np.flatnonzero(owned[:, c])
        if len(owners) and size >= len(owners):
            shares = np.cumsum(table[owners, c]) / table[owners, c].sum()
            column = np.diff(np.round(shares * size).astype(np.int64), prepend=0)
            for empty in np.flatnonzero(column == 0):  # each owner really has its two classes
                column[np.argmax(column)] -= 1
                column[empty] = 1
            counts[owners, c] = column
    return counts

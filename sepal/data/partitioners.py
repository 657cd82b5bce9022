"""Rules that flwr-datasets lacks, as ``Partitioner`` subclasses. Importing this module imports flwr-datasets.

- :class:`ExtendedDirichletPartitioner`: ExDir(C, α), Li and Lyu, NeurIPS 2023.
- :class:`LambdaMixPartitioner`: FedPSE, appendix C.1.
- :class:`TwoClassPartitioner`: DM-PFL, appendix A.1.3 ("pathological distribution").
"""

from __future__ import annotations

import numpy as np
from datasets import Dataset
from flwr_datasets.partitioner import Partitioner
from numpy.typing import NDArray

from sepal.data.examples import Index, Labels
from sepal.data.partition import CLASSES_DRAWN
from sepal.data.sampling import draw_by_class
from sepal.errors import DataError

MOST_DRAWS = 1_000  # of shares, before giving up
_NUMBERS_DRAWN = 50_000_000  # in all draws together, of classes or of shares: a second to ten


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


class ExtendedDirichletPartitioner(_IndexPartitioner):
    """ExDir(C, α): each client may have C classes, drawn at random; each class is dealt to its owners by Dir(α).

    Li and Lyu, NeurIPS 2023 (arXiv 2311.03154), and the authors' ``liyipeng00/convergence``, commit 5972d5c,
    ``sim/data/partition.py``, lines 230-295. As there, classes are drawn again until each has max(⌊C·N/L⌋ // 5, 1)
    owners; a client that already has n/N examples gets none of further classes; what rounding leaves goes to the last
    owner; and shares are drawn again until each client has ``least`` examples. C = L is the balanced Dirichlet of
    NIID-Bench.

    Deviations: where all owners of a class have n/N examples, the class is dealt to them by their shares alone (there,
    the shares become NaN). Shares are drawn for the owners alone, which has the same law as to draw them for all
    clients, set those of others to 0 and divide by the sum.

    Args:
        num_partitions: Number of clients N.
        partition_by: Name of the label column; L is the number of its different labels.
        classes: C, at most L.
        alpha: α.
        least: Smallest number of examples of a client.
        seed: Seed of classes, shares and rows.
    """

    def __init__(
        self, num_partitions: int, partition_by: str, classes: int, alpha: float, least: int, seed: int
    ) -> None:
        super().__init__(num_partitions, partition_by, seed)
        self._classes, self._alpha, self._least = classes, alpha, least

    def _deal(self, labels: Labels) -> list[Index]:
        names, codes = np.unique(labels, return_inverse=True)
        sizes = np.bincount(codes)
        if self._classes > len(names):
            raise DataError("partition.classes", f"at most the {len(names)} classes of the examples", self._classes)
        counts = self._counts(self._owners(len(names)), sizes)
        parts: list[list[Index]] = [[] for _ in range(self._partitions)]
        for c in range(len(names)):
            rows = self._rng.permutation(np.flatnonzero(codes == c))
            for client, piece in enumerate(np.split(rows, np.cumsum(counts[:, c])[:-1])):
                parts[client].append(piece)
        return [np.concatenate(pieces) for pieces in parts]

    def _owners(self, classes: int) -> NDArray[np.bool_]:
        """Draw who may have which class, (clients, classes), until each class has enough owners."""
        enough = max(self._classes * self._partitions // classes // 5, 1)
        draws = max(1, _NUMBERS_DRAWN // (self._partitions * classes))  # C = 1, N = L = 10: one of 2,756 has enough
        possible = self._classes * self._partitions >= enough * classes
        for _ in range(draws if possible else 0):
            order = self._rng.random((self._partitions, classes)).argsort(axis=1)
            owned = order < self._classes  # each row of `order` is a permutation: C places hold a number below C
            if owned.sum(axis=0).min() >= enough:
                return owned
        raise DataError(
            "partition.classes",
            f"{self._partitions} clients with {self._classes} classes each to be enough for {enough} "
            f"owner{'s' * (enough > 1)} of each of the {classes} classes (raise it, or clients)",
            f"none in {draws} draws" if possible else f"{self._classes * self._partitions} owners in all",
        )

    def _counts(self, owned: NDArray[np.bool_], sizes: Labels) -> NDArray[np.int64]:
        """Draw how many examples of each class each client has, (clients, classes); columns sum to ``sizes``."""
        examples = int(sizes.sum())
        full, possible = examples / self._partitions, examples >= self._least * self._partitions
        draws = max(1, min(MOST_DRAWS, CLASSES_DRAWN // len(sizes), _NUMBERS_DRAWN // (self._partitions * len(sizes))))
        for _ in range(draws if possible else 0):
            counts = np.zeros(owned.shape, np.int64)
            held = np.zeros(self._partitions, np.int64)
            for c, size in enumerate(sizes):
                owners = np.flatnonzero(owned[:, c])
                open_owners = owners[held[owners] < full]
                owners = open_owners if len(open_owners) else owners
                shares = self._rng.dirichlet(np.full(len(owners), self._alpha))
                ends = (np.cumsum(shares)[:-1] * size).astype(np.int64)
                counts[owners, c] = np.diff(ends, prepend=0, append=size)
                held += counts[:, c]
            if held.min() >= self._least:
                return counts
        raise DataError(
            "partition.min-examples",
            f"{examples} examples to be enough for {self._partitions} clients with {self._least} each (lower "
            "clients or partition.min-examples, or raise partition.alpha or partition.classes)",
            f"none in {draws} draws of ExDir({self._classes}, {self._alpha:g}) with so many for each"
            if possible
            else f"{self._least * self._partitions} that they need",
        )


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

"""Means over uploads, in one pass that decodes one upload at a time.

Sums run in float64 in the order of client names, so a mean does not depend on the order in which clients answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sepal.protocol.types import Upload, Uploads, Weights
from sepal.wire.tensors import SparseTensor

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Sums: TypeAlias = dict[str, npt.NDArray[np.float64]]
Weigh: TypeAlias = Callable[[Upload], float]
Part: TypeAlias = tuple[tuple[Any, ...], npt.NDArray[np.float32]]  # where a block lies, and its values
Parts: TypeAlias = Callable[[Upload], Mapping[str, Part]]
BLOCK = 1 << 16  # entries


def by_examples(upload: Upload) -> float:
    """Weigh an upload by n_i, its client's number of training examples."""
    return upload.client.examples


def equally(upload: Upload) -> float:
    """Give every upload the weight 1."""
    return 1


@dataclass(frozen=True)
class MeanOfHolders:
    """The mean of each entry over the uploads that contain it.

    Attributes:
        mean: float64 by name: Σ weight·u_i / Σ weight over the uploads that contain the entry; 0 where none does.
        holders: int64 by name: number of uploads that contain each entry.
    """

    mean: Sums
    holders: Mapping[str, npt.NDArray[np.int64]]

    def over(self, previous: Weights) -> dict[str, npt.NDArray[np.float32]]:
        """Return the mean as float32, and ``previous`` for entries that no upload contains."""
        return {
            name: np.where(self.holders[name] > 0, mean, previous[name]).astype(np.float32)
            for name, mean in self.mean.items()
        }


def weighted_mean(
    uploads: Uploads,
    previous: Weights,
    names: Iterable[str] | None = None,
    weigh: Weigh = by_examples,
    robust: str = "none",
) -> dict[str, npt.NDArray[np.float32]]:
    """Return Σ weight·w_i / Σ weight over the uploads, for dense tensors.

    Args:
        uploads: Each with the tensors ``names``, dense.
        previous: Gives names and shapes; returned if there is no upload.
        names: Names of the tensors; None for all of ``previous``.
        weigh: The weight of an upload.
        robust: The run's ``robust-mean``; not ``none``: :func:`robust_mean`, without weights.

    Returns:
        float32 by name, for ``names`` only.
    """
    selected = list(previous) if names is None else list(names)
    if not selected:
        return {}  # uploads need not be decoded
    if robust != "none":
        means = robust_mean(uploads, {name: previous[name].shape for name in selected}, robust)
        return {name: array.astype(np.float32) for name, array in means.items()} or {n: previous[n] for n in selected}
    sums: Sums = {name: np.zeros(previous[name].shape) for name in selected}
    total = 0.0
    for upload in uploads:
        weight = weigh(upload)
        total += weight
        for name in selected:
            tensor = upload.payload.tensors[name]
            entries = values(tensor).reshape(tensor.shape) if tensor.index is None else tensor.dense()
            _add_weighted(sums[name].reshape(-1), entries.reshape(-1), weight)
    if not total:
        return {name: previous[name] for name in selected}
    return {name: (sums[name] / total).astype(np.float32) for name in selected}


def _add_weighted(sums: npt.NDArray[np.float64], entries: npt.NDArray[np.float32], weight: float) -> None:
    products = np.empty(min(sums.size, BLOCK))
    for block in blocks(sums.size):
        out = products[: len(sums[block])]
        sums[block] += np.multiply(entries[block], weight, out=out, dtype=np.float64)


def blocks(size: int) -> Iterator[slice]:
    """Yield the slices of an array of ``size`` entries whose float64 intermediates stay in the processor's cache.

    To take new memory for the intermediates of a whole tensor costs more than to compute them.
    """
    yield from (slice(start, start + BLOCK) for start in range(0, size, BLOCK))


def sparse_mean(uploads: Uploads, shapes: Shapes, weigh: Weigh = by_examples, robust: str = "none") -> Sums:
    """Return Σ weight·u_i / Σ weight over the uploads; an entry that was not sent counts as 0.

    Args:
        uploads: Each with the tensors of ``shapes``, sparse or dense.
        shapes: Whole shapes of the tensors, by name.
        weigh: The weight of an upload.
        robust: As for :func:`weighted_mean`.

    Returns:
        float64 by name.
    """
    if robust != "none":
        return robust_mean(uploads, shapes, robust) or {name: np.zeros(shape) for name, shape in shapes.items()}
    sums: Sums = {name: np.zeros(shape) for name, shape in shapes.items()}
    total = 0.0
    for upload in uploads:
        weight = weigh(upload)
        total += weight
        for name in shapes:
            tensor = upload.payload.tensors[name]
            add(sums[name], tensor, values(tensor).astype(np.float64) * weight)
    return {name: array / max(total, 1) for name, array in sums.items()}


def mean_of_holders(uploads: Iterable[Upload], shapes: Shapes, weigh: Weigh = by_examples) -> MeanOfHolders:
    """Return the mean of each entry over the uploads that contain it; an entry sent with the value 0 counts.

    Args:
        uploads: Each with the tensors of ``shapes``, sparse or dense.
        shapes: Whole shapes of the tensors, by name.
        weigh: The weight of an upload.
    """
    sums: Sums = {name: np.zeros(shape) for name, shape in shapes.items()}
    weights: Sums = {name: np.zeros(shape) for name, shape in shapes.items()}
    holders = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
    for upload in uploads:
        weight = weigh(upload)
        for name in shapes:
            tensor = upload.payload.tensors[name]
            add(sums[name], tensor, values(tensor).astype(np.float64) * weight)
            add(weights[name], tensor, float(weight))
            add(holders[name], tensor, 1)
    mean = {name: np.divide(array, weights[name], out=array, where=holders[name] > 0) for name, array in sums.items()}
    return MeanOfHolders(mean, holders)


def mean_of_parts(uploads: Uploads, previous: Weights, parts: Parts, weigh: Weigh) -> MeanOfHolders:
    """Return the mean of each entry over the uploads that hold it, where each holds a block of every tensor.

    Args:
        uploads: Read once, one at a time.
        previous: The whole tensors, for names and shapes.
        parts: Returns an upload's blocks by tensor name: the place in the whole tensor (an index such as a mesh or
            slices) and the values. Tensors that are not named are not held.
        weigh: The weight of an upload.
    """
    sums: Sums = {name: np.zeros(array.shape) for name, array in previous.items()}
    weights: Sums = {name: np.zeros(array.shape) for name, array in previous.items()}
    holders = {name: np.zeros(array.shape, np.int64) for name, array in previous.items()}
    for upload in uploads if previous else ():
        weight = weigh(upload)
        for name, (index, value) in parts(upload).items():
            sums[name][index] += value.astype(np.float64) * weight
            weights[name][index] += weight
            holders[name][index] += 1
    mean = {name: np.divide(array, weights[name], out=array, where=holders[name] > 0) for name, array in sums.items()}
    return MeanOfHolders(mean, holders)


def mean_of_prefixes(uploads: Uploads, previous: Weights, weigh: Weigh = equally) -> MeanOfHolders:
    """Return the mean of each entry over the uploads that contain it, for tensors that are prefixes of the full ones.

    Args:
        uploads: Each with the tensors of ``previous``, dense, with at most as many entries along each axis.
        previous: Gives names and full shapes.
        weigh: The weight of an upload.
    """

    def prefixes(upload: Upload) -> dict[str, Part]:
        values = {name: upload.payload.tensors[name].dense() for name in previous}
        return {name: (tuple(slice(side) for side in value.shape), value) for name, value in values.items()}

    return mean_of_parts(uploads, previous, prefixes, weigh)


def robust_mean(uploads: Uploads, shapes: Shapes, how: str) -> Sums:
    """Return the coordinate-wise median or trimmed mean over the uploads (Yin et al., ICML 2018, Definitions 1 and 2).

    Every upload has the same weight, because a client can claim any number of examples. An entry that was not sent
    counts as 0. All uploads are in memory at once.

    Args:
        uploads: Each with the tensors of ``shapes``, sparse or dense.
        shapes: Whole shapes of the tensors, by name.
        how: ``median``, or ``trimmed``: without the ⌊n/5⌋ smallest and largest values, at least one of each if n > 2.

    Returns:
        float64 by name; empty if there is no upload.
    """
    rows: dict[str, list[npt.NDArray[np.float32]]] = {name: [] for name in shapes}
    for upload in uploads:
        for name in shapes:
            rows[name].append(upload.payload.tensors[name].dense())
    count = len(rows[next(iter(shapes))]) if shapes else 0
    if not count:
        return {}
    cut = max(count // 5, 1) if count > 2 else 0
    means: Sums = {}
    for name in shapes:
        stack = np.sort(np.stack(rows.pop(name)), axis=0)
        middle = stack[cut : count - cut] if how == "trimmed" else stack[(count - 1) // 2 : count // 2 + 1]
        means[name] = middle.mean(axis=0, dtype=np.float64)
    return means


def add(target: npt.NDArray[np.float64] | npt.NDArray[np.int64], tensor: SparseTensor, addend: Any) -> None:
    """Add ``addend`` to ``target`` at the entries of ``tensor``; a scalar, or one value for each entry."""
    flat = target.reshape(-1)
    if tensor.index is None:
        flat += addend
    else:  # np.add.at is twice as fast here as indexed +=, which copies twice
        np.add.at(flat, tensor.index, addend)


def values(tensor: SparseTensor) -> npt.NDArray[np.float32]:
    """Return the values of the entries present, float32 (nnz,); ones for a mask."""
    return np.ones(tensor.nnz, np.float32) if tensor.values is None else tensor.values

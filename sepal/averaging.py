"""Means over uploads, one upload decoded at a time, in float64: the same bits in whatever order clients answer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sepal.method import Uploads, Weights

Sums = dict[str, npt.NDArray[np.float64]]


def weighted_mean(
    uploads: Uploads, previous: Weights, names: Iterable[str] | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """Return Σ n_i·w_i / Σ n_i over the uploads, entry by entry, for dense tensors called as in ``previous``.

    Args:
        uploads: Each with the tensors ``names``, dense; n_i is its client's number of examples.
        previous: Returned where there is no upload; gives names and shapes.
        names: Which tensors; None is all of ``previous``.

    Returns:
        float32 by name, for ``names`` only.
    """
    wanted = list(previous) if names is None else list(names)
    sums: Sums = {name: np.zeros(previous[name].shape) for name in wanted}
    total = 0
    for upload in uploads:
        total += upload.client.examples
        for name in wanted:
            sums[name] += upload.payload.tensors[name].dense().astype(np.float64) * upload.client.examples
    if not total:
        return {name: previous[name] for name in wanted}
    return {name: (sums[name] / total).astype(np.float32) for name in wanted}

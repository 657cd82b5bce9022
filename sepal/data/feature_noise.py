"""Feature skew by noise: each client's inputs have Gaussian noise of a strength of its own (``partition.noise``).

"Noise-based feature imbalance" of Li et al., ICDE 2022 (arXiv 2102.02079, NIID-Bench): client i of N has noise
σ · i/N, i = 1 … N. The authors' code has σ · i/(N - 1), i = 0 … N - 1, draws new noise at each access, and takes σ for
a standard deviation where its README says variance. Here the strength is the paper's and a standard deviation, and the
noise is a part of the data: drawn once for a seed, a client and a part, so that all methods see the same. As there,
validation and test parts have it, too, and nothing is clipped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import Examples, Source
from sepal.data.scaling import Scale
from sepal.data.schema import parsed
from sepal.rng import derive


def noise_level(noise: float, client: int, clients: int) -> float:
    """Return the standard deviation of a client's noise: noise · i/N.

    >>> noise_level(0.1, client=0, clients=4), noise_level(0.1, client=3, clients=4)
    (0.025, 0.1)
    """
    return noise * (client + 1) / clients


def noise_of(seed: int, client: int, part: str, x: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return the standard normal numbers of a client's part, float32 of the shape of ``x``."""
    numbers: NDArray[np.float32] = derive(seed, "feature-noise", client, part).standard_normal(x.shape, np.float32)
    return numbers


def unit(source: Source) -> NDArray[np.float64]:
    """Return what a standard deviation of 1 is in an input of :meth:`Source.take`; its shape broadcasts to one input.

    Of images, white; of a table, each column's standard deviation over all training examples, and 0 for a category;
    of others, 1.
    """
    facts = source.info
    if facts.kind == "image":
        std = np.array(facts.std, np.float64)
        std = std.reshape(len(std), *[1] * (len(facts.input_shape) - 1))
        return np.reciprocal(std)
    if not facts.table:
        return np.ones(1)
    factor = Scale.of(np.asarray(source.x[: source.train_count])).factor
    spread: NDArray[np.float64] = np.where(factor > 0, 1 / np.where(factor > 0, factor, 1), 0)
    numbers = parsed(facts.schema).numbers
    return np.where(numbers, spread, 0) if numbers else spread


def with_noise(examples: Examples, numbers: NDArray[np.float32], strength: NDArray[np.float64]) -> Examples:
    """Return examples with ``strength`` times standard normal ``numbers`` on the inputs, in the inputs' dtype."""
    dtype = examples.x.dtype  # float64 of a table alone: of images it would double the memory
    return Examples(examples.x + numbers * strength.astype(dtype), examples.y)

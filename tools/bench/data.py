"""Random images for benchmarks: what is learned does not matter, the shapes do."""

from __future__ import annotations

from typing import Any

import numpy as np

from sepal.rng import derive

EXAMPLES, TEST = 600, 10


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return 600 training and 10 test images, float32 (n, 1, 28, 28), of client number ``client``."""
    return _drawn(client, EXAMPLES, (1, 28, 28), 10)


def load_series(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return 245 training windows, as HAR's 30 people have on average, and 10 of test, float32 (n, 9, 128)."""
    return _drawn(client, 245, (9, 128), 6)


def load_cifar(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return 50 training images, as users have in pfl's benchmark, and 10 of test, float32 (n, 3, 32, 32)."""
    return _drawn(client, 50, (3, 32, 32), 10)


def _drawn(client: int, examples: int, shape: tuple[int, ...], classes: int) -> tuple[np.ndarray[Any, Any], ...]:
    rng = derive(0, "bench", client)
    x = rng.standard_normal((examples + TEST, *shape), np.float32)
    y = rng.integers(0, classes, examples + TEST)
    return x[:examples], y[:examples], x[examples:], y[examples:]

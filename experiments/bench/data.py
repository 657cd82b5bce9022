"""Random images for benchmarks: what is learned does not matter, the shapes do."""

from __future__ import annotations

from typing import Any

import numpy as np

from sepal.rng import derive

EXAMPLES, TEST = 600, 10


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return 600 training and 10 test images, float32 (n, 1, 28, 28), of client number ``client``."""
    rng = derive(0, "bench", client)
    x = rng.standard_normal((EXAMPLES + TEST, 1, 28, 28), np.float32)
    y = rng.integers(0, 10, EXAMPLES + TEST)
    return x[:EXAMPLES], y[:EXAMPLES], x[EXAMPLES:], y[EXAMPLES:]

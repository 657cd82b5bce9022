"""Segmentation: which pixels belong to a disc (1) or a square (2), on noise of 32 × 32; drawn, not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

SIDE, TRAIN, TEST = 32, 32, 16


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return (x_train, y_train, x_test, y_test) of one client: float32 (n, 1, 32, 32) and classes (n, 32, 32)."""
    rng = np.random.Generator(np.random.PCG64([7, client]))
    x = rng.normal(0, 0.2, (TRAIN + TEST, 1, SIDE, SIDE))
    y = np.zeros((TRAIN + TEST, SIDE, SIDE), np.int64)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    for image, mask in zip(x, y, strict=True):
        for label, light in ((1, 1.0), (2, -1.0)):
            row, column, size = [*rng.integers(6, SIDE - 6, 2).tolist(), int(rng.integers(3, 7))]
            down, right = rows - row, columns - column
            inside = down**2 + right**2 <= size**2 if label == 1 else np.maximum(abs(down), abs(right)) <= size
            image[0, inside], mask[inside] = light, label
    x = (x + rng.normal(0, 0.2, x.shape)).astype(np.float32)
    return x[:TRAIN], y[:TRAIN], x[TRAIN:], y[TRAIN:]


def build(input_shape: Sequence[int], classes: int) -> nn.Module:
    """Return a small network from (batch, 1, 32, 32) to logits (batch, classes, 32, 32)."""
    return nn.Sequential(
        nn.Conv2d(int(input_shape[0]), 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 3, padding=1)
    )

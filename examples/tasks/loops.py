"""Several labels for each example: what is true of a handwritten digit (scikit-learn's digits)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

CLIENTS = 4
LABELS = (
    (0, 6, 8, 9),  # has a loop
    (2, 3, 5, 7),  # is prime
    (1, 3, 5, 7, 9),  # is odd
)


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return (x_train, y_train, x_test, y_test) of one client: float32 (n, 64) and 0 or 1, (n, 3)."""
    x, digits = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), np.stack([np.isin(digits, label) for label in LABELS], 1).astype(np.int64)
    mine = np.random.Generator(np.random.PCG64(7)).permutation(len(x))[client % CLIENTS :: CLIENTS]
    cut = len(mine) * 2 // 3
    return x[mine[:cut]], y[mine[:cut]], x[mine[cut:]], y[mine[cut:]]


def build(input_shape: Sequence[int], labels: int) -> nn.Module:
    """Return a small network from (batch, 64) to a logit for each label, (batch, labels)."""
    return nn.Sequential(nn.Linear(int(input_shape[0]), 32), nn.ReLU(), nn.Linear(32, labels))

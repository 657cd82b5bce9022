"""Classes of unequal size: whether a handwritten digit is an eight, as one in ten is (scikit-learn's digits)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

CLIENTS = 4


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return (x_train, y_train, x_test, y_test) of one client: float32 (n, 64) and int64 (n,), 1 for an eight."""
    x, digits = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), (digits == 8).astype(np.int64)
    mine = np.random.Generator(np.random.PCG64(7)).permutation(len(x))[client % CLIENTS :: CLIENTS]
    cut = len(mine) * 2 // 3
    return x[mine[:cut]], y[mine[:cut]], x[mine[cut:]], y[mine[cut:]]


def build(input_shape: Sequence[int], classes: int) -> nn.Module:
    """Return a small network from (batch, 64) to logits (batch, classes)."""
    return nn.Sequential(nn.Linear(int(input_shape[0]), 16), nn.ReLU(), nn.Linear(16, classes))

"""Regression: how a disease progresses in a year, from ten measurements (scikit-learn's diabetes data)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes
from torch import nn

CLINICS = 4


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return (x_train, y_train, x_test, y_test) of one clinic: float32 (n, 10) and float32 (n,), in points of 100."""
    x, y = load_diabetes(return_X_y=True)
    x, y = (x * len(x) ** 0.5).astype(np.float32), (y / 100).astype(np.float32)
    order = np.random.Generator(np.random.PCG64(7)).permutation(len(x))
    mine = order[client % CLINICS :: CLINICS]
    cut = len(mine) * 2 // 3
    return x[mine[:cut]], y[mine[:cut]], x[mine[cut:]], y[mine[cut:]]


def build(input_shape: Sequence[int], numbers: int) -> nn.Module:
    """Return a small network from (batch, 10) to (batch, numbers)."""
    return nn.Sequential(nn.Linear(int(input_shape[0]), 16), nn.ReLU(), nn.Linear(16, numbers))

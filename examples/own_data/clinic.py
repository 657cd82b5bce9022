"""Sepal on your own data and your own model: each client's data comes from a function that the server never sees.

The data here is scikit-learn's breast cancer table, dealt to clients as if each were a clinic with patients of its own;
yours would read a file or a database of the machine it runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from torch import nn

CLINICS = 4


def load(client: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Return (x_train, y_train, x_test, y_test) of one clinic: float32 (n, 30) and int64 (n,).

    On a machine of its own a function takes no argument: there is only one clinic there.
    """
    table = load_breast_cancer()
    order = np.random.Generator(np.random.PCG64(7)).permutation(len(table.data))
    mine = order[client % CLINICS :: CLINICS]
    train, test = np.split(mine, [len(mine) * 3 // 4])
    known = table.data[train]  # a clinic standardises by its own training examples alone
    x = ((table.data - known.mean(0)) / known.std(0)).astype(np.float32)
    return x[train], table.target[train], x[test], table.target[test]


def build(input_shape: Sequence[int], classes: int) -> nn.Module:
    """Return a small network from (batch, 30) to logits (batch, classes)."""
    return nn.Sequential(nn.Linear(int(input_shape[0]), 16), nn.ReLU(), nn.Linear(16, classes))

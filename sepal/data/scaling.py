"""Standardises the columns of a table with the statistics of one client's training part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean 0 and standard deviation 1 for each column of what it was made from.

    Attributes:
        mean: float32 (columns,).
        factor: float32 (columns,), 1 / standard deviation; 0 for a column that was constant, from which no model can
            have learned anything: it stays 0 in all parts.
    """

    mean: NDArray[np.float32]
    factor: NDArray[np.float32]

    @classmethod
    def of(cls, train: NDArray[Any]) -> Scale:
        """Return the scale of a client's training part, (n, columns), n at least 1."""
        wide = np.asarray(train, np.float64)
        mean, spread = wide.mean(axis=0), wide.std(axis=0)
        # A constant column may have a spread of rounding errors; 1 / a tiny spread may exceed float32.
        usable = (wide.min(axis=0) < wide.max(axis=0)) & (spread > np.finfo(np.float32).tiny)
        return cls(mean.astype(np.float32), np.where(usable, 1 / np.where(usable, spread, 1), 0).astype(np.float32))

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows (n, columns), standardised."""
        return (x - self.mean) * self.factor

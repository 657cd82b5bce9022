"""Standardises the columns of a table with the statistics of one client's training part.

Numbers are float64 until they are standardised: float32 has one value for all seconds of two minutes since 1970. A
missing number is NaN. It counts in no statistic, and becomes the column's mean, which is 0 once standardised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean 0 and standard deviation 1 for each column of what it was made from.

    Attributes:
        mean: float64 (columns,); 0 for a column without a number.
        factor: float64 (columns,), 1 / standard deviation; 0 for a column that was constant or without a number, from
            which no model can have learned anything: it stays 0 in all parts.
    """

    mean: NDArray[np.float64]
    factor: NDArray[np.float64]

    @classmethod
    def of(cls, train: NDArray[Any]) -> Scale:
        """Return the scale of a client's training part, (n, columns), n at least 1."""
        wide = np.asarray(train, np.float64)
        there = ~np.isnan(wide)
        count = np.maximum(there.sum(axis=0), 1)
        mean = np.where(there, wide, 0).sum(axis=0) / count
        spread = np.sqrt((np.where(there, wide - mean, 0) ** 2).sum(axis=0) / count)
        # A constant column may have a spread of rounding errors; 1 / a tiny spread may exceed float32.
        low, high = np.fmin.reduce(wide), np.fmax.reduce(wide)
        usable = (low < high) & (spread > np.finfo(np.float32).tiny)
        return cls(mean, np.where(usable, 1 / np.where(usable, spread, 1), 0))

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows (n, columns), standardised in float64 and then float32; missing numbers are 0."""
        values = (x - self.mean) * self.factor
        values[np.isnan(values)] = 0
        return values.astype(np.float32)

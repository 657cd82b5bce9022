"""Standardises the columns of a table with the statistics of one client's training part.

Numbers are float64 until they are standardised: float32 has one value for all seconds of two minutes since 1970. A
missing number is NaN. It counts in no statistic, and becomes the column's mean, which is 0 once standardised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scale:
    """Mean 0 and standard deviation 1 for each column of what it was made from.

    Attributes:
        mean: float64 (columns,); 0 for a column without a number. Both are float32 in runs of earlier versions.
        factor: float64 (columns,), 1 / standard deviation; 1 for a column that is not scaled; 0 for one that was
            constant or without a number, from which no model can have learned anything: it stays 0 in all parts.
    """

    mean: NDArray[np.floating[Any]]
    factor: NDArray[np.floating[Any]]

    @classmethod
    def of(cls, train: NDArray[Any], numbers: Sequence[bool] = (), single: bool = False) -> Scale:
        """Return the scale of a client's training part, (n, columns), n at least 1.

        Of ``numbers``, the columns that are not True stay as they are: of a category, 0 or 1. Empty: all are scaled.
        With ``single``, rows and statistics are float32.
        """
        wide = np.asarray(np.asarray(train, np.float32) if single else train, np.float64)
        present = ~np.isnan(wide)
        count = np.maximum(present.sum(axis=0), 1)
        mean = np.where(present, wide, 0).sum(axis=0) / count
        spread = np.sqrt((np.where(present, wide - mean, 0) ** 2).sum(axis=0) / count)
        # A constant column may have a spread of rounding errors; 1 / a tiny spread may exceed float32.
        low, high = np.fmin.reduce(wide), np.fmax.reduce(wide)
        usable = (low < high) & (spread > np.finfo(np.float32).tiny)
        factor = np.where(usable, 1 / np.where(usable, spread, 1), 0)
        if len(numbers):
            mean, factor = np.where(numbers, mean, 0), np.where(numbers, factor, 1)
        return cls(mean.astype(np.float32), factor.astype(np.float32)) if single else cls(mean, factor)

    def __call__(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return rows (n, columns), standardised in float64 and then float32; missing numbers are 0."""
        values = (np.asarray(x, self.mean.dtype) - self.mean) * self.factor
        values[np.isnan(values)] = 0
        return np.asarray(values, np.float32)

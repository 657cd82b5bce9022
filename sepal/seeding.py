"""The generators that code which is not Sepal's may draw from: Python's, NumPy's and torch's global ones.

Sepal itself uses none of them (:mod:`sepal.rng`). A user's model, data or loss may, so each piece of work with them
starts from a seed that follows from the run's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def generators() -> tuple[Any, ...]:
    """Return the global generators of the CPU: Python's, NumPy's and torch's."""
    return random._inst, np.random.mtrand._rand, torch.default_generator


@contextmanager
def generators_seeded(seed: int) -> Iterator[None]:
    """Let the global generators of the CPU start from ``seed``, any int from 0; their states are restored afterwards.

    It is for one thread: the generators are the process's.
    """
    before = torch.default_generator.get_state(), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002  (others' code draws from it)
    torch.default_generator.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])

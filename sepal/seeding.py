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


class _Use:
    """Who looks after the global generators at the moment, in this process."""

    kept = False  # somebody further out restores them
    seeded = False  # a piece of work draws from them


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the global generators of the CPU afterwards, once for all pieces of work inside.

    Saving and restoring NumPy's takes ten times as long as seeding it, so an engine does this once a run.
    """
    before = _states()
    outer, _Use.kept = _Use.kept, True
    try:
        yield
    finally:
        _Use.kept = outer
        _restore(before)


@contextmanager
def generators_seeded(seed: int) -> Iterator[None]:
    """Let the global generators of the CPU start from ``seed``, any int from 0; their states are restored afterwards.

    Inside :func:`generators_kept` that is left to it, unless another piece of work goes on with them. It is for one
    thread: the generators are the process's.
    """
    restores = _Use.seeded or not _Use.kept
    before = _states() if restores else None
    torch.default_generator.manual_seed(seed % 2**63)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (others' code draws from it)
    random.seed(seed)
    outer, _Use.seeded = _Use.seeded, True
    try:
        yield
    finally:
        _Use.seeded = outer
        if before:
            _restore(before)


def _states() -> tuple[Any, ...]:
    return torch.default_generator.get_state(), np.random.get_state(legacy=False), random.getstate()  # noqa: NPY002


def _restore(states: tuple[Any, ...]) -> None:
    torch.default_generator.set_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])

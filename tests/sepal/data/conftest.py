"""Fixtures of the data tests: a cache of their own, no downloads, and the real data where SEPAL_DATA names it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sepal.data.catalogue import CATALOGUE
from sepal.data.examples import Source

REAL = os.environ.get("SEPAL_DATA", "")


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("sepal-cache")


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, shared_cache):
    monkeypatch.setenv("SEPAL_CACHE", str(shared_cache))
    monkeypatch.setenv("SEPAL_DOWNLOAD", "0")


@pytest.fixture
def real_data() -> Path:
    if not REAL:
        pytest.skip("SEPAL_DATA is not set: it names the directory with the real data")
    return Path(REAL)


@pytest.fixture
def toy():
    """Make a source of ``train`` and ``test`` labels out of thin air; row i holds the image of grey value i % 256."""

    def make(train, test=(), natural=None) -> Source:
        y = np.array([*train, *test], dtype=np.int64)
        x = np.broadcast_to((np.arange(len(y)) % 256).astype(np.uint8)[:, None, None], (len(y), 8, 8)).copy()
        return Source(CATALOGUE["digits"], x, y, len(train), None if natural is None else np.asarray(natural))

    return make

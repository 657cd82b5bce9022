"""What a process keeps of its clients' data: their tensors, and no second copy, which would halve what fits."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from sepal.engines.in_process import run_in_process
from sepal.strategies.assembly import assemble

KEYS = {
    "method": "fedavg",
    "dataset": "own",
    "own.shape": "1x8x8",
    "own.classes": 3,
    "own.data": f"{__name__}:load",
    "model": "digits-cnn",
    "clients": 3,
    "rounds": 1,
    "batch-size": 4,
}
returned: list[weakref.ref[np.ndarray]] = []


def load(client):
    """Return views of one array, as loaders often do: each would keep all of it."""
    x = np.random.default_rng(client).standard_normal((12, 1, 8, 8)).astype(np.float32)
    returned.append(weakref.ref(x))
    return x[:8], np.arange(8) % 3, x[8:], np.arange(4) % 3


@pytest.mark.parametrize(
    "keys", [{"split.validation": 0.0}, {"split.validation": 0.2}, {"evaluate.corruption": "gaussian-noise"}], ids=str
)
def test_arrays_of_a_loader_are_not_kept_beside_their_tensors(keys):
    returned.clear()
    alive = []

    class AtTheEnd:
        def opened(self, progress, total):
            pass

        def round(self, progress, record, line):
            gc.collect()
            alive.append([reference() is not None for reference in returned])

        def closed(self, progress, line):
            pass

    run_in_process(assemble({**KEYS, **keys}), observers=[AtTheEnd()])
    assert len(alive[0]) == 3, "each client has read its data"
    assert not any(map(any, alive))

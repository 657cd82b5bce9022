"""The peak memory of Pa3dFL's server is at most four times its hypernetwork: alone, and in a whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench.hypernetwork import server
from tools.bench.widths import alone, memory

pytestmark = pytest.mark.e2e  # processes of their own, twelve seconds

RANK = 2000  # decoders of 69 MiB, which stand out from what a process takes anyway
DIGITS = ("digits-cnn", (1, 8, 8), 10)


def test_generating_and_stepping():
    figures = alone(server, (1.0, 0.25), 20, RANK, 3, DIGITS)
    assert figures["bytes"] > 60 << 20
    assert figures["over_hypernetwork"] < 4


def test_a_run_in_memory():
    """2.7 when this was written: the state, the sums of gradients, and what a round needs beside them."""
    peak, size = alone(whole_run)
    assert size > 60 << 20
    assert peak / size < 4


def whole_run():
    """Return by how much a run of two rounds exceeds one with small decoders at its peak, and its decoders' bytes."""
    run(1)  # what libraries allocate at first use
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # what was held before does not count as a peak
    strategy = run(RANK)
    weights = strategy.progress.server.hypernetwork.weights
    return (memory("VmHWM") - before) * 2**20, sum(array.nbytes for array in weights.values())


def run(rank):
    from sepal.engines.in_process import run_in_process
    from sepal.strategies.assembly import assemble

    keys = {"method": "pa3dfl", "dataset": "digits", "clients": 4, "rounds": 2, "local-epochs": 1}
    return run_in_process(assemble({**keys, "pa3dfl.decoder-rank": rank, "checkpoint-every": 1}))

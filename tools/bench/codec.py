"""The codec: dense-equivalent throughput at 10 %, relative to a copy of the dense array in the same run."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sepal.rng import derive
from sepal.wire import SparseTensor, TensorSpec, decode, encode

ENTRIES = 10_000_000
DENSITIES = (0.5, 0.38, 0.3, 0.21, 0.1, 0.01)  # plain Rice codes are at their worst at .38 and .21


def seconds(action: Callable[[], object], repeats: int = 7) -> float:
    """Return the median seconds of ``action``."""
    durations = []
    for _ in range(repeats):
        begun = time.perf_counter()
        action()
        durations.append(time.perf_counter() - begun)
    return statistics.median(durations)


def bound_bytes(size: int, count: int) -> float:
    """Return log2 C(size, count) in bytes: the least that any coding of a random support needs."""
    bits = (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2)
    return bits / 8


def measure() -> list[dict[str, Any]]:
    """Return a row for each density and direction: MB/s of dense fp32, ratio to a memory copy and to the bound."""
    rows = []
    dense = np.ones(ENTRIES, np.float32)
    copy = seconds(dense.copy)
    for density in DENSITIES:
        count = int(density * ENTRIES)
        rng = derive(0, "bench-codec", str(density))
        index = np.sort(rng.choice(ENTRIES, count, replace=False)).astype(np.int64)
        tensor = SparseTensor((ENTRIES,), index, rng.standard_normal(count, np.float32))
        data = encode({"w": tensor})
        specs = {"w": TensorSpec((ENTRIES,), max_count=count)}
        share = (len(data) - 4 * count) / bound_bytes(ENTRIES, count)
        for direction, action in (("encode", partial(encode, {"w": tensor})), ("decode", partial(decode, data, specs))):
            duration = seconds(action)
            speed = 4 * ENTRIES / duration / 1e6
            goal = density == 0.1
            rows.append(
                {
                    "what": f"{direction} at {density:g} of {ENTRIES // 10**6} M entries",
                    "ratio": duration / copy,
                    "goal": "at least 2,500 MB/s of dense fp32" if goal else "",
                    "met": speed >= 2500 if goal else None,
                    "mb_per_second": speed,
                    "index_bytes_over_entropy_bound": share,
                }
            )
    return rows

"""Aggregation of many sparse uploads, relative to reading and decoding them once: time and memory by client count."""

from __future__ import annotations

import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sepal.layout import Parameter, Role
from sepal.masks.flat import Flat
from sepal.protocol.messages import Content
from sepal.protocol.payloads import unseal
from sepal.protocol.types import ClientInfo, Schema, Upload
from sepal.rng import derive
from sepal.server.run_store import DiskRunStore
from sepal.wire import TensorSpec, encode

ENTRIES, KEEP, DISTINCT = 11_000_000, 0.1, 10
FLAT = Flat(tuple(Parameter(f"w{number}", (ENTRIES // 4,), Role.WEIGHT) for number in range(4)))


class SpooledUploads:
    """Uploads of ``count`` clients: read from disk and decoded one at a time, each time they are iterated."""

    def __init__(self, store: DiskRunStore, count: int) -> None:
        self.store, self.count = store, count
        self.schema = Schema({p.name: TensorSpec(p.shape) for p in FLAT.layout})

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        for number in range(self.count):
            content = self.store.read(1, f"c{number % DISTINCT}")
            yield Upload(ClientInfo(f"c{number}", 100 + number), unseal(content, self.schema))


def spool(store: DiskRunStore) -> None:
    """Put ``DISTINCT`` different uploads on disk."""
    for number in range(DISTINCT):
        rng = derive(0, "bench-aggregation", number)
        index = np.sort(rng.choice(ENTRIES, int(KEEP * ENTRIES), replace=False)).astype(np.int64)
        values = rng.standard_normal(index.size, np.float32)
        store.spool(1, f"c{number}", Content(encode(FLAT.scatter(index, values))))


def whole_step(uploads: Any) -> float:
    """Return the seconds of FedPSE's whole server step after a round: EWA, top-k, and an update for each client."""
    from sepal.protocol.types import Plan
    from sepal.strategies.assembly import assemble
    from sepal.strategies.fedpse.server import FedPSEServer

    zeros = {p.name: np.zeros(p.shape, np.float32) for p in FLAT.layout}
    setup = assemble({"method": "fedpse", "dataset": "digits", "fedpse.keep": KEEP}).setup
    server = FedPSEServer(replace(setup, layout=FLAT.layout, weights=zeros))
    begun = time.monotonic()
    server.aggregate(server.init(), uploads, Plan(1))
    return time.monotonic() - begun


def measure(counts: tuple[int, ...] = (10, 100, 1000)) -> list[dict[str, Any]]:
    """Return a row for each number of clients: seconds of element-wise aggregation over seconds of decoding alone."""
    from sepal.strategies.fedpse.server import aggregate

    rows = []
    with tempfile.TemporaryDirectory() as directory:
        store = DiskRunStore(Path(directory), object)
        spool(store)
        for count in counts:
            uploads: Any = SpooledUploads(store, count)
            begun = time.monotonic()
            for _ in uploads:
                pass
            reading = time.monotonic() - begun
            begun = time.monotonic()
            aggregate(uploads, FLAT)
            seconds = time.monotonic() - begun
            if count == counts[0]:
                title = f"all of FedPSE's server step for {count} uploads over reading and decoding them"
                rows.append({"what": title, "ratio": whole_step(uploads) / reading, "goal": "", "met": None})
            rows.append(
                {
                    "what": f"aggregate {count} uploads (EWA), 11 M parameters at 10 %, over reading and decoding them",
                    "ratio": seconds / reading,
                    "goal": "at most 3" if count == 100 else "",
                    "met": seconds <= 3 * reading if count == 100 else None,
                    "seconds_per_upload": seconds / count,
                    "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                }
            )
    return rows

"""Hundreds of virtual clients with state: memory is bounded by the cache, not by their number."""

from __future__ import annotations

import multiprocessing
import resource
from typing import Any

from tools.bench.engine import FLAT

LIMIT_MB = 64


def _run(clients: int, queue: Any) -> None:
    from sepal.engines.in_process import run_in_process
    from sepal.strategies.assembly import assemble

    keys = {"method": "fedpse", "clients": clients, "clients-per-round": 20, "rounds": clients // 20 * 2}
    assembly = assemble({**FLAT, **keys, "batch-size": 100, "model": "cnn2-small"})
    run_in_process(assembly, limit=LIMIT_MB << 20)
    queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def peak_megabytes(clients: int) -> float:
    """Return the peak memory of a process that runs ``clients`` clients, each about twice."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_run, args=(clients, queue))
    process.start()
    megabytes = float(queue.get())
    process.join()
    return megabytes


def measure(counts: tuple[int, int] = (100, 500)) -> list[dict[str, Any]]:
    """Return one row: peak memory with many clients over that with few, for states of 1.3 MB and a cache of 64 MB."""
    few, many = (peak_megabytes(count) for count in counts)
    return [
        {
            "what": f"peak memory, {counts[1]} virtual clients with state over {counts[0]} (cache {LIMIT_MB} MB)",
            "ratio": many / few,
            "goal": "not by the number of clients: at most 1.25",
            "met": many <= 1.25 * few,
            "megabytes_few": few,
            "megabytes_many": many,
        }
    ]

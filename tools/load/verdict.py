"""What a series of load runs must show: every run ends, nothing grows faster than the clients, memory stays flat."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sepal.engines.flower.engine import COMPLETED

TOLERANCE = 1.2  # over linear growth, and for memory that should not grow
LINEAR = ("round_s", "superlink_cpu_s", "superlink_mb")  # may grow in proportion to the number of registered clients
FLAT = "serverapp_mb"  # may not grow from FLAT_FROM clients on
FLAT_FROM = 100


def verdict(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each requirement that is not met; rows without a run are ignored."""
    runs = sorted((row for row in rows if "status" in row), key=lambda row: row["clients"])
    problems = [f"{row['clients']} clients: {row['status']}" for row in runs if row["status"] != COMPLETED]
    problems += [f"{row['clients']} clients: {row['failures']} failures" for row in runs if row.get("failures")]
    ended = [row for row in runs if row["status"] == COMPLETED]
    problems += [f"{row['clients']} clients: no {key}" for row in ended for key in (*LINEAR, FLAT) if not row[key]]
    for few, many in itertools.pairwise(ended):
        allowed = TOLERANCE * many["clients"] / few["clients"]
        problems += [
            f"{key}: {many[key] / few[key]:.1f} times as much from {few['clients']} to {many['clients']} clients"
            for key in LINEAR
            if few[key] and many[key] > allowed * few[key]
        ]
    flat = [row for row in ended if row["clients"] >= FLAT_FROM]
    for few, many in itertools.pairwise(flat):
        if many[FLAT] > TOLERANCE * few[FLAT]:
            problems.append(
                f"{FLAT}: {few[FLAT]:.0f} at {few['clients']} clients, {many[FLAT]:.0f} at {many['clients']}"
            )
    return problems

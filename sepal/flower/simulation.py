"""Whether this process belongs to Flower's simulation, whose server and clients are on one machine."""

from __future__ import annotations

import sys


def on_one_machine() -> bool:
    """Return whether this process is one of Flower's simulation: its clients trust the server, and hold what it has."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())

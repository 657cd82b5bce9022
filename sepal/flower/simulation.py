"""Whether this process belongs to Flower's simulation, whose server and clients are on one machine."""

from __future__ import annotations

import sys
import time

SIMULATION = "flwr.simulation.app"  # a module that only the process imports which starts Ray


def starts_ray() -> bool:
    """Return whether this process is Flower's simulation, with its ServerApp, and not one of Ray's actors."""
    return SIMULATION in sys.modules


def on_one_machine() -> bool:
    """Return whether this process is one of Flower's simulation: its clients trust the server, and hold what it has."""
    is_initialized = getattr(sys.modules.get("ray"), "is_initialized", None)  # None while Ray is being imported, too
    return is_initialized is not None and bool(is_initialized())


def wait_for_ray(seconds: float = 60.0) -> None:
    """Wait until Ray has started, beside which Flower's simulation starts its ServerApp: before, nothing tells it."""
    deadline = time.monotonic() + seconds
    while not on_one_machine() and time.monotonic() < deadline:
        time.sleep(0.05)

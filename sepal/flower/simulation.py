"""Whether this process belongs to Flower's simulation: server and clients on one machine, or one Ray cluster."""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from sepal.errors import ConfigError, SepalError
from sepal.storage.files import private_directory
from sepal.storage.home import private_home
from sepal.storage.regular import expanded

TIMEOUT = 120.0  # seconds for a node to start a worker and to look for a file
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


def check_shared_states(state_dir: str) -> None:
    """Check that all nodes of a Ray cluster see one directory of clients' states.

    A client trains on whichever node has room, and must find there what it left on another. On one machine nothing is
    asked.

    Args:
        state_dir: The key ``state-dir``.

    Raises:
        ConfigError: The cluster takes calls without a token, or a node does not see the directory.
    """
    if not on_one_machine():
        return
    ray: Any = sys.modules["ray"]
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    if (mode := os.environ.get("RAY_AUTH_MODE", "")) != "token":
        raise ConfigError("RAY_AUTH_MODE", "token, without which whoever reaches the cluster runs code on it", mode)
    mark, content = f".shared-{secrets.token_hex(8)}", secrets.token_hex(8)
    directory = states_directory(state_dir)
    private_directory(directory)
    (directory / mark).write_text(content, encoding="utf-8")
    try:
        for node in nodes:
            place = f"node:{node['NodeManagerAddress']}"
            task = ray.remote(_read_mark).options(num_cpus=0, resources={place: 0.001})
            if ray.get(task.remote(state_dir, mark), timeout=TIMEOUT) != content:
                got = f"{directory}, in which {node['NodeManagerAddress']} has files of its own"
                raise ConfigError("state-dir", "a directory that all nodes of the Ray cluster share", got)
    finally:
        (directory / mark).unlink(missing_ok=True)


def states_directory(state_dir: str) -> Path:
    """Return the directory of clients' states: the key ``state-dir``, or ``~/.sepal/state``."""
    return expanded("state-dir", state_dir) if state_dir else private_home() / "state"


def _read_mark(state_dir: str, mark: str) -> str:
    """Return what is in the file ``mark`` of the directory of states on this node; empty if it is not there."""
    try:
        return (states_directory(state_dir) / mark).read_text(encoding="utf-8")
    except (OSError, SepalError):
        return ""

"""Runs the app without code on a SuperLink, from a directory that only one server uses."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

import sepal
from sepal import __version__
from sepal.config import Flat
from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import AppRun, Flower
from sepal.engines.flower.node_registry import NodeRegistry
from sepal.errors import ConfigError
from sepal.storage.files import private_directory

UNNAMED = ".unnamed"  # no run can be called so
# How Flower says that it has ended a run that Sepal has not: a task was silent, a call to the SuperLink failed, or a
# message was being sent while the machine was paused.
BROKEN = ("No heartbeat received from the task", "/v1/runtime/", "The push session may have expired or been replaced")
AGAIN, MOST_AGAIN, WITHIN = 10.0, 3, 600.0  # seconds before a run is started again; how often, within how many seconds


@contextmanager
def alone(directory: Path, who: str = "server", depth: int = 1, patience: float = 0.0) -> Iterator[None]:
    """Keep a second process out of ``directory``: it would share the first one's database, connection, apps and log.

    Args:
        directory: A directory of ``SEPAL_HOME``.
        who: What the process is, for the error: a server or a client.
        depth: How many levels it is below ``SEPAL_HOME``.
        patience: Seconds to wait for a process that is just ending.

    Raises:
        ConfigError: Another process is there.
    """
    private_directory(directory)
    lock = FileLock(directory / ".lock")
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        home = str(directory.parents[depth - 1])
        raise ConfigError("SEPAL_HOME", f"a directory of its own for each {who}", home) from None
    try:
        yield
    finally:
        lock.release()


def state_of(home: Path, name: str) -> Path:
    """Return the directory of what a server keeps for a run: the SuperLink's database, its nodes, and the logs.

    Each run has its own, so that another deployment knows nothing of its nodes. A run without a name cannot be
    continued: the files of the last such run are removed, except the logs, which say why it failed.

    Args:
        home: The directory of servers, which nobody else uses (:func:`alone`).
        name: The run's name; empty if it is to be generated.
    """
    directory = home / (name or UNNAMED)
    private_directory(directory)
    if not name:
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif ".log" not in path.name:
                path.unlink()
    return directory


def run_bundle(
    flower: Flower,
    directory: Path,
    flat: Flat,
    registry: NodeRegistry | None,
    tell: Callable[[str], None],
    show: Callable[[str], None],
    again: int = 0,
) -> AppRun:
    """Run the app without code, and return the ended run.

    Args:
        flower: Connected to a SuperLink.
        directory: Directory for the app.
        flat: Flat run-config keys.
        registry: The nodes' keys, kept registered during the run; None if the SuperLink accepts any node.
        tell: Called with the line that says what is bundled.
        show: Called with each line of the run's log.
        again: How often within ``WITHIN`` seconds a run with a name that Flower has ended (``BROKEN``) is started
            again, and so goes on from its record.
    """
    files = write_app(directory / "app", str(flat.get("method", "")))
    tell(bundle_line(files))
    tick = registry.tick if registry else lambda: None
    begun: list[float] = []
    while True:
        begun.append(time.monotonic())
        ended = flower.run_app(directory / "app", flat, timeout=math.inf, tick=tick, show=show)
        often = len([moment for moment in begun if time.monotonic() - moment < WITHIN]) > again
        if ended.complete or not flat.get("name") or not any(word in ended.reason for word in BROKEN) or often:
            return ended
        tell(f"sepal: Flower has ended the run ({ended.reason}): started again from its record in {AGAIN:g} s")
        time.sleep(AGAIN)


def bundle_line(files: list[Path]) -> str:
    """Return a line that says which files are bundled and where the code comes from."""
    names = ", ".join(f"{file.name} ({file.stat().st_size} bytes)" for file in files)
    code = f"Sepal {__version__}, here from {Path(sepal.__file__).parents[1]}"
    return f"app bundle: {names}, no code; server and clients run their installed {code}"

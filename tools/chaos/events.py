"""What is done to a running federation: each event chooses its victim and returns whether there was one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import psutil

from tools.chaos.federation import Federation, fill

Event: TypeAlias = Callable[[Federation, np.random.Generator, float], bool]


def _kill(processes: list[psutil.Process]) -> bool:
    done = False
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
            done = True
    return done


def _someone(federation: Federation, rng: np.random.Generator) -> int:
    return int(rng.integers(len(federation.nodes)))


def client_process(federation: Federation, rng: np.random.Generator, seconds: float) -> bool:
    """Kill the resident client process; its SuperNode starts another."""
    return _kill(federation.parents(_someone(federation, rng)))


def answering_process(federation: Federation, rng: np.random.Generator, seconds: float) -> bool:
    """Kill the fork that is answering a message."""
    return _kill(federation.children(_someone(federation, rng)))


def client_machine(federation: Federation, rng: np.random.Generator, seconds: float) -> bool:
    """Kill a SuperNode and all its processes; start it again after a second."""
    number = _someone(federation, rng)
    federation.kill_node(number)
    time.sleep(1)
    federation.start_client(number)
    return True


def server(federation: Federation, rng: np.random.Generator, seconds: float) -> bool:
    """Kill the ServerApp and submit the run again under its name."""
    if not _kill(federation.server()):
        return False
    federation.submit()
    return True


def superlink(federation: Federation, rng: np.random.Generator, seconds: float) -> bool:
    """Kill the SuperLink; start it again after a second."""
    if federation.superlink is None:
        return False
    federation.superlink.kill()
    federation.superlink.wait()
    time.sleep(1)
    federation.start_superlink()
    return True


def stopped_client(federation: Federation, rng: np.random.Generator, seconds: float) -> bool:
    """Stop a client's processes with SIGSTOP for a while."""
    node = psutil.Process(federation.nodes[f"node{_someone(federation, rng)}"].pid)
    family = [node, *node.children(recursive=True)]
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)
    return True


def full_disk(federation: Federation, rng: np.random.Generator, seconds: float) -> bool:
    """Fill the disk that holds the clients' states for a while; do nothing if they have no disk of their own."""
    home = Path(federation.environment["SEPAL_HOME"])
    if not os.path.ismount(home):
        return False
    filler = fill(home)
    time.sleep(min(seconds, 5.0))
    filler.unlink()
    return True


def clock(federation: Federation, rng: np.random.Generator, seconds: float) -> bool:
    """Make the clocks that all processes read jump by up to an hour, for at most five seconds, and back."""
    federation.clock.write_text(str(float(rng.uniform(-3600, 3600))), encoding="utf-8")
    time.sleep(min(seconds, 5.0))
    federation.clock.write_text("0", encoding="utf-8")
    return True


KILLS: dict[str, Event] = {
    "client process": client_process,
    "answering process": answering_process,
    "client machine": client_machine,
    "server": server,
    "superlink": superlink,
}
TROUBLES: dict[str, Event] = {"client stopped": stopped_client, "disk full": full_disk, "clock jumps": clock}

"""Users' files under our packages' names, in the working directories of Flower's processes; and data that nodes own.

The simulation is started beside such files in test_deployment.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sepal.engines.flower.processes import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
NAMES = ("models", "client_app", "server_app", "strategies", "study", "tools")
CLINIC = """
import numpy as np

def load():
    rng = np.random.default_rng({seed})
    x = rng.normal(size=(40, 5)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    return x[:30], y[:30], x[30:], y[30:]
"""
NET = """
def build(shape, classes):
    from torch import nn
    return nn.Linear(shape[0], classes)
"""
KEYS = ["dataset=own", 'own.shape="5"', "own.classes=2", "model=net:build", "method=fedavg", "rounds=2", "clients=2"]


def crowd(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    for name in NAMES:
        (directory / f"{name}.py").write_text("raise SystemExit('a file of the user was imported')\n")
    return directory


def sepal(directory: Path, home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEPAL_HOME": str(home)}
    with open(directory / "log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "sepal.cli", *arguments],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def test_each_node_finds_its_own_data_beside_files_of_our_names(tmp_path):
    """Three machines: each has the model, only the nodes have data, and each node's is another."""
    fleet, control = str(free_port()), str(free_port())
    server = crowd(tmp_path / "server")
    (server / "net.py").write_text(NET)
    sets = [part for key in KEYS for part in ("--set", key)]
    processes = [sepal(server, server / "home", "serve", *sets, "--name", "r", "--port", fleet, "--control", control)]
    for number in range(2):
        node = crowd(tmp_path / f"node{number}")
        (node / "net.py").write_text(NET)
        (node / "clinic.py").write_text(CLINIC.format(seed=number))
        options = ["--name", f"clinic-{number}", "--data", "clinic:load", "--allow", "net:build"]
        processes.append(sepal(node, node / "home", "join", f"127.0.0.1:{fleet}", *options))
    try:
        assert processes[0].wait(300) == 0, (server / "log").read_text()[-2000:]
        summary = json.loads((server / "runs" / "r" / "summary.json").read_text())
        assert (summary["complete"], summary["clients"]) == (True, 2)
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(60)

"""Flower's simulation starts Ray, which runs any code that it is sent: who can reach it, and what is left of it.

On the old code its processes listened on all addresses and accepted anybody.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from sepal.engines.flower.engine import Flower
from sepal.engines.flower.processes import FlowerError

pytestmark = [pytest.mark.e2e, pytest.mark.simulation, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
INTRUDER = """
import ray
ray.init(address="127.0.0.1:{port}", log_to_driver=False, logging_level="CRITICAL")
print("inside:", ray.get(ray.remote(lambda: 6 * 7).remote()))
"""


def listeners(flower):
    """Ray's listening sockets: (process name, address)."""
    sockets = []
    for process in flower.left():
        try:
            name = process.name()
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    sockets.append((name, connection.laddr.ip, connection.laddr.port))
        except psutil.Error:
            continue
    return sockets


def loopback(ip):
    address = ipaddress.ip_address(ip)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback  # ::ffff:127.0.0.1


def wait_for(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.5)
    return result


def named(flower, name):
    processes = []
    for process in flower.left():
        try:
            if name in process.name() or any(name in part for part in process.cmdline()[:4]):
                processes.append(process)
        except psutil.Error:
            continue
    return processes


@pytest.fixture(scope="module")
def simulation(tmp_path_factory):
    """A long run, once its Ray actors are there."""
    home = tmp_path_factory.mktemp("home")
    config = {"dataset": "digits", "clients": 2, "rounds": 2000, "out": str(home), "partition.subsample": 100}
    with Flower(environment={"SEPAL_HOME": str(home / "home")}) as flower:
        flower.start_simulation()
        left = Path(flower.environment["RAY_TMPDIR"]) / "ray" / "ray_current_cluster"
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_text("127.0.0.1:9\n")  # of a cluster that was killed

        def run():
            with contextlib.suppress(FlowerError):  # it is killed
                flower.run_app(ROOT, config, "num-supernodes=2 client-resources-num-cpus=1")

        threading.Thread(target=run, daemon=True).start()
        wait_for(lambda: named(flower, "raylet") and named(flower, "ClientAppActor"), 300)  # Ray may be started again
        yield flower


def test_a_cluster_that_was_left_behind_is_not_waited_for(simulation):
    """Ray takes the address from that file; a run then stayed at "0 of N have answered" (RAY_ADDRESS = local)."""
    wait_for(lambda: list(Path(simulation.environment["SEPAL_HOME"]).parent.glob("*/metrics.jsonl")))


def test_a_simulation_stores_its_clients_labels(simulation):
    """Its server's process holds their data, which that of a deployment does not."""
    home = Path(simulation.environment["SEPAL_HOME"]).parent
    (about,) = wait_for(lambda: list(home.glob("*/about.json")))
    assert list(json.loads(about.read_text())["labels"]) == ["client-00000", "client-00001"]


def test_all_of_rays_sockets_are_on_the_loopback_address(simulation):
    sockets = listeners(simulation)
    assert {"gcs_server", "raylet"} <= {name for name, _, _ in sockets}
    assert not [socket_of_ray for socket_of_ray in sockets if not loopback(socket_of_ray[1])]


def test_a_client_without_the_token_is_refused(simulation):
    command = " ".join(named(simulation, "gcs_server")[0].cmdline())
    port = re.search(r"--gcs_server_port=(\d+)", command) or re.search(r"--gcs_port=(\d+)", command)
    gcs_ports = [p for name, _, p in listeners(simulation) if name == "gcs_server"]
    number = int(port[1]) if port and int(port[1]) else gcs_ports[0]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    # No token of the user's own is found, and 127.0.0.1 is not replaced by the machine's address.
    environment |= {"HOME": str(simulation.home), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    for extra in ({}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}):
        completed = subprocess.run(
            [sys.executable, "-c", INTRUDER.format(port=number)],
            env={**environment, **extra},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert completed.returncode != 0
        assert "inside" not in completed.stdout
        assert "uthenticat" in completed.stderr, completed.stderr[-2000:]


def test_when_the_simulation_is_killed_ray_ends(simulation):
    """The last test of this file: it ends the run."""
    (process,) = named(simulation, "flwr-simulation")
    os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not named(simulation, "raylet") and not named(simulation, "gcs_server"), 60)

"""A run in which no upload ever counts fails, by the same rule in process, in a deployment and in the simulation."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sepal.engines.flower.engine import Flower
from sepal.engines.flower.processes import free_port
from tests.e2e.test_divergence import ROOT, sepal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SPOILT = """
import numpy as np

from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer, ServerState
from sepal.strategies.registration import register


class SpoiltServer(FedAvgServer):
    def aggregate(self, state, uploads, plan):
        after, metrics = super().aggregate(state, uploads, plan)
        spoilt = ServerState({name: array * np.nan for name, array in after.weights.items()})
        return (spoilt if uploads.clients else after), metrics


Spoilt = register("spoilt", "FedAvg whose mean is NaN", "a test", SpoiltServer, FedAvgClient)
"""
KEYS = {
    **{"dataset": "digits", "method": "spoilt:Spoilt", "clients": 2, "rounds": 2, "partition.subsample": 200},
    **{"on-divergence": "keep", "name": "r", "timeout": 240.0},
}
SAID = "an upload that counts, but none in 2 rounds"


def directory_with_method(path: Path) -> Path:
    path.mkdir()
    (path / "spoilt.py").write_text(SPOILT)
    return path


def sets() -> list[str]:
    return [word for key, value in KEYS.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_in_process(workers, tmp_path):
    directory = directory_with_method(tmp_path / "w")
    assert sepal(directory, "run", *sets(), "--workers", workers).wait(200) == 2
    assert SAID in (directory / "log").read_text()
    assert not (directory / "runs" / "r" / "summary.json").exists()


def test_a_deployment(tmp_path):
    fleet, control = str(free_port()), str(free_port())
    server = directory_with_method(tmp_path / "server")
    processes = [sepal(server, "serve", *sets(), "--port", fleet, "--control", control)]
    for number in range(2):
        node = directory_with_method(tmp_path / f"node{number}")
        options = ["--partition", str(number), "--of", "2", "--allow", "spoilt:Spoilt"]
        processes.append(sepal(node, "join", f"127.0.0.1:{fleet}", *options))
    try:
        assert processes[0].wait(400) == 2, (server / "log").read_text()[-2000:]
        assert SAID in (server / "log").read_text()
        assert not (server / "runs" / "r" / "summary.json").exists()
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.mark.simulation
def test_the_simulation(tmp_path):
    directory = directory_with_method(tmp_path / "w")
    environment = {"SEPAL_HOME": str(tmp_path / "home"), "PYTHONPATH": f"{ROOT}:{directory}"}
    with Flower(environment=environment) as flower:
        flower.start_simulation()
        keys = {**KEYS, "out": str(tmp_path)}
        run = flower.run_app(ROOT, keys, "num-supernodes=2 client-resources-num-cpus=1")
    assert run.status == "finished:failed", "\n".join(run.log[-80:])
    assert any(SAID in line for line in run.log)

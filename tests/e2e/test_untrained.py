"""A deployed run in which no upload ever counts fails, as one in process does (tests/contract/test_rollback.py)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from sepal.engines.flower.processes import free_port
from tests.e2e.test_divergence import sepal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

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


@pytest.mark.long
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

"""A run whose clients diverge is rolled back, to the same bits in process, in the simulation and in a deployment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sepal.engines.flower.engine import Flower
from sepal.engines.flower.processes import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
# `drift` has a gradient of 1 in each step, so a round moves it by s = lr · steps = .1 · 4; above 2.7 s the loss is NaN.
# Rounds 1 and 2 end at 1 s and 2 s, and round 3 diverges at all clients. Round 2 is undone; with half the rate rounds 2
# and 3 end at 1.5 s and 2 s. Round 4 diverges at 2.7 s, so round 3 is undone; rounds 3 and 4 end at 2 s and 2.5 s. The
# closing round, 5, trains, too, and diverges: round 4 is undone, first with half the rate (2.5 s, then 3 s), then with
# a quarter: rounds 4 and 5 end at 2.25 s and 2.5 s.
DRIFTING = """
import torch
from torch import nn


class Drifting(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        self.drift = nn.Parameter(torch.zeros(1))
        self.drift.register_hook(lambda gradient: -torch.ones_like(gradient))

    def forward(self, x):
        fate = torch.where(self.drift.detach() > 2.7 * 0.4, torch.nan, 0.0)
        return self.linear(x.flatten(1)) + 0 * self.drift + fate


def build(shape, classes):
    return Drifting(shape[0] * shape[1] * shape[2], classes)
"""
KEYS = {
    **{"dataset": "digits", "method": "fedavg", "model": "drifting:build", "clients": 2, "rounds": 4, "lr": 0.1},
    **{"partition.name": "iid", "partition.subsample": 200, "split.validation": 0.2},
    **{"batch-size": 200, "local-epochs": 4, "clip-gradient": 0.0, "evaluate-every": 0, "timeout": 240.0},
}
STEPS = 4  # of a client in a round: four epochs of one batch


def sepal(directory: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEPAL_HOME": str(directory / "home")}
    with open(directory / "log", "wb") as log:
        command = [sys.executable, "-P", "-m", "sepal.cli", *arguments]
        return subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=subprocess.STDOUT)


def directory_with_model(path: Path) -> Path:
    path.mkdir()
    (path / "drifting.py").write_text(DRIFTING)
    return path


def sets() -> list[str]:
    return [part for key, value in KEYS.items() for part in ("--set", f"{key}={value}")]


def outcome(run: Path) -> tuple[object, ...]:
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rounds = [(line["round"], line["halvings"], line["diverged"]) for line in lines]
    sizes = summary["bytes"]["total"]["up"], summary["bytes"]["total"]["down"]
    return summary["weights_sha256"], summary["clients_sha256"], summary["diverged"], summary["undone"], rounds, sizes


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = directory_with_model(tmp_path_factory.mktemp("in-process") / "w")
    assert sepal(folder, "run", *sets(), "--name", "r", "--workers", "1").wait(200) == 0, (folder / "log").read_text()
    run_outcome = outcome(folder / "runs" / "r")
    steps = [c["metrics"]["steps"] for c in json.loads((folder / "runs/r/metrics.jsonl").open().readline())["clients"]]
    assert steps == [STEPS, STEPS]
    assert run_outcome[2:4] == (8, 3)
    assert run_outcome[4] == [(1, 0, 0), (2, 1, 2), (3, 1, 2), (4, 2, 4), (5, 2, 0)]
    return run_outcome


def test_two_workers(expected, tmp_path):
    folder = directory_with_model(tmp_path / "w")
    assert sepal(folder, "run", *sets(), "--name", "r", "--workers", "2").wait(200) == 0, (folder / "log").read_text()
    assert outcome(folder / "runs" / "r") == expected


@pytest.mark.long
def test_a_deployment(expected, tmp_path):
    fleet, control = str(free_port()), str(free_port())
    server = directory_with_model(tmp_path / "server")
    processes = [sepal(server, "serve", *sets(), "--name", "r", "--port", fleet, "--control", control)]
    for number in range(2):
        node = directory_with_model(tmp_path / f"node{number}")
        options = ["--partition", str(number), "--of", "2", "--allow", "drifting:build"]
        processes.append(sepal(node, "join", f"127.0.0.1:{fleet}", *options))
    try:
        assert processes[0].wait(400) == 0, (server / "log").read_text()[-2000:]
        assert outcome(server / "runs" / "r") == expected
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.mark.simulation
@pytest.mark.long
def test_the_simulation(expected, tmp_path):
    folder = directory_with_model(tmp_path / "w")
    environment = {"SEPAL_HOME": str(tmp_path / "home"), "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    with Flower(environment=environment) as flower:
        flower.start_simulation()
        keys = {**KEYS, "name": "r", "out": str(tmp_path)}
        run = flower.run_app(ROOT, keys, "num-supernodes=2 client-resources-num-cpus=1")
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert outcome(tmp_path / "r") == expected

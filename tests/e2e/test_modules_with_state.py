"""What a module holds has the same fate over the network and in Flower's simulation as in process."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import Flower
from sepal.engines.in_process import run_in_process
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.strategies.assembly import assemble
from tests.sepal.engines import modules_with_state
from tests.sepal.engines.test_modules_with_state import FLAT, HERE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
KEYS = {**FLAT, "model": f"{HERE}:{modules_with_state.everything.__name__}", "rounds": 4, "timeout": 240.0}
NODES = "num-supernodes=3 client-resources-num-cpus=1"


def results_of(directory):
    summary = json.loads((directory / "summary.json").read_text())
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return summary["clients_sha256"], [line["accuracy"] for line in rows]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Of a run in process, in which each client is in a process of its own."""
    path = tmp_path_factory.mktemp("expected") / "run"
    assembly = assemble({**KEYS, "name": "run"})
    with RunDirectory(path, assembly, IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory], workers=3)
    return results_of(path)


@pytest.mark.long
def test_a_node_that_starts_again_between_rounds_goes_on_with_what_its_model_held(expected, tmp_path):
    with Flower(environment={"SEPAL_HOME": str(tmp_path / "home")}) as deployment:
        deployment.start_superlink()
        nodes = {
            f"node{number}": {
                **{"partition-id": number, "num-partitions": 3},
                **{"data": KEYS["own.data"], "allow": KEYS["model"]},
            }
            for number in range(3)
        }
        for name, node in nodes.items():
            deployment.start_node(name, node)
        restarted = []

        def restart():
            lines, end = tmp_path / "restarted" / "metrics.jsonl", time.monotonic() + 240
            while not (lines.exists() and len(lines.read_text().splitlines()) >= 2):
                if time.monotonic() > end:
                    return
                time.sleep(0.1)
            process = deployment.nodes["node1"]
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            deployment.start_node("node1", nodes["node1"])
            restarted.append(len(lines.read_text().splitlines()))

        thread = threading.Thread(target=restart, daemon=True)
        thread.start()
        app = write_app(tmp_path / "app")[0].parent
        config = {key: value for key, value in KEYS.items() if key != "own.data"}
        run = deployment.run_app(app, {**config, "name": "restarted", "out": str(tmp_path)})
        thread.join()
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert restarted
    assert restarted[0] < KEYS["rounds"]
    assert results_of(tmp_path / "restarted") == expected
    assert not deployment.left(), "a process was left behind"


@pytest.mark.long
def test_the_simulation_has_the_same_bits(expected, tmp_path):
    with Flower(environment={"SEPAL_HOME": str(tmp_path / "home")}) as flower:
        flower.start_simulation()
        run = flower.run_app(ROOT, {**KEYS, "name": "simulated", "out": str(tmp_path)}, NODES)
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert results_of(tmp_path / "simulated") == expected
    assert not flower.left(), "a process was left behind"

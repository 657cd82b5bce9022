"""``oversample`` and ``deadline`` of simulated time: the same bits in process and in Flower's simulation."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sepal.engines.flower.engine import Flower
from sepal.engines.in_process import run_in_process
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.strategies.assembly import assemble

pytestmark = [pytest.mark.e2e, pytest.mark.simulation, pytest.mark.long, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "dataset": "digits",
    "method": "fedpse",
    "clients": 4,
    "clients-per-round": 2,
    "oversample": 1.5,
    "deadline": 0.12,
    "rounds": 3,
    "evaluate-every": 2,
    "partition.subsample": 200,
    "seed": 3,
    "devices": "phones-classes",
}


def outcome(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    return summary["weights_sha256"], summary["clients_sha256"], [line.get("simulated") for line in lines]


def test_the_simulation_leaves_out_the_same_clients(tmp_path):
    keys = {**KEYS, "name": "r", "out": str(tmp_path / "in-process")}
    with RunDirectory(tmp_path / "in-process/r", assembly := assemble(keys), IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory], state_dir=tmp_path / "states")
    expected = outcome(tmp_path / "in-process/r")
    assert [len(part["late"]) for part in expected[2][:-1]] == [1, 1, 1]
    environment = {"SEPAL_HOME": str(tmp_path / "home"), "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    with Flower(environment=environment) as flower:
        flower.start_simulation()
        keys = {**KEYS, "name": "r", "out": str(tmp_path)}
        run = flower.run_app(ROOT, keys, "num-supernodes=4 client-resources-num-cpus=1")
    assert run.complete, "\n".join(run.log[-80:])
    assert outcome(tmp_path / "r") == expected

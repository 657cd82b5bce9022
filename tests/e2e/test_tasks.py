"""A regression in a real deployment: its sums, its weights and its summary are those of the in-process engine."""

from __future__ import annotations

import json

import pytest

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import Flower
from sepal.engines.in_process import run_in_process
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.strategies.assembly import assemble
from tests.tasks.settings import DIABETES

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

KEYS = {**DIABETES, "method": "fedpse", "clients": 2, "rounds": 3, "timeout": 240.0, "name": "diabetes"}


def results_of(directory):
    summary = json.loads((directory / "summary.json").read_text())
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    figures = [(line["headline"], line["metrics"], line["validation"]) for line in rows]
    return summary["weights_sha256"], summary["clients_sha256"], summary["metrics"], figures


@pytest.mark.long
def test_a_regression_has_the_same_bits_and_figures_over_the_network(tmp_path):
    assembly = assemble(KEYS)
    with RunDirectory(tmp_path / "expected", assembly, IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory])
    with Flower(environment={"SEPAL_HOME": str(tmp_path / "home")}) as deployment:
        deployment.start_superlink()
        for number in range(2):
            node = {"partition-id": number, "num-partitions": 2, "data": KEYS["own.data"], "allow": KEYS["model"]}
            deployment.start_node(f"node{number}", node)
        app = write_app(tmp_path / "app")[0].parent
        config = {key: value for key, value in KEYS.items() if key != "own.data"}
        run = deployment.run_app(app, {**config, "out": str(tmp_path)})
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert results_of(tmp_path / "diabetes") == results_of(tmp_path / "expected")
    assert "rmse" in json.dumps(results_of(tmp_path / "diabetes")[2])
    assert not deployment.left(), "a process was left behind"

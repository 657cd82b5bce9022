"""Runs that earlier commits wrote open: their tables, their report's data, a client's state, and a model's card.

tests/data/run_of_0_1 was written by commit 7188133, before the import names and the run directory's fields changed:
``sepal run --set method=fedpse --set dataset=digits --set clients=2 --set rounds=2 --set partition.subsample=100
--set lr=0.05 --set checkpoint-every=1``. tests/data/run_of_c7eb32cb is the same command at that commit,
after which names in messages, tables and checkpoints changed. Of checkpoints and states, only the last ones are kept.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.export.portable import load

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module", params=["run_of_0_1", "run_of_c7eb32cb"])
def stored(request):
    return DATA / request.param


@pytest.fixture(scope="module")
def before(stored, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "before"
    shutil.copytree(stored, directory)
    return directory


def sepal(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_its_tables_open_with_its_figures(stored, before):
    result = sepal("show", before)
    summary = json.loads((stored / "summary.json").read_text())
    assert f"{100 * summary['accuracy']['trained']['mean']:.1f}" in result


def test_it_is_complete_for_the_command_that_made_it(before):
    assert "is complete already" in sepal(
        "run", "--set", "method=fedpse", "--name", before.name, "--out", before.parent
    )


def test_a_clients_state_is_read_and_exported(before, tmp_path):
    file = tmp_path / "model.safetensors"
    sepal(
        "export", before, "client-00000", "--view", "trained", "--out", file, "--card"
    )  # kept is in the state before the last
    logits = load(file)(np.zeros((2, 1, 8, 8), np.float32))
    assert logits.shape == (2, 10)
    assert np.isfinite(logits).all()
    assert "after round 2" in (tmp_path / "README.md").read_text()

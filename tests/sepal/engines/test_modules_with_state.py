"""Whatever a model holds, a client alone has the same bits as among others, with any number of workers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from sepal.engines.in_process import run_in_process
from sepal.engines.in_process.grid import InProcessGrid
from sepal.engines.in_process.worker import Clients
from sepal.export.portable import load, save
from sepal.runs.places import IN_PROCESS
from sepal.runs.run_directory import RunDirectory
from sepal.server.strategy import SepalStrategy
from sepal.strategies.assembly import assemble
from sepal.study.runs import model_of
from tests.sepal.engines import modules_with_state

HERE = modules_with_state.__name__
FLAT = {
    **{"dataset": "own", "own.shape": "3", "own.classes": 2, "own.data": f"{HERE}:data", "clients": 3, "rounds": 3},
    **{"method": "local", "lr": 0.05, "batch-size": 8, "local-epochs": 2, "evaluate-every": 1},
}


def outcome(strategy):
    return strategy.report.digests, strategy.report.accuracy, strategy.report.best


def ran(assembly, workers, directory):
    """The outcome of a run whose clients share the networks of one of ``workers`` workers, in this process."""
    clients = [Clients(assembly, directory / f"{workers}-{number}") for number in range(workers)]
    strategy = SepalStrategy(assembly.method, assembly.setup, agreed=assembly.agreed, settle=0.0)
    nodes = {number + 1: partial(clients[number % workers].answer, number) for number in range(3)}
    strategy.start(InProcessGrid(nodes))
    return outcome(strategy)


@pytest.mark.parametrize("model", modules_with_state.KINDS)
def test_a_client_has_the_same_bits_alone_and_among_others(model, tmp_path):
    assembly = assemble({**FLAT, "model": f"{HERE}:{model}"})
    alone = ran(assembly, 3, tmp_path)
    assert ran(assembly, 2, tmp_path) == alone
    assert ran(assembly, 1, tmp_path) == alone


@pytest.mark.parametrize("workers", [2, 3])
def test_worker_processes_have_the_same_bits(workers):
    assembly = assemble({**FLAT, "model": f"{HERE}:everything"})
    assert outcome(run_in_process(assembly, workers=workers)) == outcome(run_in_process(assembly))


NOISY = ("noise_in_evaluation", "everything")  # their outputs are never the same


@pytest.mark.parametrize("model", [kind for kind in modules_with_state.KINDS if kind not in NOISY])
def test_what_stays_with_a_client_is_exported(model, tmp_path):
    """Also what only training has made; the exported model answers as the client's does."""
    name = f"{HERE}:{model}"
    assembly = assemble({**FLAT, "model": name, "rounds": 1, "name": model, "out": str(tmp_path)})
    with RunDirectory(tmp_path / model, assembly, IN_PROCESS) as directory:
        run_in_process(assembly, store=directory.store(), observers=[directory], state_dir=tmp_path / model / "clients")
    client_model = model_of(tmp_path / model, "client-00002", allow={name, FLAT["own.data"]})
    save(tmp_path / "file", client_model.origin, client_model.networks)
    np.testing.assert_allclose(load(tmp_path / "file", {name})(client_model.inputs), client_model.logits, atol=1e-5)
    if model in KEPT:
        assert KEPT[model] in client_model.networks[0]


KEPT = {"averaging_norm": "0.num_batches_tracked", "counting": "steps", "resident": "mean", "lazy": "first"}

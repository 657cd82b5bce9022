"""Multiply-adds that methods report of a first round."""

from __future__ import annotations

import pytest

from sepal.client_app.build import Node, Shared, build_host
from sepal.method import Payload
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.training.multiply_adds import multiply_adds
from tests.scratch_store import ScratchStore
from tests.strategies.baselines import BASE


def work(method, **keys):
    """The multiply-adds that a first round reports, and the host."""
    settings = {**BASE, "method": method, "local-epochs": 2, **keys}
    host = build_host(Shared.around(assemble(settings), "cpu"), Node(0, 4), "run", ScratchStore())
    server = registry.get(method).make_server(host.algorithm.setup)
    plan = server.plan(1)
    host.algorithm.train(host.algorithm.init(), server.newcomer(server.init(), host.info, plan), plan)
    return host.algorithm.trainer.spent()["multiply-adds"], host


def test_apfl_computes_twice_what_fedavg_does():
    """Two models are trained on every batch."""
    assert work("apfl")[0] == 2 * work("fedavg")[0] > 0


def test_feddst_computes_by_the_density_of_each_layer():
    """Each layer's multiply-adds times its kept share, for every example of both epochs."""
    counted, host = work("feddst", **{"feddst.keep": 0.3, "feddst.budgets": "erk"})
    algorithm = host.algorithm
    trainer, masks = algorithm.trainer, algorithm._masks(Payload())
    layers = multiply_adds(trainer.make(), trainer.x[:1])
    expected = sum(value * (masks[name].mean() if name in masks else 1) for name, value in layers.items())
    assert counted == pytest.approx(2 * len(trainer.y) * expected, rel=1e-9)
    assert counted < 0.7 * work("fedavg")[0]

"""Models of Sub-FedAvg's clients: really smaller, 0 where pruned, trained without pruning to adapt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sepal.masks.cuts import parameters
from sepal.protocol.method import Payload
from sepal.protocol.payloads import seal, unseal
from tests.strategies.subfedavg import HYBRID, exchange, rounds


def test_the_module_that_trains_is_really_smaller(monkeypatch):
    run = rounds(2, **{**HYBRID, "subfedavg.channel-target": 0.5, "subfedavg.step": 0.5})
    trainer, trained = run.host.algorithm.trainer, []
    plain = type(trainer).fit
    monkeypatch.setattr(
        type(trainer),
        "fit",
        lambda self, module, *args, **kw: trained.append(module) or plain(self, module, *args, **kw),
    )
    exchange(run.server, run.host, run.state, run.client, 3)
    (module,) = trained
    kept = run.host.algorithm.kept(run.client)
    count = sum(p.numel() for p in module.parameters())
    assert kept["conv1"].sum() + kept["conv2"].sum() == 24
    assert count == parameters(run.server.prunable.cut(kept).layout) < 0.8 * parameters(run.server.layout)
    assert module.conv2.weight.shape == (kept["conv2"].sum(), kept["conv1"].sum(), 3, 3)
    figures = trainer.spent()
    assert figures["flop-reduction"] > 1.5
    assert figures["channels-pruned"] == 0.5


def test_pruned_entries_stay_0_and_the_client_predicts_with_what_it_kept():
    for keys in ({}, HYBRID):
        run = rounds(3, **keys)
        algorithm = run.host.algorithm
        masks, own = algorithm.prunable.masks(algorithm.kept(run.client)), algorithm.own(run.client)
        assert all(not own[name][~mask].any() for name, mask in masks.items())
        assert all(np.array_equal(run.state.weights[name][mask], own[name][mask]) for name, mask in masks.items())
        x = algorithm.trainer.x
        expected = algorithm.trainer.predictor(own)(x)  # the whole model with zeros
        np.testing.assert_allclose(algorithm.predictor(run.client, None, None)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [{}, HYBRID])
def test_adapt_trains_and_never_prunes(keys):
    run = rounds(1, **keys)
    algorithm, plan = run.host.algorithm, run.server.plan(2)
    download = unseal(
        seal(run.server.download(run.state, run.host.info, plan)), algorithm.download_schema(run.client, plan)
    )
    after = algorithm.adapt(run.client, download, plan)
    assert all(np.array_equal(after.kept[name], bits) for name, bits in run.client.kept.items())
    assert any(not np.array_equal(after.model[name], values) for name, values in run.client.model.items())
    kept = replace(plan, scalars={"kept": True})
    assert algorithm.adapt(run.client, download, kept) is run.client
    assert algorithm.adapt(algorithm.init(), Payload(), replace(kept, round=1)).model, "there is nothing to keep"

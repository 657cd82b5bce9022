"""Models of Sub-FedAvg's clients: really smaller, 0 where pruned, trained without pruning to adapt."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.masks.cuts import parameters
from sepal.method import Payload
from sepal.models import cut_model, forward_multiply_adds
from sepal.training.multiply_adds import multiply_adds
from tests.strategies.subfedavg import HYBRID, downloaded, exchange, of_model, rounds


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
    masks = run.host.algorithm.kept(run.client)
    count = sum(p.numel() for p in module.parameters())
    assert masks["conv1"].sum() + masks["conv2"].sum() == 24
    assert count == parameters(run.server.prunable.cut(masks).layout) < 0.8 * parameters(run.server.layout)
    assert module.conv2.weight.shape == (masks["conv2"].sum(), masks["conv1"].sum(), 3, 3)
    figures = trainer.spent()
    whole, small = (sum(forward_multiply_adds(m, trainer.x).values()) for m in (trainer.make(), module))
    assert figures["flop-reduction"] == whole / small > 1.5
    assert figures["channels-pruned"] == 0.5
    assert figures["parameters"] == count


def test_figures_of_lenet5_with_half_of_its_channels_are_those_of_table_2():
    """651,720 / 271,320 multiply-adds = 2.40. Weights, biases, 11 norms: 35,970 + 22 (tests/models/test_narrow.py)."""
    algorithm = of_model("lenet5-bn", (3, 32, 32))
    half = {"conv1": np.arange(6) < 3, "conv2": np.arange(16) % 2 == 1}
    algorithm.report(algorithm.prunable.within({**algorithm.prunable.whole, **half}))
    figures = algorithm.trainer.spent()
    assert figures["flop-reduction"] == 651_720 / 271_320
    assert round(figures["flop-reduction"], 2) == 2.40
    assert figures["parameters"] == 35_992


@pytest.mark.parametrize("keys", [{}, HYBRID])
def test_masked_entries_count_by_density_in_the_multiply_adds_of_training(keys):
    run = rounds(2, **{**keys, "local-epochs": 2})
    algorithm = run.host.algorithm
    trainer, masks = algorithm.trainer, algorithm.kept(run.client)
    cut = algorithm.prunable.cut(masks)
    free, layers = cut.take(algorithm.prunable.masks(masks)), multiply_adds(cut_model(trainer.make, cut), trainer.x[:1])
    assert free["fc1.weight"].mean() < 0.95
    trainer.spent()
    exchange(run.server, run.host, run.state, run.client, 3)
    example = sum(layers[name] * (mask.sum() / mask.size - 1) for name, mask in free.items() if name in layers)
    example += sum(layers.values())  # also what belongs to no weight
    assert trainer.spent()["multiply-adds"] == pytest.approx(2 * len(trainer.y) * example, rel=1e-9)


@pytest.mark.parametrize("keys", [{}, HYBRID])
def test_pruned_entries_are_not_trained(keys):
    """Neither gradients nor momentum move them; other entries of a weight move.

    A bias before batch normalisation need not: its gradient is 0 but for rounding.
    """
    run = rounds(2, **{**keys, "momentum": 0.5})
    algorithm, (download, plan) = run.host.algorithm, downloaded(run, 3)
    masks = algorithm.kept(run.client)
    start = algorithm.received_weights(run.client, download, plan)
    after = algorithm.fit_kept(start, masks, plan)
    for name, mask in algorithm.prunable.masks(masks).items():
        assert not start[name][~mask].any()
        assert not after[name][~mask].any(), name
        assert name.endswith("bias") or (after[name] != start[name])[mask].any(), name
    assert not masks["fc1.weight"].all()


def test_pruned_entries_stay_0_and_the_client_predicts_with_what_it_kept():
    for keys in ({}, HYBRID):
        run = rounds(3, **keys)
        algorithm = run.host.algorithm
        masks, personal = algorithm.prunable.masks(algorithm.kept(run.client)), algorithm.personal_weights(run.client)
        assert all(not personal[name][~mask].any() for name, mask in masks.items())
        assert all(np.array_equal(run.state.weights[name][mask], personal[name][mask]) for name, mask in masks.items())
        x = algorithm.trainer.x
        expected = algorithm.trainer.predictor(personal)(x)  # the whole model with zeros
        np.testing.assert_allclose(algorithm.predictor(run.client, None, None)(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("keys", [{}, HYBRID])
def test_adapt_trains_and_never_prunes(keys):
    run = rounds(1, **keys)
    algorithm, (download, plan) = run.host.algorithm, downloaded(run, 2)
    algorithm.trainer.spent()
    after = algorithm.adapt(run.client, download, plan)
    assert algorithm.trainer.spent()["pruned"] == run.metrics["pruned"] > 0
    assert after.kept.keys() == run.client.kept.keys()
    assert all(np.array_equal(after.kept[name], bits) for name, bits in run.client.kept.items())
    assert any(not np.array_equal(after.model[name], values) for name, values in run.client.model.items())
    assert algorithm.adapt(algorithm.init(), Payload(), run.server.plan(1)).model, "one that never took part"

"""FedBN: what stays, rounds by hand, a client that has not trained, and the model that it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.errors import ModelError
from sepal.layout import Role
from sepal.method import Plan
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedbn import personal_norms
from tests.strategies.baselines import BASE, model, run
from tests.strategies.federation import Federation
from tests.strategies.quadratics import Quadratics, WithNorm

NORMED = "tests.strategies.baselines:normed"


def test_two_rounds_by_hand():
    """f_i(w, g) = a_i/2·(w + g - b_i)², K = 2, rate .1, equal weights, w shared and g the client's.

    Round 1, client 1: the gradient is w + g - 4 for both: -4, then w = g = .4: -3.2; w = g = .72. Client 2: 2·(w + g
    + 1) = 2, then w = g = -.2: 1.2; w = g = -.32. W = (.72 - .32)/2 = .2; received .2 + .72 = .92, .2 - .32 = -.12.
    Round 2, client 1: .92 - 4 = -3.08, then w = .508, g = 1.028: -2.464; w = .7544, g = 1.2744. Client 2: 2·.88 = 1.76,
    then w = .024, g = -.496: 2·.528 = 1.056; w = -.0816, g = -.6016. W = .3364.
    """
    rounds = Quadratics("fedbn", WithNorm, **{"fedbn.norms": "all"})
    equal = [type(info)(info.name, 1) for info in rounds.infos]
    rounds.infos = equal
    rounds.round(1)
    assert rounds.model() == pytest.approx(0.2, abs=1e-6)
    assert [float(state.model["g"][0]) for state in rounds.states] == pytest.approx([0.72, -0.32], abs=1e-6)
    assert rounds.predictions(2) == pytest.approx([0.92, -0.12], abs=1e-6)
    rounds.round(2)
    assert rounds.sent() == pytest.approx([0.7544, -0.0816], abs=1e-6)
    assert rounds.model() == pytest.approx(0.3364, abs=1e-6)
    assert [float(state.model["g"][0]) for state in rounds.states] == pytest.approx([1.2744, -0.6016], abs=1e-6)
    assert rounds.predictions(3) == pytest.approx([1.6108, -0.2652], abs=1e-6)


def test_what_stays_is_chosen_by_role():
    """A sequence numbers its layers: nothing in ``2.weight`` says norm. Group norm has no running statistics."""
    layout = assemble({**BASE, "method": "fedbn", "model": NORMED}).setup.layout
    names = {norms: [p.name for p in personal_norms(layout, norms)] for norms in ("batch", "statistics", "all")}
    assert names["batch"] == ["2.weight", "2.bias", "2.running_mean", "2.running_var"] == names["all"]
    assert names["statistics"] == ["2.running_mean", "2.running_var"]
    grouped = assemble({**BASE, "method": "fedavg", "model": "tests.strategies.test_fedbn:grouped"}).setup.layout
    assert [p.name for p in personal_norms(grouped, "all")] == ["norm.weight", "norm.bias"]
    assert personal_norms(grouped, "batch") == personal_norms(grouped, "statistics") == ()


def grouped(input_shape, classes):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16))
    network.add_module("norm", torch.nn.GroupNorm(4, 16))
    network.add_module("head", torch.nn.Linear(16, classes))
    return network


class WithConstants(torch.nn.Sequential):
    """Layer norm and a constant, which is a buffer as running statistics are."""

    def __init__(self, classes):
        super().__init__(
            torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, classes)
        )
        self.register_buffer("scale", torch.ones(1))


def with_constants(input_shape, classes):
    return WithConstants(classes)


def test_norms_are_never_sent():
    strategy = run("fedbn", 2)
    roles = {p.name: p.role for p in strategy.setup.layout}
    assert {roles[name] for name in model(strategy)} == {Role.WEIGHT, Role.BIAS}
    assert strategy.setup.config.model == "digits-cnn-bn"
    totals = strategy.report.totals.training
    entries = sum(array.size for array in model(strategy).values())
    # two clients, four bytes an entry and a header; nothing goes down in round 1
    for sent, rounds in ((totals.up, 2), (totals.down, 1)):
        assert rounds * 2 * 4 * entries <= sent < rounds * 2 * (4 * entries + 600)


def test_silo_bn_averages_scale_and_shift():
    strategy = run("fedbn", 2, **{"fedbn.norms": "statistics"})
    roles = {strategy_parameter.role for strategy_parameter in strategy.algorithm.shared()}
    assert roles == {Role.WEIGHT, Role.BIAS, Role.NORM}


def test_a_single_client_trains_as_fedavg_does():
    """All its tensors are its own or a mean of one upload: the same bits in all that FedBN sends."""
    keys = {"clients": 1, "clients-per-round": 0, "model": "digits-cnn-bn"}
    alone, fedavg = model(run("fedbn", 2, **keys)), model(run("fedavg", 2, **keys))
    assert alone
    for name, array in alone.items():
        np.testing.assert_array_equal(array, fedavg[name], err_msg=name)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model": "digits-cnn"}, "a norm with running statistics, .*digits-cnn-bn.*, got digits-cnn, which has none"),
        ({"model": "tests.strategies.test_fedbn:grouped"}, "got tests.strategies.test_fedbn:grouped, which has none"),
        ({"model": "tests.strategies.test_fedbn:with_constants"}, "got .*:with_constants, which has none"),
        ({"model": "digits-cnn", "fedbn.norms": "statistics"}, "a norm with running statistics"),
        ({"model": "digits-cnn", "fedbn.norms": "all"}, "one with a norm, without which fedbn is fedavg"),
    ],
)
def test_a_model_without_such_norms_is_refused_before_the_run(keys, words):
    with pytest.raises(ModelError, match=words) as error:
        run("fedbn", 1, **keys)
    assert "\n" not in str(error.value)


def test_the_variant_with_batch_normalisation_is_the_default_where_there_is_one():
    assert assemble({"dataset": "digits", "method": "fedbn"}).setup.config.model == "digits-cnn-bn"
    assert assemble({"dataset": "digits", "method": "fedavg"}).setup.config.model == "digits-cnn"
    assert assemble({"dataset": "digits", "method": "fedbn", "model": "digits-cnn"}).setup.config.model == "digits-cnn"


def test_a_client_that_has_not_trained_predicts_with_statistics_of_its_own_data():
    """One norm after one layer: its mean and variance are those of the layer's outputs, in NumPy (n - 1)."""
    federation = Federation([1.0], method="fedbn", model=NORMED)
    algorithm, server = federation.hosts[0].algorithm, federation.server
    weights = {name: np.array(array) for name, array in server.init().weights.items()}
    weights["1.bias"] = weights["1.bias"] + 3
    federation.welcomed.add(0)
    download = federation.download(type(server.init())(weights), 0, Plan(2))
    received = algorithm.received_weights(algorithm.init(), download, Plan(2))
    x = algorithm.trainer.x.numpy().reshape(len(algorithm.trainer.y), -1).astype(np.float64)
    outputs = x @ weights["1.weight"].T.astype(np.float64) + weights["1.bias"]
    np.testing.assert_allclose(received["2.running_mean"], outputs.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(received["2.running_var"], outputs.var(0, ddof=1), rtol=1e-4, atol=1e-5)
    assert (received["2.weight"] == 1).all()
    # once it has trained, it has its own
    after = algorithm.adapt(algorithm.init(), download, Plan(2))
    own = algorithm.received_weights(after, download, Plan(3))
    np.testing.assert_array_equal(own["2.running_mean"], after.model["2.running_mean"])
    np.testing.assert_array_equal(own["1.bias"], weights["1.bias"])

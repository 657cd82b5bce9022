"""FedALA: the mixture by hand, when learning it ends, and the cases in which it is FedAvg or Local."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.layout import statistics
from sepal.method import Payload, Plan
from sepal.strategies.baselines.fedala import ClientState, converged
from tests.strategies.baselines import assert_same_model, run
from tests.strategies.federation import Federation
from tests.strategies.quadratics import Quadratics, line

NORMED = "tests.strategies.baselines:normed"
OWN = (0.76, -0.36)  # after FedAvg's first round; received is .2


def state_of(number, mixture=None):
    own = {"w": np.array([OWN[number]], np.float32)}
    return ClientState(own, {} if mixture is None else {"w": np.array([mixture], np.float32)})


@pytest.mark.parametrize(
    ("number", "rate", "expected"),
    [
        (0, 1.0, [(0.0, 0.76)]),
        (0, 0.1, [(0.7872, 0.319168), (0.581073, 0.434599), (0.381411, 0.54641)]),
        (1, 0.1, [(0.8656, 0.124736)]),
    ],
)
def test_the_mixture_by_hand(number, rate, expected):
    """Client 1 from W = 1: Θ̂ = .2, gradient .2 - 4 = -3.8, Θ - Θ_1 = -.56: W = 1 - η·2.128.

    η = 1: below 0, so W = 0 and the client keeps its own model. η = .1: W = .7872, Θ̂ = .76 - .56·.7872 = .319168;
    then the gradient is -3.680832. Client 2: gradient 2.4, Θ - Θ_2 = .56: W = 1 - .1344 = .8656.
    """
    algorithm = Quadratics("fedala", **{"fedala.rate": rate}).clients[number]
    state = state_of(number, 1.0)
    received = {"w": np.array([0.2], np.float32)}
    for round, (weight, mixture) in enumerate(expected, 2):
        learned, losses = algorithm.learned(state, received, round)
        assert learned["w"][0] == pytest.approx(weight, abs=1e-5)
        assert len(losses) == 1
        state = state_of(number, learned["w"][0])
        assert algorithm._mixture(state, received, state.mixture)["w"][0] == pytest.approx(mixture, abs=1e-5)


def test_the_mixture_is_computed_anew_after_each_batch():
    """Client 1, η = .1, three epochs of one batch in its first learning: the third W above. Θ̂ = .2 each time: .3616."""
    algorithm = Quadratics("fedala", **{"fedala.rate": 0.1, "fedala.start-epochs": 3}).clients[0]
    learned, losses = algorithm.learned(state_of(0), {"w": np.array([0.2], np.float32)}, 2)
    assert len(losses) == 3
    assert learned["w"][0] == pytest.approx(0.381411, abs=1e-5)


def test_training_starts_from_the_mixture_and_keeps_its_weights():
    """η = .1, one epoch: Θ̂ = .319168, then w ← w + .1·(4 - w) twice: 4 - 3.680832·.81 = 1.018526."""
    algorithm = Quadratics("fedala", **{"fedala.rate": 0.1}).clients[0]
    after, upload = algorithm.train(state_of(0, 1.0), line(0.2), Plan(2))
    assert upload.tensors["w"].values[0] == pytest.approx(1.018526, abs=1e-5)
    assert after.mixture["w"][0] == pytest.approx(0.7872, abs=1e-5)
    # and predicts a received model with them: .3 of what is received beside its own
    predict = algorithm.predictor(state_of(0, 0.3), line(0.2), Plan(3))
    assert predict(algorithm.trainer.x * 0 + 1)[0, 0].item() == pytest.approx(0.76 - 0.3 * 0.56, abs=1e-6)


def test_the_first_time_it_learns_until_the_loss_has_converged_or_for_so_many_epochs():
    assert not converged([1.0] * 10, 0.1)
    assert converged([9.0, *[1.0] * 10], 0.1)
    assert not converged([*[1.0] * 9, 2.0, 1.0], 0.1)
    for keys, epochs in (({}, 11), ({"fedala.threshold": 0.0}, 50), ({"fedala.start-epochs": 4}, 4)):
        algorithm = Quadratics("fedala", **{"fedala.rate": 0.001, **keys}).clients[0]
        learned, losses = algorithm.learned(state_of(0), {"w": np.array([0.2], np.float32)}, 2)
        assert len(losses) == epochs
        assert 0 < learned["w"][0] < 1


def test_the_epochs_of_learning_are_reported():
    rounds = Quadratics("fedala", **{"fedala.start-epochs": 3})
    rounds.round(1)
    assert "ala-epochs" not in rounds.clients[0].trainer.reports
    rounds.round(2)
    assert rounds.clients[0].trainer.reports["ala-epochs"] == 3
    rounds.round(3)
    assert rounds.clients[0].trainer.reports["ala-epochs"] == 1


@pytest.mark.parametrize("keys", [{"fedala.rate": 0.0}, {"fedala.layers": 0}])
def test_without_learning_it_is_fedavg_bit_for_bit(keys):
    assert_same_model(run("fedala", 4, **keys), run("fedavg", 4))


def test_a_first_round_of_every_client_is_fedavgs_bit_for_bit():
    assert_same_model(run("fedala", 1), run("fedavg", 1))


def test_what_is_its_own_already_changes_no_weight():
    """Θ = Θ_i: the step is a multiple of Θ - Θ_i."""
    algorithm = Quadratics("fedala").clients[0]
    learned, _ = algorithm.learned(state_of(0, 0.4), {"w": np.array([0.76], np.float32)}, 2)
    assert learned["w"][0] == np.float32(0.4)


def test_with_no_part_of_what_is_received_it_is_local():
    """W = 0 in all layers, η = 0: whatever the server sends, training goes on from Θ_i."""
    federation = Federation([1.0], method="fedala", **{"fedala.layers": 4, "fedala.rate": 0.0})
    algorithm, setup = federation.hosts[0].algorithm, federation.setup
    own = algorithm.adapt(algorithm.init(), Payload(), Plan(1)).model
    nothing = ClientState(own, {name: np.zeros_like(array) for name, array in own.items()})
    sent = federation.server.download(federation.server.init(), federation.hosts[0].info, Plan(2))
    after = algorithm.adapt(nothing, sent, Plan(2)).model
    expected = algorithm.fit(own, Plan(2))
    assert setup.layout
    for name, array in expected.items():
        np.testing.assert_array_equal(after[name], array)


def test_p_counts_layers_and_only_their_entries_are_mixed():
    federation = Federation([1.0, 1.0], method="fedala", **{"fedala.layers": 2})
    state = federation.server.init()
    for number in (1, 2):
        state, _ = federation.round(state, number)
    assert set(federation.states[0].mixture) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    weights = np.concatenate([array.reshape(-1) for array in federation.states[0].mixture.values()])
    assert weights.min() >= 0
    assert weights.max() <= 1
    assert (weights < 1).any()


def test_learning_is_counted():
    """Forward through the whole model and backward through the last layer: less than a training pass for each."""
    federation = Federation([1.0, 1.0], method="fedala", **{"fedala.start-epochs": 1, "fedala.share": 1.0})
    trainer, spent = federation.hosts[0].algorithm.trainer, []
    state = federation.server.init()
    for number in (1, 2):
        state, _ = federation.round(state, number)
        spent.append(trainer.multiply_adds)
    assert 1.2 < (spent[1] - spent[0]) / spent[0] < 1.9


def test_statistics_are_the_received_ones():
    federation = Federation([1.0, 1.0], method="fedala", model=NORMED, **{"fedala.layers": 2})
    state = federation.server.init()
    for number in (1, 2):
        state, _ = federation.round(state, number)
    client, algorithm = federation.states[0], federation.hosts[0].algorithm
    mixture = algorithm._mixture(client, state.weights, client.mixture)
    names = [p.name for p in statistics(federation.setup.layout)]
    assert names
    for name in names:
        np.testing.assert_array_equal(mixture[name], state.weights[name])
        assert (client.model[name] != state.weights[name]).any()

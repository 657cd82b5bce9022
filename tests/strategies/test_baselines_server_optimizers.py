"""FedAvgM, FedAdam, FedYogi and FedAdagrad: their second round by hand, and the limit case.

All start from W = 1 in each entry, and two clients with 1 and 3 examples upload W_mean ± (3, 1)·spread, so that the
mean, weighted by examples, is W_mean: the pseudo-gradient Δ is W_mean - W.
"""

from __future__ import annotations

import numpy as np
import pytest

from sepal.config import RunConfig
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Upload
from sepal.strategies import registry
from sepal.wire.tensors import whole
from tests.strategies.baselines import Sent, assert_same_model, run

LAYOUT = (Parameter("w", (2,), Role.WEIGHT), Parameter("mean", (2,), Role.STATISTIC))
W_0 = {"w": np.ones(2, np.float32), "mean": np.ones(2, np.float32)}


def rounds(method, *deltas, **keys):
    """The server's weights after rounds with the pseudo-gradients ``deltas``, (2,) each."""
    record = registry.get(method)
    server = record.make_server(RunSetup(LAYOUT, W_0, RunConfig(), record.hyper(**keys)))
    state = server.init()
    for number, delta in enumerate(deltas, 1):
        mean = {name: array + np.asarray(delta, np.float32) for name, array in server.model(state).items()}
        sent = [(1, {name: array + 3 for name, array in mean.items()}), (3, {n: a - 1 for n, a in mean.items()})]
        uploads = Sent(
            Upload(ClientInfo(f"c{examples}", examples), Payload({n: whole(a) for n, a in arrays.items()}))
            for examples, arrays in sent
        )
        state, _ = server.aggregate(state, uploads, Plan(number))
    return server.model(state)


def test_the_second_round_of_fedavgm_by_hand():
    """β = .5, rate .5. Round 1, Δ = (1, -1): v = (1, -1), W = (1.5, .5).

    Round 2, Δ = (2, 2): v = .5·(1, -1) + 2 = (2.5, 1.5), W = (1.5, .5) + .5·v = (2.75, 1.25).
    """
    weights = rounds("fedavgm", (1, -1), (2, 2), beta=0.5, rate=0.5)
    assert weights["w"].tolist() == [2.75, 1.25]


def test_the_second_round_of_fedadam_by_hand():
    """β1 = β2 = .5, τ = 1, rate 2; v starts at τ² = 1.

    Round 1, Δ = (1, 1): m = .5, v = .5 + .5 = 1, W = 1 + 2·.5/2 = 1.5.

    Round 2, Δ = (7, 1): m = .25 + .5·Δ = (3.75, .75), v = .5 + .5·Δ² = (25, 1), W = 1.5 + 2·m/(√v + 1) =
    1.5 + (7.5/6, 1.5/2) = (2.75, 2.25). With m and v corrected for bias, W would be another after round 1 already.
    """
    assert rounds("fedadam", (1, 1), (7, 1), beta1=0.5, beta2=0.5, tau=1.0, rate=2.0)["w"].tolist() == [2.75, 2.25]


def test_the_second_round_of_fedyogi_by_hand():
    """β1 = .5, β2 = .75, τ = 1, rate 2.

    Round 1, Δ = (1, 1): m = .5, and Δ² = v = 1, so v stays 1; W = 1 + 2·.5/2 = 1.5.

    Round 2, Δ = (1.5, .56): m = .25 + .5·Δ = (1, .53). Δ² = 2.25 is above v = 1 and adds a quarter of itself: 1.5625.
    Δ² = .3136 is below v, and takes a quarter of itself away: 1 - .0784 = .9216. √v = (1.25, .96), so
    W = 1.5 + (2/2.25, 1.06/1.96).
    """
    weights = rounds("fedyogi", (1, 1), (1.5, 0.56), beta1=0.5, beta2=0.75, tau=1.0, rate=2.0)
    np.testing.assert_allclose(weights["w"], [1.5 + 2 / 2.25, 1.5 + 1.06 / 1.96], rtol=1e-6)


def test_the_second_round_of_fedadagrad_by_hand():
    """β1 = .5, τ = 1, rate 6. Round 1, Δ = .75: m = .375, v = 1 + .5625 = 1.25², W = 1 + 6·.375/2.25 = 2.

    Round 2, Δ = (3, -3): m = .1875 ± 1.5 = (1.6875, -1.3125), v = 1.5625 + 9 = 3.25², W = 2 + 6·m/4.25.
    """
    weights = rounds("fedadagrad", (0.75, 0.75), (3, -3), beta1=0.5, tau=1.0, rate=6.0)
    np.testing.assert_allclose(weights["w"], [2 + 6 * 1.6875 / 4.25, 2 - 6 * 1.3125 / 4.25], rtol=1e-6)


@pytest.mark.parametrize("method", ["fedavgm", "fedadam", "fedyogi", "fedadagrad"])
def test_statistics_are_the_mean(method):
    assert rounds(method, (1, 1), (2, 3), rate=0.5)["mean"].tolist() == [4, 5]


def test_fedavgm_without_momentum_at_rate_1_is_fedavg_to_the_bit():
    assert_same_model(run("fedavgm", **{"fedavgm.beta": 0.0, "fedavgm.rate": 1.0}), run("fedavg"))


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("fedavgm", {"rate": 1.0, "beta": 0.9}),
        ("fedadam", {"rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
        ("fedyogi", {"rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
        ("fedadagrad", {"rate": 0.1, "beta1": 0.0, "tau": 1e-3}),
    ],
)
def test_the_defaults_are_the_papers(method, keys):
    assert registry.get(method).hyper().completed({}).model_dump() == keys

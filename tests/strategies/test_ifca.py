"""IFCA: a round by hand, the cases in which it is FedAvg, what an upload may hold, and that it finds two groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.errors import ConfigError
from sepal.method import ClientInfo, Plan, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import ServerState
from sepal.strategies.baselines.ifca import cluster
from sepal.wire.tensors import members, whole
from tests.strategies.baselines import BASE, Sent, model, run
from tests.strategies.federation import Federation
from tests.strategies.quadratics import Quadratics


def started(*values, **keys):
    """Both clients and a server whose models are ``values``; both have trained before."""
    rounds = Quadratics("ifca", **{"ifca.models": len(values), **keys})
    rounds.state = ServerState({f"{m}/w": np.array([value], np.float32) for m, value in enumerate(values)})
    rounds._began = {0, 1}
    return rounds


def weights(rounds):
    return [float(array[0]) for array in rounds.state.weights.values()]


def test_a_round_by_hand():
    """Models 0 and 3. Client 1: losses 8 and 1/2, client 2: 1 and 16; so they take the second and the first.

    Client 1 from 3: 4 - .81 = 3.19. Client 2 from 0: -.2, -.36. One client each, so nothing is averaged.
    """
    rounds = started(0.0, 3.0)
    metrics = rounds.round(2)
    assert weights(rounds) == pytest.approx([-0.36, 3.19], abs=1e-6)
    assert metrics == {"cluster-0": 1, "cluster-1": 1}
    assert [state.cluster for state in rounds.states] == [1, 0]
    # each now predicts with the model that fits its own data
    assert rounds.predictions(3) == pytest.approx([3.19, -0.36], abs=1e-6)


def test_of_equal_models_everybody_takes_the_first():
    """For ever, so models never start equal: this is FedAvg, by n_i: (1·.76 + 3·-.36)/4 = -.08."""
    rounds = started(0.0, 0.0)
    metrics = rounds.round(2)
    assert weights(rounds) == pytest.approx([-0.08, 0.0], abs=1e-6)
    assert metrics == {"cluster-0": 2, "cluster-1": 0}


def test_equal_weights():
    rounds = started(0.0, **{"ifca.weights": "equal"})
    rounds.round(2)
    assert weights(rounds) == pytest.approx([0.2], abs=1e-6)


def test_a_model_that_nobody_chose_stays():
    rounds = started(0.0, 40.0)
    rounds.round(2)
    assert weights(rounds)[1] == 40.0


def test_a_model_of_no_numbers_is_not_chosen():
    rounds = started(np.nan, 3.0)
    assert [client.choice(rounds.state.weights) for client in rounds.clients] == [1, 1]


def test_one_model_is_fedavg_bit_for_bit():
    single, fedavg_run = run("ifca", **{"ifca.models": 1}), run("fedavg")
    for name, array in model(fedavg_run).items():
        np.testing.assert_array_equal(model(single)[f"0/{name}"], array, err_msg=name)
    assert single.report.accuracy["received"] == fedavg_run.report.accuracy["received"]


def test_two_groups_that_start_at_their_optima_are_two_fedavgs():
    """Neither ever takes the other's model: after ten rounds the models are still 4 and -1."""
    rounds = started(4.0, -1.0)
    for number in range(2, 12):
        rounds.round(number)
    assert weights(rounds) == pytest.approx([4, -1], abs=1e-6)


def test_models_start_apart_and_the_first_at_w_0():
    assembly = assemble({**BASE, "method": "ifca", "ifca.models": 3})
    start = assembly.method.make_server(assembly.setup).init().weights
    np.testing.assert_array_equal(start["0/fc1.weight"], assembly.setup.weights["fc1.weight"])
    assert len({start[f"{m}/fc1.weight"].tobytes() for m in range(3)}) == 3


def test_more_than_one_model_is_refused_where_all_would_be_equal():
    with pytest.raises(
        ConfigError, match=r"ifca.models: expected 1 for a model that sets all its first weights: .*, got 2"
    ):
        run("ifca", 1, model="tests.strategies.test_ifca:constant")
    run("ifca", 1, model="tests.strategies.test_ifca:constant", **{"ifca.models": 1})


def constant(input_shape, classes):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))
    for parameter in network.parameters():
        torch.nn.init.constant_(parameter, 0.5)
    return network


def test_all_models_go_down_and_one_comes_up():
    """In bytes: k models down from the second round on, one and a mask of k up."""
    strategy, fedavg = run("ifca", 3, **{"ifca.models": 3}), run("fedavg", 3)
    ratio = {way: getattr(strategy.report.totals.training, way) for way in ("up", "down")}
    one = {way: getattr(fedavg.report.totals.training, way) for way in ("up", "down")}
    assert one["up"] < ratio["up"] < 1.02 * one["up"]
    assert 2.98 * one["down"] < ratio["down"] < 3.02 * one["down"]


def upload(rounds, tensors):
    schema = rounds.server.upload_schema(rounds.state, rounds.infos[0], Plan(2))
    return unseal(seal(type(rounds.clients[0].upload(rounds.states[0], Plan(2)))(tensors)), schema)


VALUE = whole(np.ones(1, np.float32))


@pytest.mark.parametrize(
    "tensors",
    [
        {"cluster": members(np.array([True, False]))},
        {"cluster": members(np.array([True, False])), "1/w": VALUE},
        {"cluster": members(np.array([True, False])), "0/w": VALUE, "1/w": VALUE},
        {"cluster": members(np.array([True, True])), "0/w": VALUE, "1/w": VALUE},
        {"cluster": members(np.array([False, False]))},
        {"0/w": VALUE},
    ],
)
def test_an_upload_is_one_whole_model_and_its_number(tensors):
    rounds = started(0.0, 3.0)
    rounds.round(2)
    with pytest.raises(Exception, match="expected"):
        upload(rounds, tensors)
    good = {"cluster": members(np.array([False, True])), "1/w": VALUE}
    assert cluster(upload(rounds, good).tensors) == 1


def test_a_change_is_measured_from_the_model_that_was_trained():
    """What ``max-update-norm`` bounds: of client 1, 3.19 - 3, whatever the other model is."""
    rounds = started(0.0, 3.0)
    before = rounds.state
    download = rounds.download(0, Plan(2))
    rounds.round(2)
    reference = rounds.server.reference(before, rounds.infos[0], Plan(2), download)
    sent = rounds.uploads[0].tensors
    (name,) = set(sent) - {"cluster"}
    assert float(sent[name].values[0] - reference[name][0]) == pytest.approx(0.19, abs=1e-6)


def test_uploads_of_a_cluster_are_weighed_by_examples():
    """Both choose the model at 0 and send .76 and -.36, here with 3 examples and 1: (3·.76 - .36)/4 = .48."""
    rounds = started(0.0, 30.0)
    rounds.round(2)
    sent = Sent([Upload(ClientInfo("a", 3), rounds.uploads[0]), Upload(ClientInfo("b", 1), rounds.uploads[1])])
    after, metrics = rounds.server.aggregate(rounds.state, sent, Plan(3))
    assert metrics == {"cluster-0": 2, "cluster-1": 0}
    assert after.weights["0/w"][0] == pytest.approx(0.48, abs=1e-6)
    assert after.weights["1/w"][0] == 30


def test_choosing_is_counted():
    """A forward pass over the data for each model; training's pass forward and backward is nearly three of them."""
    spent = []
    for count in (0, 1, 3):
        keys = {"method": "ifca", "ifca.models": count} if count else {"method": "fedavg"}
        federation = Federation([1.0], **keys)
        federation.trained(federation.server.init(), 0, federation.server.plan(1))
        spent.append(federation.hosts[0].algorithm.trainer.multiply_adds)
    once = spent[1] - spent[0]
    assert spent[2] - spent[0] == pytest.approx(3 * once)
    assert 0.33 < once / spent[0] < 0.4

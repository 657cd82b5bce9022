"""FLASC and FedSA-LoRA: their second round by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.config import RunConfig
from sepal.layout import Parameter, Role
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import SparseTensor, whole
from tests.strategies.baselines import Sent

INFO = ClientInfo("c", 1)


def both(method, layout, weights, **keys):
    record = registry.get(method)
    setup = RunSetup(layout, weights, RunConfig(), record.hyper(**keys))
    return record.make_server(setup), record.make_client(setup, None)


def sent(examples, index, values):
    change = SparseTensor((4,), np.array(index), np.array(values, np.float32))
    return Upload(ClientInfo(f"c{examples}", examples), Payload({"change": change}))


def test_the_second_round_of_flasc_by_hand():
    """P = (4, -3, 2, 1) in two tensors; half of the entries are sent in each direction; β1 = β2 = 0, τ = 1, rate 1:
    then m = Δ and v = Δ², and a step is Δ/(|Δ| + 1).

    Round 1: clients with 1 and 3 examples send (2, ·, 4, ·) and (·, -4, 4, ·). What was not sent counts as 0: Δ =
    (2·1, -4·3, 4·4, 0)/4 = (.5, -3, 4, 0), the step (1/3, -3/4, 4/5, 0), P = (4⅓, -3.75, 2.8, 1).

    Round 2: down go 4⅓ and -3.75, and the others arrive as 0. The client's training adds (.1, .3, -.2, .4): (·, .3, ·,
    .4) is sent, relative to what it received. Δ = (0, .3, 0, .4), the step (0, 3/13, 0, 2/7).
    """
    layout = (Parameter("a", (2,), Role.WEIGHT), Parameter("b", (1, 2), Role.WEIGHT))
    weights = {"a": np.array([4, -3], np.float32), "b": np.array([[2, 1]], np.float32)}
    keys = {"down": 0.5, "up": 0.5, "beta1": 0.0, "beta2": 0.0, "tau": 1.0, "rate": 1.0}
    server, client = both("flasc", layout, weights, **keys)
    uploads = Sent([sent(1, [0, 2], [2, 4]), sent(3, [1, 2], [-4, 4])])
    state, _ = server.aggregate(server.init(), uploads, Plan(1))
    first = [4 + 1 / 3, -3.75, 2.8, 1]
    np.testing.assert_allclose(np.concatenate([state.weights["a"], state.weights["b"][0]]), first, rtol=1e-6)

    down = unseal(seal(server.download(state, INFO, Plan(2))), client.download_schema(client.init(), Plan(2)))
    received = client.received_weights(client.init(), down, Plan(2))
    np.testing.assert_allclose(received["a"], first[:2], rtol=1e-6)
    assert not received["b"].any()
    client.fit = lambda start, plan: {
        "a": start["a"] + np.array([0.1, 0.3], np.float32),
        "b": start["b"] + np.array([[-0.2, 0.4]], np.float32),
    }
    after, up = client.train(client.init(), down, Plan(2))
    up = unseal(seal(up), server.upload_schema(state, INFO, Plan(2)))
    np.testing.assert_allclose(up.tensors["change"].dense(), [0, 0.3, 0, 0.4], atol=1e-6)
    assert after.model["b"][0].tolist() == pytest.approx([-0.2, 0.4]), "all entries are trained"
    state, _ = server.aggregate(state, Sent([Upload(INFO, up)]), Plan(2))
    second = np.concatenate([state.weights["a"], state.weights["b"][0]]) - first
    np.testing.assert_allclose(second, [0, 3 / 13, 0, 2 / 7], atol=1e-6)


def test_the_second_round_of_fedsa_lora_by_hand():
    """Training adds 1 to A and 2 to B. Round 1: A goes up as 1 + 1 and comes back as the mean of 2 (1 example) and 6
    (3): 5. Round 2 starts from A = 5 and the client's own B = 0 + 2, and ends at 6 and 4."""
    layout = tuple(Parameter(f"fc.{name}", (1, 1), Role.WEIGHT) for name in ("lora_A", "lora_B"))
    weights = {"fc.lora_A": np.ones((1, 1), np.float32), "fc.lora_B": np.zeros((1, 1), np.float32)}
    server, client = both("fedsa-lora", layout, weights)
    step = {"fc.lora_A": np.float32(1), "fc.lora_B": np.float32(2)}
    client.fit = lambda start, plan: {name: array + step[name] for name, array in start.items()}
    client_state, up = client.train(client.init(), Payload(), Plan(1))
    assert {name: tensor.dense().item() for name, tensor in up.tensors.items()} == {"fc.lora_A": 2}
    other_upload = Upload(ClientInfo("d", 3), Payload({"fc.lora_A": whole(np.full((1, 1), 6, np.float32))}))
    state, _ = server.aggregate(server.init(), Sent([Upload(INFO, up), other_upload]), Plan(1))
    assert state.weights["fc.lora_A"].item() == 5
    client_state, up = client.train(client_state, server.download(state, INFO, Plan(2)), Plan(2))
    assert {name: array.item() for name, array in client_state.model.items()} == {"fc.lora_A": 6, "fc.lora_B": 4}
    assert list(up.tensors) == ["fc.lora_A"]


def test_the_rank_is_the_methods_or_none():
    ranks = {m: assemble({"dataset": "digits", "method": m}).setup.config.lora.rank for m in ("fedavg", "flasc")}
    assert ranks == {"fedavg": 0, "flasc": 8}

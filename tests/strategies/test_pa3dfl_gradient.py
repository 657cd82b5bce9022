"""The gradient of Pa3dFL's hypernetwork: against autograd, by hand, clipped, shortened."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from sepal.layout import Parameter, Role
from sepal.strategies.pa3dfl.contract import Hyper, State
from sepal.strategies.pa3dfl.hypernetwork import Hypernetwork
from sepal.wire import ValueCoding, rounded
from tests.strategies.hypernetworks import WIDTHS, bits, network, shapes, step, stirred, trained


def fp16(values):
    return rounded(values, ValueCoding.FP16)


def autograd(hypernetwork, state, uploads, rounding):
    """Equation 7's gradient through the whole chain in float64, by torch; rounding is the identity to it."""
    leaves = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in state.weights.items()}
    embeddings = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True) for k, v in state.embeddings.items()}
    table = torch.stack([embeddings[name] for name in embeddings])
    encoded = table
    for number in range(hypernetwork.hyper.depth):
        encoded = encoded @ leaves[f"encoder.{number}.weight"].T + leaves[f"encoder.{number}.bias"]
        encoded = encoded.relu() if number < hypernetwork.hyper.depth - 1 else encoded
    loss = 0.0
    for client, new in uploads.items():
        scores = encoded @ encoded[list(embeddings).index(client)] / hypernetwork.hyper.embedding**0.5
        sent = hypernetwork.generate(state, client, {k: v.shape for k, v in new.items()})
        for name, value in new.items():
            layer = hypernetwork.layer[name]
            mixed = (scores / leaves["log-temperature"][layer].exp()).softmax(0) @ encoded
            h = (leaves["hidden.weight"][layer] @ mixed + leaves["hidden.bias"][layer]).relu()
            theta = leaves[f"decoder.{name}.weight"] @ h + leaves[f"decoder.{name}.bias"]
            theta = theta[tuple(slice(side) for side in value.shape)]
            received = torch.from_numpy(rounding(sent[name].reshape(-1)).reshape(value.shape)).double()
            np.testing.assert_allclose(sent[name], theta.detach().numpy(), rtol=1e-3, atol=1e-4)
            theta = theta + (received - theta).detach()
            loss = loss + (torch.from_numpy(value).double() - theta).square().sum() / 2 / len(uploads)
    loss.backward()
    return float(loss.detach()), {**leaves, **embeddings}


@pytest.mark.parametrize("rounding", [np.copy, fp16])
def test_gradient_is_that_of_autograd_through_the_whole_chain(rounding):
    hypernetwork, state = network()
    state = stirred(state)
    uploads = {
        c: trained(hypernetwork.generate(state, c, shapes(width)), number)
        for number, (c, width) in enumerate(WIDTHS.items())
    }
    loss, leaves = autograd(hypernetwork, state, uploads, rounding)
    after, figures = step(hypernetwork, state, uploads.items(), rate=1.0, clip=math.inf, rounded=rounding)
    assert figures.loss == pytest.approx(loss, rel=1e-5)
    assert figures.norm == pytest.approx(
        math.sqrt(sum(float(t.grad.square().sum()) for t in leaves.values())), rel=1e-4
    )
    for before, later in ((state.weights, after.weights), (state.embeddings, after.embeddings)):
        for name, value in before.items():
            expected = leaves[name].grad.numpy()
            assert np.abs(expected).max() > 0, name
            np.testing.assert_allclose(value - later[name], expected, rtol=1e-3, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("rounding", [np.copy, fp16])
def test_nothing_changed_on_the_clients_is_a_gradient_of_exactly_zero(rounding):
    hypernetwork, state = network()
    state = stirred(state)
    uploads = {c: hypernetwork.generate(state, c, shapes(width)) for c, width in WIDTHS.items()}
    uploads = {c: {k: rounding(v.reshape(-1)).reshape(v.shape) for k, v in u.items()} for c, u in uploads.items()}
    after, figures = step(hypernetwork, state, uploads.items(), 0.5, rounded=rounding)
    assert (figures.loss, figures.norm, figures.absorbed) == (0, 0, 0)
    assert figures.finite
    assert bits(after) == bits(state)


def test_a_step_by_hand():
    """Two clients, one entry each: e = 1 and 3, e' = 2e, so 2 and 6; τ = ∞: e^(l) = 4; h = ReLU(.5·4 + 1) = 3;
    θ = .1·3 + .7 = 1. Client "a" sends 3: ½·2² = 2, halved by the mean is 1. With δ = 1 - 3 = -2, halved -1:
    by b -1, by w -1·3 = -3, by h -.1, by the hidden weight -.1·4 = -.4, by e^(l) -.1·.5 = -.05, which both e' share
    evenly: -.025, and each e gets that times 2; by the encoder's weight -.025·(1 + 3) = -.1, by its bias -.05.
    "b" changes nothing.
    """
    hypernetwork = Hypernetwork((Parameter("x.y", (1,), Role.BIAS),), 0, Hyper(embedding=1, hidden=1, depth=1))
    start = {
        "log-temperature": [200],  # exp is infinite in float32
        "encoder.0.weight": [[2]],
        "encoder.0.bias": [0],
        "hidden.weight": [[[0.5]]],
        "hidden.bias": [[1]],
        "decoder.x.y.weight": [[0.1]],
        "decoder.x.y.bias": [0.7],
    }
    arrays = {name: np.array(start[name], np.float32) for name in hypernetwork.shapes}
    embeddings = {"a": np.array([1], np.float32), "b": np.array([3], np.float32)}
    state = State(embeddings, arrays)
    generated = hypernetwork.generate(state, "a", {"x.y": (1,)})["x.y"]
    np.testing.assert_allclose(generated, [1], rtol=1e-6)
    uploads = {"a": {"x.y": np.array([3], np.float32)}, "b": {"x.y": generated}}
    after, figures = step(hypernetwork, state, uploads.items(), rate=1.0, clip=math.inf)
    assert figures.loss == pytest.approx(1, rel=1e-6)
    assert figures.h == pytest.approx(9)
    assert figures.attended == 2
    steps = {name: float((arrays[name] - after.weights[name]).item()) for name in arrays}
    expected = {"decoder.x.y.bias": -1, "decoder.x.y.weight": -3, "hidden.bias": -0.1, "hidden.weight": -0.4}
    assert steps == pytest.approx(
        {**expected, "encoder.0.weight": -0.1, "encoder.0.bias": -0.05, "log-temperature": 0}, rel=1e-5
    )
    assert float((embeddings["a"] - after.embeddings["a"]).item()) == pytest.approx(-0.05, rel=1e-5)
    assert float((embeddings["b"] - after.embeddings["b"]).item()) == pytest.approx(-0.05, rel=1e-5)


def test_the_gradients_norm_is_clipped():
    hypernetwork, state = network()
    uploads = {"a": trained(hypernetwork.generate(state, "a", shapes(1)), 0)}
    after, figures = step(hypernetwork, state, uploads.items(), rate=0.25, clip=0.5)
    assert figures.norm > 0.5
    pairs = [(v, after.weights[k]) for k, v in state.weights.items()]
    pairs += [(v, after.embeddings[k]) for k, v in state.embeddings.items()]
    distance = math.sqrt(sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in pairs))
    assert distance == pytest.approx(0.25 * 0.5, rel=1e-3)


def test_a_step_that_would_absorb_too_much_is_shortened():
    hypernetwork, state = network()
    new = trained(hypernetwork.generate(state, "a", shapes(1)), 0)
    whole, figures = step(hypernetwork, state, [("a", new)], rate=1.0, clip=math.inf)
    assert figures.absorbed > 1
    shortened, limited = step(hypernetwork, state, [("a", new)], rate=1.0, clip=math.inf, absorb=0.5)
    assert limited.absorbed == 0.5
    for name, value in state.weights.items():
        expected = (whole.weights[name] - value) * np.float32(0.5 / figures.absorbed)
        np.testing.assert_allclose(shortened.weights[name] - value, expected, rtol=1e-2, atol=1e-6)


def test_absorbed_is_what_the_next_downloads_take_over():
    """Two clients with the same h and the same change, decoders without weight: in each layer θ moves by γ(1 + ‖h‖²)
    of the change, and nothing else moves.
    """
    hypernetwork, state = network()
    decoders = [name for name in state.weights if name.startswith("decoder") and name.endswith("weight")]
    flat = {name: np.zeros_like(state.weights[name]) for name in decoders}
    same = {"log-temperature": np.full_like(state.weights["log-temperature"], 200)}
    state = replace(state, weights={**state.weights, **flat, **same})
    sent = hypernetwork.generate(state, "a", shapes(1))
    new = {k: v + np.float32(0.25) for k, v in sent.items()}
    after, figures = step(hypernetwork, state, [("a", new), ("b", new)], rate=0.01, clip=math.inf)
    next_download = hypernetwork.generate(after, "b", shapes(1))
    change = sum(float((next_download[k] - sent[k]).sum()) for k in sent) / sum(0.25 * v.size for v in sent.values())
    assert figures.absorbed == pytest.approx(change, rel=1e-3)
    assert 0.01 < change < 0.01 * (1 + 5 * figures.h)

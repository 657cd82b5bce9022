"""FedRoD: a step of both heads by hand, the cases in which the generic model is FedAvg's, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sepal import models
from sepal.errors import ConfigError
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Trainer
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import whole
from tests.strategies.baselines import BASE, assert_same_model, run
from tests.strategies.federation import Federation


def head_alone(counts=(3, 1), features=0.0, **keys):
    """A client whose model is one linear layer of two classes at 0, with so many examples of each; lr 1, one step."""
    settings = {"lr": 1.0, "optimizer": "sgd", "local-epochs": 1, "batch-size": 1000, "clip-gradient": 0.0, **keys}
    base_task = assemble({**BASE, "method": "fedrod", **settings}).setup
    make = lambda: nn.Sequential(nn.Linear(1, len(counts)))  # noqa: E731
    layout = models.layout(make())
    first = {p.name: np.zeros(p.shape, np.float32) for p in layout}
    setup = RunSetup(layout, first, base_task.config, base_task.hyper, make, (1,))
    labels = torch.tensor([label for label, count in enumerate(counts) for _ in range(count)])
    x = torch.full((len(labels), 1), features)
    trainer = Trainer(ClientInfo("c", len(labels)), setup.config, x, labels, x[:0], labels[:0], make)
    return registry.get("fedrod").make_client(setup, trainer)


def trained(client):
    state, upload = client.train(client.init(), Payload(), Plan(1))
    return state, upload.tensors["0.bias"].values


def test_a_step_of_both_heads_by_hand():
    """Two classes, n = (3, 1), all logits 0, a bias alone (x = 0), one step of rate 1 on the four examples.

    Generic: probabilities (3, 1)/4. y = 0: gradient (-.25, .25), loss -ln .75 = .287682; y = 1: (.75, -.75), loss
    -ln .25 = 1.386294. Three and one: 0, so the generic head does not learn the client's shares. Personal:
    probabilities (.5, .5), mean gradient (-.25, .25): φ = (.25, -.25), which says class 0 with 1/(1 + e^-.5) = .622459.
    """
    client = head_alone()
    state, sent = trained(client)
    assert sent.tolist() == pytest.approx([0, 0], abs=1e-7)
    assert state.head["0.bias"].tolist() == pytest.approx([0.25, -0.25], abs=1e-7)
    logits = client.predictor(state, None, Plan(2))(torch.zeros(1, 1))
    assert logits.softmax(1)[0].tolist() == pytest.approx([0.622459, 0.377541], abs=1e-6)


def test_the_exponent_by_hand():
    """γ = .5: √3/(√3 + 1) = .633975. Mean gradient of class 0: .633975 - .75 = -.116025, so the bias is .116025."""
    _, sent = trained(head_alone(**{"fedrod.gamma": 0.5}))
    assert sent.tolist() == pytest.approx([0.116025, -0.116025], abs=1e-6)


def test_the_personal_head_goes_on_from_its_last_state_and_is_added_to_what_is_trained():
    """Round 2 of the example above from a received 0: probabilities .622459; gradient .622459 - .75: φ += .127541."""
    client = head_alone()
    state, upload = client.train(client.init(), Payload(), Plan(1))
    again, _ = client.train(state, upload, Plan(2))
    assert again.head["0.bias"][0] == pytest.approx(0.25 + 0.127541, abs=1e-6)
    personal = client.personal_weights(again)
    assert personal["0.bias"][0] == pytest.approx(again.model["0.bias"][0] + again.head["0.bias"][0], abs=1e-7)


def test_the_personal_head_learns_what_the_generic_one_lacks():
    """Received bias (1, 0): g + 0 says class 0 with e/(e + 1) = .731059; gradient .731059 - .75: φ = (.018941, ...).

    The generic head's balanced probability is 3e/(3e + 1) = .890768: gradient .140768, so its bias is .859232.
    """
    client = head_alone()
    received = {"0.weight": np.zeros((2, 1), np.float32), "0.bias": np.array([1, 0], np.float32)}
    download = Payload({name: whole(array) for name, array in received.items()})
    state, upload = client.train(client.init(), download, Plan(2))
    assert state.head["0.bias"].tolist() == pytest.approx([0.018941, -0.018941], abs=1e-6)
    assert upload.tensors["0.bias"].values[0] == pytest.approx(0.859232, abs=1e-6)
    assert client.personal_weights(state)["0.bias"][0] == pytest.approx(0.878173, abs=1e-6)


def test_a_class_without_examples_is_left_out_of_the_generic_loss():
    """n = (3, 1, 0): the third logit is -∞ in the loss, and the third row gets no gradient."""
    state, sent = trained(head_alone((3, 1, 0), features=1.0))
    assert np.isfinite(sent).all()
    assert sent[2] == 0
    assert state.model["0.weight"][2, 0] == 0


def test_a_client_of_one_class_leaves_the_generic_model_alone():
    state, sent = trained(head_alone((4, 0)))
    assert sent.tolist() == [0, 0]
    assert state.head["0.bias"][0] > 0


def test_without_the_exponent_the_generic_model_is_fedavgs_bit_for_bit():
    """The personal head disturbs nothing, also with a limit on gradients and with momentum."""
    keys = {"momentum": 0.9, "clip-gradient": 0.5}
    assert_same_model(run("fedrod", 3, **{"fedrod.gamma": 0.0}, **keys), run("fedavg", 3, **keys))


def test_equal_counts_are_fedavg_to_rounding():
    """A constant is added to all logits."""
    client, plain = head_alone((2, 2), features=1.0), head_alone((2, 2), features=1.0, **{"fedrod.gamma": 0.0})
    np.testing.assert_allclose(trained(client)[1], trained(plain)[1], atol=1e-7)


def test_received_is_generic_and_what_is_kept_personal():
    federation = Federation([1.0, 1.0], method="fedrod", **{"local-epochs": 3})
    state, _ = federation.round(federation.server.init(), 1)
    algorithm, own = federation.hosts[0].algorithm, federation.states[0]
    assert set(own.head) == {"fc2.weight", "fc2.bias"}
    download = federation.download(state, 0, Plan(2))
    received = algorithm.received_weights(own, download, Plan(2))
    np.testing.assert_array_equal(received["fc2.bias"], state.weights["fc2.bias"])
    kept = algorithm.personal_weights(own)
    np.testing.assert_array_equal(kept["fc2.bias"], own.model["fc2.bias"] + own.head["fc2.bias"])
    assert np.abs(own.head["fc2.bias"]).max() > 0
    assert not any("head" in name for name in algorithm.upload(own, Plan(2)).tensors)


@pytest.mark.parametrize("keys", [{"label-smoothing": 0.1}, {"own.class-weights": "balanced"}])
def test_weights_in_the_loss_are_refused_in_one_line(keys):
    (key,) = keys
    with pytest.raises(ConfigError, match=f"{key}: expected .* with fedrod, whose generic loss is balanced") as error:
        assemble({"dataset": "digits", "method": "fedrod", **keys})
    assert "\n" not in str(error.value)


def test_a_model_that_does_not_end_with_a_linear_layer_is_refused_before_the_run():
    with pytest.raises(Exception, match="one that ends with a linear layer, whose input fedrod needs"):
        run("fedrod", 1, model="tests.strategies.test_moon:convolved")

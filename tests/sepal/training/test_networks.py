"""Networks of a client: what they load and read, how many a process keeps, and other shapes than the model's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sepal.errors import ModelError
from sepal.training.network import Network
from tests.sepal.training.small_trainer import X, make, work


class Odd(nn.Module):
    """A scalar parameter, a buffer that counts."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.norm = nn.BatchNorm1d(2)


def test_a_network_loads_and_reads_its_floating_tensors():
    network = Network(Odd())
    weights = network.read()
    assert list(weights) == ["scale", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    assert weights["scale"].shape == ()
    changed = {name: value + np.float32(1) for name, value in weights.items()}
    changed["scale"] = np.array(5, np.float32)
    frozen = dict(changed)
    for value in frozen.values():
        np.asarray(value).setflags(write=False)
    network.load(frozen)
    assert network.module.scale.item() == 5
    network.read()["norm.bias"][:] = 9
    assert network.module.norm.bias.tolist() == [1, 1], "what is read is a copy"
    with torch.no_grad():
        network.module.norm.bias += 1
    assert changed["norm.bias"].tolist() == [1, 1], "what was loaded is a copy"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.pop("scale"), "scale missing or unknown"),
        (lambda w: w.update(more=np.zeros(1, np.float32)), "more missing or unknown"),
        (lambda w: w.update(scale=np.zeros(1, np.float32)), "scale: expected shape"),
    ],
)
def test_a_network_refuses_other_weights_and_stays_as_it_was(change, words):
    network = Network(Odd())
    weights = network.read()
    weights["norm.bias"] = weights["norm.bias"] + np.float32(1)
    change(weights)
    with pytest.raises(ModelError, match=words):
        network.load(weights)
    assert network.module.norm.bias.tolist() == [0, 0]


def test_networks_are_built_once_for_each_use():
    subject = work()
    assert subject.network() is subject.network()
    assert subject.network("second") is not subject.network()


def narrow():
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2))


def test_a_client_may_train_a_module_of_another_shape():
    """An example passes 3·4 + 4·2 or 3·2 + 2·2 weights, forward and back; the first layer needs no input gradient.

    So the multiply-adds are 2 · 12 + 3 · 8 and 2 · 6 + 3 · 4.
    """
    subject = work(local_epochs=1)
    wide, small = subject.network(), subject.network("width-0.5", narrow)
    assert subject.network("width-0.5", narrow) is small
    assert {name: array.shape for name, array in small.read().items()}["0.weight"] == (2, 3)
    subject.fit(wide.module, 1)
    assert subject.spent()["multiply-adds"] == 7 * (2 * 12 + 3 * 8)
    subject.fit(small.module, 1)
    assert subject.spent()["multiply-adds"] == 7 * (2 * 6 + 3 * 4)
    assert subject.predictor(small.read(), "width-0.5", narrow)(X).shape == (7, 2)
    with pytest.raises(ModelError, match="shape"):
        subject.predictor(wide.read(), "width-0.5", narrow)


def test_a_process_keeps_the_networks_used_last():
    subject = work()
    first, second = subject.network("0", narrow), subject.network("1", narrow)
    for number in range(2, 16):
        subject.network(str(number), narrow)
    assert subject.network("0", narrow) is first
    subject.network("16", narrow)
    assert subject.network("0", narrow) is first
    assert subject.network("1", narrow) is not second


def test_a_predictor_is_the_model_in_evaluation_mode_without_gradients():
    subject = work()
    weights = subject.network().read()
    predict = subject.predictor(weights)
    logits = predict(X)
    assert not logits.requires_grad
    assert not subject.network().module.training
    assert torch.equal(logits, make()(X))

"""FedProto: two rounds by hand, what a message may hold, when it is Local, and prototypes against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sepal import models
from sepal.method import ClientInfo, Payload, Plan, RunSetup, Trainer, Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedproto import message, message_schema
from sepal.tasks.builtin import BY_CLASS
from sepal.training.features import LastLayer
from sepal.wire.tensors import ValueCoding, members, whole
from tests.strategies.baselines import BASE, Sent, run
from tests.strategies.federation import Federation
from tests.strategies.quadratics import CURVATURES, EXAMPLES, OPTIMA


class Feature(nn.Module):
    """The feature of x = 1 is w, and the first output is that feature: the head is not trained."""

    def __init__(self):
        super().__init__()
        self.w, self.head = nn.Parameter(torch.zeros(1)), nn.Linear(1, 2, bias=False)
        self.head.weight.register_hook(torch.zeros_like)

    def forward(self, x):
        return self.head(x * self.w)


class Toy:
    """The two quadratics of quadratics.py, as losses of the feature w; all examples are of class 0 of two."""

    def __init__(self, **keys):
        settings = {
            "lr": 0.1,
            "optimizer": "sgd",
            "local-epochs": 2,
            "clip-gradient": 0.0,
            "fedproto.lambda": 1.0,
            **keys,
        }
        base_task = assemble({**BASE, "method": "fedproto", **settings}).setup
        first = {"w": np.zeros(1, np.float32), "head.weight": np.array([[1], [0]], np.float32)}
        setup = RunSetup(models.layout(Feature()), first, base_task.config, base_task.hyper, Feature, (1,))
        record, x, y = registry.get("fedproto"), torch.ones(1, 1), torch.tensor([0])
        self.server, self.clients = record.make_server(setup), []
        for number, (a, b) in enumerate(zip(CURVATURES, OPTIMA, strict=True)):
            task = replace(BY_CLASS, loss=lambda z, y, a=a, b=b: (a / 2 * (z[:, 0] - b) ** 2).mean())
            info = ClientInfo(f"c{number}", EXAMPLES[number])
            trainer = Trainer(info, setup.config, x, y, x[:0], y[:0], Feature, task=task)
            self.clients.append(record.make_client(setup, trainer))
        self.state, self.states = self.server.init(), [client.init() for client in self.clients]

    def round(self, round):
        plan, sent = Plan(round), Sent()
        down = Payload() if round == 1 else self.server.download(self.state, ClientInfo("c", 1), plan)
        for number, client in enumerate(self.clients):
            download = unseal(seal(down), client.download_schema(self.states[number], plan))
            self.states[number], payload = client.train(self.states[number], download, plan)
            schema = self.server.upload_schema(self.state, client.trainer.client, plan)
            sent.append(Upload(client.trainer.client, unseal(seal(payload), schema)))
        self.state, _ = self.server.aggregate(self.state, sent, plan)
        return [float(upload.payload.tensors["prototypes"].values[0]) for upload in sent]


@pytest.mark.parametrize(("weights", "mean"), [("equal", 0.2), ("examples", -0.08)])
def test_the_first_round_is_local_and_its_mean_by_hand(weights, mean):
    """.76 and -.36: (.76 - .36)/2, and (1·.76 + 3·-.36)/4. No client has class 1, which has no prototype."""
    toy = Toy(**{"fedproto.weights": weights})
    assert toy.round(1) == pytest.approx([0.76, -0.36], abs=1e-6)
    assert toy.state.prototypes[0, 0] == pytest.approx(mean, abs=1e-6)
    assert toy.state.classes.tolist() == [True, False]


def test_the_second_round_by_hand():
    """λ = 1: the gradient is f' + 2·(w - .2). Client 1: -3.24 + 1.12 = -2.12, w = .972; -3.028 + 1.544 = -1.484:

    1.1204. Client 2: 1.28 - 1.12 = .16, w = -.376; 1.248 - 1.152 = .096: -.3856. Mean .3674.
    """
    toy = Toy(**{"fedproto.weights": "equal"})
    toy.round(1)
    assert toy.round(2) == pytest.approx([1.1204, -0.3856], abs=1e-6)
    assert toy.state.prototypes[0, 0] == pytest.approx(0.3674, abs=1e-6)


def test_without_the_pull_by_hand():
    """λ = 0: .76 → 1.084 → 1.3756; -.36 → -.488 → -.5904."""
    toy = Toy(**{"fedproto.lambda": 0.0})
    toy.round(1)
    assert toy.round(2) == pytest.approx([1.3756, -0.5904], abs=1e-6)


def test_the_euclidean_distance_by_hand():
    """Its gradient is ±1. Client 1: -3.24 + 1 = -2.24, w = .984; -3.016 + 1: 1.1856. Client 2: 1.28 - 1: -.388;

    1.224 - 1: -.4104.
    """
    toy = Toy(**{"fedproto.weights": "equal", "fedproto.distance": "euclidean"})
    toy.round(1)
    assert toy.round(2) == pytest.approx([1.1856, -0.4104], abs=1e-6)


def test_a_class_that_nobody_sends_keeps_its_prototype():
    toy = Toy()
    known = type(toy.state)(np.array([[5.0], [7.0]], np.float32), np.array([True, True]))
    toy.state = known
    toy.round(2)
    assert toy.state.prototypes[1, 0] == 7
    assert toy.state.prototypes[0, 0] != 5
    after, _ = toy.server.aggregate(known, Sent(), Plan(3))
    np.testing.assert_array_equal(after.prototypes, known.prototypes)


def test_a_class_without_a_prototype_pulls_nothing():
    """All examples are of class 0, and only class 1 has a prototype: both clients go on as without the pull."""
    toy = Toy()
    toy.round(1)
    toy.state = type(toy.state)(np.array([[0.0], [7.0]], np.float32), np.array([False, True]))
    assert toy.round(2) == pytest.approx([1.3756, -0.5904], abs=1e-6)


def test_a_class_is_weighed_by_the_clients_examples_of_it():
    """Of 4 examples all, of 8 a quarter: 4·1 and 8·.25 = 2, so (4·3 + 2·0)/6 = 2. A share of 9 counts as 1."""
    toy, sent = Toy(), Sent()
    for name, examples, share, value in (("a", 4, 9.0, 3.0), ("b", 8, 0.25, 0.0)):
        tensors = message(
            np.array([True, False]),
            np.array([[value], [0]], np.float32),
            ValueCoding.FP32,
            np.array([share, 0], np.float32),
        )
        sent.append(Upload(ClientInfo(name, examples), Payload(tensors)))
    after, _ = toy.server.aggregate(toy.state, sent, Plan(2))
    assert after.prototypes[0, 0] == pytest.approx(2.0)


def test_without_the_pull_a_run_has_the_accuracies_of_local():
    fedproto, local = run("fedproto", **{"fedproto.lambda": 0.0}), run("local")
    assert fedproto.report.accuracy["trained"] == local.report.accuracy["trained"]
    pulled = run("fedproto", **{"fedproto.lambda": 10.0})
    assert pulled.report.digests != fedproto.report.digests


def test_the_first_round_is_local_bit_for_bit():
    fedproto, local = (Federation([1.0], method=method) for method in ("fedproto", "local"))
    for federation in (fedproto, local):
        federation.round(federation.server.init(), 1)
    for name, array in local.states[0].model.items():
        np.testing.assert_array_equal(fedproto.states[0].model[name], array)


def test_prototypes_are_means_of_features_after_training():
    """Of an MLP in NumPy: relu(x·W1 + b1), by class, of the classes that the client has."""
    federation = Federation([1.0], method="fedproto", model="tests.strategies.federation:mlp")
    upload = federation.trained(federation.server.init(), 0, Plan(1))
    tensors, trainer, w = upload.payload.tensors, federation.hosts[0].algorithm.trainer, federation.states[0].model
    x, y = trainer.x.numpy().reshape(len(trainer.y), -1), trainer.y.numpy()
    features = np.maximum(x @ w["fc1.weight"].T + w["fc1.bias"], 0)
    mask = tensors["classes"].mask()
    assert np.flatnonzero(mask).tolist() == sorted(set(y.tolist()))
    assert not mask.all()
    for label in np.flatnonzero(mask):
        mean = features[y == label].mean(0)
        np.testing.assert_allclose(tensors["prototypes"].dense()[label], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tensors["shares"].dense(), np.bincount(y, minlength=10) / len(y), rtol=1e-6)


LAST = LastLayer("fc", "fc.weight", "fc.bias", 3, 2, "fedproto")
CLASSES, VALUES = np.array([True, False, True]), np.arange(6, dtype=np.float32).reshape(3, 2)


def received(tensors):
    return unseal(seal(Payload(tensors)), message_schema(LAST, False, 1)).tensors


def test_a_message_holds_the_rows_of_its_classes():
    tensors = received(message(CLASSES, VALUES, ValueCoding.FP32))
    assert tensors["prototypes"].dense().tolist() == [[0, 1], [0, 0], [4, 5]]
    everything = received(message(CLASSES | True, VALUES, ValueCoding.FP32))
    np.testing.assert_array_equal(everything["prototypes"].dense(), VALUES)


@pytest.mark.parametrize(
    "tensors",
    [
        {"classes": members(CLASSES)},
        {"classes": members(CLASSES), "prototypes": whole(VALUES)},
        {**message(np.array([True, False, False]), VALUES, ValueCoding.FP32), "classes": members(CLASSES)},
        message(CLASSES & False, VALUES, ValueCoding.FP32),
        {"classes": members(CLASSES), "prototypes": whole(np.zeros((3, 3)))},
    ],
)
def test_another_message_is_refused(tensors):
    with pytest.raises(Exception, match="expected"):
        received(tensors)


def test_bytes_are_those_of_the_prototypes():
    """digits-cnn: 32 features, ten classes at most: 4·(32 + 1) bytes a class, and headers."""
    strategy, fedavg = run("fedproto", 3), run("fedavg", 3)
    totals = strategy.report.totals.training
    assert 0 < totals.up < 3 * 2 * (10 * 4 * 33 + 300)
    assert totals.up < fedavg.report.totals.training.up / 20
    assert totals.down < 2 * 2 * (10 * 4 * 32 + 300)


def test_the_accuracy_by_prototype_is_reported_on_validation_data():
    federation = Federation([1.0, 1.0], method="fedproto", **{"split.validation": 0.2})
    state = federation.server.init()
    for number in (1, 2):
        state, _ = federation.round(state, number)
    client = federation.hosts[0].algorithm
    assert 0 <= client.trainer.reports["prototype-accuracy"] <= 1
    x, y = client.trainer.x_validation, client.trainer.y_validation
    model, right = federation.states[0].model, np.zeros_like(state.prototypes)
    network = client.trainer.network("fedproto")
    network.load(model)
    features = client._last().read(network.module.eval(), x)[1].detach().numpy()
    right[:] = 1e3
    right[int(y[0])] = features[0]  # the nearest for that example; all others are far
    share = client._accuracy(model, np.ones(10, bool), right.astype(np.float32))
    assert share == pytest.approx(float((y == y[0]).float().mean()))


def test_other_tasks_and_ends_are_refused():
    with pytest.raises(Exception, match="one that ends with a linear layer, whose input fedproto needs"):
        run("fedproto", 1, model="tests.strategies.test_moon:convolved")
    with pytest.raises(Exception, match="class labels, which fedproto needs"):
        assemble({"dataset": "digits", "method": "fedproto", "task": "multilabel", "own.data": "x:y"})

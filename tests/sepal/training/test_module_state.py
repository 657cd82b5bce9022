"""What becomes of what a module holds: kept with its client, as built, or refused in a line."""

from __future__ import annotations

import json
import logging
import threading
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sepal.client_app.state_store import DiskStateStore
from sepal.engines.in_process import run_in_process
from sepal.engines.in_process.grid import InProcessGrid
from sepal.engines.in_process.worker import Clients
from sepal.errors import ModelError, SepalError
from sepal.models import build
from sepal.server.strategy import SepalStrategy
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.training.network import Network
from tests.models.test_models import PUBLISHED
from tests.sepal.engines import modules_with_state
from tests.sepal.engines.modules_with_state import Layer
from tests.sepal.engines.test_modules_with_state import FLAT, HERE
from tests.sepal.training.test_store import State, entry

FEATURES = 3


def models_for(*layers):
    """Register functions that build the layers, by the layers' names."""
    for layer in layers:
        globals()[f"model_{layer.__name__}"] = lambda shape, classes, layer=layer: layer()


class Unregistered(Layer):
    """Layers in a list, which torch does not know of: they would neither be trained nor sent."""

    def __init__(self):
        super().__init__()
        self.more = [nn.Linear(FEATURES, FEATURES)]

    def changed(self, x):
        return self.more[0](x)


class PlainTensor(Layer):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(FEATURES, requires_grad=True)

    def changed(self, x):
        return x * self.scale


class Locked(Layer):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    def changed(self, x):
        return x


class DoubleWeights(Layer):
    def __init__(self):
        super().__init__()
        self.double()

    def forward(self, x):
        return self.linear(x.double()).float()


class BrainWeights(Layer):
    def __init__(self):
        super().__init__()
        self.bfloat16()

    def forward(self, x):
        return self.linear(x)


class ComplexWeights(Layer):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(FEATURES, dtype=torch.complex64))

    def changed(self, x):
        return (x * self.turn).real


class Hidden(Layer):
    """A state_dict that leaves a parameter out."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(FEATURES))

    def changed(self, x):
        return x * self.scale

    def state_dict(self, *args, **kwargs):
        whole = super().state_dict(*args, **kwargs)
        whole.pop("scale")
        return whole


class Late(Layer):
    """A parameter that the first batch makes."""

    def changed(self, x):
        if self.training and not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(FEATURES))
        return x


class Reshaped(Layer):
    """An exchanged buffer that gets another shape."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def changed(self, x):
        if self.training:
            self.seen = torch.zeros(len(self.seen) + 1)
        return x


class Turning(Layer):
    """A buffer of complex numbers that moves."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.ones(FEATURES, dtype=torch.complex64))

    def changed(self, x):
        self.turn = self.turn * (1.1j if self.training else 1)
        return x


BEFORE = {
    Unregistered: r"model: expected parameters that are registered .*, got one in more, which is not",
    PlainTensor: r"model: expected parameters that are registered .*, got one in scale, which is not",
    Locked: r"model: expected attributes that can be copied, .*, got lock \(lock\): cannot pickle",
    DoubleWeights: r"model: expected tensors of float32 \(build can end with model\.float\(\).*, got linear\.weight",
    BrainWeights: r"model: expected tensors of float32 .*bf16.*, got linear\.weight, which is bfloat16",
    ComplexWeights: r"model: expected trained parameters of real numbers: others are not exchanged, got turn, which is",
    Hidden: r"model: expected trained parameters that are in its state_dict: .*, got scale, which is float32",
}
AFTER = {
    Late: r"model: expected the same parameters after training, .*, got scale, which is new",
    Reshaped: r"model: expected seen of shape \(1,\) after each step, got shape \(\d,\)",
    Turning: r"model: expected the buffer turn to stay as built, .*, got complex64, and it moves",
}
models_for(*BEFORE, *AFTER)


def keys(layer):
    return {**FLAT, "model": f"{__name__}:model_{layer.__name__}"}


@pytest.mark.parametrize("layer", BEFORE, ids=lambda layer: layer.__name__)
def test_what_cannot_be_right_is_refused_before_the_run(layer):
    with pytest.raises(ModelError, match=BEFORE[layer]):
        assemble(keys(layer))


@pytest.mark.parametrize("layer", AFTER, ids=lambda layer: layer.__name__)
def test_what_only_training_shows_is_refused_after_the_first_step(layer):
    with pytest.raises(SepalError, match=AFTER[layer]):
        run_in_process(assemble(keys(layer)))


def ran(flat, directory, workers=1):
    """Run three clients with the networks of ``workers`` workers; return the strategy and a client's newest states."""
    assembly = assemble(flat)
    clients = [Clients(assembly, directory / str(number), limit=0) for number in range(workers)]
    strategy = SepalStrategy(assembly.method, assembly.setup, agreed=assembly.agreed, settle=0.0)
    nodes = {number + 1: partial(clients[number % workers].answer, number) for number in range(3)}
    strategy.start(InProcessGrid(nodes))
    for client in clients:
        client.flush()

    def newest(number):
        client_directory = directory / str(number % workers) / strategy.progress.run / f"client-{number:05}"
        name = strategy.progress.versions[f"client-{number:05}"]
        return DiskStateStore(client_directory, assembly.method.client_state).load(name)

    return strategy, newest


@pytest.mark.parametrize("workers", [1, 3])
def test_a_cumulative_mean_is_its_clients_own(workers, tmp_path):
    """Over three rounds and the closing one; with one count for all, client 2's mean was 5.1 with one worker."""
    flat = {**FLAT, "model": f"{HERE}:averaging_norm", "split.validation": 0.0, "evaluate-every": 0, "local-epochs": 1}
    _, newest = ran(flat, tmp_path, workers)
    for client in range(3):
        stored = newest(client)
        x = modules_with_state.data(client)[0]
        np.testing.assert_allclose(stored.state.model["0.running_mean"], x.mean(0), atol=1e-5)
        assert stored.local["0.num_batches_tracked"] == 4 * len(x) / FLAT["batch-size"]


def test_a_model_with_a_momentum_has_nothing_to_keep(tmp_path):
    _, newest = ran({**FLAT, "model": f"{HERE}:momentum_norm"}, tmp_path)
    assert newest(0).local == {}


@pytest.mark.parametrize("name", PUBLISHED)
def test_built_in_models_have_nothing_to_keep(name):
    """So they cost nothing: that is decided once, where the network is made."""
    shape, classes, vocabulary, _ = PUBLISHED[name]
    assert Network(build(name, shape, classes, vocabulary)).state.empty


def test_a_number_that_moves_is_said_once(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "sepal"):
        ran({**FLAT, "model": f"{HERE}:annealing"}, tmp_path)
    words = "model: Annealing.steps is 1 again at each client's turn; a buffer would be kept"
    assert [record.getMessage() for record in caplog.records if "turn" in record.getMessage()] == [words]


def test_buffers_are_stored_and_read_with_their_types(tmp_path):
    name, stored = entry(2)
    buffers = {
        "a.steps": np.array(7),
        "a/b~c": np.array([True, False]),
        "half": np.array([0.5], np.float16),
        "mean": np.array([1 / 3]),
        "none": np.zeros((0, 3), np.int32),
    }
    store = DiskStateStore(tmp_path / "a", State)
    store.save(name, type(stored)(stored.request, stored.state, stored.reply, stored.content, buffers))
    back = store.load(name).local
    assert back.keys() == buffers.keys()
    for key, array in buffers.items():
        assert (back[key].dtype, back[key].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back[key], array)


def test_a_state_of_before_has_no_buffers(tmp_path):
    """Its file has no such part; a client without any writes the same file as then."""
    from sepal.client_app import state_store

    _, stored = entry(2)
    arrays, head = state_store.pack(stored)
    assert head.keys() == {"state", "record"}
    assert all(array.startswith(("state", "record")) for array in arrays)
    assert state_store.unpack(arrays, json.dumps(head), State).local == {}


SOME = ("averaging_norm", "counting", "momentum_norm")


@pytest.mark.parametrize("model", SOME)
@pytest.mark.parametrize("method", [name for name in registry.METHODS if name not in ("fedsa-lora", "flasc")])
def test_with_every_method_clients_share_only_what_they_exchange(method, model, tmp_path):
    """One worker or three: the same bits."""
    flat = {**FLAT, "model": f"{HERE}:{model}", "method": method, "rounds": 2, "pfedhn.inner-rate": 0.005}
    try:
        strategy, _ = ran(flat, tmp_path / "one")
    except ModelError:
        return  # a method that changes layers one by one refuses some
    again, _ = ran(flat, tmp_path / "three", 3)
    assert strategy.report.digests == again.report.digests
    assert strategy.report.accuracy == again.report.accuracy

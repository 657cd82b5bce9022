"""Captured steps by a pretended graph: what is captured anew, what is refused and left as it was, what is dropped."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sepal.config import RunConfig
from sepal.config.rules import check_together
from sepal.errors import ConfigError
from sepal.training import programs
from sepal.training.augment import crop_flip
from sepal.training.hooks import Hooks, Pull
from sepal.training.network import Network
from sepal.training.optimizers import ParameterGroup, read_state
from sepal.training.programs import Program, Programs, programs_for
from tests.sepal.training.small_trainer import X, Y, make, work
from tests.tape import Tape


def model(*layers):
    """A maker of a model of three inputs and two outputs with fixed weights."""

    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), *(layer() for layer in layers), nn.Linear(4, 2))

    return build


def pair(builder=make, record=None, **settings):
    """A trainer that makes its steps one by one, and one with captured steps."""
    usual = replace(work(**settings), make=builder)
    return usual, replace(usual, programs=Programs(record or Tape()), networks={}, in_use={}, local={})


def fitted(trainer, hooks=None, **arguments):
    """What a client's training leads to, and the loss."""
    network = trainer.network()
    network.load(Network(trainer.make()).read())
    loss = trainer.fit(network.module, 1, hooks, **arguments)
    state = {**network.read(), **network.state.all(), "loss": np.array(loss)}
    return state, trainer.spent()


def programs_of(trainer):
    return [
        program for network in trainer.networks.values() for program in network.programs.values() if program is not None
    ]


def assert_close(usual, captured, **arguments):
    (usual_weights, cost), (captured_weights, other_cost) = fitted(usual, **arguments), fitted(captured, **arguments)
    assert usual_weights.keys() == captured_weights.keys()
    for name, value in usual_weights.items():
        np.testing.assert_allclose(captured_weights[name], value, rtol=0, atol=2e-6, err_msg=name)
    assert {**cost, "seconds": 0} == {**other_cost, "seconds": 0}


@pytest.mark.parametrize(
    "settings",
    [
        *({}, {"momentum": 0.9, "weight_decay": 0.1}, {"clip_gradient": 0.4}, {"label_smoothing": 0.2}),
        *({"optimizer": "adam", "lr": 0.01}, {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1}),
        *({"batch_size": 1}, {"batch_size": 7}, {"batch_size": 100}, {"local_epochs": 5, "lr": 0.1}),
    ],
)
def test_captured_steps_are_the_usual_ones(settings):
    usual, captured = pair(**settings)
    for _ in range(2):
        assert_close(usual, captured)
    assert not captured.programs.reasons
    assert len(programs_of(captured)) == 1


@pytest.mark.parametrize("layer", [lambda: nn.BatchNorm1d(4), lambda: nn.Dropout(0.5), lambda: nn.LayerNorm(4)])
def test_so_are_those_of_models_whose_batches_cannot_be_filled_up(layer):
    usual, captured = pair(model(layer, nn.Tanh), momentum=0.9)
    assert_close(usual, captured)
    assert not captured.programs.reasons


def test_so_are_those_with_class_weights_and_with_groups():
    usual, captured = (replace(subject, class_weights=torch.tensor([0.3, 2.0])) for subject in pair(lr=0.2))
    assert_close(usual, captured)
    (program,) = programs_of(captured)
    assert program.shape.filled
    module = captured.networks["model"].module
    for trainer in (usual, captured):
        module = trainer.network().module
        groups = [ParameterGroup(list(module[0].parameters()), 0.1, 0.9), ParameterGroup(list(module[2].parameters()))]
        trainer.weights = fitted(trainer, parameters=groups)[0]
    for name, value in usual.weights.items():
        np.testing.assert_allclose(captured.weights[name], value, rtol=0, atol=2e-6)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
def test_an_optimizer_that_is_kept_goes_on(settings):
    states = []
    for trainer in pair(**settings):
        module, state = trainer.network().module, {}
        for round in (1, 2, 3):
            optimizer = trainer.optimizer(module, round, state=state)
            trainer.fit(module, round, optimizer=optimizer)
            state = read_state(optimizer, module)
        states.append(state)
    assert states[0].keys() == states[1].keys() != set()
    for name, value in states[0].items():
        np.testing.assert_allclose(states[1][name], value, rtol=1e-5, atol=2e-6, err_msg=name)


def test_one_program_serves_clients_of_all_sizes_and_its_tensors_stay_where_they_are():
    _, first = pair()
    usual, addresses = work(), set()
    for size in (7, 3, 5, 7):
        client = replace(first, x=X[:size], y=Y[:size], in_use={})
        assert_close(replace(usual, x=X[:size], y=Y[:size], networks={}, in_use={}), client)
        (program,) = programs_of(client)
        addresses.add(tuple(tensor.data_ptr() for tensor in program.static()))
    assert len(addresses) == 1


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({}, 1),
        ({"lr": 0.1}, 1),  # a tensor
        ({"momentum": 0.5}, 2),
        ({"weight_decay": 0.5}, 2),
        ({"batch_size": 4}, 2),
        ({"optimizer": "adam"}, 2),
        ({"clip_gradient": 1.0}, 2),
        ({"local_epochs": 40}, 2),  # more steps than there is room for
    ],
)
def test_what_is_captured_anew(change, count):
    _, captured = pair()
    fitted(captured)
    fitted(replace(captured, config=work(**change).config, in_use={}))
    assert len(programs_of(captured)) == count
    assert captured.programs._record.recorded == count


def test_hooks_tensors_are_copied_and_other_numbers_are_captured_anew():
    usual, captured = pair()
    for target, strength, count in ((0.1, 1.0, 1), (0.7, 1.0, 1), (0.7, 0.5, 2)):
        targets = {name: torch.full_like(tensor, target) for name, tensor in make().state_dict().items()}
        assert_close(usual, captured, hooks=Hooks(before_step=Pull(targets, strength)))
        assert captured.programs._record.recorded == count


def test_what_can_no_longer_be_captured_as_it_was_is_captured_anew():
    usual, captured = pair()
    fitted(captured)
    network = captured.networks["model"]
    network.module[0].weight = nn.Parameter(network.module[0].weight.detach().clone())
    network.tensors["0.weight"] = network.module[0].weight.detach()
    network._slots = {name: (value[0], value[1], value[0][value[1]]) for name, value in network._slots.items()}
    assert_close(usual, captured)
    assert captured.programs._record.recorded == 2


def wrong(step):
    """A recorder whose replays go astray."""

    def replay():
        step()
        step()

    return replay


def broken(step):
    step()
    raise RuntimeError("operation not permitted when stream is capturing\nwith more")


class Drawing(nn.Module):
    """A model that decides on the host."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = make(), 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.calls


class Reading(Drawing):
    """A model that reads a value on the host."""

    def forward(self, x):
        return self.layer(x) * float(x.abs().max() > 0)


@pytest.mark.parametrize(
    ("builder", "record", "reason"),
    [
        (make, wrong, "a replay leads to other parameters than the usual step"),
        (make, broken, "RuntimeError: operation not permitted when stream is capturing with more"),
        (Drawing, None, "the model changes what it holds in training, or draws numbers on the host"),
        (Reading, None, "is not permitted when a stream is capturing"),
    ],
)
def test_what_cannot_be_captured_trains_as_usual_to_the_bit(builder, record, reason):
    """It is tried once, with batches filled up and as they are."""
    usual, captured = pair(builder, record, momentum=0.5)
    tried, begin = [], Program.begin
    for _ in range(3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Program, "begin", lambda *arguments: (tried.append(1), begin(*arguments))[1])
            (usual_weights, _), (captured_weights, _) = fitted(usual), fitted(captured)
        for name, value in usual_weights.items():
            np.testing.assert_array_equal(captured_weights[name], value, err_msg=name)
    assert len(tried) == 2
    assert all(reason in text for text in captured.programs.reasons)
    assert not programs_of(captured)


def closure(module, x, y):
    return nn.functional.cross_entropy(module(x), y)


@pytest.mark.parametrize(
    ("changes", "hooks", "reason"),
    [
        ({"augment": crop_flip}, None, "augment changes inputs on the host"),
        ({}, Hooks(loss=closure), "closure (loss) does not say what it depends on"),
        ({}, Hooks(after_step=lambda module: None), "<lambda> (after_step) does not say what it depends on"),
    ],
)
def test_what_is_not_even_tried(changes, hooks, reason):
    _, captured = pair()
    captured = replace(captured, **changes, x=X[:, None, None, :])
    module = captured.network("other", lambda: nn.Sequential(nn.Flatten(), make())).module
    captured.fit(module, 1, hooks)
    (text,) = captured.programs.reasons
    assert reason in text


def test_a_module_of_no_network_is_not_captured():
    _, captured = pair()
    captured.fit(make(), 1)
    assert list(captured.programs.reasons) == ["its module is none of the process's networks"]


def test_a_network_that_is_dropped_takes_its_programs_with_it():
    _, captured = pair()
    fitted(captured)
    program = weakref.ref(programs_of(captured)[0])
    captured.in_use.clear()
    for number in range(16):
        captured.network(f"other-{number}")
    assert "model" not in captured.networks
    gc.collect()
    assert program() is None


def test_a_network_keeps_the_programs_that_it_used_last(monkeypatch):
    monkeypatch.setattr(programs, "MOST_PROGRAMS", 2)
    _, captured = pair()
    for momentum in (0.1, 0.2, 0.1, 0.3, 0.1):
        fitted(replace(captured, config=work(momentum=momentum).config, in_use={}))
    assert len(programs_of(captured)) == 2
    assert captured.programs._record.recorded == 3


def test_where_nothing_can_be_captured_a_line_says_so(caplog):
    caplog.set_level("INFO", "sepal")
    assert programs_for("cpu", capture=False) is None
    assert not caplog.messages
    assert programs_for("cpu", capture=True) is None
    assert caplog.messages == ["engine.capture: steps are captured on CUDA only; on cpu they are made one by one"]


def test_clients_that_train_at_once_are_not_captured():
    with pytest.raises(ConfigError, match=r"engine\.batch: expected 0 or 1 with engine\.capture.*, got 4"):
        check_together(RunConfig(**{"engine": {"batch": 4, "capture": True}}))

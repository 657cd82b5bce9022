"""Optimizers by parameter group, and with a state that outlives the call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sepal.config import RunConfig
from sepal.errors import ModelError
from sepal.training.optimizers import ParameterGroup, load_state, make_optimizer, read_state
from sepal.training.trainer import Trainer
from tests.sepal.training.small_trainer import make, work


def trainer(**settings) -> Trainer:
    return work(**{"batch_size": 7, "local_epochs": 1, **settings})


def tensors(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_two_learning_rates_in_one_call():
    """One step of plain SGD on the whole data: each group moves by its own rate times its gradient.

    Round 3 at lr-decay .5: a quarter of each first rate, .5 (the run's) and .08.
    """
    subject, module = trainer(lr_decay=0.5), make()
    gradient, before = subject.gradient(module), tensors(module)
    groups = [ParameterGroup(list(module[0].parameters())), ParameterGroup(list(module[2].parameters()), lr=0.08)]
    subject.fit(module, 3, parameters=groups)
    for name, tensor in module.state_dict().items():
        rate = 0.125 if name.startswith("0") else 0.02
        np.testing.assert_allclose(tensor.numpy(), before[name].numpy() - rate * gradient[name], rtol=1e-5, atol=1e-7)


def test_a_group_has_momentum_and_weight_decay_of_its_own():
    module = make()
    groups = [ParameterGroup([module[0].weight], momentum=0.5, weight_decay=0.1), ParameterGroup([module[0].bias])]
    optimizer = make_optimizer(RunConfig(optimizer="sgd", lr=0.1, momentum=0.9, weight_decay=0.01), groups, 1)
    assert [(g["momentum"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0.1), (0.9, 0.01)]
    optimizer = make_optimizer(RunConfig(optimizer="adam", lr=0.1), groups, 1)
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0]


def test_no_parameter_is_refused():
    for nobody in ([], [ParameterGroup([])]):
        with pytest.raises(ValueError, match="empty parameter list"):
            make_optimizer(RunConfig(optimizer="sgd", lr=0.1), nobody, 1)


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}], ids=["sgd", "adam"])
def test_a_state_carried_over_as_arrays_is_as_good_as_the_optimizer_itself(settings):
    """Rounds 1 and 2 with one torch optimizer, and with a new one that gets the arrays: the same bits."""
    subject, whole = trainer(**settings), make()
    optimizer = subject.optimizer(whole, 1)
    for round in (1, 2):
        subject.fit(whole, round, optimizer=optimizer)
    parted = make()
    first = subject.optimizer(parted, 1)
    subject.fit(parted, 1, optimizer=first)
    state = read_state(first, parted)
    again = make()
    again.load_state_dict(parted.state_dict())
    second = subject.optimizer(again, 2, state=state)
    subject.fit(again, 2, optimizer=second)
    assert same(tensors(whole), tensors(again))
    forgetful = make()
    subject.fit(forgetful, 1)
    subject.fit(forgetful, 2)
    assert not same(tensors(whole), tensors(forgetful)), "a new optimizer each round is something else"


def test_a_state_is_copies_by_name():
    subject, module = trainer(optimizer="adam", lr=0.01), make()
    optimizer = subject.optimizer(module, 1, list(module[2].parameters()))
    assert read_state(optimizer, module) == {}
    subject.fit(module, 1, optimizer=optimizer)
    state = read_state(optimizer, module)
    keys = ("exp_avg", "exp_avg_sq", "step")
    assert set(state) == {f"{key}/{name}" for key in keys for name in ("2.weight", "2.bias")}
    assert {array.dtype for array in state.values()} == {np.dtype(np.float32)}
    assert state["step/2.bias"] == 1
    copies = {name: array.copy() for name, array in state.items()}
    subject.fit(module, 2, optimizer=optimizer)
    assert all(np.array_equal(state[name], copies[name]) for name in state)


def test_plain_sgd_keeps_nothing():
    subject, module = trainer(), make()
    optimizer = subject.optimizer(module, 1)
    subject.fit(module, 1, optimizer=optimizer)
    assert read_state(optimizer, module) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.update({"exp_avg/other": np.zeros(2, np.float32)}), "got exp_avg/other"),
        (lambda s: s.update({"momentum_buffer/2.bias": np.zeros(2, np.float32)}), "got momentum_buffer/2.bias"),
        (lambda s: s.update({"exp_avg/0.bias": np.zeros(4, np.float32)}), "got exp_avg/0.bias"),
        (lambda s: s.pop("step/2.bias"), "step/2.bias: expected shape .., got none"),
        (
            lambda s: s.update({"exp_avg/2.bias": np.zeros(3, np.float32)}),
            r"exp_avg/2.bias: expected shape \(2,\), got",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, words):
    subject, module = trainer(optimizer="adam", lr=0.01), make()
    optimizer = subject.optimizer(module, 1, list(module[2].parameters()))
    subject.fit(module, 1, optimizer=optimizer)
    state = read_state(optimizer, module)
    change(state)
    with pytest.raises(ModelError, match=words):
        load_state(subject.optimizer(module, 2, list(module[2].parameters())), module, state)


def test_an_optimizer_and_parameters_are_not_given_together():
    subject, module = trainer(), make()
    with pytest.raises(ValueError, match="either parameters or an optimizer"):
        subject.fit(module, 1, optimizer=subject.optimizer(module, 1), parameters=list(module.parameters()))

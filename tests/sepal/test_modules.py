"""Freezing and thawing a module leaves its ties, its values and its state_dict as they were."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sepal.modules import bring_back, fill_frozen, floating, freeze_others, frozen_tensors, set_aside, undisturbed
from tests.strategies import own_models

TIED = ("fc1.weight", "fc2.weight")


def net(build=own_models.tied):
    torch.manual_seed(0)
    return build((1, 8, 8), 10)


@pytest.mark.parametrize("build", [own_models.tied, own_models.frozen_and_tied, own_models.frozen, own_models.pruned])
def test_bring_back_undoes_set_aside(build):
    module = net(build)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    names = [[name for name, _ in module.named_parameters(remove_duplicate=once)] for once in (True, False)]
    bring_back(set_aside(module))
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(names[0]) == sorted(name for name, _ in module.named_parameters())
    assert sorted(names[1]) == sorted(name for name, _ in module.named_parameters(remove_duplicate=False))


def test_a_frozen_tie_is_one_tensor_with_one_name():
    module = set_aside(net(own_models.frozen_and_tied))
    assert module.fc1.weight is module.fc2.weight
    assert frozen_tensors(module).keys() == {"fc1.weight", "fc1.bias"}
    assert floating(module).keys() & {*TIED, "fc1.bias", "fc2.bias"} == set()


@pytest.mark.parametrize("pattern", TIED)
def test_a_pattern_frees_a_tied_parameter_by_any_of_its_names(pattern):
    module = freeze_others(net(), pattern, {})
    assert floating(module).keys() == {"fc1.weight"}
    assert module.fc1.weight is module.fc2.weight


@pytest.mark.parametrize("name", TIED)
def test_a_frozen_tie_takes_a_value_under_any_of_its_names(name):
    module = net(own_models.frozen_and_tied)
    fill_frozen(module, {name: np.full((16, 16), 0.5, np.float32)})
    assert (module.fc1.weight == 0.5).all()
    assert module.fc1.weight is module.fc2.weight


def test_undisturbed_gives_buffers_back():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    mean = module[0].running_mean
    with undisturbed(module):
        module(torch.randn(4, 2))
        module[0].running_mean = torch.ones(2)
    assert module[0].running_mean is mean
    assert not mean.any()
    assert module[0].num_batches_tracked == 0

"""Our SGD and Adam against torch.optim."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sepal.training.sgd_adam import SGD, Adam


@pytest.mark.parametrize(
    ("sepal_kind", "torch_kind", "settings"),
    [
        (SGD, torch.optim.SGD, {"momentum": 0.0, "weight_decay": 0.0}),
        (SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
        (Adam, torch.optim.Adam, {"weight_decay": 0.0}),
        (Adam, torch.optim.Adam, {"weight_decay": 0.1}),
    ],
)
def test_the_bits_are_those_of_torch_optim(sepal_kind, torch_kind, settings):
    values = torch.randn(37, generator=torch.Generator().manual_seed(3))
    weights = []
    for kind in (sepal_kind, torch_kind):
        used, unused = nn.Parameter(values.clone()), nn.Parameter(torch.ones(2))
        optimizer = kind([{"params": [used, unused], "lr": 0.03, **settings}])
        for step in range(20):
            optimizer.zero_grad()
            ((used * values.flip(0) * (step + 1)).sin().sum() + used.square().sum()).backward()
            optimizer.step()
        assert torch.equal(unused, torch.ones(2)), "without a gradient there is no update"
        weights.append(used.detach())
    assert torch.equal(*weights)

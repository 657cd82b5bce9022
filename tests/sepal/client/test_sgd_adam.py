"""Our SGD and Adam against torch.optim, and what a client process imports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from sepal.client.sgd_adam import SGD, Adam

WITHOUT = """
import sys
from sepal.strategies.assembly import assemble
from tests.sepal.client.test_sgd_adam import one_fit
one_fit()
print(",".join(name for name in ("torch._dynamo", "sympy", "sklearn", "torchvision") if name in sys.modules))
"""


def one_fit() -> None:
    from sepal.client.training import Trainer
    from sepal.config import RunConfig
    from sepal.protocol.method import ClientInfo

    x, y = torch.linspace(-1, 1, 21).reshape(7, 3), torch.tensor([0, 1, 0, 1, 1, 0, 1])
    config = RunConfig(batch_size=4, local_epochs=1, optimizer="sgd", lr=0.5, momentum=0.5)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    Trainer(ClientInfo("client-1", 7), config, x, y, x[:0], y[:0], lambda: module).fit(module, 1)


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (SGD, torch.optim.SGD, {"momentum": 0.0, "weight_decay": 0.0}),
        (SGD, torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
        (Adam, torch.optim.Adam, {"weight_decay": 0.0}),
        (Adam, torch.optim.Adam, {"weight_decay": 0.1}),
    ],
)
def test_the_bits_are_those_of_torch_optim(ours, theirs, settings):
    values = torch.randn(37, generator=torch.Generator().manual_seed(3))
    found = []
    for kind in (ours, theirs):
        used, unused = nn.Parameter(values.clone()), nn.Parameter(torch.ones(2))
        optimizer = kind([{"params": [used, unused], "lr": 0.03, **settings}])
        for step in range(20):
            optimizer.zero_grad()
            ((used * values.flip(0) * (step + 1)).sin().sum() + used.square().sum()).backward()
            optimizer.step()
        assert torch.equal(unused, torch.ones(2)), "without a gradient there is no update"
        found.append(used.detach())
    assert torch.equal(*found)


EACH = """
import sys
from sepal.engines.in_process import run_in_process
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
flat = {"dataset": "digits", "clients": 2, "rounds": 1, "evaluate-every": 0, "partition.subsample": 40}
for name in registry.names():
    run_in_process(assemble({**flat, "method": name, "name": name, "local-epochs": 1}))
    assert "torch._dynamo" not in sys.modules, name
"""


def test_no_method_imports_the_compiler():
    """Server and clients of every method in one process: a message would pay .9 s for it."""
    subprocess.run([sys.executable, "-c", EACH], check=True)


def test_a_process_that_trains_once_imports_no_compiler():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""

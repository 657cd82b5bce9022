"""What processes import: a client no server code, nobody the compiler. Deployed clients start one for every message."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

from sepal.protocol.types import ClientInfo
from sepal.strategies import registry
from sepal.strategies.assembly import assemble

pytestmark = pytest.mark.e2e  # a process that imports everything

KEYS = {"dataset": "digits", "clients": 2, "local-epochs": 1, "partition.subsample": 40}
# One process, because a start takes seconds: it trains once, is then a client of every method, then a server as well.
PROCESS = """
import pickle, sys
from sepal.strategies.assembly import assemble
from tests.client_app.test_client_imports import one_fit

one_fit()
print(*sorted(sys.modules))

from sepal.client_app import app
from sepal.client_app.build import Node, Shared, build_host

class Store:
    secret = ""

for keys, plan, download in pickle.load(sys.stdin.buffer):
    algorithm = build_host(Shared.of(keys, "cpu"), Node(0, 2), "run", Store()).algorithm
    algorithm.train(algorithm.init(), download, plan)
print(*sorted(sys.modules))

from sepal.engines.in_process import run_in_process
from sepal.strategies import registry

for name in registry.names():
    keys = {**KEYS, "rounds": 1, "evaluate-every": 0, "method": name, "name": name}
    run_in_process(assemble(keys))
    assert not sys.modules.keys() & {"torch._dynamo", "sqlalchemy"}, name  # the second is of Flower's database
"""


def one_fit() -> None:
    from sepal.config import RunConfig
    from sepal.training.trainer import Trainer

    x, y = torch.linspace(-1, 1, 21).reshape(7, 3), torch.tensor([0, 1, 0, 1, 1, 0, 1])
    config = RunConfig(batch_size=4, local_epochs=1, optimizer="sgd", lr=0.5, momentum=0.5)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    Trainer(ClientInfo("client-1", 7), config, x, y, x[:0], y[:0], lambda: module).fit(module, 1)


def first_rounds():
    """What the server of each method sends to a client in round 1."""
    for name in registry.METHODS:
        keys = {**KEYS, "method": name}
        assembled = assemble(keys)
        server, client = assembled.method.make_server(assembled.setup), ClientInfo("client-00000", 20)
        state, plan = server.init(), server.plan(1)
        if hasattr(server, "joined"):
            state = server.joined(state, [client])
        yield keys, plan, server.newcomer(state, client, plan)


@pytest.fixture(scope="module")
def process():
    """The process's end, and what it had imported after training once and as a client of every method."""
    code = PROCESS.replace("import pickle, sys", f"import pickle, sys\nKEYS = {KEYS}", 1)
    completed = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(list(first_rounds())), capture_output=True, check=False
    )
    return completed, [set(line.split()) for line in completed.stdout.decode().splitlines()]


def test_a_process_that_trains_once_imports_no_compiler(process):
    done, imported = process
    assert imported, done.stderr.decode()
    assert "sepal.training.trainer" in imported[0]
    assert not imported[0] & {"torch._dynamo", "sympy", "sklearn", "torchvision"}


def test_a_client_of_any_method_trains_without_server_code(process):
    done, imported = process
    assert len(imported) == 2, done.stderr.decode()
    sepal_modules = [name for name in imported[1] if name.partition(".")[0] == "sepal"]
    assert "sepal.strategies.fedpse.client" in sepal_modules
    server = [
        name
        for name in sepal_modules
        if name.split(".")[1:2] in (["server"], ["server_app"]) or name.endswith(".server")
    ]
    assert not server


def test_no_method_imports_the_compiler(process):
    """Server and clients of every method: a message would pay .9 s for it."""
    assert process[0].returncode == 0, process[0].stderr.decode()

"""The mistakes that somebody makes who writes a method for the first time: each is one line that says what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sepal.errors import ConfigError
from sepal.method.aggregation import aggregated
from sepal.protocol.types import Plan
from sepal.server.guard import Guard
from sepal.strategies.assembly import assemble
from sepal.strategies.baselines.fedavg import FedAvg, FedAvgClient, FedAvgServer, ServerState


class Mine(FedAvgServer):
    """What its aggregate returns is set by each test."""

    returned: object = None

    def aggregate(self, state, uploads, plan):
        return self.returned


class NamesServer(FedAvgServer):
    def shared(self):
        return [parameter.name for parameter in self.layout]


class NamesClient(FedAvgClient):
    shared = NamesServer.shared


@pytest.fixture(scope="module")
def assembly():
    return assemble({"method": "fedavg", "dataset": "digits", "clients": 2})


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (ServerState({}), "the state and a dict of figures, which may be empty, got ServerState"),
        (None, "the state and a dict of figures, which may be empty, got NoneType"),
        ((ServerState({}), None), "the state and a dict of figures, which may be empty, got (ServerState, NoneType)"),
        (({}, {}), "a ServerState as the state, as init does, got dict"),
    ],
)
def test_what_aggregate_returns_is_checked_where_it_returns(assembly, returned, words):
    server = Mine(assembly.setup)
    server.returned = returned
    with pytest.raises(ConfigError) as caught:
        aggregated(server, server.init(), [], Plan(1))
    assert str(caught.value) == f"method: expected Mine.aggregate to return {words}"


def test_a_tensor_of_torch_in_the_state_is_named(assembly):
    server = FedAvg.make_server(assembly.setup)
    before = server.init()
    name, array = next(iter(before.weights.items()))
    after = replace(before, weights={**before.weights, name: torch.from_numpy(np.array(array))})
    with pytest.raises(
        ConfigError, match=rf"FedAvgServer\.aggregate to return a state that .* ServerState/weights/{name}"
    ):
        Guard(server, assembly.setup, before).unusable(after)


SHARED = r"\.shared to return tensors of self\.layout, got conv1\.weight"


def test_a_server_that_shares_names_in_place_of_tensors_is_refused(assembly):
    method = replace(FedAvg, server=NamesServer)
    with pytest.raises(ConfigError, match=f"NamesServer{SHARED}"):
        method.make_server(assembly.setup)


def test_a_client_that_shares_names_in_place_of_tensors_is_refused(assembly):
    method = replace(FedAvg, client=NamesClient)
    with pytest.raises(ConfigError, match=f"NamesClient{SHARED}"):
        method.make_client(assembly.setup, None)

"""What the tests of Sub-FedAvg share: its keys on a few digits, both sides of it, rounds of one client."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch

from sepal import models
from sepal.client_app.build import Node, Shared, build_host
from sepal.method import Payload, Upload
from sepal.method.tensors import at_masks
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from sepal.strategies.subfedavg.client import SubFedAvgClient
from tests.scratch_store import ScratchStore

FLAT = {
    "method": "subfedavg",
    "dataset": "digits",
    "lr": 0.05,
    "clients": 4,
    "clients-per-round": 2,
    "partition.name": "dirichlet",
    "partition.alpha": 1.0,
    "partition.subsample": 240,
    "batch-size": 8,
    "evaluate-every": 0,
    "rounds": 4,
    "seed": 5,
    "subfedavg.accuracy": 0.0,
}
HYBRID = {"subfedavg.variant": "hy", "model": "digits-cnn-bn", "subfedavg.channel-distance": 0.0}


def parts(number=0, **keys):
    """A server algorithm and a client's host on a few digits."""
    assembly = assemble({**FLAT, **keys})
    host = build_host(Shared.around(assembly, "cpu"), Node(number, 4), "run", ScratchStore())
    return assembly.method.make_server(assembly.setup), host


def exchange(server, host, state, client, round, accepted=True):
    """One round with one client, over the wire; the states after it and the upload's bytes."""
    plan = server.plan(round)
    make = server.download if accepted else server.newcomer
    schema = host.algorithm.download_schema(client, plan)
    download = unseal(seal(make(state, host.info, plan)), schema)
    client, upload = host.algorithm.train(client, download, plan)
    content = seal(upload)
    payload = unseal(content, server.upload_schema(state, host.info, plan))
    state, metrics = server.aggregate(state, Received([Upload(host.info, payload)]), plan)
    return state, client, content, metrics


class Received(list):
    @property
    def clients(self):
        return [upload.client for upload in self]


def rounds(number, **keys):
    """The states after so many rounds of one client, and what is needed to go on."""
    server, host = parts(**keys)
    state, client = server.init(), host.algorithm.init()
    for round in range(1, number + 1):
        state, client, content, metrics = exchange(server, host, state, client, round, round > 1)
    return SimpleNamespace(server=server, host=host, state=state, client=client, content=content, metrics=metrics)


def of_model(name, shape, **keys):
    """A client algorithm of the hybrid variant with another model than digits allow, on one example of zeros."""

    def make():
        return models.build(name, shape, 10)

    algorithm, module = parts(**{**HYBRID, **keys})[1].algorithm, make()
    weights = models.read_weights(module)
    setup = replace(algorithm.setup, layout=models.layout(module), weights=weights, make=make, input_shape=shape)
    return SubFedAvgClient(setup, replace(algorithm.trainer, make=make, networks={}, x=torch.zeros(1, *shape)))


def downloaded(run, round):
    """What the client is sent in that round, over the wire, and the round's plan."""
    plan = run.server.plan(round)
    content = seal(run.server.download(run.state, run.host.info, plan))
    return unseal(content, run.host.algorithm.download_schema(run.client, plan)), plan


def sent(server, before, after, weights):
    """What a client uploads whose masks were ``before`` and are ``after``."""
    tensors = at_masks(weights, server.prunable.masks(after), server.coding, derived=True)
    return Payload(server.prunable.changes(before, after) | tensors)

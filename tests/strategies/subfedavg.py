"""What the tests of Sub-FedAvg share: its keys on a few digits, both sides of it, rounds of one client."""

from __future__ import annotations

from types import SimpleNamespace

from client_app.build import Node, Shared, build_host
from sepal.protocol.method import Upload
from sepal.protocol.payloads import seal, unseal
from strategies.assembly import assemble
from tests.stores import ScratchStore

FLAT = {
    "method": "subfedavg",
    "dataset": "digits",
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
    return assembly.method.make_server(assembly.task), host


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

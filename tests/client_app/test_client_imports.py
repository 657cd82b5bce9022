"""A client's process imports no server code: a deployed client starts a process for every message."""

from __future__ import annotations

import pickle
import subprocess
import sys

from sepal.protocol.method import ClientInfo
from sepal.strategies import registry
from sepal.strategies.assembly import assemble

KEYS = {"dataset": "digits", "clients": 2, "local-epochs": 1, "partition.subsample": 40}
CLIENT = """
import pickle, sys
from sepal.client_app import app
from sepal.client_app.build import Node, Shared, build_host

class Store:
    secret = ""

for keys, plan, download in pickle.load(sys.stdin.buffer):
    algorithm = build_host(Shared.of(keys, "cpu"), Node(0, 2), "run", Store()).algorithm
    algorithm.train(algorithm.init(), download, plan)
print(*sorted(sys.modules))
"""


def first_rounds():
    """What the server of each method sends to a client in round 1."""
    for name in registry.METHODS:
        keys = {**KEYS, "method": name}
        made = assemble(keys)
        server, client = made.method.make_server(made.task), ClientInfo("client-00000", 20)
        state, plan = server.init(), server.plan(1)
        if hasattr(server, "joined"):
            state = server.joined(state, [client])
        yield keys, plan, server.newcomer(state, client, plan)


def test_a_client_of_any_method_trains_without_server_code():
    done = subprocess.run(
        [sys.executable, "-c", CLIENT], input=pickle.dumps(list(first_rounds())), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    ours = [name for name in done.stdout.decode().split() if name.partition(".")[0] == "sepal"]
    assert "sepal.strategies.fedpse.client" in ours
    server = [name for name in ours if name.split(".")[1:2] in (["server"], ["server_app"]) or name.endswith(".server")]
    assert not server

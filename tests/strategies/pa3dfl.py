"""What the tests of Pa3dFL share: its keys on a few digits, and a federation whose messages go by hand."""

from dataclasses import replace

from sepal.client_app.build import Node, Shared, build_host
from sepal.method import Upload
from sepal.protocol.payloads import seal, unseal
from sepal.strategies.assembly import assemble
from tests.scratch_store import ScratchStore
from tests.strategies.baselines import Sent

FLAT = {
    "method": "pa3dfl",
    "dataset": "digits",
    "clients": 4,
    "partition.alpha": 1.0,
    "partition.subsample": 240,
    "rounds": 4,
    "evaluate-every": 2,
    "checkpoint-every": 2,
    "pa3dfl.embedding": 8,
    "pa3dfl.hidden": 6,
    "seed": 3,
}
CAPACITIES = [1.0, 0.25, 1 / 256, 0.5]  # widths 1, 1/2, 1/16 and 11/16 (.7071 on the grid of 1/16)


class Federation:
    """A server algorithm and hosts of clients, and messages between them by hand."""

    def __init__(self, capacities=CAPACITIES[:2], **keys):
        self.assembly = assemble({**FLAT, **keys})
        self.server = self.assembly.method.make_server(self.assembly.setup)
        shared = Shared.around(self.assembly, "cpu")
        nodes = [Node(number, 4, capacity=capacity) for number, capacity in enumerate(capacities)]
        self.hosts = [build_host(shared, node, "run", ScratchStore()) for node in nodes]
        self.states = [host.algorithm.init() for host in self.hosts]
        self.plan = self.server.plan(1)

    def first(self):
        """The server's state with all clients in it."""
        return self.server.joined(self.server.init(), [host.info for host in self.hosts])

    def download(self, state, number):
        """What client ``number`` gets, over the wire."""
        host, plan = self.hosts[number], self.plan
        schema = host.algorithm.download_schema(self.states[number], plan)
        return unseal(seal(self.server.newcomer(state, host.info, plan)), schema)

    def upload(self, state, number, payload):
        info = replace(self.hosts[number].info, examples=10 * (number + 1))
        return Upload(info, unseal(seal(payload), self.server.upload_schema(state, info, self.plan)))

    def trained(self, state, number):
        host = self.hosts[number]
        after, payload = host.algorithm.train(self.states[number], self.download(state, number), self.plan)
        self.states[number] = after
        return self.upload(state, number, payload)

    def round(self, state):
        """The uploads of all clients, and what the server makes of them."""
        uploads = Sent(self.trained(state, number) for number in range(len(self.hosts)))
        return uploads, *self.server.aggregate(state, uploads, self.plan)


def arrays(payload):
    return {name: tensor.dense() for name, tensor in payload.tensors.items()}

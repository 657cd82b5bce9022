"""What the tests of DM-PFL share: its keys on a few digits, both sides of it, a first round."""

from __future__ import annotations

from sepal.client_app.build import Node, Shared, build_host
from sepal.strategies.assembly import assemble
from tests.scratch_store import ScratchStore

FLAT = {
    "method": "dmpfl",
    "dataset": "digits",
    "clients": 4,
    "partition.name": "dirichlet",
    "partition.alpha": 1.0,
    "partition.subsample": 160,
    "batch-size": 8,
    "evaluate-every": 0,
    "rounds": 8,
    "dmpfl.readjust-every": 2,
    "seed": 5,
}


def parts(number=0, **keys):
    """A server algorithm, a client's host, and the run's assembly, on a few digits."""
    assembly = assemble({**FLAT, **keys})
    host = build_host(Shared.around(assembly, "cpu"), Node(number, 4), "run", ScratchStore())
    return assembly.method.make_server(assembly.setup), host, assembly


def first_round(server, host, plan=None):
    plan = plan or server.plan(1)
    download = server.newcomer(server.init(), host.info, plan)
    return download, *host.algorithm.train(host.algorithm.init(), download, plan)


class Watch:
    """Keeps what a run tells its observers; calls ``check`` after each round."""

    def __init__(self, check=lambda progress: None):
        self.lines, self.records, self.check = [], [], check

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.lines.append(line)
        self.records.append(record)
        self.check(progress)

    def closed(self, progress, line):
        pass

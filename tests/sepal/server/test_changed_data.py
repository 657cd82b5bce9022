"""A client whose data change in mid-run loses its rounds, and nobody else does (``data-changes = "refuse"``)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sepal.errors import RoundError
from sepal.server.run_store import DiskRunStore
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Killed
from tests.sepal.server.test_drawing import Deployed

METHOD = FAKES["queue"][0]
GROWS = "client-1"
BEFORE, AFTER = ("a" * 64, 10), ("b" * 64, 20)
REMEDY = "bring them back, or begin a new run"


class Growing(Federation):
    """A deployed federation of whose clients the data may change between two rounds."""

    def __init__(self, directory=None, **settings):
        super().__init__(METHOD, rounds=6, clients=3, settings={"evaluate_every": 0, **settings}, directory=directory)
        self.data, self.changes, self.records = {}, {}, []

    def host(self, name):
        host = super().host(name)
        data, examples = self.data.get(name, BEFORE)
        return replace(host, info=replace(host.info, data=data, examples=examples))

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.records.append(record)
        for name in self.nodes.values():
            self.data[name] = self.changes.get((record.round, name), self.data.get(name, BEFORE))

    def closed(self, progress, report):
        pass

    def run(self, store=None):
        strategy = self.server(store)
        strategy._observers = [self]
        strategy.start(Deployed(self))
        return strategy

    def statuses(self, name):
        return [[e.status for e in r.ledger if e.client == name and e.direction == "up"] for r in self.records]


@pytest.mark.parametrize("on_missing", ["retry", "skip"])
def test_data_that_change_cost_only_that_clients_rounds(on_missing, caplog):
    federation = Growing(on_missing=on_missing)
    federation.changes = {(2, GROWS): AFTER, (4, GROWS): BEFORE}
    assert federation.run().progress.closed
    assert federation.statuses(GROWS) == [["accepted"]] * 2 + [["refused"]] * 2 + [["accepted"]] * 3
    assert federation.statuses("client-0") == [["accepted"]] * 7, "nobody else loses a round"
    reason = next(e.reason for e in federation.records[2].ledger if e.status == "refused")
    noticed = f"{GROWS}: data: expected the data with which the run was started, got"
    assert reason.startswith(noticed), "without a digest: the client itself has noticed, and has not trained"
    lines = [line for line in caplog.messages if line.startswith("round 3 goes on without a client")]
    assert len(lines) == 1
    assert GROWS in lines[0]
    assert REMEDY in lines[0]


def test_a_restarted_server_goes_on_without_a_client_whose_data_have_changed(tmp_path, caplog):
    """It was refused for good: the run did not go on."""
    whole = Growing()
    expected = whole.run()
    federation = Growing(tmp_path / "clients")
    federation.killed_at = 3
    store = lambda: DiskRunStore(tmp_path / "server", METHOD.server_state)  # noqa: E731
    with pytest.raises(Killed):
        federation.run(store())
    federation.killed_at, federation.data[GROWS] = 0, AFTER
    federation.changes = {(4, GROWS): BEFORE}
    strategy = federation.run(store())
    assert strategy.progress.closed
    assert federation.statuses(GROWS)[2:] == [["refused"]] * 2 + [["accepted"]] * 3
    assert any(line.startswith("refused in each round until then") and REMEDY in line for line in caplog.messages)
    assert strategy.progress.roster == expected.progress.roster, "the run keeps the numbers of its start"


def test_where_all_data_have_changed_the_run_ends_and_says_what_to_do(tmp_path):
    federation = Growing(tmp_path / "clients")
    federation.changes = {(2, name): AFTER for name in federation.nodes.values()}
    store = lambda: DiskRunStore(tmp_path / "server", METHOD.server_state)  # noqa: E731
    for _ in range(2):  # a restart does not help
        with pytest.raises(RoundError, match=f"round 3: .*at least 1 reply.*{REMEDY}"):
            federation.run(store())
    federation.data.clear()
    assert federation.run(store()).progress.closed


def test_a_client_that_claims_any_number_of_examples_is_refused():
    """With another digest, and with that of the start; it does not look at its own data."""
    for claim in ((BEFORE[0], 10**9), ("c" * 64, 10**9)):
        federation = Growing()
        federation.changes = {(2, GROWS): claim}
        honest = federation.host

        def lying(name, federation=federation, honest=honest):
            host = honest(name)
            load = type(host.store).load
            host.store.load = lambda version: forget(load(host.store, version))
            return host

        federation.host = lying
        assert federation.run().progress.closed
        assert federation.statuses(GROWS)[2:] == [["refused"]] * 5
        entry = next(e for e in federation.records[3].ledger if e.status == "refused")
        assert entry.reason.startswith((f"{GROWS}: data: expected", "client.examples: expected 10, got 1000000000"))


def forget(stored):
    """Return a version as a client has it that forgets with which data it began."""
    return stored and replace(stored, reply=replace(stored.reply, client=replace(stored.reply.client, data="")))

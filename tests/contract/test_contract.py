"""The contract test: five kinds of method, four things that go wrong. What is built on the contract rests on this."""

from __future__ import annotations

from functools import cache

import pytest

from sepal.server.run_store import DiskRunStore
from sepal.storage.serialize import digest
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Killed, Recording

KINDS = pytest.mark.parametrize("kind", FAKES)
SAMPLING = pytest.mark.parametrize("per_round", [0, 2], ids=["all", "two a round"])


def outcome(strategy) -> tuple[str, dict[str, str]]:
    return digest(strategy.progress.server), dict(strategy.report.digests)


def agrees(kind: str, federation: Federation, strategy) -> bool:
    return FAKES[kind][1](strategy.progress.server, federation.states(strategy), closed=True)


@cache
def uninterrupted(kind: str, **settings) -> tuple[str, dict[str, str]]:
    """The outcome of a run in which nothing goes wrong."""
    return outcome(Federation(FAKES[kind][0], settings=settings).run())


@KINDS
@SAMPLING
@pytest.mark.parametrize("lost_round", [1, 3, 5])
def test_a_lost_upload_asked_again_changes_nothing(kind, per_round, lost_round):
    whole = uninterrupted(kind, clients_per_round=per_round)
    federation = Federation(FAKES[kind][0], settings={"clients_per_round": per_round})
    federation.lost = {(lost_round, f"client-{n}") for n in range(4)}
    strategy = federation.run()
    assert outcome(strategy) == whole
    assert agrees(kind, federation, strategy)


@KINDS
@pytest.mark.parametrize("lost_round", [1, 3, 5])
def test_a_lost_upload_that_is_skipped_leaves_both_sides_agreed(kind, lost_round):
    """The client has moved on, the server has not: the client must start from where the server knows it to be."""
    federation = Federation(FAKES[kind][0], settings={"on_missing": "skip"})
    federation.lost = {(lost_round, "client-1")}
    strategy = federation.run()
    assert (lost_round, "client-1") in federation.trained, "the client did the work; only its reply was lost"
    assert agrees(kind, federation, strategy)


@KINDS
@SAMPLING
@pytest.mark.parametrize("killed_at", [2, 4, 6])
def test_a_server_one_checkpoint_older_reaches_the_same_end(kind, per_round, killed_at):
    whole = uninterrupted(kind, clients_per_round=per_round)
    federation = Federation(FAKES[kind][0], settings={"clients_per_round": per_round}, killed_at=killed_at)
    store = Recording()
    try:
        federation.run(store)
    except Killed:
        pass
    else:  # the fake sends nothing in that round: then there is nothing to be killed in
        assert not [r for r, _ in federation.trained if r == killed_at]
    federation.killed_at = 0
    store.checkpoints = store.checkpoints[:-1] or store.checkpoints
    strategy = federation.run(store)
    assert outcome(strategy) == whole
    assert agrees(kind, federation, strategy)


@KINDS
def test_a_server_killed_between_checkpoints_replays_what_it_recorded(kind, tmp_path):
    """Checkpoints every 4 rounds, killed in round 7: rounds 5 and 6 come from the store."""
    whole = uninterrupted(kind, checkpoint_every=4)
    federation = Federation(
        FAKES[kind][0], settings={"checkpoint_every": 4}, directory=tmp_path / "clients", killed_at=7
    )
    state = FAKES[kind][0].server_state
    with pytest.raises(Killed):
        federation.run(DiskRunStore(tmp_path / "server", state))
    federation.killed_at = 0
    before = len(federation.trained)
    strategy = federation.run(DiskRunStore(tmp_path / "server", state))
    assert min(r for r, _ in federation.trained[before:]) == 7, "recorded rounds must not be trained again"
    assert outcome(strategy) == whole
    assert agrees(kind, federation, strategy)


@KINDS
def test_a_client_that_joins_late_is_brought_up_to_date(kind):
    federation = Federation(FAKES[kind][0], settings={"roster": "open"})
    strategy = federation.server()
    joined = []

    class JoinAt:
        def opened(self, progress, total):
            pass

        def round(self, progress, record, line):
            if record.round == 3:
                federation.join("late", 0.7)
            joined.extend(client.name for client in record.joined)

        def closed(self, progress, line):
            pass

    strategy._observers = [JoinAt()]
    federation.run(strategy=strategy)
    assert joined == ["late"]
    assert {r for r, n in federation.trained if n == "late"} <= set(range(4, 9))
    assert "late" in strategy.progress.roster
    assert "late" in strategy.report.digests, "the closing round reaches everybody"
    assert agrees(kind, federation, strategy)


@KINDS
@SAMPLING
def test_the_closing_round_delivers_to_everybody(kind, per_round):
    federation = Federation(FAKES[kind][0], settings={"clients_per_round": per_round})
    strategy = federation.run()
    report = strategy.report
    assert strategy.progress.round == 9
    assert set(report.digests) == {f"client-{n}" for n in range(4)}
    states = federation.states(strategy)
    assert {name: digest(state) for name, state in states.items()} == dict(report.digests)
    assert report.totals.closing.down > 0
    assert report.totals.closing.up == 0
    assert agrees(kind, federation, strategy)


@KINDS
def test_the_order_of_clients_changes_nothing(kind):
    whole = uninterrupted(kind)
    federation = Federation(FAKES[kind][0])
    federation.nodes = dict(reversed(federation.nodes.items()))
    assert outcome(federation.run()) == whole


@KINDS
@pytest.mark.parametrize("damaged_round", [2, 5])
def test_a_damaged_client_state_is_made_again_from_the_one_before(kind, damaged_round, tmp_path, caplog):
    """The newest state file of every client is cut short between two rounds; the run ends with the same bits."""
    whole = uninterrupted(kind, checkpoint_every=4)
    federation = Federation(FAKES[kind][0], settings={"checkpoint_every": 4}, directory=tmp_path)
    strategy = federation.server()

    class Damage:
        def opened(self, progress, total):
            pass

        def round(self, progress, record, line):
            if record.round == damaged_round:
                for name, version in progress.versions.items():
                    path = tmp_path / name / f"{version}.safetensors"
                    path.write_bytes(path.read_bytes()[:-5])

        def closed(self, progress, line):
            pass

    strategy._observers = [Damage()]
    federation.run(strategy=strategy)
    assert outcome(strategy) == whole
    assert "is damaged; made again from" in caplog.text
    assert agrees(kind, federation, strategy)

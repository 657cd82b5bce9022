"""Novel clients never train, are left out of full evaluations, and join in the closing round as newcomers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sepal.errors import ConfigError
from sepal.protocol.messages import read_order
from sepal.protocol.types import ClientInfo, Kind
from sepal.server.run_store import DiskRunStore
from sepal.server.sampling import draw_novel
from sepal.storage.serialize import digest
from tests.contract.fakes import FAKES, LagServer
from tests.contract.harness import Federation, Killed


def roster(count):
    return {f"client-{number:02d}": ClientInfo(f"client-{number:02d}", 10) for number in range(count)}


@pytest.mark.parametrize(
    ("clients", "share", "count"), [(10, 0.2, 2), (10, 0.25, 3), (10, 0.01, 1), (2, 0.9, 1), (10, 0.0, 0)]
)
def test_the_share_is_rounded_half_up_at_least_one_and_never_all(clients, share, count):
    assert len(draw_novel(roster(clients), share, 3)) == count


def test_the_draw_depends_on_seed_and_names_and_not_on_their_order():
    drawn = draw_novel(roster(20), 0.3, 3)
    assert drawn == sorted(drawn)
    assert draw_novel(dict(reversed(roster(20).items())), 0.3, 3) == drawn
    assert draw_novel(roster(20), 0.3, 4) != drawn


def test_a_single_client_cannot_be_novel():
    with pytest.raises(ConfigError, match="novel-clients: expected 0 for a single client"):
        draw_novel(roster(1), 0.5, 3)


class Seen(Federation):
    """Keeps every order, and what the server algorithm is told of its roster."""

    def __post_init__(self):
        super().__post_init__()
        self.orders, self.rosters = [], []
        rosters = self.rosters

        class Told(LagServer):
            def joined(self, state, clients):
                rosters.append([client.name for client in clients])
                return state

        self.method = replace(self.method, server=Told)

    def _handle(self, message):
        order = read_order(message.content)[0]
        if order.kind is not Kind.QUERY:
            self.orders.append((order.plan.round, self.nodes[message.metadata.dst_node_id], order))
        return super()._handle(message)


def federation(directory=None, **settings):
    settings = {"novel_clients": 0.5, "evaluate_every": 2, "checkpoint_every": 2, **settings}
    return Seen(FAKES["lag"][0], rounds=4, settings=settings, directory=directory)


@pytest.mark.parametrize("per_round", [0, 1])
def test_novel_clients_are_asked_in_the_closing_round_only(per_round):
    subject = federation(clients_per_round=per_round)
    strategy = subject.run()
    novel = set(strategy.progress.novel)
    assert len(novel) == 2
    before = [(name, order) for round, name, order in subject.orders if round <= 4]
    assert novel.isdisjoint(name for name, _ in before)
    assert not any(order.plan.novel for _, order in before)
    last = {name: order for round, name, order in subject.orders if round == 5}
    assert {name for name, order in last.items() if order.plan.novel} == novel
    assert all(last[name].base == "" and last[name].keep for name in novel)
    assert len(last) == len(strategy.report.digests) == 4


def test_the_server_algorithm_is_told_of_them_before_the_closing_round():
    subject = federation()
    strategy = subject.run()
    novel = list(strategy.progress.novel)
    assert subject.rosters == [sorted({f"client-{n}" for n in range(4)} - set(novel)), novel]


@pytest.mark.parametrize("killed_at", [2, 4, 5])
def test_a_resumed_run_has_the_same_novel_clients(killed_at, tmp_path):
    whole = federation().run()
    subject = federation(tmp_path / "clients")
    subject.killed_at = killed_at
    state = subject.method.server_state
    with pytest.raises(Killed):
        subject.run(DiskRunStore(tmp_path / "server", state))
    subject.killed_at = 0
    again = subject.run(DiskRunStore(tmp_path / "server", state))
    assert again.progress.novel == whole.progress.novel
    assert digest(again.progress.server) == digest(whole.progress.server)
    assert again.report.digests == whole.report.digests


def test_more_replies_than_participants_are_refused_at_the_start():
    with pytest.raises(ConfigError, match="min-replies: expected at most the 2 clients that train, got 3"):
        federation(min_replies=3).run()

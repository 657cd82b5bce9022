"""A client whose release is another than the server's: it does what the server does, or is refused by name."""

from __future__ import annotations

import logging

import pytest
from flwr.app import Context, Message, RecordDict

from sepal.client_app import app
from sepal.config import RunConfig
from sepal.config.agreement import disagreement
from sepal.errors import ConfigError, ProtocolError
from sepal.flower.replies import enter_run
from sepal.protocol import peer
from sepal.protocol.messages import Content, Order, read_reply, write_order
from sepal.protocol.types import Kind, Plan
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Nodes
from tests.sepal.example_messages import changed

RUN = {"dataset": "digits", "clients": 2, "method": "fedavg"}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Ask a deployed client of protocol 3 who it is, as a server of another protocol; returns its records."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(peer, "PROTOCOL", 3)
    app._shared.cache_clear()

    def ask(run_config, protocol):
        enter_run()
        records = changed(write_order(Order("0" * 32, Kind.QUERY, Plan(0)), Content()), protocol=protocol)
        message = Message(records, dst_node_id=1, message_type="query")
        return app.handle(message, Context(1, 1, {"partition-id": 0, "num-partitions": 2}, RecordDict(), run_config))

    yield lambda run_config, protocol: ask(run_config, protocol).content
    app._shared.cache_clear()


@pytest.mark.parametrize("asked", [False, True], ids=["by its reply", "by its answer to a query"])
def test_a_client_that_comes_back_upgraded_as_the_same_node_is_named_once(asked, monkeypatch, caplog):
    """As with a node key. A node without one comes back as another node, which is asked who it is."""
    caplog.set_level(logging.INFO, "sepal")

    class Upgrading(Nodes):
        arrange = wait = None
        away = 4 * asked

        def get_node_ids(self):
            if strategy.progress.round == 1 and self.away:
                self.away -= 1
                return [node for node in super().get_node_ids() if self._federation.nodes[node] != "client-1"]
            return super().get_node_ids()

        def answer(self, message):
            upgraded = (
                self._federation.nodes[message.metadata.dst_node_id] == "client-1" and strategy.progress.round > 0
            )
            with monkeypatch.context() as patch:
                patch.setattr(peer, "PROTOCOL", peer.PROTOCOL + upgraded)
                return super().answer(message)

    federation = Federation(FAKES["queue"][0], rounds=4)
    strategy = federation.server()
    strategy.start(Upgrading(federation))
    (line,) = [line for line in caplog.messages if "has protocol" in line]
    upgraded = peer.Peer(peer.PROTOCOL + 1, peer.ourselves().sepal if asked else "")  # replies do not name a release
    assert line == f"client-1 has {upgraded}, this server {peer.ourselves()}"


def rows(records):
    return dict(line.split("\t")[:2] for line in read_reply(records)[0].facts["config"].split("\n"))


def test_keys_that_a_newer_server_alone_has_are_left_out_and_the_server_decides(ask):
    newer = {**RUN, "brand-new": 3, "fedavg.brand-new": 3, "newest.rate": 0.1}
    reported = rows(ask(newer, 4))
    assert not [key for key in reported if "new" in key]
    for protocol in (2, 3):
        with pytest.raises(ConfigError, match="key: expected values that it can use"):
            read_reply(ask(newer, protocol))


def test_keys_that_an_older_server_lacks_have_the_value_of_before(ask):
    assert rows(ask(RUN, 2))["clip-gradient"] == "0.0"
    assert rows(ask({**RUN, "clip-gradient": 2.5}, 2))["clip-gradient"] == "2.5"
    assert rows(ask(RUN, 3))["clip-gradient"] != "0.0"


def test_a_server_two_protocols_away_is_refused_before_its_keys_are_read(ask, caplog):
    records = ask({"nobody-knows": 1}, 5)
    with pytest.raises(ProtocolError, match=r"protocol: expected 2 to 4, because this client .*: upgrade the client$"):
        read_reply(records)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "sepal"]
    assert line.endswith("got protocol 5 (Sepal 0.1.0) of the server: upgrade the client")


@pytest.mark.parametrize(("key", "other"), [("weight-decay", 0.5), ("lr-decay", 0.9)])
def test_a_client_with_another_default_trains_with_the_servers_value_or_is_refused_by_name(
    ask, monkeypatch, key, other
):
    """`sepal serve` sends every key; another app may send some of them, and then both sides' values are compared."""
    server = assemble(RUN)
    every = {**registry.defaults(), **RUN}
    name = key.replace("-", "_")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(RunConfig.model_fields[name], "default", other)
            RunConfig.model_rebuild(force=True)
            assert RunConfig().value(key) == other
            assert rows(ask(every, 3))[key] != str(other)
            assert disagreement("a", server.agreed, read_reply(ask(every, 3))[0].facts["config"]) is None
            refused = disagreement("a", server.agreed, read_reply(ask(RUN, 3))[0].facts["config"])
    finally:
        RunConfig.model_rebuild(force=True)
    assert str(refused).startswith(f"a: {key}: expected ")
    assert f"got {other} (client: default)" in str(refused)

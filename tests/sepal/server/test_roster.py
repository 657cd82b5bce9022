"""The roster: names that outlive node ids, who may take part, and who is drawn."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sepal.errors import ConfigError, DataError, ProtocolError, RosterError
from sepal.flower.simulation import SIMULATION
from sepal.protocol.messages import Reply
from sepal.protocol.types import ClientInfo, Kind
from sepal.server import roster
from sepal.server.roster import Connections, wait
from sepal.server.rules import require_capacity
from sepal.server.sampling import sample

W0 = "a" * 64


def reply(name, store=None, weights=W0, **info) -> Reply:
    facts = {"store": f"store-of-{name}" if store is None else store, "weights": weights}
    return Reply("run", 0, Kind.QUERY, ClientInfo(name, 10, **info), facts=facts)


class Network:
    """Nodes by id: a reply, an error, or None for silence; remembers who was asked how often."""

    def __init__(self, **nodes):
        self.nodes = {int(node[1:]): answer for node, answer in nodes.items()}
        self.questions = []

    def online(self):
        return list(self.nodes)

    def ask(self, nodes, timeout=60.0):
        self.questions.append(list(nodes))
        return {node: self.nodes[node] for node in nodes if self.nodes.get(node) is not None}


def test_each_node_is_asked_once_and_mapped_to_its_name():
    network, connections = Network(n1=reply("b"), n2=reply("a", capacity=0.5)), Connections(W0)
    assert connections.refresh(network.online(), network.ask) == []
    assert connections.nodes == {"a": 2, "b": 1}
    assert connections.infos["a"].capacity == 0.5
    connections.refresh(network.online(), network.ask)
    assert network.questions == [[1, 2]]


@pytest.mark.parametrize(
    ("width", "uses", "least"),
    [(0.5, False, 0.25), (0.4, False, 0.16), (1.0, True, 0.0), (0.51, False, None), (1.0, False, None)],
)
def test_the_model_of_all_clients_must_fit_the_smallest(width, uses, least):
    """Pa3dFL, section 5: p² ≤ r. A width of .5 costs a quarter of the full model, which is what client b can hold."""
    roster = {"a": ClientInfo("a", 10), "b": ClientInfo("b", 10, 0.25), "c": ClientInfo("c", 10, 0.25)}
    method = SimpleNamespace(name="fedsame", uses_capacity=uses)
    if least is None:
        words = r"width: expected at most 0\.5: fedsame has one model for all clients, and b a capacity of 0\.25, got"
        with pytest.raises(ConfigError, match=words):
            require_capacity(method, width, roster)
    else:
        assert require_capacity(method, width, roster) == pytest.approx(least)
    assert require_capacity(method, 0.1, {"a": ClientInfo("a", 10, 0.01)}) <= 0.01


def test_a_client_that_joins_late_must_hold_the_model():
    network, connections = (
        Network(n1=reply("a", capacity=0.2), n2=reply("b", capacity=0.3)),
        Connections(W0, least=0.25),
    )
    refusals = connections.refresh(network.online(), network.ask)
    assert [str(refusal) for refusal in refusals] == [
        "a: capacity: expected at least 0.25, to hold the model that all clients have, got 0.2"
    ]
    assert set(connections.infos) == {"b"}


def test_a_node_that_is_gone_answers_for_nobody():
    network, connections = Network(n1=reply("a"), n2=reply("b")), Connections(W0)
    connections.refresh(network.online(), network.ask)
    del network.nodes[1]
    connections.refresh(network.online(), network.ask)
    assert connections.nodes == {"b": 2}
    assert set(connections.infos) == {"a", "b"}, "it stays in the roster"


def test_a_restarted_client_takes_its_name_to_its_new_node():
    """The same store: the client that was there before. The old node is still listed, and dead."""
    network, connections = Network(n1=reply("a"), n2=reply("b")), Connections(W0)
    connections.refresh(network.online(), network.ask)
    network.nodes.update({1: None, 9: reply("a")})
    assert connections.refresh(network.online(), network.ask) == []
    assert connections.nodes == {"a": 9, "b": 2}
    before = len(network.questions)
    for _ in range(20):
        connections.refresh(network.online(), network.ask)
    assert len(network.questions) == before, "a dead node must not hold up every round"
    assert connections.nodes["a"] == 9


def test_two_nodes_on_one_state_directory_are_refused():
    """The same store, and both alive: two processes would write one client's state."""
    network, connections = Network(n1=reply("a")), Connections(W0)
    connections.refresh(network.online(), network.ask)
    network.nodes[9] = reply("a")
    refusals = connections.refresh(network.online(), network.ask)
    assert [str(reason) for reason in refusals] == [
        "client a: expected one client of that name, got a second one (node 9) on the same state directory"
    ]
    assert connections.nodes == {"a": 1}
    network, connections = Network(n1=reply("a"), n2=reply("a")), Connections(W0)
    assert len(connections.refresh(network.online(), network.ask)) == 1, "also when both come at once"


def test_a_second_client_of_a_name_is_refused_also_when_the_first_is_away():
    network, connections = Network(n1=reply("a"), n2=reply("a", store="another")), Connections(W0)
    refusals = connections.refresh(network.online(), network.ask)
    assert [str(reason) for reason in refusals] == [
        "client a: expected one client of that name, got a second one (node 2)"
    ]
    assert isinstance(refusals[0], RosterError)
    del network.nodes[1]
    for _ in range(10):
        connections.refresh(network.online(), network.ask)
    assert connections.nodes == {}


def test_a_store_pinned_by_an_earlier_process_counts():
    connections = Connections(W0, stores={"a": "store-of-a"})
    network = Network(n1=reply("a", store="another"))
    assert len(connections.refresh(network.online(), network.ask)) == 1
    assert connections.nodes == {}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (
            reply("a", weights="b" * 64),
            RosterError,
            "a: initial weights: expected digest aaaaaaaaaaaa (frozen tensors included), got bbbbbbbbbbbb",
        ),
        (reply("a", store=""), ProtocolError, "a: store: expected the identity of its state store, got none"),
        (DataError("a: data", "x", "y"), DataError, "a: data: expected x, got y"),
    ],
)
def test_refuses(answer, kind, words):
    network, connections = Network(n1=answer, n2=reply("b")), Connections(W0)
    refusals = connections.refresh(network.online(), network.ask)
    assert [(type(reason), str(reason)) for reason in refusals] == [(kind, words)]
    assert connections.nodes == {"b": 2}
    assert "a" not in connections.stores, "who is refused pins nothing"
    assert "a" not in connections.infos


def test_with_noise_a_client_that_has_answered_later_rounds_than_the_server_knows_of_is_refused():
    """The server goes on from an older copy: ε would leave out what it was sent after that."""
    listed = "\n".join(f"{round}-{'c' * 24}" for round in (6, 5))
    ahead = reply("a")
    ahead = replace(ahead, facts={**ahead.facts, "versions": listed})
    for most, refused in ((None, []), (6, []), (5, ["a: states: expected states of at most round 5: this server"])):
        network, connections = Network(n1=ahead), Connections(W0)
        connections.newest_round = lambda most=most: most
        refusals = connections.refresh(network.online(), network.ask)
        assert [str(reason)[: len(words)] for reason, words in zip(refusals, refused, strict=True)] == refused
        assert connections.nodes == ({} if refused else {"a": 1})


def test_who_is_silent_or_refused_is_asked_ever_more_rarely():
    network, connections = Network(n1=None, n2=DataError("b: data", "x", "y"), n3=reply("c")), Connections(W0)
    turns = [turn for turn in range(1, 200) if connections.refresh(network.online(), network.ask)]
    assert turns == [1, 2, 4, 8, 16, 32, 64, 128, 192]
    assert sum(1 in nodes for nodes in network.questions) == len(turns)
    network.nodes[1] = reply("a")
    for _ in range(64):
        connections.refresh(network.online(), network.ask)
    assert connections.nodes["a"] == 1, "who answers at last is welcome"


def waited(network, needed, **settings):
    connections = Connections(W0)
    wait(connections, network.online, network.ask, needed, **{"timeout": 0.3, "settle": 0.0, **settings})
    return connections


def test_why_nodes_do_not_answer_is_said_instead():
    """Such as nodes that refuse an app with code."""
    connections, network = Connections(W0), Network()
    connections.silent = {1: "error 3: app bundle: expected no code", 2: "no reply within 20 s"}
    with pytest.raises(RosterError) as caught:
        wait(connections, network.online, network.ask, 3, timeout=0.0, settle=0.0)
    assert str(caught.value) == (
        "clients: expected 3 within 0 s, got 0; nodes answer: error 3: app bundle: expected no code"
    )


def test_the_exact_number_is_enough():
    assert waited(Network(n1=reply("a"), n2=reply("b")), 2).nodes == {"a": 1, "b": 2}


@pytest.fixture
def simulated(monkeypatch):
    """As in Flower's simulation, the only process that imports its module."""
    monkeypatch.setitem(sys.modules, SIMULATION, sys)


def test_too_few_end_in_an_error_that_says_how_flower_is_told(simulated):
    with pytest.raises(RosterError) as caught:
        waited(Network(n1=reply("a")), 3, timeout=0.0)
    assert str(caught.value) == (
        "clients: expected 3 within 0 s, got 1 (Flower's simulation: --federation-config 'num-supernodes=3')"
    )


def test_too_many_are_refused_by_name():
    with pytest.raises(RosterError, match="clients: expected exactly 1, got 2: a, b"):
        waited(Network(n1=reply("a"), n2=reply("b")), 1)


def test_with_zero_all_that_are_there_when_it_has_settled(monkeypatch):
    network, clock = Network(n1=reply("a")), [0.0]
    monkeypatch.setattr(roster.time, "monotonic", lambda: clock[0])

    def sleep(seconds):
        clock[0] += seconds
        if 1.5 < clock[0] < 1.65:
            network.nodes[2] = reply("b")

    monkeypatch.setattr(roster.time, "sleep", sleep)
    connections = Connections(W0)
    wait(connections, network.online, network.ask, 0, timeout=60, settle=3.0)
    assert set(connections.nodes) == {"a", "b"}
    assert clock[0] == pytest.approx(4.6, abs=0.25), "three seconds after the last one came"


def test_with_zero_nobody_is_not_enough():
    with pytest.raises(RosterError, match="clients: expected all within 0 s, got 0"):
        waited(Network(), 0, timeout=0.0)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(DataError("a: data", "an example", "none"), DataError), (reply("b", store="another"), RosterError)],
)
def test_a_new_run_ends_with_the_words_of_who_cannot_take_part(answer, kind):
    with pytest.raises(kind):
        waited(Network(n1=answer, n2=reply("b")), 2)


def test_several_refusals_are_one_line():
    network = Network(n1=DataError("a: data", "x", "y"), n2=DataError("b: data", "x", "y"))
    with pytest.raises(RosterError, match=r"^2 of 2 clients cannot take part: data: expected x, got y \(a, b\)$"):
        waited(network, 2)


def test_a_resumed_run_waits_for_its_clients_by_name():
    network = Network(n1=reply("a"), n3=reply("stranger"))
    with pytest.raises(RosterError, match=r"clients: expected 2 within 0.3 s, got 1; absent: b"):
        waited(network, ["a", "b"])
    network.nodes[2] = reply("b")
    assert set(waited(network, ["a", "b"]).nodes) == {"a", "b", "stranger"}


def test_a_stranger_does_not_keep_a_run_from_being_resumed():
    network = Network(n1=reply("a"), n2=DataError("x: data", "x", "y"), n3=reply("a", store="another"))
    assert waited(network, ["a"]).nodes == {"a": 1}
    with pytest.raises(RosterError, match="absent: b; x: data: expected x, got y"):
        waited(network, ["a", "b"], timeout=0.0)


def test_a_resumed_run_that_may_skip_goes_on_with_whoever_came():
    network = Network(n2=reply("b"))
    assert waited(network, ["a", "b", "c"], enough=1).nodes == {"b": 2}
    with pytest.raises(RosterError, match="absent: a, c"):
        waited(network, ["a", "b", "c"], enough=2)


def test_who_is_waited_for_is_said_without_a_hint_in_a_deployment(caplog):
    with caplog.at_level(logging.INFO, "sepal"), pytest.raises(RosterError):
        waited(Network(n1=reply("a")), 3, timeout=0.15)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["waiting for clients: 1 of 3 have answered"]


NAMES = {f"client-{n:02d}": ClientInfo(f"client-{n:02d}", 10) for n in range(20)}


def test_sampling_depends_on_seed_and_round_and_not_on_order():
    drawn = sample(NAMES, 5, 7, 3)
    assert len(set(drawn)) == 5
    assert drawn == sorted(drawn)
    assert sample(dict(reversed(NAMES.items())), 5, 7, 3) == drawn
    assert sample(NAMES, 5, 7, 4) != drawn
    assert sample(NAMES, 5, 8, 3) != drawn


def test_sampling_touches_no_global_generator():
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    sample(NAMES, 5, 7, 3)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


@pytest.mark.parametrize("count", [0, 20, 21])
def test_all_are_drawn_where_that_is_asked(count):
    assert sample(NAMES, count, 7, 3) == sorted(NAMES)


def test_everybody_is_drawn_equally_often():
    counts = dict.fromkeys(NAMES, 0)
    for round in range(2000):
        for name in sample(NAMES, 5, 1, round):
            counts[name] += 1
    assert max(abs(n - 500) for n in counts.values()) < 5 * (2000 * 0.25 * 0.75) ** 0.5


def test_a_node_whose_key_is_anothers_cannot_take_a_name():
    network = Network(n1=reply("b"), n2=reply("a"), n3=reply("c"))
    connections = Connections(W0, bound=lambda: {1: "b", 2: "c"})  # node 3 has no key of a name
    (refusal,) = connections.refresh(network.online(), network.ask)
    assert str(refusal) == "client a: expected c, the name of its node's key (nodes/c.pub), got a (node 2)"
    assert connections.nodes == {"b": 1, "c": 3}


def test_why_clients_do_not_fit_is_said_once_with_the_number_of_clients():
    """Ten clients with the same fault gave the same line three times and a half, cut off before its end."""
    faults = {f"n{n}": DataError(f"node {n}: client-{n:05d}: mine:load", "four arrays", "NoneType") for n in range(9)}
    faults["n9"] = DataError("node 9: client-00009: capacity", "more", "0.1")
    with pytest.raises(RosterError) as caught:
        waited(Network(**faults), 10)
    assert str(caught.value) == (
        "10 of 10 clients cannot take part: mine:load: expected four arrays, got NoneType (node 0: client-00000, "
        "node 1: client-00001, node 2: client-00002 and 6 more); "
        "capacity: expected more, got 0.1 (node 9: client-00009)"
    )


def test_hints_about_the_simulation_are_for_the_simulation_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "num-supernodes=3" in roster.simulation_hint(3, 0)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    words = roster.simulation_hint(3, 0)
    assert "RAY_ADDRESS is 10.0.0.1:6379" in words
    assert "unset RAY_ADDRESS" in words
    assert "ray_current_cluster" not in words
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")
    assert f"{tmp_path}/ray/ray_current_cluster names one" in roster.simulation_hint(3, 0)
    assert "num-supernodes=3" in roster.simulation_hint(3, 1), "one has answered: Ray is not what hangs"

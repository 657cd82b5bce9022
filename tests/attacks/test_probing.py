"""A server that probes an honest client, and clients that fill the server's records or speak for others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from sepal.client_app.build import Node, Shared, build_host, open_store
from sepal.errors import ConfigError, DataError, ProtocolError, SepalError
from sepal.method.tensors import dense
from sepal.protocol.messages import Content, Order, read_reply, write_order, write_reply
from sepal.protocol.payloads import seal
from sepal.protocol.peer import PROTOCOL
from sepal.protocol.types import Kind, Payload, Plan
from sepal.wire.tensors import ValueCoding
from tests.attacks.attacked_federation import EVIL, Hostile, changed

RUN = {"dataset": "digits", "clients": 2, "partition.subsample": 200, "privacy.clip": 0.1, "privacy.noise": 1.0}


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A function that returns a deployed client of a home directory."""

    def make(home="home", run="0" * 32, **keys):
        monkeypatch.setenv("SEPAL_HOME", str(tmp_path / home))
        shared, node = Shared.of({**RUN, "method": "fedavg", **keys}, "cpu"), Node(0, 2)
        store = open_store(shared, node, run)
        return build_host(shared, node, run, store, store.secret.encode()), shared

    return make


def ask(host, plan, kind=Kind.TRAIN, content=None, **keys):
    order = Order(host.run, kind, plan, **keys)
    return read_reply(host.answer(write_order(order, content or Content())))


@pytest.mark.parametrize(("kind", "round"), [(Kind.TRAIN, 1), (Kind.ADAPT, 1)])
def test_with_noise_a_states_digest_confirms_no_guess_of_the_data(kind, round, client):
    """Who guesses the data can train on it; the digest of the state without noise would say that the guess is right.

    Equal digests would tell that two updates are equal.
    """
    assert ask(client("one")[0], Plan(round), kind, keep=True)[0].state == ""
    plain = {"privacy.clip": 0.0, "privacy.noise": 0.0}
    same = {ask(client(home, **plain)[0], Plan(round), kind, keep=True)[0].state for home in ("three", "four")}
    assert len(same) == 1, "without noise, it is the same wherever the client runs"


def test_a_client_of_a_run_without_phase_1_cannot_be_brought_to_send_one(client):
    host, _ = client(method="dmpfl", **{"dmpfl.schedule": "2a:1"})
    content = Content(b"", {"weights": 0, "mask": 0})
    with pytest.raises(SepalError, match="training: expected an answer, got none"):  # the log has the phase
        ask(host, Plan(1, "1", scalars={"prune": 0.5}), content=content)
    assert ask(host, Plan(1, "2a", scalars={"prune": 0.0}), content=content)[1].data


@pytest.mark.parametrize("method", ["fedavg", "fedadam", "fedpse", "fedstc"])
def test_a_client_answers_no_phase_that_its_method_lacks(client, method):
    """Its upload would have noise, but would be counted after training only: an error of training cost nothing."""
    host, _ = client(method=method)
    with pytest.raises(ProtocolError, match="phase: expected none"):
        ask(host, Plan(1, "x"))


def test_accuracies_of_models_of_its_choice_tell_the_server_a_clients_labels_whatever_the_noise(client):
    """Not defended: a model that always says k has as many correct predictions as the client has examples of k."""
    host, shared = client(**{"privacy.noise": 1000.0})
    layout, counts = shared.assembly.setup.layout, []
    for label in range(10):
        weights = {p.name: np.zeros(p.shape, np.float32) for p in layout}
        weights[layout[-1].name][label] = 100
        content = seal(Payload(dense(weights, layout, ValueCoding.FP32)))
        counts.append(ask(host, Plan(2), Kind.ADAPT, content, views=("received",))[0].metrics["received.correct"])
    labels = shared.assembly.data.client(0, 2, "client-00000").test.y
    assert counts == np.bincount(labels, minlength=10).tolist()


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_losses_of_models_of_its_choice_tell_the_server_the_inputs_of_a_test_example(task, tmp_path, monkeypatch):
    """Not defended: a model of one open neuron says 10 + x, and sums are exact; a part may have one test example."""
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path))
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "d.npz", x=np.linspace(-1, 1, 20, dtype=np.float32).reshape(10, 2), y=np.arange(10) % 2)
    run = {**RUN, "method": "fedavg", "dataset": "folder", "data-dir": str(tmp_path), "partition.name": "iid"}
    shared = Shared.of({**run, "partition.subsample": 0, "clients": 5, "task": task}, "cpu")
    store = open_store(shared, Node(0, 5), "r")
    host = build_host(shared, Node(0, 5), "r", store, store.secret.encode())
    layout, test = shared.assembly.setup.layout, shared.assembly.data.client(0, 5, "client-00000").test
    weights = {p.name: np.zeros(p.shape, np.float32) for p in layout}
    weights["fc1.weight"][0, 0], weights["fc1.bias"][0] = 1, 10
    weights["fc2.weight"][0, 0] = 1 if task == "regression" or test.y.item() else -1  # a server tries both
    content = seal(Payload(dense(weights, layout, ValueCoding.FP32)))
    figures = ask(host, Plan(2), Kind.ADAPT, content, views=("received",))[0].figures
    figure = figures["received.sums"][4] + test.y.item() if task == "regression" else figures["received.loss"]
    assert figure == pytest.approx(10 + test.x[0, 0], abs=1e-3)


def test_under_another_run_id_the_same_update_has_another_noise(client, tmp_path):
    """Not defended: a server that asks under many run ids averages the noise away, and leaves a directory for each."""
    sent = {ask(client(run=f"{number:032x}")[0], Plan(1))[1].data for number in range(3)}
    assert len(sent) == 3
    assert len(list((tmp_path / "home").rglob("identity"))) == 3


# Clients towards the server


def test_facts_with_a_training_reply_are_refused_and_not_stored():
    facts = {f"fact-{number}": "x" * 16_000 for number in range(90)}
    federation = Hostile(changed(lambda head, content: (replace(head, facts=facts), content)), max_message_bytes=10**7)
    federation.run()
    (entry,) = federation.entries()
    assert (entry.status, entry.reason) == ("refused", "facts: expected none but in answer to a query, got 90 of them")
    assert EVIL not in federation.records[1].replies


@pytest.mark.parametrize("where", ["facts", "metrics", "x" * 300])
def test_a_key_of_any_length_is_refused(where):
    def attack(message, order, download, reply):
        records = write_reply(*read_reply(reply.content))
        records[where] = ConfigRecord({"k" * 100_000: "x"})
        return Message(records, reply_to=message)

    federation = Hostile(attack, max_message_bytes=10**7)
    federation.run()
    (entry,) = federation.entries()
    assert entry.reason.startswith("message: expected names and keys of at most 256 characters, got 100")


def error(**parts):
    record = {"protocol": PROTOCOL, "type": "DataError", "key": "data", "expected": "data", "got": "none"}
    record |= {"client": EVIL, **parts}
    return lambda message, order, download, reply: Message(
        RecordDict({"error": ConfigRecord(record)}), reply_to=message
    )


def test_an_error_with_a_long_list_is_refused_before_it_is_written_out():
    federation = Hostile(error(expected=[1.5] * 200_000), on_missing="skip")
    federation.run()
    assert "error.expected: expected at most 131072 items" in federation.entries()[0].reason


@pytest.mark.parametrize("parts", [{"client": "client-3"}, {"client": "", "key": "client-3: data"}])
def test_an_error_at_the_start_names_the_node_that_reported_it(parts):
    with pytest.raises(DataError, match=r"^node 101: client-3: data: expected data"):
        Hostile(error(**parts), when=lambda order: order.kind is Kind.QUERY).run()


def test_a_client_that_only_reports_errors_counts_as_one_upload_a_round_towards_epsilon():
    """What was refused may have been an upload, so it counts. ε is that of the client with the most."""
    federation = Hostile(error(), on_missing="skip", when=lambda order: order.kind is Kind.TRAIN)
    counts = {name: sum(phases.values()) for name, phases in federation.run().report.uploads.items()}
    assert counts == dict.fromkeys(counts, 4)
    assert EVIL in counts


def test_a_run_config_cannot_ask_a_client_for_a_million_models():
    with pytest.raises(ConfigError, match=r"fedem\.models: expected"):
        Shared.of({"dataset": "digits", "method": "fedem", "fedem.models": 10**6})


def test_the_digest_of_the_data_tells_nothing_about_labels(tmp_path, monkeypatch):
    """Where no example of a part is ill, exchanging that name with one that nobody has leaves the arrays as they are.

    A part may be two examples of the server's choice, and a query costs no upload.
    """
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path))
    monkeypatch.setenv("SEPAL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data.csv").write_text("a,label\n" + "0,well\n" * 10)  # equal examples, so all splits are alike
    plain = {"dataset": "folder", "data-dir": str(tmp_path), "partition.name": "iid", "clients": 1}

    def digest(classes="ill,well,unknown", **run):
        shared = Shared.of({**plain, "method": "fedavg", "folder.classes": classes, **run}, "cpu")
        return build_host(shared, Node(0, 1), "r", open_store(shared, Node(0, 1), "r")).info.data

    again = digest(rounds=7, threads=1, lr=0.5)
    assert again == digest(), "keys that say nothing about data do not change it"
    other_digests = [
        digest("unknown,well,ill"),
        digest(seed=1),
        digest(**{"split.seed": 1}),
        digest("well,ill,unknown"),
    ]
    assert len({again, *other_digests}) == 5

"""Clients that lie about more than one field of one reply: forged shapes, errors, duplicates, strangers, delays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict

from sepal.errors import DataError, DivergedError, RosterError, RoundError
from sepal.protocol.messages import read_order, read_reply, write_error, write_reply
from sepal.protocol.payloads import seal
from sepal.protocol.peer import PROTOCOL
from sepal.protocol.types import Kind, Payload
from sepal.server.exchange import Exchange
from sepal.storage.serialize import digest
from sepal.wire.tensors import Support, at, members, whole
from tests.attacks.attacked_federation import EVIL, ROUND, Hostile, changed, renamed
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation, Nodes
from tests.strategies.dmpfl import Watch

poisoned = changed(lambda head, content: (replace(head, run="0" * 32), content))


@pytest.mark.parametrize("kind", FAKES)
def test_a_payload_in_reply_to_adapt_is_refused(kind):
    """The closing round: everybody adapts, nobody uploads."""

    def attack(message, order, download, reply):
        head, _ = read_reply(reply.content)
        return Message(write_reply(*renamed(head, seal(Payload({"w": whole(np.ones(6))})))), reply_to=message)

    federation = Hostile(attack, kind, when=lambda order: order.kind is Kind.ADAPT)
    federation.run()
    (entry,) = federation.entries(5)
    assert entry.status == "refused"
    assert "payload: expected none in answer to adapt" in entry.reason


def forged_mask(message, order, download, reply):
    """A mask that claims more than the values that come with it."""
    head, _ = read_reply(reply.content)
    sent = Payload({"mask": members(np.ones(6, bool)), "kept": whole(np.ones(3))})
    return Message(write_reply(*renamed(head, seal(sent))), reply_to=message)


def other_width(message, order, download, reply):
    """SAME support: as many values as another capacity would give."""
    head, _ = read_reply(reply.content)
    sent = replace(at(np.ones(6), np.arange(6)), support=Support.SAME)
    return Message(write_reply(*renamed(head, seal(Payload({"v": sent}, {"examples": 10})))), reply_to=message)


@pytest.mark.parametrize(("kind", "attack"), [("shape", forged_mask), ("generated", other_width)])
def test_shapes_that_depend_on_the_upload_or_the_client_cannot_be_forged(kind, attack):
    federation = Hostile(attack, kind)
    federation.run()
    assert [e.status for e in federation.entries()] == ["refused"]


@pytest.mark.parametrize("on_missing", ["retry", "skip"])
def test_a_clients_own_error_ends_the_run_or_is_survived(on_missing):
    def attack(message, order, download, reply):
        return Message(write_error(DataError(f"{EVIL}: data", "an example", "none"), EVIL), reply_to=message)

    federation = Hostile(attack, on_missing=on_missing)
    if on_missing == "retry":
        with pytest.raises(RoundError) as caught:
            federation.run()
        words = "round 2: 1 of 4 clients cannot take part: data: expected an example, got none (client-1)"
        assert str(caught.value) == words
        return
    federation.run()
    (entry,) = federation.entries()
    assert (entry.status, entry.reason) == ("refused", "client-1: data: expected an example, got none")


@pytest.mark.parametrize("kind", ["Exception", "annotations", "RoundError"])
def test_a_hostile_error_cannot_put_words_into_anothers_mouth_or_a_terminal(kind):
    text = "client-3: \x1b[2J\nall is lost" * 999

    def attack(message, order, download, reply):
        record = {"protocol": PROTOCOL, "type": kind, "key": text, "expected": text, "got": text, "client": "client-3"}
        return Message(RecordDict({"error": ConfigRecord(record)}), reply_to=message)

    with pytest.raises(RoundError) as caught:
        Hostile(attack).run()
    assert str(caught.value).startswith("round 2: 1 of 4 clients cannot take part: an error: ")
    assert str(caught.value).endswith(" (client-1)")
    assert str(caught.value).isprintable()
    federation = Hostile(attack, on_missing="skip")
    federation.run()
    (entry,) = federation.entries()
    assert entry.reason.isprintable()
    assert len(entry.reason) <= 300


def everyone(attack):
    """All clients attack."""

    class All(Hostile):
        def _handle(self, message):
            reply = Federation._handle(self, message)
            order, download = read_order(message.content)
            return attack(message, order, download, reply) if self.when(order) else reply

    return All


@pytest.mark.parametrize("on_missing", ["retry", "skip"])
@pytest.mark.parametrize(("least", "hostile"), [(1, 4), (4, 1), (3, 2)])
def test_too_few_good_replies_end_the_run_in_one_line(on_missing, least, hostile):
    def attack(message, order, download, reply):
        number = int(federation.nodes[message.metadata.dst_node_id][-1])
        return poisoned(message, order, download, reply) if number < hostile else reply

    federation = everyone(attack)(None, on_missing=on_missing, min_replies=least)
    federation.attack = attack
    with pytest.raises(RoundError) as caught:
        federation.run()
    replies = "1 reply" if least == 1 else f"{least} replies"
    assert str(caught.value).startswith(f"round 2: needed at least {replies}, but {4 - hostile}: ")
    assert len(federation.records) == 1, "nothing of that round counts"


def test_replies_to_an_evaluation_are_no_replies_to_training():
    """Full evaluation in round 2: two of four train, and both are refused; the others only evaluate."""
    federation = everyone(poisoned)(None, clients_per_round=2, evaluate_every=2)
    with pytest.raises(RoundError, match="round 2: needed at least 1 reply, but 0"):
        federation.run()


def test_a_duplicate_reply_counts_once():
    """A grid that delivers every reply twice, the second one poisoned."""

    class Twice(Nodes):
        def pull_messages(self, names):
            replies = super().pull_messages(names)
            poisoned = []
            for reply in replies:
                head = ConfigRecord({**reply.content["sepal"], "run": "0" * 32, "examples": 10**9})
                records = RecordDict({**reply.content, "sepal": head})
                poisoned.append(Message(records, reply_to=sent_messages[reply.metadata.reply_to_message_id]))
            return [*replies, *poisoned]

        def push_messages(self, messages):
            names = super().push_messages(messages)
            sent_messages.update(zip(names, messages, strict=True))
            return names

    sent_messages = {}
    plain = Hostile(None, when=lambda order: False)
    expected = plain.run()
    federation = Hostile(None, when=lambda order: False)
    strategy = federation.server()
    strategy._observers = [federation]
    strategy.start(Twice(federation))
    assert digest(strategy.progress.server) == digest(expected.progress.server)
    assert strategy.report.totals == expected.report.totals


@pytest.mark.parametrize("answer", ["error", "junk", "other weights", "no store", "another's name", "silence"])
def test_a_stranger_that_comes_in_mid_run_cannot_stop_it(answer, caplog):
    federation = Hostile(None, when=lambda order: False)
    honest = federation._handle

    def handle(message):
        if message.metadata.dst_node_id != 666:
            return honest(message)
        if answer == "silence":
            return Message(Error(5, "Node Unavailable"), reply_to=message)
        if answer == "error":
            return Message(write_error(DataError("x", "y", "z"), "evil"), reply_to=message)
        federation.nodes[666] = "client-2" if answer == "another's name" else "evil"
        federation.stores.setdefault("evil", type(federation.stores["client-0"])())
        federation.capacity_evil = 1.0
        records = federation.host("client-0").handle(message.content)
        facts = {"store": "" if answer == "no store" else "of-evil", "weights": "0" * 64}
        if answer != "other weights":
            del facts["weights"]
        records["facts"] = ConfigRecord(facts)
        records["sepal"]["client"] = federation.nodes[666]
        return Message(RecordDict() if answer == "junk" else records, reply_to=message)

    federation._handle = handle
    inner_round = federation.round

    def round(progress, record, line):
        inner_round(progress, record, line)
        if record.round == 1:
            federation.nodes[666] = "evil"

    federation.round = round
    progress = federation.run().progress
    assert progress.round == 5
    assert set(progress.roster) == {f"client-{n}" for n in range(4)}
    assert (answer == "silence") != ("refused: " in caplog.text)
    names = {name for record in federation.records for name in record.replies}
    assert names == set(progress.roster)


def test_at_the_start_another_model_is_refused():
    federation = Hostile(None, when=lambda order: False)
    honest = federation._handle

    def handle(message):
        reply = honest(message)
        if "facts" in reply.content and federation.nodes[message.metadata.dst_node_id] == EVIL:
            reply.content["facts"]["weights"] = "0" * 64
        return reply

    federation._handle = handle
    with pytest.raises(RosterError, match=r"client-1: initial weights: expected digest .*, got 000000000000"):
        federation.run()


def test_a_late_reply_is_refused_and_entered(monkeypatch):
    """The hostile client's reply to round 2 comes in round 3."""

    class Late(Nodes):
        withheld = None

        def pull_messages(self, names):
            replies = super().pull_messages(names)
            kept = []
            for reply in replies:
                order = orders[reply.metadata.reply_to_message_id]
                if order == (ROUND, EVIL) and Late.withheld is None:
                    Late.withheld = reply
                else:
                    kept.append(reply)
            if Late.withheld is not None and any(orders[r.metadata.reply_to_message_id][0] == ROUND + 1 for r in kept):
                kept.insert(0, Late.withheld)
            return kept

        def push_messages(self, messages):
            names = super().push_messages(messages)
            for name, message in zip(names, messages, strict=True):
                order = read_order(message.content)[0]
                node = federation.nodes[message.metadata.dst_node_id]
                orders[name] = (order.plan.round if order.kind is not Kind.QUERY else 0, node)
            return names

    orders = {}
    federation = Hostile(None, when=lambda order: False, on_missing="skip", timeout=1.0)
    exchanges = []
    monkeypatch.setattr("sepal.server.contact.Exchange", lambda grid: exchanges.append(Exchange(grid)) or exchanges[0])
    strategy = federation.server()
    strategy._observers = [federation]
    strategy.start(Late(federation))
    assert [e.status for e in federation.entries(ROUND)] == ["missing"]
    late = [e for e in federation.records[ROUND].ledger if e.status == "late"]
    assert [(e.client, e.direction, e.reason) for e in late] == [
        (EVIL, "up", "a second reply, or one to a round that had ended")
    ]
    assert late[0].message > 0
    assert [e.status for e in federation.entries(ROUND + 1) if e.status != "late"] == ["accepted"]
    assert exchanges[0].late == 1


def test_clients_that_say_they_could_not_train_make_no_round_of_too_few():
    """Two of four lie; the two that are left are fewer than ``min-replies``, and the model is kept, as the log says."""
    subject = Federation(
        FAKES["queue"][0],
        clients=4,
        settings={"evaluate_every": 0, "on_missing": "skip", "min_replies": 3, "on_divergence": "keep"},
    )
    watch, strategy = Watch(), subject.server()

    class Lying(Nodes):
        def answer(self, message):
            number = list(self._federation.nodes).index(message.metadata.dst_node_id)
            if message.metadata.message_type == "train" and message.metadata.group_id == "2" and number < 2:
                error = DivergedError("update", "finite entries", "NaN")
                return Message(write_error(error, f"client-{number}"), reply_to=message)
            return super().answer(message)

    strategy._observers = [watch]
    strategy.start(Lying(subject))
    assert [len(record.replies) for record in watch.records] == [4, 0, *[4] * (len(watch.records) - 2)]
    reasons = {entry.reason for entry in watch.records[1].ledger if entry.client in ("client-2", "client-3")} - {""}
    assert reasons == {"upload: expected at least 3 replies, got 2"}

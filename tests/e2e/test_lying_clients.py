"""Clients with a registered key that lie, over real sockets: what is refused, by name, and that the round goes on."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, Message

from sepal.client_app import host
from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.credentials import NodeCredentials
from sepal.protocol.messages import Content, read_order, read_reply, write_reply
from sepal.protocol.types import Kind
from tests.attacks.test_hostile_methods import DIGITS, LIES, METHODS, Seals
from tests.e2e.attacking_client import EVIL, GUEST, HONEST, light_client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

LARGEST = 1_000_000
MEBIBYTE = 1 << 20
FLAT = {
    "method": "fedavg",
    "dataset": "digits",
    "clients": 2,
    "rounds": 8,
    "evaluate-every": 0,
    "evaluate-sampled": False,
    "partition.name": "iid",
    "partition.subsample": 120,
    "on-missing": "skip",
    "max-message-bytes": LARGEST,
    "timeout": 120.0,
    "seed": 3,
}


class Undecodable(Array):
    """An array whose description lacks its type, so that Flower cannot decode the message."""

    def deflate(self) -> bytes:
        return super().deflate().replace(b'"dtype"', b'"dtypo"')


Undecodable.__qualname__ = "Array"  # what it is called on the wire


def bomb(record: ArrayRecord) -> None:
    """Let the record's array list its only chunk 64 times."""
    record["a"].__dict__["_chunks"] = record["a"].slice_array() * 64


def break_up(record: ArrayRecord) -> None:
    """Make the record's array one that cannot be decoded."""
    record["a"].__class__ = Undecodable


class Attacks:
    """The hostile client's answers by round.

    2 too large, 3 for another run, 4 that of round 1 again, 5 sent twice, 7 a decompression bomb, 8 one that cannot be
    decoded.
    """

    def __init__(self) -> None:
        self.first: tuple | None = None

    def __call__(self, message: Message, reply: Message) -> list[Message]:
        order, _ = read_order(message.content)
        if order.kind is not Kind.TRAIN:
            return [reply]
        head, content = read_reply(reply.content)
        if order.plan.round == 1:
            self.first = head, content
        if order.plan.round == 2:
            return [Message(write_reply(head, Content(bytes(LARGEST), content.scalars)), reply_to=message)]
        if order.plan.round == 3:
            return [Message(write_reply(replace(head, run="0" * 32), content), reply_to=message)]
        if order.plan.round == 4:
            return [Message(write_reply(*self.first), reply_to=message)]
        if order.plan.round == 5:
            return [reply, reply]
        if order.plan.round == 6:
            forged = Message(write_reply(head, content), reply_to=message)
            forged.metadata.__dict__["_run_id"] = 1  # of Flower's runs, too
            return [forged, reply]
        if order.plan.round >= 7:
            records = write_reply(head, content)
            records["more"] = ArrayRecord({"a": Array("uint8", (MEBIBYTE,), "x", bytes(MEBIBYTE))})
            answer = Message(records, reply_to=message)
            (bomb if order.plan.round == 7 else break_up)(answer.content["more"])
            return [answer]
        return [reply]


def after_round(path: Path, round: int, action) -> None:
    """Do something in a thread once the run has written the line of ``round``."""

    def watch() -> None:
        end = time.monotonic() + 240
        while time.monotonic() < end and not (path.exists() and len(path.read_text().splitlines()) >= round):
            time.sleep(0.05)
        action()

    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture(scope="module")
def guest_orders():
    """What the server says to the node that nobody invited."""
    return []


@pytest.fixture(scope="module")
def ledger(server, address, certs, guest_orders, tmp_path_factory):
    """Upload entries of the hostile client by round, the run's directory, and its client."""
    out = tmp_path_factory.mktemp("out")
    clients = []
    for number, name in enumerate((HONEST, EVIL)):
        node = {"partition-id": number, "num-partitions": 2, "state-dir": str(out / "states")}
        attack = {"attack": Attacks()} if name == EVIL else {}
        clients.append(light_client(address, NodeCredentials.of(certs, name), node, FLAT, **attack))
        clients[-1].start()

    def listen(message: Message, reply: Message) -> list[Message]:
        guest_orders.append((read_order(message.content)[0].kind, read_order(message.content)[0].plan.phase))
        return [reply]

    node = {"name": GUEST, "partition-id": 0, "num-partitions": 2, "state-dir": str(out / "states")}
    guest = light_client(address, NodeCredentials.of(certs, GUEST), node, FLAT, attack=listen)
    after_round(out / "attacked" / "metrics.jsonl", 1, guest.start)
    write_app(out / "app")
    run = server.run_app(out / "app", {**FLAT, "out": str(out), "name": "attacked"}, timeout=240)
    for client in (*clients, guest):
        client.stop(20)
    assert clients[0].failures == []
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    entries = [json.loads(line) for line in (out / "attacked" / "ledger.jsonl").read_text().splitlines()]
    uploads_by_round: dict[int, list] = {}
    for entry in entries:
        if entry["direction"] == "up" and entry["client"] == EVIL:
            uploads_by_round.setdefault(entry["round"], []).append((entry["status"], entry["reason"]))
        if entry["direction"] == "up" and entry["client"] == HONEST:
            assert entry["status"] == "accepted", "the round goes on with the honest one"
    return uploads_by_round, out, clients[1]


def test_an_honest_upload_is_accepted(ledger):
    assert ledger[0][1] == [("accepted", "")]


def test_a_message_that_is_too_large_is_refused_by_name(ledger):
    ((status, reason),) = ledger[0][2]
    assert status == "refused"
    assert reason.startswith(f"max-message-bytes: expected a message of at most {LARGEST} bytes, got 100")


def test_an_upload_for_another_run_is_refused_by_name(ledger):
    ((status, reason),) = ledger[0][3]
    assert (status, reason[:14], reason[-36:]) == ("refused", "run: expected ", f"got {'0' * 32!r}"[-36:])


def test_a_replayed_upload_is_refused_by_name(ledger):
    assert ledger[0][4] == [("refused", "round: expected 4, got 1")]


def test_an_upload_that_is_sent_twice_counts_once(ledger):
    assert ledger[0][5] == [("accepted", "")]


def test_a_message_for_another_run_of_flowers_is_not_taken_by_the_superlink(ledger):
    entries, _, evil = ledger
    assert len(evil.failures) >= 1, "the SuperLink took a message for a run that it does not have"
    assert entries[6] == [("accepted", "")]


def test_a_decompression_bomb_is_refused_before_it_is_put_together(ledger):
    """1 MiB on the wire, 64 MiB once Flower had assembled it."""
    ((status, reason),) = ledger[0][7]
    assert status == "missing"
    assert "a reply that cannot be read: ValueError: expected arrays of at most 16777216 bytes, got 671" in reason


def test_a_reply_that_cannot_be_decoded_is_named_and_the_round_goes_on(ledger):
    """That it takes no other reply of its batch with it is tests/sepal/server/test_exchange_again.py."""
    ((status, reason),) = ledger[0][8]
    assert (status, reason) == ("missing", "a reply that cannot be read: KeyError: 'dtype'")


def test_a_node_that_nobody_invited_is_told_so_and_takes_no_part(ledger, guest_orders):
    """It has a registered key and comes after round 1; the run has its two clients and ends with them."""
    assert guest_orders[0] == (Kind.QUERY, "")
    expected = f"client {GUEST}: expected one of the 2 clients of the start (roster = closed)"
    assert any(expected in words for _, words in guest_orders), guest_orders
    assert {kind for kind, _ in guest_orders} == {Kind.QUERY}, "it gets no order and no model"
    assert json.loads((ledger[1] / "attacked" / "summary.json").read_text())["clients"] == 2


def test_states_and_runs_are_their_owners_alone(ledger):
    out = ledger[1]
    (state,) = (out / "states").glob(f"*/{HONEST}")
    for directory in (out / "attacked", state):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_lies_in_a_methods_uploads_are_refused_over_sockets(server, address, certs, tmp_path, monkeypatch):
    """Those of tests/attacks/test_hostile_methods.py, of one of its methods."""
    flat = {**DIGITS, **METHODS["flasc"], "clients": 2, "rounds": 1 + len(LIES), "evaluate-sampled": False}
    flat |= {"timeout": 120.0}
    seals = Seals()
    monkeypatch.setattr(host, "seal", seals)

    def lie(message: Message, reply: Message) -> list[Message]:
        order, _ = read_order(message.content)
        if order.kind is not Kind.TRAIN or order.plan.round == 1:
            return [reply]
        head, content = seals.lie(order.plan.round, *read_reply(reply.content))
        return [Message(write_reply(head, content), reply_to=message)]

    clients = []
    for number, name in enumerate((HONEST, EVIL)):
        node = {"partition-id": number, "num-partitions": 2, "state-dir": str(tmp_path / "states")}
        attack = {"attack": lie} if name == EVIL else {}
        clients.append(light_client(address, NodeCredentials.of(certs, name), node, flat, **attack))
        clients[-1].start()
    write_app(tmp_path / "app")
    run = server.run_app(tmp_path / "app", {**flat, "out": str(tmp_path), "name": "attacked"}, timeout=240)
    for client in clients:
        client.stop(20)
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    entries = [json.loads(line) for line in (tmp_path / "attacked" / "ledger.jsonl").read_text().splitlines()]
    reasons = {
        name: [e["status"] for e in entries if (e["direction"], e["client"]) == ("up", name)] for name in (HONEST, EVIL)
    }
    assert reasons == {
        HONEST: ["accepted"] * (2 + len(LIES)),
        EVIL: ["accepted", *["refused"] * len(LIES), "accepted"],
    }

"""Lies in a real method's uploads, by a registered client and over sockets (tests/attacks/test_hostile_methods.py)."""

from __future__ import annotations

import json

import pytest
from flwr.app import Message

from sepal.client_app import host
from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.credentials import NodeCredentials
from sepal.protocol.messages import read_order, read_reply, write_reply
from sepal.protocol.types import Kind
from tests.attacks.test_hostile_methods import DIGITS, LIES, METHODS, Seals
from tests.e2e.attacking_client import EVIL, HONEST, light_client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.mark.parametrize("method", ["stc", "flasc", "fedsa-lora"])
def test_lies_in_a_methods_uploads_are_refused_over_sockets(method, server, address, certs, tmp_path, monkeypatch):
    flat = {**DIGITS, **METHODS[method], "clients": 2, "rounds": 1 + len(LIES), "evaluate-sampled": False}
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

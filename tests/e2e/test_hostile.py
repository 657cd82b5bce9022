"""Misbehaving clients over real gRPC: each is named in the ledger and left out, and the round goes on.

One light client lies in a different way each round, over Flower's own client connection; every reply of the other two,
SuperNodes with real clients, is accepted.
"""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from sepal.engines.flower.bundle import write_app
from sepal.engines.flower.engine import Flower
from sepal.protocol.messages import Content, read_order, read_reply, version, write_reply
from sepal.protocol.payloads import seal
from sepal.protocol.types import ClientInfo, Kind, Payload
from sepal.storage.serialize import digest_arrays
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import whole
from tools.load.light import LightClient, PreparedAnswers

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

LIAR = "client-00002"
FLAT = {
    "method": "fedavg",
    "dataset": "digits",
    "clients": 3,
    "rounds": 7,
    "evaluate-every": 0,
    "evaluate-sampled": False,
    "partition.name": "iid",
    "partition.subsample": 200,
    "on-missing": "skip",
    "timeout": 30.0,
}


def resealed(message, content, **changes):
    """An honest head with other content, or with another claim."""
    head = read_reply(message.content)[0]
    named = replace(head, version=version(head.round, head.base, head.download, content.digest()))
    return write_reply(replace(named, **changes), content)


class Liar(PreparedAnswers):
    """Honest in the roster and in rounds 1 and 7."""

    def __call__(self, message, node, run):
        order, _ = read_order(message.content)
        (reply,) = super().__call__(message, node, run)
        attack = getattr(self, f"round_{order.plan.round}", None)
        if order.kind is not Kind.TRAIN or attack is None:
            return [reply]
        records = attack(reply)
        if records is None:
            return []
        return [records if isinstance(records, Message) else Message(records, reply_to=message)]

    def round_2(self, reply):
        """It raises: the SuperNode reports Flower's error."""
        about = reply.metadata.reply_to_message_id
        failed = Message(Error(2, "<class 'ZeroDivisionError'>:<'division by zero'>"), reply_to=reply)
        failed.metadata.__dict__.update(reply.metadata.__dict__)
        assert failed.metadata.reply_to_message_id == about
        return failed

    def round_3(self, reply):
        """It answers for an old round."""
        head, content = read_reply(reply.content)
        return write_reply(replace(head, round=1), content)

    def round_4(self, reply):
        """It sends NaN, which no writer of ours makes: a marked value is overwritten in the bytes."""
        weights = {name: np.full(shape, 1234.5, np.float32) for name, shape in self.shapes.items()}
        data = seal(Payload({name: whole(array) for name, array in weights.items()}))
        poisoned = data.data.replace(np.float32(1234.5).tobytes(), np.float32(np.nan).tobytes(), 1)
        assert poisoned != data.data
        return resealed(reply, Content(poisoned, data.scalars))

    def round_5(self, reply):
        """It sends a tensor of another shape."""
        shapes = dict.fromkeys(self.shapes, (3,))
        return resealed(reply, seal(Payload({name: whole(np.ones(s, np.float32)) for name, s in shapes.items()})))

    def round_6(self, reply):
        """It hangs past the timeout."""
        return

    def round_7(self, reply):
        """It claims a million examples."""
        head, content = read_reply(reply.content)
        return write_reply(replace(head, client=replace(head.client, examples=10**6)), content)


def ready(deployed):
    """Wait for the nodes' client processes: the run's own timeout is short."""
    logs = [deployed.home / f"{name}.log" for name in deployed.nodes]
    end = time.monotonic() + 90
    while not all("client process ready" in log.read_text() for log in logs) and time.monotonic() < end:
        time.sleep(0.2)


def test_each_lie_is_named_in_the_ledger_and_the_round_goes_on(tmp_path):
    config = {**FLAT, "name": "lies", "out": str(tmp_path)}
    assembly = assemble(config)
    weights = dict(assembly.setup.weights)
    facts = {"weights": digest_arrays(weights), "config": assembly.agreed}
    upload = seal(Payload({name: whole(array) for name, array in weights.items()}))
    liar = Liar(ClientInfo(LIAR, 60), itertools.repeat(upload), facts)
    liar.shapes = {name: array.shape for name, array in weights.items()}
    TaskIdentity.task_id = 1
    with Flower(environment={"SEPAL_HOME": str(tmp_path / "home")}) as deployed:
        deployed.start_superlink()
        for number in range(2):
            deployed.start_node(f"node{number}", {"partition-id": number, "num-partitions": 3})
        ready(deployed)
        light = LightClient(f"127.0.0.1:{deployed.ports.fleet}", liar, poll=0.2)
        light.start()
        run = deployed.run_app(write_app(tmp_path / "app")[0].parent, config)
        light.stop()
    assert run.status == "finished:completed", "\n".join(run.log[-80:])
    assert light.failures == []
    entries = [json.loads(line) for line in (tmp_path / "lies" / "ledger.jsonl").read_text().splitlines()]
    fates = {e["round"]: (e["status"], e["reason"]) for e in entries if e["client"] == LIAR and e["direction"] == "up"}
    expected = {
        1: ("accepted", ""),
        2: ("missing", "error 2"),
        3: ("refused", "round: expected 3, got 1"),
        4: ("refused", "finite"),
        5: ("refused", "shape"),
        6: ("missing", "no reply within"),
        7: ("refused", "client.examples: expected 60, got 1000000"),
    }
    for round, (status, words) in expected.items():
        assert fates[round][0] == status, (round, fates[round])
        expired = status == "missing" and "Message Unavailable" in fates[round][1]  # the SuperLink noticed it first
        assert words in fates[round][1] or (round == 6 and expired), (round, fates[round])
    others = [e for e in entries if e["client"] != LIAR and e["direction"] == "up"]
    assert {e["status"] for e in others} == {"accepted"}
    assert len(others) == 2 * 8

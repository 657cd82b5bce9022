"""Replies that lie: each is refused by name, and the others' round goes on.

One client of four turns hostile in round 2: what it sends is the honest reply, changed. The run must end, the ledger
must name the client with status and reason, and what the others sent must count, bit for bit as if the hostile one had
stayed silent.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from sepal.errors import RoundError
from sepal.protocol.messages import Content, read_order, version
from sepal.protocol.payloads import seal
from sepal.protocol.peer import PROTOCOL
from sepal.protocol.types import Kind, Payload
from sepal.storage.serialize import digest
from sepal.wire.tensors import at, whole
from tests.attacks.attacked_federation import EVIL, ROUND, Hostile, changed, renamed, silence
from tests.contract.secure_federation import federation


def tampered(change):
    """An attack on the records themselves."""

    def attack(message, order, download, reply):
        another = change(reply.content)
        return Message(reply.content if another is None else another, reply_to=message)

    return attack


def uploads(payload):
    return changed(lambda head, content: renamed(head, seal(payload)))


def measures(**metrics):
    values = {name.replace("__", "."): value for name, value in metrics.items()}
    return tampered(lambda records: records.__setitem__("metrics", MetricRecord(values)))


def sets(**fields):
    def change(records):
        for key, value in fields.items():
            records["sepal"][key] = value

    return tampered(change)


def broken_bytes(head, content):
    data = bytearray(content.data)
    data[len(data) // 2] ^= 255
    return renamed(head, Content(bytes(data), content.scalars))


def not_finite(value):
    """No writer makes these bytes: a float32 in the honest payload is overwritten."""

    def change(head, content):
        payload = seal(Payload({"delta": at(np.full(6, 1234.5), np.array([0, 1]))})).data
        data = payload.replace(np.float32(1234.5).tobytes(), np.float32(value).tobytes())
        assert data != payload
        return renamed(head, Content(data))

    return changed(change)


ATTACKS = {
    "another run": (changed(lambda h, c: (replace(h, run="0" * 32), c)), "run: expected"),
    "an old round": (changed(lambda h, c: (replace(h, round=1), c)), "round: expected 2, got 1"),
    "a future round": (changed(lambda h, c: (replace(h, round=3), c)), "round: expected 2, got 3"),
    "a wrong base": (changed(lambda h, c: (replace(h, base=version(0, "", "x", "y")), c)), "base: expected"),
    "no base": (changed(lambda h, c: (replace(h, base=""), c)), "base: expected"),
    "another download": (changed(lambda h, c: (replace(h, download="0" * 64), c)), "download: expected"),
    "a wrong version": (changed(lambda h, c: (replace(h, version=version(2, "", "x", "y")), c)), "version: expected"),
    "no version": (changed(lambda h, c: (replace(h, version=""), c)), "version: expected"),
    "content that is not the version's": (changed(lambda h, c: (h, Content(c.data, {"n": 1}))), "version: expected"),
    "another kind": (changed(lambda h, c: (replace(h, kind=Kind.ADAPT), c)), "kind: expected"),
    "another's name": (
        changed(lambda h, c: (replace(h, client=replace(h.client, name="client-2")), c)),
        "client.name: expected 'client-1', got 'client-2'",
    ),
    "more examples than it said": (
        changed(lambda h, c: (replace(h, client=replace(h.client, examples=10**9)), c)),
        "client.examples: expected 10, got 1000000000",
    ),
    "no examples": (sets(examples=0), "examples: expected a whole number from 1"),
    "another capacity": (
        changed(lambda h, c: (replace(h, client=replace(h.client, capacity=1.0)), c)),
        "client.capacity: expected 0.55, got 1.0",
    ),
    "another device": (
        changed(lambda h, c: (replace(h, client=replace(h.client, device="cuda")), c)),
        "client.device: expected 'cpu', got 'cuda'",
    ),
    "too few entries": (uploads(Payload({"delta": at(np.ones(6), np.array([3]))})), "delta"),
    "too many entries": (uploads(Payload({"delta": whole(np.ones(6))})), "delta"),
    "a wrong shape": (uploads(Payload({"delta": at(np.ones(7), np.array([0, 1]))})), "delta"),
    "another tensor": (uploads(Payload({"gamma": at(np.ones(6), np.array([0, 1]))})), "gamma"),
    "a tensor more": (
        uploads(Payload({"delta": at(np.ones(6), np.array([0, 1])), "more": whole(np.ones(1))})),
        "more",
    ),
    "no payload": (uploads(Payload()), "payload: expected tensors from delta on, got none"),
    "a scalar more": (
        uploads(Payload({"delta": at(np.ones(6), np.array([0, 1]))}, {"weight": 9.0})),
        "scalars.weight: expected one of none, got an unknown scalar",
    ),
    "broken bytes": (changed(broken_bytes), ""),
    "junk for a payload": (changed(lambda h, c: renamed(h, Content(b"\x80\x04junk" * 99))), ""),
    "a message that is too large": (
        changed(lambda h, c: renamed(h, Content(bytes(1 << 17)))),
        "max-message-bytes: expected a message of at most ",
    ),
    "NaN": (not_finite(math.nan), "delta"),
    "infinity": (not_finite(math.inf), "delta"),
    "a version that is a path": (sets(version="../../../etc/passwd"), "version: expected ROUND-DIGEST"),
    "a name that is a path": (sets(client="../../x"), "client: expected a name of at most 64"),
    "another protocol": (
        sets(protocol=PROTOCOL + 2),
        f"protocol: expected {PROTOCOL} to {PROTOCOL + 1}, because this server has",
    ),
    "no head": (tampered(lambda records: RecordDict()), "message: expected a record named sepal"),
    "a number for a name": (sets(client=7), "client: expected text"),
    "a round beyond counting": (sets(round=2**62), "round: expected a whole number"),
    "a pickle": (
        tampered(
            lambda records: records.__setitem__(
                "payload", ArrayRecord({"payload": Array("object", (1,), "numpy.ndarray", b"\x80\x04.")})
            )
        ),
        "Array type: expected sepal.sparse.v1, got numpy.ndarray",
    ),
    "NaN seconds": (measures(seconds=math.nan), "metrics.seconds: expected a number from 0"),
    "negative seconds": (measures(seconds=-1e9), "metrics.seconds: expected a number from 0"),
    "endless seconds": (measures(seconds=math.inf), "metrics.seconds: expected a number from 0"),
    "huge seconds": (measures(seconds=1e308), "metrics.seconds: expected a number from 0"),
    "a list for a number": (measures(seconds=[1.0]), "metrics.seconds: expected a number from 0"),
    "a thousand metrics": (measures(**{f"m{n}": 1.0 for n in range(1000)}), "metrics: expected at most 96, got 1000"),
    "a hundred thousand metrics": (
        measures(**{f"m{n}": 1.0 for n in range(100_000)}),
        "max-message-bytes: expected a message of at most 65584 bytes, got 589033 bytes",
    ),
    "ten thousand records": (
        tampered(lambda records: records.update({f"r{n}": ConfigRecord() for n in range(10_000)})),
        "message: expected at most 32 records, got 1000",
    ),
    "an array more": (
        tampered(lambda records: records.__setitem__("more", ArrayRecord([np.zeros(1000)]))),
        "message: expected no records but facts, metrics, payload, plan, scalars, sepal, sums, got more",
    ),
    "a list of a million numbers": (sets(base=[1] * 10**6), "sepal.base: expected at most 131072 items, got 1000000"),
    "a million numbers in ten lists": (
        tampered(lambda records: records["sepal"].update({f"n{n}": [1] * 10**5 for n in range(10)})),
        "message: expected at most 4096 items in lists, got 1000000",
    ),
    "figures in lists": (
        tampered(lambda records: records.__setitem__("metrics", MetricRecord({f"m{n}": [1] * 100 for n in range(90)}))),
        "message: expected at most 4096 items in lists, got 9000",
    ),
    "ten thousand facts": (
        tampered(lambda records: records.__setitem__("facts", ConfigRecord({f"f{n}": "" for n in range(10_000)}))),
        "facts: expected at most 96, got 10000",
    ),
    "more right than there are": (
        measures(trained__correct=11.0, trained__examples=10.0),
        "metrics.trained.correct: expected a count, at most examples, got 11 of 10",
    ),
    "examples without an answer": (
        measures(trained__examples=10.0),
        "metrics.trained.correct: expected a count, at most examples, got -1 of 10",
    ),
    "a view that nobody asked for": (
        measures(pooled__correct=10.0, pooled__examples=10.0),
        "metrics.pooled.correct: expected counts of received, trained, got another view",
    ),
}


@pytest.fixture(scope="module")
def without():
    """The same run in which the hostile client is silent in that round."""
    federation = Hostile(silence, on_missing="skip")
    return federation.run()


# What follows a refusal does not depend on its reason, so "retry" is tried with a few.
ASKED_AGAIN = ["a wrong shape", "broken bytes", "no version", "a message that is too large"]


@pytest.mark.parametrize(
    ("name", "on_missing"), [*((name, "skip") for name in ATTACKS), *((name, "retry") for name in ASKED_AGAIN)]
)
def test_an_attack_is_refused_by_name_and_the_round_goes_on(name, on_missing, without):
    attack, reason = ATTACKS[name]
    federation = Hostile(attack, on_missing=on_missing)
    strategy = federation.run()
    progress = strategy.progress
    assert progress.round == 5, "to the end, with the closing round"
    (entry,) = federation.entries()
    assert entry.status == "refused"
    assert entry.reason
    assert reason in entry.reason
    assert entry.reason.isprintable()
    assert set(federation.records[ROUND - 1].replies) == {"client-0", "client-2", "client-3"}
    assert federation.lines[ROUND - 1]["not_accepted"] == [
        {"client": EVIL, "status": "refused", "reason": entry.reason}
    ]
    assert [e.status for e in federation.entries(ROUND + 1)] == ["accepted"], "what it sends honestly is welcome"
    assert digest(progress.server) == digest(without.progress.server), "nothing of the refused upload was used"
    assert strategy.report.digests == without.report.digests


def test_what_was_refused_has_no_dense_equivalent_and_its_bytes_count():
    federation = Hostile(ATTACKS["too many entries"][0])
    federation.run()
    (entry,) = federation.entries()
    assert entry.dense == 0
    assert entry.payload > 0
    assert entry.message > entry.payload


HEAVY = ["a hundred thousand metrics", "ten thousand records", "a list of a million numbers", "ten thousand facts"]
HEAVY += ["a million numbers in ten lists"]


@pytest.mark.parametrize("name", HEAVY)
def test_refusing_a_large_message_does_not_serialize_it(name, monkeypatch):
    """Only to count their bytes, Flower took 69 s to write 200,000 metrics again, and 45 s for 5 million numbers."""
    written = []

    def count(records):
        written.append(sum(len(items) for _, items in records.values()))
        assert sum(len(v) for _, items in records.values() for v in items.values() if isinstance(v, list)) < 10**4
        return 1

    monkeypatch.setattr("sepal.server.ledger.records_bytes", count)
    federation = Hostile(ATTACKS[name][0])
    federation.run()
    (entry,) = federation.entries()
    assert entry.status == "refused"
    assert entry.message > 0
    assert max(written) < 300


def test_a_node_that_answers_with_an_error_at_once_is_asked_ever_more_seldom():
    """Each question costs its whole message, and two lines of the ledger."""
    world, asked = federation(secure="off", rounds=1, timeout=0.3), []
    handle = world._handle

    def answer(message):
        if message.metadata.dst_node_id != 101 or read_order(message.content)[0].kind is Kind.QUERY:
            return handle(message)
        asked.append(message)
        return Message(Error(0, "no"), reply_to=message)

    world._handle = answer
    with pytest.raises(RoundError, match="client-1 missing"):
        world.run()
    assert len(asked) <= 3

"""Lies in the words of a method or a task: compressed updates, low-rank adapters, sums of metrics.

The other files of attacks use methods made for tests. Here one client of a real method lies in a different way in each
round; each lie is an honest reply, changed after it was written.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message

from sepal.client_app import host
from sepal.engines.in_process import run_in_process
from sepal.engines.in_process.grid import InProcessGrid
from sepal.protocol.messages import read_order, read_reply, version, write_reply
from sepal.protocol.payloads import seal
from sepal.protocol.types import ClientInfo, Kind, Payload, Upload
from sepal.server.guard import Change, Guard
from sepal.strategies.assembly import assemble
from sepal.wire.tensors import SparseTensor, Support, ValueCoding, at, members, whole
from tests.strategies.baselines import Sent
from tests.tasks.settings import DIABETES

LIAR = "client-00001"
PLAIN = {"clients": 4, "evaluate-every": 0, "on-missing": "skip", "timeout": 30.0, "seed": 1}
DIGITS = {**PLAIN, "dataset": "digits", "partition.name": "iid", "partition.subsample": 120}
METHODS = {
    "stc": {"method": "fedavg", "compress.name": "stc", "compress.keep": 0.05},
    "topk": {"method": "fedavg", "compress.name": "topk", "compress.keep": 0.05},
    "flasc": {"method": "flasc", "lora.rank": 2},
    "fedsa-lora": {"method": "fedsa-lora", "lora.rank": 2},
}


def miscount(name, tensor):
    """One entry more than is admitted; one less of a tensor that is sent whole."""
    entries = tensor.nnz + (1 if tensor.nnz < tensor.size else -1)
    return {name: SparseTensor(tensor.shape, np.arange(entries), np.ones(entries, np.float32))}


def signs(scale):
    """±scale at the honest positions."""

    def change(name, tensor):
        values = np.copysign(np.float32(scale), tensor.values.reshape(-1))
        return {name: SparseTensor(tensor.shape, tensor.positions(), values, coding=ValueCoding.SIGN)}

    return change


LIES = {
    "a value beyond any": (signs(1e30), "expected values of at most 1e+06, got 1e+30"),
    "the largest float32": (signs(3.4e38), "expected values of at most 1e+06"),
    "a wrong number of entries": (miscount, "count: expected"),
    "a shape of one entry more": (lambda n, t: {n: whole(np.ones(t.size + 1, np.float32))}, "shape: expected"),
    "another shape of as many": (lambda n, t: {n: whole(np.ones((1, t.size), np.float32))}, "shape: expected"),
    "no values": (lambda n, t: {n: members(np.ones(t.shape, bool))}, "values: expected values, got none"),
    "the positions of what it got": (
        lambda n, t: {n: replace(at(np.ones(t.shape, np.float32), t.positions()), support=Support.SAME)},
        "index: expected explicit support, got same",
    ),
    "the name of what servers send": (lambda n, t: {"weights": t}, "name: expected one of"),
    "a round for a name": (lambda n, t: {n: t, "1": whole(np.ones(3, np.float32))}, "name: expected one of"),
    "the part that stays with clients": (lambda n, t: {n: t, n.replace("lora_A", "lora_B") + "B": t}, "expected one"),
    "nothing": (lambda n, t: {}, "payload: expected tensors"),
}


class Seals:
    """Replaces ``seal`` of the client, and makes lies of what it has sealed."""

    def __init__(self):
        self.sealed = {}

    def __call__(self, payload):
        content = seal(payload)
        self.sealed[content.digest()] = payload
        return content

    def lie(self, round, head, content):
        """Head and content of the lie of a round, from the second on."""
        payload = self.sealed[content.digest()]
        name = max(payload.tensors, key=lambda key: payload.tensors[key].size)
        make, _ = list(LIES.values())[round - 2]
        lie = seal(Payload(make(name, payload.tensors[name]), payload.scalars))
        return replace(head, version=version(head.round, head.base, head.download, lie.digest())), lie


class Liar:
    """Replaces what one client says in training, by round; keeps the ledger of that client's uploads."""

    def __init__(self, monkeypatch):
        self.seals, self.entries, self.lines = Seals(), [], []
        answer = InProcessGrid.answer
        monkeypatch.setattr(host, "seal", self.seals)
        monkeypatch.setattr(InProcessGrid, "answer", lambda grid, message: self.lie(message, answer(grid, message)))

    def lie(self, message, reply):
        order, _ = read_order(message.content)
        if order.kind is Kind.QUERY or reply.has_error() or "error" in reply.content.config_records:
            return reply
        head, content = read_reply(reply.content)
        return self.change(message, order, head, content, reply) if head.client.name == LIAR else reply

    def opened(self, progress, total):
        pass

    def round(self, progress, record, line):
        self.lines.append(line)
        ledger = [entry for entry in record.ledger if entry.direction == "up"]
        self.entries += [entry for entry in ledger if entry.client == LIAR]
        assert {entry.status for entry in ledger if entry.client != LIAR} == {"accepted"}, "nobody else is refused"

    def closed(self, progress, report):
        pass


class InUploads(Liar):
    """A lie of ``LIES`` in each round from the second on."""

    def change(self, message, order, head, content, reply):
        if order.kind is not Kind.TRAIN or order.plan.round == 1:
            return reply
        return Message(write_reply(*self.seals.lie(order.plan.round, head, content)), reply_to=message)


@pytest.mark.parametrize("method", METHODS)
def test_lies_in_a_methods_uploads_are_refused_by_name_and_the_round_goes_on(method, monkeypatch):
    keys = {**DIGITS, **METHODS[method], "rounds": 1 + len(LIES), "evaluate-sampled": False}
    liar = InUploads(monkeypatch)
    strategy = run_in_process(assemble(keys), observers=[liar])
    assert strategy.progress.closed
    assert [entry.status for entry in liar.entries] == ["accepted", *["refused"] * len(LIES), "accepted"]
    for (lie, (_, words)), entry in zip(LIES.items(), liar.entries[1:-1], strict=True):
        assert words in entry.reason or (lie == "the positions of what it got" and "expected" in entry.reason), lie
        assert entry.reason.isprintable()


def packed(*numbers):
    return struct.pack(f"<{len(numbers)}d", *numbers)


SUMS = {
    "text": ({"trained.sums": "12345678"}, "sums.trained.sums: expected bytes"),
    "a number": ({"trained.sums": 1.0}, "sums.trained.sums: expected bytes"),
    "half a number": ({"trained.sums": b"1234"}, "sums.trained.sums: expected bytes"),
    "NaN": ({"trained.sums": packed(*[float("nan")] * 9)}, "expected finite numbers"),
    "infinity": ({"trained.sums": packed(*[float("inf")] * 9)}, "expected finite numbers"),
    "beyond counting": ({"trained.sums": packed(*[1e300] * 9)}, "trained.sums: expected"),
    "too many": ({"trained.sums": packed(*[1.0] * 5000)}, "trained.sums: expected"),
    "far too many": ({"trained.sums": bytes(8 << 20)}, "expected"),
    "none": ({"trained.sums": b""}, "trained.sums: expected"),
    "a view that nobody asked for": ({"pooled.sums": packed(*[1.0] * 9)}, "sums.pooled.sums: expected sums of"),
    "a name that is no view's": ({"trained.sums.sums": packed(1.0)}, "expected sums of"),
    "a name of any length": ({"x" * 5000: packed(1.0)}, "expected"),
    "many names": ({f"trained{n}.sums": packed(1.0) for n in range(2000)}, "expected"),
    "no examples": ({"trained.sums": packed(*[0.0] * 9)}, "trained.sums: expected"),
}


class InSums(Liar):
    """Sums of ``SUMS`` in each round from the second on, and the last of them in the closing round, too."""

    def change(self, message, order, head, content, reply):
        if order.plan.round > 1:
            lie, _ = list(SUMS.values())[min(order.plan.round - 2, len(SUMS) - 1)]
            reply.content["sums"] = ConfigRecord(dict(lie))
        return reply


@pytest.mark.parametrize("keys", [DIABETES, {**DIGITS, "method": "fedavg"}], ids=["regression", "classification"])
def test_sums_that_lie_are_refused_by_name_and_the_round_goes_on(keys, monkeypatch):
    liar = InSums(monkeypatch)
    strategy = run_in_process(assemble({**keys, **PLAIN, "rounds": 1 + len(SUMS)}), observers=[liar])
    assert strategy.progress.closed
    assert [entry.status for entry in liar.entries] == ["accepted", *["refused"] * (1 + len(SUMS))]
    for (lie, (_, words)), entry in zip(SUMS.items(), liar.entries[1:-1], strict=True):
        assert words in entry.reason or (keys is not DIABETES and "expected" in entry.reason), (lie, entry.reason)
        assert entry.reason.isprintable()
        assert len(entry.reason) <= 300
    assert liar.lines[-1]["round"] == len(liar.lines)


class InCounts(Liar):
    """Claims 10⁹ training examples, from its first answer on."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.sent = {}

    def lie(self, message, reply):
        order, _ = read_order(message.content)
        head, content = read_reply(reply.content)
        if head.client.name != LIAR:
            return reply
        if order.kind is Kind.TRAIN:
            self.sent = {n: t.dense() for n, t in self.seals.sealed[content.digest()].tensors.items()}
        head = replace(head, client=replace(head.client, examples=10**9))
        return Message(write_reply(head, content), reply_to=message)


@pytest.mark.parametrize("robust", ["none", "trimmed"])
def test_a_bound_on_norms_limits_how_far_a_round_goes_and_not_whose_it_is(robust, monkeypatch):
    """Not defended: a mean that is weighted by claimed counts is the liar's alone, as long as its change is bounded."""
    liar = InCounts(monkeypatch)
    keys = {**DIGITS, "method": "fedavg", "rounds": 1, "max-update-norm": 3.0, "robust-mean": robust}
    strategy = run_in_process(assemble(keys), observers=[liar])
    model = strategy.algorithm.model(strategy.progress.server)
    assert [entry.status for entry in liar.entries] == ["accepted", "accepted"]
    alone = all(np.allclose(model[name], sent, atol=1e-6) for name, sent in liar.sent.items())
    assert alone == (robust == "none")


@pytest.mark.parametrize("method", ["flasc", "fedadam", "fedyogi", "fedadagrad"])
def test_one_large_change_stays_in_the_second_moments(method):
    """Not defended without ``max-update-norm``: an adaptive step divides it away, so no result looks absurd, and then
    divides the honest changes of later rounds by it."""
    assembly = assemble({**DIGITS, **METHODS.get(method, {"method": method})})

    def upload(server, state, size):
        if method == "flasc":
            count = server.upload_schema(state, None, server.plan(1)).tensors["change"].max_count
            return {"change": at(np.full(server.flat.size, 0.01 * size, np.float32), np.arange(count))}
        return {name: whole(weights + np.float32(0.01 * size)) for name, weights in state.weights.items()}

    def steps(first):
        server = assembly.method.make_server(assembly.setup)
        state, steps_taken = server.init(), []
        for size in (first, *[1] * 100):
            before = state.weights
            payload = Payload(upload(server, state, size))
            sent = Sent([Upload(ClientInfo(f"client-{number}", 10), payload) for number in range(4)])
            state, _ = server.aggregate(state, sent, server.plan(2))
            steps_taken.append(max(float(np.abs(state.weights[name] - before[name]).max()) for name in before))
        return steps_taken

    honest, poisoned = steps(1), steps(1e6)
    assert poisoned[0] < 20 * honest[0], "nothing to see in the round itself"
    assert poisoned[-1] < honest[-1] / 100, "a hundred rounds later the model still does not move"


def test_large_thresholds_of_one_client_move_the_weights_that_others_keep():
    """Not defended: weights follow the thresholds, whose bound is that of a model's change."""
    assembly = assemble({**DIGITS, "method": "spafl"})
    server = assembly.method.make_server(assembly.setup)
    client = assembly.method.make_client(assembly.setup, None)
    state = server.init()
    lie = {name: np.full_like(zeros, 1.0) for name, zeros in state.thresholds.items()}
    changes = {name: Change(float(np.linalg.norm(value))) for name, value in lie.items()}
    assert Guard(server, assembly.setup, state).refused_change(changes) is None
    sent = [lie, *[state.thresholds] * 3]
    uploads = [
        Upload(ClientInfo(f"client-{n}", 10), Payload({k: whole(v) for k, v in t.items()})) for n, t in enumerate(sent)
    ]
    state, _ = server.aggregate(state, Sent(uploads), server.plan(2))
    received = client.thresholds(server.download(state, uploads[1].client, server.plan(3)))
    name = "conv1.weight"
    moved = client.moved(client.init(), received)[name] - assembly.setup.weights[name]
    assert np.allclose(np.abs(moved), 0.25 / 9)

"""The protocol has a number, which is raised when keys, messages or payloads change (docs/versioning.md)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields

import pytest
from flwr.app import ConfigRecord, RecordDict

from sepal import __version__
from sepal.client_app.build import Node, Shared, build_host
from sepal.config import RunConfig
from sepal.config.base import key_fields
from sepal.config.parse import NOT_SET
from sepal.errors import ConfigError, ProtocolError
from sepal.protocol import messages, peer
from sepal.protocol.messages import HEADS, Order, Reply, read_order, read_reply, write_error, write_order, write_reply
from sepal.protocol.peer import Peer, check_peer
from sepal.protocol.types import ClientInfo, Kind, Plan
from sepal.strategies import registry
from sepal.study.method_checks.cases import CLIENTS, ScratchStore
from sepal.wire.header import VERSION
from tests.methods import case
from tests.sepal.example_messages import CONTENT, ORDER, REPLY, changed

HOW = (
    "keys, messages or payloads are no longer those of protocol {}. Raise PROTOCOL in sepal/protocol/peer.py by one, "
    "unless no release has this number yet; make sure that the protocol before still works with it "
    "(docs/versioning.md); then write {!r} here"
)
DIGESTS = {
    2: ("1b50167bb8623c41", "6cd21226fdcc38dc", "3ce91b5644b866e5")
}  # of the last number: keys, messages, payloads


def digest(described) -> str:
    return hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:16]


def keys_with_types_and_defaults():
    groups = {"": RunConfig, **{f"{name}.": registry.get(name).hyper for name in registry.METHODS}}
    return {
        key: [str(info.annotation), repr(NOT_SET.get(key, info.get_default(call_default_factory=True)))]
        for prefix, kind in groups.items()
        for key, info in key_fields(kind, prefix)
    }


def message_fields():
    kinds = [str(kind) for kind in Kind]
    parts = {kind.__name__: [part.name for part in fields(kind)] for kind in (Order, Reply, Plan, ClientInfo)}
    return [kinds, parts, {side: sorted(head) for side, head in HEADS.items()}, sorted(messages.RECORDS), VERSION]


def described(schema):
    tensors = {
        name: "of the tensors before it"
        if callable(spec)
        else [spec.shape, str(spec.support), spec.values, spec.optional, spec.index is not None]
        + ["entropy-coded"] * spec.entropy_coded
        for name, spec in schema.tensors.items()
    }
    return [tensors, {name: kind.__name__ for name, (kind, *_) in schema.scalars.items()}]


def payload_schemas():
    by_method = {}
    for name in registry.METHODS:
        assembly = case(name).assembly()
        server = assembly.method.make_server(assembly.setup)
        host = build_host(Shared.around(assembly, "cpu"), Node(2, CLIENTS), "run", ScratchStore())
        plans = [server.plan(number) for number in (1, 2)]
        by_method[name] = [
            [
                *(plan.phase, plan.who, sorted(plan.scalars)),
                described(server.upload_schema(server.init(), host.info, plan)),
                described(host.algorithm.download_schema(host.algorithm.init(), plan)),
            ]
            for plan in plans
        ]
    return by_method


@pytest.mark.parametrize(
    ("part", "describe"), list(enumerate([keys_with_types_and_defaults, message_fields, payload_schemas]))
)
def test_a_change_of_keys_messages_or_payloads_raises_the_number(part, describe):
    changed_digest = digest(describe())
    assert DIGESTS[peer.PROTOCOL][part] == changed_digest, HOW.format(peer.PROTOCOL, changed_digest)


def test_the_description_changes_with_a_default(monkeypatch):
    before = digest(keys_with_types_and_defaults())
    monkeypatch.setattr(RunConfig.model_fields["momentum"], "default", 0.123)
    assert digest(keys_with_types_and_defaults()) != before


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_protocol_works_with_the_one_before_and_the_one_after(number, monkeypatch):
    monkeypatch.setattr(peer, "PROTOCOL", 3)
    check_peer(Peer(number), "server")
    read_order(changed(write_order(ORDER, CONTENT), protocol=number))
    read_reply(changed(write_reply(REPLY, CONTENT), protocol=number))


@pytest.mark.parametrize(
    ("number", "got", "older"),
    [
        (5, "protocol 5 (Sepal 0.9) of the {}", "receiver"),
        (1, "protocol 1 (Sepal 0.9) of the {}", "sender"),
        (None, "none: a {} before protocol 2", "sender"),
        ("3", "none: a {} before protocol 2", "sender"),
        (True, "none: a {} before protocol 2", "sender"),
        (-3, "none: a {} before protocol 2", "sender"),
    ],
)
@pytest.mark.parametrize("sender", ["server", "client"])
def test_another_protocol_is_refused_in_a_line_that_says_which_side_to_upgrade(sender, number, got, older, monkeypatch):
    monkeypatch.setattr(peer, "PROTOCOL", 3)
    receiver = {"server": "client", "client": "server"}[sender]
    write, read = {"server": (write_order, read_order), "client": (write_reply, read_reply)}[sender]
    head = ORDER if sender == "server" else REPLY
    expected = f"2 to 4, because this {receiver} has protocol 3 (Sepal {__version__})"
    upgraded = {"sender": sender, "receiver": receiver}[older]
    with pytest.raises(ProtocolError) as caught:
        read(changed(write(head, CONTENT), protocol=number, sepal="0.9"))
    assert str(caught.value) == f"protocol: expected {expected}, got {got.format(sender)}: upgrade the {upgraded}"


def test_an_error_of_a_client_before_the_first_protocol_says_that_and_not_what_it_misread():
    parts = {"type": "ConfigError", "key": "apfl.alpha", "expected": "no error", "got": "code 1", "client": "a"}
    with pytest.raises(ProtocolError, match=r"got none: a client before protocol 2: upgrade the client$"):
        read_reply(RecordDict({"error": ConfigRecord(parts)}))
    with pytest.raises(ConfigError, match=r"^a: seed: expected a, got b$"):
        read_reply(write_error(ConfigError("seed", "a", "b"), "a"))


@pytest.mark.parametrize("release", ["0.1\n", "x" * 33, "", 3, "\x1b[2J"])
def test_a_release_that_is_no_version_is_not_repeated(release):
    assert Peer.of({"protocol": 2, "sepal": release}) == Peer(2)


@pytest.mark.parametrize(
    ("write", "head", "read"), [(write_order, ORDER, read_order), (write_reply, REPLY, read_reply)]
)
def test_a_field_that_this_protocol_lacks_is_refused_and_not_passed_over(write, head, read):
    with pytest.raises(ProtocolError, match=r"message: expected a head of protocol 2, got also in it"):
        read(changed(write(head, CONTENT), also=1))

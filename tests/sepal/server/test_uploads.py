"""A round's downloads and uploads: what does not fit into memory is made again, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from sepal.errors import WireError
from sepal.layout import Parameter, Role
from sepal.protocol.payloads import seal
from sepal.protocol.types import ClientInfo, Payload, Plan, Schema
from sepal.server import round as round_module
from sepal.server import uploads as uploads_module
from sepal.server.downloads import Downloads, room
from sepal.server.run_state import RoundStart, RunState
from sepal.server.uploads import RoundUploads
from sepal.storage.serialize import digest
from sepal.wire.tensors import Support, TensorSpec, at
from tests.contract.fakes import FAKES
from tests.contract.harness import Federation

NAMES = ("a", "b", "c")
INDEX = np.array([1, 3], np.int64)


class Counting:
    """A server algorithm that counts how often it composes, and whose uploads have the download's support."""

    def __init__(self):
        self.composed = 0

    def newcomer(self, state, client, plan):
        self.composed += 1
        return Payload({"w": at(np.arange(4.0), INDEX)})

    def upload_schema(self, state, client, plan):
        return Schema({"w": TensorSpec((4,), Support.SAME)})


def start():
    roster = {name: ClientInfo(name, 10) for name in NAMES}
    return RoundStart(Counting(), RunState("run", 0, None, roster=roster), Plan(1))


def upload(value):
    return seal(Payload({"w": replace(at(np.full(4, value), INDEX), support=Support.SAME)}))


@pytest.mark.parametrize(("limit", "decodings", "compositions"), [(1 << 20, 3, 3), (0, 9, 9)])
def test_uploads_come_in_name_order_and_are_decoded_once_as_long_as_they_fit(limit, decodings, compositions):
    begun, contents = start(), {name: upload(ord(name)) for name in NAMES}
    uploads = RoundUploads(begun, Downloads(begun, limit), contents.__getitem__, limit)
    calls, decode = [], uploads._decode
    uploads._decode = lambda name, content: calls.append(name) or decode(name, content)
    for name in ("c", "a", "b"):
        uploads.check(name, contents[name])
        uploads.accept(name)
    for _ in range(2):
        decoded = [(upload.client.name, upload.payload.tensors["w"].dense().tolist()) for upload in uploads]
        assert decoded == [(name, [0, ord(name), 0, ord(name)]) for name in NAMES]
    assert len(uploads) == 3
    assert (len(calls), begun.algorithm.composed) == (decodings, compositions)


def test_an_upload_that_does_not_fit_names_the_tensor_and_whose_schema_says_so():
    begun = start()
    begun.algorithm.upload_schema = lambda *_: Schema({"w": TensorSpec((4,), min_count=3)})
    uploads = RoundUploads(begun, Downloads(begun, 1 << 20), {}.__getitem__, 1 << 20)
    with pytest.raises(WireError) as refused:
        uploads.check("a", seal(Payload({"w": at(np.arange(4.0), INDEX)})))
    line = "w count: expected 3 to 4, got 2 in the upload (see Counting.upload_schema)"
    assert str(refused.value) == line


def test_what_was_checked_and_refused_is_not_aggregated():
    begun = start()
    uploads = RoundUploads(begun, Downloads(begun, 1 << 20), {}.__getitem__, 1 << 20)
    uploads.check("a", upload(1.0))
    assert (len(uploads), list(uploads)) == (0, [])


def test_an_aggregation_cannot_change_what_it_is_given():
    begun = start()
    uploads = RoundUploads(begun, Downloads(begun, 1 << 20), {}.__getitem__, 1 << 20)
    uploads.check("a", upload(1.0))
    uploads.accept("a")
    (only,) = uploads
    with pytest.raises(ValueError, match="read-only"):
        only.payload.tensors["w"].values[0] = 5


def test_a_download_that_was_answered_makes_room():
    begun = start()
    downloads = Downloads(begun, limit=100)
    first = downloads.get("a")
    assert downloads.get("a") is first
    downloads.get("b")
    downloads.get("b")
    assert begun.algorithm.composed == 3, "no room for the second while the first waits"
    downloads.drop("a")
    downloads.get("b")
    downloads.get("b")
    assert begun.algorithm.composed == 4


@pytest.mark.parametrize(("parameters", "expected"), [(1000, 32 << 20), (2 << 20, 64 << 20), (86_000_000, 256 << 20)])
def test_the_room_for_messages_is_bounded_in_bytes(parameters, expected):
    """With 86 M parameters eight models would be 2.6 GiB of downloads, and as much of uploads."""
    setup = SimpleNamespace(layout=[Parameter("w", (parameters,), Role.WEIGHT)])
    assert room(setup) == expected


@pytest.mark.parametrize("kind", FAKES)
def test_a_run_without_room_ends_the_same(kind, monkeypatch):
    """Every download is composed again and every upload decoded again, whenever it is needed."""
    plain = Federation(FAKES[kind][0]).run()
    for module in (round_module, uploads_module):
        monkeypatch.setattr(module, "room", lambda setup: 0)
    federation = Federation(FAKES[kind][0], lost={(2, "client-1")})
    assert digest(federation.run().progress.server) == digest(plain.progress.server)

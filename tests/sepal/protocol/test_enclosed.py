"""Messages that stay on the machine are the ones that would travel: equal objects, sizes and digests."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

from sepal.errors import ProtocolError
from sepal.protocol.messages import Content, Enclosed, arrays_bytes, read_order, read_reply, write_order, write_reply
from sepal.protocol.payloads import seal, unseal
from sepal.protocol.types import Payload, Schema
from sepal.server.ledger import message_bytes
from sepal.wire.tensors import SparseTensor, TensorSpec
from tests.sepal.example_messages import CONTENT, ORDER, REPLY

HEADS = pytest.mark.parametrize(
    ("head", "write", "read"),
    [(ORDER, write_order, read_order), (REPLY, write_reply, read_reply)],
    ids=["order", "reply"],
)
CONTENTS = [CONTENT, Content(), Content(b"x" * 70_000), Content(b"", {"a": 1, "b": True, "c": "text"})]


@HEADS
@pytest.mark.parametrize("content", CONTENTS, ids=["usual", "empty", "large", "scalars"])
def test_an_enclosed_message_is_the_one_that_would_travel(head, write, read, content):
    enclosed, records = Enclosed(head, content), write(head, content)
    assert message_bytes(enclosed) == message_bytes(records)
    assert arrays_bytes(enclosed) == arrays_bytes(records) == len(content.data)
    assert read(enclosed) == read(records) == (head, content)
    assert not enclosed.written
    again = pickle.loads(pickle.dumps(enclosed))
    assert read(again) == (head, content)
    assert dict(enclosed) == dict(records)  # looked into
    assert enclosed.written
    assert message_bytes(enclosed) == message_bytes(records)
    assert read(enclosed) == (head, content)
    assert read(pickle.loads(pickle.dumps(enclosed))) == (head, content)


@HEADS
def test_what_is_changed_in_the_records_counts(head, write, read):
    enclosed = Enclosed(head, CONTENT)
    enclosed["sepal"] = ConfigRecord({**enclosed["sepal"], "run": "another"})
    assert read(enclosed)[0].run == "another"


@pytest.mark.parametrize(("head", "reader"), [(ORDER, read_reply), (REPLY, read_order)], ids=["order", "reply"])
def test_an_order_is_no_reply(head, reader):
    with pytest.raises(ProtocolError):
        reader(Enclosed(head, CONTENT))


def test_a_number_that_could_not_travel_is_refused_in_process_too():
    with pytest.raises(ProtocolError, match="of Python, got float32"):
        message_bytes(Enclosed(ORDER, Content(b"", {"rate": np.float32(0.5)})))


def test_what_was_decoded_stays_in_its_process():
    content = Content(b"bytes", {})
    digest = content.digest()
    content.decoded[:] = [{}, {}]
    again = pickle.loads(pickle.dumps(content))
    assert (again, again.decoded, again.digest()) == (content, [], digest)


def test_what_one_client_changes_in_a_download_no_other_reads():
    """Clients of a process share what was decoded; in a deployment each has its own."""
    schema = Schema({"w": TensorSpec((2,))}, {"rate": (float, 0.0, 1.0)})
    tensor = SparseTensor((2,), None, np.ones(2, np.float32))
    content = seal(Payload({"w": tensor}, {"rate": 0.5}))
    first, second = unseal(content, schema), unseal(content, schema)
    first.tensors.clear()
    first.scalars["rate"] = 1.0
    for payload in (second, unseal(content, schema)):
        assert list(payload.tensors) == ["w"]
        assert payload.scalars == content.scalars == {"rate": 0.5}
    with pytest.raises(ValueError, match="read-only"):
        second.tensors["w"].values[:] = 0


def test_what_a_client_changes_in_a_plan_the_server_does_not_read():
    plan = replace(ORDER.plan, scalars={"keep": 1})
    enclosed = Enclosed(replace(ORDER, plan=plan), CONTENT)
    read_order(enclosed)[0].plan.scalars["keep"] = 2
    assert (plan.scalars, read_order(enclosed)[0].plan.scalars) == ({"keep": 1}, {"keep": 1})

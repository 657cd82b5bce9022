"""The ledger: sizes are those that Flower sends, and sums keep purposes apart."""

from __future__ import annotations

import os

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from sepal.errors import DataError
from sepal.protocol.messages import Content, Order, Reply, version, write_error, write_order, write_reply
from sepal.protocol.types import ClientInfo, Kind, Plan
from sepal.server.ledger import Bytes, LedgerEntry, Totals, message_bytes


def measured(records) -> int:
    """What Flower stores and sends of a message's content: every object, deflated, once."""
    return sum(len(item.deflate()) for item in get_all_nested_objects(records).values())


BASE = version(3, "", "d", "u")


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 70_000, 5 * 2**20 - 1, 5 * 2**20, 5 * 2**20 + 1, 31_000_000])
def test_a_message_is_as_long_as_flower_makes_it(size):
    content = Content(os.urandom(size), {"examples": 10})
    order = Order("r" * 32, Kind.TRAIN, Plan(4, "share", "all", {"lr": 0.5}), BASE, BASE, ("received", "trained"))
    metrics = {f"received.{name}": 3.0 for name in ("correct", "examples", "loss")}
    reply = Reply("r" * 32, 4, Kind.TRAIN, ClientInfo("client-1", 10), BASE, "d" * 64, BASE, "s" * 64, metrics)
    for records in (write_order(order, content), write_reply(reply, content)):
        assert message_bytes(records) == pytest.approx(measured(records), abs=12)
        assert message_bytes(records) > size


def test_a_message_that_is_not_ours_is_counted_too():
    records = write_error(DataError("k", "x", "y"), "client-1")
    assert message_bytes(records) == measured(records)
    mixed = RecordDict(
        {"a": ConfigRecord({"x": "y" * 999}), "b": ArrayRecord({"w": Array("uint8", (9,), "t", b"x" * 9)})}
    )
    assert message_bytes(mixed) == pytest.approx(measured(mixed), abs=40)
    assert message_bytes(RecordDict()) == measured(RecordDict())


def entry(purpose, direction, payload, dense=100, status="accepted") -> LedgerEntry:
    return LedgerEntry(1, "a", purpose, direction, payload, payload + 5, dense, status)


def test_sums_keep_purpose_and_direction_apart():
    totals = Totals().plus([entry("training", "up", 10), entry("training", "down", 20), entry("training", "up", 1)])
    totals = totals.plus([entry("evaluation", "down", 7), entry("closing", "down", 3)])
    assert totals.training == Bytes(11, 20, 200, 100, 21, 25)
    assert totals.evaluation == Bytes(0, 7, 0, 100, 0, 12)
    summary = totals.summary()
    assert {key: summary[key] for key in ("up", "down", "up_dense", "down_dense")} == {
        "up": 11,
        "down": 20,
        "up_dense": 200,
        "down_dense": 100,
    }
    assert summary["total"]["down"] == 30
    assert summary["total"]["down_message"] == 45
    assert summary["purposes"]["closing"]["down"] == 3


def test_what_was_refused_has_travelled_all_the_same():
    totals = Totals().plus([entry("training", "up", 10, 0, "refused"), entry("training", "up", 0, 0, "missing")])
    assert (totals.training.up, totals.training.up_dense) == (10, 0)

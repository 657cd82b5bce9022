"""What is no order and no reply: one test for each field that may be wrong."""

from __future__ import annotations

import math

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from sepal import errors
from sepal.errors import ProtocolError
from sepal.protocol.messages import read_order, read_reply, version_round, write_order, write_reply
from tests.sepal.example_messages import CONTENT, ORDER, REPLY, changed

HEX = "a" * 24


@pytest.mark.parametrize("name", ["4", "4-", f"-1-{HEX}", f"04-{HEX}", f"4-{HEX.upper()}", f"4-{HEX[1:]}", f"4_{HEX}"])
@pytest.mark.parametrize("shape", ["{}", "../{}", "{}\n", "{}/x", "111111111{}", "{}a"])
def test_refuses_what_is_not_a_version(name, shape):
    name = shape.format(name if shape == "{}" else f"4-{HEX}")
    with pytest.raises(ProtocolError, match="version: expected ROUND-DIGEST or nothing"):
        version_round(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-a", ".a", "a\n", "é", "a" * 65, "a\x00"])
def test_refuses_a_name_that_is_no_directory_name(name):
    with pytest.raises(ProtocolError, match="client: expected a name"):
        read_reply(changed(write_reply(REPLY, CONTENT), client=name))
    with pytest.raises(ProtocolError, match="run: expected a name"):
        read_order(changed(write_order(ORDER, CONTENT), run=name))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol", 4),
        ("protocol", None),
        ("protocol", "1"),
        ("run", 3),
        ("run", None),
        ("kind", "trane"),
        ("kind", None),
        ("round", -1),
        ("round", 10**9),
        ("round", 1.0),
        ("round", True),
        ("round", None),
        ("phase", 3),
        ("phase", "x" * 257),
        ("who", "everybody"),
        ("who", None),
        ("base", "4"),
        ("base", "../x"),
        ("durable", "newest"),
        ("durable", b"x"),
        ("views", ["received"]),
        ("views", "pooled,received,pooled"),
        ("views", "trained-shift-020"),
        ("views", "trained-shift-²"),
        ("keep", 1),
        ("keep", "yes"),
        ("keep", None),
        ("novel", 1),
        ("novel", None),
    ],
)
def test_refuses_an_order_with(field, value):
    with pytest.raises(ProtocolError) as caught:
        read_order(changed(write_order(ORDER, CONTENT), **{field: value}))
    assert caught.value.key == ("version" if field in ("base", "durable") and isinstance(value, str) else field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol", 4),
        ("protocol", None),
        ("run", b"x"),
        ("run", "x" * 257),
        ("round", -1),
        ("round", 2**62),
        ("round", "4"),
        ("kind", "query "),
        ("client", 3),
        ("client", None),
        ("examples", 0),
        ("examples", -1),
        ("examples", 2**40),
        ("examples", 10.0),
        ("examples", True),
        ("capacity", 0.0),
        ("capacity", 1.5),
        ("capacity", math.nan),
        ("capacity", 1),
        ("device", 7),
        ("device", None),
        ("base", ["x"]),
        ("download", None),
        ("version", "latest"),
        ("state", 3),
    ],
)
def test_refuses_a_reply_with(field, value):
    with pytest.raises(ProtocolError) as caught:
        read_reply(changed(write_reply(REPLY, CONTENT), **{field: value}))
    assert caught.value.key == field


@pytest.mark.parametrize(
    ("metrics", "key"),
    [
        ({"seconds": math.nan}, "metrics.seconds"),
        ({"seconds": math.inf}, "metrics.seconds"),
        ({"seconds": -1e-9}, "metrics.seconds"),
        ({"seconds": -1}, "metrics.seconds"),
        ({"seconds": 1e300}, "metrics.seconds"),
        ({"seconds": 2**63 - 1}, "metrics.seconds"),
        ({"seconds": [1.0, 2.0]}, "metrics.seconds"),
        ({"seconds\n": 1.0}, "metrics"),
        ({"x" * 65: 1.0}, "metrics"),
        ({"": 1.0}, "metrics"),
        ({f"m{n}": 1.0 for n in range(97)}, "metrics"),
    ],
)
def test_refuses_metrics(metrics, key):
    records = write_reply(REPLY, CONTENT)
    records["metrics"] = MetricRecord(metrics)
    with pytest.raises(ProtocolError) as caught:
        read_reply(records)
    assert caught.value.key == key


@pytest.mark.parametrize("value", [b"x", ["a"], [1], 3, "x" * 16385])
def test_refuses_facts(value):
    records = write_reply(REPLY, CONTENT)
    records["facts"] = ConfigRecord({"store": value})
    with pytest.raises(ProtocolError, match="store: expected text of at most 16384 characters"):
        read_reply(records)


@pytest.mark.parametrize("value", [b"x", ["a"], [1.0]])
def test_refuses_scalars(value):
    records = write_reply(REPLY, CONTENT)
    records["scalars"] = ConfigRecord({"n": value})
    with pytest.raises(ProtocolError, match=r"scalars.n: expected a number, text or truth value"):
        read_reply(records)


def test_refuses_a_message_without_a_head_or_with_another_payload():
    with pytest.raises(ProtocolError, match="message: expected a record named sepal, got an empty message"):
        read_reply(RecordDict())
    with pytest.raises(ProtocolError, match="got other"):
        read_order(RecordDict({"other": ConfigRecord()}))
    records = write_reply(REPLY, CONTENT)
    records["payload"] = ArrayRecord({"payload": records["payload"]["payload"], "more": records["payload"]["payload"]})
    with pytest.raises(ProtocolError, match="payload: expected one array named payload, got payload, more"):
        read_reply(records)
    records["payload"] = ArrayRecord({"payload": Array("float32", (1,), "numpy.ndarray", b"1234")})
    with pytest.raises(errors.WireError, match=r"Array type: expected sepal.sparse.v1"):
        read_reply(records)

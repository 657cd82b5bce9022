"""Orders and replies: what is written is read, and reading anything else is a SepalError."""

from __future__ import annotations

import math

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from sepal import errors, messages
from sepal.errors import ContractError, DataError, SepalError
from sepal.messages import (
    Content,
    Order,
    Reply,
    read_order,
    read_reply,
    version,
    version_round,
    write_error,
    write_order,
    write_reply,
)
from sepal.method import ClientInfo, Kind, Plan

RUN = "0123456789abcdef" * 2
BASE = version(3, "", "d", "u")
ORDER = Order(
    RUN, Kind.TRAIN, Plan(4, "share", "all", {"lr": 0.5, "n": 3, "on": True}), BASE, BASE, ("received",), True
)
REPLY = Reply(
    RUN,
    4,
    Kind.TRAIN,
    ClientInfo("client-1", 10, 0.5, "cuda"),
    BASE,
    "d" * 64,
    version(4, BASE, "d", "u"),
    "s" * 64,
    {"received.correct": 3.0, "seconds": 0.25},
    {"store": "x"},
)
CONTENT = Content(b"\x00\xffpayload", {"loss": -0.5, "n": 3, "on": False, "text": "é"})


def journey(records: RecordDict) -> RecordDict:
    """The records as they arrive: through Flower's own serialisation."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    contents = {name: item.deflate() for name, item in get_all_nested_objects(records).items()}
    return inflate_object_from_contents(records.object_id, contents)


@pytest.mark.parametrize("content", [CONTENT, Content()], ids=["full", "empty"])
@pytest.mark.parametrize("travel", [journey, lambda records: records], ids=["serialised", "in process"])
def test_an_order_and_a_reply_arrive_as_they_left(content, travel):
    assert read_order(travel(write_order(ORDER, content))) == (ORDER, content)
    assert read_reply(travel(write_reply(REPLY, content))) == (REPLY, content)
    bare = Order(RUN, Kind.QUERY, Plan(0))
    assert read_order(travel(write_order(bare, content))) == (bare, content)
    short = Reply(RUN, 0, Kind.QUERY, ClientInfo("c", 1))
    assert read_reply(travel(write_reply(short, content))) == (short, content)


def test_a_digest_survives_the_journey_and_sees_types():
    arrived = read_reply(journey(write_reply(REPLY, CONTENT)))[1]
    assert arrived.digest() == CONTENT.digest()
    variants = [Content(b"", {"a": value}) for value in (1, 1.0, True, "1", 0, -1)] + [Content(b"a"), Content()]
    assert len({content.digest() for content in variants}) == len(variants)
    assert Content(b"x", {"a": 1, "b": 2}).digest() == Content(b"x", {"b": 2, "a": 1}).digest()


def test_bytes_cannot_pass_for_scalars():
    assert Content(b'{"a":1}', {}).digest() != Content(b"", {"a": 1}).digest()


def test_a_version_names_its_round_and_everything_that_led_to_it():
    names = {
        version(*parts) for parts in [(4, "b", "d", "u"), (5, "b", "d", "u"), (4, "c", "d", "u"), (4, "b", "e", "u")]
    }
    names |= {version(4, "b", "d", "v"), version(4, "", "bd", "u")}
    assert len(names) == 6
    assert {version_round(name) for name in names} == {4, 5}
    assert version_round("") == -1


HEX = "a" * 24


@pytest.mark.parametrize("name", ["4", "4-", f"-1-{HEX}", f"04-{HEX}", f"4-{HEX.upper()}", f"4-{HEX[1:]}", f"4_{HEX}"])
@pytest.mark.parametrize("shape", ["{}", "../{}", "{}\n", "{}/x", "111111111{}", "{}a"])
def test_refuses_what_is_not_a_version(name, shape):
    name = shape.format(name if shape == "{}" else f"4-{HEX}")
    with pytest.raises(ContractError, match="version: expected ROUND-DIGEST or nothing"):
        version_round(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-a", ".a", "a\n", "é", "a" * 65, "a\x00"])
def test_refuses_a_name_that_is_no_directory_name(name):
    with pytest.raises(ContractError, match="client: expected a name"):
        read_reply(changed(write_reply(REPLY, CONTENT), client=name))
    with pytest.raises(ContractError, match="run: expected a name"):
        read_order(changed(write_order(ORDER, CONTENT), run=name))


def changed(records: RecordDict, record: str = "sepal", **values) -> RecordDict:
    head = records[record]
    for key, value in values.items():
        if value is None:
            del head[key]
        else:
            head[key] = value
    return records


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol", 2),
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
        ("keep", 1),
        ("keep", "yes"),
        ("keep", None),
    ],
)
def test_refuses_an_order_with(field, value):
    with pytest.raises(ContractError) as caught:
        read_order(changed(write_order(ORDER, CONTENT), **{field: value}))
    assert caught.value.key == ("version" if field in ("base", "durable") and isinstance(value, str) else field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol", 2),
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
    with pytest.raises(ContractError) as caught:
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
        ({f"m{n}": 1.0 for n in range(65)}, "metrics"),
    ],
)
def test_refuses_metrics(metrics, key):
    records = write_reply(REPLY, CONTENT)
    records["metrics"] = MetricRecord(metrics)
    with pytest.raises(ContractError) as caught:
        read_reply(records)
    assert caught.value.key == key


@pytest.mark.parametrize("value", [b"x", ["a"], [1], 3, "x" * 257])
def test_refuses_facts(value):
    records = write_reply(REPLY, CONTENT)
    records["facts"] = ConfigRecord({"store": value})
    with pytest.raises(ContractError, match="store: expected text of at most 256 characters"):
        read_reply(records)


@pytest.mark.parametrize("value", [b"x", ["a"], [1.0]])
def test_refuses_scalars(value):
    records = write_reply(REPLY, CONTENT)
    records["scalars"] = ConfigRecord({"n": value})
    with pytest.raises(ContractError, match=r"scalars.n: expected a number, text or truth value"):
        read_reply(records)


def test_refuses_a_message_without_a_head_or_with_another_payload():
    with pytest.raises(ContractError, match="message: expected a record named sepal, got an empty message"):
        read_reply(RecordDict())
    with pytest.raises(ContractError, match="got other"):
        read_order(RecordDict({"other": ConfigRecord()}))
    records = write_reply(REPLY, CONTENT)
    records["payload"] = ArrayRecord({"payload": records["payload"]["payload"], "more": records["payload"]["payload"]})
    with pytest.raises(ContractError, match="payload: expected one array named payload, got payload, more"):
        read_reply(records)
    records["payload"] = ArrayRecord({"payload": Array("float32", (1,), "numpy.ndarray", b"1234")})
    with pytest.raises(errors.WireError, match=r"Array type: expected sepal.sparse.v1"):
        read_reply(records)


def test_a_client_says_why_there_is_no_reply():
    error = DataError("client-1: data", "at least one training example", "none")
    with pytest.raises(DataError) as caught:
        read_reply(journey(write_error(error, "client-1")))
    assert str(caught.value) == "client-1: data: expected at least one training example, got none"
    with pytest.raises(DataError, match=r"^client-2: data: expected x, got y$"):
        read_reply(write_error(DataError("data", "x", "y"), "client-2"))


@pytest.mark.parametrize("kind", ["Exception", "annotations", "__builtins__", "one_line", "x" * 10**5, "", "é\n"])
def test_a_hostile_error_is_one_short_line_of_a_known_type(kind):
    text = "a\n\x1b[2Jb" * 10**4
    record = {"type": kind, "key": text, "expected": text, "got": text, "client": text}
    with pytest.raises(SepalError) as caught:
        read_reply(RecordDict({"error": ConfigRecord(record)}))
    assert type(caught.value) is SepalError
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("record", [{}, {"type": 3, "key": b"x", "got": [1.0]}])
def test_a_hostile_error_may_lack_everything(record):
    with pytest.raises(SepalError):
        read_reply(RecordDict({"error": ConfigRecord(record)}))


LISTS = st.one_of(st.lists(st.integers(-9, 9), max_size=2), st.lists(st.text(max_size=2), max_size=2))
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(max_size=6),
    st.binary(max_size=6),
    LISTS,
    st.sampled_from([1, RUN, "train", "query", "client-1", "sampled", BASE, "payload", "DataError"]),
)
NAMES = ["protocol", "run", "round", "kind", "client", "examples", "capacity", "device", "base", "download", "version"]
HEADS = st.dictionaries(st.sampled_from([*NAMES, "state", "phase", "who", "durable", "views", "keep"]), VALUES)
RECORDS = st.one_of(
    HEADS.map(ConfigRecord),
    st.dictionaries(st.text(max_size=4), VALUES, max_size=3).map(ConfigRecord),
    st.dictionaries(st.text(max_size=4), st.floats() | st.integers(-9, 9), max_size=3).map(MetricRecord),
    st.dictionaries(
        st.sampled_from(["payload", "x"]),
        st.builds(
            Array,
            st.sampled_from(["uint8", "float32", ""]),
            st.tuples(st.integers(-1, 4)),
            st.sampled_from(["sepal.sparse.v1", "numpy.ndarray"]),
            st.binary(max_size=4),
        ),
        max_size=2,
    ).map(ArrayRecord),
)


def total(read, records: RecordDict) -> None:
    reason = ""
    try:
        read(records)
    except SepalError as caught:
        reason = str(caught)
    assert reason.isprintable()


@settings(max_examples=400)
@given(
    st.dictionaries(st.sampled_from(["sepal", "error", "metrics", "facts", "scalars", "plan", "payload", "x"]), RECORDS)
)
def test_reading_is_total_on_junk(records):
    for read in (read_order, read_reply):
        total(read, RecordDict(records))


@settings(max_examples=300)
@given(st.sampled_from([*NAMES, "state", "views", "keep", "durable", "who", "phase"]), VALUES)
def test_reading_is_total_where_one_field_is_junk(field, value):
    total(read_order, changed(write_order(ORDER, CONTENT), **{field: value}))
    total(read_reply, changed(write_reply(REPLY, CONTENT), **{field: value}))


def test_the_protocol_has_one_version():
    """A change of the records is a new protocol: this test is the reminder to raise the number."""
    assert messages.PROTOCOL == 1
    assert set(write_order(ORDER, CONTENT)["sepal"]) == {
        *("protocol", "run", "kind", "round", "phase", "who", "base", "durable", "views", "keep")
    }
    assert set(write_reply(REPLY, CONTENT)["sepal"]) == {
        *("protocol", "run", "round", "kind", "client", "examples", "capacity", "device"),
        *("base", "download", "version", "state"),
    }

"""Orders and replies: what is written is read, and reading anything else is a SepalError."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from sepal.errors import DataError, SepalError
from sepal.protocol.messages import (
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
from sepal.protocol.peer import PROTOCOL
from sepal.protocol.types import ClientInfo, Kind, Plan
from tests.sepal.example_messages import BASE, CONTENT, ORDER, REPLY, RUN, changed


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
    clipped = replace(ORDER, plan=replace(ORDER.plan, clip=0.25))
    assert read_order(travel(write_order(clipped, content))) == (clipped, content)
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
        read_reply(RecordDict({"error": ConfigRecord({"protocol": PROTOCOL, **record})}))
    assert type(caught.value) is SepalError
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "record", [{}, {"protocol": PROTOCOL}, {"protocol": PROTOCOL, "type": 3, "key": b"x", "got": [1.0]}]
)
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
HEADS = st.dictionaries(st.sampled_from([*NAMES, "state", "phase", "who", "durable", "views", "keep", "novel"]), VALUES)
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
@given(st.sampled_from([*NAMES, "state", "views", "keep", "novel", "durable", "who", "phase"]), VALUES)
def test_reading_is_total_where_one_field_is_junk(field, value):
    total(read_order, changed(write_order(ORDER, CONTENT), **{field: value}))
    total(read_reply, changed(write_reply(REPLY, CONTENT), **{field: value}))


@pytest.mark.parametrize("clip", [0.0, -1.0, float("inf"), float("nan"), 1, "1"])
def test_a_clip_is_a_finite_number_above_0(clip):
    with pytest.raises(SepalError, match="clip: expected a finite number above 0"):
        read_order(changed(write_order(ORDER, CONTENT), clip=clip))

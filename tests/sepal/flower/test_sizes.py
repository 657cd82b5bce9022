"""A message's size is computed; Flower's own writing of it is the oracle."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hypothesis import given
from hypothesis import strategies as st

from sepal.flower import sizes
from sepal.flower.sizes import records_bytes
from sepal.protocol.fields import light_records


def written(records) -> int:
    """What Flower stores and sends of records: every object, deflated, once."""
    return sum(len(item.deflate()) for item in get_all_nested_objects(records).values())


NUMBERS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
SINGLE = [st.booleans(), NUMBERS, st.floats(), TEXTS, st.binary(max_size=300)]
LISTED = [st.booleans(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1), st.floats(), TEXTS, st.binary()]
VALUES = st.one_of(*SINGLE, *(st.lists(kind, max_size=20) for kind in LISTED))
CONFIGS = st.dictionaries(TEXTS, VALUES, max_size=8).map(ConfigRecord)
FIGURES = st.one_of(NUMBERS, st.floats(), st.lists(st.floats(), max_size=9), st.lists(LISTED[1], max_size=9))
METRICS = st.dictionaries(TEXTS, FIGURES, max_size=8).map(MetricRecord)


@given(st.dictionaries(TEXTS, st.one_of(CONFIGS, METRICS), max_size=5).map(RecordDict))
def test_the_size_of_records_is_what_flower_writes(records):
    assert records_bytes(light_records(records)) == written(records)


@pytest.mark.parametrize(
    ("first", "second"),
    [({"a": 1}, {"a": 1}), ({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ({"a": 0.0}, {"a": -0.0}), ({}, {})],
)
def test_records_with_equal_content_are_sent_once(first, second):
    for kinds in ((ConfigRecord, ConfigRecord), (ConfigRecord, MetricRecord), (MetricRecord, MetricRecord)):
        records = RecordDict({"first": kinds[0](first), "second": kinds[1](second), "third": kinds[0](first)})
        assert records_bytes(light_records(records)) == written(records)


def test_large_records_that_differ_late_are_measured_in_a_moment(monkeypatch):
    """Writing each pair of them out took seconds of the server's for a reply of 16 MB."""
    values = []
    monkeypatch.setattr(sizes, "repr", lambda value: values.append(value) or repr(value), raising=False)
    alike = {f"r{n}": ConfigRecord({"first": bytes(1000), "last": bytes([n])}) for n in range(32)}
    assert records_bytes(light_records(RecordDict(alike))) == written(RecordDict(alike))
    assert not values


@pytest.mark.parametrize(
    ("first", "second"), [(1, True), (1, 1.0), (0.0, -0.0), ([0.0], [-0.0]), ([1], [True]), (b"a", "a"), ([], [1])]
)
def test_values_that_python_calls_equal_are_written_apart(first, second):
    records = RecordDict({"first": ConfigRecord({"a": first}), "second": ConfigRecord({"a": second})})
    assert records_bytes(light_records(records)) == written(records)

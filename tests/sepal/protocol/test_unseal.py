"""The gate between wire and method: content against schema."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sepal.errors import ProtocolError, WireError
from sepal.protocol.messages import Content
from sepal.protocol.payloads import delivered, seal, unseal
from sepal.protocol.types import Payload, Schema
from sepal.wire.tensors import Support, TensorSpec, ValueCoding, at, members, whole

SCALARS = {"n": (int, 0, 9), "x": (float, -1.0, None), "t": (bool, None, None), "s": (str, None, None)}
GOOD = {"n": 3, "x": 0.5, "t": True, "s": "a"}


def test_scalars_pass():
    assert unseal(Content(b"", GOOD), Schema({}, SCALARS)).scalars == GOOD
    edges = {**GOOD, "n": 9, "x": -1.0, "t": False}
    assert unseal(Content(b"", edges), Schema({}, SCALARS)).scalars == edges


@pytest.mark.parametrize(
    ("changes", "key", "expected"),
    [
        ({"n": None}, "scalars.n", "int"),
        ({"more": 1}, "scalars.more", "one of n, x, t, s"),
        ({"n": 3.0}, "scalars.n", "int"),
        ({"n": True}, "scalars.n", "int"),
        ({"n": "3"}, "scalars.n", "int"),
        ({"n": -1}, "scalars.n", "at least 0"),
        ({"n": 10}, "scalars.n", "at most 9"),
        ({"n": 2**63 - 1}, "scalars.n", "at most 9"),
        ({"x": 1}, "scalars.x", "float"),
        ({"x": float("nan")}, "scalars.x", "at least -1.0"),
        ({"x": float("inf")}, "scalars.x", "at least -1.0"),
        ({"x": -1.5}, "scalars.x", "at least -1.0"),
        ({"t": 1}, "scalars.t", "bool"),
        ({"s": 1}, "scalars.s", "str"),
    ],
)
def test_refuses_scalars(changes, key, expected):
    scalars = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(ProtocolError) as caught:
        unseal(Content(b"", scalars), Schema({}, SCALARS))
    assert (caught.value.key, caught.value.expected) == (key, expected)


def test_refuses_a_payload_where_none_is_expected():
    with pytest.raises(ProtocolError, match=r"payload: expected none, got \d+ bytes"):
        unseal(seal(Payload({"w": whole(np.ones(2))})), Schema())
    with pytest.raises(ProtocolError, match=r"scalars.n: expected one of none"):
        unseal(Content(b"", {"n": 1}), Schema())


def test_refuses_no_payload_where_one_is_needed():
    optional, needed = TensorSpec((2,), optional=True), TensorSpec((2,))
    assert unseal(Content(), Schema({"w": optional})).tensors == {}
    with pytest.raises(ProtocolError, match="payload: expected tensors from v on, got none"):
        unseal(Content(), Schema({"w": optional, "v": needed}))
    with pytest.raises(ProtocolError, match="payload: expected tensors from v on, got none"):
        unseal(Content(), Schema({"w": optional, "v": lambda decoded: optional}))


def test_what_is_sealed_is_unsealed():
    tensors = {"mask": members(np.array([True, False, True])), "kept": whole(np.array([1.0, 2.0]))}
    schema = Schema(
        {"mask": TensorSpec((3,), values=False), "kept": lambda decoded: TensorSpec((decoded["mask"].nnz,))}
    )
    payload = unseal(seal(Payload(tensors)), schema)
    assert payload.tensors["kept"].dense().tolist() == [1, 2]
    assert payload.tensors["mask"].mask().tolist() == [True, False, True]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_cannot_be_sealed(value):
    with pytest.raises(WireError):
        seal(Payload({"w": whole(np.array([0.0, value]))}))


SENT = at(np.arange(5.0), np.array([1, 3]))
ANSWER = replace(at(np.array([0, 7.0, 0, 8, 0]), np.array([1, 3])), support=Support.SAME)


def test_same_takes_its_support_from_the_download_that_is_answered():
    calls = []

    def download():
        calls.append(1)
        return {"w": SENT}

    schema = Schema({"w": TensorSpec((5,), Support.SAME)})
    payload = unseal(seal(Payload({"w": ANSWER})), schema, download)
    assert payload.tensors["w"].positions().tolist() == [1, 3]
    assert payload.tensors["w"].dense().tolist() == [0, 7, 0, 8, 0]
    later = Schema({"w": lambda decoded: TensorSpec((5,), Support.SAME)})
    assert unseal(seal(Payload({"w": ANSWER})), later, download).tensors["w"].positions().tolist() == [1, 3]
    assert len(calls) == 2


def test_the_download_is_composed_only_where_same_needs_it():
    def download():
        raise AssertionError("composed for nothing")

    unseal(seal(Payload({"w": SENT})), Schema({"w": TensorSpec((5,))}), download)
    spec = TensorSpec((5,), Support.SAME, index=np.array([1, 3]))
    assert unseal(seal(Payload({"w": ANSWER})), Schema({"w": spec}), download).tensors["w"].nnz == 2


@pytest.mark.parametrize("download", [None, dict, lambda: {"v": SENT}])
def test_same_refuses_where_the_download_has_no_such_tensor(download):
    with pytest.raises(ProtocolError, match="w: expected a tensor of that name in the download that this answers"):
        unseal(seal(Payload({"w": ANSWER})), Schema({"w": TensorSpec((5,), Support.SAME)}), download)


def test_same_with_another_support_than_the_download_is_refused():
    mismatched = {"w": at(np.arange(5.0), np.array([0, 1, 2]))}
    with pytest.raises(WireError):
        unseal(seal(Payload({"w": ANSWER})), Schema({"w": TensorSpec((5,), Support.SAME)}), lambda: mismatched)


@pytest.mark.parametrize("coding", [ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16])
def test_delivered_is_what_a_receiver_gets(coding):
    """Values that each coding rounds in its own way, a denormal of fp16, and two beyond the greatest of 16 bits."""
    values = np.array([0.1, -1 / 3, 1e-7, 0.0, -0.0, 65519.0, 7e4, -9e5], np.float32)
    got = unseal(seal(Payload({"w": whole(values, coding)})), Schema({"w": TensorSpec((8,))})).tensors["w"].dense()
    assert delivered(values, coding).tobytes() == got.tobytes()
    assert np.array_equal(got, values) is (coding is ValueCoding.FP32)


@pytest.mark.parametrize("coding", [ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16])
def test_delivered_leaves_what_cannot_be_sent_as_it_is(coding):
    values = np.array([0.1, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(delivered(values, coding), values)

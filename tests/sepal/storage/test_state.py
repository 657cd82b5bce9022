"""States: what goes in comes out, digests see every difference, and what cannot be stored is refused by its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Literal, TypeVar

import hypothesis.extra.numpy as arrays_of
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from sepal.errors import StateError
from sepal.storage.serialize import digest, digest_arrays, flatten, restore
from sepal.wire.tensors import SparseTensor, Support, ValueCoding, at, members, whole

Floats = npt.NDArray[np.float32]


class Colour(StrEnum):
    RED = "red"


class Level(Enum):
    LOW = 1


@dataclass(frozen=True)
class Inner:
    array: npt.NDArray[Any]
    colour: Colour = Colour.RED
    level: Level = Level.LOW


@dataclass(frozen=True)
class State:
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    inner: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    maybe: Floats | None = None
    deep: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    sparse: Mapping[str, SparseTensor] = field(default_factory=dict)
    number: float = 0.0
    count: int = 0
    truth: bool = False
    text: str = ""
    scalar: int | float | str | bool = 0
    phase: Literal["a", "b"] = "a"
    anything: Any = None


def stored(value, kind=None):
    """What comes back after a journey through a file."""
    arrays, structure = flatten(value)
    return restore(kind or type(value), arrays, json.loads(json.dumps(structure)))


def same(a, b):
    """Equal by content: what each takes apart to, arrays compared bit for bit, dtype and shape included."""
    (x, s), (y, t) = flatten(a), flatten(b)
    assert s == t
    assert x.keys() == y.keys()
    for name in x:
        assert (x[name].dtype, x[name].shape, x[name].tobytes()) == (y[name].dtype, y[name].shape, y[name].tobytes())


ANY_ARRAY = arrays_of.arrays(
    st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_]),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
KEYS = st.text(st.sampled_from("ab/~@.0"), max_size=5)
NUMBERS = st.floats(allow_nan=False)
SPARSE = st.sampled_from(
    [
        whole(np.float32(3)),
        whole(np.zeros((2, 0))),
        at(np.arange(6.0), np.array([1, 4])),
        members(np.eye(2, dtype=bool)),
    ]
)


@settings(max_examples=150)
@given(
    st.builds(
        State,
        arrays=st.dictionaries(KEYS, ANY_ARRAY, max_size=4),
        inner=st.lists(st.builds(Inner, ANY_ARRAY), max_size=2).map(tuple),
        pair=st.tuples(st.integers(), st.text(max_size=5)),
        maybe=st.none() | arrays_of.arrays(np.float32, 3),
        deep=st.dictionaries(KEYS, st.dictionaries(KEYS, NUMBERS, max_size=2), max_size=2),
        sparse=st.dictionaries(KEYS, SPARSE, max_size=2),
        number=NUMBERS,
        count=st.integers(),
        truth=st.booleans(),
        text=st.text(max_size=8),
        scalar=st.one_of(st.integers(), NUMBERS, st.text(max_size=3), st.booleans()),
        phase=st.sampled_from(["a", "b"]),
        anything=st.none() | st.text(max_size=3),
    )
)
def test_a_state_survives_storage(state):
    keys = [state.deep, *state.deep.values(), state.arrays, state.sparse]
    if any(set(mapping) == {"@array"} for mapping in keys):
        return
    back = stored(state)
    same(back, state)
    assert digest(back) == digest(state)
    assert type(back.scalar) is type(state.scalar)
    assert isinstance(back.inner, tuple)


def test_an_array_without_dimensions_keeps_its_shape():
    back = stored(State(arrays={"a": np.array(2, np.float32)}))
    assert back.arrays["a"].shape == ()
    assert digest_arrays({"a": np.zeros(())}) != digest_arrays({"a": np.zeros(1)})


Scalar = TypeVar("Scalar", bound=np.generic)
Alias = TypeAliasType("Alias", np.ndarray[tuple[Any, ...], np.dtype[Scalar]], type_params=(Scalar,))


@dataclass(frozen=True)
class Aliased:
    array: Alias[np.float32]
    by_name: Mapping[str, Alias[np.uint8]]
    maybe: Alias[np.float32] | None = None


def test_an_array_under_a_type_alias_comes_back():
    """NDArray is such an alias from numpy 2.5 on, which needs Python 3.12."""
    value = Aliased(np.ones(2, np.float32), {"a": np.zeros(3, np.uint8)}, np.ones(1, np.float32))
    back = stored(value)
    np.testing.assert_array_equal(back.array, value.array)
    np.testing.assert_array_equal(back.by_name["a"], value.by_name["a"])
    np.testing.assert_array_equal(back.maybe, value.maybe)


def test_a_sparse_tensor_comes_back_as_one():
    sent = replace(at(np.arange(4, dtype=np.float32), np.array([0, 2])), support=Support.SAME, coding=ValueCoding.FP16)
    back = stored(State(sparse={"w": sent})).sparse["w"]
    assert (back.shape, back.support, back.coding) == ((4,), Support.SAME, ValueCoding.FP16)
    assert back.dense().tolist() == [0, 0, 2, 0]


def test_keys_with_slashes_do_not_share_a_place():
    first, second = np.zeros(2, np.float32), np.ones(3, np.float32)
    arrays, _ = flatten({"a/b": first, "a": {"b": second}})
    assert sorted(array.size for array in arrays.values()) == [2, 3]
    arrays, _ = flatten({"a~1b": first, "a/b": second})
    assert len(arrays) == 2


def test_another_byte_order_is_the_same_state():
    little = np.array([1.5, 2.5], "<f4")
    assert digest_arrays({"a": little}) == digest_arrays({"a": little.astype(">f4")})
    assert digest(State(maybe=little)) == digest(State(maybe=little.astype(">f4")))
    assert flatten(State(maybe=little.astype(">f4")))[0]["/maybe"].dtype.isnative


def test_a_digest_does_not_depend_on_order_or_memory_layout():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(3)
    assert digest_arrays({"a": a, "b": b}) == digest_arrays({"b": b, "a": np.asfortranarray(a)})
    assert digest(State(deep={"x": {}, "y": {}})) == digest(State(deep={"y": {}, "x": {}}))


def test_a_whole_number_digests_the_same_whether_int_or_float():
    """A field of type float may hold 1 before it is stored and holds 1.0 after."""
    assert digest(State(number=1)) == digest(State(number=1.0)) == digest(stored(State(number=1)))
    assert digest(State(number=1)) != digest(State(number=1.5))


@pytest.mark.parametrize(
    "changed",
    [
        {"b": np.zeros(2, np.float32)},
        {"a": np.zeros(2, np.float64)},
        {"a": np.zeros((2, 1), np.float32)},
        {"a": np.array([0, 1], np.float32)},
        {"a": np.array([0, -0.0], np.float32)},
        {},
        {"a": np.zeros(2, np.float32), "b": np.zeros(0)},
    ],
    ids=["name", "dtype", "shape", "value", "sign of zero", "missing", "empty array more"],
)
def test_a_digest_sees(changed):
    assert digest_arrays({"a": np.zeros(2, np.float32)}) != digest_arrays(changed)


def test_the_digest_is_pinned():
    """Hashes of finished runs are compared across releases: SHA-256 over JSON head and little-endian bytes."""
    import hashlib

    head = b'["w", "float32", [2]]'
    expected = hashlib.sha256(head + np.array([1, 2], "<f4").tobytes()).hexdigest()
    assert digest_arrays({"w": np.array([1, 2], np.float32)}) == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        ([1, 2], "list"),
        (b"x", "bytes"),
        (1j, "complex"),
        (
            {"a": {"b": {3}}},
            "state/a/b: a state cannot hold set, but arrays of NumPy, numbers, text, mappings and tuples$",
        ),
        (
            State(maybe=torch.zeros(1)),
            r"^State/maybe: a state cannot hold torch.Tensor, .*; .numpy\(\) makes one of it$",
        ),
        ({1: 2}, "keys must be text"),
        ({"@array": 1}, "@array alone"),
        (np.array(["x"]), "array of <U1"),
        (np.array([object()]), "array of object"),
        (np.zeros(1, np.complex64), "array of complex64"),
    ],
)
def test_refuses_to_store(value, words):
    with pytest.raises(TypeError, match=words):
        flatten(value)


def damaged(**changes):
    arrays, structure = flatten(State(arrays={"w": np.zeros(2)}, maybe=np.zeros(2, np.float32)))
    return arrays, {**structure, **changes}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"number": "x"}, "State/number"),
        ({"number": True}, "State/number"),
        ({"count": 1.0}, "State/count"),
        ({"count": True}, "State/count"),
        ({"truth": 1}, "State/truth"),
        ({"text": 3}, "State/text"),
        ({"text": {"@array": "/arrays/w"}}, "State/text"),
        ({"pair": [1]}, "State/pair"),
        ({"pair": 3}, "State/pair"),
        ({"deep": []}, "State/deep"),
        ({"deep": {"x": {"y": None}}}, "State/deep/x/y"),
        ({"maybe": 3}, "State/maybe"),
        ({"maybe": {"@array": "/nowhere"}}, "State/maybe"),
        ({"arrays": {"w": 1.5}}, "State/arrays/w"),
        ({"arrays": {"w": None}}, "State/arrays/w"),
        ({"inner": [{"array": {"@array": "/arrays/w"}, "colour": "blue", "level": 1}]}, "State/inner/0/colour"),
        ({"inner": [{"array": {"@array": "/arrays/w"}, "colour": [], "level": 1}]}, "State/inner/0/colour"),
        ({"inner": [{"colour": "red", "level": 1}]}, "State/inner/0"),
        ({"inner": [7]}, "State/inner/0"),
        ({"phase": "c"}, "State/phase"),
        ({"scalar": None}, "State/scalar"),
        ({"surplus": 1}, "State"),
    ],
)
def test_refuses_to_restore(changes, key):
    arrays, structure = damaged(**changes)
    with pytest.raises(StateError) as caught:
        restore(State, arrays, structure)
    assert caught.value.key == key


def test_refuses_a_state_of_another_type():
    arrays, structure = flatten(Inner(np.zeros(1)))
    with pytest.raises(StateError, match="State: expected the fields"):
        restore(State, arrays, structure)

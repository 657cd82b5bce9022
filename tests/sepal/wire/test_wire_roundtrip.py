"""What goes in comes out, for every support and coding."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sepal.wire import (
    IndexCoding,
    SparseTensor,
    Support,
    TensorSpec,
    ValueCoding,
    at,
    decode,
    encode,
    inspect,
    members,
    rounded,
    whole,
)

SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def sparse_tensors(draw) -> SparseTensor:
    shape = draw(SHAPES)
    size = int(np.prod(shape, dtype=int))
    chosen = draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size))
    index = None if chosen is None else np.flatnonzero(np.array(chosen, bool))
    count = size if index is None else index.size
    coding = draw(st.sampled_from(ValueCoding))
    if coding is ValueCoding.NONE:
        values = None
    elif coding is ValueCoding.SIGN:
        scale = draw(FINITE)
        signs = draw(st.lists(st.sampled_from([-1, 1]), min_size=count, max_size=count))
        values = np.array(signs, np.float32) * np.float32(scale)
    else:
        limit = 65_504 if coding is ValueCoding.FP16 else 3.38e38
        drawn = draw(st.lists(FINITE, min_size=count, max_size=count))
        values = np.array(drawn, np.float32).clip(-limit, limit).astype(np.float32)
    return SparseTensor(shape, index, values, draw(st.sampled_from(Support)), coding, draw(st.booleans()))


def spec_of(tensor: SparseTensor) -> TensorSpec:
    index = None if tensor.support is Support.EXPLICIT else tensor.index
    agreed = tensor.entropy_coded
    return TensorSpec(tensor.shape, tensor.support, tensor.values is not None, index=index, entropy_coded=agreed)


def assert_same(got: SparseTensor, tensor: SparseTensor) -> None:
    assert (got.shape, got.support, got.coding) == (tensor.shape, tensor.support, tensor.coding)
    assert got.positions().dtype == np.int64
    np.testing.assert_array_equal(got.positions(), tensor.positions())
    if tensor.values is None:
        assert got.values is None
    else:
        assert got.values.dtype == np.float32
        assert got.values.tobytes() == rounded(tensor.values, tensor.coding).tobytes()


@given(st.lists(sparse_tensors(), max_size=4))
def test_any_tensors(tensors):
    named = {f"t{number}": tensor for number, tensor in enumerate(tensors)}
    data = encode(named)
    decoded = decode(data, {name: spec_of(tensor) for name, tensor in named.items()})
    assert list(decoded) == list(named)
    for name, tensor in named.items():
        assert_same(decoded[name], tensor)
    assert encode(decoded) == data
    assert inspect(data).total_bytes == len(data)


@given(st.integers(1, 12_000), st.floats(0, 1), st.integers(0, 2**32 - 1), st.booleans())
@example(12_000, 0.38, 0, True)
def test_any_density(size, density, seed, agreed):
    mask = np.random.default_rng(seed).random(size) < density
    data = encode({"m": members(mask, agreed)})
    decoded = decode(data, {"m": TensorSpec((size,), values=False, entropy_coded=agreed)})
    np.testing.assert_array_equal(decoded["m"].mask(), mask)
    assert encode(decoded) == data


@given(st.lists(st.integers(0, 2**31 - 2), min_size=1, max_size=40, unique=True))
def test_positions_far_apart(positions):
    index = np.array(sorted(positions))
    data = encode({"m": SparseTensor((2**31 - 1,), index, None, coding=ValueCoding.NONE)})
    np.testing.assert_array_equal(decode(data, {"m": TensorSpec((2**31 - 1,), values=False)})["m"].index, index)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.data())
def test_a_full_cross_travels_as_rows_or_shorter(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    rows = data.draw(st.lists(st.booleans(), min_size=shape[axis], max_size=shape[axis]))
    mask = np.moveaxis(np.zeros(shape, bool), axis, 0)
    mask[np.array(rows)] = True
    mask = np.moveaxis(mask, 0, axis)
    encoded = encode({"m": members(mask)})
    assert inspect(encoded).index_bytes <= (shape[axis] + 7) // 8
    np.testing.assert_array_equal(decode(encoded, {"m": TensorSpec(tuple(shape), values=False)})["m"].mask(), mask)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_on_each_axis(axis):
    shape = (40, 48, 56)
    mask = np.zeros(shape, bool)
    mask[(slice(None),) * axis + (slice(0, None, 3),)] = True
    data = encode({"m": members(mask)})
    (entry,) = inspect(data).tensors
    assert (entry.index, entry.axis, entry.index_bytes) == (IndexCoding.ROWS, axis, shape[axis] // 8)
    np.testing.assert_array_equal(decode(data, {"m": TensorSpec(shape, values=False)})["m"].mask(), mask)


def test_nearly_rows_is_not_rows():
    mask = np.zeros((16, 16), bool)
    mask[[2, 5]] = True
    mask[2, 15], mask[9, 3] = False, True  # the right number, the wrong places
    data = encode({"m": members(mask)})
    assert inspect(data).tensors[0].index is not IndexCoding.ROWS
    np.testing.assert_array_equal(decode(data, {"m": TensorSpec((16, 16), values=False)})["m"].mask(), mask)


def test_a_selected_zero_stays_selected():
    tensor = at(np.zeros(9), np.array([1, 4]))
    decoded = decode(encode({"w": tensor}), {"w": TensorSpec((9,))})["w"]
    np.testing.assert_array_equal(decoded.index, [1, 4])
    np.testing.assert_array_equal(decoded.values, [0, 0])


def test_empty_support_costs_no_index_bytes():
    contents = inspect(encode({"w": at(np.ones(1_000), np.empty(0, np.int64), ValueCoding.SIGN)}))
    assert (contents.index_bytes, contents.value_bytes) == (0, 0)


def test_a_full_index_travels_as_dense():
    data = encode({"w": at(np.ones(9), np.arange(9))})
    assert inspect(data).tensors[0].index is IndexCoding.DENSE
    assert decode(data, {"w": TensorSpec((9,))})["w"].index is None


EDGES = {
    ValueCoding.FP32: [np.finfo(np.float32).max, np.finfo(np.float32).tiny, 1e-45, -0.0, 0.0, -1e-45],
    ValueCoding.FP16: [65_504, 65_519, 6.1e-5, 6e-8, -0.0, -65_504],
    ValueCoding.BF16: [3.3895e38, 1.1754944e-38, 9.2e-41, -0.0, 1 + 2**-8, 1 + 3 * 2**-8],
    ValueCoding.SIGN: [1e-45, -1e-45],
}


@pytest.mark.parametrize("coding", EDGES)
def test_edge_values(coding):
    values = np.array(EDGES[coding], np.float32)
    decoded = decode(encode({"w": whole(values, coding)}), {"w": TensorSpec(values.shape)})["w"]
    assert decoded.values.tobytes() == rounded(values, coding).tobytes()
    np.testing.assert_array_equal(np.signbit(decoded.values), np.signbit(values))


def test_sign_coding_keeps_signed_zeros():
    values = np.array([0.0, -0.0, 0.0], np.float32)
    assert rounded(values, ValueCoding.SIGN).tobytes() == values.tobytes()


def test_bf16_rounds_to_nearest_ties_to_even():
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -(1 + 2**-9)], np.float32)
    np.testing.assert_array_equal(rounded(values, ValueCoding.BF16), [1, 1 + 2**-6, 1 + 2**-7, -1])


def test_fp16_rounds_to_nearest_ties_to_even():
    values = np.array([1 + 2**-11, 1 + 3 * 2**-11], np.float32)
    np.testing.assert_array_equal(rounded(values, ValueCoding.FP16), [1, 1 + 2**-9])


def test_strided_values_are_accepted():
    values = np.arange(10, dtype=np.float32)[::2]
    decoded = decode(encode({"w": SparseTensor((5,), None, values)}), {"w": TensorSpec((5,))})
    np.testing.assert_array_equal(decoded["w"].values, [0, 2, 4, 6, 8])


def test_decoded_arrays_can_be_written_to():
    decoded = decode(encode({"w": at(np.ones(9), np.array([1, 4]))}), {"w": TensorSpec((9,))})["w"]
    decoded.values[0] = decoded.index[0] = 3


def test_a_spec_may_follow_from_a_mask_in_the_same_payload():
    mask = members(np.array([True, False, True, True]))
    upload = {"mask": mask, "w": SparseTensor((4,), mask.index, np.ones(3, np.float32), Support.DERIVED)}
    specs = {
        "mask": TensorSpec((4,), values=False),
        "w": lambda before: TensorSpec((4,), Support.DERIVED, index=before["mask"].index),
    }
    np.testing.assert_array_equal(decode(encode(upload), specs)["w"].dense(), [1, 0, 1, 1])


def test_an_optional_tensor_may_be_left_out():
    specs = {"mask": TensorSpec((4,), values=False, optional=True), "w": TensorSpec((2,))}
    assert list(decode(encode({"w": whole(np.ones(2))}), specs)) == ["w"]


def test_inspect_counts_every_byte():
    data = encode({"w": at(np.ones(100), np.array([3, 50])), "b": whole(np.ones(3), ValueCoding.FP16)})
    contents = inspect(data)
    assert [entry.name for entry in contents.tensors] == ["w", "b"]
    assert contents.value_bytes == 8 + 6
    assert contents.header_bytes + contents.index_bytes + contents.value_bytes == contents.total_bytes == len(data)

"""What a writer refuses: check 31 of FORMAT.md."""

import numpy as np
import pytest

from sepal.errors import WireError
from sepal.wire import SparseTensor, Support, ValueCoding, encode, members, rounded, whole

ONES = np.ones(2, np.float32)


@pytest.mark.parametrize("support", Support)
@pytest.mark.parametrize("index", [[3, 1], [3, 3], [-1, 3], [3, 24], [5, 2**32 + 6], [-(2**63), 2**63 - 1]])
def test_31_writer_refuses_unsorted_duplicate_or_out_of_range_positions(index, support):
    with pytest.raises(WireError, match="w index: expected"):
        encode({"w": SparseTensor((4, 6), np.array(index), ONES, support)})


@pytest.mark.parametrize("index", [np.array([0, 1], np.int32), np.array([0.0, 1.0]), np.array([[0], [1]])])
def test_31_writer_refuses_another_type_of_index(index):
    with pytest.raises(WireError, match=r"w index: expected int64 \(nnz,\)"):
        encode({"w": SparseTensor((4, 6), index, ONES)})


@pytest.mark.parametrize("values", [np.ones(3, np.float32), np.ones((2, 1), np.float32), np.ones(2), np.ones(2, int)])
def test_31_writer_refuses_values_of_another_length_or_type(values):
    with pytest.raises(WireError, match=r"w values: expected float32 \(2,\)"):
        encode({"w": SparseTensor((4, 6), np.array([0, 1]), values)})


@pytest.mark.parametrize(("values", "coding"), [(ONES, ValueCoding.NONE), (None, ValueCoding.FP32)])
def test_31_writer_refuses_values_without_coding_and_coding_without_values(values, coding):
    with pytest.raises(WireError, match="w values: expected values as"):
        encode({"w": SparseTensor((4, 6), np.array([0, 1]), values, coding=coding)})


@pytest.mark.parametrize("coding", [ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.SIGN])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_31_writer_refuses_nan_and_infinity(value, coding):
    with pytest.raises(WireError, match="w values: expected finite values"):
        encode({"w": whole(np.array([1, value]), coding)})


@pytest.mark.parametrize(("value", "coding"), [(65_520, ValueCoding.FP16), (-3.4e38, ValueCoding.BF16)])
def test_31_writer_refuses_a_value_that_rounds_to_infinity(value, coding):
    with pytest.raises(WireError, match="values: expected finite values"):
        encode({"w": whole(np.array([1, value]), coding)})
    with pytest.raises(WireError, match="values: expected finite values"):
        rounded(np.array([1, value], np.float32), coding)


@pytest.mark.parametrize("values", [[1, -1, 0], [1, -2, 1], [2, 2, -1]])
def test_31_writer_refuses_different_magnitudes_for_signs(values):
    with pytest.raises(WireError, match="w values: expected one magnitude for sign coding"):
        encode({"w": whole(np.array(values), ValueCoding.SIGN)})


def test_31_writer_refuses_to_round_without_values():
    with pytest.raises(WireError, match="values: expected a coding that carries values"):
        rounded(ONES, ValueCoding.NONE)


@pytest.mark.parametrize("name", ["", "a b", "a" * 256])
def test_31_writer_refuses_a_malformed_name(name):
    with pytest.raises(WireError, match="name: expected"):
        encode({name: whole(ONES)})


@pytest.mark.parametrize("shape", [(2**31,), (1,) * 9, (2**40, 2**40), (-1,)])
def test_31_writer_refuses_a_shape_beyond_the_limits(shape):
    with pytest.raises(WireError, match="w shape: expected"):
        encode({"w": SparseTensor(shape, np.array([0, 1]), ONES)})


def test_31_writer_refuses_more_than_4096_tensors():
    with pytest.raises(WireError, match="header: expected at most 4096 tensors"):
        encode({f"t{number}": members(np.zeros(1, bool)) for number in range(4_097)})


def test_31_writer_refuses_a_header_above_the_limit():
    with pytest.raises(WireError, match="header length: expected at most 262144"):
        encode({f"{number:0255}": members(np.zeros(1, bool)) for number in range(1_000)})

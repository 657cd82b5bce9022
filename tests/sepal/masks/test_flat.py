"""A model's tensors as one flat vector, and back: five entries of a, then two of b."""

from __future__ import annotations

import numpy as np

from sepal.layout import Parameter, Role
from sepal.masks.flat import Flat
from sepal.wire.tensors import SparseTensor, ValueCoding, members, whole

FLAT = Flat((Parameter("a", (1, 5), Role.WEIGHT), Parameter("b", (2,), Role.BIAS)))
ARRAYS = {"a": np.array([[1, 2, 3, 4, 5]], np.float32), "b": np.array([6, 7], np.float32)}


def test_tensors_are_joined_in_the_layouts_order_and_cut_again():
    joined = FLAT.join({"b": ARRAYS["b"], "other": ARRAYS["a"], "a": ARRAYS["a"]})
    assert (joined.tolist(), joined.dtype, FLAT.size) == ([1, 2, 3, 4, 5, 6, 7], np.float32, 7)
    assert FLAT.starts().tolist() == [0, 5, 7]
    again = FLAT.cut(joined)
    assert {name: array.tolist() for name, array in again.items()} == {"a": [[1, 2, 3, 4, 5]], "b": [6, 7]}
    assert Flat(()).join({}).size == 0


def test_sparse_tensors_are_gathered_at_their_flat_positions():
    sparse = SparseTensor((1, 5), np.array([1, 4]), np.array([20, 50], np.float32))
    index, values = FLAT.gather({"a": sparse, "b": whole(ARRAYS["b"])})
    assert (index.tolist(), values.tolist()) == ([1, 4, 5, 6], [20, 50, 6, 7])
    index, values = FLAT.gather({"a": sparse, "b": members(np.array([False, True]))})
    assert (index.tolist(), values.tolist()) == ([1, 4, 6], [20, 50, 1])
    assert [array.size for array in Flat(()).gather({})] == [0, 0]


def test_flat_positions_are_scattered_to_their_tensors():
    tensors = FLAT.scatter(np.array([1, 4, 6]), np.array([20, 50, 70], np.float32), ValueCoding.FP16)
    assert {name: (t.index.tolist(), t.values.tolist(), t.shape, t.coding) for name, t in tensors.items()} == {
        "a": ([1, 4], [20, 50], (1, 5), ValueCoding.FP16),
        "b": ([1], [70], (2,), ValueCoding.FP16),
    }
    assert FLAT.scatter(np.array([5]), np.array([60], np.float32))["a"].nnz == 0

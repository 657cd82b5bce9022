"""Masks as bits, and values at a mask: there and back."""

from __future__ import annotations

import numpy as np
import pytest

from sepal.layout import Parameter, Role
from sepal.masks.packed import density, masked, pack, spread, take, unpack

LAYOUT = Parameter("a", (3, 5), Role.WEIGHT), Parameter("b", (2,), Role.BIAS)
A = np.arange(15).reshape(3, 5) % 4 == 1
WEIGHTS = {"a": np.arange(1, 16, dtype=np.float32).reshape(3, 5), "b": np.array([7, 8], np.float32)}


def test_masks_survive_packing_in_a_bit_an_entry():
    """15 bits are two bytes; a tensor without bits is kept whole."""
    bits = pack({"a": A, "b": np.zeros(2, bool)}, LAYOUT[:1])
    assert {name: (array.dtype, array.shape) for name, array in bits.items()} == {"a": (np.uint8, (2,))}
    back = unpack(bits, LAYOUT)
    np.testing.assert_array_equal(back["a"], A)
    assert (back["b"].dtype, back["b"].tolist()) == (np.bool_, [True, True])


@pytest.mark.parametrize("mask", [A, np.zeros_like(A), np.ones_like(A)])
def test_values_at_a_mask_are_in_c_order_and_come_back(mask):
    packed = take(WEIGHTS, {"a": mask})
    assert packed["a"].tolist() == [value for value, kept in zip(range(1, 16), mask.reshape(-1), strict=True) if kept]
    back = spread(packed, {"a": mask})
    np.testing.assert_array_equal(back["a"], WEIGHTS["a"] * mask)
    assert back["a"].dtype == np.float32


def test_a_tensor_without_a_mask_is_left_alone():
    result = masked(WEIGHTS, {"a": A})
    np.testing.assert_array_equal(result["a"], WEIGHTS["a"] * A)
    assert result["a"].dtype == np.float32
    assert result["b"] is WEIGHTS["b"]


def test_a_masked_entry_is_0_whatever_it_was():
    """Not multiplied: NaN times 0 is NaN."""
    assert masked({"a": np.array([np.nan, 1], np.float32)}, {"a": np.array([False, True])})["a"].tolist() == [0, 1]


def test_density_by_hand():
    assert density({"a": A, "b": np.ones(2, bool)}) == {"a": 4 / 15, "b": 1.0}


def test_the_density_of_a_mask_without_entries_is_a_number():
    assert density({"w": np.zeros((0, 3), np.bool_), "v": np.array([True, False])}) == {"w": 1.0, "v": 0.5}

"""One test for each reason to refuse a schema or content, in the order and by the numbers of FORMAT.md."""

import struct

import numpy as np
import pytest

from sepal.wire import SparseTensor, Support, TensorSpec, at, decode, encode, whole
from sepal.wire.ans import encode_ans
from tests.sepal.wire.damaged_payloads import one, refused, wrap

# The mask of FORMAT.md's example of `ans`: 24 entries, 16 to 21 present.
EXAMPLE = bytes.fromhex("97 17 14 0B 00 F8 8F")
AGREED = TensorSpec((24,), values=False, entropy_coded=True)


def with_ans(body: bytes, count: int = 6, size: int = 24) -> bytes:
    return one(body, shape=[size], index="INDEX_ANS", count=count, index_bytes=len(body))


WITH_ANS = with_ans(EXAMPLE)

# Schema


def test_16_refuses_an_unknown_name():
    refused(one(name="x"), "name: expected one of w, got x")


def test_17_refuses_another_order():
    data = encode({"a": whole(np.ones(1)), "b": whole(np.ones(1))})
    refused(data, "names: expected the order b, a, got a, b", b=TensorSpec((1,)), a=TensorSpec((1,)))


def test_18_refuses_a_missing_name():
    refused(wrap(b""), "w: expected to be in the payload")


@pytest.mark.parametrize("shape", [(6, 4), (24,), (4, 6, 1), ()])
def test_19_refuses_another_shape(shape):
    refused(one(), "w shape: expected", TensorSpec(shape, values=False))


@pytest.mark.parametrize("support", [Support.DERIVED, Support.SAME])
def test_20_refuses_another_kind_of_support(support):
    spec = TensorSpec((4, 6), support, values=False, index=np.empty(0, np.int64))
    refused(one(), f"w index: expected {support.value} support, got gaps", spec)
    refused(one(index=f"INDEX_{support.name}"), "w index: expected explicit support")


def test_21_refuses_values_for_a_mask():
    refused(encode({"w": whole(np.ones((4, 6)))}), "w values: expected a mask without values, got fp32")


def test_21_refuses_a_mask_for_values():
    refused(one(), "w values: expected values, got none", TensorSpec((4, 6)))


def test_20_refuses_entropy_coding_that_is_not_agreed_on():
    refused(WITH_ANS, "w index: expected a coding without entropy coding, got ans", TensorSpec((24,), values=False))


@pytest.mark.parametrize(("fewest", "most"), [(3, None), (0, 1), (3, 3)])
def test_22_refuses_a_count_outside_the_range(fewest, most):
    data = encode({"w": at(np.ones((4, 6)), np.array([1, 7]))})
    refused(data, "w count: expected .* got 2", TensorSpec((4, 6), min_count=fewest, max_count=most))


@pytest.mark.parametrize("support", [Support.DERIVED, Support.SAME])
@pytest.mark.parametrize("index", [np.array([1, 7, 9]), np.empty(0, np.int64), None])
def test_23_refuses_another_count_than_the_known_support_has(support, index):
    data = encode({"w": SparseTensor((4, 6), np.array([1, 7]), np.ones(2, np.float32), support)})
    refused(data, "w count: expected .* of the known support, got 2", TensorSpec((4, 6), support, index=index))


def test_19_to_23_also_hold_for_a_spec_that_is_a_function():
    refused(one(), "w shape: expected", w=lambda before: TensorSpec((3,), values=False))
    refused(wrap(b""), "w: expected to be in the payload", w=lambda before: TensorSpec((3,), values=False))


# Content


@pytest.mark.parametrize("bitmap", ["030000", "0f0000", "000000"])
def test_24_refuses_another_number_of_bits_in_a_bitmap(bitmap):
    data = one(bytes.fromhex(bitmap), index="INDEX_BITMAP", count=3, index_bytes=3)
    refused(data, "w index: expected 3 set bits")


@pytest.mark.parametrize("rows", ["01", "07"])
def test_24_refuses_another_number_of_rows(rows):
    data = one(bytes.fromhex(rows), index="INDEX_ROWS", count=12, index_bytes=1)
    refused(data, "w index: expected 2 set bits")


def test_25_refuses_padding_in_a_bitmap():
    data = one(b"\x03\x80", shape=[15], index="INDEX_BITMAP", count=3, index_bytes=2)
    refused(data, "w index: expected padding of 0", TensorSpec((15,), values=False))


def test_25_refuses_padding_in_rows():
    data = one(b"\x11", index="INDEX_ROWS", count=12, index_bytes=1)
    refused(data, "w index: expected padding of 0")


def test_25_refuses_padding_in_gaps():
    assert decode(one(b"\x05", count=2, index_bytes=1), {"w": TensorSpec((4, 6), values=False)})
    refused(one(b"\x85", count=2, index_bytes=1), "w index: expected 2 set bits, got more")


def test_25_refuses_padding_in_signs():
    fields = {"index": "INDEX_DENSE", "count": 24, "shape": [4, 6]}
    body = struct.pack("<f", 1) + b"\x00\x00\x08"
    data = one(body, **{**fields, "shape": [19], "count": 19}, values="VALUE_SIGN", value_bytes=7)
    refused(data, "w values: expected padding of 0", TensorSpec((19,)))


@pytest.mark.parametrize(("code", "got"), [("01", "1"), ("00", "0"), ("07", "more")])
def test_26_refuses_another_number_of_gaps(code, got):
    refused(one(bytes.fromhex(code), count=2, index_bytes=1), f"w index: expected 2 set bits, got {got}")


def test_27_refuses_whole_bytes_of_padding_in_gaps():
    refused(one(b"\x05\x00", count=2, index_bytes=2), "w index: expected 1 bytes up to the last position, got 2")


@pytest.mark.parametrize("body", [b"\0\0\0\3", b"\0\0\x80\1"])
def test_28_refuses_positions_beyond_the_size_by_quotient(body):
    """Two gaps, k = 0: the second terminating bit is at 24 or 25, so the position is, too; the size is 24."""
    refused(one(body, count=2, index_bytes=4), "w index: expected positions below 24, got 2[45]")


def test_28_refuses_positions_beyond_the_size_by_low_bits():
    """One gap, k = 5, five planes of one bit each set: 31, then the terminating bit."""
    refused(one(b"\x3f", count=1, low_bits=5, index_bytes=1), "w index: expected positions below 24, got 31")


def test_28_refuses_absent_positions_beyond_the_size():
    refused(one(b"\x3f", count=23, low_bits=5, index_bytes=1), "w index: expected positions below 24, got 31")


NON_FINITE = {"FP32": ("0000807f", "0000c0ff"), "FP16": ("007c", "01fc"), "BF16": ("80ff", "c07f")}


@pytest.mark.parametrize(
    ("coding", "value"), [(coding, value) for coding in NON_FINITE for value in NON_FINITE[coding]]
)
def test_29_refuses_nan_and_infinity(coding, value):
    body = bytes.fromhex(value)
    data = one(body, shape=[], index="INDEX_DENSE", count=1, values=f"VALUE_{coding}", value_bytes=len(body))
    refused(data, "w values: expected finite values", TensorSpec(()))


@pytest.mark.parametrize("scale", [-1.0, -0.0, float("nan"), float("inf"), float("-inf")])
def test_30_refuses_a_scale_that_is_no_magnitude(scale):
    body = struct.pack("<fB", scale, 1)
    data = one(body, shape=[], index="INDEX_DENSE", count=1, values="VALUE_SIGN", value_bytes=5)
    refused(data, "w values: expected a finite scale of at least 0", TensorSpec(()))


def test_the_mask_in_ans_that_the_others_spoil_is_valid():
    np.testing.assert_array_equal(decode(WITH_ANS, {"w": AGREED})["w"].index, range(16, 22))


def coded(*present: int, count: int, size: int) -> bytes:
    """Bytes of the bits ``present``, as if ``count`` of ``size`` entries were present."""
    bits = np.zeros((size + 7) // 8 * 8, bool)
    bits[list(present)] = True
    return encode_ans(np.packbits(bits, bitorder="little"), count, size)


@pytest.mark.parametrize("present", [(), (1, 2), (1, 2, 3, 4)])
def test_24_refuses_another_number_of_bits_in_ans(present):
    refused(with_ans(coded(*present, count=3, size=24), 3), "w index: expected 3 set bits, got", AGREED)


def test_25_refuses_padding_in_ans():
    body = coded(2, 20, count=2, size=20)
    spec = TensorSpec((20,), values=False, entropy_coded=True)
    refused(with_ans(body, 2, 20), "w index: expected padding of 0, got bit 20 of 20 set", spec)


@pytest.mark.parametrize("state", ["ff ff ff 00 00", "00 00 00 00 00"])
def test_32_refuses_a_lane_that_starts_too_low(state):
    refused(with_ans(bytes.fromhex(state) + EXAMPLE[5:]), "w index: expected lanes that start at 16777216 to", AGREED)


def test_33_refuses_missing_words():
    refused(with_ans(EXAMPLE[:5]), "w index: expected more than 0 words, got symbols that need them", AGREED)


def test_33_refuses_words_left_over():
    refused(with_ans(EXAMPLE + b"\0\0"), "w index: expected 1 words up to the last symbol, got 2", AGREED)


@pytest.mark.parametrize("changed", ["98 17 14 0B 00 F8 8F", "97 17 14 0B 00 F9 8F"])
def test_34_refuses_a_lane_that_ends_elsewhere(changed):
    refused(with_ans(bytes.fromhex(changed)), "w index: expected lanes that end at 16777216, got", AGREED)

"""One test for each reason to refuse, in the order and by the numbers of FORMAT.md."""

import struct

import numpy as np
import pytest

from sepal.errors import WireError
from sepal.wire import (
    SparseTensor,
    Support,
    TensorSpec,
    at,
    decode,
    encode,
    inspect,
    whole,
)
from sepal.wire import sparse_pb2 as pb


def wrap(
    header: bytes, body: bytes = b"", magic: bytes = b"SEPAL", version: int = 1, length: int | None = None
) -> bytes:
    return struct.pack("<5sBI", magic, version, len(header) if length is None else length) + header + body


def one(body: bytes = b"", **fields: object) -> bytes:
    """A payload of one mask ``w`` of shape (4, 6), `gaps`, no entry present, unless ``fields`` say otherwise."""
    default = {"name": "w", "shape": [4, 6], "index": pb.INDEX_GAPS, "values": pb.VALUE_NONE}
    return wrap(pb.Header(tensors=[pb.Tensor(**{**default, **fields})]).SerializeToString(), body)


# a, b, c = 11000000, 01000000, 10000001: positions 0, 1, 9, 16, 23. Codes 1110, 011, five times 00, 110: the first bits
# 10000001, the second ones 11000001, the third ones 110, the fourth one 0.
TRIPLES = bytes([0x81, 0x83, 0x03])


def triples(body: bytes = TRIPLES, **fields: object) -> bytes:
    default = {"index": pb.INDEX_TRIPLES, "count": 5, "third_bytes": 1, "index_bytes": len(body)}
    return one(body, **{**default, **fields})


def refused(data: bytes, match: str, spec: TensorSpec | None = None, **specs: TensorSpec) -> None:
    with pytest.raises(WireError, match=match):
        decode(data, specs or {"w": spec or TensorSpec((4, 6), values=False)})


def test_the_payload_that_the_others_spoil_is_valid():
    assert decode(one(), {"w": TensorSpec((4, 6), values=False)})["w"].nnz == 0
    decoded = decode(triples(), {"w": TensorSpec((4, 6), values=False)})["w"]
    np.testing.assert_array_equal(decoded.index, [0, 1, 9, 16, 23])


# Envelope


@pytest.mark.parametrize("length", range(10))
def test_01_refuses_fewer_than_10_bytes(length):
    refused(one()[:length], "payload: expected at least 10 bytes")


def test_02_refuses_another_magic():
    refused(wrap(b"", magic=b"SEPAl"), "magic: expected b'SEPAL'")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_03_refuses_another_version(version):
    refused(wrap(b"", version=version), f"version: expected 1, got {version}")


def test_04_refuses_a_header_above_the_limit():
    refused(wrap(bytes(262_145)), "header length: expected at most 262144")


def test_04_refuses_a_header_beyond_the_end():
    refused(wrap(b"\x0a", length=2), "header length: expected .* within 11 bytes, got 2")


@pytest.mark.parametrize("header", [b"\x0a", b"\x0a\x05\x0a", b"\xff" * 12, b"\x0a\x03\x0a\x01\xff", b"\x0b"])
def test_05_refuses_what_is_no_header(header):
    refused(wrap(header), "header: expected")


TENSOR = bytes.fromhex("0a0177 12020406 1804 2005")
NOT_CANONICAL = {
    "unknown field of the header": bytes.fromhex("1001") + b"\x0a\x0b" + TENSOR,
    "unknown field of a tensor": b"\x0a\x0d" + TENSOR + bytes.fromhex("5801"),
    "fields in another order": b"\x0a\x0b" + bytes.fromhex("12020406 0a0177 1804 2005"),
    "a field twice": b"\x0a\x0d" + TENSOR + bytes.fromhex("2005"),
    "a long varint": b"\x0a\x0c" + bytes.fromhex("0a0177 12020406 1804 208500"),
    "a default written out": b"\x0a\x0d" + TENSOR + bytes.fromhex("2800"),
    "an unpacked shape": b"\x0a\x0b" + bytes.fromhex("0a0177 1004 1006 1804 2005"),
    "a count beyond uint32": b"\x0a\x11" + TENSOR + bytes.fromhex("288080808010"),
}


@pytest.mark.parametrize("header", NOT_CANONICAL.values(), ids=NOT_CANONICAL)
def test_05_refuses_another_form_of_the_header(header):
    assert decode(wrap(b"\x0a\x0b" + TENSOR), {"w": TensorSpec((4, 6), values=False)})
    refused(wrap(header), "header: expected canonical protobuf")


def test_06_refuses_more_than_4096_tensors():
    refused(wrap(b"\x0a\x00" * 4_097), "header: expected at most 4096 tensors, got 4097")


# Header


@pytest.mark.parametrize("name", ["", "a" * 256, "a b", "a\n", ".a", "ä", "a<b", "a\0"])
def test_07_refuses_a_malformed_name(name):
    refused(one(name=name), "name: expected 1 to 255")


def test_07_refuses_a_duplicate_name():
    refused(wrap((b"\x0a\x0b" + TENSOR) * 2), "name: expected each name once, got w")


def test_08_refuses_more_than_8_dimensions():
    refused(one(shape=[1] * 9), "w shape: expected at most 8 dimensions, got 9")


@pytest.mark.parametrize("shape", [[2**31], [2**16, 2**15], [2**31 - 1] * 8, [0, 2**31]])
def test_08_refuses_too_large_a_size(shape):
    refused(one(shape=shape), "w shape: expected at most 2147483647 entries")


@pytest.mark.parametrize("number", [0, 8, 2**31 - 1])
def test_09_refuses_an_unknown_index_coding(number):
    refused(one(index=number), "w index: expected a known index coding")


@pytest.mark.parametrize("number", [0, 6, 2**31 - 1])
def test_10_refuses_an_unknown_value_coding(number):
    refused(one(values=number), "w values: expected a known value coding")


@pytest.mark.parametrize(
    ("index", "count"),
    [("DENSE", 23), ("DENSE", 25), ("BITMAP", 0), ("BITMAP", 24), ("ROWS", 0), ("ROWS", 24), ("GAPS", 24)]
    + [("TRIPLES", 0), ("TRIPLES", 24)]
    + [(coding, 2**32 - 1) for coding in ("DENSE", "BITMAP", "ROWS", "GAPS", "DERIVED", "SAME", "TRIPLES")],
)
def test_11_refuses_a_count_that_the_coding_does_not_allow(index, count):
    refused(one(index=f"INDEX_{index}", count=count), "w count: expected .* for")


def test_12_refuses_rows_of_one_dimension():
    refused(
        one(b"\1", shape=[4], index="INDEX_ROWS", count=1, index_bytes=1), "w axis: expected one of at least 2 axes"
    )


def test_12_refuses_rows_on_no_axis():
    refused(one(b"\1", index="INDEX_ROWS", count=6, index_bytes=1, axis=2), "w axis: expected one of at least 2 axes")


def test_12_refuses_part_of_a_row():
    refused(one(b"\1", index="INDEX_ROWS", count=7, index_bytes=1), "w count: expected whole rows, got 7")


def test_13_refuses_an_axis_without_rows():
    refused(one(axis=1), "w axis: expected 0 for gaps")


@pytest.mark.parametrize("index", ["DERIVED", "SAME"])
def test_13_refuses_low_bits_without_gaps(index):
    refused(one(index=f"INDEX_{index}", low_bits=1), "w low_bits: expected at most 0")


def test_13_refuses_low_bits_above_30():
    refused(one(bytes(4), count=1, index_bytes=4, low_bits=31), "w low_bits: expected at most 30")


def test_13_refuses_low_bits_of_no_gaps():
    refused(one(low_bits=1), "w low_bits: expected at most 0")


def test_13_refuses_low_bits_above_30_in_triples():
    refused(triples(low_bits=31), "w low_bits: expected at most 30")


def test_13_refuses_third_bytes_without_triples():
    refused(one(third_bytes=1), "w third_bytes: expected 0 to 0, got 1")


@pytest.mark.parametrize(
    ("count", "third_bytes", "right"), [(5, 0, "1 to 1"), (5, 2, "1 to 1"), (25, 1, "2 to 4"), (25, 5, "2 to 4")]
)
def test_13_refuses_third_bytes_too_few_or_too_many_for_the_count(count, third_bytes, right):
    data = triples(bytes(24), shape=[80], count=count, third_bytes=third_bytes, index_bytes=24)
    refused(data, f"w third_bytes: expected {right}, got {third_bytes}")


@pytest.mark.parametrize(
    "fields",
    [
        {"index": "INDEX_DENSE", "count": 24, "index_bytes": 1},
        {"index": "INDEX_BITMAP", "count": 3, "index_bytes": 2},
        {"index": "INDEX_BITMAP", "count": 3, "index_bytes": 4},
        {"index": "INDEX_ROWS", "count": 6, "index_bytes": 2},
        {"index": "INDEX_GAPS", "index_bytes": 1},
        {"index": "INDEX_GAPS", "count": 9, "index_bytes": 1},  # at least 9 bits
        {"index": "INDEX_GAPS", "count": 2, "index_bytes": 5},  # at most 2 + 24 bits
        {"index": "INDEX_GAPS", "count": 2, "low_bits": 5, "index_bytes": 3},  # at most 12 + 0 bits
        {"index": "INDEX_TRIPLES", "count": 5, "third_bytes": 1, "index_bytes": 1},  # at least 16 bits
        {"index": "INDEX_TRIPLES", "count": 5, "third_bytes": 1, "index_bytes": 5},  # at most 32 bits
        {"index": "INDEX_TRIPLES", "count": 5, "third_bytes": 1, "low_bits": 8, "index_bytes": 6},  # 56 to 72 bits
        {"index": "INDEX_TRIPLES", "count": 5, "third_bytes": 1, "low_bits": 8, "index_bytes": 10},
        {"index": "INDEX_DERIVED", "count": 3, "index_bytes": 1},
        {"index": "INDEX_SAME", "count": 3, "index_bytes": 2**64 - 1},
    ],
)
def test_14_refuses_another_number_of_index_bytes(fields):
    refused(one(bytes(min(fields["index_bytes"], 9)), **fields), "w index_bytes: expected")


@pytest.mark.parametrize(("values", "right"), [("FP32", 96), ("FP16", 48), ("BF16", 48), ("SIGN", 7), ("NONE", 0)])
@pytest.mark.parametrize("off", [-1, 1])
def test_14_refuses_another_number_of_value_bytes(values, right, off):
    wrong = right + off if right else 1
    fields = {"index": "INDEX_DENSE", "count": 24, "values": f"VALUE_{values}", "value_bytes": wrong}
    refused(one(bytes(wrong), **fields), f"w value_bytes: expected {right}, got {wrong}")


def test_15_refuses_every_truncation():
    data = encode({"w": at(np.ones((4, 6)), np.array([1, 7])), "v": whole(np.ones(2))})
    for length in range(len(data)):
        with pytest.raises(WireError):
            inspect(data[:length])


def test_15_refuses_bytes_left_over():
    refused(one() + b"\0", "payload length: expected 23, got 24")


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


@pytest.mark.parametrize(("fewest", "most"), [(3, None), (0, 1), (3, 3)])
def test_22_refuses_a_count_outside_the_range(fewest, most):
    data = encode({"w": at(np.ones((4, 6)), np.array([1, 7]))})
    refused(data, "w count: expected .* got 2", TensorSpec((4, 6), min_count=fewest, max_count=most))


@pytest.mark.parametrize("support", [Support.DERIVED, Support.SAME])
@pytest.mark.parametrize("known", [np.array([1, 7, 9]), np.empty(0, np.int64), None])
def test_23_refuses_another_count_than_the_known_support_has(support, known):
    data = encode({"w": SparseTensor((4, 6), np.array([1, 7]), np.ones(2, np.float32), support)})
    refused(data, "w count: expected .* of the known support, got 2", TensorSpec((4, 6), support, index=known))


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


def test_25_refuses_padding_in_triples():
    refused(triples(b"\x81\x83\x13"), "w index: expected padding of 0, got last byte 0x13")


def test_25_refuses_padding_in_signs():
    fields = {"index": "INDEX_DENSE", "count": 24, "shape": [4, 6]}
    body = struct.pack("<f", 1) + b"\x00\x00\x08"
    data = one(body, **{**fields, "shape": [19], "count": 19}, values="VALUE_SIGN", value_bytes=7)
    refused(data, "w values: expected padding of 0", TensorSpec((19,)))


@pytest.mark.parametrize(("code", "got"), [("01", "1"), ("00", "0"), ("07", "more")])
def test_26_refuses_another_number_of_gaps(code, got):
    refused(one(bytes.fromhex(code), count=2, index_bytes=1), f"w index: expected 2 set bits, got {got}")


@pytest.mark.parametrize(("count", "got"), [(4, "more"), (6, "5")])
def test_26_refuses_another_number_of_quotients_in_triples(count, got):
    refused(triples(count=count), f"w index: expected {count} set bits, got {got}")


@pytest.mark.parametrize("body", [TRIPLES[:2], TRIPLES + b"\x00"])
def test_27_refuses_triples_without_their_last_bits_or_with_more(body):
    refused(triples(body), f"w index: expected 3 bytes up to the last position, got {len(body)}")


def test_27_refuses_thirds_that_are_padding():
    """Positions 0 to 8 as nine codes 010 in thirds of 16 bits, though 9 bits of quotients need thirds of 8."""
    data = triples(b"\x00\x00\xff\x01\x00\x00", count=9, third_bytes=2)
    refused(data, "w index: expected third_bytes 1 up to the last position, got 2")


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


def test_28_refuses_positions_beyond_the_size_in_triples():
    refused(triples(shape=[23]), "w index: expected positions below 23, got 23", TensorSpec((23,), values=False))


def test_28_refuses_positions_beyond_the_size_by_low_bits_of_triples():
    """Quotients 0, 0, 7, 6, 6 and k = 1: the last position is 2 · 19 + 4 = 42, and 43 with a last low bit of 1."""
    spec = TensorSpec((43,), values=False)
    assert decode(triples(TRIPLES + b"\x00", low_bits=1, shape=[43]), {"w": spec})["w"].index[-1] == 42
    refused(triples(TRIPLES + b"\x01", low_bits=1, shape=[43]), "w index: expected positions below 43, got 43", spec)


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

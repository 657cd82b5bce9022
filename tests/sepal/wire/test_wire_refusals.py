"""One test for each reason to refuse an envelope or header, in the order and by the numbers of FORMAT.md."""

import numpy as np
import pytest

from sepal.errors import WireError
from sepal.wire import TensorSpec, at, decode, encode, inspect, whole
from tests.sepal.wire.damaged_payloads import one, refused, wrap


def test_the_payload_that_the_others_spoil_is_valid():
    assert decode(one(), {"w": TensorSpec((4, 6), values=False)})["w"].nnz == 0


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


@pytest.mark.parametrize("number", [0, 9, 2**31 - 1])
def test_09_refuses_an_unknown_index_coding(number):
    refused(one(index=number), "w index: expected a known index coding")


def test_09_refuses_the_removed_coding_triples():
    """Coding 7 alone, and a whole mask of 67 entries as its writers wrote it, with field 10: a field not known."""
    refused(one(index=7, count=5), "w index: expected a known index coding, got 7")
    header = bytes.fromhex("0A 10 0A 01 70 12 01 43 18 07 20 05 28 19 30 08 50 03")
    body = bytes.fromhex("24 12 82 45 37 49 7B 8F")
    refused(wrap(header, body), "header: expected canonical protobuf without unknown fields, got another form")


@pytest.mark.parametrize("number", [0, 6, 2**31 - 1])
def test_10_refuses_an_unknown_value_coding(number):
    refused(one(values=number), "w values: expected a known value coding")


@pytest.mark.parametrize(
    ("index", "count"),
    [("DENSE", 23), ("DENSE", 25), ("BITMAP", 0), ("BITMAP", 24), ("ROWS", 0), ("ROWS", 24), ("GAPS", 24)]
    + [("ANS", 0), ("ANS", 24)]
    + [(coding, 2**32 - 1) for coding in ("DENSE", "BITMAP", "ROWS", "GAPS", "DERIVED", "SAME", "ANS")],
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


@pytest.mark.parametrize("index", ["DERIVED", "SAME", "ANS"])
def test_13_refuses_low_bits_without_gaps(index):
    refused(one(index=f"INDEX_{index}", count=6, low_bits=1), "w low_bits: expected at most 0")


def test_13_refuses_low_bits_above_30():
    refused(one(bytes(4), count=1, index_bytes=4, low_bits=31), "w low_bits: expected at most 30")


def test_13_refuses_low_bits_of_no_gaps():
    refused(one(low_bits=1), "w low_bits: expected at most 0")


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
        {"index": "INDEX_ANS", "count": 3, "index_bytes": 4},  # at least a state
        {"index": "INDEX_ANS", "count": 3, "index_bytes": 6},  # whole words
        {"index": "INDEX_ANS", "count": 3, "index_bytes": 13},  # at most a word for each of 3 bytes
        {"index": "INDEX_ANS", "count": 3, "index_bytes": 2**64 - 1},
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

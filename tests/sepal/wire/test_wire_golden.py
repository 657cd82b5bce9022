"""Exact bytes. The files under tests/golden/wire were derived by hand from FORMAT.md; each says how."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from sepal.wire import SparseTensor, Support, TensorSpec, ValueCoding, at, decode, encode, members, whole
from sepal.wire.ans import encode_ans

GOLDEN = Path(__file__).parents[2] / "golden" / "wire"


def golden(name: str) -> bytes:
    lines = (GOLDEN / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex(" ".join(line.partition("#")[0] for line in lines))


def mask(shape: tuple[int, ...], *index: int) -> SparseTensor:
    return SparseTensor(shape, np.array(index, np.int64), None, coding=ValueCoding.NONE)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


FIRST_AND_LAST_NEGATIVE = floats(-0.5, *[0.5] * 16, -0.5)
ALL_BUT_4_AND_5 = np.array([0, 1, 2, 3, *range(6, 20)])
ODD_ROWS = np.zeros((3, 4, 2), bool)
ODD_ROWS[:, [1, 3]] = True

CASES = {
    "no_tensors": ({}, {}),
    "scalar_fp32": ({"s": whole(np.array(1.5))}, {"s": TensorSpec(())}),
    "empty_fp32": ({"e": at(np.zeros(5), np.empty(0, np.int64))}, {"e": TensorSpec((5,))}),
    "bitmap_fp16": (
        {"w": at(np.array([[1, 9, 9, 0], [-2, 9, 9, 9]]), np.array([0, 3, 4]), ValueCoding.FP16)},
        {"w": TensorSpec((2, 4))},
    ),
    "gaps_mask": ({"m": mask((100,), 2, 9, 40)}, {"m": TensorSpec((100,), values=False)}),
    "gaps_absent_sign": (
        {"t": SparseTensor((20,), ALL_BUT_4_AND_5, FIRST_AND_LAST_NEGATIVE, coding=ValueCoding.SIGN)},
        {"t": TensorSpec((20,))},
    ),
    "rows_mask": ({"r": members(ODD_ROWS)}, {"r": TensorSpec((3, 4, 2), values=False)}),
    "derived_bf16_same_fp32": (
        {
            "a": SparseTensor((4,), np.array([1, 3]), floats(1, -2), Support.DERIVED, ValueCoding.BF16),
            "b": SparseTensor((2, 2), np.array([0]), floats(-0.0), Support.SAME),
        },
        {
            "a": TensorSpec((4,), Support.DERIVED, index=np.array([1, 3])),
            "b": TensorSpec((2, 2), Support.SAME, index=np.array([0])),
        },
    ),
}


# A reader takes them, and a writer would choose a shorter coding.
READ = {
    "ans_mask": ({"m": mask((24,), *range(16, 22))}, {"m": TensorSpec((24,), values=False, entropy_coded=True)}),
}


@pytest.mark.parametrize("name", CASES)
def test_encodes_to_the_golden_bytes(name):
    tensors, _ = CASES[name]
    assert encode(tensors).hex(" ") == golden(name).hex(" ")


@pytest.mark.parametrize("name", CASES | READ)
def test_decodes_the_golden_bytes(name):
    tensors, specs = (CASES | READ)[name]
    decoded = decode(golden(name), specs)
    assert list(decoded) == list(tensors)
    for key, tensor in tensors.items():
        got = decoded[key]
        assert (got.shape, got.support, got.coding) == (tensor.shape, tensor.support, tensor.coding)
        np.testing.assert_array_equal(got.positions(), tensor.positions())
        if tensor.values is None:
            assert got.values is None
        else:
            assert got.values.tobytes() == tensor.values.tobytes()


def test_every_golden_file_is_used():
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(CASES | READ)


def test_format_example_is_the_golden_file():
    text = (Path(__file__).parents[3] / "sepal/wire/FORMAT.md").read_text()
    example = text.rpartition("```\n53")[2].partition("```")[0]
    hexes = " ".join(line[:30] for line in ("53" + example).splitlines())
    assert bytes.fromhex(hexes) == golden("bitmap_fp16")


def test_format_example_of_ans_is_the_golden_file_and_what_a_writer_writes():
    text = (Path(__file__).parents[3] / "sepal/wire/FORMAT.md").read_text()
    example = text.partition("**ans.**")[2].partition("```")[2].partition("```")[0]
    data = bytes.fromhex(" ".join(line[:30] for line in example.splitlines()))
    assert golden("ans_mask")[-len(data) :] == data == encode_ans(np.array([0, 0, 0x3F], np.uint8), 6, 24)


def test_a_mask_in_ans_keeps_its_digest():
    """Regression only. Two lanes, and the last step has one symbol less; more present than absent."""
    present = np.arange(40_001) ** 2 % 97 < 70
    data = encode_ans(np.packbits(present, bitorder="little"), int(present.sum()), present.size)
    assert len(data) == 4_472
    assert hashlib.sha256(data).hexdigest() == "8ce5d50efb74ee929716eec687ccb0da85c139038e4e0264b14f55354525e61e"


def test_large_payload_keeps_its_digest():
    """Regression only: no hand could derive it. Gaps of 8, 16 and 32 bits, more than 8 low bits, absent entries."""
    index = {
        "narrow": np.arange(0, 50_000, 5),
        "wide": np.arange(200) ** 2 * 50,
        "wider": np.array([7, 100_000, 2**30, 2**31 - 2]),
        "absent": np.setdiff1d(np.arange(9_000), np.arange(900) * 10),
    }
    shape = {"narrow": (50_000,), "wide": (2_000, 1_000), "wider": (2**31 - 1,), "absent": (90, 100)}
    data = encode({name: SparseTensor(shape[name], index[name], None, coding=ValueCoding.NONE) for name in index})
    decoded = decode(data, {name: TensorSpec(shape[name], values=False) for name in index})
    for name, tensor in decoded.items():
        np.testing.assert_array_equal(tensor.index, index[name])
    assert hashlib.sha256(data).hexdigest() == "fde6fb436e819bbb3c75372215df7cb0ad8db1a08d4992384d3f91ecb985d301"

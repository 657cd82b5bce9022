"""Bytes and memory: near the entropy of the support, and bounded by what is decoded."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from sepal.wire import IndexCoding, SparseTensor, Support, TensorSpec, ValueCoding, at, decode, encode, inspect, members
from sepal.wire.index import encode_index

SIZE = 10_000_000


def entropy_bytes(size: int, count: int) -> float:
    """Bytes that tell which of the C(size, count) supports it is."""
    return (math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)) / math.log(2) / 8


@pytest.mark.parametrize(("size", "steps"), [(10_000, 300), (100_000, 300), (2_000_000, 30)])
def test_index_is_within_4_and_a_half_percent_of_the_entropy_at_every_density(size, steps):
    """Densities .0005 to .9995; with fewer than 100 entries of the rarer kind, whole bytes weigh more."""
    rng = np.random.default_rng(1)
    half = np.concatenate([np.geomspace(0.0005, 0.5, steps), np.linspace(0.1, 0.5, steps)])
    above = {}
    for density in sorted({*half, *(1 - half)}):
        index = np.flatnonzero(rng.random(size, np.float32) < density)
        ratio = len(encode_index(index, (size,)).data) / entropy_bytes(size, index.size)
        if ratio > 1.045 and 100 <= index.size <= size - 100:
            above[index.size / size] = ratio
    assert not above


@pytest.mark.parametrize(
    ("density", "most"),
    [(0.5, 1.0001), (0.382, 1.0425), (0.214, 1.0335), (0.2, 1.0235), (0.1, 1.0142), (0.058, 1.022), (0.01, 1.0045)],
)
def test_index_of_a_large_tensor_is_as_near_to_the_entropy_as_the_format_says(density, most):
    drawn = np.random.default_rng(3).random(SIZE, np.float32) < density
    for present in (np.flatnonzero(drawn), np.flatnonzero(~drawn)):
        assert len(encode_index(present, (SIZE,)).data) <= most * entropy_bytes(SIZE, present.size)


def random_tensor(density: float, coding: ValueCoding, support: Support = Support.EXPLICIT) -> SparseTensor:
    rng = np.random.default_rng(2)
    index = np.flatnonzero(rng.random(SIZE) < density)
    values = None if coding is ValueCoding.NONE else np.ones(index.size, np.float32)
    return SparseTensor((SIZE,), index, values, support, coding)


@pytest.mark.parametrize("density", [0.9, 0.62, 0.5, 0.38, 0.3, 0.21, 0.1, 0.001])
@pytest.mark.parametrize("coding", [ValueCoding.FP32, ValueCoding.SIGN, ValueCoding.NONE])
def test_decoding_peaks_below_twice_the_arrays_plus_16_mb(density, coding):
    tensor = random_tensor(density, coding)
    arrays = 8 * tensor.nnz + (4 * tensor.nnz if tensor.values is not None else 0)
    assert peak_of_decoding(encode({"w": tensor}), tensor) <= 2 * arrays + 16e6


@pytest.mark.parametrize("density", [0.9, 0.38, 0.03])
def test_decoding_ans_peaks_below_twice_the_arrays_plus_16_mb_and_a_bit_for_each_entry(density):
    tensor = replace(random_tensor(density, ValueCoding.NONE), entropy_coded=True)
    data = encode({"w": tensor})
    assert inspect(data).tensors[0].index is IndexCoding.ANS
    assert peak_of_decoding(data, tensor) <= 2 * 8 * tensor.nnz + 16e6 + SIZE / 8


@pytest.mark.parametrize("coding", [ValueCoding.FP32, ValueCoding.BF16, ValueCoding.SIGN])
def test_decoding_a_dense_tensor_peaks_below_twice_its_values_plus_16_mb(coding):
    tensor = SparseTensor((SIZE,), None, np.ones(SIZE, np.float32), coding=coding)
    assert peak_of_decoding(encode({"w": tensor}), tensor) <= 2 * 4 * SIZE + 16e6


@pytest.mark.parametrize("axis", [0, 1])
def test_decoding_rows_peaks_below_twice_the_arrays_plus_16_mb(axis):
    mask = np.zeros((2_000, 5_000), bool)
    mask[(slice(None),) * axis + (slice(0, None, 2),)] = True
    tensor = members(mask)
    assert peak_of_decoding(encode({"w": tensor}), tensor) <= 2 * 8 * tensor.nnz + 16e6


def peak_of_decoding(data: bytes, tensor: SparseTensor) -> int:
    specs = {"w": TensorSpec(tensor.shape, values=tensor.values is not None, entropy_coded=tensor.entropy_coded)}
    tracemalloc.start()
    try:
        decoded = decode(data, specs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoded["w"].nnz == tensor.nnz
    return peak


def test_refusing_a_huge_claim_takes_no_memory():
    tensor = at(np.ones(1_000), np.arange(0, 1_000, 2))
    data = encode({"w": tensor})
    claim = data.replace(bytes.fromhex("28f403"), bytes.fromhex("28e707"))  # count 500 becomes 999
    assert claim != data
    tracemalloc.start()
    with pytest.raises(Exception, match="w value_bytes"):
        decode(claim, {"w": TensorSpec((1_000,))})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000

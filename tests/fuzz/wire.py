"""Mutated payloads: whatever the bytes, decoding gives arrays that fit the specs, or WireError.

    python -m tests.fuzz.wire --count 1000000 --seed 0

Payload number i of a seed is always the same, so a failure can be made again with --first i --count 1.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sepal.errors import WireError
from sepal.wire import SparseTensor, Specs, Support, TensorSpec, ValueCoding, at, decode, encode, members, whole
from sepal.wire import sparse_pb2 as pb

PREAMBLE = 10
HUGE = (0, 1, 2, 7, 8, 9, 63, 255, 2**16, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1)
HUGER = (*HUGE, 2**32, 2**40, 2**63, 2**64 - 1)
NUMBERS = (("count", HUGE), ("index_bytes", HUGER), ("value_bytes", HUGER))


@dataclass(frozen=True)
class Seed:
    """A valid payload and the specs that admit it."""

    data: bytes
    specs: Specs


def seeds() -> list[Seed]:
    """Small payloads that reach every coding."""
    rng = np.random.default_rng(0)
    array = rng.standard_normal((12, 20)).astype(np.float32)
    sparse = [np.flatnonzero(rng.random(240) < density) for density in (0.05, 0.4, 0.95)]
    rows = np.zeros((12, 20), bool)
    rows[:, 3:9] = True
    index = np.array([1, 2, 30])
    signs = np.sign(array.reshape(-1)[sparse[0]]) * np.float32(0.25)
    tensors = {
        "dense": whole(array, ValueCoding.FP16),
        "bitmap": at(array, sparse[1], ValueCoding.BF16),
        "rows": members(rows),
        "few": SparseTensor((12, 20), sparse[0], signs, coding=ValueCoding.SIGN),
        "most": at(array, sparse[2]),
        "derived": SparseTensor((240,), index, array.reshape(-1)[index], Support.DERIVED),
        "same": SparseTensor((240,), index, array.reshape(-1)[index], Support.SAME),
        "scalar": whole(np.float32(3)),
        "mask": SparseTensor((5_000,), np.array([0, 1, 700, 4_999]), None, coding=ValueCoding.NONE),
        "empty": at(array, np.empty(0, np.int64)),
        "gaps": members(rng.random(2_000) < 0.3),
        "gaps-of-absent": members(rng.random(1_000) < 0.79),
        "ans": members(rng.random(4_000) < 0.38, entropy_coded=True),
        "ans-of-most": members(rng.random((40, 100)) < 0.8, entropy_coded=True),
    }
    specs: dict[str, TensorSpec | Callable[..., TensorSpec]] = {
        name: TensorSpec(
            tensor.shape,
            tensor.support,
            tensor.values is not None,
            entropy_coded=tensor.entropy_coded,
            index=None if tensor.support is Support.EXPLICIT else tensor.index,
        )
        for name, tensor in tensors.items()
    }
    specs["same"] = lambda before: TensorSpec((before["dense"].size,), Support.SAME, index=index)
    specs["empty"] = TensorSpec((12, 20), optional=True)
    alone = [Seed(encode({name: tensors[name]}), {name: specs[name]}) for name in tensors if name != "same"]
    return [Seed(encode(tensors), specs), *alone, Seed(encode({}), {})]


def mutated(seeds: list[Seed], seed: int, number: int) -> Seed:
    """The payload ``number`` of ``seed``: one of ``seeds``, changed in one to three ways."""
    rng = np.random.default_rng([seed, number])
    base = seeds[rng.integers(len(seeds))]
    data = base.data
    for _ in range(rng.integers(1, 4)):
        data = MUTATIONS[rng.integers(len(MUTATIONS))](data, seeds, rng)
    return Seed(data, base.specs)


def _truncate(data: bytes, _: list[Seed], rng: np.random.Generator) -> bytes:
    return data[: rng.integers(len(data) + 1)]


def _extend(data: bytes, _: list[Seed], rng: np.random.Generator) -> bytes:
    return data + rng.bytes(rng.integers(1, 20))


def _flip(data: bytes, _: list[Seed], rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _i in range(rng.integers(1, 4) if data else 0):
        changed[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _flip_body(data: bytes, _: list[Seed], rng: np.random.Generator) -> bytes:
    """Behind a header that stays valid: what only reading the content can refuse."""
    start = PREAMBLE + int.from_bytes(data[6:10], "little")
    changed = bytearray(data)
    for _i in range(rng.integers(1, 4) if start < len(data) else 0):
        changed[rng.integers(start, len(data))] = rng.integers(256)
    return bytes(changed)


def _splice(data: bytes, seeds: list[Seed], rng: np.random.Generator) -> bytes:
    donor = seeds[rng.integers(len(seeds))].data
    return data[: rng.integers(len(data) + 1)] + donor[rng.integers(len(donor) + 1) :]


def _move(data: bytes, _: list[Seed], rng: np.random.Generator) -> bytes:
    start, stop, to = sorted(rng.integers(len(data) + 1, size=3))
    return data[:start] + data[stop:to] + data[start:stop] + data[to:]


def _repeat(data: bytes, _: list[Seed], rng: np.random.Generator) -> bytes:
    start, stop = sorted(rng.integers(len(data) + 1, size=2))
    return data[:stop] + data[start:]


def _edit_header(data: bytes, _: list[Seed], rng: np.random.Generator) -> bytes:
    """A well-formed header that says something else: counts, lengths, shapes, codings, names, order."""
    length = int.from_bytes(data[6:10], "little")
    try:
        header = pb.Header.FromString(data[PREAMBLE : PREAMBLE + length])
    except Exception:  # an earlier mutation broke it
        return data
    body = data[PREAMBLE + length :]
    if header.tensors:
        _edit_tensor(header, header.tensors[rng.integers(len(header.tensors))], rng)
    changed = header.SerializeToString(deterministic=True)
    return data[:6] + len(changed).to_bytes(4, "little") + changed + body


def _edit_tensor(header: pb.Header, tensor: pb.Tensor, rng: np.random.Generator) -> None:
    which = rng.integers(9)
    match which:
        case 0 | 1 | 2:
            field, choices = NUMBERS[which]
            setattr(tensor, field, _number(getattr(tensor, field), choices, rng))
        case 3:
            tensor.index = int(rng.integers(10))
        case 4:
            tensor.values = int(rng.integers(7))
        case 5:
            tensor.shape.append(_number(1, HUGE, rng))
        case 6:
            tensor.axis, tensor.low_bits = int(rng.integers(4)), int(rng.integers(40))
        case 7:
            tensor.name = rng.choice(["", "dense", "x" * 256, "ü", "a b", tensor.name + "."])
        case 8:
            header.tensors.add().CopyFrom(tensor)


def _number(now: int, choices: tuple[int, ...], rng: np.random.Generator) -> int:
    if rng.random() < 0.5:
        return min(max(choices), max(0, now + int(rng.integers(-2, 3))))
    return choices[rng.integers(len(choices))]


MUTATIONS = [_truncate, _extend, _flip, _flip_body, _splice, _move, _repeat, _edit_header, _edit_header, _flip_body]


def verdict(payload: Seed) -> str:
    """``accepted`` or the first word of the refusal's field; anything else than those two is raised.

    Raises:
        AssertionError: Arrays came back that are not valid.
    """
    try:
        tensors = decode(payload.data, payload.specs)
    except WireError as error:
        return "refused: " + error.key.split()[-1]
    for name, tensor in tensors.items():
        _check_arrays(name, tensor, payload.specs, tensors)
    again = decode(encode(tensors), payload.specs)  # what was accepted is something that the format can say
    for name, tensor in tensors.items():
        assert np.array_equal(again[name].positions(), tensor.positions()), name
        assert tensor.values is None or again[name].values.tobytes() == tensor.values.tobytes(), name
    return "accepted"


def _check_arrays(name: str, tensor: SparseTensor, specs: Specs, tensors: dict[str, SparseTensor]) -> None:
    spec = specs[name]
    spec = spec if isinstance(spec, TensorSpec) else spec(tensors)
    assert tensor.shape == spec.shape, name
    assert tensor.support is spec.support, name
    check_entries(name, tensor, spec.values)


def check_entries(name: str, tensor: SparseTensor, values: bool) -> None:
    """Assert that a tensor's positions ascend within its size, and that it has finite values if it has ``values``."""
    if tensor.index is not None:
        assert tensor.index.dtype == np.int64, name
        assert (np.diff(tensor.index) > 0).all(), name
        assert not tensor.nnz or 0 <= tensor.index[0] <= tensor.index[-1] < tensor.size, name
    assert (tensor.values is not None) is values, name
    if tensor.values is not None:
        assert tensor.values.dtype == np.float32, name
        assert tensor.values.shape == (tensor.nnz,), name
        assert np.isfinite(tensor.values).all(), name


def run(seed: int, first: int, count: int) -> Counter[str]:
    """How often each verdict was given."""
    valid = seeds()
    for payload in valid:
        assert verdict(payload) == "accepted"
    verdicts: Counter[str] = Counter()
    for number in range(first, first + count):
        payload = mutated(valid, seed, number)
        try:
            verdicts[verdict(payload)] += 1
        except Exception:
            print(f"seed {seed} number {number}: {payload.data.hex()}", file=sys.stderr)
            raise
    return verdicts


def options(description: str | None) -> argparse.Namespace:
    """Read how many cases to try, the number of the first, and the seed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def peak() -> int:
    """Peak memory of this process, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def report(title: str, verdicts: Counter[str], seed: int, seconds: float) -> None:
    """Print how often each verdict was given, and the sum."""
    for name, times in verdicts.most_common(30):
        print(f"{times:>10,}  {name}")
    total, accepted = verdicts.total(), verdicts["accepted"]
    print(
        f"{title}: {total:,} (seed {seed}), {total - accepted:,} refused, {accepted:,} accepted and valid, 0 failures, "
        f"{seconds:.0f} s, peak memory {peak()} MB"
    )


def main() -> None:
    chosen, start = options(__doc__), time.perf_counter()
    verdicts = run(chosen.seed, chosen.first, chosen.count)
    report("wire fuzz, payloads", verdicts, chosen.seed, time.perf_counter() - start)


if __name__ == "__main__":
    main()

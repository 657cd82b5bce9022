"""Structure-aware fuzzing of messages: valid uploads of random schemas, changed field by field.

    python -m tests.fuzz.structured --count 1000000 --seed 0

A valid upload is made by the encoder, for a schema of one to six tensors in all codings. It is taken apart into the
header's fields and each tensor's bytes, one to three of these are changed, and it is put together again: with lengths
that fit, so that what is inside is reached. Every tenth travels in a reply of which the version is computed anew, so
that it is the honest name of the changed content. Reading it must give what fits the schema, or a SepalError. Memory
must not grow.

Upload number i of a seed is always the same: --first i --count 1 makes a failure again.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sepal.errors import SepalError
from sepal.protocol.messages import Content, Reply, read_reply, version, write_reply
from sepal.protocol.method import ClientInfo, Kind, Payload, Schema
from sepal.protocol.payloads import GREATEST_VALUE, seal, unseal
from sepal.wire import SparseTensor, Support, TensorSpec, ValueCoding, inspect, rounded
from sepal.wire import sparse_pb2 as pb
from sepal.wire.bits import packed
from sepal.wire.gaps import encode_gaps, gaps_between, quotient_bits
from sepal.wire.values import value_length
from tests.fuzz.wire import HUGE, HUGER, PREAMBLE

FAMILY = 8  # changes made of one valid upload
REPLIES = 10  # one in so many is read out of a whole message, which takes longer
LOOKS = 500  # uploads between two looks at the memory
GROWTH_MB = 64  # far above what any of these uploads may take
CODINGS = (ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.SIGN)
SHAPES = ((), (1,), (7,), (64,), (300,), (12, 20), (3, 5, 7), (40, 1), (2, 3, 4, 5), (0,), (4, 0), (17, 23))
DENSITIES = (0.0, 0.01, 0.05, 0.2, 0.38, 0.5, 0.79, 0.95, 1.0)
SCALARS = {
    "rate": (float, 0.0, 1.0),
    "step": (int, 0, None),
    "phase": (str, None, None),
    "last": (bool, None, None),
}
RUN, BASE = "0" * 32, f"1-{'a' * 24}"


@dataclass(frozen=True)
class Valid:
    """An upload that is accepted.

    Attributes:
        payload: What was sealed, with values as they are rounded by their coding.
        schema: Admits it.
        answered: The download whose supports SAME refers to.
    """

    payload: Payload
    schema: Schema
    answered: dict[str, SparseTensor]


@dataclass
class Part:
    """A tensor of an upload that is taken apart: its header, the bytes of its positions and of its values."""

    head: pb.Tensor
    index: bytes
    values: bytes


@dataclass
class Draft:
    """An upload that is taken apart.

    Attributes:
        parts: Its tensors, in order.
        scalars: Beside the tensors.
        start: Magic and version of the format.
        extra: Bytes between the header and the first tensor, and behind the last.
        raw: Appended to the header.
        honest: Whether lengths in the header are those of the bytes.
    """

    parts: list[Part]
    scalars: dict[str, object]
    start: bytes
    extra: tuple[bytes, bytes] = (b"", b"")
    raw: bytes = b""
    honest: bool = True


# Valid uploads


def valid(seed: int, number: int) -> Valid:
    """The valid upload ``number`` of ``seed``."""
    rng = np.random.default_rng([seed, 0, number])
    tensors: dict[str, SparseTensor] = {}
    specs: dict[str, object] = {}
    answered: dict[str, SparseTensor] = {}
    for position in range(rng.integers(1, 7)):
        name = f"{rng.choice(['w', 'fc1.weight', 'a/b', 'T:0'])}-{position}"
        tensor, spec = _tensor(rng, name, answered, tensors)
        specs[name] = spec
        if not (isinstance(spec, TensorSpec) and spec.optional and rng.random() < 0.3):
            tensors[name] = tensor
    chosen = {name: bounds for name, bounds in SCALARS.items() if rng.random() < 0.4}
    values = {"rate": float(rng.random()), "step": int(rng.integers(100)), "phase": "2a", "last": True}
    schema = Schema(specs, chosen)  # type: ignore[arg-type]
    return Valid(Payload(tensors, {name: values[name] for name in chosen}), schema, answered)


def _tensor(
    rng: np.random.Generator, name: str, answered: dict[str, SparseTensor], before: dict[str, SparseTensor]
) -> tuple[SparseTensor, object]:
    """A tensor and a spec that admits it."""
    shape = SHAPES[rng.integers(len(SHAPES))]
    size = int(np.prod(shape, dtype=np.int64)) if shape else 1
    index = _index(rng, shape, size)
    coding = CODINGS[rng.integers(len(CODINGS))]
    kind = rng.choice(["explicit", "explicit", "mask", "derived", "same", "depends"])
    if kind == "mask":
        return SparseTensor(shape, index, None, coding=ValueCoding.NONE), _spec(rng, shape, index, values=False)
    tensor = SparseTensor(shape, index, _values(rng, index.size, coding), coding=coding)
    if kind == "derived":
        fixed = TensorSpec(shape, Support.DERIVED, index=index)
        both = _spec(rng, shape, index, known=index)
        return replace(tensor, support=Support.DERIVED), fixed if rng.random() < 0.5 else both
    if kind == "same":
        answered[name] = tensor
        return replace(tensor, support=Support.SAME), TensorSpec(shape, Support.SAME)
    masks = [other for other, found in before.items() if found.values is None and found.nnz]
    if kind == "depends" and masks:
        mask = masks[rng.integers(len(masks))]
        count = before[mask].nnz
        values = _values(rng, count, coding)
        made = SparseTensor((count,), np.arange(count), values, Support.DERIVED, coding)
        return made, lambda found: TensorSpec((found[mask].nnz,), Support.DERIVED)
    return tensor, _spec(rng, shape, index)


def _spec(
    rng: np.random.Generator, shape: tuple[int, ...], index: np.ndarray, values: bool = True, known: object = None
) -> TensorSpec:
    """An explicit spec with bounds on the count that are wide, or exactly those of ``index``."""
    exact = rng.random() < 0.4
    least, most = (index.size, index.size) if exact else (0, None)
    optional = values and bool(rng.random() < 0.3)  # the support of another tensor may depend on a mask
    return TensorSpec(shape, Support.EXPLICIT, values, least, most, known, optional)  # type: ignore[arg-type]


def _index(rng: np.random.Generator, shape: tuple[int, ...], size: int) -> np.ndarray:
    """Positions: random ones, or whole rows of one axis."""
    density = DENSITIES[rng.integers(len(DENSITIES))]
    if len(shape) > 1 and size and rng.random() < 0.3:
        axis = int(rng.integers(len(shape)))
        mask = np.zeros(shape, bool)
        mask[(slice(None),) * axis + (rng.random(shape[axis]) < density,)] = True
        return np.flatnonzero(mask).astype(np.int64)
    return np.flatnonzero(rng.random(size) < density).astype(np.int64)


def _values(rng: np.random.Generator, count: int, coding: ValueCoding) -> np.ndarray:
    values = rng.standard_normal(count).astype(np.float32) * np.float32(rng.choice([0.0, 1e-3, 1.0, 1e3]))
    if coding is ValueCoding.SIGN:
        values = np.copysign(np.float32(abs(float(rng.standard_normal()))), values)
    return rounded(values.astype(np.float32), coding)


# Changes


def draft(data: bytes, scalars: dict[str, object]) -> Draft:
    """Take a valid upload apart."""
    length = int.from_bytes(data[6:10], "little")
    header, at, parts = pb.Header.FromString(data[PREAMBLE : PREAMBLE + length]), PREAMBLE + length, []
    for head in header.tensors:
        middle = at + head.index_bytes
        end = middle + head.value_bytes
        own = pb.Tensor()
        own.CopyFrom(head)
        parts.append(Part(own, data[at:middle], data[middle:end]))
        at = end
    return Draft(parts, dict(scalars), data[:6])


def assembled(found: Draft) -> bytes:
    """The bytes of a draft. Empty, if it has no tensor and says nothing else."""
    if not found.parts and not found.raw and not any(found.extra):
        return b""
    for part in found.parts:
        if found.honest:
            part.head.index_bytes, part.head.value_bytes = len(part.index), len(part.values)
    header = pb.Header(tensors=[part.head for part in found.parts]).SerializeToString(deterministic=True) + found.raw
    body = b"".join(part.index + part.values for part in found.parts)
    return found.start + len(header).to_bytes(4, "little") + header + found.extra[0] + body + found.extra[1]


def _one(found: Draft, rng: np.random.Generator) -> Part | None:
    return found.parts[rng.integers(len(found.parts))] if found.parts else None


def _size(part: Part) -> int:
    """The tensor's number of entries by its header, which may be a lie; at most 4096."""
    size = 1
    for side in part.head.shape:
        size *= side
    return min(size, 4096)


def _near(now: int, choices: tuple[int, ...], rng: np.random.Generator) -> int:
    if rng.random() < 0.6:
        return min(max(choices), max(0, now + int(rng.integers(-2, 3))))
    return choices[rng.integers(len(choices))]


def change_count(found: Draft, rng: np.random.Generator) -> None:
    """Another count, with as many bytes of values as it needs."""
    if part := _one(found, rng):
        part.head.count = _near(part.head.count, HUGE, rng)
        if part.head.count < 2**16 and rng.random() < 0.8:
            _fit_values(part)


def _fit_values(part: Part) -> None:
    names = {int(pb.ValueCoding.Value(f"VALUE_{coding.name}")): coding for coding in ValueCoding}
    if part.head.values in names:
        length = value_length(names[part.head.values], part.head.count)
        part.values = part.values[:length].ljust(length, b"\0")


def change_lengths(found: Draft, rng: np.random.Generator) -> None:
    """Lengths that are not those of the bytes; sometimes two that add up to the same total."""
    if part := _one(found, rng):
        found.honest = False
        for each in found.parts:
            each.head.index_bytes, each.head.value_bytes = len(each.index), len(each.values)
        if rng.random() < 0.5:
            moved = int(rng.integers(-4, 5))
            part.head.index_bytes = max(0, part.head.index_bytes + moved)
            part.head.value_bytes = max(0, part.head.value_bytes - moved)
        else:
            field = str(rng.choice(["index_bytes", "value_bytes"]))
            setattr(part.head, field, _near(getattr(part.head, field), HUGER, rng))


def change_bytes(found: Draft, rng: np.random.Generator) -> None:
    """More or fewer bytes of positions or values, with the lengths that go with them."""
    if part := _one(found, rng):
        field = str(rng.choice(["index", "values"]))
        data = getattr(part, field)
        data = data[: rng.integers(len(data) + 1)] if rng.random() < 0.5 else data + rng.bytes(rng.integers(1, 9))
        setattr(part, field, data)


def change_value_coding(found: Draft, rng: np.random.Generator) -> None:
    """Another type of values, with as many bytes as it needs."""
    if part := _one(found, rng):
        part.head.values = int(rng.integers(7))
        if part.head.count < 2**16 and rng.random() < 0.8:
            _fit_values(part)


def change_index_coding(found: Draft, rng: np.random.Generator) -> None:
    """Another coding of positions, with as many bytes as it could have."""
    if part := _one(found, rng):
        part.head.index = int(rng.integers(9))
        size = _size(part)
        if rng.random() < 0.8:
            length = int(rng.choice([0, (size + 7) // 8, rng.integers(0, 2 + size // 4)]))
            part.index = part.index[:length].ljust(length, b"\1")


def change_parameters(found: Draft, rng: np.random.Generator) -> None:
    """Axis, low bits, bytes of a third."""
    if part := _one(found, rng):
        field = str(rng.choice(["axis", "low_bits", "third_bytes"]))
        setattr(part.head, field, _near(getattr(part.head, field), (*range(5), 30, 31, 2**31, 2**32 - 1), rng))


def change_gaps(found: Draft, rng: np.random.Generator) -> None:
    """Positions that no encoder writes: duplicates, another order, beyond the size; the count is that of the rest."""
    if part := _one(found, rng):
        size = _size(part)
        count = int(min(part.head.count, 64)) or 1
        gaps = rng.integers(0, 2 + size // count, count).astype(np.uint32)
        if rng.random() < 0.3:
            gaps[rng.integers(count)] = rng.choice([0, size, 2 * size + 1, 2**16])
        index = np.cumsum(gaps.astype(np.int64) + 1) - 1
        low_bits = int(rng.integers(0, 6))
        shortest = gaps_between(index)
        coded = encode_gaps(index, shortest, low_bits, quotient_bits(shortest, low_bits)).tobytes()
        part.index = coded
        part.head.index, part.head.low_bits = int(pb.IndexCoding.Value("INDEX_GAPS")), low_bits
        part.head.axis, part.head.third_bytes = 0, 0
        part.head.count = count if rng.random() < 0.7 else max(0, size - count)
        _fit_values(part)


def change_bitmap(found: Draft, rng: np.random.Generator) -> None:
    """A bitmap with another number of bits than the count, or with bits in its padding."""
    if part := _one(found, rng):
        size = _size(part)
        bits = rng.random((size + 7) // 8 * 8) < 0.5
        bits[size:] = rng.random(bits.size - size) < 0.2
        part.index = packed(bits).tobytes()
        part.head.index = int(pb.IndexCoding.Value("INDEX_BITMAP"))
        part.head.axis = part.head.low_bits = part.head.third_bytes = 0
        if rng.random() < 0.7:
            part.head.count = int(bits[:size].sum())
            _fit_values(part)


def flip_index(found: Draft, rng: np.random.Generator) -> None:
    """Bits of a stream of positions."""
    if (part := _one(found, rng)) and part.index:
        part.index = _flipped(part.index, rng)


def _flipped(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


ODD = {
    4: (0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x80000000, 0x00000001, 0x7F7FFFFF, 0x49742400, 0x49742408),
    2: (0x7C00, 0xFC00, 0x7E00, 0x8000, 0x0001, 0x7BFF, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0x4974, 0x4975),
}


def change_value(found: Draft, rng: np.random.Generator) -> None:
    """NaN, infinity, -0, denormals, the largest, around 10⁶; in sign coding the scale."""
    if (part := _one(found, rng)) and len(part.values) >= 4:
        wide = int(rng.choice([2, 4]))
        place = int(rng.integers(len(part.values) // wide)) * wide if rng.random() < 0.8 else 0
        odd = int(rng.choice(ODD[wide])).to_bytes(wide, "little")
        part.values = part.values[:place] + odd + part.values[place + wide :]


def flip_value(found: Draft, rng: np.random.Generator) -> None:
    """Bits of values, and of the padding of signs."""
    if (part := _one(found, rng)) and part.values:
        part.values = _flipped(part.values, rng)


def change_shape(found: Draft, rng: np.random.Generator) -> None:
    """A shape of the same size, or of another one."""
    if part := _one(found, rng):
        shape = list(part.head.shape)
        match rng.integers(5):
            case 0:
                shape.append(1)
            case 1:
                shape.reverse()
            case 2:
                shape = [min(int(np.prod(shape, dtype=np.float64)), 2**32 - 1)]
            case 3 if shape:
                shape[rng.integers(len(shape))] = _near(shape[0], HUGE, rng)
            case _:
                shape.extend([1] * int(rng.integers(8, 10)))
        part.head.ClearField("shape")
        part.head.shape.extend(min(side, 2**32 - 1) for side in shape)


def change_name(found: Draft, rng: np.random.Generator) -> None:
    """Another name, or that of another tensor."""
    if part := _one(found, rng):
        other = found.parts[rng.integers(len(found.parts))].head.name
        part.head.name = str(rng.choice([other, "", "x" * 256, "ü", "a b", "../w", part.head.name + ".", "w\n"]))


def change_order(found: Draft, rng: np.random.Generator) -> None:
    """Tensors in another order; or their bytes alone, or their headers alone."""
    if len(found.parts) > 1:
        a, b = rng.choice(len(found.parts), 2, replace=False)
        first, second = found.parts[a], found.parts[b]
        match rng.integers(3):
            case 0:
                found.parts[a], found.parts[b] = second, first
            case 1:
                first.index, second.index = second.index, first.index
                first.values, second.values = second.values, first.values
            case _:
                first.head, second.head = second.head, first.head


def change_number_of_tensors(found: Draft, rng: np.random.Generator) -> None:
    """A tensor less, or one twice, or a copy of it under a new name."""
    if part := _one(found, rng):
        if rng.random() < 0.4:
            found.parts.remove(part)
            return
        head = pb.Tensor()
        head.CopyFrom(part.head)
        if rng.random() < 0.5:
            head.name = f"{head.name}2"[:300]
        found.parts.insert(int(rng.integers(len(found.parts) + 1)), Part(head, part.index, part.values))


def add_bytes(found: Draft, rng: np.random.Generator) -> None:
    """Bytes behind the header, or behind everything."""
    extra = rng.bytes(rng.integers(1, 9))
    found.extra = (extra, found.extra[1]) if rng.random() < 0.5 else (found.extra[0], extra)


def change_start(found: Draft, rng: np.random.Generator) -> None:
    """Magic or version."""
    found.start = _flipped(found.start, rng)


def add_to_header(found: Draft, rng: np.random.Generator) -> None:
    """Unknown fields, fields again, groups, long varints: another form of the header."""
    raws = (b"\x10\x01", b"\x0a\x00", b"\x1a\x03abc", b"\x0b\x0c", b"\x08" + b"\x80" * 9 + b"\x01", rng.bytes(3))
    found.raw += raws[rng.integers(len(raws))]


def change_scalar(found: Draft, rng: np.random.Generator) -> None:
    """A scalar more, less, of another type, or out of its bounds."""
    odd = (float("nan"), float("inf"), -1.0, 2.0, -1, 2**62, True, "text", "", 0)
    name = str(rng.choice([*SCALARS, *found.scalars, "another"]))
    if rng.random() < 0.2:
        found.scalars.pop(name, None)
    else:
        found.scalars[name] = odd[rng.integers(len(odd))]


CHANGES: tuple[Callable[[Draft, np.random.Generator], None], ...] = (
    change_count,
    change_lengths,
    change_bytes,
    change_value_coding,
    change_index_coding,
    change_parameters,
    change_gaps,
    change_bitmap,
    flip_index,
    change_value,
    flip_value,
    change_shape,
    change_name,
    change_order,
    change_number_of_tensors,
    add_bytes,
    change_start,
    add_to_header,
    change_scalar,
)


# What must hold


@lru_cache(maxsize=2)
def family(seed: int, number: int) -> tuple[Valid, Content]:
    """A valid upload and its content, which was checked to decode to the very same."""
    made = valid(seed, number)
    content = seal(made.payload)
    back = unseal(content, made.schema, lambda: made.answered)
    assert list(back.tensors) == list(made.payload.tensors)
    assert back.scalars == made.payload.scalars
    for name, tensor in made.payload.tensors.items():
        _check_same(name, back.tensors[name], tensor)
    return made, content


def _check_same(name: str, ours: SparseTensor, theirs: SparseTensor) -> None:
    assert ours.shape == theirs.shape, name
    assert np.array_equal(ours.positions(), theirs.positions()), name
    assert (ours.values is None) is (theirs.values is None), name
    if ours.values is not None and theirs.values is not None:
        assert ours.values.tobytes() == theirs.values.tobytes(), name


def changed(seed: int, number: int) -> tuple[Valid, Content, str]:
    """Upload ``number`` of ``seed``: its family's, changed, and the name of the first change."""
    made, content = family(seed, number // FAMILY)
    rng = np.random.default_rng([seed, 1, number])
    found = draft(content.data, dict(content.scalars)) if content.data else Draft([], dict(content.scalars), b"SEPAL\1")
    which = [CHANGES[rng.integers(len(CHANGES))] for _ in range(rng.integers(1, 4))]
    for change in which:
        change(found, rng)
    return made, Content(assembled(found), found.scalars), which[0].__name__  # type: ignore[arg-type]


def travelled(content: Content) -> Content:
    """What is read out of a reply with ``content``, whose version is the honest name of it.

    Raises:
        SepalError: The reply is refused.
        AssertionError: Something else was read than was written.
    """
    download = Content(b"download").digest()
    reached = version(2, BASE, download, content.digest())
    reply = Reply(RUN, 2, Kind.TRAIN, ClientInfo("client-1", 5), BASE, download, reached)
    head, got = read_reply(write_reply(reply, content))
    assert head.version == version(2, BASE, download, got.digest()), "the content is not what was sent"
    return got


def verdict(made: Valid, content: Content, in_reply: bool = False) -> str:
    """``accepted``, or the refusal's class and the last word of its key; anything else is raised.

    Raises:
        AssertionError: Something came back that the schema does not admit.
    """
    try:
        payload = unseal(travelled(content) if in_reply else content, made.schema, lambda: made.answered)
    except SepalError as error:
        return f"refused: {type(error).__name__} {error.key.split()[-1].partition('-')[0]}"
    _check(payload, made)
    again = unseal(seal(payload), made.schema, lambda: made.answered)
    for name, tensor in payload.tensors.items():
        _check_same(name, again.tensors[name], tensor)
    return "accepted"


def _check(payload: Payload, made: Valid) -> None:
    """Raise AssertionError where the schema does not admit what was decoded."""
    specs, order = made.schema.tensors, list(made.schema.tensors)
    assert list(payload.tensors) == [name for name in order if name in payload.tensors]
    for name, spec in specs.items():
        bounds = spec if isinstance(spec, TensorSpec) else spec(payload.tensors)
        if name not in payload.tensors:
            assert bounds.optional, name
            continue
        tensor = payload.tensors[name]
        known = made.answered[name].index if bounds.support is Support.SAME else bounds.index
        assert tensor.shape == bounds.shape, name
        if tensor.support is Support.EXPLICIT:
            assert bounds.support is Support.EXPLICIT, name
            most = bounds.size if bounds.max_count is None else bounds.max_count
            assert bounds.min_count <= tensor.nnz <= most, name
        else:
            assert tensor.support is bounds.support or known is not None, name
            expected = np.arange(bounds.size) if known is None else known
            assert np.array_equal(tensor.positions(), expected), name
        if tensor.index is not None:
            assert tensor.index.dtype == np.int64, name
            assert (np.diff(tensor.index) > 0).all(), name
            assert not tensor.nnz or 0 <= tensor.index[0] <= tensor.index[-1] < tensor.size, name
        assert (tensor.values is not None) is bounds.values, name
        if tensor.values is not None:
            assert tensor.values.dtype == np.float32, name
            assert tensor.values.shape == (tensor.nnz,), name
            assert np.isfinite(tensor.values).all(), name
            assert np.abs(tensor.values).max(initial=0) <= GREATEST_VALUE, name
    assert payload.scalars.keys() == made.schema.scalars.keys()
    for name, (kind, least, greatest) in made.schema.scalars.items():
        value = payload.scalars[name]
        assert type(value) is kind, name
        assert least is None or value >= least, name  # type: ignore[operator]
        assert greatest is None or value <= greatest, name  # type: ignore[operator]


def peak() -> int:
    """Peak memory of this process, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def run(seed: int, first: int, count: int) -> tuple[Counter[str], Counter[str]]:
    """How often each verdict was given, and how often the uploads of each first change were accepted."""
    verdicts: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    begun = 0
    for number in range(first, first + count):
        made, content, change = changed(seed, number)
        try:
            found = verdict(made, content, number % REPLIES == 0)
            if (number - first) % LOOKS == LOOKS - 1:
                begun = begun or peak()
                assert peak() <= begun + GROWTH_MB, f"memory grew from {begun} to {peak()} MB"
        except Exception:
            print(f"seed {seed} number {number} ({change}): {content.data.hex()} {content.scalars}", file=sys.stderr)
            raise
        verdicts[found] += 1
        accepted[change] += found == "accepted"
    return verdicts, accepted


def codings(seed: int, families: int) -> set[str]:
    """Every coding of positions and values that the valid uploads have."""
    found: set[str] = set()
    for number in range(families):
        content = family(seed, number)[1]
        if content.data:
            for entry in inspect(content.data).tensors:
                found |= {f"index {entry.index.value}", f"values {entry.values.value}"}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    verdicts, accepted = run(options.seed, options.first, options.count)
    for name, times in verdicts.most_common(30):
        print(f"{times:>10,}  {name}")
    print("accepted, by first change: " + ", ".join(f"{name} {times:,}" for name, times in accepted.most_common()))
    refused = verdicts.total() - verdicts["accepted"]
    print(
        f"structured fuzz: {options.count:,} uploads (seed {options.seed}), {refused:,} refused, "
        f"{verdicts['accepted']:,} accepted and valid, 0 failures, {time.perf_counter() - start:.0f} s, "
        f"peak memory {peak()} MB"
    )


if __name__ == "__main__":
    main()

"""Changes of one field of an upload: counts, lengths, codings, positions, values, names, order, trailing bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sepal.wire import ValueCoding
from sepal.wire import sparse_pb2 as pb
from sepal.wire.ans import encode_ans
from sepal.wire.bits import packed
from sepal.wire.gaps import encode_gaps, gaps_between, quotient_bits
from sepal.wire.values import value_length
from tests.fuzz.uploads import SCALARS
from tests.fuzz.wire import HUGE, HUGER, PREAMBLE


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


def draft(data: bytes, scalars: dict[str, object]) -> Draft:
    """Take a valid upload apart."""
    length = int.from_bytes(data[6:10], "little")
    header, at, parts = pb.Header.FromString(data[PREAMBLE : PREAMBLE + length]), PREAMBLE + length, []
    for head in header.tensors:
        middle = at + head.index_bytes
        end = middle + head.value_bytes
        tensor = pb.Tensor()
        tensor.CopyFrom(head)
        parts.append(Part(tensor, data[at:middle], data[middle:end]))
        at = end
    return Draft(parts, dict(scalars), data[:6])


def assembled(upload: Draft) -> bytes:
    """The bytes of a draft. Empty, if it has no tensor and says nothing else."""
    if not upload.parts and not upload.raw and not any(upload.extra):
        return b""
    for part in upload.parts:
        if upload.honest:
            part.head.index_bytes, part.head.value_bytes = len(part.index), len(part.values)
    header = pb.Header(tensors=[part.head for part in upload.parts]).SerializeToString(deterministic=True) + upload.raw
    body = b"".join(part.index + part.values for part in upload.parts)
    return upload.start + len(header).to_bytes(4, "little") + header + upload.extra[0] + body + upload.extra[1]


def _random_part(upload: Draft, rng: np.random.Generator) -> Part | None:
    return upload.parts[rng.integers(len(upload.parts))] if upload.parts else None


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


def change_count(upload: Draft, rng: np.random.Generator) -> None:
    """Another count, with as many bytes of values as it needs."""
    if part := _random_part(upload, rng):
        part.head.count = _near(part.head.count, HUGE, rng)
        if part.head.count < 2**16 and rng.random() < 0.8:
            _fit_values(part)


def _fit_values(part: Part) -> None:
    names = {int(pb.ValueCoding.Value(f"VALUE_{coding.name}")): coding for coding in ValueCoding}
    if part.head.values in names:
        length = value_length(names[part.head.values], part.head.count)
        part.values = part.values[:length].ljust(length, b"\0")


def change_lengths(upload: Draft, rng: np.random.Generator) -> None:
    """Lengths that are not those of the bytes; sometimes two that add up to the same total."""
    if part := _random_part(upload, rng):
        upload.honest = False
        for tensor_part in upload.parts:
            tensor_part.head.index_bytes, tensor_part.head.value_bytes = len(tensor_part.index), len(tensor_part.values)
        if rng.random() < 0.5:
            moved = int(rng.integers(-4, 5))
            part.head.index_bytes = max(0, part.head.index_bytes + moved)
            part.head.value_bytes = max(0, part.head.value_bytes - moved)
        else:
            field = str(rng.choice(["index_bytes", "value_bytes"]))
            setattr(part.head, field, _near(getattr(part.head, field), HUGER, rng))


def change_bytes(upload: Draft, rng: np.random.Generator) -> None:
    """More or fewer bytes of positions or values, with the lengths that go with them."""
    if part := _random_part(upload, rng):
        field = str(rng.choice(["index", "values"]))
        data = getattr(part, field)
        data = data[: rng.integers(len(data) + 1)] if rng.random() < 0.5 else data + rng.bytes(rng.integers(1, 9))
        setattr(part, field, data)


def change_value_coding(upload: Draft, rng: np.random.Generator) -> None:
    """Another type of values, with as many bytes as it needs."""
    if part := _random_part(upload, rng):
        part.head.values = int(rng.integers(7))
        if part.head.count < 2**16 and rng.random() < 0.8:
            _fit_values(part)


def change_index_coding(upload: Draft, rng: np.random.Generator) -> None:
    """Another coding of positions, with as many bytes as it could have."""
    if part := _random_part(upload, rng):
        part.head.index = int(rng.integers(10))
        size = _size(part)
        if rng.random() < 0.8:
            length = int(rng.choice([0, (size + 7) // 8, rng.integers(0, 2 + size // 4)]))
            part.index = part.index[:length].ljust(length, b"\1")


def change_parameters(upload: Draft, rng: np.random.Generator) -> None:
    """Axis, low bits."""
    if part := _random_part(upload, rng):
        field = str(rng.choice(["axis", "low_bits"]))
        setattr(part.head, field, _near(getattr(part.head, field), (*range(5), 30, 31, 2**31, 2**32 - 1), rng))


def change_gaps(upload: Draft, rng: np.random.Generator) -> None:
    """Positions that no encoder writes: duplicates, another order, beyond the size; the count is that of the rest."""
    if part := _random_part(upload, rng):
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
        part.head.axis = 0
        part.head.count = count if rng.random() < 0.7 else max(0, size - count)
        _fit_values(part)


def change_bitmap(upload: Draft, rng: np.random.Generator) -> None:
    """A bitmap with another number of bits than the count, or with bits in its padding."""
    if part := _random_part(upload, rng):
        size = _size(part)
        bits = rng.random((size + 7) // 8 * 8) < 0.5
        bits[size:] = rng.random(bits.size - size) < 0.2
        part.index = packed(bits).tobytes()
        part.head.index = int(pb.IndexCoding.Value("INDEX_BITMAP"))
        part.head.axis = part.head.low_bits = 0
        if rng.random() < 0.7:
            part.head.count = int(bits[:size].sum())
            _fit_values(part)


def change_ans(upload: Draft, rng: np.random.Generator) -> None:
    """Entropy-coded bits, with another number of them than the count, or in the padding, or coded by another count."""
    if part := _random_part(upload, rng):
        size = max(2, _size(part))
        bits = rng.random((size + 7) // 8 * 8) < rng.choice([0.1, 0.4])
        bits[size:] = rng.random(bits.size - size) < 0.1
        count = min(max(1, int(bits[:size].sum()) + int(rng.choice([0, 0, 0, 1, -1]))), size - 1)
        part.index = encode_ans(packed(bits), count, size)
        part.head.index = int(pb.IndexCoding.Value("INDEX_ANS"))
        part.head.axis = part.head.low_bits = 0
        part.head.count = count if rng.random() < 0.9 else _near(count, HUGE, rng)
        if part.head.count < 2**16:
            _fit_values(part)


def flip_index(upload: Draft, rng: np.random.Generator) -> None:
    """Bits of a stream of positions."""
    if (part := _random_part(upload, rng)) and part.index:
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


def change_value(upload: Draft, rng: np.random.Generator) -> None:
    """NaN, infinity, -0, denormals, the largest, around 10⁶; in sign coding the scale."""
    if (part := _random_part(upload, rng)) and len(part.values) >= 4:
        wide = int(rng.choice([2, 4]))
        offset = int(rng.integers(len(part.values) // wide)) * wide if rng.random() < 0.8 else 0
        odd = int(rng.choice(ODD[wide])).to_bytes(wide, "little")
        part.values = part.values[:offset] + odd + part.values[offset + wide :]


def flip_value(upload: Draft, rng: np.random.Generator) -> None:
    """Bits of values, and of the padding of signs."""
    if (part := _random_part(upload, rng)) and part.values:
        part.values = _flipped(part.values, rng)


def change_shape(upload: Draft, rng: np.random.Generator) -> None:
    """A shape of the same size, or of another one."""
    if part := _random_part(upload, rng):
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


def change_name(upload: Draft, rng: np.random.Generator) -> None:
    """Another name, or that of another tensor."""
    if part := _random_part(upload, rng):
        other_name = upload.parts[rng.integers(len(upload.parts))].head.name
        part.head.name = str(rng.choice([other_name, "", "x" * 256, "ü", "a b", "../w", part.head.name + ".", "w\n"]))


def change_order(upload: Draft, rng: np.random.Generator) -> None:
    """Tensors in another order; or their bytes alone, or their headers alone."""
    if len(upload.parts) > 1:
        a, b = rng.choice(len(upload.parts), 2, replace=False)
        first, second = upload.parts[a], upload.parts[b]
        match rng.integers(3):
            case 0:
                upload.parts[a], upload.parts[b] = second, first
            case 1:
                first.index, second.index = second.index, first.index
                first.values, second.values = second.values, first.values
            case _:
                first.head, second.head = second.head, first.head


def change_number_of_tensors(upload: Draft, rng: np.random.Generator) -> None:
    """A tensor less, or one twice, or a copy of it under a new name."""
    if part := _random_part(upload, rng):
        if rng.random() < 0.4:
            upload.parts.remove(part)
            return
        head = pb.Tensor()
        head.CopyFrom(part.head)
        if rng.random() < 0.5:
            head.name = f"{head.name}2"[:300]
        upload.parts.insert(int(rng.integers(len(upload.parts) + 1)), Part(head, part.index, part.values))


def add_bytes(upload: Draft, rng: np.random.Generator) -> None:
    """Bytes behind the header, or behind everything."""
    extra = rng.bytes(rng.integers(1, 9))
    upload.extra = (extra, upload.extra[1]) if rng.random() < 0.5 else (upload.extra[0], extra)


def change_start(upload: Draft, rng: np.random.Generator) -> None:
    """Magic or version."""
    upload.start = _flipped(upload.start, rng)


def add_to_header(upload: Draft, rng: np.random.Generator) -> None:
    """Unknown fields, fields again, groups, long varints: another form of the header."""
    raws = (b"\x10\x01", b"\x0a\x00", b"\x1a\x03abc", b"\x0b\x0c", b"\x08" + b"\x80" * 9 + b"\x01", rng.bytes(3))
    upload.raw += raws[rng.integers(len(raws))]


def change_scalar(upload: Draft, rng: np.random.Generator) -> None:
    """A scalar more, less, of another type, or out of its bounds."""
    odd = (float("nan"), float("inf"), -1.0, 2.0, -1, 2**62, True, "text", "", 0)
    name = str(rng.choice([*SCALARS, *upload.scalars, "another"]))
    if rng.random() < 0.2:
        upload.scalars.pop(name, None)
    else:
        upload.scalars[name] = odd[rng.integers(len(odd))]


CHANGES: tuple[Callable[[Draft, np.random.Generator], None], ...] = (
    change_count,
    change_lengths,
    change_bytes,
    change_value_coding,
    change_index_coding,
    change_parameters,
    change_gaps,
    change_bitmap,
    change_ans,
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

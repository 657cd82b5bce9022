"""Valid uploads for random schemas of all codings, for the structure-aware fuzzer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sepal.protocol.types import Payload, Schema
from sepal.wire import SparseTensor, Support, TensorSpec, ValueCoding, rounded

CODINGS = (ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.SIGN)
SHAPES = ((), (1,), (7,), (64,), (300,), (12, 20), (3, 5, 7), (40, 1), (2, 3, 4, 5), (0,), (4, 0), (17, 23), (4_000,))
DENSITIES = (0.0, 0.01, 0.05, 0.2, 0.38, 0.5, 0.79, 0.95, 1.0)
SCALARS = {
    "rate": (float, 0.0, 1.0),
    "step": (int, 0, None),
    "phase": (str, None, None),
    "last": (bool, None, None),
}


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
        agreed = bool(rng.random() < 0.5)
        mask = SparseTensor(shape, index, None, coding=ValueCoding.NONE, entropy_coded=agreed)
        return mask, replace(_spec(rng, shape, index, values=False), entropy_coded=agreed)
    tensor = SparseTensor(shape, index, _values(rng, index.size, coding), coding=coding)
    if kind == "derived":
        fixed = TensorSpec(shape, Support.DERIVED, index=index)
        both = _spec(rng, shape, index, known_index=index)
        return replace(tensor, support=Support.DERIVED), fixed if rng.random() < 0.5 else both
    if kind == "same":
        answered[name] = tensor
        return replace(tensor, support=Support.SAME), TensorSpec(shape, Support.SAME)
    masks = [mask_name for mask_name, sent in before.items() if sent.values is None and sent.nnz]
    if kind == "depends" and masks:
        name_of_mask = masks[rng.integers(len(masks))]
        count = before[name_of_mask].nnz
        values = _values(rng, count, coding)
        derived = SparseTensor((count,), np.arange(count), values, Support.DERIVED, coding)
        return derived, lambda sent_before: TensorSpec((sent_before[name_of_mask].nnz,), Support.DERIVED)
    return tensor, _spec(rng, shape, index)


def _spec(
    rng: np.random.Generator, shape: tuple[int, ...], index: np.ndarray, values: bool = True, known_index: object = None
) -> TensorSpec:
    """An explicit spec with bounds on the count that are wide, or exactly those of ``index``."""
    exact = rng.random() < 0.4
    least, most = (index.size, index.size) if exact else (0, None)
    optional = values and bool(rng.random() < 0.3)  # the support of another tensor may depend on a mask
    return TensorSpec(shape, Support.EXPLICIT, values, least, most, known_index, optional)  # type: ignore[arg-type]


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

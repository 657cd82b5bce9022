"""Several inputs of one example, side by side in one row of numbers: what ``own.shape`` says of them.

``image=1x8x8,words=16i`` are two inputs by name, the second of whole numbers; ``1x8x8,16i`` are the same by place. All
of Sepal sees a row of 80 float32; just before the model's ``forward``, the row is cut into its inputs again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sepal.errors import DataError
from sepal.tasks.numbers import EXACT, as_array, as_float32

if TYPE_CHECKING:
    import torch
    from torch import nn

_SIDES = "[1-9][0-9]*(?:x[1-9][0-9]*)*"
PATTERN = rf"^((?:[A-Za-z_][A-Za-z0-9_]*=)?{_SIDES}i?(?:,(?:[A-Za-z_][A-Za-z0-9_]*=)?{_SIDES}i?)*)?$"


@dataclass(frozen=True)
class Input:
    """One input: its name (empty: by place), its shape for one example, and whether it is int64 and not float32."""

    name: str
    shape: tuple[int, ...]
    whole: bool

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def several(text: str) -> tuple[Input, ...]:
    """Return the inputs that ``own.shape`` describes; none if it is one plain shape."""
    if not set(text) & set(",=i"):
        return ()
    inputs = []
    for part in text.split(","):
        match = re.fullmatch(rf"(?:(\w+)=)?({_SIDES})(i?)", part)
        if match is None:
            raise DataError("own.shape", "shapes such as image=1x8x8,words=16i", text)
        inputs.append(Input(match[1] or "", tuple(map(int, match[2].split("x"))), bool(match[3])))
    names = [entry.name for entry in inputs]
    if any(names) and ("" in names or len(set(names)) < len(names)):
        raise DataError("own.shape", "a name of its own for each input, or for none", text)
    return tuple(inputs)


def row_size(inputs: tuple[Input, ...]) -> int:
    """Return the length of a row."""
    return sum(entry.size for entry in inputs)


def packed(key: str, inputs: tuple[Input, ...], arrays: Any) -> NDArray[np.float32]:
    """Return examples as rows, float32 (n, all numbers).

    Args:
        key: Name of the data in error messages.
        inputs: What one example has.
        arrays: A dict of arrays (n, …) by name, or a tuple of arrays.

    Raises:
        DataError: An input is missing, has another shape or type, or the inputs have different numbers of examples.
    """
    named = bool(inputs[0].name)
    if named and not isinstance(arrays, Mapping):
        raise DataError(key, f"a dict with {', '.join(entry.name for entry in inputs)}", type(arrays).__name__)
    if named and arrays.keys() != {entry.name for entry in inputs}:
        raise DataError(key, f"a dict with {', '.join(entry.name for entry in inputs)}", ", ".join(sorted(arrays)))
    if not named and (not isinstance(arrays, tuple | list) or len(arrays) != len(inputs)):
        raise DataError(key, f"a tuple of {len(inputs)} arrays", type(arrays).__name__)
    rows: list[NDArray[np.float32]] = []
    for number, entry in enumerate(inputs):
        where = f"{key} {entry.name or number}"
        array = as_array(where, arrays[entry.name] if named else arrays[number])
        if array.shape[1:] != entry.shape or (rows and len(array) != len(rows[0])):
            expected = f"shape ({len(rows[0]) if rows else 'n'}, {', '.join(map(str, entry.shape))})"
            raise DataError(where, expected, array.shape)
        if array.dtype.kind not in ("iub" if entry.whole else "fiub"):
            raise DataError(where, "whole numbers" if entry.whole else "numbers", str(array.dtype))
        if entry.whole and array.size and np.abs(array.astype(np.int64)).max() >= EXACT:
            raise DataError(where, f"whole numbers below {EXACT}", int(np.abs(array).max()))
        rows.append(as_float32(where, array).reshape(len(array), -1))
    return np.concatenate(rows, 1)


def unpacking(module: nn.Module, inputs: tuple[Input, ...]) -> nn.Module:
    """Let the module take rows, and return it: its ``forward`` gets the inputs, by name or by place."""

    def unpack(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        parts = cut(args[0], inputs)
        return ((), dict(zip([entry.name for entry in inputs], parts, strict=True))) if inputs[0].name else (parts, {})

    module.register_forward_pre_hook(unpack, with_kwargs=True)
    return module


def cut(rows: torch.Tensor, inputs: tuple[Input, ...]) -> tuple[torch.Tensor, ...]:
    """Return the inputs in rows (n, all numbers), float32 or int64 (n, …)."""
    ends = np.cumsum([0, *(entry.size for entry in inputs)]).tolist()
    parts = [rows[:, start:end] for start, end in pairwise(ends)]
    shaped = (part.reshape(-1, *entry.shape) for part, entry in zip(parts, inputs, strict=True))
    return tuple(part.long() if entry.whole else part for part, entry in zip(shaped, inputs, strict=True))

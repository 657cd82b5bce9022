"""What may come in as examples, whatever they come from: dtype, range and shape.

==================  ==============  ====================================================================================
examples            stored as       what may come in
==================  ==============  ====================================================================================
images              uint8, uint16   (n, H, W) or (n, H, W, C), C at most 4; black is 0, white the largest number
a table             float64         (n, columns), finite or, where a cell is missing, NaN; each client standardises it
                                    in float64 (:mod:`sepal.data.scaling`)
numbers, ready      float32         (n, …), finite, floats whose differences float32 holds
                                    (:func:`sepal.tasks.numbers.as_float32`)
tokens              int32           (n, length), whole numbers from 0 to 2**31 - 1
class numbers       int64           (n,), whole numbers from 0
==================  ==============  ====================================================================================

Targets of other tasks are checked by :class:`sepal.tasks.Targets`. Files and hub copies have at most
``MOST_CLASSES`` classes, and as many token ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.data.examples import DatasetInfo, Examples, Labels, are_pixels
from sepal.errors import DataError
from sepal.tasks import Targets
from sepal.tasks.inputs import Input, packed
from sepal.tasks.numbers import as_array, as_float32

MOST_CLASSES = 1_000_000  # the limit of own.classes, too


def checked_rows(key: str, x: NDArray[Any]) -> NDArray[np.float64]:
    """Return a table's rows (n, columns) as they are; missing numbers are NaN.

    Raises:
        DataError: A number is infinite.
    """
    if np.isinf(x).any():
        raise DataError(key, "finite numbers", "infinity")
    return x


def checked_pixels(key: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return images as they are.

    Raises:
        DataError: They have another shape than (n, H, W) or (n, H, W, C).
    """
    if not are_pixels(x) or x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] > 4):
        raise DataError(key, "pixels as images (n, H, W) or (n, H, W, C)", x.shape)
    return x


def colours_last(info: DatasetInfo) -> tuple[str, ...]:
    """Return the line that says so where images are probably (n, H, W, C), which are taken for (n, C, H, W)."""
    shape = info.input_shape
    if info.kind != "image" or len(shape) != 3 or shape[2] not in (1, 3, 4) or shape[0] <= 4:
        return ()
    size = f"{shape[1]} x {shape[2]} pixels in {shape[0]} channels"
    return (f"data: images of {size}; if their colours come last, x.transpose(0, 3, 1, 2) puts them first",)


def checked_examples(
    key: str, x: Any, y: Any, classes: int = 0, targets: Targets | None = None, inputs: tuple[Input, ...] = ()
) -> Examples:
    """Return ``x`` as float32 or int32 and ``y`` as int64, or as ``targets`` say.

    Args:
        key: Name of the data in error messages.
        x: Floats ``(n, …)``, ready for the model, or integer tokens ``(n, length)``.
        y: Integers ``(n,)`` from 0.
        classes: Number of classes; labels must be smaller. 0 accepts any label.
        targets: What targets look like; None for class numbers, ``(n,)``.
        inputs: Several inputs, of which x is then a dict or tuple of arrays; they become rows.

    Raises:
        DataError: Not arrays, wrong shapes or types, values that are not finite, or labels out of range.
    """
    array = packed(f"{key} x", inputs, x) if inputs else as_array(f"{key} x", x)
    labels = as_array(f"{key} y", y)
    if array.ndim < 2:
        raise DataError(f"{key} x", "shape (n, …) with at least two axes", array.shape)
    if targets is not None:
        return Examples(_inputs(f"{key} x", array), targets.checked(f"{key} y", labels, len(array)))
    if labels.shape != (len(array),):
        expected = f"shape ({len(array)},), a label for each input"
        one_hot = labels.ndim == 2 and labels.shape[0] == len(array) and labels.shape[1] > 1
        raise DataError(f"{key} y", f"{expected} (one-hot labels: y.argmax(1))" if one_hot else expected, labels.shape)
    return Examples(_inputs(f"{key} x", array), _labels(f"{key} y", labels, classes))


def _inputs(key: str, inputs: NDArray[Any]) -> NDArray[Any]:
    if inputs.dtype.kind == "f":
        return as_float32(key, inputs)
    if inputs.dtype.kind in "iu" and inputs.dtype.itemsize > 1 and inputs.ndim == 2:
        if inputs.size and (inputs.min() < 0 or inputs.max() >= 2**31):
            raise DataError(key, "tokens from 0 to 2**31 - 1", f"{inputs.min()} to {inputs.max()}")
        return np.ascontiguousarray(inputs, dtype=np.int32)
    expected = "floats (images scaled and normalised), or tokens (n, length)"
    raise DataError(key, expected, f"{inputs.dtype} {inputs.shape}")


def _labels(key: str, labels: NDArray[Any], classes: int) -> Labels:
    if labels.dtype.kind not in "iu":
        way = "y.astype(int)" if labels.dtype.kind in "fb" else "texts: np.unique(y, return_inverse=True)[1]"
        raise DataError(key, f"whole numbers ({way})", str(labels.dtype))
    if len(labels) and (labels.min() < 0 or (classes and labels.max() >= classes)):
        raise DataError(key, f"labels from 0 to {classes - 1}" if classes else "labels from 0", _span(labels))
    return labels.astype(np.int64)


def _span(labels: NDArray[Any]) -> str:
    return f"{labels.min()} to {labels.max()}"

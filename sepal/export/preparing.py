"""Prepares files, pictures and arrays for an exported model as they were prepared in training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sepal.data.examples import PIXELS, scaled
from sepal.data.schema import Column, TableSchema, parsed
from sepal.data.sources.images import ImageFormat
from sepal.data.sources.inputs import Inputs, numbered, read_inputs
from sepal.data.sources.kinds import encoded
from sepal.data.sources.pictures import read_pictures
from sepal.errors import DataError, ModelError
from sepal.tasks.learning import CLASSIFICATION
from sepal.tasks.numbers import as_float32, check_whole

if TYPE_CHECKING:
    from sepal.export.portable import Origin


def read(origin: Origin, data: Any) -> Inputs:
    """Return examples; pictures are bytes of the size and channels that they had in training.

    Args:
        origin: Facts about the model.
        data: A path that :func:`sepal.data.sources.inputs.read_inputs` reads; one picture or a list of them,
            as :func:`sepal.data.sources.pictures.read_pictures` takes them; or examples (n, …): bytes of images
            (n, H, W[, C]), rows of a table as in its file or a data frame of them, or what the module takes.

    Raises:
        DataError: They cannot be read.
    """
    size = (origin.shape[-2], origin.shape[-1]) if origin.resize and len(origin.shape) == 3 else None
    colour = origin.shape[0] in (1, 3) and (origin.channels or len(origin.mean) == 3)  # a built-in colour data set
    channels: Any = origin.shape[0] if colour else "auto"
    image_format = ImageFormat(size, channels)
    if isinstance(data, str | Path):
        other_task = origin.task != CLASSIFICATION
        return read_inputs(
            Path(data), origin.class_names, origin.shape, image_format, schema_of(origin), other_task, origin.fill
        )
    inputs = read_pictures(data, origin.shape, image_format)
    if inputs is None:
        x = _array(origin, data)
        inputs = Inputs(numbered(x), x, None)
    return inputs


def prepared(origin: Origin, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return examples as the model takes them: float32 (n, *shape), images scaled as in training; tokens int64.

    Rows of a table that the model standardises are float64.

    Raises:
        DataError: A number is not finite.
        ModelError: They do not have the model's shape.
    """
    if x.dtype.kind == "f" and not (np.isfinite(x) | (origin.fill & np.isnan(x))).all():
        raise DataError("data", "finite numbers", "NaN or infinity")
    shape, images = x.shape[1:], x.dtype.name in PIXELS and len(origin.shape) == 3
    if images and x.ndim in (3, 4):
        shape = (1, *shape) if x.ndim == 3 else (shape[2], *shape[:2])
    if shape != origin.shape:
        raise ModelError("data", f"examples of shape {origin.shape}", shape)
    if images:
        return scaled(x, origin.mean, origin.std, len(origin.shape))
    if origin.vocabulary:
        return np.asarray(x, np.int64)
    check_whole("data", x)
    return np.array(x, np.float64) if origin.offset else as_float32("data", x)


def schema_of(origin: Origin) -> TableSchema:
    """Return how the model takes a table: by its schema, or else each of its columns as a number."""
    if origin.schema:
        return parsed(origin.schema)
    return TableSchema(column=tuple(Column(name=name, kind="number") for name in origin.columns))


def _array(origin: Origin, data: Any) -> npt.NDArray[Any]:
    """Return examples as an array; of a data frame the model's columns, in the model's order."""
    if origin.columns and hasattr(data, "columns"):
        columns = schema_of(origin).column
        if twice := [column.name for column in columns if list(data.columns).count(column.name) > 1]:
            raise DataError("data", "a different name for every column", f"more than one column called {twice[0]}")
        if missing := [column.name for column in columns if column.name not in data.columns]:
            names = ", ".join(column.name for column in columns)
            raise DataError("data", f"the columns {names}", f"none called {', '.join(missing)}")
        if not schema_of(origin).is_plain:
            return np.concatenate([_inputs(column, data[column.name]) for column in columns], axis=1)
        for name in origin.columns:
            check_whole(f"data, column {name}", np.asarray(data[name]))
        data = data[list(origin.columns)]
    try:
        x = np.asarray(data)
    except ValueError:
        raise DataError("data", "examples of one shape", "several shapes") from None
    if x.dtype.kind not in "fiub" or not x.ndim:
        raise DataError("data", "an array of numbers", str(x.dtype) if x.ndim else type(data).__name__)
    return x


def _inputs(column: Column, values: Any) -> npt.NDArray[np.float64]:
    """Return a data frame's column as inputs (n, inputs), as the cells of a file would be."""
    if column.kind == "number":
        check_whole(f"data, column {column.name}", np.asarray(values))
        try:
            return np.asarray(values, np.float64)[:, None]
        except (ValueError, TypeError) as error:
            raise DataError(f"data, column {column.name}", "numbers", str(error)) from None
    import pyarrow as pa  # type: ignore[import-untyped]

    present = values.notna()
    cells = pa.array([str(value) if filled else "" for value, filled in zip(values, present, strict=True)], pa.string())
    return encoded("data", column, cells, first=0)

"""Files of examples for an exported model: an array, a table, images, or a directory of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sepal.config.data import split_names
from sepal.data.examples import PIXELS
from sepal.data.locations import check_links
from sepal.data.schema import TableSchema
from sepal.data.sources.images import AS_IS, EXAMPLES, ImageFormat, check_alike, left_out, read_example
from sepal.data.sources.reading import Unpacked, load_arrays
from sepal.data.sources.table import Roles, read_table
from sepal.errors import DataError, one_line
from sepal.storage.regular import stored_size


class Inputs(NamedTuple):
    """Examples from files.

    Attributes:
        names: The name of each example.
        x: The examples, (n, …).
        y: Their labels, int64 (n,), or targets of another task; None unless all have one.
        notes: Lines that say what of the files was left out.
    """

    names: list[str]
    x: npt.NDArray[np.generic]
    y: npt.NDArray[Any] | None
    notes: tuple[str, ...] = ()


def read_inputs(
    path: Path,
    classes: Sequence[str] = (),
    shape: tuple[int, ...] = (),
    image_format: ImageFormat | None = None,
    schema: TableSchema | None = None,
    numbers: bool = False,
    fill: bool = False,
) -> Inputs:
    """Return the examples of a file or a directory; a directory's files that cannot be read are left out.

    Args:
        path: An .npz with x [, y]; a .csv; a .npy file with many examples (n, …); an image or a .npy file with one
            example; or a directory of these, whose sub-directories may be named like classes.
        classes: Names of the classes.
        shape: The shape of one example as the model takes it; tells one example from many.
        image_format: What image files are brought to; None: as they are.
        schema: How the model takes a table; None: as in the file. Other columns are ignored.
        numbers: Whether targets are those of another task than classification.
        fill: Whether the model takes missing numbers of a table, NaN.

    Raises:
        DataError: No example can be read, their shapes differ, a column or a cell is missing, or a directory has a link
            that leads out of it.
    """
    for suffix in (".npz", ".csv"):  # a directory that a run reads
        if path.is_dir() and len(matches := list(path.glob(f"*{suffix}"))) == 1:
            check_links(path, matches)
            path = matches[0]
    if path.suffix == ".npz":
        return _read_npz(path, numbers)
    if path.suffix == ".csv":
        schema = schema or TableSchema()
        roles = Roles(split_names(schema.label), schema.client, (), schema.column, classes, numbers)
        table = read_table(path, roles, fill=fill)
        ignored = f"{path}: columns that the model does not take are ignored: {', '.join(table.ignored)}"
        notes = (*table.notes, *((ignored,) if table.ignored else ()))
        return Inputs(numbered(table.x), table.x, table.y, notes)
    files = [path] if path.is_file() and path.suffix.lower() in EXAMPLES else list(_files(path))
    check_links(path, files)
    if not files:
        raise DataError("data", "an .npz with x, a .csv, or .png, .jpg or .npy files", str(path))
    pairs, bad = _read_all(files, image_format or AS_IS)
    if not pairs:
        raise bad[0]
    read, arrays = zip(*pairs, strict=True)
    if files == [path] and _many(arrays[0], shape):
        return Inputs(numbered(arrays[0]), arrays[0], None)
    check_alike(str(path), arrays)
    labels = [classes.index(file.parent.name) if file.parent.name in classes else -1 for file in read]
    truth = None if -1 in labels else np.array(labels, dtype=np.int64)
    named = [name_of(file.name if file == path else str(file.relative_to(path))) for file in read]
    return Inputs(named, np.stack(arrays), truth, left_out(bad, key=""))


def _read_all(
    files: Sequence[Path], image_format: ImageFormat
) -> tuple[list[tuple[Path, npt.NDArray[Any]]], list[DataError]]:
    """Return the files that can be read with their examples, and the errors of the others."""
    examples, bad = list[tuple[Path, npt.NDArray[Any]]](), list[DataError]()
    unpacked = Unpacked(str(files[0].parent), sum(stored_size(file) for file in files))
    for file in files:
        try:
            examples.append((file, read_example(file, image_format)))
        except DataError as error:
            bad.append(error)
        else:
            unpacked.add(examples[-1][1].nbytes)
    return examples, bad


def numbered(examples: npt.NDArray[np.generic]) -> list[str]:
    """Return the names of examples without a file: their numbers."""
    return [str(number) for number in range(len(examples))]


def _read_npz(path: Path, numbers: bool = False) -> Inputs:
    arrays = load_arrays(path, "an .npz with x", ("x", "y"))
    x, y = arrays.get("x"), arrays.get("y")
    if x is None or not x.ndim:
        raise DataError(str(path), "an .npz with x", "none" if x is None else "a single number as x")
    return Inputs(numbered(x), x, y if y is not None and (numbers or y.shape == (len(x),)) else None)


def _many(array: npt.NDArray[np.generic], shape: tuple[int, ...]) -> bool:
    """Return whether an array is (n, …) examples of a model's shape, and not one."""
    ones = bytes_shapes(shape) if array.dtype.name in PIXELS and len(shape) == 3 else [shape]
    return array.shape[1:] in ones and array.shape not in ones


def bytes_shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes that an image of bytes can have for a model that takes ``shape``, (C, H, W)."""
    channels, *sides = shape
    return [(*sides, channels), *[tuple(sides)] * (channels == 1)]


def name_of(file: str) -> str:
    """Return a file's name in a form that can be printed."""
    return file if file.isprintable() else one_line(ascii(file))


def _files(path: Path) -> Iterator[Path]:
    """Yield the examples below ``path``, except hidden ones: a run keeps a copy of the data in ``.sepal-cache``."""
    for file in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if file.suffix.lower() in EXAMPLES and not hidden and file.is_file():
            yield file

"""A data set of the Hugging Face hub, or a local copy of one: ``dataset = "hf"``.

``hf.name`` is its name on the hub. It is downloaded once, to ``hf/`` in the directory of data sets, and read from there
later, without a network. Without ``hf.name``, ``data-dir`` is a local copy:

1. a directory that ``save_to_disk`` of the library ``datasets`` wrote; or
2. Parquet files. A file belongs to the part that its name, or its first directory, begins with: ``train-0.parquet``,
   ``test/a.parquet``; without such a name to ``train``.

The keys ``hf.*`` name columns and parts. Inputs are one column of images or of arrays, or columns of numbers, which are
standardised like those of a CSV file. Images become what ``folder.resize`` and ``folder.channels`` say. The parts are
read into memory once, and cached.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sepal.config import FolderSettings, HubReading, HubSettings
from sepal.data import cache
from sepal.data.examples import Source
from sepal.data.locations import data_directory, downloads_allowed
from sepal.data.sources.folder import source_of, table_of, task_of
from sepal.data.sources.images import Look, as_array, check_alike
from sepal.data.sources.table import refuse_gaps
from sepal.errors import DataError, one_line
from sepal.protocol.tasks.learning import CLASSIFICATION

MARKS = ("dataset_dict.json", "state.json")  # of directories that save_to_disk wrote: of several parts, and of one
PART = re.compile(r"[-_.]")


def local_copy(name: str, data_dir: str | Path) -> Path:
    """Return the directory of a data set, which is downloaded if it is not there.

    Args:
        name: Its name on the hub, ``OWNER/NAME`` or ``OWNER/NAME:CONFIGURATION``; empty: ``data_dir`` itself.
        data_dir: Directory of the local copy; with a name, of data sets.

    Raises:
        DataError: There is no directory, or the hub cannot be reached.
    """
    if not name:
        if not str(data_dir):
            raise DataError("hf.name", "a name on the hub, or data-dir with a local copy", "neither")
        return data_directory(data_dir)
    place = data_directory(data_dir) / "hf" / quote(name, safe="")
    with cache.exclusive(place):
        if files(place) is None:
            _download(name, place)
    return place


def _download(name: str, place: Path) -> None:
    """Write a data set of the hub to ``place``, whole or not at all."""
    if Path(name).expanduser().is_dir():  # the library would take it, and not look for the name on the hub
        words = f"a name on the hub; a local copy is data-dir = {name} (in Python data_dir=) without hf.name"
        raise DataError("hf.name", words, f"{name}, a directory")
    expected = f"{name} from the Hugging Face hub, or without hf.name a local copy in data-dir"
    if not downloads_allowed():
        raise DataError("hf.name", expected, f"SEPAL_DOWNLOAD=0 and nothing in {place}")
    import datasets

    where, _, configuration = name.partition(":")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".hf-", dir=place.parent) as temporary:
        try:
            found = datasets.load_dataset(where, configuration or None, cache_dir=f"{temporary}/cache")
            found.save_to_disk(f"{temporary}/copy")
        except Exception as error:  # of the hub's client, of its network library, or of a file format
            words = one_line(f"{type(error).__name__}: {error}", 160)
            raise DataError("hf.name", expected, words) from error
        shutil.rmtree(place, ignore_errors=True)
        (Path(temporary) / "copy").rename(place)


def files(directory: Path) -> list[Path] | None:
    """Return the files to read; None if there is no local copy."""
    saved = sorted(path for mark in MARKS for path in directory.glob(mark))
    tables = sorted(directory.rglob("*.arrow")) if saved else sorted(directory.rglob("*.parquet"))
    return [*saved, *tables] if tables else None


def read(directory: Path, keys: FolderSettings | None = None) -> Source:
    """Read a local copy.

    Args:
        directory: The directory.
        keys: The keys ``hf.*`` and ``folder.*``.

    Raises:
        DataError: It has no local copy, or its columns are others.
    """
    keys = keys if isinstance(keys, HubReading) else HubReading()
    found = files(directory)
    if found is None:
        raise DataError("data-dir", "a directory of save_to_disk, or with Parquet files", str(directory))
    parts = _parts(directory, found)
    if keys.hf.train not in parts:
        raise DataError("hf.train", f"one of {', '.join(sorted(parts))}", keys.hf.train)
    return _source(str(directory), parts[keys.hf.train], parts.get(keys.hf.test), keys)


def _parts(directory: Path, found: Sequence[Path]) -> Mapping[str, Any]:
    """Return the parts by name, each a ``datasets.Dataset`` over its files."""
    import datasets
    from pyarrow import parquet  # type: ignore[import-untyped]

    try:
        if found[0].name in MARKS:
            stored = datasets.load_from_disk(str(directory))
            return stored if isinstance(stored, datasets.DatasetDict) else {"train": stored}
        by_part: dict[str, list[Any]] = {}
        for path in found:
            steps = [PART.split(step)[0] for step in path.relative_to(directory).parts]
            part = next((step for step in steps if step in ("train", "validation", "test")), "train")
            by_part.setdefault(part, []).append(datasets.Dataset(parquet.read_table(path)))
        return {part: datasets.concatenate_datasets(tables) for part, tables in by_part.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        expected = "a directory of save_to_disk, or with Parquet files of the same columns"
        raise DataError(str(directory), expected, one_line(f"{type(error).__name__}: {error}", 160)) from error


def _source(key: str, train: Any, test: Any | None, keys: HubReading) -> Source:
    """Return the examples of both parts; columns and classes are those of the training part."""
    hub, task = keys.hf, task_of(keys)
    for name in (hub.label, *hub.columns, *filter(None, [hub.person])):
        if name not in train.column_names:
            raise DataError("hf.label, hf.inputs, hf.person", f"columns among {', '.join(train.column_names)}", name)
    if hub.person and test is not None:
        raise DataError("hf.person", "no test part, as each person's own is held out (hf.test)", hub.test)
    columns = hub.columns or _inputs(train, hub)
    look = Look(keys.size, keys.channels)
    names = keys.names or _names(train, hub.label) if task == CLASSIFICATION else ()
    pairs = [
        (_x(f"{key} {name}", part, columns, look), _y(f"{key} {name}", part, hub.label, names))
        for name, part in ((hub.train, train), (hub.test, test))
        if part is not None
    ]
    people = np.asarray(train[hub.person][:]) if hub.person else None
    if _is_table(train, columns):
        for part, (x, _) in zip((hub.train, hub.test), pairs, strict=False):
            if keys.missing == "refuse":
                refuse_gaps(f"{key} {part}", x, columns)
        found = table_of(key, pairs, people, names, columns, keys)
    else:
        found = source_of(key, pairs[0], pairs[1] if len(pairs) > 1 else None, people, names=names, task=task)
    return replace(found, info=replace(found.info, name="hf"))


def _inputs(part: Any, hub: HubSettings) -> list[str]:
    """Return the column of images if there is one, and otherwise all columns of numbers but label and person."""
    rest = [name for name in part.column_names if name not in (hub.label, hub.person)]
    images = [name for name in rest if _kind(part, name) == "Image"]
    found = images or [name for name in rest if _is_table(part, [name])]
    if not found or len(images) > 1:
        raise DataError("hf.inputs", f"one or more of {', '.join(rest)}", "nothing")
    return found


def _kind(part: Any, name: str) -> str:
    return type(part.features[name]).__name__


def _is_table(part: Any, columns: Sequence[str]) -> bool:
    """Return whether each of the columns holds a number in each row."""
    kinds = [getattr(part.features[name], "dtype", "") for name in columns if _kind(part, name) == "Value"]
    return len(kinds) == len(columns) and all(re.match(r"u?int|float|bool", kind) for kind in kinds)


def _names(part: Any, label: str) -> tuple[str, ...]:
    """Return the classes that the label's column declares; of texts, all that occur, sorted; of numbers none."""
    feature = part.features[label]
    if _kind(part, label) == "ClassLabel":
        return tuple(feature.names)
    return tuple(sorted(set(part[label]))) if getattr(feature, "dtype", "") in ("string", "large_string") else ()


def _x(key: str, part: Any, columns: Sequence[str], look: Look) -> NDArray[Any]:
    """Return the inputs: images as bytes, an array's column as float32, and otherwise a row of numbers."""
    if _is_table(part, columns):
        return np.stack([np.asarray(part[name][:], dtype=np.float32) for name in columns], axis=1)
    if len(columns) != 1:
        raise DataError("hf.inputs", "one column, or several of numbers", ", ".join(columns))
    (name,) = columns
    if _kind(part, name) == "Image":
        arrays = [as_array(f"{key}, row {row}", cell, look) for row, cell in enumerate(part[name])]
        check_alike(key, arrays)
        return np.stack(arrays)
    try:
        found = np.asarray(part[name][:])
        return found.astype(np.int64 if found.dtype.kind in "iu" else np.float32)
    except ValueError as error:
        got = f"{getattr(part.features[name], 'dtype', part.features[name])}"
        raise DataError(f"{key}, column {name}", "images, numbers, or arrays of one shape", got) from error


def _y(key: str, part: Any, label: str, names: Sequence[str]) -> NDArray[Any]:
    """Return the labels: numbers of classes, or targets as they are."""
    cells = part[label][:]
    odd = next((row for row, cell in enumerate(cells) if cell is None), None)
    if odd is not None:
        raise DataError(f"{key}, row {odd}, column {label}", "a label", "nothing")
    if names and isinstance(cells[0], str):
        strange = next((cell for cell in cells if cell not in names), None)
        if strange is not None:
            raise DataError(f"{key}, column {label}", f"one of {', '.join(names)}", strange)
        return np.asarray([names.index(cell) for cell in cells], dtype=np.int64)
    return np.asarray(cells)

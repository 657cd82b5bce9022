"""FEMNIST: handwritten characters by writer (LEAF, Caldas et al. 2018), in one of two formats.

- LEAF's JSON: ``femnist/train/*.json`` and ``femnist/test/*.json``, each with ``users`` and ``user_data``; a writer's
  ``x`` are lists of 784 grey values from 0 to 1, ``y`` are classes 0-61. LEAF's own test part is used if it is there.
- flwr-datasets' Parquet (``flwrlabs/femnist``): ``femnist/**/*.parquet`` with ``image`` (a PNG), ``character`` and
  ``writer_id``. It has no test part: a fraction of each client's data is held out.

The background is white (255) and ink is dark, as published.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.catalogue import CATALOGUE
from sepal.data.examples import Source
from sepal.data.sources.images import ImageFormat, from_cell
from sepal.data.sources.reading import Unpacked, owners_of, reading
from sepal.errors import DataError
from sepal.storage.regular import check_regular, stored_size

_WHERE = "femnist/{train,test}/*.json (LEAF), or femnist/*.parquet (flwrlabs/femnist on Hugging Face)"

SIDE = 28  # pixels


class _FemnistRows(NamedTuple):
    x: NDArray[np.uint8]  # (n, 28, 28)
    y: NDArray[np.int64]  # (n,)
    writer: NDArray[Any]  # (n,) of strings


def files(directory: Path) -> list[Path] | None:
    """Return the files that identify the data (JSON is preferred to Parquet); None if there are none."""
    home = directory / "femnist"
    return [*_json(home, "train"), *_json(home, "test")] or sorted(home.rglob("*.parquet")) or None


def read(directory: Path) -> Source:
    """Read the characters: uint8 (n, 28, 28), classes 0-61, the writer of each.

    Raises:
        DataError: The files are missing or invalid.
    """
    home = directory / "femnist"
    if files(directory) is None:
        raise DataError("data-dir", f"{_WHERE} in {directory}", "neither (it is not downloaded from here)")
    if _json(home, "train") or _json(home, "test"):
        parts = [[rows for path in _json(home, part) for rows in _leaf(path)] for part in ("train", "test")]
    else:
        parts = [[rows for path in sorted(home.rglob("*.parquet")) for rows in _parquet(path)], []]
    every = [rows for part in parts for rows in part]
    if not every:
        raise DataError(str(home), "at least one writer", "none")
    x, y, writer = (np.concatenate(columns) for columns in zip(*every, strict=True))
    return Source(CATALOGUE["femnist"], x, y, sum(len(rows.y) for rows in parts[0]), writer)


def _json(home: Path, part: str) -> list[Path]:
    return sorted((home / part).glob("*.json"))


def _leaf(path: Path) -> Iterator[_FemnistRows]:
    """Yield the rows of each writer in one of LEAF's files."""
    with reading(str(path), "LEAF's JSON with users and user_data"):
        check_regular(path)
        content = json.loads(path.read_text(encoding="utf-8"))
        writers = [(str(user), content["user_data"][user]) for user in content["users"]]
    owners_of(f"{path}, users", [writer for writer, _ in writers])
    for writer, data in writers:
        with reading(f"{path} {writer}", "x of 784 values each, and y"):
            x = np.asarray(data["x"], dtype=np.float64).reshape(-1, 28, 28)
            y = np.asarray(data["y"], dtype=np.int64).reshape(-1)
        if x.size and not (x.min() >= 0 and x.max() <= 1):
            raise DataError(f"{path} {writer}", "grey values from 0 to 1", f"{x.min()} to {x.max()}")
        if len(y):
            yield _checked(f"{path} {writer}", np.round(x * 255).astype(np.uint8), y, np.full(len(y), writer))


def _parquet(path: Path) -> Iterator[_FemnistRows]:
    """Yield the rows of a Parquet file in batches."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    from sepal.data.sources.arrow import batches

    row, unpacked = 0, Unpacked(str(path), stored_size(path))
    expected = "Parquet with image, writer_id and character"
    with reading(str(path), expected):
        check_regular(path)
    with reading(str(path), expected), path.open("rb") as stored, pq.ParquetFile(stored) as file:
        for batch in batches(path, file, ["image", "writer_id", "character"]):
            columns = batch.to_pydict()
            cells = enumerate(columns["image"], row)
            unpacked.add(SIDE**2 * batch.num_rows)
            images = [_image(f"{path}, row {number}, column image", cell) for number, cell in cells]
            row += len(images)
            y = np.asarray(columns["character"], dtype=np.int64)
            yield _checked(
                str(path), np.stack(images), y, owners_of(f"{path}, column writer_id", columns["writer_id"]).astype(str)
            )


def _image(key: str, cell: Any) -> NDArray[Any]:
    image = from_cell(key, cell, ImageFormat(channels=1))
    if image.shape != (SIDE, SIDE):
        raise DataError(key, "an image of 28 × 28", image.shape)
    return image


def _checked(key: str, x: NDArray[np.uint8], y: NDArray[np.int64], writer: NDArray[Any]) -> _FemnistRows:
    if x.shape != (len(y), 28, 28):
        raise DataError(key, f"{len(y)} images of 28 × 28", x.shape)
    if y.min() < 0 or y.max() > 61:
        raise DataError(key, "classes from 0 to 61", f"{y.min()} to {y.max()}")
    return _FemnistRows(x, y, writer)

"""MNIST, Fashion-MNIST and EMNIST: idx files, gzipped or not, in the directories that torchvision uses.

The format is Yann LeCun's: two zero bytes, 8 for uint8, the number of axes, each axis as a big-endian uint32, and the
values. torchvision is only used to download missing files.
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.data.catalogue import CATALOGUE
from sepal.data.examples import Source
from sepal.data.sources.reading import Unpacked, reading
from sepal.data.sources.torchvision_import import download
from sepal.errors import DataError
from sepal.storage.regular import check_regular, stored_size


class Idx(NamedTuple):
    """A data set of idx files: its name, torchvision's class, the stems of file names, orientation of images."""

    name: str
    cls: str
    stems: tuple[str, str]
    options: dict[str, Any]
    transposed: bool = False

    def paths(self, directory: Path) -> list[Path]:
        """Return those of the four files that exist (train images, train labels, test images, test labels)."""
        raw = directory / self.cls / "raw"
        return [path for path in (_existing(raw, name) for name in self._names()) if path is not None]

    def _names(self) -> Sequence[str]:
        return [f"{stem}-{kind}" for stem in self.stems for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]

    def files(self, directory: Path) -> list[Path] | None:
        """Return the files that identify the data; None if one is missing."""
        paths = self.paths(directory)
        return paths if len(paths) == len(self._names()) else None

    def read(self, directory: Path) -> Source:
        """Read the data set: uint8 images (n, 28, 28), training rows first.

        Raises:
            DataError: A file is missing and cannot be downloaded, or does not match its header.
        """
        if self.files(directory) is None:
            where = f"{', '.join(self._names())} (or .gz) in {directory / self.cls / 'raw'}"
            download(self.cls, directory, where, **self.options)
        paths = self.paths(directory)
        if len(paths) != len(self._names()):
            raise DataError(str(directory / self.cls / "raw"), ", ".join(self._names()), f"{len(paths)} of these files")
        train_x, train_y, test_x, test_y = (read_idx(path) for path in paths)
        info = CATALOGUE[self.name]
        for images, labels, path in ((train_x, train_y, paths[1]), (test_x, test_y, paths[3])):
            _check(images, labels, path, info.classes, info.input_shape[1:])
        x = np.concatenate([train_x, test_x])
        x = np.ascontiguousarray(x.transpose(0, 2, 1)) if self.transposed else x
        return Source(info, x, np.concatenate([train_y, test_y]).astype(np.int64), len(train_y))


MNIST = Idx("mnist", "MNIST", ("train", "t10k"), {})
FASHION_MNIST = Idx("fashion-mnist", "FashionMNIST", ("train", "t10k"), {})
# EMNIST's files hold transposed images; they are transposed back.
EMNIST = Idx("emnist", "EMNIST", ("emnist-byclass-train", "emnist-byclass-test"), {"split": "byclass"}, True)


def _existing(raw: Path, name: str) -> Path | None:
    candidates = [folder / f"{name}{ending}" for ending in ("", ".gz") for folder in (raw, raw / "gzip")]
    return next((path for path in candidates if path.is_file()), None)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array in an idx file of uint8, read-only.

    Raises:
        DataError: The file is not gzip despite its name, not idx, not uint8, or truncated.
    """
    with reading(str(path), "a readable idx file"):
        check_regular(path)
        data = _unzipped(path) if path.suffix == ".gz" else path.read_bytes()
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise DataError(str(path), "an idx header of uint8 (00 00 08 axes)", data[:8].hex(" "))
    axes = data[3]
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    body = len(data) - 4 - 4 * axes
    if body != math.prod(shape):
        raise DataError(str(path), f"{math.prod(shape)} bytes of data after the header", f"{body} bytes")
    with reading(str(path), "a readable idx file"):  # it may say that it has more axes than NumPy allows
        return np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def _unzipped(path: Path) -> bytes:
    unpacked, blocks = Unpacked(str(path), stored_size(path)), []
    with gzip.open(path) as file:
        while block := file.read(2**20):
            unpacked.add(len(block))
            blocks.append(block)
    return b"".join(blocks)


def _check(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], path: Path, classes: int, side: tuple[int, ...]
) -> None:
    if labels.ndim != 1 or images.shape != (len(labels), *side):
        raise DataError(str(path), f"labels for images of {side}", f"shapes {images.shape} and {labels.shape}")
    if len(labels) == 0 or int(labels.max()) >= classes:
        raise DataError(str(path), f"labels below {classes}", int(labels.max()) if len(labels) else "no labels")

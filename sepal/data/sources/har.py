"""HAR: the smartphone activities of 30 people (UCI, Anguita et al. 2013), as windows of inertial signals.

10,299 windows of 128 readings at 50 Hz in nine channels: body acceleration, body gyroscope and total acceleration,
three axes each. The official test part has different people from the training part, so it cannot be used if each
person is a client. All windows are pooled, and a fraction of each client's data is held out (DM-PFL A.1.3: a quarter).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.data.catalogue import CATALOGUE
from sepal.data.examples import Labels, Source
from sepal.data.sources.reading import load_arrays, reading
from sepal.errors import DataError

UCI = "UCI HAR Dataset"
CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")


def files(directory: Path) -> list[Path] | None:
    """Return the files that identify the data (``har.npz`` or UCI's files); None if they are missing."""
    packed = directory / "HAR" / "har.npz"
    if packed.is_file():
        return [packed]
    home = _uci(directory)
    paths = [] if home is None else [path for part in ("train", "test") for path in _part_files(home, part)]
    return paths if paths and all(path.is_file() for path in paths) else None


def read(directory: Path) -> Source:
    """Read the windows: float32 (n, 9, 128), labels 0-5, people 1-30, all of them training rows.

    Raises:
        DataError: A file is missing or has an unexpected shape.
    """
    data_files = files(directory)
    if data_files is None:
        where = f"HAR/har.npz (x, y, subject), or UCI's directory '{UCI}', in {directory}"
        raise DataError("data-dir", where, "neither (archive.ics.uci.edu, data set 240; it cannot be downloaded here)")
    x, y, subject = _packed(data_files[0]) if len(data_files) == 1 else _published(directory)
    _check(data_files[0], x, y, subject)
    return Source(CATALOGUE["har"], x, y, len(y), subject)


def _packed(path: Path) -> tuple[NDArray[Any], Labels, Labels]:
    expected = "an npz file with x, y and subject"
    arrays = load_arrays(path, expected)
    with reading(str(path), expected):
        return arrays["x"].astype(np.float32), arrays["y"].astype(np.int64), arrays["subject"].astype(np.int64)


def _published(directory: Path) -> tuple[NDArray[Any], Labels, Labels]:
    home = _uci(directory) or directory
    parts = [[_text(path) for path in _part_files(home, part)] for part in ("train", "test")]
    try:
        x = np.concatenate([np.stack(tables[2:], axis=1) for tables in parts]).astype(np.float32)
        y, subject = (np.concatenate([tables[k].ravel() for tables in parts]).astype(np.int64) for k in (0, 1))
    except ValueError as error:
        raise DataError(str(home), "the same number of rows in each file of a part", str(error)) from error
    return x, y - 1, subject  # published labels are 1-6


def _uci(directory: Path) -> Path | None:
    candidates = (directory / UCI, directory / "HAR" / UCI)
    return next((candidate for candidate in candidates if candidate.is_dir()), None)


def _part_files(home: Path, part: str) -> list[Path]:
    """Return the files of labels, people, and the nine channels."""
    signals = [home / part / "Inertial Signals" / f"{channel}_{part}.txt" for channel in CHANNELS]
    return [home / part / f"y_{part}.txt", home / part / f"subject_{part}.txt", *signals]


def _text(path: Path) -> NDArray[Any]:
    try:
        return np.loadtxt(path, dtype=np.float64, ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(str(path), "a table of numbers", str(error)) from error


def _check(path: Path, x: NDArray[Any], y: Labels, subject: Labels) -> None:
    if x.ndim != 3 or x.shape[1:] != (9, 128) or y.shape != (len(x),) or subject.shape != (len(x),):
        expected = "x (n, 9, 128) with y (n,) and subject (n,)"
        raise DataError(str(path), expected, f"{x.shape}, {y.shape}, {subject.shape}")
    if not np.isfinite(x).all() or len(y) == 0 or y.min() < 0 or y.max() > 5:
        raise DataError(str(path), "finite signals, and six activities", f"labels {sorted(set(y.tolist()))}")

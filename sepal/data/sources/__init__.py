"""The data sources: one module per file format, and their cache."""

from __future__ import annotations

import functools
import importlib
import os
import stat
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from sepal.config import FolderSettings, RunConfig
from sepal.data import cache
from sepal.data.catalogue import CATALOGUE
from sepal.data.examples import DatasetInfo, Source
from sepal.data.locations import cache_entry, data_directory, home_of, reachable
from sepal.data.own import OWN
from sepal.data.sources.images import MixedSizesError
from sepal.errors import DataError, StateError, suggest
from sepal.storage.serialize import restore

LAYOUT = 7  # increase when the content of a cache entry changes
FOLDER, HUB = "folder", "hf"  # data sets whose files are the user's own
FILES = (FOLDER, HUB)
PLAIN = FolderSettings()


class FormatReader(Protocol):
    """Interface of a module or object that reads one format."""

    files: Callable[[Path], list[Path] | None]
    """Return the files whose size and time identify the data; None if they are missing."""
    read: Callable[..., Source]
    """Read the files in a directory, of ``FILES`` by the keys of a second argument; a DataError says which are missing.

    Public data sets are downloaded if necessary.
    """


_READERS = {
    "ag-news": "from_hub:AG_NEWS",
    "cifar-10": "cifar:CIFAR10",
    "cifar-100": "cifar:CIFAR100",
    "digits": "digits",
    "emnist": "idx:EMNIST",
    "fashion-mnist": "idx:FASHION_MNIST",
    "femnist": "femnist",
    "folder": "folder",
    "har": "har",
    "hf": "hub",
    "imdb": "imdb",
    "mnist": "idx:MNIST",
    "shakespeare": "from_hub:SHAKESPEARE",
    "tiny-imagenet": "from_hub:TINY_IMAGENET",
}


def source_names() -> tuple[str, ...]:
    """Return the values of the run-config key ``dataset``, sorted."""
    return tuple(sorted((*_READERS, OWN)))


def info(dataset: str, data_dir: str | Path = "", folder: FolderSettings = PLAIN) -> DatasetInfo:
    """Return the metadata of a data set. Only ``FILES`` are read for this. Arguments as in :func:`load`.

    Raises:
        DataError: The name is unknown, or a ``folder`` cannot be read.
    """
    _reader(dataset)
    return CATALOGUE[dataset] if dataset in CATALOGUE else load(dataset, data_dir, folder).info


def load(name: str, data_dir: str | Path = "", folder: FolderSettings = PLAIN) -> Source:
    """Return a source. If it is cached, neither torch nor scikit-learn is imported.

    Args:
        name: One of :func:`source_names`.
        data_dir: Directory of the files; see :class:`sepal.data.DataSpec`.
        folder: How the files of ``folder`` and ``hf`` are read.

    Raises:
        DataError: The name is unknown, or files are missing or damaged; the error says which file to put where.
    """
    reader, directory = _reader_and_directory(name, data_dir)
    data_files = reader.files(directory)
    if data_files is None:
        source = reader.read(directory)  # downloads the files, or raises
        data_files = reader.files(directory)
        if data_files is None:
            return _checked(name, source)
    return _remembered(name, directory, _state(data_files, directory), folder if name in FILES else PLAIN)


def check(name: str, data_dir: str | Path = "") -> None:
    """Look for the files of a data set, and download missing ones; nothing else is read.

    Raises:
        DataError: As :func:`load`.
    """
    reader, directory = _reader_and_directory(name, data_dir)
    if reader.files(directory) is None:
        reader.read(directory)


def is_here(name: str, data_dir: str | Path = "") -> bool:
    """Return whether the files of a data set are there; nothing is downloaded."""
    reader, directory = _reader_and_directory(name, data_dir)
    return reader.files(directory) is not None


def version(name: str, data_dir: str | Path) -> str:
    """Return a digest of the name, size and modification time of all files."""
    directory = reachable(data_directory(data_dir))
    return _state(_reader(name).files(directory) or [], directory)


def _reader_and_directory(name: str, data_dir: str | Path) -> tuple[FormatReader, Path]:
    """Return a data set's reader and the directory of its files."""
    reader = _reader(name)
    if name == FOLDER and not str(data_dir):
        raise DataError("data-dir", "the directory of your own data for dataset = folder", "nothing")
    return reader, reachable(data_directory(data_dir))


def _reader(name: str) -> FormatReader:
    if name not in _READERS:
        expected = f"one of {', '.join(source_names())}"
        if os.path.exists(name):  # pathlib raises errors for odd names
            expected = f"{FOLDER}, with data-dir = {name} for a file or directory of your own"
        raise DataError("dataset", expected, suggest(name, name, source_names()))
    module, _, member = _READERS[name].partition(":")
    reader_module: Any = importlib.import_module(f"sepal.data.sources.{module}")
    reader: FormatReader = getattr(reader_module, member) if member else reader_module
    return reader


def _state(files: list[Path], directory: Path) -> str:
    stats, home = [(path, path.stat()) for path in files], home_of(directory)
    plain = (stat.S_IFREG, stat.S_IFDIR)  # a pipe or a device might never end
    if odd := next((path for path, facts in stats if stat.S_IFMT(facts.st_mode) not in plain), None):
        raise DataError(str(odd), "a regular file", "a pipe or a device")
    return cache.key_of("state", [[str(p.relative_to(home)), s.st_size, s.st_mtime_ns] for p, s in stats])


@functools.lru_cache(maxsize=2)
def _remembered(name: str, directory: Path, state: str, folder: FolderSettings) -> Source:
    """Return the source from the cache, or read and cache it."""
    reader = _reader(name)
    keys = folder_key(name, folder)
    key = cache.key_of("source", LAYOUT, name, str(directory), state, *keys)
    entry = cache_entry(directory, key, private=name in FILES)  # a copy of the user's own data
    cached = _from_cache(entry)
    if cached is not None:
        return cached
    with cache.exclusive(entry and entry.path):
        cached = _from_cache(entry)
        if cached is not None:
            return cached
        mixed = entry and entry.beside("-mixed")
        _raise_mixed(mixed)
        try:
            source = _checked(name, _read(reader, name, directory, folder))
        except MixedSizesError as error:  # each run of a plan asks first whether the images have one size
            facts = {"key": error.key, "expected": error.expected, "got": error.got, "files": dict(error.files)}
            cache.write(mixed, {}, facts)
            raise
        arrays = {"x": source.x, "y": source.y}
        if source.natural is not None:
            arrays["natural"] = source.natural
        notes = {"info": asdict(source.info), "counts": (source.train_count, source.validation_count)}
        written = cache.write(entry, arrays, notes)
    return (_from_cache(entry) if written else None) or source


def _raise_mixed(entry: cache.Entry | None) -> None:
    """Raise the error that was found when these files were last read.

    Raises:
        MixedSizesError: Images have several sizes.
    """
    facts = (cache.read(entry) or ({}, {}))[1]
    texts, files = {key: facts.get(key) for key in ("key", "expected", "got")}, facts.get("files")
    if isinstance(files, dict) and all(isinstance(text, str) for text in (*texts.values(), *files.values())):
        error = MixedSizesError(*map(str, texts.values()))
        error.files = files
        raise error


def folder_key(name: str, folder: FolderSettings) -> tuple[str, ...]:
    """Return what the cache's keys say of the keys ``folder.*``; nothing for other data sets."""
    return (folder.model_dump_json(),) if name in FILES else ()


def _read(reader: FormatReader, name: str, directory: Path, folder: FolderSettings) -> Source:
    return reader.read(directory, folder) if name in FILES else reader.read(directory)


def _checked(name: str, source: Source) -> Source:
    if source.train_count < 1:
        raise DataError("dataset", f"training examples in {name}", "none")
    return source


def _from_cache(entry: cache.Entry | None) -> Source | None:
    cached = cache.read(entry)
    if cached is None:
        return None
    arrays, notes = cached
    try:
        info = restore(DatasetInfo, {}, {**notes["info"], "inputs": []})
        train, validation = restore(tuple[int, int], {}, notes["counts"])
        source = Source(info, arrays["x"], arrays["y"], train, arrays.get("natural"), validation)
        return source if _fits(source) else None
    except (KeyError, TypeError, ValueError, StateError):
        return None


def _fits(source: Source) -> bool:
    """Return whether an entry of the cache, which may be from elsewhere, can be what a reader has made of files.

    A reader names one of our models by default; another name would be imported.
    """
    info, x, y, natural, rows = source.info, source.x, source.y, source.natural, len(source.x)
    RunConfig.model_validate({key.replace("-", "_"): value for key, value in info.defaults.items()})  # or a ValueError
    fits = (
        ":" not in str(info.defaults.get("model", ""))
        and info.classes > 0
        and min(info.input_shape, default=0) > 0
        and x.dtype.kind in "uifb"
        and y.dtype.kind in "uifb"
        and len(y) == rows
        and source.train_count > 0
        and 0 <= source.validation_count <= rows - source.train_count
        and info.natural == (natural is not None)
        and (natural is None or (natural.shape == (rows,) and natural.dtype.kind in "iuUS"))
    )
    if not fits or not info.labelled:
        return fits
    return y.ndim == 1 and y.dtype.kind in "ui" and int(y.min()) >= 0 and int(y.max()) < info.classes

"""Your own data in a directory: ``dataset = "folder"``, with the directory as ``data-dir``.

The first of these formats that is found is read:

1. one ``.npz``: ``x``, ``y`` [, ``x_test``, ``y_test``] [, ``person`` of each row of x];
2. one ``.csv`` with a header: a column ``label`` (whole numbers from 0 in digits, or texts, which become classes in
   sorted order), every other column a number [, a column ``person``]; a first column with pandas' index is left out;
3. ``train/`` and one or both of ``val/`` (or ``valid/``, ``validation/``) and ``test/``, each as in 4, with the same
   classes; the validation part is dealt to the clients like the test part;
4. a sub-directory per class, in alphabetical order, with ``.png``, ``.jpg``, ``.jpeg`` or ``.npy`` files, all of one
   shape (``folder.resize`` makes it one). Files with another suffix are ignored, and a notice counts them.

The keys ``folder.*`` name the classes, bring images to one size, and say what becomes of files that cannot be read. The
columns of a CSV file are standardised by each client (:mod:`sepal.data.scaling`), and missing cells are filled there.

Tasks other than classification (docs/tasks.md) are read from 1, with ``y`` as the task has it, and from 2.

``uint8`` and ``uint16`` images, ``(H, W)`` or ``(H, W, C)`` as in PNG and JPEG files, are scaled to -1 … 1. Floats are
used unchanged, with images as ``(C, H, W)``. Other integers ``(n, length)`` are tokens. With ``person``,
``partition.name = "natural"`` can be used. :mod:`sepal.data.incoming` has dtypes, ranges and shapes.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.config import FolderReading, FolderSettings
from sepal.data.examples import PIXELS, DatasetInfo, InputKind, Labels, Source, are_pixels
from sepal.data.incoming import MOST_CLASSES, checked_examples, checked_pixels, checked_rows
from sepal.data.sources.images import EXAMPLES, FILES, Look, check_alike, counted, left_out, read_example
from sepal.data.sources.table import count_gaps, read_table
from sepal.errors import DataError
from sepal.protocol.tasks.learning import CLASSIFICATION
from sepal.protocol.tasks.making import targets_of

PLAIN = FolderSettings()
SHOWN = 4  # classes that a message names, at most
DIM = 2**13  # 16-bit images without a value from here on, an eighth of white, may have another white
_FORMS = (
    f"one .npz, one .csv with a column `label`, or a sub-directory per class with {FILES}, alone or in each of train/, "
    "val/ and test/"
)
# Names of directories that are parts and no classes, where there is one called train.
PARTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


def files(directory: Path) -> list[Path] | None:
    """Return the files to read; None if the directory is missing or has none of the formats."""
    if not directory.is_dir():
        return None
    tables = sorted(directory.glob("*.npz")) or sorted(directory.glob("*.csv"))
    if tables:
        return tables
    homes = list(_parts(directory).values()) or [directory]
    folders = [folder for home in homes for folder in _class_folders(home)]
    members = [path for folder in folders for path in _members(folder)]
    return [*members, *_others(folders)] if members else None  # of others there is a notice, which the cache keeps


def read(directory: Path, keys: FolderSettings = PLAIN) -> Source:
    """Read the directory.

    Args:
        directory: The directory.
        keys: The keys ``folder.*``.

    Raises:
        DataError: The directory has none of the formats, or its files are invalid.
    """
    found = files(directory)
    if found is None:
        homes = _parts(directory).values()
        straight, names = sum(len(_members(home)) for home in homes), ", ".join(home.name for home in homes)
        got = f"{straight} files straight in {names}" if straight else str(directory)
        raise DataError("data-dir", f"a directory with {_FORMS}", got)
    if found[0].suffix in (".npz", ".csv"):
        if len(found) > 1:
            raise DataError(str(directory), f"one {found[0].suffix} file", f"{len(found)} of them")
        return _npz(found[0], task_of(keys)) if found[0].suffix == ".npz" else _csv(found[0], keys)
    if task_of(keys) != CLASSIFICATION:
        raise DataError(str(directory), f"an .npz or a .csv for the task {task_of(keys)}", "directories of classes")
    return _classes(directory, keys)


def task_of(keys: FolderSettings) -> str:
    """Return the task that the files are read for."""
    return keys.task if isinstance(keys, FolderReading) else CLASSIFICATION


def _npz(path: Path, task: str) -> Source:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            given = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise DataError(str(path), "an npz file without pickled objects", str(error)) from error
    if not {"x", "y"} <= set(given) or ("x_test" in given) != ("y_test" in given):
        raise DataError(str(path), "x and y, and x_test with y_test or neither", ", ".join(sorted(given)) or "nothing")
    test = (given["x_test"], given["y_test"]) if "x_test" in given else None
    if "person" in given and test is not None:
        raise DataError(str(path), "person without x_test: each client's test part is held out of its own data", "both")
    return source_of(str(path), (given["x"], given["y"]), test, given.get("person"), task=task)


def _csv(path: Path, keys: FolderSettings) -> Source:
    task = task_of(keys)
    found = read_table(path, keys.names, task != CLASSIFICATION, labelled=True, fill=keys.missing == "mean")
    return table_of(str(path), [(found.x, found.y)], found.people, found.names, found.columns, keys, found.notes)


def table_of(
    key: str,
    parts: Sequence[tuple[NDArray[Any], Any]],
    people: NDArray[Any] | None,
    names: Sequence[str],
    columns: Sequence[str],
    keys: FolderSettings,
    notes: tuple[str, ...] = (),
) -> Source:
    """Return the examples of a table, as :func:`source_of`; missing numbers, NaN, are left to clients.

    ``parts``: the training part [, the test part], each float64 (n, columns) and targets.
    """
    train, *test = parts
    facts: dict[str, Any] = {"names": names, "task": task_of(keys), "notes": notes, "table": keys.standardize}
    source = source_of(key, train, test[0] if test else None, people, **facts)
    counts = count_gaps(source.x, columns)
    notes = (*source.info.notes, *((f"folder.missing: each client fills in its own mean: {counts}",) if counts else ()))
    return replace(source, info=replace(source.info, table=keys.standardize, columns=tuple(columns), notes=notes))


def _classes(directory: Path, keys: FolderSettings) -> Source:
    homes = _parts(directory)
    if not homes:
        names = keys.names or _names(directory)
        _check_names(directory, names)
        part, bad = _read_part(directory, names, keys)
        return source_of(str(directory), part, None, names=names, notes=(*left_out(bad), *_ignored([directory])))
    names = keys.names or _names(homes["train"])
    for home in homes.values():
        _check_names(home, names)
    read = {part: _read_part(home, names, keys) for part, home in homes.items()}
    bad = [error for _, errors in read.values() for error in errors]
    notes = (*left_out(bad), *_ignored(list(homes.values())))
    if "validation" in homes:
        notes = (*notes, f"split.validation: {homes['validation']} is the validation part; none of train is held out")
    parts = {part: examples for part, (examples, _) in read.items()}
    facts: dict[str, Any] = {"names": names, "notes": notes, "validation": parts.get("validation")}
    return source_of(str(directory), parts["train"], parts.get("test"), **facts)


def _check_names(home: Path, names: Sequence[str]) -> None:
    """Raise a DataError for a directory of another class."""
    if not set(_names(home)) <= set(names):
        raise DataError(str(home), f"classes among {list(names)}", _names(home))


def _parts(directory: Path) -> dict[str, Path]:
    """Return the directories of the parts by name; none if the sub-directories are classes."""
    folders = _class_folders(directory)
    parts = {PARTS[folder.name]: folder for folder in folders if folder.name in PARTS}
    return parts if "train" in parts and 1 < len(parts) == len(folders) else {}


def _class_folders(home: Path) -> list[Path]:
    return (
        sorted(path for path in home.iterdir() if path.is_dir() and not path.name.startswith("."))
        if home.is_dir()
        else []
    )


def _names(home: Path) -> list[str]:
    return [folder.name for folder in _class_folders(home)]


def _members(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in EXAMPLES and path.is_file())


def _others(folders: Sequence[Path]) -> list[Path]:
    """Return the files beside examples that are none by their suffix; hidden ones are not meant."""
    homes = [folder for folder in folders if _members(folder)]  # others may be a run's own directories
    found = (path for folder in homes for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in found if path.suffix.lower() not in EXAMPLES and path.is_file())


def _ignored(homes: Sequence[Path]) -> tuple[str, ...]:
    """Return the line that counts by suffix what is not read; none if all is."""
    others = _others([folder for home in homes for folder in _class_folders(home)])
    kinds = counted(path.suffix.lower() or path.name for path in others)
    return (f"data-dir: files other than {', '.join(EXAMPLES)} are ignored: {kinds}",) if others else ()


def _read_part(
    home: Path, names: Sequence[str], keys: FolderSettings
) -> tuple[tuple[NDArray[Any], Labels], list[DataError]]:
    """Return the examples of a directory of classes, and the errors of the files that are left out."""
    arrays, labels, bad = [], [], list[DataError]()
    look = Look(keys.size, keys.channels)
    for folder in _class_folders(home):
        for path in _members(folder):
            try:
                arrays.append(read_example(path, look))
            except DataError as error:
                if keys.on_bad_file == "error":
                    expected = f'{error.expected} (folder.on-bad-file = "skip" leaves out what cannot be read)'
                    raise DataError(error.key, expected, error.got) from error
                bad.append(error)
                continue
            labels.append(names.index(folder.name))
    if not arrays:
        raise DataError(str(home), f"{FILES} in its sub-directories", "none that can be read" if bad else "none")
    check_alike(str(home), arrays)
    return (np.stack(arrays), np.asarray(labels, dtype=np.int64)), bad


def source_of(
    key: str,
    train: tuple[NDArray[Any], Any],
    test: tuple[NDArray[Any], Any] | None,
    people: NDArray[Any] | None = None,
    *,
    names: Sequence[str] = (),
    notes: tuple[str, ...] = (),
    task: str = CLASSIFICATION,
    table: bool = False,
    validation: tuple[NDArray[Any], Any] | None = None,
) -> Source:
    """Check the parts, concatenate them, and derive the metadata.

    With ``names``, these are the classes; with ``table``, x is float64 rows that clients standardise.
    """
    given = (("train", train), ("validation", validation), ("test", test))
    every = [(f"{key} {name}", *part) for name, part in given if part is not None]
    classes = 0 if task == CLASSIFICATION else _count(task, [np.asarray(y) for _, _, y in every])
    parts = [_checked(name, x, y, task, classes, table) for name, x, y in every]
    shapes = {(x.shape[1:], str(x.dtype)) for x, _ in parts}
    if len(shapes) > 1:
        raise DataError(key, "test inputs of the shape and type of the train inputs", sorted(shapes))
    x, y = (columns[0] if len(columns) == 1 else np.concatenate(columns) for columns in zip(*parts, strict=True))
    if people is not None and (people.shape != (len(y),) or people.dtype.kind not in "iuUS"):
        raise DataError(key, "person: a number or text for each example", f"{people.dtype} {people.shape}")
    if task == CLASSIFICATION:
        classes = _classes_of(key, y, names)
        notes = (*notes, *_without_examples(key, y, classes, names))
    if x.dtype == np.uint16 and x.max() < DIM:
        notes = (*notes, f"{key}: the 16-bit images have values up to {x.max()} only, of {PIXELS['uint16']} for white")
    info = replace(_info(x, classes, people is not None), labelled=task == CLASSIFICATION)
    shown = tuple(name if name.isprintable() else str(number) for number, name in enumerate(names))
    held = 0 if validation is None else len(parts[1][1])
    return Source(replace(info, class_names=shown, notes=notes), x, y, len(parts[0][1]), people, held)


def _classes_of(key: str, y: Labels, names: Sequence[str]) -> int:
    """Return the number of classes."""
    last = _limited(f"{key} y", "classes", int(y.max()) + 1) - 1
    if names and last >= len(names):
        raise DataError(f"{key} y", f"class numbers below {len(names)}, the number of names", last)
    classes = len(names) or last + 1
    if classes < 2:
        raise DataError(key, "at least two classes", classes)
    return classes


def _without_examples(key: str, y: Labels, classes: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return the line that says how many classes have no example; none if all have."""
    lacking = np.flatnonzero(np.bincount(y, minlength=classes) == 0)
    if not len(lacking):
        return ()
    shown = ", ".join(names[n] if names else str(n) for n in lacking[:SHOWN])
    more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
    return (f"{key}: {len(lacking)} of {classes} classes have no example: {shown}{more}",)


def _limited(key: str, what: str, count: int) -> int:
    """Return a number of classes or token ids, if a model can be built for so many."""
    if count > MOST_CLASSES:
        raise DataError(key, f"at most {MOST_CLASSES:,} {what}, with numbers from 0", f"numbers up to {count - 1}")
    return count


def _count(task: str, targets: Sequence[NDArray[Any]]) -> int:
    """Return the number of labels or numbers to predict, and otherwise of classes or token ids."""
    if task in ("regression", "multilabel") or targets[0].dtype.kind == "f":
        return targets[0].shape[1] if targets[0].ndim > 1 else 1
    return _limited("y", "classes", max(2, *(int(y.max(initial=0)) + 1 for y in targets)))


def _checked(
    key: str, x: NDArray[Any], y: Any, task: str = CLASSIFICATION, classes: int = 0, table: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return images and tables unchanged and everything else as :func:`checked_examples` does; never empty."""
    if len(np.shape(x)) == 0 or len(x) == 0 or math.prod(x.shape) == 0:
        raise DataError(f"{key} x", "at least one example", np.shape(x))
    targets = None if task == CLASSIFICATION else targets_of(task, _shape(x), classes)
    if not table and not are_pixels(x):
        examples = checked_examples(key, x, y, targets=targets)
        return examples.x, examples.y
    unchanged = checked_rows(f"{key} x", x) if table else checked_pixels(f"{key} x", x)
    return unchanged, checked_examples(key, np.zeros((len(x), 1), dtype=np.float32), y, targets=targets).y


def _shape(x: NDArray[Any]) -> tuple[int, ...]:
    """Return the shape of one example as the model takes it: of images, channels first."""
    shape: tuple[int, ...] = x.shape[1:]
    if not are_pixels(x):
        return shape
    return (1, *shape) if len(shape) == 2 else (shape[2], *shape[:2])


def _info(x: NDArray[Any], classes: int, natural: bool) -> DatasetInfo:
    """Derive kind, shape and defaults. The defaults are ours: SGD at .05, batch size 32, one epoch, 50 rounds."""
    shape = _shape(x)
    mean, std, vocabulary, kind = (0.0,), (1.0,), 0, _kind(x)
    if are_pixels(x):
        mean, std = (0.5,), (0.5,)
    if kind == "text":
        vocabulary = _limited("x", "token ids", int(x.max()) + 1)
    defaults: dict[str, str | int | float] = {"model": _model(kind, shape), "lr": 0.05, "batch-size": 32}
    defaults |= {"optimizer": "sgd", "local-epochs": 1, "rounds": 50}
    return DatasetInfo("folder", classes, shape, kind, natural, defaults, vocabulary, mean, std)


def _kind(x: NDArray[Any]) -> InputKind:
    if are_pixels(x) or x.ndim == 4:
        return "image"
    return "text" if x.dtype == np.int32 else "signal"


def _model(kind: InputKind, shape: tuple[int, ...]) -> str:
    """Return the smallest built-in model for inputs of this shape."""
    if kind == "text":
        return "embedding-linear"
    if kind == "image":
        return "cnn2-small" if min(shape[1:]) >= 12 else "digits-cnn"
    return "har-cnn" if len(shape) == 2 and shape[1] >= 36 else "har-mlp"

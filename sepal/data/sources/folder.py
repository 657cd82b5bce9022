"""Your own data in a directory: ``dataset = "folder"``, with the directory as ``data-dir``.

The first of these formats that is found is read:

1. one ``.npz``: ``x``, ``y`` [, ``x_test``, ``y_test``] [, ``person`` of each row of x];
2. one ``.csv`` with a header: a column ``label`` (whole numbers from 0 in digits, or texts, which become classes in
   sorted order), columns of numbers, categories and times [, a column ``person``]; a first column with pandas' index is
   left out;
3. ``train/`` and one or both of ``val/`` (or ``valid/``, ``validation/``) and ``test/``, each as in 4, with the same
   classes; the validation part is dealt to the clients like the test part;
4. a sub-directory per class, in alphabetical order, with ``.png``, ``.jpg``, ``.jpeg`` or ``.npy`` files, all of one
   shape, to which images are brought (``folder.resize``), or such directories in one for each owner
   (``folder.layout``). Files with another suffix are ignored, and a notice counts them.

The keys ``folder.*``, or a ``schema.toml`` beside the data (:mod:`sepal.data.schema`), name columns and classes, bring
images to one size, and say what becomes of files that cannot be read. The columns of a CSV file are standardised by
each client (:mod:`sepal.data.scaling`), and missing cells are filled there.

Tasks other than classification (docs/tasks.md) are read from 1, with ``y`` as the task has it, and from 2.

``uint8`` and ``uint16`` images, ``(H, W)`` or ``(H, W, C)`` as in PNG and JPEG files, are scaled to -1 … 1. Floats are
used unchanged, with images as ``(C, H, W)``. Other integers ``(n, length)`` are tokens. With ``person``,
``partition.name = "natural"`` can be used. :mod:`sepal.data.incoming` has dtypes, ranges and shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sepal.config import FolderReading, FolderSettings
from sepal.config.data import split_names
from sepal.data.catalogue import default_model
from sepal.data.examples import PIXELS, DatasetInfo, InputKind, Labels, Source, are_pixels
from sepal.data.incoming import MOST_CLASSES, checked_examples, checked_pixels, checked_rows
from sepal.data.locations import check_links, home_of
from sepal.data.schema import FILE, TableSchema, classes_of, reading, schema_of
from sepal.data.sources.doubts import repeated, repeated_images, stand_ins
from sepal.data.sources.images import (
    EXAMPLES,
    FILES,
    IMAGES,
    ImageFormat,
    OneSize,
    check_alike,
    counted,
    left_out,
    read_example,
)
from sepal.data.sources.kinds import alike_but_case
from sepal.data.sources.reading import Unpacked, load_arrays
from sepal.data.sources.table import LABEL, TARGET, Roles, Table, count_gaps, first_inputs, read_table
from sepal.errors import DataError
from sepal.storage.regular import stored_size
from sepal.tasks.learning import CLASSIFICATION
from sepal.tasks.making import targets_of

PLAIN = FolderSettings()
TABLES = (".npz", ".csv")
MANY = 20  # more classes without names may be quantities
SHOWN = 4  # classes that a message names, at most
DIM_FLOATS = 16.0  # images of floats without a negative value that go beyond are pixels that were not scaled
DIM = 2**13  # 16-bit images without a value from here on, an eighth of white, may have another white
_FORMS = (
    f"one .npz, one .csv with a column `label` (or folder.label), or a sub-directory per class with {FILES}, alone or "
    "in each of train/, val/ and test/"
)
# Names of directories that are parts and no classes, where there is one called train.
PARTS = {"train": "train", "val": "validation", "valid": "validation", "validation": "validation", "test": "test"}


class Folder(NamedTuple):
    """A directory of examples of one class, of one owner where there are owners."""

    label: str
    owner: str
    path: Path


def files(directory: Path) -> list[Path] | None:
    """Return the files to read; None if the directory is missing or has none of the formats.

    In place of a directory, it may be its .npz or .csv file.

    Raises:
        DataError: One of them is a link that leads out of the directory.
    """
    data_files = _files(directory)
    check_links(home_of(directory), [path for path in data_files or () if path != directory])
    return data_files


def _files(directory: Path) -> list[Path] | None:
    schema = [path for path in (home_of(directory) / FILE,) if path.is_file()]
    if directory.is_file() and directory.suffix in TABLES:
        return [directory, *schema]
    if not directory.is_dir():
        return None
    tables = sorted(directory.glob("*.npz")) or sorted(directory.glob("*.csv"))
    if tables:
        return [*tables, *schema]
    homes = list(_parts(directory).values()) or [directory]
    folders = [folder for home in homes for folder in _class_folders(home)]
    if homes == [directory] and not any(map(_members, folders)):
        folders = [folder for owner in folders for folder in _class_folders(owner)]
    members = [path for folder in folders for path in _members(folder)]
    # Of others there is a notice, which the cache keeps.
    return [*members, *_others(folders), *schema] if members else None


def read(directory: Path, keys: FolderSettings = PLAIN) -> Source:
    """Read the directory.

    Args:
        directory: The directory.
        keys: The keys ``folder.*``.

    Raises:
        DataError: The directory has none of the formats, or its files are invalid.
    """
    data_files = files(directory)
    if data_files is None:
        homes = _parts(directory).values()
        straight, names = sum(len(_members(home)) for home in homes), ", ".join(home.name for home in homes)
        got = f"{straight} files straight in {names}" if straight else str(directory)
        raise DataError("data-dir", f"a directory with {_FORMS}", got)
    keys = reading(keys, directory)
    if (kind := data_files[0].suffix) in TABLES:
        if (count := sum(path.suffix == kind for path in data_files)) > 1:
            raise DataError(str(directory), f"one {kind} file", f"{count} of them")
        if kind == ".csv":
            return _noting(_csv(data_files[0], keys), _beside(directory, data_files[0]))
    if keys.leave_out:
        raise DataError("folder.leave-out", "nothing without a CSV file, whose columns it names", keys.leave_out)
    if kind == ".npz":
        return _noting(_npz(data_files[0], keys), _beside(directory, data_files[0]))
    if keys.label:
        raise DataError("folder.label", "nothing for directories of classes", keys.label)
    if task_of(keys) != CLASSIFICATION:
        raise DataError(str(directory), f"an .npz or a .csv for the task {task_of(keys)}", "directories of classes")
    return _classes(directory, keys)


def _noting(source: Source, notes: tuple[str, ...]) -> Source:
    return replace(source, info=replace(source.info, notes=(*source.info.notes, *notes)))


def _beside(directory: Path, table: Path) -> tuple[str, ...]:
    """Return the line that says what else of a directory could be data, and is not read; none if nothing is."""
    if directory == table:
        return ()
    tables = [path.name for path in sorted(directory.glob("*.csv")) if path != table]
    images = sum(path.suffix.lower() in IMAGES for home in _class_folders(directory) for path in _members(home))
    others = [*tables, *([f"{images} images in directories"] if images else [])]
    return (f"data-dir: only {table.name} is read, and not {', '.join(others)}",) if others else ()


def task_of(keys: FolderSettings) -> str:
    """Return the task that the files are read for."""
    return keys.task if isinstance(keys, FolderReading) else CLASSIFICATION


def _npz(path: Path, keys: FolderSettings) -> Source:
    arrays = load_arrays(path, "an npz file without pickled objects")
    y, person = keys.label or "y", keys.person or "person"
    if not {"x", y} <= set(arrays) or ("x_test" in arrays) != (f"{y}_test" in arrays):
        expected = f"x and {y}, and x_test with {y}_test or neither"
        raise DataError(str(path), expected, ", ".join(sorted(arrays)) or "nothing")
    if keys.person and person not in arrays:
        raise DataError(f"{path}: folder.person", f"one of {', '.join(sorted(arrays))}", person)
    test = (arrays["x_test"], arrays[f"{y}_test"]) if "x_test" in arrays else None
    if person in arrays and test is not None:
        raise DataError(
            str(path), f"{person} without x_test: each client's test part is held out of its own data", "both"
        )
    return source_of(str(path), (arrays["x"], arrays[y]), test, arrays.get(person), task=task_of(keys))


def roles_of(keys: FolderSettings) -> Roles:
    """Return which columns of a CSV file are what by the keys ``folder.*`` and the schema that has completed them."""
    task, schema = task_of(keys), schema_of(keys)
    label = (keys.label,) if task == CLASSIFICATION and keys.label else split_names(keys.label)
    left_out = split_names(keys.leave_out)
    columns = tuple(column for column in schema.column if column.name not in left_out)
    classes = classes_of(keys) if task == CLASSIFICATION else ()
    codes = keys.leading_zeros == "category"
    return Roles(label, keys.person, left_out, columns, classes, task != CLASSIFICATION, codes)


def _csv(path: Path, keys: FolderSettings) -> Source:
    table = read_table(path, roles_of(keys), labelled=True, fill=keys.missing == "mean")
    return source_of_table(path, table, keys)


def source_of_table(path: Path, table: Table, keys: FolderSettings) -> Source:
    """Return the examples of a CSV file."""
    names = table.names if task_of(keys) == CLASSIFICATION else ()
    schema = TableSchema(label=",".join(table.label), client=table.person, classes=names, column=table.columns)
    return table_of(str(path), [(table.x, table.y)], table.people, table.names, schema, keys, table.notes)


def table_of(
    key: str,
    parts: Sequence[tuple[NDArray[Any], Any]],
    people: NDArray[Any] | None,
    names: Sequence[str],
    schema: TableSchema,
    keys: FolderSettings,
    notes: tuple[str, ...] = (),
    validation: tuple[NDArray[Any], Any] | None = None,
) -> Source:
    """Return the examples of a table, as :func:`source_of`; missing numbers, NaN, are left to clients.

    ``parts``: the training part [, the test part], each float64 (n, inputs) and targets. ``schema``: what was read.
    """
    train, *test = parts
    facts: dict[str, Any] = {"names": names, "task": task_of(keys), "notes": notes, "table": keys.standardize}
    facts["validation"] = validation
    source = source_of(key, train, test[0] if test else None, people, **facts)
    counts = count_gaps(source.x, schema.column)
    notes = (*source.info.notes, *((f"folder.missing: each client fills in its own mean: {counts}",) if counts else ()))
    notes = (*notes, *_doubts(key, source, schema))
    facts = {"columns": schema.inputs, "schema": schema.text(), "notes": notes}
    return replace(source, info=replace(source.info, table=keys.standardize, **facts))


def _doubts(key: str, source: Source, schema: TableSchema) -> tuple[str, ...]:
    """Return lines about what may be wrong with a table that can be read."""
    starts = zip(schema.column, first_inputs(schema.column), strict=True)
    notes = stand_ins(key, {column.name: start for column, start in starts if column.kind == "number"}, source.x)
    if source.y.dtype.kind == "f":
        targets = source.y.reshape(len(source.y), -1)
        names = schema.label.split(",")
        places = {name: n for n, name in enumerate(names)} if len(names) == targets.shape[1] else {"label": 0}
        notes = (*notes, *stand_ins(f"{key}, targets", places, targets))
    return (*notes, *repeated(key, source.x))


def info_of_schema(keys: FolderSettings) -> DatasetInfo:
    """Return the metadata of a table that is elsewhere, by the schema that has completed the keys.

    Raises:
        DataError: The schema does not say it all.
    """
    roles, task = roles_of(keys), task_of(keys)
    labels = roles.label or (LABEL,)
    names = tuple(roles.classes)
    columns = tuple(column for column in roles.columns if column.inputs)
    if task in ("regression", "multilabel"):
        names = tuple(name.removeprefix(TARGET) for name in labels) if len(labels) > 1 else ()
    elif task != CLASSIFICATION:
        raise DataError("task", "classification, regression or multilabel, where there is a schema and no table", task)
    elif not names:
        expected = "the names of the classes, also where they are numbers: there is a schema and no table to count them"
        raise DataError("folder.classes", expected, "none")
    classified = task == CLASSIFICATION
    schema = TableSchema(
        label=",".join(labels), client=roles.person, classes=names if classified else (), column=columns
    )
    info = _info(np.empty((0, len(schema.inputs))), len(names) if classified else len(labels), bool(roles.person))
    facts: dict[str, Any] = {"columns": schema.inputs, "schema": schema.text(), "table": keys.standardize}
    printable_names = tuple(name if name.isprintable() else str(number) for number, name in enumerate(names))
    return replace(info, labelled=classified, class_names=printable_names, **facts)


def _classes(directory: Path, keys: FolderSettings) -> Source:
    homes = _parts(directory) if keys.layout in ("auto", "class") else {}
    sizes = OneSize(str(directory), ImageFormat(keys.size, keys.channels))
    if not homes:
        folders, by_owner = folders_of(directory, keys.layout)
        names = classes_of(keys) or sorted({folder.label for folder in folders})
        _check_names(directory, names, folders)
        part, bad = _read_part(directory, names, keys, folders, sizes)
        people = _owners(folders, bad) if by_owner else None
        ignored = _ignored([directory] if not by_owner else _class_folders(directory))
        notes = (*by_owner, *left_out(bad), *ignored)
        return source_of(str(directory), part, None, people, names=names, notes=notes)
    by_part = {name: folders_of(home, "class")[0] for name, home in homes.items()}
    names = classes_of(keys) or [folder.label for folder in by_part["train"]]
    for name, home in homes.items():
        _check_names(home, names, by_part[name])
    read = {name: _read_part(home, names, keys, by_part[name], sizes) for name, home in homes.items()}
    bad = [error for _, errors in read.values() for error in errors]
    notes = (*left_out(bad), *_ignored(list(homes.values())))
    if "validation" in homes:
        notes = (*notes, f"split.validation: {homes['validation']} is the validation part; none of train is held out")
    parts = {part: examples for part, (examples, _) in read.items()}
    facts: dict[str, Any] = {"names": names, "notes": notes, "validation": parts.get("validation")}
    return source_of(str(directory), parts["train"], parts.get("test"), **facts)


def _check_names(home: Path, names: Sequence[str], folders: Sequence[Folder]) -> None:
    """Raise a DataError for a directory of another class."""
    labels = sorted({folder.label for folder in folders})
    if not set(labels) <= set(names):
        raise DataError(str(home), f"classes among {list(names)}", labels)


def folders_of(home: Path, layout: str) -> tuple[list[Folder], tuple[str, ...]]:
    """Return the directories with examples of ``home``, and where they are by owner, the line that says so.

    Raises:
        DataError: The layout does not say whose and of what class an example is.
    """
    outer = _class_folders(home)
    nested = not any(map(_members, outer)) and any(map(_class_folders, outer))
    if layout == "class" or (layout == "auto" and not nested):
        return [Folder(folder.name, "", folder) for folder in outer], ()
    pairs = [(first, second) for first in outer for second in _class_folders(first) if _members(second)]
    inner = {second.name for _, second in pairs}
    if layout == "auto" and len(pairs) < 2 * len(inner):
        got = f"{len(outer)} directories, such as {outer[0].name}, with {len(inner)} of other names in them"
        raise DataError("folder.layout", "client/class or class/client, for images in sub-directories", got)
    by_class = layout == "class/client"
    folders = [
        Folder(*((first.name, second.name) if by_class else (second.name, first.name)), second)
        for first, second in pairs
    ]
    folders.sort(key=lambda folder: (folder.label, folder.owner))
    owners, labels = len({folder.owner for folder in folders}), len({folder.label for folder in folders})
    words = "" if layout != "auto" else "; folder.layout = class/client reads them the other way round"
    shape = "class/client" if by_class else "client/class"
    return folders, (f"{home}: images are read as {shape}: {owners} owners, {labels} classes{words}",)


def _owners(folders: Sequence[Folder], bad: Sequence[DataError]) -> NDArray[Any]:
    """Return the owner of each example that is read."""
    unread = {error.key for error in bad}
    return np.array([folder.owner for folder in folders for path in _members(folder.path) if str(path) not in unread])


def _parts(directory: Path) -> dict[str, Path]:
    """Return the directories of the parts by name; none if the sub-directories are classes."""
    folders = _class_folders(directory)
    parts = {PARTS[folder.name]: folder for folder in folders if folder.name in PARTS}
    return parts if "train" in parts and 1 < len(parts) == len(folders) else {}


def _class_folders(home: Path) -> list[Path]:
    if not home.is_dir():
        return []
    hidden = (".", "__MACOSX")  # the second is in archives that a Mac made
    return sorted(path for path in home.iterdir() if path.is_dir() and not path.name.startswith(hidden))


def _members(folder: Path) -> list[Path]:
    visible = (path for path in folder.iterdir() if not path.name.startswith("."))  # ._1.png is a Mac's note on 1.png
    return sorted(path for path in visible if path.suffix.lower() in EXAMPLES and path.is_file())


def _others(folders: Sequence[Path]) -> list[Path]:
    """Return the files beside examples that are none by their suffix; hidden ones are not meant."""
    homes = [folder for folder in folders if _members(folder)]  # others may be a run's own directories
    visible = (path for folder in homes for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path for path in visible if path.suffix.lower() not in EXAMPLES and path.is_file())


def _ignored(homes: Sequence[Path]) -> tuple[str, ...]:
    """Return lines that count what is not read, by suffix or because it lies deeper; none if all is."""
    folders = [folder for home in homes for folder in _class_folders(home)]
    others = _others(folders)
    kinds = counted(path.suffix.lower() or path.name for path in others)
    notes = (f"data-dir: files other than {', '.join(EXAMPLES)} are ignored: {kinds}",) if others else ()
    deeper = sum(len(_members(inner)) for folder in folders for inner in _class_folders(folder))
    return (*notes, f"data-dir: {deeper} files in sub-directories of classes are not read") if deeper else notes


def _read_part(
    home: Path, names: Sequence[str], keys: FolderSettings, folders: Sequence[Folder], sizes: OneSize
) -> tuple[tuple[NDArray[Any], Labels], list[DataError]]:
    """Return the examples of a directory of classes, and the errors of the files that are left out."""
    arrays, labels, bad = [], [], list[DataError]()
    image_format = ImageFormat(keys.size, keys.channels)
    unpacked = Unpacked(str(home), sum(stored_size(path) for folder in folders for path in _members(folder.path)))
    for folder in folders:
        for path in _members(folder.path):
            try:
                arrays.append(read_example(path, image_format))
            except DataError as error:
                if keys.on_bad_file == "error":
                    expected = f'{error.expected} (folder.on-bad-file = "skip" leaves out what cannot be read)'
                    raise DataError(error.key, expected, error.got) from error
                bad.append(error)
                continue
            if path.suffix.lower() in IMAGES:
                sizes.check(str(path), arrays[-1])
            unpacked.add(arrays[-1].nbytes)
            labels.append(names.index(folder.label))
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
    named_parts = (("train", train), ("validation", validation), ("test", test))
    every = [(f"{key} {name}", *part) for name, part in named_parts if part is not None]
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
        notes = (*notes, *_without_examples(key, y, classes, names), *alike_but_case(f"{key}: classes", names))
    if are_pixels(x):
        notes = (*notes, *repeated_images(key, x))
    if x.dtype == np.uint16 and x.max() < DIM:
        notes = (*notes, f"{key}: the 16-bit images have values up to {x.max()} only, of {PIXELS['uint16']} for white")
    info = replace(_info(x, classes, people is not None), labelled=task == CLASSIFICATION)
    if info.kind == "image" and x.dtype.kind == "f" and x.min() >= 0 and DIM_FLOATS < x.max() <= PIXELS["uint8"]:
        notes = (*notes, f"{key}: images of floats up to {x.max():g} are used as they are; x / 127.5 - 1 is usual")
    if task == CLASSIFICATION and all(map(str.isdecimal, names)) and list(names) != sorted(names, key=int):
        odd = next(number for number, name in enumerate(names) if int(name) != number)
        notes = (*notes, f"{key}: classes are in the order of texts: class {odd} is {names[odd]} (folder.classes)")
    printable_names = tuple(name if name.isprintable() else str(number) for number, name in enumerate(names))
    validation_count = 0 if validation is None else len(parts[1][1])
    return Source(
        replace(info, class_names=printable_names, notes=notes), x, y, len(parts[0][1]), people, validation_count
    )


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
    examples = ", ".join(names[n] if names else str(n) for n in lacking[:SHOWN])
    more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
    words = "; are they quantities? task = regression predicts them" if classes > MANY and not names else ""
    return (f"{key}: {len(lacking)} of {classes} classes have no example: {examples}{more}{words}",)


def _limited(key: str, noun: str, count: int) -> int:
    """Return a number of classes or token ids, if a model can be built for so many."""
    if count > MOST_CLASSES:
        raise DataError(key, f"at most {MOST_CLASSES:,} {noun}, with numbers from 0", f"numbers up to {count - 1}")
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
    defaults: dict[str, str | int | float] = {"model": default_model(kind, shape), "lr": 0.05, "batch-size": 32}
    defaults |= {"optimizer": "sgd", "local-epochs": 1, "rounds": 50}
    return DatasetInfo("folder", classes, shape, kind, natural, defaults, vocabulary, mean, std)


def _kind(x: NDArray[Any]) -> InputKind:
    if are_pixels(x) or x.ndim == 4:
        return "image"
    return "text" if x.dtype == np.int32 else "signal"

"""A data set of the Hugging Face hub, or a local copy of one: ``dataset = "hf"``.

``hf.name`` is its name on the hub. Its Parquet files are downloaded once, as they are, to ``hf/`` in the directory of
data sets, and read from there later, without a network. Without ``hf.name``, ``data-dir`` is a local copy:

1. a directory that ``save_to_disk`` of the library ``datasets`` wrote; or
2. Parquet files. A file belongs to the part that its name, or its first directory, begins with: ``train-0.parquet``,
   ``val-0.parquet``, ``test/a.parquet``; without such a name to ``train``.

The keys ``hf.*`` name columns and parts. Inputs are one column of images or of arrays, or columns of numbers, which are
standardised like those of a CSV file. Images become what ``folder.resize`` and ``folder.channels`` say. The parts are
read into memory once, and cached. Nothing that a data set names is opened or fetched: an image is its cell's bytes.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sepal.config import FolderSettings, HubReading, HubSettings
from sepal.data import cache
from sepal.data.examples import Source
from sepal.data.locations import check_links, data_directory, downloads_allowed, reachable
from sepal.data.schema import Column, TableSchema
from sepal.data.sources.arrow import INDEX, PART, PARTS, Part, read_parts
from sepal.data.sources.folder import source_of, table_of, task_of
from sepal.data.sources.images import ImageFormat, OneSize, check_alike, from_cell
from sepal.data.sources.reading import Unpacked, owners_of, reading
from sepal.data.sources.table import check_width, refuse_gaps
from sepal.errors import DataError, one_line
from sepal.storage.regular import expanded
from sepal.tasks.learning import CLASSIFICATION
from sepal.tasks.numbers import check_whole

CONVERTED = "refs/convert/parquet"  # the hub's copy of a data set: CONFIGURATION/PART/0000.parquet
SNAPSHOTS = "snapshots"  # where the hub's client has links to files that are beside it
INCOMPLETE = "partial-"  # begins a part's name where the hub converted its first rows only
# The part that a file belongs to by a word of its path.
PART_NAMES = {"train": "train", **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"), "test": "test"}
READABLE = "images, numbers, or arrays of one shape"
WORD = re.compile(r"[-_.]")  # ends the first word of a name


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
        return reachable(data_directory(data_dir))
    with reading("hf.name", "OWNER/NAME of the Hugging Face hub"):
        target = reachable(data_directory(data_dir)) / "hf" / quote(name, safe="")
    with cache.exclusive(target):
        if files(target) is None:
            _download(name, target)
    return target


def _download(name: str, target: Path) -> None:
    """Write a data set of the hub to ``target``, whole or not at all."""
    with reading("hf.name", "OWNER/NAME of the Hugging Face hub"):
        is_directory = expanded("hf.name", name, DataError).is_dir()
    if is_directory:  # the library would take it, and not look for the name on the hub
        words = f"a name on the hub; a local copy is data-dir = {name} (in Python data_dir=) without hf.name"
        raise DataError("hf.name", words, f"{name}, a directory")
    expected = f"{name} from the Hugging Face hub, or without hf.name a local copy in data-dir"
    if not downloads_allowed():
        raise DataError("hf.name", expected, f"SEPAL_DOWNLOAD=0 and nothing in {target}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".hf-", dir=target.parent) as temporary:
        try:
            copy = _fetched(name, Path(temporary) / "copy")
        except DataError:
            raise
        except Exception as error:  # of the hub's client, or of its network library
            words = one_line(f"{type(error).__name__}: {error}", 160)
            raise DataError("hf.name", expected, words) from error
        shutil.rmtree(target, ignore_errors=True)
        copy.rename(target)


def _fetched(name: str, directory: Path) -> Path:
    """Download a data set's Parquet files, and return the directory below ``directory`` that is a local copy.

    The hub converts what is public. The library ``datasets`` would take the files that the data set's own page names,
    which may be addresses of anything, and convert them here.
    """
    import huggingface_hub
    from huggingface_hub.errors import RevisionNotFoundError

    hub = huggingface_hub.HfApi()
    repository, _, configuration = name.partition(":")
    try:
        listed = hub.dataset_info(repository, revision=CONVERTED)
        converted = True
    except RevisionNotFoundError:
        listed = hub.dataset_info(repository)
        converted = False
    tables = [file.rfilename for file in listed.siblings or () if file.rfilename.endswith(".parquet")]
    beginnings = sorted({path.partition("/")[0] for path in tables}) if converted or configuration else []
    if beginnings:
        configuration = configuration or (beginnings[0] if len(beginnings) == 1 else "default")
        if configuration not in beginnings:
            raise DataError("hf.name", f"{repository}:CONFIGURATION, one of {', '.join(beginnings)}", name)
        tables = [path for path in tables if path.startswith(f"{configuration}/")]
    if not tables:
        raise DataError("hf.name", "a data set of which the hub has Parquet files", f"{name}, without any")
    parts = sorted({path.split("/")[1] for path in tables}) if converted else []
    if any(part.startswith(INCOMPLETE) for part in parts):
        raise DataError("hf.name", "a data set of which the hub has all rows as Parquet", f"{name}: {', '.join(parts)}")
    for path in tables:
        hub.hf_hub_download(repository, path, repo_type="dataset", revision=listed.sha, local_dir=directory)
    shutil.rmtree(directory / ".cache", ignore_errors=True)  # the client's notes
    copy = directory / configuration
    if converted:
        (copy / PARTS).write_text(json.dumps({"splits": parts}), encoding="utf-8")
    return copy


def files(directory: Path) -> list[Path] | None:
    """Return the files to read; None if there is no local copy.

    Raises:
        DataError: One of them is a link that leads out of the directory; of a snapshot as the hub's client keeps it,
            out of what it keeps of that data set.
    """
    lists = [path for path in (directory / PARTS, directory / PART) if path.is_file()]
    with reading(str(directory), "a directory that can be looked through"):  # what is in it may go meanwhile
        saved = sorted(path for path in directory.rglob("*.arrow") if path.is_file()) if lists else []
        tables = saved or sorted(path for path in directory.rglob("*.parquet") if path.is_file())
    if not tables:
        return None
    check_links(directory, [*lists, *tables], _kept(directory))
    return [*lists, *tables]


def _kept(directory: Path) -> Path | None:
    """Return where the hub's client keeps the files to which a snapshot's links lead; None if it is no snapshot.

    Data from elsewhere may call a directory as it likes. So no other directory counts, nor one that is a link.
    """
    snapshot = directory.resolve()
    if snapshot.parent.name != SNAPSHOTS:
        return None
    repository = snapshot.parent.parent
    kept = repository / "blobs"
    return kept if repository.name.startswith("datasets--") and not kept.is_symlink() else None


def read(directory: Path, keys: FolderSettings | None = None) -> Source:
    """Read a local copy.

    Args:
        directory: The directory.
        keys: The keys ``hf.*`` and ``folder.*``.

    Raises:
        DataError: It has no local copy, or its columns are others.
    """
    keys = keys if isinstance(keys, HubReading) else HubReading()
    parts = parts_of(directory)
    if keys.hf.train not in parts:
        raise DataError("hf.train", f"one of {', '.join(sorted(parts))}", keys.hf.train)
    for key, name, usual in (("hf.validation", keys.hf.validation, "validation"), ("hf.test", keys.hf.test, "test")):
        if name and name not in parts and name != usual:
            raise DataError(key, f"one of {', '.join(sorted(parts))}, or nothing", name)
    with reading(str(directory), f"columns of {READABLE}, and labels"):
        source = _source(str(directory), {name: parts[name] for name in _read(keys) if name in parts}, keys)
    others = [f"{name} ({len(part.table):,} rows)" for name, part in sorted(parts.items()) if name not in _read(keys)]
    notes = (f"hf.train, hf.validation, hf.test: parts that are not read: {', '.join(others)}",) if others else ()
    if source.validation_count:
        validation, train = keys.hf.validation, keys.hf.train
        notes = (f"split.validation: the part {validation} is the validation part; none of {train} is held out", *notes)
    return replace(source, info=replace(source.info, notes=(*source.info.notes, *notes)))


def parts_of(directory: Path) -> dict[str, Part]:
    """Return the parts of a local copy by name.

    Raises:
        DataError: It has none, or a file is damaged.
    """
    data_files = files(directory)
    if data_files is None:
        raise DataError("data-dir", "a directory of save_to_disk, or with Parquet files", str(directory))
    return read_parts(directory, data_files, lambda path: _part_of(path.relative_to(directory)))


def _read(keys: HubReading) -> tuple[str, ...]:
    """Return the names of the parts to read: for training, for validation and for tests."""
    hub = keys.hf
    return tuple(name for name in (hub.train, "" if hub.person else hub.validation, hub.test) if name)


def _part_of(path: Path) -> str:
    """Return the part that a Parquet file belongs to by its path in the local copy."""
    words = (WORD.split(step)[0] for step in path.parts)
    return next((PART_NAMES[word] for word in words if word in PART_NAMES), "train")


def _source(key: str, parts: dict[str, Part], keys: HubReading) -> Source:
    """Return the examples of the parts; columns and classes are those of the training part."""
    hub, task = keys.hf, task_of(keys)
    train, test = parts[hub.train], parts.get(hub.test)
    for name, part in parts.items():
        _check_part(f"{key} {name}", part, hub)
    if hub.person and test is not None:
        raise DataError("hf.person", "no test part, as each person's own is held out (hf.test)", hub.test)
    check_width(key, len(train.names))
    columns = hub.columns or _inputs(train, hub)
    image_format = ImageFormat(keys.size, keys.channels)
    sizes = OneSize(key, image_format)
    names = keys.names or _names(train, hub.label) if task == CLASSIFICATION else ()
    pairs = {
        name: (
            _x(f"{key} {name}", part, columns, image_format, sizes),
            _y(f"{key} {name}", part, hub.label, names, train),
        )
        for name, part in parts.items()
    }
    validation = pairs.get(hub.validation)
    index = [name for name in train.names if INDEX.fullmatch(name) and name not in columns]
    notes = (f"{key}: {', '.join(index)} numbers the rows, as pandas does, and is left out",) if index else ()
    if _is_table(train, columns) and not hub.columns:
        others = [name for name in train.names if name not in (hub.label, hub.person, *columns, *index)]
        notes = (*notes, f"hf.inputs: columns without numbers are not read: {', '.join(others)}") if others else notes
    people = owners_of(f"{key}, column {hub.person}", train.cells(hub.person)) if hub.person else None
    if _is_table(train, columns):
        kinds = tuple(Column(name=name, kind="number") for name in columns)
        for name, (x, _) in pairs.items():
            if keys.missing == "refuse":
                refuse_gaps(f"{key} {name}", x, kinds)
        both = [pairs[name] for name in (hub.train, hub.test) if name in pairs]
        source = table_of(key, both, people, names, TableSchema(column=kinds), keys, notes, validation)
    else:
        facts: dict[str, Any] = {"names": names, "task": task, "notes": notes, "validation": validation}
        source = source_of(key, pairs[hub.train], pairs.get(hub.test), people, **facts)
    return replace(source, info=replace(source.info, name="hf"))


def _check_part(key: str, part: Part, hub: HubSettings) -> None:
    """Raise a DataError if a part has no rows, or lacks a column, or if only a library could decode one."""
    if not len(part.table):
        raise DataError(key, "at least one row", "none")
    for name in (hub.label, *hub.columns, *filter(None, [hub.person])):
        if name not in part.names:
            raise DataError("hf.label, hf.inputs, hf.person", f"columns among {', '.join(part.names)}", name)
        if part.is_strange(name):
            raise DataError(f"{key}, column {name}", READABLE, part.kind(name))


def _inputs(part: Part, hub: HubSettings) -> list[str]:
    """Return the column of images if there is one, and otherwise all columns of numbers but label and person."""
    rest = [name for name in part.names if name not in (hub.label, hub.person) and not INDEX.fullmatch(name)]
    images = [name for name in rest if part.is_image(name)]
    inputs = images or [name for name in rest if part.is_number(name)]
    if not inputs or len(images) > 1:
        raise DataError("hf.inputs", f"one or more of {', '.join(rest)}", "nothing")
    return inputs


def _is_table(part: Part, columns: Sequence[str]) -> bool:
    """Return whether each of the columns holds a number in each row."""
    return all(part.is_number(name) for name in columns)


def _names(part: Part, label: str) -> tuple[str, ...]:
    """Return the classes that the label's column declares; of texts, all that occur, sorted; of numbers none."""
    if label in part.labels:
        return part.labels[label]
    return tuple(sorted({text for text in part.cells(label) if text is not None})) if part.is_text(label) else ()


def _x(key: str, part: Part, columns: Sequence[str], image_format: ImageFormat, sizes: OneSize) -> NDArray[Any]:
    """Return the inputs: images as pixels, an array's column as float64 or int64, and otherwise a row of numbers."""
    if _is_table(part, columns):
        for name in columns:
            check_whole(f"{key}, column {name}", part.whole(name))
        return np.stack([part.numbers(name) for name in columns], axis=1)
    if len(columns) != 1:
        raise DataError("hf.inputs", "one column, or several of numbers", ", ".join(columns))
    (name,) = columns
    if part.is_image(name):
        cells = enumerate(cell.as_py() for cell in part.column(name))
        unpacked, arrays = Unpacked(key, part.table.nbytes), []
        for row, cell in cells:
            arrays.append(from_cell(f"{key}, row {row}, column {name}", cell, image_format))
            sizes.check(f"{key}, row {row}", arrays[-1])
            unpacked.add(arrays[-1].nbytes)
        check_alike(key, arrays)
        return np.stack(arrays)
    if not part.holds_numbers(name):
        raise DataError(f"{key}, column {name}", READABLE, part.kind(name))
    try:
        values = np.asarray(part.cells(name))
        return values.astype(np.int64 if values.dtype.kind in "iu" else np.float64)
    except Exception as error:  # of NumPy or pyarrow
        raise DataError(f"{key}, column {name}", READABLE, part.kind(name)) from error


def _y(key: str, part: Part, label: str, names: Sequence[str], train: Part) -> NDArray[Any]:
    """Return the labels: numbers of classes, or targets as they are.

    Numbers are of the names that the part itself declares; the training part's may be in another order.
    """
    cells = part.cells(label)
    if names and part.is_text(label) != train.is_text(label):
        raise DataError(f"{key}, column {label}", "labels of the training part's type", part.kind(label))
    odd = next((row for row, cell in enumerate(cells) if cell is None), None)
    if odd is not None:
        raise DataError(f"{key}, row {odd}, column {label}", "a label", "nothing")
    if names and isinstance(cells[0], str):
        by_name = {name: number for number, name in enumerate(names)}
        strange = next((cell for cell in cells if cell not in by_name), None)
        if strange is not None:
            raise DataError(f"{key}, column {label}", f"one of {', '.join(names)}", strange)
        return np.asarray([by_name[cell] for cell in cells], dtype=np.int64)
    if not part.holds_numbers(label):
        raise DataError(f"{key}, column {label}", "numbers, or texts that name classes", part.kind(label))
    return _by_name(f"{key}, column {label}", np.asarray(cells), part.labels.get(label, ()), names, train, label)


def _by_name(
    key: str, labels: NDArray[Any], declared: Sequence[str], names: Sequence[str], train: Part, label: str
) -> NDArray[Any]:
    """Return class numbers in the order of ``names``."""
    first = train.labels.get(label, ())
    if not names or not declared or labels.dtype.kind not in "iu" or tuple(declared) == tuple(names):
        return labels
    if not set(declared) <= set(names):
        if tuple(declared) == tuple(first):
            return labels  # folder.classes gives the numbers other names
        raise DataError(key, f"class names among {', '.join(names)}", ", ".join(declared))
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(declared):
        raise DataError(key, f"class numbers from 0 to {len(declared) - 1}", f"{labels.min()} to {labels.max()}")
    by_name = {name: number for number, name in enumerate(names)}
    places = np.array([by_name[name] for name in declared], np.int64)
    return np.asarray(places[labels])

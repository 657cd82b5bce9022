"""Reads Parquet files, and what ``save_to_disk`` of the library ``datasets`` wrote, with pyarrow alone.

The library would open, fetch and decode what a cell names: a path of an image may be an address, or a file whose
templates run as code. Here a cell is what is in the file. Of the library's metadata only the names of classes and of
column types are read.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import compute, types

from sepal.data.sources.reading import Unpacked, reading
from sepal.data.sources.table import check_names
from sepal.errors import DataError, one_line
from sepal.storage.regular import check_regular, read_stream, stored_size

INDEX = re.compile(r"__index_level_[0-9]+__")  # pandas' names of columns that number its rows
PARTS, PART = "dataset_dict.json", "state.json"  # the library's lists of a data set's parts, and of a part's files
METADATA = b"huggingface"
READ = {"Value", "ClassLabel", "Image", "List", "LargeList", "Sequence", *(f"Array{axes}D" for axes in range(2, 6))}
BATCH = 1 << 30  # bytes of texts that rows read together may have; each may be the longest of the file
ROWS = (16, 1 << 16)  # read together, at least and at most
CELL = 8  # bytes of a cell that takes none in the file, such as one of a column without values
RECORD_BATCH, DICTIONARY_BATCH = 3, 2  # types of messages in Arrow's Message.fbs
READABLE_TYPES = (
    types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string, types.is_binary,
    types.is_large_binary,
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of a data set, for example its training part.

    Attributes:
        table: The ``pyarrow.Table``.
        kinds: The library's types in each column that its metadata describes, also nested ones, sorted.
        labels: The names of classes of each column that declares some.
    """

    table: Any
    kinds: Mapping[str, tuple[str, ...]]
    labels: Mapping[str, tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    def column(self, name: str) -> Any:
        """Return a column as a ``pyarrow.ChunkedArray`` of Arrow's own types, without dictionaries.

        Raises:
            DataError: A dictionary holds far more than its file.
        """
        column = self._stored(name)
        if not types.is_dictionary(column.type):
            return column
        unpacked = Unpacked(f"column {name}", self.table.nbytes)
        for chunk in column.chunks:
            if _is_text(column.type.value_type) or _is_binary(column.type.value_type):
                lengths = compute.binary_length(chunk.dictionary).take(chunk.indices)
                unpacked.add(compute.sum(lengths).as_py() or 0)
        return column.cast(column.type.value_type)

    def _stored(self, name: str) -> Any:
        column = self.table.column(name)
        if isinstance(column.type, pa.BaseExtensionType):
            return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        return column

    def cells(self, name: str) -> list[Any]:
        """Return a column's cells as numbers, texts, bytes, lists and dicts; None where there is nothing."""
        return list(self.column(name).to_pylist())

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers, float64 (n,); NaN where there is none."""
        return np.asarray(self.column(name).cast(pa.float64(), safe=False).to_numpy())

    def whole(self, name: str) -> NDArray[Any]:
        """Return the whole numbers of a column, without the missing ones; empty for a column of others."""
        column = self.column(name)
        return np.asarray(column.drop_null().to_numpy()) if types.is_integer(column.type) else np.empty(0)

    def kind(self, name: str) -> str:
        """Return the type of a column in words: one that only a library could decode, or else Arrow's."""
        strange = [kind for kind in self.kinds.get(name, ()) if kind not in READ]
        return strange[0] if strange else str(self._stored(name).type)

    def is_strange(self, name: str) -> bool:
        """Return whether a column holds what only a library could decode, such as audio, or is of an unusual type."""
        return not READ.issuperset(self.kinds.get(name, ())) or not _is_readable(_plain_type(self._stored(name).type))

    def is_image(self, name: str) -> bool:
        """Return whether a column's cells are ``{"bytes", "path"}``, as those of images are."""
        kind = self._stored(name).type
        field = kind.get_field_index("bytes") if types.is_struct(kind) else -1
        return field >= 0 and not self.is_strange(name) and _is_binary(kind.field(field).type)

    def is_number(self, name: str) -> bool:
        """Return whether a column holds numbers that are no classes."""
        kind = self._stored(name).type
        plain = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        return plain and self.kinds.get(name, ("Value",)) == ("Value",)

    def holds_numbers(self, name: str) -> bool:
        """Return whether a column holds numbers, or lists of them."""
        kind = _plain_type(self._stored(name).type)
        while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            kind = kind.value_type
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))

    def is_text(self, name: str) -> bool:
        """Return whether a column holds texts."""
        kind = self._stored(name).type
        return _is_text(_plain_type(kind))


def _is_readable(kind: Any) -> bool:
    """Return whether each cell of a type takes memory of its own.

    Views may share it, and runs, columns without values and structs without fields take none: a small file may have
    more cells of these than fit in any memory.
    """
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_readable(kind.value_type)
    if types.is_struct(kind):
        return kind.num_fields > 0 and all(_is_readable(field.type) for field in kind)
    return any(is_of_kind(kind) for is_of_kind in READABLE_TYPES)


def _plain_type(kind: Any) -> Any:
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def read_parts(directory: Path, files: Sequence[Path], part_of: Callable[[Path], str]) -> dict[str, Part]:
    """Return the parts of a local copy by name.

    Args:
        directory: The local copy.
        files: Its files. No other is read, whatever these name.
        part_of: Function that returns the part of a Parquet file by its path, where no list of parts is among them.

    Raises:
        DataError: A file is damaged, names files elsewhere, or has other columns than those of the same part.
    """
    with reading(str(directory), "a directory of save_to_disk, or with Parquet files of the same columns"):
        return _read_parts(directory, files, part_of)


def _read_parts(directory: Path, files: Sequence[Path], part_of: Callable[[Path], str]) -> dict[str, Part]:
    if directory / PARTS in files:
        names = _json(directory / PARTS)["splits"]
        plain = _plain(directory / PARTS, names, "directories", {path.parent for path in files})
        return {name: _part(directory / name, files) for name in plain}
    if directory / PART in files:
        return {"train": _part(directory, files)}
    by_part: dict[str, list[Path]] = {}
    for path in files:
        by_part.setdefault(part_of(path), []).append(path)
    return {name: _joined([_parquet(path) for path in paths]) for name, paths in by_part.items()}


def _part(directory: Path, files: Sequence[Path]) -> Part:
    """Read the files of one part, in the order of its list if it has one."""
    if not (directory / PART).is_file():  # downloaded from the hub, as Parquet
        return _joined([_parquet(path) for path in files if path.parent == directory])
    state = _json(directory / PART)
    if state.get("_indices_data_files"):
        raise ValueError("rows chosen by a list of numbers, of an old version of the library: save it again")
    names = [entry["filename"] for entry in state["_data_files"]]
    return _joined([_stream(directory / name) for name in _plain(directory / PART, names, ".arrow files", files)])


def _json(path: Path) -> Any:
    check_regular(path)
    return json.loads(read_stream(path))


def _plain(key: Path, names: Sequence[Any], kind: str, present: Collection[Path]) -> Sequence[str]:
    """Return names of a list if each is a plain name of what is there.

    Raises:
        DataError: One is a path, or an address.
    """
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or key.parent / name not in present:
            raise DataError(str(key), f"names of {kind} beside it", one_line(str(name), 80))
    return names


def _parquet(path: Path) -> Any:
    check_regular(path)
    with path.open("rb") as file, pq.ParquetFile(file) as stored:
        rows = list(batches(path, stored))
        table = pa.Table.from_batches(rows) if rows else stored.schema_arrow.empty_table()
        return table.replace_schema_metadata(stored.schema_arrow.metadata)


def batches(path: Path, stored: Any, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the rows of a ``pyarrow.parquet.ParquetFile`` in batches, as long as they are not out of measure.

    Args:
        path: Its path.
        stored: The file.
        columns: Those to read; None: all.

    Raises:
        DataError: It holds far more than its bytes.
    """
    unpacked, metadata = Unpacked(str(path), stored_size(path)), stored.metadata
    chunks = (
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    )
    texts = (chunk.total_uncompressed_size for chunk in chunks if chunk.physical_type == "BYTE_ARRAY")
    least, most = ROWS
    for batch in stored.iter_batches(min(most, max(least, BATCH // max(1, *texts, 1))), columns=columns):
        unpacked.add(max(batch.nbytes, CELL * batch.num_rows * batch.num_columns))
        yield batch


def _stream(path: Path) -> Any:
    check_regular(path)
    with path.open("rb") as file:  # pyarrow takes no name that the locale lacks; the table keeps the file mapped
        content = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    unpacked = Unpacked(str(path), stored_size(path))
    for message in pa.ipc.MessageReader.open_stream(content):
        if _is_compressed(bytes(message.metadata)):  # save_to_disk writes none; pyarrow would unpack one whole
            raise DataError(str(path), "batches that are not compressed", "compressed ones")
    batches = []
    with pa.ipc.open_stream(content) as stream:
        for batch in stream:
            unpacked.add(max(batch.nbytes, CELL * batch.num_rows * batch.num_columns))
            batches.append(batch)
        return pa.Table.from_batches(batches, stream.schema)


def _is_compressed(message: bytes) -> bool:
    """Return whether a message of Arrow's streams holds a compressed batch (Message.fbs and flatbuffers' encoding)."""

    def field(table: int, number: int) -> int:
        """Return where a table's field is; 0 if it has none."""
        entries = table - struct.unpack_from("<i", message, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", message, entries)[0]:
            return 0
        offset: int = struct.unpack_from("<H", message, entries + 4 + 2 * number)[0]
        return table + offset if offset else 0

    def follow(position: int) -> int:
        return position + int(struct.unpack_from("<I", message, position)[0])

    root = follow(0)
    kind = field(root, 1)
    if not kind or message[kind] not in (RECORD_BATCH, DICTIONARY_BATCH):
        return False
    batch = follow(field(root, 2))
    if message[kind] == DICTIONARY_BATCH:
        batch = follow(field(batch, 1))
    return field(batch, 3) > 0


def _joined(tables: Sequence[Any]) -> Part:
    """Return tables of the same columns as one part; its metadata is that of the first."""
    first = tables[0]
    names = first.column_names
    check_names("columns", names)
    if any(set(table.column_names) != set(names) for table in tables):
        raise ValueError("files with other columns")
    whole = pa.concat_tables([table.select(names) for table in tables])
    whole.validate(full=True)
    stored = (first.schema.metadata or {}).get(METADATA, b"{}")
    features = json.loads(stored).get("info", {}).get("features") or {}
    kinds = {name: tuple(sorted(set(_kinds(feature)))) for name, feature in features.items()}
    labels = {
        name: tuple(map(str, feature["names"])) for name, feature in features.items() if kinds[name] == ("ClassLabel",)
    }
    return Part(whole, kinds, labels)


def _kinds(feature: Any) -> list[str]:
    """Return the types in a column's description, also nested ones."""
    if isinstance(feature, list):
        return [kind for inner in feature for kind in _kinds(inner)]
    if not isinstance(feature, dict):
        return []
    kind = feature.get("_type")
    return ([kind] if isinstance(kind, str) else []) + [kind for inner in feature.values() for kind in _kinds(inner)]

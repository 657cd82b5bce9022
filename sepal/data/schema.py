"""How a table is read, as ``schema.toml`` says: the kind of each column, categories, classes, and who owns a row.

``sepal data inspect --write`` makes the file, and a run reads its table by it. A copy on another machine lets that
machine's client read a table of its own in the same way, so that columns, categories and classes are agreed without
data that leaves. Without a file, the same is derived from the table (:mod:`sepal.data.sources.kinds`).
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Annotated, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sepal.config import FolderReading, FolderSettings
from sepal.config.data import split_names
from sepal.data.locations import check_links, home_of
from sepal.errors import ConfigError, DataError, one_line
from sepal.storage.regular import check_regular, expanded
from sepal.storage.toml_text import parse_toml

FILE = "schema.toml"  # its name in a directory of data
MOST_BYTES = 2**22
MOST_VALUES = 1_000  # categories of a column that a schema may name
Kind = Literal["number", "category", "time", "left-out"]
MENDED = "leave the key out, or change the file"
HEAD = """# How Sepal reads this table: written by `sepal data inspect --write`, and may be edited. A run reads
# schema.toml in the directory of its data, or the file that the key folder.schema names. Other machines need the same.
# kind: number, category (0 or 1 for each of its values), time (ISO 8601, as 2026-01-31 or 2026-01-31 12:00:00, in
# seconds since 1970), or left-out. The unit is a note for people, which must be the same on all machines.

"""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Column(_Part):
    """One column of a table.

    Attributes:
        name: Its name in the header.
        kind: How its cells are read; ``text``, which no file has, is neither numbers nor few categories.
        values: Of a category: its values, in the order of the model's inputs.
        unit: Of a number: its unit, for people.
    """

    name: str
    kind: Kind | Literal["text"]
    values: Annotated[tuple[str, ...], Field(max_length=MOST_VALUES)] = ()
    unit: Annotated[str, Field(max_length=64)] = ""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.kind == "category") != bool(self.values):
            raise ValueError(f"column {self.name}: values for a category, and for no other kind")
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"column {self.name}: different values")
        return self

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs that the column becomes: itself, or ``smoker=yes`` for each value."""
        if self.kind == "category":
            return tuple(f"{self.name}={value}" for value in self.values)
        return () if self.kind in ("left-out", "text") else (self.name,)


class TableSchema(_Part):
    """What ``schema.toml`` says; see :class:`Column`.

    Attributes:
        label: The column of labels or targets; several, separated by commas.
        client: The column of the rows' owners; empty: none.
        classes: Names of the classes in the order of their numbers; empty: whole numbers from 0, or no classes.
        column: All columns but those of labels and owners, in the order of the model's inputs.
    """

    format: Literal[1] = 1
    label: str = ""
    client: str = ""
    classes: tuple[str, ...] = ()
    column: tuple[Column, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [column.name for column in self.column]
        if len(set(names)) < len(names):
            raise ValueError("each column once")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("different names of classes")
        return self

    @property
    def read(self) -> tuple[Column, ...]:
        """The columns that are not left out."""
        return tuple(column for column in self.column if column.inputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        return tuple(name for column in self.column for name in column.inputs)

    @property
    def numbers(self) -> tuple[bool, ...]:
        """Of each input, whether a client standardises it; empty if all are numbers."""
        if self.is_plain:
            return ()
        return tuple(column.kind != "category" for column in self.column for _ in column.inputs)

    @property
    def is_plain(self) -> bool:
        """Whether each column is a number as it is."""
        return all(column.kind == "number" for column in self.column)

    def text(self) -> str:
        """Return the schema as JSON, for a digest or a model's file."""
        return self.model_dump_json(exclude_defaults=True)


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> TableSchema:
    """Return the schema of :meth:`TableSchema.text`; an empty one of an empty text."""
    return TableSchema.model_validate_json(text) if text else TableSchema()


def read_schema(path: Path) -> TableSchema:
    """Return what a ``schema.toml`` says.

    Raises:
        DataError: It cannot be read, or says something else than :class:`TableSchema` has.
    """
    expected = "a file that `sepal data inspect --write` made"
    try:
        check_regular(path)
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise DataError(str(path), f"at most {MOST_BYTES:,} bytes", "more")
        document = parse_toml(content.decode("utf-8-sig"), MOST_BYTES)
        return TableSchema.model_validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in fault["loc"])
        raise DataError(f"{path}{': ' if key else ''}{key}", expected, one_line(fault["msg"], 200)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(str(path), expected, one_line(str(error), 200)) from None


def written(schema: TableSchema) -> str:
    """Return the text of a ``schema.toml``."""
    plain = schema.model_dump(exclude_defaults=True)
    columns = [
        {"name": column.name, "kind": column.kind, **({"values": list(column.values)} if column.values else {})}
        | ({"unit": column.unit} if column.kind == "number" else {})
        for column in schema.column
    ]
    plain = {"format": schema.format, **{key: value for key, value in plain.items() if key != "column"}}
    return HEAD + tomli_w.dumps({**plain, **({"column": columns} if columns else {})})


def reading(keys: FolderSettings, directory: Path) -> FolderReading:
    """Return the keys ``folder.*`` with what the schema says, of the file that they name or that is beside the data.

    Raises:
        DataError: The schema cannot be read, or is a link out of the data's directory, which no key names.
        ConfigError: A key and the schema say different things.
    """
    if isinstance(keys, FolderReading) and keys.schema_text:
        return keys
    plain = keys if isinstance(keys, FolderReading) else FolderReading.model_validate(keys.model_dump())
    path = expanded("folder.schema", keys.schema_) if keys.schema_ else home_of(directory) / FILE
    if not keys.schema_ and not os.path.isfile(path):  # pathlib raises errors for odd names
        return plain
    if not keys.schema_:
        check_links(home_of(directory), [path])
    schema = read_schema(path)
    for key, value, schema_value in (
        ("folder.label", keys.label, schema.label),
        ("folder.person", keys.person, schema.client),
        ("folder.classes", ",".join(keys.names), ",".join(schema.classes)),
    ):
        if value and schema_value and value != schema_value:
            raise ConfigError(key, f"{schema_value}, as {path} says ({MENDED})", value)
    chosen = {"label": keys.label or schema.label, "person": keys.person or schema.client}
    inputs = {column.name for column in schema.read}
    for key, value, word, names in (
        ("folder.label", keys.label, "label", {chosen["label"], *split_names(chosen["label"])}),
        ("folder.person", keys.person, "client", {chosen["person"]}),
    ):
        if both := sorted(inputs & names):  # a model would be given what it is to predict
            expected = f"a column that {path} does not read as an input ({MENDED})"
            raise ConfigError(key if value else f"{word} in {path}", expected, ", ".join(both))
    return plain.model_copy(update={**chosen, "schema_text": schema.text()})


def schema_of(keys: FolderSettings) -> TableSchema:
    """Return the schema that the keys have been completed by; an empty one if there is none."""
    return parsed(keys.schema_text) if isinstance(keys, FolderReading) else TableSchema()


def classes_of(keys: FolderSettings) -> tuple[str, ...]:
    """Return the names of classes that the keys or the schema give; none if neither does."""
    return keys.names or schema_of(keys).classes

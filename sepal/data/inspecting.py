"""How data would be read, and everything that is wrong with it: ``sepal data inspect``.

A run's own code reads the data (:mod:`sepal.data.sources`). Where that refuses something that a key mends, the fault is
noted, the key is set, and the reading goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sepal.config import FolderReading, FolderSettings, RunConfig
from sepal.data.federation import DealtData, FederatedData, federated_data
from sepal.data.locations import data_directory
from sepal.data.owners import with_owners
from sepal.data.schema import FILE, Column, TableSchema, reading, schema_of
from sepal.data.sources import FOLDER
from sepal.data.sources.folder import MANY, files, roles_of, task_of
from sepal.data.sources.kinds import as_category, has_leading_zeros
from sepal.data.sources.table import Faults, Table, first_inputs, read_table
from sepal.errors import DataError, SepalError
from sepal.names import client_name
from sepal.tasks.learning import CLASSIFICATION

OWNERS = ("client", "site", "clinic", "hospital", "center", "centre", "station", "user", "patient", "subject", "device")
MOST_CLIENTS = 200  # whose labels are looked at
MOST_COUNTS = 1 << 22  # of labels, over these clients: a single label of a million makes a million classes

# A fault that a key mends: a word of its message, and what the reading goes on with.
MENDS: tuple[tuple[str, str, Any], ...] = (
    ("folder.missing", "missing", "mean"),
    ("folder.on-bad-file", "on_bad_file", "skip"),
    ("folder.resize", "resize", "64"),
    ("folder.channels", "channels", 3),
)


@dataclass(frozen=True)
class ColumnLook:
    """A column, for people.

    Attributes:
        name: Its name.
        kind: number, category, time, text, label, client or left out.
        missing: Number of missing cells.
        shows: Its range, or its values with how often each occurs.
    """

    name: str
    kind: str
    missing: int = 0
    shows: str = ""


@dataclass
class Inspection:
    """What was found.

    Attributes:
        lines: Facts in words: format, examples, shape, and what is left out.
        columns: The columns of a table.
        classes: Examples of each class by name; empty if targets are no classes.
        labels: Of each client by name: the number of examples of each class, int64 (classes,), or its targets, float64.
        problems: What a run would refuse, each with the key that mends it.
        hints: What may be meant otherwise.
        schema: How the data is read.
    """

    lines: list[str] = field(default_factory=list)
    columns: list[ColumnLook] = field(default_factory=list)
    classes: dict[str, int] = field(default_factory=dict)
    labels: dict[str, NDArray[Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    schema: TableSchema | None = None


def inspect(config: RunConfig, clients_set: bool = False) -> Inspection:
    """Return how a run with these keys would read its data, and every reason why it would not.

    Args:
        config: The shared keys.
        clients_set: Whether the key ``clients`` is set.
    """
    inspection = Inspection()
    directory = data_directory(config.data_dir)
    rest: RunConfig | None = config
    data_files = files(directory) if config.dataset == FOLDER and config.data_dir else None
    if data_files and data_files[0].suffix == ".csv":
        rest = _look_at_table(inspection, config, data_files[0], directory)
    if rest is not None:
        _look_at_all(inspection, rest, clients_set)
    unset = tuple(f"{word}:" for word, attribute, value in MENDS if getattr(config.folder, attribute) != value)
    inspection.lines = [line for line in inspection.lines if not line.startswith(unset)]  # with a key that is not set
    return inspection


def _problem(error: SepalError, mended_by: str = "") -> str:
    return f"{error}{f' → {mended_by}' if mended_by and mended_by not in str(error) else ''}"


def _look_at_table(inspection: Inspection, config: RunConfig, path: Path, directory: Path) -> RunConfig | None:
    """Look at a CSV file; return the keys with which the rest can be looked at, None if nothing can."""
    keys: FolderSettings = FolderReading.model_validate({**config.folder.model_dump(), "task": config.task})
    faults = Faults(collects=True)
    try:
        keys = reading(keys, directory)
        table = read_table(path, roles_of(keys), labelled=True, fill=keys.missing == "mean", faults=faults)
    except SepalError as error:
        inspection.problems.append(_problem(error))
        return None
    cells = faults.cells
    inspection.problems += [_problem(error, key) for error, key in faults.errors]
    proposed, readable = [], {column.name for column in table.columns}
    for name in cells:
        if name in table.label or name == table.person:
            continue
        column = faults.kinds.get(name)
        if column is None:
            continue
        if column.kind == "number" and name not in readable:  # a cell is none
            column = as_category(name, cells[name]) or column
        proposed.append(Column(name=name, kind="left-out") if column.kind == "text" else column)
    inspection.columns = list(_column_looks(table, faults))
    classes = table.names if task_of(keys) == CLASSIFICATION else ()
    columns = tuple(proposed) if not schema_of(keys).column else schema_of(keys).column
    inspection.schema = TableSchema(label=",".join(table.label), client=table.person, classes=classes, column=columns)
    if not table.person and not keys.person:
        likely = [name for name in cells if name.lower().removesuffix("_id").removesuffix("id") in OWNERS]
        likely = [name for name in likely if name not in table.label and _repeats(cells[name], config)]
        inspection.hints += [f"folder.person = {name} would make a client of each of its values" for name in likely[:1]]
    inspection.hints += [
        _codes_hint(column, cells[column.name])
        for column in table.columns
        if column.kind == "number" and has_leading_zeros(cells[column.name])
    ]
    rows = len(next(iter(cells.values())))
    alone = [c.name for c in table.columns if c.kind == "category" and len(c.values) == rows]
    inspection.hints += [f"{name} is different in each row: folder.leave-out = {name}?" for name in alone]
    if table.y is not None and task_of(keys) == CLASSIFICATION and not table.names and table.y.max() >= MANY:
        values = len(np.unique(table.y))
        inspection.hints.append(f"the labels are {values} whole numbers up to {table.y.max()}: task = regression?")
    mended = {"missing": "mean"} if any("folder.missing" in problem for problem in inspection.problems) else {}
    others = [error for error, _ in faults.errors if "folder.missing" not in error.expected]
    return None if others else config.model_copy(update={"folder": config.folder.model_copy(update=mended)})


def _codes_hint(column: Column, cells: Any) -> str:
    """Return the line about a column of numbers whose leading zeros are lost."""
    category = as_category(column.name, cells)
    lost = f"{column.name} has leading zeros, which a number loses"
    if category is None:
        return f"{lost}, and too many values for a category: folder.leave-out = {column.name}?"
    values = json.dumps(category.values, ensure_ascii=False)
    return f'{lost}: kind = "category", values = {values} in {FILE} keeps them'


def _repeats(cells: Any, config: RunConfig) -> bool:
    """Return whether several values of a column have as many rows as a client needs."""
    counts = cells.value_counts().field("counts").to_numpy()
    return int((counts >= config.partition.min_examples).sum()) > 1


def _column_looks(table: Table, faults: Faults) -> Iterator[ColumnLook]:
    """Yield what each column of the file is; a table may have very many."""
    pairs = zip(table.columns, first_inputs(table.columns), strict=True)
    read = {column.name: (column, table.x[:, start : start + len(column.inputs)]) for column, start in pairs}
    labels = set(table.label)
    for name in faults.cells:
        if name in labels or name == table.person:
            yield ColumnLook(name, "label" if name in labels else "client")
        elif name in read:
            yield _column_look(*read[name])
        else:
            column = faults.kinds.get(name)
            left_out = column is None or column.kind == "left-out"
            yield ColumnLook(name, "left out" if left_out else "text" if column and column.kind == "text" else "?")


def _column_look(column: Column, x: NDArray[np.float64]) -> ColumnLook:
    name, present = column.name, x[~np.isnan(x[:, 0])]
    missing = len(x) - len(present)
    if column.kind == "category":
        counts = sorted(zip(present.sum(axis=0).astype(int).tolist(), column.values, strict=True), reverse=True)
        return ColumnLook(name, "category", missing, ", ".join(f"{value} {count}" for count, value in counts))
    if not len(present):
        return ColumnLook(name, column.kind, missing, "nothing")
    low, high = float(present.min()), float(present.max())
    words = [_time(t) for t in (low, high)] if column.kind == "time" else []
    words = words or [f"{low:g}", f"{high:g}"]
    unit = f" {column.unit}" if column.unit else ""
    return ColumnLook(name, column.kind, missing, f"{words[0]} to {words[1]}{unit}" if low < high else words[0])


def _time(seconds: float) -> str:
    """Return a time for people. With a time zone, one of the years 1 to 9999 may be of year 0 or 10000 in UTC."""
    moment = np.datetime64(int(seconds // 60), "m")
    return str(moment).replace("T", " ")


def _look_at_all(inspection: Inspection, config: RunConfig, clients_set: bool) -> None:
    """Look at what a run would make of the data; each fault that a key mends is noted, and mended to go on."""
    for _ in range(len(MENDS) + 1):
        try:
            data = federated_data(config)
            break
        except SepalError as error:
            if not any(str(error) == problem.partition(" → ")[0] for problem in inspection.problems):
                inspection.problems.append(_problem(error))
            mend = [(attribute, value) for word, attribute, value in MENDS if word in str(error)]
            if not mend or all(getattr(config.folder, attribute) == value for attribute, value in mend):
                return
            config = config.model_copy(update={"folder": config.folder.model_copy(update=dict(mend))})
    else:
        return
    info = data.info
    inspection.schema = inspection.schema or TableSchema(classes=info.class_names)
    try:
        owners = with_owners(config, data, clients_set)
        config = owners.config
        inspection.lines += [_shape(data), *owners.notes, *info.notes]
        if isinstance(data, DealtData):
            inspection.lines += data.left_out(config.clients)
        names = owners.names or tuple(client_name(number) for number in range(config.clients))
        counted = min(config.clients, MOST_CLIENTS, max(1, MOST_COUNTS // max(info.classes, 1)))
        for number in range(counted):
            inspection.labels[names[number]] = _labels(data, number, config.clients, names[number])
        if config.clients > counted:
            inspection.lines.append(f"labels are counted for the first {counted} of {config.clients} clients")
    except SepalError as error:
        inspection.problems.append(_problem(error))
        return
    if info.labelled:
        total = np.sum(list(inspection.labels.values()), axis=0)
        names = info.class_names or tuple(map(str, range(info.classes)))
        inspection.classes = {name: int(count) for name, count in zip(names, total, strict=True)}


def _labels(data: FederatedData, number: int, clients: int, name: str) -> NDArray[Any]:
    """Return a client's examples of each class, int64 (classes,), or its targets, the first of several numbers."""
    part = data.client(number, clients, name)
    y = np.concatenate([np.asarray(examples.y) for examples in (part.train, part.validation, part.test)])
    if data.info.labelled:
        return np.bincount(y, minlength=data.info.classes)
    return y.reshape(len(y), -1)[:, 0].astype(np.float64)


def _shape(data: FederatedData) -> str:
    info = data.info
    shape = "x".join(map(str, info.input_shape))
    inputs = f"{len(info.columns)} inputs of a table" if info.columns else f"{info.kind} {shape}"
    model = info.defaults.get("model", "")
    outputs = f"{info.classes} classes" if info.labelled else f"{info.classes} targets"
    return f"{inputs}, {outputs}{f', model {model}' if model else ''}, dealt by {info.partition}"


def as_flat(path_or_name: str) -> Mapping[str, str]:
    """Return the keys of what ``sepal data inspect`` is given: a path, a data set's name, or one of the hub.

    Raises:
        DataError: It is none of them.
    """
    from sepal.data.sources import HUB, source_names
    from sepal.data.sources.hub import files as of_hub

    path = Path(os.path.expanduser(path_or_name))
    if os.path.exists(path):  # pathlib raises errors for odd names
        hub = path.is_dir() and files(path.absolute()) is None and of_hub(path) is not None
        return {"dataset": HUB if hub else FOLDER, "data-dir": str(path.absolute())}
    if path_or_name in source_names():
        return {"dataset": path_or_name}
    if path_or_name.count("/") == 1 and not path_or_name.startswith((".", "/", "~")):
        return {"dataset": HUB, "hf.name": path_or_name}
    raise DataError(
        "data", f"a file or directory, OWNER/NAME of the hub, or one of {', '.join(source_names())}", path_or_name
    )

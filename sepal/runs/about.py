"""The file ``about.json`` of a run: all that a report needs besides the figures.

A report reads a run's files alone. So the run itself writes what would otherwise need the method's or the task's code,
or the data: the method's title and deployed view, the headline metric, and, where the
process that runs the server holds all clients' data, that data's shape, names of classes and label counts by client.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sepal.data.catalogue import CATALOGUE
from sepal.data.examples import ClientData, DatasetInfo, Examples
from sepal.data.federation import DealtData
from sepal.data.own import OWN, own_info
from sepal.data.schema import FILE, parsed
from sepal.data.sources.images import MixedSizesError
from sepal.errors import ConfigError, DataError, SepalError
from sepal.names import NAME, client_name
from sepal.runs.stored_run import ABOUT, FORMAT, RATE_OF, StoredRun, begun, stored_about
from sepal.server.report import described
from sepal.storage.files import write_atomically
from sepal.storage.regular import TEXT
from sepal.strategies.assembly import Assembly
from sepal.tasks.learning import CLASSIFICATION

OPTION = "`sepal report --data` takes them from the data that its keys name"
UNSTORED = f"This run has stored no label counts. If it is yours, {OPTION}."
PRIVATE = "The clients bring data of their own, and only they know its labels."
MOST_CLASSES = 100_000
# What is stored of the data, at most, so that readers take the file (:data:`sepal.storage.regular.TEXT`).
MOST_COUNTS, MOST_NAMED = 1 << 20, TEXT // 16  # label counts; characters of the names of classes
KINDS = ("image", "signal", "text")


@dataclass(frozen=True)
class Labels:
    """Who has which labels.

    Attributes:
        names: Of the classes; empty where they are known by their numbers.
        counts: Client to the number of its training examples of each class, in the order of the clients' numbers.
        domains: Of each of these clients, the number of its domain; empty where they are not dealt by domains.
        reason: Without counts: why, in a sentence.
    """

    names: tuple[str, ...] = ()
    counts: Mapping[str, list[int]] | None = None
    reason: str = ""
    domains: tuple[int, ...] = ()


@dataclass(frozen=True)
class StoredData:
    """The data of a run as its files describe it, without an example; see :class:`sepal.data.FederatedData`."""

    info: DatasetInfo
    private: str = ""
    seed: int = 0

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Raise: the data is not read.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("run", "one whose files say it all, or leave to read its data", f"{name}: data is needed")

    def pooled_test(self, clients: int, count: int = 0) -> Examples:
        """Raise: the data is not read.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError("run", "one whose files say it all, or leave to read its data", "test data is needed")


def write_about(path: Path, assembly: Assembly, alone: bool) -> None:
    """Write ``about.json`` to the run directory ``path``.

    Args:
        path: The directory.
        assembly: The run's parts.
        alone: Whether server and clients are one process or one machine's simulation, so that the server's data is that
            of the clients. A deployment stores nothing about data.
    """
    method, setup, info = assembly.method, assembly.setup, assembly.info
    named = {"name": method.name, "title": method.title, "deployed": method.deployed}
    about: dict[str, Any] = {"format": FORMAT, "method": named}
    about |= {RATE_OF: assembly.rate_of} if assembly.rate_of else {}
    about |= described(setup.task.scoring)
    if alone and not assembly.data.private:
        facts = {"classes": info.classes, "input_shape": list(info.input_shape), "vocabulary": info.vocabulary}
        names = list(info.class_names) if sum(map(len, info.class_names)) + info.classes <= MOST_NAMED else []
        about["data"] = {**facts, "kind": info.kind, "class_names": names, "table": info.table}
        about["data"] |= {"schema": schema_digest(info)}
        about["labels"] = _counted(assembly)
        about |= {"domains": domains} if about["labels"] and (domains := _domains(assembly)) else {}
    write_atomically(path / ABOUT, f"{json.dumps(about, ensure_ascii=False)}\n".encode())


def schema_digest(info: DatasetInfo) -> str:
    """Return a digest of how a table is read: its columns, kinds, categories and classes; empty of other data.

    Units are notes for people and change nothing of a run.
    """
    if not info.schema:
        return ""
    schema = parsed(info.schema)
    plain = schema.model_copy(update={"column": tuple(c.model_copy(update={"unit": ""}) for c in schema.column)})
    return hashlib.sha256(plain.text().encode()).hexdigest()[:12]


def check_schema(path: Path, info: DatasetInfo) -> None:
    """Check that a table is read in the way that the run at ``path`` has stored; a run without that passes.

    Raises:
        ConfigError: It has other columns, kinds, categories or classes.
    """
    data = stored_about(path).get("data")
    stored, current = data.get("schema") if isinstance(data, dict) else None, schema_digest(info)
    if isinstance(stored, str) and stored != current:
        expected = (
            f"columns, kinds, categories and classes with which the run {path.name} was started (digest {stored})"
        )
        way = f"bring schema.toml and the table back, or give another --name (in Python name=), or delete {path}"
        raise ConfigError(FILE, expected, f"others (digest {current or 'none'}); {way}")


@contextmanager
def with_images_as_begun(path: Path | None) -> Iterator[None]:
    """Let the error for images of several sizes say what the run at ``path`` can do, if it has begun.

    Its images had one size, which is no key, so that no key brings others to it.

    Args:
        path: The run directory, which need not exist; None for a run without a name.

    Raises:
        DataError: Images have several sizes.
    """
    try:
        yield
    except MixedSizesError as mixed:
        if path is None or not begun(path):
            raise
        data = stored_about(path).get("data")
        shape = data.get("input_shape") if isinstance(data, dict) else None
        size = "x".join(map(str, shape[1:])) if isinstance(shape, list) else ""
        odd_sizes = [f"{odd_size} ({file})" for odd_size, file in mixed.files.items() if odd_size != size]
        expected = (
            f"images of {size or 'one size'}, with which the run {path.name} was started: remove or resize the others, "
            "or give another --name (in Python name=)"
        )
        raise DataError(mixed.key, expected, odd_sizes[0] if size and odd_sizes else mixed.got) from None


def _counted(assembly: Assembly) -> dict[str, list[int]] | None:
    """Return each client's number of training examples of each class.

    None where targets are no class numbers, or there are more than ``MOST_COUNTS``.
    """
    config, data = assembly.setup.config, assembly.data
    if config.clients * assembly.info.classes > MOST_COUNTS:
        return None
    if config.task != CLASSIFICATION or not isinstance(data, DealtData) or not config.clients:
        return None
    counts = data.label_counts(config.clients).tolist()
    return {assembly.client_name(number): row for number, row in enumerate(counts)}


def _domains(assembly: Assembly) -> tuple[int, ...]:
    data = assembly.data
    return data.domains(assembly.setup.config.clients) if isinstance(data, DealtData) else ()


def labels_of(run: StoredRun) -> Labels:
    """Return who has which labels: as the run has stored it, or else, if its reader allows that, from its data."""
    config = run.config
    if config.get("dataset") == OWN:
        return Labels(reason=PRIVATE)
    if config.get("task", CLASSIFICATION) != CLASSIFICATION:
        return Labels(_names(run), reason=f"Targets of the task {config['task']} are no class numbers.")
    stored = run.about.get("labels")
    names = _names(run)
    if isinstance(stored, Mapping):
        are_counts = all(map(_is_counts, stored.values())) and all(map(NAME.match, stored))
        size = len(next(iter(stored.values()), ())) if are_counts else 0
        some = 0 < size <= MOST_CLASSES and size * len(stored) <= MOST_COUNTS
        if some and all(len(row) == size for row in stored.values()):
            domains = run.about.get("domains")
            if not isinstance(domains, list) or not _is_counts(domains) or len(domains) != len(stored):
                domains = []
            return Labels(names if len(names) == size else (), dict(stored), domains=tuple(domains))
    return _from_data(run) if run.allowed.data else Labels(names, reason=UNSTORED)


def _is_counts(row: Any) -> bool:
    return isinstance(row, list) and all(type(count) is int and 0 <= count < 2**53 for count in row)


def _names(run: StoredRun) -> tuple[str, ...]:
    """Return the names of the classes that the run has stored, or that its public data set has."""
    try:
        return info_of(run).class_names
    except SepalError:
        return ()


def _from_data(run: StoredRun) -> Labels:
    """Return the same from the data that the run's keys name."""
    from sepal.config import parse
    from sepal.config.elsewhere import check_code
    from sepal.data import federated_data
    from sepal.data.owners import names_of
    from sepal.strategies.registry import Hypers

    check_code(run.config, run.allowed.code, "you allow (sepal report --allow package.module:NAME)")
    try:
        config, _ = parse(run.config, Hypers())
        data = federated_data(config)
        counts = data.label_counts(config.clients).tolist() if isinstance(data, DealtData) else []
        names = names_of(data, config.clients) if config.client_names == "owners" else ()
        domains = data.domains(config.clients) if isinstance(data, DealtData) else ()
    except SepalError:  # its text is not shown: it may name a directory of this machine
        name, where = run.config.get("dataset", ""), "on the machine that wrote this report"
        return Labels(reason=f"The data ({name}) is not {where}, or cannot be read there.")
    called = names or tuple(map(client_name, range(len(counts))))
    return Labels(data.info.class_names, dict(zip(called, counts, strict=False)), domains=domains)


def info_of(run: StoredRun) -> DatasetInfo:
    """Return the metadata of a run's data, from its files and the catalogue alone.

    Raises:
        ConfigError: The run has not stored it, or not as Sepal writes it.
    """
    from pydantic import ValidationError

    from sepal.config import OwnSettings

    name = str(run.config["dataset"])
    if name in CATALOGUE:
        return CATALOGUE[name]
    data = run.about.get("data")
    try:
        if name == OWN:
            prefix = "own."
            keys = {key.removeprefix(prefix): value for key, value in run.config.items() if key.startswith(prefix)}
            return own_info(OwnSettings.model_validate(keys), str(run.config.get("task", CLASSIFICATION)))
        return _info(name, dict(data))  # type: ignore[arg-type]  # a TypeError says that it is not there
    except (KeyError, TypeError, ValueError, ValidationError):
        raise ConfigError("run", f"one that has stored what its data looks like ({ABOUT})", run.path.name) from None


def _info(name: str, stored: Mapping[str, Any]) -> DatasetInfo:
    shape, classes, vocabulary, kind = (stored[key] for key in ("input_shape", "classes", "vocabulary", "kind"))
    names = tuple(map(str, stored["class_names"]))
    are_sizes = all(type(number) is int and 0 <= number < 2**31 for number in (*shape, classes, vocabulary))
    if not are_sizes or kind not in KINDS or len(names) not in (0, classes):
        raise ValueError(name)
    facts = {"vocabulary": vocabulary, "class_names": names, "table": stored["table"] is True}
    return DatasetInfo(name, classes, tuple(shape), kind, False, {}, **facts)

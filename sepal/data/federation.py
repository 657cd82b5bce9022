"""A run's data: metadata, each client's part, and the pooled test data.

A shared data set is partitioned once, cached, and read part by part. Private data comes from a function on the client's
machine (:mod:`sepal.data.own`).
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sepal.config import FolderReading, HubReading, RunConfig
from sepal.data import cache
from sepal.data.examples import ClientData, DatasetInfo, Examples, Index, Source
from sepal.data.feature_noise import noise_level, noise_of, unit, with_noise
from sepal.data.locations import cache_entry, data_directory
from sepal.data.own import OWN, OwnData, own_info
from sepal.data.schema import FILE, parsed, reading, schema_of
from sepal.data.sources import FILES, FOLDER, HUB, LAYOUT, folder_key, info, load, version
from sepal.data.sources.images import COMMON_SIZE, MixedSizesError, left_as_they_are
from sepal.data.spec import DataSpec
from sepal.errors import ConfigError, DataError
from sepal.rng import derive
from sepal.tasks.learning import CLASSIFICATION
from sepal.tasks.making import targets_of

PARTS = ("train", "validation", "test")
RULES = 3  # increase when a partition or split rule changes, to invalidate cached parts


class FederatedData(Protocol):
    """A run's data. Safe to pickle."""

    @property
    def info(self) -> DatasetInfo:
        """Metadata of the data."""
        ...

    @property
    def private(self) -> str:
        """Why clients may not see each other's test data; empty if they may."""
        ...

    @property
    def seed(self) -> int:
        """Seed of partition and split."""
        ...

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Return one client's train, validation and test examples.

        Args:
            number: The client's number, from 0.
            clients: Number of clients.
            name: The client's name.
        """
        ...

    def pooled_test(self, clients: int, count: int = 0) -> Examples:
        """Return distinct test examples of all clients, unless the data is ``private``.

        Args:
            clients: Number of clients.
            count: Number of examples, drawn with the run's seed; 0 for all.
        """
        ...


@dataclass(frozen=True)
class DerivedData:
    """Base class of data that are made of a client's own data; see :class:`FederatedData`.

    Attributes:
        source: The client's data as they are now.
    """

    source: FederatedData

    @property
    def info(self) -> DatasetInfo:
        """Metadata of the data."""
        return self.source.info

    @property
    def private(self) -> str:
        """Why clients may not see each other's test data: never empty, because only a client's own are accepted."""
        return self.source.private

    @property
    def seed(self) -> int:
        """Seed of partition and split."""
        return self.source.seed

    def pooled_test(self, clients: int, count: int = 0) -> Examples:
        """Raise: a client's own data are not pooled.

        Raises:
            DataError: Always.
        """
        return self.source.pooled_test(clients, count)


@dataclass(frozen=True)
class DealtData:
    """A shared data set that is partitioned over the clients; see :class:`FederatedData`.

    Attributes:
        info: Metadata.
        spec: Partition and split; its number of clients is replaced by the argument ``clients``.
        private: Empty, unless the files are those of one client alone.
    """

    info: DatasetInfo
    spec: DataSpec
    private: str = ""

    @property
    def seed(self) -> int:
        """Seed of partition and split."""
        return self.spec.data_seed

    def whole(self) -> DealtData:
        """Return the data of a machine that is one client with all of its files."""
        partition = self.spec.partition.model_copy(update={"name": "iid", "noise": 0.0})
        return replace(self, spec=replace(self.spec, partition=partition), private="its files are those of one client")

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Return part ``number`` of ``clients``.

        Raises:
            ConfigError: ``number`` is not below ``clients``.
            DataError: The source or the partition is unusable.
        """
        if number >= clients:
            raise ConfigError("clients", f"more than partition-id = {number}", clients)
        return client_data(replace(self.spec, clients=clients), number)

    def raw(self, number: int, clients: int) -> ClientData:
        """Return part ``number`` of ``clients``, those of a table as they are in the file."""
        return _as_stored(replace(self.spec, clients=clients), number)

    def label_counts(self, clients: int) -> NDArray[np.int64]:
        """Return the number of training examples of each class in each part, int64 (clients, classes).

        Raises:
            DataError: The source or the partition is unusable.
        """
        spec = replace(self.spec, clients=clients)
        source, (rows, ends) = load(spec.dataset, spec.data_dir, spec.folder), _table(spec)
        parts = (source.y[np.asarray(rows[ends[3 * k] : ends[3 * k + 1]])] for k in range(clients))
        return np.array([np.bincount(part, minlength=self.info.classes) for part in parts], np.int64)

    def domains(self, clients: int) -> tuple[int, ...]:
        """Return the number of each client's domain, of the sorted ones from 0; empty if they are not dealt by domains.

        Raises:
            DataError: The source or the partition is unusable.
        """
        if self.spec.partition.name != "domain":
            return ()
        from sepal.data.splitting import client_domains

        spec = replace(self.spec, clients=clients)
        return client_domains(spec, load(spec.dataset, spec.data_dir, spec.folder))

    def left_out(self, clients: int) -> tuple[str, ...]:
        """Return lines that count the examples that are with no client, and the clients that lack a part."""
        from sepal.data.left_out import lines
        from sepal.data.splitting import ClientRows

        spec = replace(self.spec, clients=clients)
        rows, ends = _table(spec)
        parts = [np.asarray(rows[start:end]) for start, end in pairwise(ends)]
        everyone = [ClientRows(*parts[first : first + 3]) for first in range(0, len(parts), 3)]
        return lines(spec, load(spec.dataset, spec.data_dir, spec.folder), everyone)

    def pooled_test(self, clients: int, count: int = 0) -> Examples:
        """Return test examples of all parts; a larger ``count`` returns a superset."""
        return pooled_test(replace(self.spec, clients=clients), count, self.spec.seed)


@dataclass(frozen=True)
class TablesElsewhere:
    """The tables of machines that join a server, which has a schema and no table; see :class:`FederatedData`."""

    info: DatasetInfo
    seed: int
    private: str = "the clients have tables of their own, and the server has their schema alone"

    def client(self, number: int, clients: int, name: str) -> ClientData:
        """Raise: there is no table here.

        Raises:
            DataError: Always.
        """
        expected = f"a table beside {FILE}: only a server that others join can do without"
        raise DataError("data-dir", expected, "none")

    def pooled_test(self, clients: int, count: int = 0) -> Examples:
        """Raise: there is no table here.

        Raises:
            DataError: Always.
        """
        return self.client(0, clients, "").test


def _schema_alone(config: RunConfig, folder: FolderReading) -> bool:
    """Return whether there is a schema with columns, and no table: a directory with nothing else, or none at all."""
    directory = data_directory(config.data_dir)
    if not folder.schema_text or (config.data_dir and not os.path.isdir(directory)):
        return False
    from sepal.data.sources.folder import files

    return not config.data_dir or files(directory) is None


def federated_data(config: RunConfig) -> FederatedData:
    """Return the data of the run that ``config`` describes.

    Where ``folder.resize`` is not set, and images have several sizes, ``COMMON_SIZE`` is in its place: see
    :func:`as_read`.

    Raises:
        ConfigError: A key that the data set needs is missing.
        DataError: The data set is unknown, a directory cannot be read, or the Hugging Face hub not be reached.
    """
    if config.dataset == OWN:
        facts, split = own_info(config.own, config.task), (config.split.validation, config.seed)
        targets = None if facts.labelled else targets_of(config.task, facts.input_shape, facts.classes)
        return OwnData(facts, config.own.data, *split, targets=targets)
    folder, partition, data_dir = config.folder, config.partition, config.data_dir
    if config.dataset == HUB:
        folder = HubReading.model_validate({**folder.model_dump(), "task": config.task, "hf": config.hf})
        from sepal.data.sources.hub import local_copy  # imports pyarrow

        data_dir = str(local_copy(config.hf.name, data_dir))
    elif config.dataset == FOLDER:
        if config.task != CLASSIFICATION:
            folder = FolderReading.model_validate({**folder.model_dump(), "task": config.task})
        folder = reading(folder, data_directory(data_dir))
        if (data_dir or folder.schema_) and _schema_alone(config, folder):
            if not schema_of(folder).read:
                raise DataError("data-dir", "files to read, or a schema with columns", str(data_directory(data_dir)))
            from sepal.data.sources.folder import info_of_schema

            return TablesElsewhere(info_of_schema(folder), config.seed)
    try:
        data_info = info(config.dataset, data_dir, folder)
    except MixedSizesError as mixed:
        if "resize" in config.folder.model_fields_set:
            raise left_as_they_are(mixed) from None
        folder = folder.model_copy(update={"resize": COMMON_SIZE})
        data_info = info(config.dataset, data_dir, folder)
        size = f"{COMMON_SIZE}x{COMMON_SIZE}"
        note = f"images have several sizes, {mixed.got}; all become {size}; this key sets another"
        data_info = replace(data_info, notes=(f"folder.resize = {COMMON_SIZE}: {note}", *data_info.notes))
    if partition.name == "auto":
        partition = partition.model_copy(update={"name": data_info.partition})
    spec = DataSpec(config.dataset, data_dir, partition, config.split, seed=config.seed, folder=folder)
    return DealtData(data_info, spec)


def as_read(config: RunConfig, data: FederatedData) -> RunConfig:
    """Return the keys with the size that reading has brought images to, so that all who read them later do the same."""
    if not isinstance(data, DealtData) or data.spec.folder.resize == config.folder.resize:
        return config
    folder = config.folder.model_copy(update={"resize": data.spec.folder.resize})
    return config.model_copy(update={"folder": folder})


Table = tuple[Index, Index]  # rows of all parts, concatenated; boundaries of the parts, (3 · clients + 1,)


def client_data(spec: DataSpec, client: int) -> ClientData:
    """Return one client's train, validation and test examples, those of a table standardised.

    The result depends on ``spec`` and ``client`` only. Later calls, in any process, read the cache and import neither
    flwr-datasets nor torch.

    Raises:
        DataError: There is no such client, or the source or the partition is unusable.
    """
    data = _as_stored(spec, client)
    facts = load(spec.dataset, spec.data_dir, spec.folder).info
    if not facts.table:
        return data
    return data.standardized(parsed(facts.schema).numbers, spec.folder.precision == "float32")


def _as_stored(spec: DataSpec, client: int) -> ClientData:
    """Return one client's examples; those of a table are not standardised."""
    if not 0 <= client < spec.clients:
        raise DataError("client", f"a number from 0 to {spec.clients - 1}", client)
    source = load(spec.dataset, spec.data_dir, spec.folder)
    rows, ends = _table(spec)
    parts = [source.take(np.asarray(rows[ends[k] : ends[k + 1]])) for k in range(3 * client, 3 * client + 3)]
    if spec.partition.noise:
        strength = noise_level(spec.partition.noise, client, spec.clients) * unit(source)
        parts = [
            with_noise(part, noise_of(spec.data_seed, client, name, part.x), strength)
            for part, name in zip(parts, PARTS, strict=True)
        ]
    train, validation, test = parts
    return ClientData(train, validation, test)


def pooled_test(spec: DataSpec, count: int = 0, seed: int = 0) -> Examples:
    """Return distinct test examples of all clients, for the pooled view and for test-time shift.

    With ``partition.noise`` each has its client's noise; one that several clients have, that of the first. Those of a
    table are as in the file: each client standardises them as its own (:attr:`ClientData.scale`).

    Args:
        spec: Partition and split.
        count: Number of examples, drawn without replacement; all if 0 or more than available. A larger count returns a
            superset.
        seed: Seed of the draw.
    """
    rows, ends = _table(spec)
    tests = np.unique(np.concatenate([rows[ends[k] : ends[k + 1]] for k in range(2, 3 * spec.clients, 3)]))
    if 0 < count < len(tests):
        tests = np.sort(derive(seed, "pooled-test").permutation(tests)[:count])
    source = load(spec.dataset, spec.data_dir, spec.folder)
    examples = source.take(tests)
    return _with_owners_noise(spec, source, examples, tests) if spec.partition.noise else examples


def _with_owners_noise(spec: DataSpec, source: Source, examples: Examples, tests: Index) -> Examples:
    """Return test examples, of the rows ``tests`` (sorted), with the noise that they have with their clients."""
    rows, ends = _table(spec)
    x, strength = examples.x, unit(source)  # `take` has made it for us alone
    pending = np.ones(len(tests), bool)
    for client in range(spec.clients):
        client_rows = np.asarray(rows[ends[3 * client + 2] : ends[3 * client + 3]])
        places = np.flatnonzero(pending & np.isin(tests, client_rows))
        if not len(places):
            continue
        numbers = noise_of(spec.data_seed, client, PARTS[2], np.broadcast_to(x[:1], (len(client_rows), *x.shape[1:])))
        level = noise_level(spec.partition.noise, client, spec.clients)
        chosen = numbers[np.searchsorted(client_rows, tests[places])]
        x[places] = with_noise(Examples(x[places], examples.y[places]), chosen, level * strength).x
        pending[places] = False
    return Examples(x, examples.y)


def _entry(spec: DataSpec, state: str) -> cache.Entry | None:
    settings = (spec.partition.model_dump(mode="json", exclude={"noise"}), spec.split.model_dump(mode="json"))
    folder = folder_key(spec.dataset, spec.folder)
    key = cache.key_of("parts", LAYOUT, RULES, spec.dataset, state, *settings, spec.clients, spec.data_seed, *folder)
    private = spec.dataset in FILES  # else somebody else could choose who has what
    return cache_entry(data_directory(spec.data_dir), key, private)


def _table(spec: DataSpec) -> Table:
    load(spec.dataset, spec.data_dir, spec.folder)  # first, because it may download the files whose version is read
    table = _remembered(spec, version(spec.dataset, spec.data_dir))
    if isinstance(table, DataError):
        raise DataError(table.key, table.expected, table.got)
    return table


@functools.lru_cache(maxsize=8)
def _remembered(spec: DataSpec, state: str) -> Table | DataError:
    """Return the parts from the cache, or compute and cache them; or why there are none, which takes as long."""
    entry = _entry(spec, state)
    table = _from_cache(entry, spec)
    if table is not None:
        return table
    with cache.exclusive(entry and entry.path):
        table = _from_cache(entry, spec)
        if table is not None:
            return table
        try:
            rows, ends = _compute_table(spec)
        except DataError as error:  # every client of this process would draw the same in vain
            return error
        facts = {"dataset": spec.dataset, "clients": spec.clients}
        cache.write(entry, {"rows": rows, "ends": ends}, facts)
    return rows, ends


def _compute_table(spec: DataSpec) -> Table:
    from sepal.data.splitting import split

    clients = split(spec, load(spec.dataset, spec.data_dir, spec.folder))
    parts = [rows for client in clients for rows in client]
    return np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int64)


def _from_cache(entry: cache.Entry | None, spec: DataSpec) -> Table | None:
    cached = cache.read(entry)
    if cached is None or {"rows", "ends"} - set(cached[0]):
        return None
    rows, ends = cached[0]["rows"], np.asarray(cached[0]["ends"])
    if rows.ndim != 1 or ends.shape != (3 * spec.clients + 1,) or {rows.dtype.kind, ends.dtype.kind} - set("ui"):
        return None
    if ends[0] != 0 or ends[-1] != len(rows) or (ends[1:] < ends[:-1]).any():
        return None
    many = len(load(spec.dataset, spec.data_dir, spec.folder).x)
    return (rows, ends) if rows.size and rows.min() >= 0 and rows.max() < many else None

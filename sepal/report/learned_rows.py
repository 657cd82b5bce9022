"""What methods have learned of each client, for figures: masks, clusters of clients, pruning. Shares are in per cent.

A method's record names what reads it from a run (:mod:`sepal.method.readers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sepal.client_app.guard import check_sizes
from sepal.client_app.state_store import StateStore
from sepal.config.elsewhere import check_code, without_places
from sepal.data.own import OWN
from sepal.errors import ConfigError, DamagedError, SepalError
from sepal.method.interface import resolve
from sepal.method.readers import ClientMasks, EndedRun, Matrix, Reader
from sepal.names import NAME
from sepal.runs.about import StoredData, info_of, labels_of, with_images_as_begun
from sepal.runs.stored_run import NOTHING, Allowed, read_run, stored_config
from sepal.server.run_state import RunState
from sepal.server.run_store.disk import checkpoints_of, read_checkpoint
from sepal.strategies import registry
from sepal.strategies.assembly import Assembly, assemble
from sepal.strategies.client_likeness import cluster, compare_masks
from sepal.study.comparison import Comparison
from sepal.study.results import Variant

Row = dict[str, Any]
Rows = list[Row]
MOST = 60  # clients, at most, that are compared with each other: there is a row for each pair
DRAWN = 12  # clients, at most, whose pruning is drawn


def learned(comparison: Comparison) -> dict[str, Rows]:
    """Return the rows for the runs that have the data.

    ``masks``: how alike each pair of clients' masks and labels are. ``overlap``: how much of each client's mask is in
    the global one. ``layers``: the share of each tensor that masks keep. ``tree``: brackets and leaves of a clustering.
    ``pruning``: accuracy by the share that a client has pruned.
    """
    rows_of_figure: dict[str, Rows] = {"masks": [], "overlap": [], "layers": [], "tree": [], "pruning": []}
    for variant in comparison.all_variants():
        stored, kinds = variant.first.stored, readers(variant.method)
        if "pruning" in kinds:
            rows_of_figure["pruning"] += _pruning(variant, resolve(kinds["pruning"].function))
        if stored.summary is None or int(stored.config["clients"]) > MOST:
            continue
        for kind, rows_of in (("masks", _masks), ("vectors", _tree)):
            try:
                new_rows = rows_of(stored.path, stored.allowed) if kind in kinds else {}
            except SepalError:  # its data, checkpoint or states are not here, or it names code that is not allowed
                continue
            for name, rows in new_rows.items():
                rows_of_figure[name] += [{"cell": variant.cell, "label": variant.label, **row} for row in rows]
    return rows_of_figure


def readers(method: str) -> Mapping[str, Reader]:
    """Return a method's readers by kind; none for a method that is not installed here."""
    return registry.description(method).learned if method in registry.table() else {}


def read(path: Path, kind: str, allowed: Allowed = NOTHING, most: int = 0) -> Any:
    """Return what a method's reader of a kind finds in the run at ``path``.

    Unless its data may be read, only the run's files are: the model is built from what they say about the data.

    Args:
        path: The run's directory.
        kind: Of the reader.
        allowed: What may be done beyond.
        most: Clients, at most, that it may have; 0: any number.

    Raises:
        ConfigError: ``path`` is not a run directory, its method has no such reader, it has no checkpoint, it names code
            that is not allowed, it has more than ``most`` clients, or the reader needs data that may not be read.
    """
    kinds = readers(str((stored_config(path) or {}).get("method")))
    if kind not in kinds:
        methods = (name for name in registry.names() if kind in readers(name))
        raise ConfigError("run", f"the directory of a run of {' or '.join(methods)}", str(path))
    _check_has_checkpoint(path)  # before torch is imported for the run's parts
    assembly, reader = _assembled(path, allowed), kinds[kind]
    progress = _newest(path, assembly)
    from sepal.export.stored_states import newest_state  # it imports torch, which most reports do not need

    stores: dict[str, StateStore] = {}
    messages: dict[str, tuple[int, Mapping[str, Any]]] = {}  # round, and buffers that stay with the client

    def states() -> Iterator[tuple[str, Any]]:
        names = sorted({folder.name for folder in path.glob("clients/*/*") if NAME.match(folder.name)})
        run.check_few(names)
        for name in names:
            newest = newest_state(path, assembly, name, elsewhere=False)  # they may be of other data
            if newest and newest.stored:
                stores[name] = newest.store
                messages[name] = newest.stored.reply.round, newest.stored.local
                yield name, newest.stored.state

    def algorithm(name: str) -> Any:
        from sepal.client_app.build import Node, Shared, build_host
        from sepal.client_app.secure_sums import NoVault

        number = assembly.client_number(name)
        if number is None:
            raise ConfigError("client", "one whose data this machine's run config names", name)
        node = Node(number, assembly.setup.config.clients, name=name)
        host = build_host(Shared.around(assembly, "cpu"), node, "", stores[name], vault=NoVault())
        host.take_up(*messages[name])  # the training examples are those of its last round
        return host.algorithm

    run = EndedRun(assembly.setup, progress.server, states, algorithm, most)
    return resolve(reader.function)(run)


def _assembled(path: Path, allowed: Allowed) -> Assembly:
    """Return a run's parts, without its data unless that may be read."""
    stored = read_run(path, allowed)
    check_code(stored.config, allowed.code, "you allow (sepal report --allow package.module:NAME)")
    if allowed.data:
        with with_images_as_begun(path):
            return assemble(registry.as_begun(stored.config))
    info = info_of(stored)
    sizes = {"own.shape": "x".join(map(str, info.input_shape)), "own.classes": info.classes}
    check_sizes({**stored.config, **sizes, "dataset": OWN, "own.vocabulary": info.vocabulary})
    plain = {**without_places(stored.config), "deadline": 0.0}  # it may be of simulated time, by a profile elsewhere
    return assemble(registry.as_begun(plain), data=StoredData(info))


def _newest(path: Path, assembly: Assembly) -> RunState:
    """Return the newest checkpoint that can be read; nothing of the run is changed.

    Raises:
        ConfigError: There is none.
    """
    for file in reversed(checkpoints_of(path)):
        with suppress(DamagedError):
            return read_checkpoint(file, assembly.method.server_state)
    raise _no_checkpoint(path)


def _check_has_checkpoint(path: Path) -> None:
    if not checkpoints_of(path):
        raise _no_checkpoint(path)


def _no_checkpoint(path: Path) -> ConfigError:
    return ConfigError("run", "a run with a checkpoint", str(path))


def masks(path: Path, allowed: Allowed = NOTHING, most: int = 0) -> dict[str, Any]:
    """Return the run's name and :func:`sepal.strategies.client_likeness.compare_masks` of the run at ``path``.

    Args: As for :func:`read`.

    Raises:
        ConfigError: As :func:`read`, or the run's data is not here.
    """
    client_masks: ClientMasks = read(path, "masks", allowed, most)
    return {"run": path.name, **compare_masks(client_masks, _counts(path, allowed, client_masks.names))}


def clusters(path: Path, allowed: Allowed = NOTHING, most: int = 0) -> dict[str, Any]:
    """Return the run's name and :func:`sepal.strategies.client_likeness.cluster` of the run at ``path``.

    Args: As for :func:`read`.

    Raises:
        ConfigError: As :func:`read`, or the run's data is not here, or its clients cannot be clustered.
    """
    return {"run": path.name, **cluster(read(path, "vectors", allowed, most), partial(_counts, path, allowed))}


def _counts(path: Path, allowed: Allowed, names: Sequence[str]) -> Matrix:
    """Return each client's number of training examples of each label, float64 (clients, classes)."""
    labels = labels_of(read_run(path, allowed))
    if labels.counts is None:
        raise ConfigError("run", "one whose labels are known", labels.reason)
    try:
        return np.array([labels.counts[name] for name in names], np.float64)
    except KeyError as name:
        raise ConfigError("run", "one whose labels are known of every client", str(name)) from None


def _masks(path: Path, allowed: Allowed) -> dict[str, Rows]:
    comparison = masks(path, allowed, MOST)
    names = comparison["clients"]
    alike, overlap, layers = Rows(), Rows(), Rows()
    for a, b in itertools.product(range(len(names)), repeat=2):
        shares = {"similarity": comparison["similarity"][a][b], "labels": comparison["labels"][a][b]}
        alike.append({"one": names[a], "other": names[b], **{k: round(100 * v, 2) for k, v in shares.items()}})
    for name, share, labels in zip(names, comparison["overlap"] or (), comparison["global_labels"], strict=False):
        overlap.append({"client": name, "overlap": round(100 * share, 2), "labels": round(100 * labels, 2)})
    for layer, kind in itertools.product(comparison["layers"], ("personal", "global")):
        if layer[kind] is not None:
            layers.append({"layer": layer["name"], "mask": kind, "kept": round(100 * layer[kind], 2)})
    return {"masks": alike, "overlap": overlap, "layers": layers}


def _tree(path: Path, allowed: Allowed) -> dict[str, Rows]:
    clustering, rows = clusters(path, allowed, MOST), Rows()
    for number, points in enumerate(clustering["links"]):
        for step, (distance, position) in enumerate(points):
            rows.append({"kind": "link", "link": number, "step": step, "distance": distance, "place": position})
    for leaf, (name, labels) in enumerate(zip(clustering["clients"], clustering["labels"], strict=True)):
        words = f"{name.removeprefix('client-').lstrip('0') or '0'}: labels {' '.join(map(str, labels))}"
        rows.append({"kind": "leaf", "distance": 0.0, "place": float(leaf), "client": name, "words": words})
    return {"tree": rows}


def _pruning(variant: Variant, courses: Callable[..., Mapping[str, Mapping[str, list[Any]]]]) -> Iterator[Row]:
    """Yield the share that a few clients have pruned and their accuracy, in the rounds in which they were evaluated."""
    course_of = courses(variant.first.stored.lines)
    for name in list(course_of)[:: max(1, len(course_of) // DRAWN)][:DRAWN]:
        course = course_of[name]
        for number, pruned, accuracy in zip(course["round"], course["pruned"], course["accuracy"], strict=True):
            row = {"cell": variant.cell, "label": variant.label, "client": name, "round": number}
            yield {**row, "pruned": round(100 * pruned, 2), "accuracy": variant.measure.rounded(accuracy)}

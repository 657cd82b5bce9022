"""What methods have learned of each client, for figures: masks, clusters of clients, pruning. Shares are in per cent.

A method's record names what reads it from a run (:mod:`sepal.protocol.learned`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from sepal.client.state_store import StateStore
from sepal.client_app.client_model import newest_state
from sepal.errors import ConfigError, SepalError
from sepal.protocol.learned import ClientMasks, EndedRun, Matrix, Reader
from sepal.protocol.method import resolve
from sepal.server_app.places import IN_PROCESS
from sepal.server_app.run_directory import RunDirectory
from sepal.server_app.stored_run import stored_config
from sepal.strategies import registry
from sepal.strategies.assembly import assemble
from sepal.strategies.learned import cluster, compare_masks
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
    found: dict[str, Rows] = {"masks": [], "overlap": [], "layers": [], "tree": [], "pruning": []}
    for variant in comparison.all_variants():
        stored, kinds = variant.first.stored, readers(variant.method)
        if "pruning" in kinds:
            found["pruning"] += _pruning(variant, resolve(kinds["pruning"].function))
        code = ":" in f"{stored.config.get('model')}{stored.config.get('own.data', '')}"  # the run may be foreign
        if code or stored.summary is None or int(stored.config["clients"]) > MOST:
            continue
        for kind, rows_of in (("masks", _masks), ("vectors", _tree)):
            try:
                made = rows_of(stored.path) if kind in kinds else {}
            except SepalError:  # its data, checkpoint or states are not here
                continue
            for name, rows in made.items():
                found[name] += [{"cell": variant.cell, "label": variant.label, **row} for row in rows]
    return found


def readers(method: str) -> Mapping[str, Reader]:
    """Return a method's readers by kind; none for a method that is not installed here."""
    return registry.get(method).learned if method in registry.table() else {}


def read(path: Path, kind: str) -> Any:
    """Return what a method's reader of a kind finds in the run at ``path``.

    Raises:
        ConfigError: ``path`` is not a run directory, its method has no such reader, or it has no checkpoint.
    """
    flat = stored_config(path)
    reader = readers(str(flat["method"])).get(kind) if flat else None
    if flat is None or reader is None:
        known = (name for name in registry.names() if kind in readers(name))
        raise ConfigError("run", f"the directory of a run of {' or '.join(known)}", str(path))
    assembly = assemble(registry.as_begun(flat))
    with RunDirectory(path, assembly, IN_PROCESS) as directory:
        progress = directory.store().latest()
    if progress is None:
        raise ConfigError("run", "a run with a checkpoint", str(path))

    stores: dict[str, StateStore] = {}

    def states() -> Iterator[tuple[str, Any]]:
        for name in sorted({place.name for place in path.glob("clients/*/*")}):
            if (newest := newest_state(path, assembly, name)) and newest.stored:
                stores[name] = newest.store
                yield name, newest.stored.state

    def algorithm(name: str) -> Any:
        from sepal.client_app.build import Node, Shared, build_host

        node = Node(int(name.rpartition("-")[2]), assembly.task.config.clients)
        return build_host(Shared.around(assembly, "cpu"), node, "", stores[name]).algorithm

    return resolve(reader.function)(EndedRun(assembly.task, progress.server, states, algorithm))


def masks(path: Path) -> dict[str, Any]:
    """Return the run's name and :func:`sepal.strategies.learned.compare_masks` of the run at ``path``.

    Raises:
        ConfigError: As :func:`read`, or the run's data is not here.
    """
    found: ClientMasks = read(path, "masks")
    return {"run": path.name, **compare_masks(found, _counts(path, found.names))}


def clusters(path: Path) -> dict[str, Any]:
    """Return the run's name and :func:`sepal.strategies.learned.cluster` of the run at ``path``.

    Raises:
        ConfigError: As :func:`read`, or the run's data is not here, or its clients cannot be clustered.
    """
    return {"run": path.name, **cluster(read(path, "vectors"), partial(_counts, path))}


def _counts(path: Path, names: Sequence[str]) -> Matrix:
    """Return each client's number of training examples of each label, float64 (clients, classes)."""
    _, counts, reason = label_counts(stored_config(path) or {})
    if reason:
        raise ConfigError("run", "one whose data is here", reason)
    return np.array([counts[name] for name in names], np.float64)


def label_counts(config: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, list[int]], str]:
    """Return the labels' names, if they have any, each client's number of training examples by label, and a reason.

    If the data is private or not on this machine, the first two are empty and the reason is a sentence that says so.
    """
    return _label_counts(tuple(config.items()))


@lru_cache(maxsize=64)
def _label_counts(items: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, ...], dict[str, list[int]], str]:
    from sepal.client_app.build import client_name
    from sepal.config import parse
    from sepal.data import federated_data
    from sepal.protocol.tasks.learning import CLASSIFICATION
    from sepal.strategies.registry import Hypers, as_begun

    try:  # without the run's model: for a run from elsewhere, building it could import code
        config, _ = parse(as_begun(dict(items)), Hypers())
        if config.task != CLASSIFICATION:  # asking its data for targets could import code, too
            return (), {}, f"Targets of the task {config.task} are no class numbers."
        data = federated_data(config)
        if data.private:
            return (), {}, "The clients bring data of their own, and only they know its labels."
        classes, found = data.info.classes, {}
        for number in range(config.clients):
            name = client_name(number)
            labels = data.client(number, config.clients, name).train.y
            found[name] = np.bincount(labels, minlength=classes).tolist()
    except SepalError:  # its text is not shown: it may name a directory of this machine
        name = dict(items).get("dataset", "")
        return (), {}, f"The data ({name}) is not on the machine that wrote this report, or cannot be read there."
    return data.info.class_names, found, ""


def _masks(path: Path) -> dict[str, Rows]:
    found = masks(path)
    names = found["clients"]
    alike, overlap, layers = Rows(), Rows(), Rows()
    for a, b in itertools.product(range(len(names)), repeat=2):
        shares = {"similarity": found["similarity"][a][b], "labels": found["labels"][a][b]}
        alike.append({"one": names[a], "other": names[b], **{k: round(100 * v, 2) for k, v in shares.items()}})
    for name, share, labels in zip(names, found["overlap"] or (), found["global_labels"], strict=False):
        overlap.append({"client": name, "overlap": round(100 * share, 2), "labels": round(100 * labels, 2)})
    for layer, kind in itertools.product(found["layers"], ("personal", "global")):
        if layer[kind] is not None:
            layers.append({"layer": layer["name"], "mask": kind, "kept": round(100 * layer[kind], 2)})
    return {"masks": alike, "overlap": overlap, "layers": layers}


def _tree(path: Path) -> dict[str, Rows]:
    found, rows = clusters(path), Rows()
    for number, points in enumerate(found["links"]):
        for step, (distance, place) in enumerate(points):
            rows.append({"kind": "link", "link": number, "step": step, "distance": distance, "place": place})
    for place, (name, labels) in enumerate(zip(found["clients"], found["labels"], strict=True)):
        words = f"{name.removeprefix('client-').lstrip('0') or '0'}: labels {' '.join(map(str, labels))}"
        rows.append({"kind": "leaf", "distance": 0.0, "place": float(place), "client": name, "words": words})
    return {"tree": rows}


def _pruning(variant: Variant, courses: Callable[..., Mapping[str, Mapping[str, list[Any]]]]) -> Iterator[Row]:
    """Yield the share that a few clients have pruned and their accuracy, in the rounds in which they were evaluated."""
    found = courses(variant.first.stored.lines)
    for name in list(found)[:: max(1, len(found) // DRAWN)][:DRAWN]:
        course = found[name]
        for number, pruned, accuracy in zip(course["round"], course["pruned"], course["accuracy"], strict=True):
            row = {"cell": variant.cell, "label": variant.label, "client": name, "round": number}
            yield {**row, "pruned": round(100 * pruned, 2), "accuracy": variant.measure.rounded(accuracy)}

"""What methods have learned of each client, for figures: masks, clusters of clients, pruning. Shares are in per cent.

A method's record names what reads it from a run (:mod:`sepal.protocol.learned`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sepal.cli.comparison import Comparison
from sepal.cli.results import Variant
from sepal.cli.runs import newest_state
from sepal.client.state_store import StateStore
from sepal.errors import ConfigError, SepalError
from sepal.protocol.learned import ClientMasks, EndedRun, Matrix, Reader
from sepal.protocol.method import resolve
from sepal.server_app.places import IN_PROCESS
from sepal.server_app.run_directory import RunDirectory, stored_config
from sepal.strategies import registry
from sepal.strategies.assembly import assemble

Row = dict[str, Any]
Rows = list[Row]
MOST = 60  # clients, at most, that are compared with each other: there is a row for each pair
DRAWN = 12  # clients, at most, whose pruning is drawn
SHARE = 0.1  # of a client's examples; labels with at least this share are named


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
    assembly = assemble(flat)
    with RunDirectory(path, assembly, IN_PROCESS) as directory:
        progress = directory.store().latest()
    if progress is None:
        raise ConfigError("run", "a run with a checkpoint", str(path))

    stores: dict[str, StateStore] = {}

    def states() -> Iterator[tuple[str, Any]]:
        for name in sorted({place.name for place in path.glob("clients/*/*")}):
            if (newest := newest_state(path, assembly, name)) and newest.state:
                stores[name] = newest.store
                yield name, newest.state

    def algorithm(name: str) -> Any:
        from sepal.client_app.build import Node, Shared, build_host

        node = Node(int(name.rpartition("-")[2]), assembly.task.config.clients)
        return build_host(Shared.around(assembly, "cpu"), node, "", stores[name]).algorithm

    return resolve(reader.function)(EndedRun(assembly.task, progress.server, states, algorithm))


def masks(path: Path) -> dict[str, Any]:
    """Return how alike the masks of the clients of the run at ``path`` are.

    - ``clients``: names, in the order of rows and columns below;
    - ``distinct``: number of different personal masks;
    - ``similarity``: |m_a ∩ m_b| / |m_b| for each pair of clients' personal masks;
    - ``labels``: cosine of each pair of clients' training label counts, which ``similarity`` is compared with;
    - ``overlap``: |m_g ∩ m_c| / |m_c| for each client; null without a global mask;
    - ``global_labels``: cosine of each client's label counts and those of all clients together;
    - ``layers``: for each masked part, its ``name`` and the share of its entries that masks keep, ``personal`` (mean
      over clients) and ``global`` (null without a global mask);
    - ``correlation``: Pearson's r of ``similarity`` with ``labels`` over pairs of clients, and of ``overlap`` with
      ``global_labels`` over clients; null if either of the two does not vary.

    Raises:
        ConfigError: As :func:`read`, or the run's data is not here.
    """
    found: ClientMasks = read(path, "masks")
    labels = _counts(path, found.names)
    similarity = (found.personal @ found.personal.T) / found.personal.sum(1)
    pairs = np.triu_indices(len(found.names), 1)
    alike, whole = _cosine(labels, labels), _cosine(labels, labels.sum(0, keepdims=True))[:, 0]
    overlap = None if found.shared is None else (found.personal @ found.shared) / found.personal.sum(1)
    return {
        "run": path.name,
        "clients": found.names,
        "distinct": len(np.unique(found.personal, axis=0)),
        "similarity": similarity.round(4).tolist(),
        "labels": alike.round(4).tolist(),
        "overlap": None if overlap is None else overlap.round(4).tolist(),
        "global_labels": whole.round(4).tolist(),
        "layers": _layers(found),
        "correlation": {
            "similarity": _correlation(similarity[pairs], alike[pairs]),
            "overlap": None if overlap is None else _correlation(overlap, whole),
        },
    }


def clusters(path: Path) -> dict[str, Any]:
    """Return the clients of the run at ``path``, clustered by Ward's method on the distances of their vectors.

    - ``clients``: names, in the order of the tree's leaves;
    - ``labels``: for each client, the labels that each make up at least a tenth of its training examples;
    - ``links``: for each merge, the four points (distance, place) of its bracket; leaves are at places 0, 1, …
    - ``distances``: the Euclidean distance of each pair of clients, in that order;
    - ``alike``: cosine of each pair of clients' training label counts, in that order;
    - ``correlation``: Pearson's r of the last two over pairs of clients; negative if clients with similar labels lie
      close to each other, null if either does not vary.

    Raises:
        ConfigError: As :func:`read`, or the run's data is not here; or there are fewer than two vectors, or their
            lengths differ, as those of gates with different budgets can.
    """
    from scipy.cluster import hierarchy
    from scipy.spatial import distance

    vectors: dict[str, Matrix] = read(path, "vectors")
    if len(vectors) < 2:
        raise ConfigError("run", "one with at least two clients to compare", f"{path.name}, with {len(vectors)}")
    lengths = sorted({len(vector) for vector in vectors.values()})
    if len(lengths) > 1:
        raise ConfigError("run", "one whose clients' vectors have one length", f"{path.name}, with {lengths} numbers")
    names = sorted(vectors)
    matrix = np.stack([vectors[name] for name in names])
    tree = hierarchy.dendrogram(hierarchy.linkage(matrix, "ward"), no_plot=True)
    order, leaves = [names[leaf] for leaf in tree["leaves"]], matrix[tree["leaves"]]
    counts = _counts(path, order)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    distances, alike, pairs = distance.cdist(leaves, leaves), _cosine(counts, counts), np.triu_indices(len(order), 1)
    brackets = zip(tree["dcoord"], tree["icoord"], strict=True)  # SciPy places leaves at 5, 15, 25, …
    return {
        "run": path.name,
        "clients": order,
        "labels": [np.flatnonzero(row >= SHARE).tolist() for row in shares],
        "links": [
            [[round(float(d), 4), (float(p) - 5) / 10] for d, p in zip(heights, places, strict=True)]
            for heights, places in brackets
        ],
        "distances": distances.round(4).tolist(),
        "alike": alike.round(4).tolist(),
        "correlation": _correlation(distances[pairs], alike[pairs]),
    }


def _layers(found: ClientMasks) -> list[dict[str, Any]]:
    """Return the share of each part that masks keep."""
    ends = np.cumsum([part.size for part in found.parts])[:-1]
    own = [round(float(part.mean()), 4) for part in np.split(found.personal.mean(0), ends)]
    common: list[float | None] = [None] * len(own)
    if found.shared is not None:
        common = [round(float(part.mean()), 4) for part in np.split(found.shared, ends)]
    return [{"name": p.name, "personal": a, "global": b} for p, a, b in zip(found.parts, own, common, strict=True)]


def _cosine(a: Matrix, b: Matrix) -> Matrix:
    """Return the cosine of each row of ``a`` with each of ``b``; 0 with a row of zeros."""
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    return np.asarray((a @ b.T) / np.where(norms > 0, norms, 1.0))


def _correlation(a: Matrix, b: Matrix) -> float | None:
    """Return Pearson's r of two lists of numbers; None if either does not vary."""
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return round(float(np.corrcoef(a, b)[0, 1]), 4)


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
    from sepal.strategies.registry import Hypers

    try:  # without the run's model: for a run from elsewhere, building it could import code
        config, _ = parse(dict(items), Hypers())
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
            yield {**row, "pruned": round(100 * pruned, 2), "accuracy": round(100 * accuracy, 2)}

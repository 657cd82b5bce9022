"""Rows for figures of what particular methods learn: masks, clusters of clients, pruning. Shares are in per cent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from sepal.cli.comparison import Comparison, Group
from sepal.cli.report.pruning import courses
from sepal.errors import SepalError

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
    for group in comparison.all_groups():
        found["pruning"] += _pruning(group)
        config = group.first.stored.config
        code = ":" in f"{config.get('model')}{config.get('own.data', '')}"  # never imported: the run may be foreign
        if not code and group.first.stored.summary is not None and int(config["clients"]) <= MOST:
            for name, rows in {**_masks(group), "tree": _tree(group)}.items():
                found[name] += rows
    return found


def _head(group: Group) -> Row:
    return {"cell": group.cell, "label": group.label}


def _masks(group: Group) -> dict[str, Rows]:
    from sepal.cli.report.masks import analyse

    try:
        found = analyse(group.first.stored.path)
    except SepalError:  # another method's run, or its checkpoint is gone
        return {}
    names, head = found["clients"], _head(group)
    alike, overlap, layers = Rows(), Rows(), Rows()
    for a, b in itertools.product(range(len(names)), repeat=2):
        shares = {"similarity": found["similarity"][a][b], "labels": found["labels"][a][b]}
        percent = {name: round(100 * value, 2) for name, value in shares.items()}
        alike.append({**head, "one": names[a], "other": names[b], **percent})
    for name, share, labels in zip(names, found["overlap"] or (), found["global_labels"], strict=False):
        overlap.append({**head, "client": name, "overlap": round(100 * share, 2), "labels": round(100 * labels, 2)})
    for layer, kind in itertools.product(found["layers"], ("personal", "global")):
        if layer[kind] is not None:
            layers.append({**head, "layer": layer["name"], "mask": kind, "kept": round(100 * layer[kind], 2)})
    return {"masks": alike, "overlap": overlap, "layers": layers}


def _tree(group: Group) -> Rows:
    from sepal.cli.report.clusters import analyse

    try:
        found = analyse(group.first.stored.path)
    except SepalError:  # another method's run, or its states are gone
        return []
    head, rows = _head(group), Rows()
    for number, points in enumerate(found["links"]):
        for step, (distance, place) in enumerate(points):
            rows.append({**head, "kind": "link", "link": number, "step": step, "distance": distance, "place": place})
    for place, (name, labels) in enumerate(zip(found["clients"], found["labels"], strict=True)):
        words = f"{name.removeprefix('client-').lstrip('0') or '0'}: labels {' '.join(map(str, labels))}"
        rows.append({**head, "kind": "leaf", "distance": 0.0, "place": float(place), "client": name, "words": words})
    return rows


def _pruning(group: Group) -> Iterator[Row]:
    """Yield the share that a few clients have pruned and their accuracy, in the rounds in which they were evaluated."""
    found = courses(group.first.stored.lines)
    for name in list(found)[:: max(1, len(found) // DRAWN)][:DRAWN]:
        course = found[name]
        for number, pruned, accuracy in zip(course["round"], course["pruned"], course["accuracy"], strict=True):
            shares = {"pruned": round(100 * pruned, 2), "accuracy": round(100 * accuracy, 2)}
            yield {**_head(group), "client": name, "round": number, **shares}

"""Compares what a method has learned of each client with the clients' labels: masks, and vectors to cluster.

A method's readers get them from a run (:mod:`sepal.method.readers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sepal.errors import ConfigError
from sepal.method.readers import ClientMasks, Matrix

SHARE = 0.1  # of a client's examples; labels with at least this share are named


def compare_masks(masks: ClientMasks, labels: Matrix) -> dict[str, Any]:
    """Return how alike the masks of clients are.

    - ``clients``: names, in the order of rows and columns below;
    - ``distinct``: number of different personal masks;
    - ``similarity``: |m_a ∩ m_b| / |m_b| for each pair of clients' personal masks;
    - ``labels``: cosine of each pair of clients' training label counts, which ``similarity`` is compared with;
    - ``overlap``: |m_g ∩ m_c| / |m_c| for each client; null without a global mask;
    - ``global_labels``: cosine of each client's label counts and those of all clients together;
    - ``layers``: for each masked part, its ``name`` and the share of its entries that masks keep, ``personal``
      (mean over clients) and ``global`` (null without a global mask);
    - ``correlation``: Pearson's r of ``similarity`` with ``labels`` over pairs of clients, and of ``overlap`` with
      ``global_labels`` over clients; null if either of the two does not vary.

    Args:
        masks: The clients' masks.
        labels: float64 (clients, classes), the clients' numbers of training examples of each label.
    """
    similarity = (masks.personal @ masks.personal.T) / masks.personal.sum(1)
    pairs = np.triu_indices(len(masks.names), 1)
    alike, whole = _cosine(labels, labels), _cosine(labels, labels.sum(0, keepdims=True))[:, 0]
    overlap = None if masks.shared is None else (masks.personal @ masks.shared) / masks.personal.sum(1)
    return {
        "clients": masks.names,
        "distinct": len(np.unique(masks.personal, axis=0)),
        "similarity": similarity.round(4).tolist(),
        "labels": alike.round(4).tolist(),
        "overlap": None if overlap is None else overlap.round(4).tolist(),
        "global_labels": whole.round(4).tolist(),
        "layers": _layers(masks),
        "correlation": {
            "similarity": _correlation(similarity[pairs], alike[pairs]),
            "overlap": None if overlap is None else _correlation(overlap, whole),
        },
    }


def cluster(vectors: Mapping[str, Matrix], counts: Callable[[list[str]], Matrix]) -> dict[str, Any]:
    """Return clients clustered by Ward's method on the Euclidean distances of their vectors.

    - ``clients``: names, in the order of the tree's leaves;
    - ``labels``: for each client, the labels that each make up at least a tenth of its training examples;
    - ``links``: for each merge, the four points (distance, place) of its bracket; leaves are at places 0, 1, …
    - ``distances``: the Euclidean distance of each pair of clients, in that order;
    - ``alike``: cosine of each pair of clients' training label counts, in that order;
    - ``correlation``: Pearson's r of the last two over pairs of clients; negative if clients with similar labels
      lie close to each other, null if either does not vary.

    Args:
        vectors: Client → float64 vector.
        counts: Returns the numbers of training examples of each label, float64 (clients, classes), of named clients.

    Raises:
        ConfigError: There are fewer than two vectors, or their lengths differ.
    """
    from scipy.cluster import hierarchy
    from scipy.spatial import distance

    if len(vectors) < 2:
        raise ConfigError("run", "one with at least two clients to compare", str(len(vectors)))
    lengths = sorted({len(vector) for vector in vectors.values()})
    if len(lengths) > 1:
        raise ConfigError("run", "one whose clients' vectors have one length", f"{lengths} numbers")
    names = sorted(vectors)
    matrix = np.stack([vectors[name] for name in names])
    tree = hierarchy.dendrogram(hierarchy.linkage(matrix, "ward"), no_plot=True)
    order, leaves = [names[leaf] for leaf in tree["leaves"]], matrix[tree["leaves"]]
    examples = counts(order)
    shares = examples / np.maximum(examples.sum(1, keepdims=True), 1)
    distances, alike, pairs = (
        distance.cdist(leaves, leaves),
        _cosine(examples, examples),
        np.triu_indices(len(order), 1),
    )
    brackets = zip(tree["dcoord"], tree["icoord"], strict=True)  # SciPy places leaves at 5, 15, 25, …
    return {
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


def _layers(masks: ClientMasks) -> list[dict[str, Any]]:
    """Return the share of each part that masks keep."""
    ends = np.cumsum([part.size for part in masks.parts])[:-1]
    personal = [round(float(part.mean()), 4) for part in np.split(masks.personal.mean(0), ends)]
    common: list[float | None] = [None] * len(personal)
    if masks.shared is not None:
        common = [round(float(part.mean()), 4) for part in np.split(masks.shared, ends)]
    return [{"name": p.name, "personal": a, "global": b} for p, a, b in zip(masks.parts, personal, common, strict=True)]


def _cosine(a: Matrix, b: Matrix) -> Matrix:
    """Return the cosine of each row of ``a`` with each of ``b``; 0 with a row of zeros."""
    norms = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    return np.asarray((a @ b.T) / np.where(norms > 0, norms, 1.0))


def _correlation(a: Matrix, b: Matrix) -> float | None:
    """Return Pearson's r of two lists of numbers; None if either does not vary."""
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return round(float(np.corrcoef(a, b)[0, 1]), 4)

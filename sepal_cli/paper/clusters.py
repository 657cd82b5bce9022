"""Which clients a method has found alike, by hierarchical clustering: of pFedGate's gates, of Pa3dFL's embeddings.

pFedGate: Chen et al., ICML 2023, Figure 4: Ward's method on Euclidean distances of φ_i, the gates' parameters without
the statistics of their norms. :func:`analyse` returns:

- ``clients``: names, in the order of the tree's leaves;
- ``labels``: of each the labels of at least a tenth of its training examples;
- ``links``: of each merge four points (distance, place) of its bracket; leaves lie at the places 0, 1, …
- ``distances``: Euclidean, of every two clients in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster import hierarchy
from scipy.spatial import distance

from sepal.errors import ConfigError
from sepal_cli.paper.masks import label_counts, stored_state
from sepal_cli.runs import newest_state
from strategies.assembly import Assembly

Vector = npt.NDArray[np.float64]
SHARE = 0.1  # of a client's examples, from which on a label is named
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def analyse(path: Path) -> dict[str, Any]:
    """Return the figures above for the run in ``path``.

    Raises:
        ConfigError: It is no run directory, its method has no vector of each client, there are less than two, or they
            are of different lengths, as gates of different budgets can be.
    """
    assembly, state = stored_state(path, READERS)
    vectors = READERS[assembly.method.name](path, assembly, state)
    if len(vectors) < 2:
        raise ConfigError("run", "one with at least two clients to compare", f"{path.name}, with {len(vectors)}")
    lengths = sorted({len(vector) for vector in vectors.values()})
    if len(lengths) > 1:
        raise ConfigError("run", "one whose clients' vectors have one length", f"{path.name}, with {lengths} numbers")
    names = sorted(vectors)
    matrix = np.stack([vectors[name] for name in names])
    tree = hierarchy.dendrogram(hierarchy.linkage(matrix, "ward"), no_plot=True)
    order = [names[leaf] for leaf in tree["leaves"]]
    counts = label_counts(assembly, order)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    brackets = zip(tree["dcoord"], tree["icoord"], strict=True)  # SciPy sets leaves at 5, 15, 25, …
    return {
        "run": path.name,
        "clients": order,
        "labels": [np.flatnonzero(row >= SHARE).tolist() for row in shares],
        "links": [
            [[round(float(d), 4), (float(p) - 5) / 10] for d, p in zip(distances, places, strict=True)]
            for distances, places in brackets
        ],
        "distances": distance.cdist(matrix[tree["leaves"]], matrix[tree["leaves"]]).round(4).tolist(),
    }


def _gates(path: Path, assembly: Assembly, state: Any) -> dict[str, Vector]:
    """Return φ_i of the clients that have trained one, from their newest states."""
    found = {}
    for name in sorted({place.name for place in path.glob("clients/*/*")}):
        newest = newest_state(path, assembly, name)
        gate = newest.state.gate if newest and newest.state else {}
        parts = [gate[part].reshape(-1) for part in sorted(gate) if not part.endswith(STATISTICS)]
        if parts:
            found[name] = np.concatenate(parts).astype(np.float64)
    return found


def _embeddings(path: Path, assembly: Assembly, state: Any) -> dict[str, Vector]:
    return {name: vector.reshape(-1).astype(np.float64) for name, vector in state.hypernetwork.embeddings.items()}


Reader = Callable[[Path, Assembly, Any], dict[str, Vector]]
READERS: Mapping[str, Reader] = {"pfedgate": _gates, "pa3dfl": _embeddings}

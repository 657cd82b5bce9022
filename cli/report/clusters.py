"""Hierarchical clustering of clients by what the method learned of each: pFedGate's gates or Pa3dFL's embeddings.

pFedGate: Chen et al., ICML 2023, Figure 4: Ward's method on the Euclidean distances between the φ_i, the gates'
parameters without the running statistics of their norms. ``python -m sepal.cli.report.clusters RUN`` prints JSON:

- ``clients``: names, in the order of the tree's leaves;
- ``labels``: for each client, the labels that each make up at least a tenth of its training examples;
- ``links``: for each merge, the four points (distance, place) of its bracket; leaves are at places 0, 1, …
- ``distances``: the Euclidean distance of each pair of clients, in that order;
- ``alike``: cosine of each pair of clients' training label counts, in that order;
- ``correlation``: Pearson's r of the last two over pairs of clients; negative if clients with similar labels lie close
  to each other, null if either does not vary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster import hierarchy
from scipy.spatial import distance

from sepal.cli.report.masks import correlation, cosine, label_counts, stored_state
from sepal.cli.report.printing import print_analysis
from sepal.cli.runs import newest_state
from sepal.errors import ConfigError
from sepal.strategies.assembly import Assembly

Vector = npt.NDArray[np.float64]
SHARE = 0.1  # of a client's examples; labels with at least this share are named
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def analyse(path: Path) -> dict[str, Any]:
    """Return the figures above for the run in ``path``.

    Raises:
        ConfigError: ``path`` is not a run directory, its method has no vector for each client, there are fewer than
            two vectors, or their lengths differ, as those of gates with different budgets can.
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
    leaves = matrix[tree["leaves"]]
    distances, alike, pairs = distance.cdist(leaves, leaves), cosine(counts, counts), np.triu_indices(len(order), 1)
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
        "correlation": correlation(distances[pairs], alike[pairs]),
    }


def _gates(path: Path, assembly: Assembly, state: Any) -> dict[str, Vector]:
    """Return φ_i of the clients that have trained a gate, from their newest states."""
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


if __name__ == "__main__":
    print_analysis(analyse, "Ward's clustering of clients by what was learned of each, as JSON.")

"""What gates have learned in an ended run. Gates never leave their clients, so it is read from the clients' states."""

from __future__ import annotations

import numpy as np

from sepal.errors import ConfigError
from sepal.layout import Layout, Parameter, Role
from sepal.method.readers import ClientMasks, EndedRun, Matrix

MOSTLY = 0.5  # of a client's training examples: a block that is on for at least this share is in its mask
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def masks(run: EndedRun) -> ClientMasks:
    """Return masks with an entry for each block: whether it is on for at least half of the client's training examples.

    Raises:
        ConfigError: No client has a gate, or the gates are over different blocks.
    """
    by_client: dict[str, Matrix] = {}
    parts: Layout = ()
    for name, state in run.states():
        if state.gate:
            algorithm = run.algorithm(name)
            by_client[name] = (algorithm.own_masks(state).mean(0) >= MOSTLY).astype(np.float64)
            blocks = algorithm.blocks.by_tensor()
            parts = tuple(Parameter(tensor, (len(sizes),), Role.WEIGHT) for tensor, sizes in blocks.items())
    if not by_client or len({mask.size for mask in by_client.values()}) > 1:
        raise ConfigError("run", "one whose clients have gates over the same blocks", run.setup.config.name)
    return ClientMasks(list(by_client), parts, np.stack(list(by_client.values())))


def gates(run: EndedRun) -> dict[str, Matrix]:
    """Return φ_i of the clients that have trained a gate: its parameters, without the norms' running statistics.

    Chen et al., ICML 2023, Figure 4, clusters clients by the Euclidean distances between them.
    """
    vectors = {}
    for name, state in run.states():
        parts = [state.gate[part].reshape(-1) for part in sorted(state.gate) if not part.endswith(STATISTICS)]
        if parts:
            vectors[name] = np.concatenate(parts).astype(np.float64)
    return vectors

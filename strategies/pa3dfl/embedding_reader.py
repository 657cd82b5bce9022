"""The clients' embeddings in an ended run."""

from __future__ import annotations

import numpy as np

from sepal.method.readers import EndedRun, Matrix


def embeddings(run: EndedRun) -> dict[str, Matrix]:
    """Return client → embedding, from the server's hypernetwork."""
    vectors = run.server.hypernetwork.embeddings
    run.check_few(vectors)
    return {name: vector.reshape(-1).astype(np.float64) for name, vector in vectors.items()}

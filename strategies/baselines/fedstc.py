"""FedSTC: FedAvg with sparse ternary compression in both directions.

Sattler, Wiedemann, Müller, Samek, "Robust and Communication-Efficient Federated Learning from Non-IID Data", IEEE TNNLS
2019 (https://arxiv.org/abs/1903.02891). It is FedAvg with ``compress.name = "stc"``, under the paper's name and with
keys of its own; :mod:`sepal.method.compression` has the algorithm and its deviations. p_up = p_down is ``keep``.

*Received* is the global model; *trained* is the client's model after its local epochs. A deployed client predicts with
the global model; *kept* is the client's model of its last local epochs.

Deviations: the mean of updates is weighted by n_i, as in FedAvg.
"""

from __future__ import annotations

from pydantic import Field

from sepal.config import Settings
from sepal.method import Compression
from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer
from sepal.strategies.registration import register


class Hyper(Settings):
    """FedSTC's keys."""

    # The paper's p is 1/400 (also 1/25 and 1/100) with one step a round; with local epochs, FedPSE compares at .1.
    keep: float = Field(0.1, gt=0, le=1, description="p, fraction of entries sent, in both directions")
    ternary: bool = Field(True, description="send entries as ±μ; false: as values (FedAvg on updates if keep = 1)")
    # Our choice. Who missed more rounds gets the current value of each entry that has changed since.
    cache: int = Field(
        20, ge=1, le=10_000, description="past rounds whose updates the server keeps for clients that missed them"
    )


def _compression(hyper: Hyper) -> Compression:
    return Compression(hyper.keep, hyper.ternary, hyper.cache)


FedSTC = register(
    "fedstc",
    "Sparse ternary compression, both ways",
    "Sattler et al., TNNLS 2019",
    FedAvgServer,
    FedAvgClient,
    Hyper,
    deployed="received",
    one_model=True,
    compression=_compression,
)

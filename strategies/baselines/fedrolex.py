"""FedRolex: HeteroFL with a window of channels that rolls from round to round.

Alam, Liu, Yan, Zhang, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS
2022, Algorithm 1 (https://arxiv.org/abs/2212.01548). In round t = 0, 1, … a client of width β holds ⌈βK⌉ of a layer's K
channels, from t mod K on, modulo K, so that narrow clients train every channel, too. Everything else is as in HeteroFL,
as in the authors' code: widths, unweighted mean, scaler, masked loss, static batch normalisation. A deployed client
predicts with its part of the server's model in the newest window, which is *received*.

Deviations: those of :mod:`sepal.strategies.baselines.heterofl`. The window moves up, as in the paper; the authors' code
moves it down. Channels that are normalised together (GroupNorm) move together. A client's *trained* model is that of
the window at which it was trained.
"""

from __future__ import annotations

from sepal.strategies.baselines.heterofl import HeteroFLClient, HeteroFLServer, Hyper
from sepal.strategies.registration import register


class Rolling:
    """What server and client share: where the window begins."""

    def shift(self, round: int) -> int:
        """Return t: rounds count from 1 here, and from 0 in the paper."""
        return round - 1


class FedRolexServer(Rolling, HeteroFLServer):
    """HeteroFL's server, over the round's window."""

    uses_capacity = True


class FedRolexClient(Rolling, HeteroFLClient):
    """HeteroFL's client, over the round's window."""


FedRolex = register(
    "fedrolex",
    "Models of each client's width, from a rolling window of channels",
    "Alam et al., NeurIPS 2022",
    FedRolexServer,
    FedRolexClient,
    Hyper,
    deployed="received",
    defaults={"clip-gradient": 0.0},  # it has a clip of its own
)

"""LG-FedAvg: the layers at one end of the model are averaged, the others stay with the client.

Liang, Liu, Liu, Salakhutdinov, Morency, "Think Locally, Act Globally: Federated Learning with Local and Global
Representations", 2020, Algorithm 1 (https://arxiv.org/abs/2001.01523). Each client keeps some layers to itself. The
others are averaged as in FedAvg, and all are trained together. *Received* is the received layers with the client's own;
*trained* is the same after the local epochs. A deployed client predicts with its model of the last local epochs,
which is *kept*.

In the paper's text the representation ℓ_m is local and the head g is global (``shared-end = "last"``). The authors'
script for convolutional networks does the reverse: it averages the two convolutions and keeps the linear layers local.
The script's setting is the default here.

Deviations: models start at W_0 (the authors' experiments start from a model trained by FedAvg); only the supervised
loss is used; a new client starts at W_0 and uses no ensemble of other clients' representations; clients count in the
mean by n_i, as in FedAvg (in the authors' code all count alike).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sepal.config import Settings
from sepal.layout import Layout, Role, layers
from sepal.method import RunSetup
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.strategies.baselines.fedper import PartClient
from sepal.strategies.registration import register


class Hyper(Settings):
    """LG-FedAvg's keys."""

    # The authors' script for CIFAR-10 shares conv1 and conv2; DM-PFL's comparison shares the head.
    shared_layers: int = Field(2, ge=0, description="number of shared layers; all is FedAvg, 0 is Local")
    shared_end: Literal["first", "last"] = Field("first", description="which end of the model is shared")


class End:
    """The exchanged tensors: ``shared-layers`` layers at one end of the model."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the tensors that are averaged."""
        hyper, layout = self.setup.hyper, self.setup.layout
        if hyper.shared_end == "last":
            return layers(layout, hyper.shared_layers)[1]
        count = sum(parameter.role is Role.WEIGHT for parameter in layout)
        return layers(layout, max(0, count - hyper.shared_layers))[0] if hyper.shared_layers else ()


class LgFedAvgServer(End, FedAvgServer):
    """FedAvg's server for the shared layers."""


class LgFedAvgClient(End, PartClient):
    """Exchanges the layers at one end."""


LgFedAvg = register(
    "lg-fedavg",
    "Shared layers at one end of a personal model",
    "Liang et al., 2020",
    LgFedAvgServer,
    LgFedAvgClient,
    Hyper,
)

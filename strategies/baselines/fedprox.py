"""FedProx: FedAvg with a proximal term.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020, Algorithm 2
(https://arxiv.org/abs/1812.06127). Clients minimise F_i(w) + μ/2·‖w - w^t‖², where w^t is the received model. A
deployed client predicts with the global model; *kept* is its model of its last local epochs.

Deviations: every client trains for E epochs (in the paper slow clients train less); the mean is weighted by n_i, where
the paper samples clients by n_i and weights them equally; statistics of normalisation layers have no proximal term.
"""

from __future__ import annotations

from sepal.config import NotNegativeOrAuto, Settings, auto
from sepal.method import Hooks, Plan, Weights
from sepal.strategies.baselines.fedavg import FedAvgClient, FedAvgServer
from sepal.strategies.registration import register
from sepal.training.hooks import proximal


class Hyper(Settings):
    """FedProx's keys."""

    # The paper chooses among .001, .01, .1 and 1 for each data set; .01 is our choice, not searched. DM-PFL uses .05.
    mu: NotNegativeOrAuto = auto(0.01, "μ, weight of the proximal term; 0 is FedAvg")


class FedProxClient(FedAvgClient):
    """FedAvg's client with the proximal term."""

    def hooks(self, received: Weights, plan: Plan) -> Hooks:
        """Add the gradient of μ/2·‖w - w^t‖²."""
        return proximal(received, self.hyper.mu, self.trainer.device)


FedProx = register(
    "fedprox",
    "FedAvg with a proximal term",
    "Li et al., MLSys 2020",
    FedAvgServer,
    FedProxClient,
    Hyper,
    deployed="received",
    one_model=True,
)

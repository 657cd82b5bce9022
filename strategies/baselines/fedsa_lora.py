"""FedSA-LoRA: of low-rank adapters, A is averaged and B stays with the client.

Guo, Zeng, Wang, Fan, Wang, Qu, "Selective Aggregation for Low-Rank Adaptation in Federated Learning", ICLR 2025
(https://arxiv.org/abs/2410.01463), Figure 1c. A and B are trained together in every local step. B, and what
``trainable`` frees besides, such as a head, are personal. *Received* is the received A with the client's own B; a
deployed client predicts with its A and B of the last local epochs.

Deviations: the mean of A is weighted by n_i.
"""

from __future__ import annotations

from sepal.layout import Layout
from sepal.method import RunSetup
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.strategies.baselines.fedper import PartClient
from sepal.strategies.registration import register


class OfA:
    """The exchanged tensors: A of every adapter."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the tensors that are averaged."""
        return tuple(parameter for parameter in self.setup.layout if parameter.name.endswith(".lora_A"))


class FedSaLoraServer(OfA, FedAvgServer):
    """FedAvg's server for A."""


class FedSaLoraClient(OfA, PartClient):
    """Trains the adapters, and sends A."""


FedSaLora = register(
    "fedsa-lora",
    "Low-rank adapters of which A is shared and B stays",
    "Guo et al., ICLR 2025",
    FedSaLoraServer,
    FedSaLoraClient,
    defaults={"lora.rank": 8},
)

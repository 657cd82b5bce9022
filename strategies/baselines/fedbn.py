"""FedBN: normalisation layers stay with the client.

Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021
(https://arxiv.org/abs/2102.07623). All tensors of batch normalisation (scale, shift, running mean and variance) stay
with the client. The others are averaged as in FedAvg, and all are trained together. It is made for clients with
different inputs, not for different shares of labels. *Received* is the averaged tensors with the client's own norms,
before a local step: what the authors' code evaluates, and what is deployed. *Trained* is the same after the local
epochs, *kept* that of the last ones.

A client that has never trained has no norms, and those of W_0 do not fit a trained body. Its scale and shift are W_0's,
and its running statistics are computed from its own training part, in one pass without a step. So it is with novel
clients, which are reported apart.

Deviations: norms are chosen by their role in the model, where the authors' code and both benchmarks choose by name and
so average some of them; clients count in the mean by n_i, as in FedAvg (in the authors' code all count alike).
``norms = "statistics"`` is SiloBN (Andreux et al., 2020): scale and shift are averaged, too; ``norms = "all"``, an
extension of ours, keeps group and layer norms as well. The pass that computes statistics is not in the multiply-adds.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import nn

from sepal.config import Settings
from sepal.errors import ModelError
from sepal.layout import Layout, Role, statistics
from sepal.method import Payload, Plan, RunSetup, Trainer, Weights
from sepal.models import names
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.strategies.baselines.fedper import ClientState, PartClient
from sepal.strategies.registration import register
from sepal.training.batches import smallest_batch
from sepal.training.columns import BATCH, equal_parts

# What a norm with running statistics calls them. Other buffers of a model, such as constants, are statistics, too.
RUNNING = ("running_mean", "running_var")
VARIANT = "-bn"  # ends the names of built-in models with batch normalisation


class Hyper(Settings):
    """FedBN's keys."""

    norms: Literal["batch", "statistics", "all"] = Field(
        "batch",
        description="what stays with the client: norms with running statistics; their statistics alone (SiloBN); all "
        "norms, also group and layer norm",
    )


def personal_norms(layout: Layout, norms: str) -> Layout:
    """Return the tensors that stay with the client, by ``fedbn.norms``."""
    names = {parameter.name for parameter in statistics(layout)}
    with_statistics = {_layer(name) for name in names if {f"{_layer(name)}{part}" for part in RUNNING} <= names}
    kept_roles = {Role.STATISTIC} if norms == "statistics" else {Role.STATISTIC, Role.NORM}
    return tuple(
        parameter
        for parameter in layout
        if (parameter.role in kept_roles and _layer(parameter.name) in with_statistics)
        or (parameter.role is Role.NORM and norms == "all")
    )


def _layer(name: str) -> str:
    """Return the beginning that the names of a layer's tensors have in common, with its dot."""
    return name[: name.rfind(".") + 1]


def refuse_without_norms(setup: RunSetup) -> None:
    """Refuse a model without such norms, with which the method would be FedAvg.

    Raises:
        ModelError: See above.
    """
    if not personal_norms(setup.layout, setup.hyper.norms):
        kind = "a norm" if setup.hyper.norms == "all" else "a norm with running statistics"
        built_in = ", ".join(name for name in names() if name.endswith(VARIANT))
        expected = f"one with {kind}, without which fedbn is fedavg (of Sepal's own: {built_in})"
        raise ModelError("model", expected, f"{setup.config.model}, which has none")


class WithoutNorms:
    """The exchanged tensors: all but the norms."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the tensors that are averaged."""
        personal = {parameter.name for parameter in personal_norms(self.setup.layout, self.setup.hyper.norms)}
        return tuple(parameter for parameter in self.setup.layout if parameter.name not in personal)


class FedBNServer(WithoutNorms, FedAvgServer):
    """FedAvg's server for all but the norms."""

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        refuse_without_norms(setup)


class FedBNClient(WithoutNorms, PartClient):
    """Exchanges all but the norms."""

    dense_exchange = True

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        refuse_without_norms(setup)

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the received tensors with the client's norms; before it has trained, with statistics of its data."""
        received = super().received_weights(state, download, plan)
        return received if state.rounds or not download.tensors else self._with_statistics(received)

    def _with_statistics(self, weights: Weights) -> Weights:
        """Return the model with the mean and variance of its norms' inputs over the training part."""
        network = self.trainer.network("statistics")
        network.load(weights)
        module = network.module.eval()
        norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        norms = [norm for norm in norms if norm.track_running_stats]
        count = min(math.ceil(len(self.trainer.y) / BATCH), len(self.trainer.y) // smallest_batch(module))
        if not norms or not count:
            return weights
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all batches
            norm.train()
        with torch.no_grad(), self.trainer.cast():
            for x in equal_parts(self.trainer.x, count):
                module(x)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        module.eval()
        return network.read()


FedBN = register(
    "fedbn",
    "Norms with running statistics stay with the client",
    "Li et al., ICLR 2021",
    FedBNServer,
    FedBNClient,
    Hyper,
    defaults={"lr": 0.1},  # FedAvg's rate on digits, .5, is too high for it
    deployed="received",
    model_variant=VARIANT,
)

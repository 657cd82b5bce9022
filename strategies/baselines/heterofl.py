"""HeteroFL: nested models of five widths.

Diao, Ding, Tarokh, "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021, Algorithm 1 (https://arxiv.org/abs/2010.01264), and the authors' code. Each client holds the first channels
of every hidden layer. The mean is unweighted. A client learns, and the server averages, the output rows of the classes
that the client has: its loss sets the logits of other classes to 0 (masked cross-entropy). Hidden layers' outputs are
divided by the width (*scaler*), before their norm. Gradients are clipped at 1. A deployed client predicts with its part
of the server's model, which is *received*; *kept* is its part after its last local epochs.

Deviations:

* Static batch normalisation: statistics do not change while a client trains. It computes those of its trained model
  over its training data, and the server averages them. The authors compute those of the global model, over all clients.
* A narrow model also predicts with the scaler, because it was trained with it. The authors predict with the full
  model alone, whose scaler is 1. The mask of classes is only used in training.
* The widths of clients do not change from round to round (the authors' "fix"), and follow from capacity.
* The server learns which classes a client has: they are sent as a mask, one bit per class.
* Layers must follow one another (:mod:`sepal.models.channels`): no residual networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import nn

from sepal.layout import Layout, layers
from sepal.method import ClientInfo, Hooks, Payload, Plan, RunSetup, Schema, Trainer, Upload, Weights
from sepal.method.means import Part
from sepal.strategies.baselines.fedavg import ServerState
from sepal.strategies.baselines.widths import ClientState, Cuts, Dense, WidthClient, WidthServer, WidthSettings
from sepal.strategies.registration import register
from sepal.tasks.learning import LABELS
from sepal.training import columns
from sepal.training.capturable import Capturable, Objective
from sepal.training.hooks import ClipGradients
from sepal.wire.tensors import TensorSpec, members

CLASSES = "classes"  # in an upload, beside the model's tensors: which classes the client has
BATCH = 512


class Hyper(WidthSettings):
    """HeteroFL's keys."""

    scaler: bool = Field(True, description="divide the outputs of hidden layers by the width")
    masked: bool = Field(True, description="zero the logits of classes a client lacks, average output rows by class")
    clip: float = Field(1.0, gt=0, description="maximum gradient norm")


class Output(Cuts):
    """What server and client share: the output layer, whose tensors have a row for each class."""

    @property
    def output(self) -> Layout:
        """The output layer's tensors."""
        return layers(self.setup.layout, 1)[1]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.output[0].shape[0]


class HeteroFLServer(Output, WidthServer):
    """Averages output rows over the clients that have the class, other entries over the clients that hold them."""

    uses_capacity = True

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit the client's classes, then tensors of its width."""
        specs = super().upload_schema(state, client, plan).tensors
        if not self.hyper.masked:
            return Schema(specs)
        return Schema({CLASSES: TensorSpec((self.classes,), values=False, min_count=1), **specs})

    def parts(self, upload: Upload, plan: Plan) -> Mapping[str, Part]:
        """Return an upload's entries; of the output layer, the rows of the client's classes."""
        parts = dict(super().parts(upload, plan))
        if self.hyper.masked:
            rows = upload.payload.tensors[CLASSES].positions()
            for p in self.output:
                mesh, values = parts[p.name]
                parts[p.name] = ((mesh[0][rows], *mesh[1:]), values[rows])
        return parts

    def weigh(self, upload: Upload) -> float:
        """Return 1: all clients have equal weight."""
        return 1


@dataclass(frozen=True)
class MaskedLoss(Capturable):
    """The loss of outputs that are 0 for the classes, bool (classes,), that are ``absent``."""

    TENSORS: ClassVar[tuple[str, ...]] = ("absent",)
    absent: torch.Tensor
    objective: Objective

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return self.objective(module(x).masked_fill(self.absent, 0), y)


class HeteroFLClient(Output, WidthClient):
    """Trains with scaler, masked loss and clipped gradients."""

    needs_of_task = (LABELS,)

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.present = np.isin(np.arange(self.classes), self.trainer.y[:].cpu().numpy())

    def module(self, width: float) -> nn.Module:
        """Return a module that divides hidden layers' outputs by the width."""
        module = super().module(width)
        if self.hyper.scaler and width < 1:
            for group in self.coupling:
                module.get_submodule(group.name).register_forward_hook(lambda layer, inputs, out: out / width)
        return module

    def hooks(self, received: Weights, plan: Plan) -> Hooks:
        """Return the masked loss, and clipping."""
        absent = torch.from_numpy(~self.present & self.hyper.masked).to(self.trainer.device)
        return Hooks(MaskedLoss(absent, self.trainer.loss), before_step=ClipGradients(float(self.hyper.clip)))

    def trained(self, start: Weights, plan: Plan) -> Dense:
        """Return the model after E epochs, with its statistics over the training data."""
        super().trained(start, plan)
        network = self.network(self.own_width)
        set_statistics(network.module, self.trainer.x)
        return network.read()

    def upload(self, state: ClientState, plan: Plan) -> Payload:
        """Return the client's classes and its model."""
        sent = super().upload(state, plan)
        if not self.hyper.masked:
            return sent
        return Payload({CLASSES: members(self.present), **sent.tensors})


def set_statistics(module: nn.Module, x: columns.Part) -> None:
    """Set the running statistics of batch norms to the mean over batches of ``x``, inputs (n, …)."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if not norms or len(x) < 2:
        return
    module.train()
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # all batches count alike
    with torch.no_grad():
        for part in columns.equal_parts(x, math.ceil(len(x) / BATCH)):
            module(part)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


HeteroFL = register(
    "heterofl",
    "Nested models, cut to each client's width",
    "Diao et al., ICLR 2021",
    HeteroFLServer,
    HeteroFLClient,
    Hyper,
    deployed="received",
    defaults={"clip-gradient": 0.0},  # it has a clip of its own
)

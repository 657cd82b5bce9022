"""SparsyFed: weights to a power, pruned to the largest after training, so that clients agree on which are 0.

Guastella, Sani, Iacob, Mora, Bellavista, Lane, "SparsyFed: Sparse Adaptive Federated Training", ICLR 2025
(https://arxiv.org/abs/2504.05153). Symbols: w → what is exchanged and trained; v = sign(w)·|w|^α → the weight that a
layer uses; s → share of zeros in a layer. A client trains w, so the gradient of w is that of v times α·|w|^(α-1): for
α > 1 an entry that is 0 stays 0. After E epochs it sets all but the ``keep`` share of largest |w| of the model's
weights to 0 and uploads the rest. The server takes the mean, weighted by n_i, in which absent entries are 0. The global
model has the entries that any client has sent. *Received* is the global model, *trained* the client's pruned model. A
deployed client predicts with *received*; *kept* is the pruned model of its last round. All are models of v.

For the gradient of a layer's weights, its inputs are pruned to the share 1 - s of the largest magnitudes of the batch;
the forward pass and the gradient of the inputs use all of them. A convolution takes the threshold of the round's first
batch in the whole round (``prune-inputs``).

What was read of the code is not the authors' release: NOTES.md says what, and where paper and code differ. Deviations:
W_0 is Sepal's, mapped by |v|^(1/α), where the code draws a truncated normal; statistics of norms are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from sepal.config import Settings
from sepal.layout import Role
from sepal.masks.flat import Flat
from sepal.masks.packed import Mask, density, masked
from sepal.masks.selection import count
from sepal.method import (
    ClientInfo,
    Hooks,
    Metrics,
    Payload,
    Plan,
    RunSetup,
    Schema,
    ServerBase,
    Uploads,
    Weights,
    sparse_mean,
    weighted_mean,
)
from sepal.method.tensors import at_masks, at_total_specs, dense_specs
from sepal.protocol.types import SpecLike
from sepal.strategies.baselines.fedavg import ClientState, FedAvgClient, ServerState
from sepal.strategies.baselines.zero_weights import refuse_zero_weights
from sepal.strategies.registration import register
from sepal.training.trainer import Trainer
from sepal.wire.tensors import TensorSpec, Values

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Hyper(Settings):
    """SparsyFed's keys."""

    # The authors' README: α 1.25, and .05 of a ResNet-18's 11 million weights. NOTES.md has why keep is larger here.

    alpha: float = Field(1.25, ge=1, le=4, description="α, power of the weights; 1: they are used as they are")
    keep: float = Field(0.2, gt=0, le=1, description="1 - s, share of the weights that a client uploads")
    largest: Literal["weights", "change"] = Field(
        "weights", description="what is largest in what a client uploads: the trained weights, or their change"
    )
    prune_inputs: bool = Field(True, description="prune layers' inputs for the gradient of their weights")


class Powers:
    """What both sides share: which weights are pruned, and what they stand for.

    Attributes:
        pruned: The weights that are pruned, as one vector.
        others: All other tensors.
        first: W_0, as w.
    """

    setup: RunSetup

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pruned = Flat(tuple(p for p in self.setup.layout if p.role is Role.WEIGHT))
        self.names = {p.name for p in self.pruned.layout}
        self.others = tuple(p for p in self.setup.layout if p.role is not Role.WEIGHT)
        self.entries = count(self.setup.hyper.keep, self.pruned.size)
        hyper: Hyper = self.setup.hyper
        alpha = hyper.alpha
        if alpha > 1:
            refuse_zero_weights(self.setup, "with sparsyfed.alpha above 1 a weight of 0 gets no gradient, and stays 0")
        elif hyper.keep < 1 and hyper.largest == "weights":
            # B of an adapter is then smaller than A after each round, and cut off again
            refuse_zero_weights(self.setup, "sparsyfed.largest = weights prunes what starts from 0 in every round")
        self.first: dict[str, Values] = {
            name: (np.sign(v) * np.abs(v) ** (1 / alpha)).astype(np.float32) if name in self.names else v
            for name, v in self.setup.weights.items()
        }

    def effective(self, weights: Weights) -> dict[str, Values]:
        """Return the model of v = sign(w)·|w|^α."""
        power: Any = np.float32(self.setup.hyper.alpha - 1)
        return {name: w * np.abs(w) ** power if name in self.names else w for name, w in weights.items()}

    def chosen(self, vectors: Weights) -> dict[str, Mask]:
        """Return the mask of the ``keep`` largest entries of all pruned tensors together; others' are all True."""
        return self.in_order(self.pruned.largest(vectors, self.entries))

    def support(self, weights: Weights) -> dict[str, Mask]:
        """Return where the weights are not 0; of other tensors all entries."""
        return self.in_order({name: weights[name] != 0 for name in self.names})

    def in_order(self, masks: Mapping[str, Any]) -> dict[str, Mask]:
        """Return a mask for every tensor, in the layout's order."""
        return {p.name: masks[p.name] if p.name in masks else np.ones(p.shape, np.bool_) for p in self.setup.layout}

    def specs(self, pruned: Mapping[str, SpecLike]) -> Schema:
        """Return a schema with ``pruned`` for the pruned tensors, and the others dense."""
        specs = {**pruned, **dense_specs(self.others)}
        return Schema({p.name: specs[p.name] for p in self.setup.layout})


class SparsyFedServer(Powers, ServerBase[ServerState]):
    """Averages the pruned models; what a client has pruned counts as 0."""

    reads_uploads = "each client chooses its own entries"
    robust_means = True

    def init(self) -> ServerState:
        """Start from W_0, as w."""
        return ServerState(self.first)

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the entries that are not 0."""
        return Payload(at_masks(state.weights, self.support(state.weights), self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit so many entries of all pruned tensors together, and the other tensors."""
        return self.specs(at_total_specs(self.pruned.layout, self.entries))

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return w; without what is uploaded as a change."""
        changes = self.hyper.largest == "change"
        return {name: w for name, w in state.weights.items() if not (changes and name in self.names)}

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Compute Σ n_i·w_i / Σ n_i, or add the mean change."""
        if not len(uploads):
            return state, {}
        shapes = {p.name: p.shape for p in self.pruned.layout}
        mean: dict[str, Any] = dict(sparse_mean(uploads, shapes, self.weigh, self.robust))
        if self.hyper.largest == "change":
            # Not to the rounded weights that clients got: rounded anew each round, they would lose small changes
            mean = {name: state.weights[name] + change for name, change in mean.items()}
        mean |= weighted_mean(uploads, state.weights, [p.name for p in self.others], self.weigh, self.robust)
        weights = {p.name: mean[p.name].astype(np.float32) for p in self.layout}
        counts = [(int(np.count_nonzero(weights[p.name])), p.size) for p in self.pruned.layout if p.size]
        lowest = min((entries / size for entries, size in counts), default=0.0)
        density = sum(entries for entries, _ in counts) / max(self.pruned.size, 1)
        return ServerState(weights), {"density": density, "lowest-density": lowest}

    def model(self, state: ServerState) -> Weights:
        """Return the model of v."""
        return self.effective(state.weights)


def powered(weight: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return sign(w)·|w|^α; its gradient is α·|w|^(α-1), which at w = 0 is 0 for α > 1 and 1 for α = 1."""
    scale = weight.detach().abs() ** (alpha - 1)
    v = weight * scale
    if v.requires_grad:
        v.register_hook(lambda gradient: gradient * alpha)  # type: ignore[no-untyped-call]
    return v


class PoweredLoss:
    """The loss of the model whose weights are :func:`powered`."""

    def __init__(self, trainer: Trainer, names: set[str], alpha: float) -> None:
        self.trainer, self.names, self.alpha = trainer, names, alpha

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        weights = {n: powered(p, self.alpha) for n, p in module.named_parameters() if n in self.names}
        return self.trainer.loss(functional_call(module, weights, (x,)), y)


def threshold(inputs: torch.Tensor, present: torch.Tensor, of: int) -> torch.Tensor:
    """Return the magnitude that ⌈present/of · size⌉ of the inputs reach, at least one; a device is not waited for.

    Args:
        inputs: Of any shape.
        present: int64, a scalar, on the device of the inputs.
        of: What ``present`` is a part of.
    """
    magnitudes, size = inputs.abs().reshape(-1).sort().values, inputs.numel()
    count = ((present * size + of - 1) // of).clamp(1, size)
    return torch.index_select(magnitudes, 0, (size - count).reshape(1)).squeeze(0)


@contextmanager
def pruned_inputs(module: nn.Module) -> Iterator[None]:
    """Prune what linear layers and convolutions in training mode save of their inputs for their weights' gradients."""
    first_thresholds: dict[nn.Module, torch.Tensor] = {}

    def hook(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        x, weight = inputs[0].detach(), layer.weight
        if not (layer.training and weight.requires_grad):
            return output
        present = torch.count_nonzero(weight)
        if present.device.type == "cpu" and present == weight.numel():  # a device would have to be waited for
            return output
        least = first_thresholds.get(layer)
        if least is None:
            least = threshold(x, present, weight.numel())
            if isinstance(layer, CONVOLUTIONS):
                first_thresholds[layer] = least
        # The outputs of what is dropped, minus themselves: 0, but for the weights' gradient
        dropped = torch.where(x.abs() >= least, torch.zeros_like(x), -x)
        if isinstance(layer, nn.Linear):
            without = functional.linear(dropped, weight)
        else:
            without = layer._conv_forward(dropped, weight, None)
        return output + (without - without.detach())

    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Linear, *CONVOLUTIONS))]
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class SparsyFedClient(Powers, FedAvgClient):
    """Trains w, and uploads its largest entries."""

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit any entries; nothing in round 1, because W_0 is known."""
        return Schema() if plan.round == 1 else self.specs({p.name: TensorSpec(p.shape) for p in self.pruned.layout})

    def raw(self, download: Payload) -> Weights:
        """Return the received w."""
        return {name: tensor.dense() for name, tensor in download.tensors.items()} or self.first

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the received model of v."""
        return self.effective(self.raw(download))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train w for E epochs and prune it."""
        return self._trained(download, plan)[0]

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train w for E epochs, prune it, and send what is left, or the largest changes."""
        after, weights, masks = self._trained(download, plan)
        return after, Payload(at_masks(weights, masks, self.coding))

    def _trained(
        self, download: Payload, plan: Plan
    ) -> tuple[ClientState, dict[str, npt.NDArray[np.float32]], dict[str, Mask]]:
        """Return the model of v after training and pruning, what to send, and where."""
        start, network = self.raw(download), self.trainer.network()
        network.load(start)
        hooks = Hooks(PoweredLoss(self.trainer, self.names, self.hyper.alpha))
        present = density({name: mask for name, mask in self.support(start).items() if name in self.names})
        with pruned_inputs(network.module) if self.hyper.prune_inputs else nullcontext():
            self.trainer.fit(network.module, plan.round, hooks, density=present)
        trained = network.read()
        if self.hyper.largest == "weights":
            masks = self.chosen(trained)
            pruned = masked(trained, masks)
            return ClientState(self.effective(pruned)), pruned, masks
        change = {name: trained[name] - start[name] for name in self.names}
        masks = self.chosen(change)
        upload = {name: change.get(name, trained[name]) for name in trained}
        model = {n: start[n] + change[n] * masks[n] if n in change else trained[n] for n in trained}
        return ClientState(self.effective(model)), upload, masks


SparsyFed = register(
    "sparsyfed",
    "Weights to a power, pruned to the largest after training",
    "Guastella et al., ICLR 2025",
    SparsyFedServer,
    SparsyFedClient,
    Hyper,
    deployed="received",
    one_model=True,
)

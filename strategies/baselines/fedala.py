"""FedALA: each client learns, entry by entry, how much of the global model it takes.

Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI
2023 (https://arxiv.org/abs/2212.01197). Symbols: Θ → the received model; Θ_i → the client's model after its last
training; W_i → its weights in [0, 1] for the last p layers, 1 at first; Θ̂ → what it trains from.

Θ̂ = Θ_i + (Θ - Θ_i)·W_i in the last p layers, and Θ below. W_i is learned on a share s of the training part, with
everything else frozen: W_i ← clip(W_i - η·∇L(Θ̂)·(Θ - Θ_i), 0, 1) and Θ̂ anew, after each batch; the first time for
epochs until the loss has converged, later for one epoch a round. Then Θ̂ is trained for E epochs, uploaded, and averaged
as in FedAvg. In a client's first round Θ̂ = Θ.

*Received* is Θ̂ with the W_i of the last training; *trained* is after all steps. A deployed client predicts with
Θ_i of its last training, which is *kept*.

Deviations: the paper's number is of Θ̂ after W_i was learned and before training, for which *received* would have to
train; only clients that take part learn W_i (the authors' code has all of them do so in each round, and overwrites
their Θ_i); p counts layers, with their norms and biases, where the code counts tensors and means one layer by two;
the examples are drawn anew in each round without replacement, where the code takes a window of them in their order;
the loss that has to converge is the epoch's mean, in the code its last batch's; its standard deviation over ten epochs
is below ``threshold`` after more than ten, and at the latest after ``start-epochs``, where the code has no limit.
W_i is learned in training mode, as in the code, without ``augment``. Statistics of norms are Θ's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from pydantic import Field

from sepal.config import Settings
from sepal.layout import layers, trained
from sepal.method import ClientBase, Payload, Plan, Predictor, Weights
from sepal.rng import derive
from sepal.strategies.baselines.fedavg import FedAvgServer
from sepal.strategies.registration import register
from sepal.training.batches import shuffled, smallest_batch
from sepal.training.columns import read_batches

WINDOW = 10  # epochs over which the loss has to have converged


class Hyper(Settings):
    """FedALA's keys. The first four defaults are the authors'."""

    layers: int = Field(1, ge=0, description="p, number of last layers whose entries are mixed; 0 is FedAvg")
    share: float = Field(0.8, gt=0, le=1, description="s, share of the training part on which the mixture is learned")
    rate: float = Field(1.0, ge=0, description="η, rate of the mixture's weights; 0 is FedAvg")
    threshold: float = Field(0.1, ge=0, description="standard deviation of ten epochs' losses at which learning ends")
    start_epochs: int = Field(50, ge=1, description="epochs, at most, in which a client first learns its mixture")


@dataclass(frozen=True)
class ClientState:
    """A client's state, float32 by name.

    Attributes:
        model: Θ_i; empty before the first training.
        mixture: W_i; empty before it was learned for the first time.
    """

    model: Weights = field(default_factory=dict)
    mixture: Weights = field(default_factory=dict)


def mixed(own: torch.Tensor, received: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return Θ_i + (Θ - Θ_i)·W; where W is 1, Θ to the bit."""
    return torch.where(weights == 1, received, own + (received - own) * weights)


def converged(losses: Sequence[float], threshold: float) -> bool:
    """Return whether the losses of the last epochs are nearly the same."""
    return len(losses) > WINDOW and float(np.std(losses[-WINDOW:])) < threshold


class FedALAClient(ClientBase[ClientState]):
    """Mixes what it receives into its own model, and trains the mixture."""

    dense_exchange = True

    def init(self) -> ClientState:
        """Start without a model."""
        return ClientState()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return Θ_i; empty before it was trained."""
        return state.model

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return a predictor of the mixture, or without a download of the client's own model."""
        if download is None:
            return super().predictor(state, None, plan)
        received = self.received_weights(state, download, plan)
        return self.trainer.predictor(self._mixture(state, received, state.mixture))

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Learn the mixture, then train it for E epochs."""
        received, mixture = self.received_weights(state, download, plan), state.mixture
        if state.model and self.hyper.layers:
            mixture, losses = self.learned(state, received, plan.round)
            self.trainer.report("ala-epochs", len(losses))
        return ClientState(self.fit(self._mixture(state, received, mixture), plan), mixture)

    def learned(self, state: ClientState, received: Weights, round: int) -> tuple[Weights, list[float]]:
        """Return W_i after learning, and the mean loss of each epoch."""
        network, device = self.trainer.network("ala"), self.trainer.device
        network.load(received)
        module = network.module.train()
        parameters = dict(module.named_parameters())
        names = [p.name for p in trained(layers(self.layout, self.hyper.layers)[1])]
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in names)
        own, other = ({n: torch.tensor(model[n], device=device) for n in names} for model in (state.model, received))
        weights = {n: torch.ones_like(own[n]) for n in names}
        weights |= {n: torch.tensor(array, device=device) for n, array in state.mixture.items()}
        places, smallest = self._sample(round), smallest_batch(module)
        epochs, losses, examples = 1 if state.mixture else self.hyper.start_epochs, list[float](), 0
        with self.trainer.randomness(round, "ala"):
            for epoch in range(1, epochs + 1):
                rng = derive(self.setup.config.seed, "ala-batches", self.trainer.client.name, round, epoch)
                batches = shuffled(len(places), self.setup.config.batch_size, smallest, rng)
                total, count = torch.zeros((), device=device), 0
                for x, y in read_batches(self.trainer.x, self.trainer.y, [places[rows] for rows in batches]):
                    with torch.no_grad():
                        for name in names:
                            parameters[name].copy_(mixed(own[name], other[name], weights[name]))
                    loss = self.trainer.loss_of(module, x, y)
                    gradients = torch.autograd.grad(loss, [parameters[n] for n in names], allow_unused=True)
                    for name, gradient in zip(names, gradients, strict=True):
                        if gradient is not None:
                            step = self.hyper.rate * gradient * (other[name] - own[name])
                            weights[name] = (weights[name] - step).clamp(0, 1)
                    total, count = total + loss.detach() * len(y), count + len(y)
                if not count:
                    break
                examples += count
                losses.append(float(total) / count)
                if not state.mixture and converged(losses, self.hyper.threshold):
                    break
        self.trainer.account(module, examples)
        return {name: tensor.cpu().numpy() for name, tensor in weights.items()}, losses

    def _sample(self, round: int) -> torch.Tensor:
        """Return the places of ⌈s·n⌉ examples, at least a batch or all, int64."""
        count = len(self.trainer.y)
        size = min(max(math.ceil(self.hyper.share * count), self.setup.config.batch_size), count)
        rng = derive(self.setup.config.seed, "ala-sample", self.trainer.client.name, round)
        return torch.from_numpy(rng.permutation(count)[:size])

    def _mixture(self, state: ClientState, received: Weights, mixture: Weights) -> Weights:
        """Return Θ̂."""
        entries = {
            name: mixed(torch.tensor(state.model[name]), torch.tensor(received[name]), torch.tensor(weights)).numpy()
            for name, weights in mixture.items()
        }
        return {**received, **entries}


FedALA = register(
    "fedala",
    "Each entry of the last layers mixed from the global model and the client's own",
    "Zhang et al., AAAI 2023",
    FedAvgServer,
    FedALAClient,
    Hyper,
)

"""pFedHN: a hypernetwork on the server generates each client's model.

Shamsian, Navon, Fetaya, Chechik, "Personalized Federated Learning using Hypernetworks", ICML 2021, Algorithm 1
(https://arxiv.org/abs/2103.04628), and the authors' code. θ_i = h(v_i; φ): an MLP on the client's embedding v_i, then
one linear head for each tensor. Client i trains θ_i and returns Δθ_i = θ_i - θ̃_i; the server takes a step of SGD on φ
and all embeddings along (∇θ_i)ᵀΔθ_i. *Received* is θ_i, which the paper tests; *trained* is θ̃_i.
A deployed client predicts with θ_i from the newest hypernetwork; *kept* is θ̃_i of its last training.

Deviations:

* There is one step per upload. If several clients upload in a round, their steps follow in the order of names, all
  with gradients at the state from which the models were generated. The authors sample one client per step.
* The client trains whole passes over its data, and their number comes closest to ``pfedhn.steps`` batches; the
  authors draw a batch for each step. Its learning rate, momentum and decay are the method's own keys; the run's
  ``optimizer`` and ``lr-decay`` apply to it as well.
* Statistics of normalisation layers are not generated: they are the client's own and start at W_0's.
* An embedding is drawn from the seed and the client's name when it joins. Momentum and decay move all embeddings in
  each step, as in the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch.linalg import vector_norm
from torch.nn import functional

from sepal.config import NotNegativeOrAuto, Settings, auto
from sepal.errors import ConfigError, ModelError, RoundError
from sepal.layout import Layout, trained
from sepal.method import (
    ClientBase,
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
    dense,
    dense_schema,
)
from sepal.rng import derive
from sepal.strategies.baselines.fedper import ClientState
from sepal.strategies.registration import register
from sepal.training.hooks import ClipGradients
from sepal.training.optimizers import ParameterGroup

Tensors: TypeAlias = dict[str, torch.Tensor]
EMBEDDING = "embedding/"


class Hyper(Settings):
    """pFedHN's keys. Defaults are those of the authors' code, except the two learning rates."""

    embedding: int = Field(0, ge=0, description="size of a client's embedding; 0: ⌊1 + clients/4⌋")
    hidden: int = Field(100, ge=1, description="units per hidden layer")
    depth: int = Field(3, ge=0, description="number of hidden layers after the first")
    rate: NotNegativeOrAuto = auto(0.01, "learning rate of the hypernetwork and the embeddings")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the hypernetwork's SGD")
    decay: float = Field(0.001, ge=0, description="weight decay of the hypernetwork's SGD")
    clip: float = Field(50.0, gt=0, description="maximum gradient norm, for the hypernetwork and for the client")
    steps: int = Field(50, ge=0, description="local steps of a client, rounded to whole epochs; 0: local-epochs")
    inner_rate: float = Field(0.0, ge=0, description="learning rate for local training; 0: lr. The authors take 0.005")
    inner_momentum: float = Field(0.9, ge=0, lt=1, description="momentum for local training")
    inner_decay: float = Field(5e-5, ge=0, description="weight decay for local training")
    most_mib: int = Field(1024, ge=1, description="maximum size of the hypernetwork in MiB; a larger one is refused")


@dataclass(frozen=True)
class ServerState:
    """The hypernetwork.

    Attributes:
        weights: φ and embeddings, float32: ``mlp.N.weight`` and ``.bias``, for each tensor NAME ``head.NAME.weight``
            (entries, hidden) and ``head.NAME.bias``, and ``embedding/CLIENT``.
        momentum: Momentum by the same names; empty before the first step.
    """

    weights: Weights
    momentum: Weights = field(default_factory=dict)


class Generated:
    """What server and client share: the tensors that are generated."""

    setup: RunSetup

    def shared(self) -> Layout:
        """Return the model's trained tensors."""
        return trained(self.setup.layout)


class PFedHNServer(Generated, ServerBase[ServerState]):
    """Keeps the hypernetwork and the embeddings."""

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        self.shapes = shapes(self.shared(), self.hyper, setup.config.clients)
        size = 4 * sum(math.prod(shape) for shape in self.shapes.values())
        if size > self.hyper.most_mib << 20:
            expected = f"at most {self.hyper.most_mib} MiB of weights (pfedhn.most-mib, or fewer pfedhn.hidden)"
            raise ModelError("hypernetwork", expected, f"{size / 2**20:.0f}")

    def init(self) -> ServerState:
        """Start as torch's linear layers do: uniform in ±1/√inputs."""
        weights = {}
        for name, shape in self.shapes.items():
            inputs = self.shapes[f"{name.rpartition('.')[0]}.weight"][1]
            rng = derive(self.setup.config.seed, "pfedhn", name)
            weights[name] = (rng.uniform(-1, 1, shape) / math.sqrt(inputs)).astype(np.float32)
        return ServerState(weights)

    def joined(self, state: ServerState, clients: Sequence[ClientInfo]) -> ServerState:
        """Return the state with first embeddings, N(0, 1), for new clients."""
        new = {EMBEDDING + client.name: self.first(client.name) for client in clients}
        return replace(state, weights={**state.weights, **{n: a for n, a in new.items() if n not in state.weights}})

    def evicted(self, state: ServerState, names: Sequence[str]) -> ServerState:
        """Return the state without the embeddings of evicted clients."""
        gone = {EMBEDDING + name for name in names}
        remaining = ({n: a for n, a in part.items() if n not in gone} for part in (state.weights, state.momentum))
        return ServerState(*remaining)

    def first(self, client: str) -> npt.NDArray[np.float32]:
        """Return a client's first embedding."""
        rng = derive(self.setup.config.seed, "embedding", client)
        return rng.standard_normal(self.shapes["mlp.0.weight"][1], np.float32)

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return θ_i."""
        state = self.joined(state, [client])
        with torch.no_grad():
            model = generate(tensors(state.weights), client.name, self.shared())
        return Payload(dense({name: value.numpy() for name, value in model.items()}, self.shared(), self.coding))

    def newcomer(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the same, from the first embedding."""
        return self.download(state, client, plan)

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return nothing: uploads are differences."""
        return {}

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Take a step for each upload.

        Raises:
            RoundError: The weights after it are not finite.
        """
        state = self.joined(state, uploads.clients)
        start = tensors(state.weights)
        after = {name: value.clone() for name, value in start.items()}
        momentum = {name: torch.from_numpy(value.copy()) for name, value in state.momentum.items()}
        norms = []
        for value in start.values():
            value.requires_grad_()
        for upload in uploads:
            model = generate(start, upload.client.name, self.shared())
            change = [torch.from_numpy(upload.payload.tensors[name].dense()) for name in model]
            slopes = torch.autograd.grad(list(model.values()), list(start.values()), change, allow_unused=True)
            gradient = {
                n: torch.zeros_like(w) if g is None else g for (n, w), g in zip(start.items(), slopes, strict=True)
            }
            norms.append(math.hypot(*(float(vector_norm(g, dtype=torch.float64)) for g in gradient.values())))
            self._step(after, momentum, gradient, min(1.0, self.hyper.clip / (norms[-1] + 1e-6)))
        if not all(value.isfinite().all() for value in (*after.values(), *momentum.values())):
            got = f"norms up to {np.max(norms):g}"
            raise RoundError(f"round {plan.round}: the hypernetwork's step", "finite weights (a smaller rate)", got)
        metrics = {"hypernetwork.norm": float(np.mean(norms))} if norms else {}
        return ServerState(*({n: w.numpy() for n, w in part.items()} for part in (after, momentum))), metrics

    def _step(self, weights: Tensors, momentum: Tensors, gradient: Tensors, scale: float) -> None:
        """Take an SGD step in place, as torch does: decay is added to the clipped gradient, then momentum."""
        for name, weight in weights.items():
            slope = gradient[name].mul_(scale).add_(weight, alpha=self.hyper.decay)
            momentum[name] = momentum[name].mul_(self.hyper.momentum).add_(slope) if name in momentum else slope.clone()
            weight.sub_(momentum[name], alpha=self.hyper.rate)

    def model(self, state: ServerState) -> Weights:
        """Return the hypernetwork and the embeddings: all that the server learns."""
        return state.weights


def shapes(layout: Layout, hyper: Hyper, clients: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of φ by name.

    Raises:
        ConfigError: The embedding's size depends on the number of clients, which is not given.
    """
    if not hyper.embedding and not clients:
        raise ConfigError("pfedhn.embedding", "a size, where the run does not say how many clients there are", 0)
    inputs = hyper.embedding or 1 + clients // 4
    by_name: dict[str, tuple[int, ...]] = {}
    for number in range(hyper.depth + 1):
        by_name[f"mlp.{number}.weight"] = (hyper.hidden, hyper.hidden if number else inputs)
        by_name[f"mlp.{number}.bias"] = (hyper.hidden,)
    for p in layout:
        by_name[f"head.{p.name}.weight"], by_name[f"head.{p.name}.bias"] = (p.size, hyper.hidden), (p.size,)
    return by_name


def tensors(weights: Weights) -> Tensors:
    """Return tensors that share the arrays' memory."""
    return {name: torch.from_numpy(value) for name, value in weights.items()}


def generate(weights: Mapping[str, torch.Tensor], client: str, layout: Layout) -> Tensors:
    """Return the client's tensors: linear layers with ReLU between, then a head for each."""
    x, number = weights[EMBEDDING + client], 0
    while f"mlp.{number}.weight" in weights:
        x = functional.relu(x) if number else x
        x = functional.linear(x, weights[f"mlp.{number}.weight"], weights[f"mlp.{number}.bias"])
        number += 1
    heads = {p: functional.linear(x, weights[f"head.{p.name}.weight"], weights[f"head.{p.name}.bias"]) for p in layout}
    return {p.name: flat.view(p.shape) for p, flat in heads.items()}


class PFedHNClient(Generated, ClientBase[ClientState]):
    """Trains the generated model."""

    def init(self) -> ClientState:
        """Start with W_0's statistics."""
        return ClientState(dict(self.setup.weights))

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the model of the last training."""
        return state.model if state.rounds else {}

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit the generated tensors, dense, in every round."""
        return dense_schema(self.shared())

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return θ_i, with the client's own statistics."""
        return {**state.model, **{name: tensor.dense() for name, tensor in download.tensors.items()}}

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train from θ_i."""
        hyper, network = self.hyper, self.trainer.network()
        network.load(self.received_weights(state, download, plan))
        batches = math.ceil(len(self.trainer.y) / self.setup.config.batch_size)
        epochs = max(1, round(hyper.steps / batches)) if hyper.steps else None
        inner_settings = (hyper.inner_rate or None, hyper.inner_momentum, hyper.inner_decay)
        group = ParameterGroup(list(network.module.parameters()), *inner_settings)
        hooks = Hooks(before_step=ClipGradients(float(hyper.clip)))
        self.trainer.fit(network.module, plan.round, hooks, epochs=epochs, parameters=[group])
        return ClientState(network.read(), state.rounds + 1)

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Train, and return Δθ_i."""
        after, start = self.adapt(state, download, plan), self.received_weights(state, download, plan)
        change = {p.name: start[p.name] - after.model[p.name] for p in self.shared()}
        return after, Payload(dense(change, self.shared(), self.coding))


PFedHN = register(
    "pfedhn",
    "Each client's model from a hypernetwork on the server",
    "Shamsian et al., ICML 2021",
    PFedHNServer,
    PFedHNClient,
    Hyper,
    deployed="received",
    starts_from="a hypernetwork of its own",
    defaults={"clip-gradient": 0.0},  # it has a clip of its own
)

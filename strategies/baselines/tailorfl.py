"""TailorFL: each client keeps the channels that matter to its data, and shares more of them with similar clients.

Deng, Chen, Ren, Zhang, Lyu, Ma, Zhang, "TailorFL: Towards Efficient Personalized Federated Learning Under System and
Data Heterogeneity", SenSys 2022; details follow the code of Pa3dFL's authors for their comparison (FLGo). In
round 1 every client trains an importance of each channel of W_0, with fixed weights, on its loss + λ·mean(importance²),
clipped to [0, 1]. It keeps as many channels as its width allows: in the first layers those of greatest norm, the same
for all clients; in the last share ``tailorfl.personal`` of the layers those of greatest importance. The similarity of
two clients is the correlation of their importances in the last hidden layer. From round 2 on clients train their part
of the model. Weights and biases are divided by the width on the way down and multiplied by it on the way up. The server
averages each entry over its holders, weighted by n_i/width, and moves filters: in the first layers to the greatest
norms again, in the last ones a few channels of each client towards those that it should share with similar clients
(:func:`~sepal.strategies.baselines.tailorfl_filters.tuned`).

Positions are never sent: the client sends its importances once, and the shapes of its model depend on the number of
channels only. A deployed client predicts with its part of the server's model, which is *received*.

Deviations:

* In round 1 a client holds the whole model, whatever its capacity, as in that code.
* Importances are trained for whole passes over the data, whose number comes closest to ``tailorfl.steps`` batches.
* A client that joins after round 1 gets the channels of greatest norm in all layers.
* Norms are not scaled. Layers must follow one another (:mod:`sepal.models.channels`).
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from pydantic import Field
from torch import nn

from sepal.config import Mark, marks
from sepal.layout import Role
from sepal.masks.cuts import ChannelGroup, Cut, Index, windows
from sepal.method import (
    ClientInfo,
    Hooks,
    Metrics,
    Payload,
    Plan,
    Predictor,
    Schema,
    ServerBase,
    Upload,
    Uploads,
    Weights,
    dense,
    dense_schema,
)
from sepal.method.means import Part, mean_of_parts
from sepal.strategies.baselines.tailorfl_filters import correlations, norms, top, tuned
from sepal.strategies.baselines.widths import ClientState, Cuts, Dense, WidthClient, WidthSettings
from sepal.strategies.registration import register
from sepal.training.capturable import Capturable, Objective
from sepal.wire.tensors import TensorSpec, whole

Filters = Mapping[str, Index]  # by group: the units of channels that a client keeps, increasing
FiltersByClient = Mapping[str, Filters]  # by client


class Hyper(WidthSettings):
    """TailorFL's keys. Defaults are those of the cited code."""

    widths: str = Field(
        ",".join(f"{step / 16:g}" for step in range(1, 17)),
        description="model widths; each client gets the largest with width² ≤ capacity",
        json_schema_extra=marks(Mark.WORDS),
    )
    personal: float = Field(0.5, ge=0, le=1, description="share of layers, from the last, with client-specific filters")
    lambda_: float = Field(0.5, ge=0, description="λ, weight of the penalty on importances")
    steps: int = Field(10, ge=1, description="batches for training importances, rounded to whole epochs")
    alpha: float = Field(0.05, ge=0, le=1, description="share of a layer's filters that may be exchanged per round")


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        weights: The full model, float32 by name.
        filters: By client and group, the units of channels that it keeps; without clients that joined after round 1.
        importance: By client, importances of the last hidden layer, float32.
    """

    weights: Weights
    filters: FiltersByClient = field(default_factory=dict)
    importance: Weights = field(default_factory=dict)


class Tailored(Cuts):
    """What server and client share: the sizes of a client's model, and which layers are personal."""

    def cut(self, width: float, round: int) -> Cut:
        """Return a cut with the sizes of ``width``, rounded down; only the server knows which channels are kept."""
        return Cut(self.setup.layout, self.coupling, windows(self.coupling, width, rounding="down"))

    @property
    def personal(self) -> tuple[ChannelGroup, ...]:
        """The groups whose filters are chosen by importance; the output layer counts as a layer."""
        layers = len(self.coupling) + 1
        return self.coupling[int(round(layers * (1 - self.setup.hyper.personal), 9)) :]

    def scaled(self, weights: Weights, factor: float) -> Dense:
        """Return ``weights`` with weights and biases times ``factor``."""
        roles, by = {p.name: p.role for p in self.setup.layout}, np.float32(factor)
        return {n: w * by if roles[n] in (Role.WEIGHT, Role.BIAS) else np.array(w) for n, w in weights.items()}


class TailorServer(Tailored, ServerBase[ServerState]):
    """Chooses filters, and averages each entry over the clients that hold it."""

    uses_capacity = True

    def init(self) -> ServerState:
        """Start from W_0, without filters."""
        self.check()
        return ServerState(dict(self.setup.weights))

    def plan(self, round: int) -> Plan:
        """Ask all clients for importances in round 1."""
        return Plan(1, "importance", "all") if round == 1 else Plan(round, "train")

    def filters(self, state: ServerState, client: ClientInfo) -> Filters:
        """Return the filters of a client; those of greatest norm if the client is unknown."""
        return state.filters.get(client.name) or self.chosen(state.weights, self.width(client), {})

    def chosen(self, weights: Weights, width: float, importance: Weights) -> Filters:
        """Return filters of greatest importance in the groups that ``importance`` names, of greatest norm elsewhere."""
        filters = {}
        for group in self.coupling:
            score = norms(group, weights)
            if group.name in importance:
                score = np.square(importance[group.name], dtype=np.float64)
            units = score.reshape(-1, group.unit).sum(1)
            filters[group.name] = top(units, max(1, math.floor(round(width * len(units), 9))))
        return filters

    def own_cut(self, state: ServerState, client: ClientInfo) -> Cut:
        """Return the cut of a client's filters."""
        units = {group.name: group.unit for group in self.coupling}
        kept = {
            name: (index[:, None] * units[name] + np.arange(units[name])).reshape(-1)
            for name, index in self.filters(state, client).items()
        }
        return Cut(self.layout, self.coupling, kept)

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the client's part, weights and biases divided by its width; nothing in round 1."""
        if plan.phase == "importance":
            return Payload()
        cut = self.own_cut(state, client)
        return Payload(dense(self.scaled(cut.take(state.weights), 1 / self.width(client)), cut.layout, self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit importances in round 1, then tensors of the client's width."""
        self.width(client)  # refuses a client that can hold no width
        if plan.phase == "importance":
            sizes = {f"{group.name}/importance": group.size for group in self.personal}
            return Schema({name: TensorSpec((size,), min_count=size) for name, size in sizes.items()})
        return dense_schema(self.client_layout(self.width(client), plan.round))

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Choose filters from importances; or average, and move filters."""
        if plan.phase == "importance":
            filters, last = dict(state.filters), dict(state.importance)
            for upload in uploads:
                name, tensors = upload.client.name, upload.payload.tensors
                importance = {group.name: tensors[f"{group.name}/importance"].dense() for group in self.personal}
                filters[name] = self.chosen(state.weights, self.width(upload.client), importance)
                if importance:
                    last[name] = importance[self.coupling[-1].name]
            return replace(state, filters=filters, importance=last), {}

        def weigh(upload: Upload) -> float:
            return upload.client.examples / self.width(upload.client)

        mean = mean_of_parts(uploads, state.weights, lambda upload: self.tailored(state, upload), weigh)
        weights = mean.over(state.weights)
        return replace(state, weights=weights, filters=self.tuned_filters(state, weights)), {}

    def evicted(self, state: ServerState, names: Sequence[str]) -> ServerState:
        """Return the state without evicted clients, so that no client shares filters with them."""
        filters = {name: chosen for name, chosen in state.filters.items() if name not in names}
        importance = {name: array for name, array in state.importance.items() if name not in names}
        return replace(state, filters=filters, importance=importance)

    def tailored(self, state: ServerState, upload: Upload) -> dict[str, Part]:
        """Return where an upload's tensors lie in the full ones, and their values as the server's."""
        cut = self.own_cut(state, upload.client)
        values = {name: tensor.dense() for name, tensor in upload.payload.tensors.items()}
        scaled = self.scaled(values, self.width(upload.client))
        return {p.name: (cut.mesh(p.name), scaled[p.name]) for p in cut.layout}

    def tuned_filters(self, state: ServerState, weights: Weights) -> FiltersByClient:
        """Return all clients' filters for the next round."""
        names = sorted(state.filters)
        after: dict[str, dict[str, Index]] = {name: {} for name in names}
        similar = correlations([state.importance[name] for name in names]) if self.personal else np.eye(len(names))
        for group in self.coupling:
            old = [state.filters[name][group.name] for name in names]
            units = group.size // group.unit
            if group in self.personal:
                new = tuned(old, similar, units, self.hyper.alpha)
            else:
                score = norms(group, weights).reshape(-1, group.unit).sum(1)
                new = [top(score, len(chosen)) for chosen in old]
            for name, chosen in zip(names, new, strict=True):
                after[name][group.name] = chosen
        return after

    def model(self, state: ServerState) -> Weights:
        """Return the full model."""
        return state.weights


class Importance(nn.Module):
    """A model with frozen weights, each hidden layer's outputs times an importance by channel."""

    def __init__(self, model: nn.Module, groups: tuple[ChannelGroup, ...]) -> None:
        """Start with importances of 1.

        Args:
            model: The model, whose hidden layers get hooks.
            groups: The channel groups of its hidden layers.
        """
        super().__init__()
        self.model = model.requires_grad_(False)
        self.values = nn.ParameterList([nn.Parameter(torch.ones(group.size)) for group in groups])
        for i, group in enumerate(groups):  # by number: a move to a device may replace the parameters
            hook = lambda layer, x, out, i=i: weighed(out, self.values[i])  # noqa: E731
            model.get_submodule(group.name).register_forward_hook(hook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map a batch to logits."""
        logits: torch.Tensor = self.model(x)
        return logits


def weighed(out: torch.Tensor, importance: torch.Tensor) -> torch.Tensor:
    """Return a layer's outputs (batch, channels, …) times the importance of each channel."""
    product: torch.Tensor = out * importance.view(1, -1, *[1] * (out.dim() - 2))
    return product


@dataclass(frozen=True)
class PenalisedLoss(Capturable):
    """The loss plus λ times the mean square of the importances."""

    objective: Objective
    strength: float

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        values = list(typing.cast("Importance", module).values)
        entries = sum(value.numel() for value in values)
        penalty = torch.stack([value.square().sum() for value in values]).sum() / entries
        total: torch.Tensor = self.objective(module(x), y) + self.strength * penalty
        return total


@dataclass(frozen=True)
class Limit(Capturable):
    """Keeps importances in [0, 1]."""

    def __call__(self, module: nn.Module) -> None:
        """Limit them."""
        with torch.no_grad():
            for value in typing.cast("Importance", module).values:
                value.clamp_(0, 1)


class TailorClient(Tailored, WidthClient):
    """Sends importances of channels in round 1, then trains its part of the model."""

    def train(self, state: ClientState, download: Payload, plan: Plan) -> tuple[ClientState, Payload]:
        """Return importances in round 1, then the trained part."""
        if plan.phase != "importance":
            return super().train(state, download, plan)
        importances = self.importances(plan)
        return state, Payload({f"{name}/importance": whole(value, self.coding) for name, value in importances.items()})

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train the received part; do nothing in round 1."""
        return state if plan.phase == "importance" else super().adapt(state, download, plan)

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the received model (in round 1 the whole W_0), or without a download the client's own."""
        if download is not None and plan.phase == "importance":
            return self.trainer.predictor(self.setup.weights)
        return super().predictor(state, download, plan)

    def importances(self, plan: Plan) -> Dense:
        """Return the importance of each channel of the personal layers, float32 (channels,) by group."""
        network = self.trainer.network("tailorfl", lambda: Importance(self.setup.make(), self.coupling))
        start = {f"model.{name}": value for name, value in self.setup.weights.items()}
        ones = {f"values.{at}": np.ones(group.size, np.float32) for at, group in enumerate(self.coupling)}
        network.load({**ones, **start})
        values: list[nn.Parameter] = list(network.module.values)  # type: ignore[arg-type]
        batches = math.ceil(len(self.trainer.y) / self.setup.config.batch_size)
        epochs = max(1, round(self.hyper.steps / batches))
        if values:
            hooks = Hooks(PenalisedLoss(self.trainer.loss, self.hyper.lambda_), after_step=Limit())
            self.trainer.fit(network.module, plan.round, hooks, epochs=epochs, purpose="importance", parameters=values)
        importance = {g.name: v.detach().cpu().numpy().copy() for g, v in zip(self.coupling, values, strict=True)}
        return {group.name: importance[group.name] for group in self.personal}


TailorFL = register(
    "tailorfl",
    "Channels chosen by importance for each client, shared more between similar clients",
    "Deng et al., SenSys 2022",
    TailorServer,
    TailorClient,
    Hyper,
    deployed="received",
)

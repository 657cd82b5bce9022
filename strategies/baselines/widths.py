"""Clients that hold some of the channels: what HeteroFL, Fjord and FedRolex share.

A client holds the model at one of the method's widths: the largest whose square is at most its capacity, because
weights and multiply-adds are about proportional to the square of the width. A hidden layer keeps ⌈width·channels⌉ of
its channels and the output layer all of its rows. What a client does not hold is cut out of its module and never sent:
small dense tensors are exchanged. Both sides compute the cut from the client's capacity and the round. The server
averages each entry over the clients that hold it; an entry that no client holds keeps its value.

*Received* and *trained* are models of the client's own width: it cannot hold a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator
from torch import nn

from sepal.config import Mark, Settings, marks
from sepal.errors import ModelError
from sepal.layout import Layout
from sepal.masks.cuts import Coupling, Cut, parameters, windows
from sepal.method import (
    ClientBase,
    ClientInfo,
    Metrics,
    Payload,
    Plan,
    Predictor,
    RunSetup,
    Schema,
    Trainer,
    Upload,
    Uploads,
    Weights,
    dense,
    dense_schema,
)
from sepal.method.means import Part, mean_of_parts
from sepal.models import coupling, cut_model
from sepal.strategies.baselines.fedavg import FedAvgServer, ServerState
from sepal.training.network import Network

Dense = dict[str, npt.NDArray[np.float32]]
Place = tuple[Any, ...]


class WidthSettings(Settings):
    """The key that these methods share."""

    # HeteroFL, section 4 ("a" to "e"); FedRolex takes the same.
    widths: str = Field(
        "1,0.5,0.25,0.125,0.0625",
        description="model widths; each client gets the largest with width² ≤ capacity",
        json_schema_extra=marks(Mark.WORDS),
    )

    @field_validator("widths")
    @classmethod
    def _are_possible(cls, widths: str) -> str:
        if not all(0 < width <= 1 for width in numbers(widths)):
            raise ValueError("numbers in (0, 1] such as 1,0.5,0.25")
        return widths


def numbers(text: str) -> list[float]:
    """Return the numbers in a text such as ``1,0.5``, ascending; a single NaN if it cannot be parsed."""
    try:
        return sorted(float(part) for part in text.split(","))
    except ValueError:
        return [float("nan")]


def widest(capacity: float, widths: str) -> float:
    """Return the largest of ``widths`` whose square is at most ``capacity``.

    Raises:
        ModelError: There is none.
    """
    choices = numbers(widths)
    fitting = [width for width in choices if width**2 <= capacity * (1 + 1e-9)]
    if not fitting:
        least = f"at least {choices[0] ** 2:g}, the square of the smallest width {choices[0]:g}"
        raise ModelError("capacity", least, f"{capacity:g}")
    return fitting[-1]


class Cuts:
    """What server and client share: which entries a client of a width holds in a round."""

    setup: RunSetup

    @cached_property
    def coupling(self) -> Coupling:
        """The channel groups of the model."""
        return coupling(self.setup.make())

    def check(self) -> None:
        """Refuse a model that cannot be cut.

        Raises:
            ModelError: Its layers do not follow one another.
        """
        self.cut(1.0, 1)

    def first(self) -> Weights:
        """Return what the server starts from: W_0."""
        return self.setup.weights

    def shift(self, round: int) -> int:
        """Return where the window of kept channels begins; 0: the first ones."""
        return 0

    def cut(self, width: float, round: int) -> Cut:
        """Return the cut of a client of ``width``."""
        return Cut(self.setup.layout, self.coupling, windows(self.coupling, width, self.shift(round)))

    def client_layout(self, width: float, round: int) -> Layout:
        """Return the tensors that a client of ``width`` holds, in its shapes."""
        return self.cut(width, round).layout

    def client_weights(self, weights: Weights, width: float, round: int) -> Weights:
        """Return the client's part of the server's weights."""
        return self.cut(width, round).take(weights)

    def places(self, width: float, round: int) -> dict[str, tuple[str, Place]]:
        """Return the server's tensor, and the place in it, of each tensor of a client of ``width``."""
        cut = self.cut(width, round)
        return {p.name: (p.name, cut.mesh(p.name)) for p in cut.layout}

    def module(self, width: float) -> nn.Module:
        """Return a new module of ``width``."""
        return cut_model(self.setup.make, self.cut(width, 1))

    def width(self, client: ClientInfo) -> float:
        """Return the width of a client's model."""
        return widest(client.capacity, self.setup.hyper.widths)


class WidthServer(Cuts, FedAvgServer):
    """Keeps the full model and sends each client its part."""

    reads_uploads = "each client sends the part of its width, and an entry is a mean over those that hold it"
    uses_capacity = True

    def init(self) -> ServerState:
        """Start from the first weights."""
        self.check()
        return ServerState(dict(self.first()))

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the entries that the client holds in this round, as they are now."""
        width = self.width(client)
        weights = self.client_weights(state.weights, width, plan.round)
        return Payload(dense(weights, self.client_layout(width, plan.round), self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit tensors of the client's width, dense."""
        return dense_schema(self.client_layout(self.width(client), plan.round))

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the entries that the client holds in this round."""
        return self.client_weights(state.weights, self.width(client), plan.round)

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Average each entry over the clients that hold it."""
        mean = mean_of_parts(uploads, state.weights, lambda upload: self.parts(upload, plan), self.weigh)
        return ServerState(mean.over(state.weights)), {}

    def parts(self, upload: Upload, plan: Plan) -> Mapping[str, Part]:
        """Return where the tensors of an upload lie in the server's, and their values."""
        places, tensors = self.places(self.width(upload.client), plan.round), upload.payload.tensors
        return {whole: (mesh, tensors[name].dense()) for name, (whole, mesh) in places.items()}


@dataclass(frozen=True)
class ClientState:
    """The client's model after its last local epochs, float32 by name in the shapes of its width; empty before."""

    model: Weights = field(default_factory=dict)


class WidthClient(Cuts, ClientBase[ClientState]):
    """Trains for E epochs from the part that it received."""

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        super().__init__(setup, trainer)
        self.check()
        self.own_width = self.width(trainer.client)

    def init(self) -> ClientState:
        """Start without a model."""
        return ClientState()

    def personal_weights(self, state: ClientState) -> Weights:
        """Return the model after the last local epochs."""
        return state.model

    def sent(self, plan: Plan) -> Layout:
        """Return the tensors that are exchanged."""
        return self.client_layout(self.own_width, plan.round)

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit tensors of the client's width, dense; in round 1 nothing, because W_0 is known."""
        return Schema() if plan.round == 1 else dense_schema(self.sent(plan))

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the received model; in round 1 the client's part of the first weights."""
        if not download.tensors:
            return self.client_weights(self.first(), self.own_width, plan.round)
        return {name: tensor.dense() for name, tensor in download.tensors.items()}

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train for E epochs from the received model."""
        model = self.trained(self.received_weights(state, download, plan), plan)
        self.trainer.report("width", self.own_width)
        self.trainer.report("share", parameters(self.sent(plan)) / parameters(self.layout))
        return ClientState(model)

    def trained(self, start: Weights, plan: Plan) -> Dense:
        """Return the model after E epochs."""
        network = self.network(self.own_width)
        network.load(start)
        self.trainer.fit(network.module, plan.round, self.hooks(start, plan))
        return network.read()

    def upload(self, state: ClientState, plan: Plan) -> Payload:
        """Return the model as trained."""
        return Payload(dense(state.model, self.sent(plan), self.coding))

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the received model, or without a download the client's own."""
        weights = self.personal_weights(state) if download is None else self.received_weights(state, download, plan)
        return self.trainer.predictor(weights, *self.shape(self.own_width)) if weights else None

    def network(self, width: float) -> Network:
        """Return the network of ``width``; its shapes are the same wherever the window begins."""
        return self.trainer.network(*self.shape(width))

    def shape(self, width: float) -> tuple[str, Callable[[], nn.Module]]:
        """Return the use that names a network's shape, and what builds its module."""
        return f"width-{width:g}", lambda: self.module(width)

"""FedProto: clients exchange a mean of features for each class, and no model.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022
(https://arxiv.org/abs/2105.00243). Symbols: f(x) → the input of the last layer, F numbers; C_i^(j) → a client's mean of
f(x) over its training examples of class j; C̄^(j) → the server's mean of those.

Each client trains its own model on the task's loss + λ·distance(f(x), C̄^(y)), where classes without a C̄ contribute 0,
and then sends C_i^(j) of its classes: a mask of classes, F numbers for each, and each class's share of its examples.
The server takes the mean for each class over the clients that have it; a class that nobody sent keeps its prototype.
There is no *received* model. A deployed client predicts with its own model of its last training, which is *kept*.
Its accuracy on validation data by the nearest C̄ among all classes is reported as ``prototype-accuracy``.

Where paper and public code differ: ``weights = "examples"`` weighs a class by the client's examples of it, as the
paper, ``"equal"`` weighs clients alike, as the authors' code. (The paper's formula, as our notes have it and which was
not checked, also divides by the number of clients with the class, which shrinks prototypes; here it does not.)
``distance = "squared"`` is the code's, squared and averaged over the batch and F; ``"euclidean"`` is no mean over F.

Deviations: prototypes are computed after training, in evaluation mode, in one more pass, which is counted; in the code
each example's feature is that before its step in the last epoch. Classes that nobody sent in a round keep their
prototype, which two benchmarks drop. Models start at W_0, so that features of different clients mean the same at first,
which they do not in the paper. The server sees which classes a client has, their shares, and the features of a class of
one example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import nn

from sepal.config import NotNegativeOrAuto, Settings, auto
from sepal.layout import Layout
from sepal.method import (
    ClientInfo,
    Hooks,
    Metrics,
    Payload,
    Plan,
    Predictor,
    RunSetup,
    Schema,
    ServerBase,
    Uploads,
    Weights,
)
from sepal.strategies.baselines.fedper import ClientState, PartClient
from sepal.strategies.registration import register
from sepal.tasks.learning import LABELS
from sepal.training.capturable import Capturable, Objective
from sepal.training.columns import Batch, split
from sepal.training.features import LastLayer, checked_last_layer, last_layer
from sepal.wire.tensors import SparseTensor, Support, Tensors, TensorSpec, ValueCoding, members

NAME = "fedproto"
CLASSES, PROTOTYPES, SHARES = "classes", "prototypes", "shares"  # the tensors of a message

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Hyper(Settings):
    """FedProto's keys."""

    lam: NotNegativeOrAuto = auto(1.0, "λ, weight of the distance to the prototypes; 0 is Local", alias="lambda")
    distance: Literal["squared", "euclidean"] = Field(
        "squared", description="distance of features to a prototype: squared, the mean over the features; or euclidean"
    )
    weights: Literal["examples", "equal"] = Field(
        "examples", description="client's weight in a class's mean: its examples of the class, or 1"
    )

    def largest_message(self, setup: RunSetup) -> int:
        """Return the entries of all prototypes and shares, at least those of the model."""
        last = last_layer(setup.make(), setup.layout, NAME)
        return max(super().largest_message(setup), last.outputs * (last.features + 1))


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Attributes:
        prototypes: C̄, float32 (classes, F); 0 where there is none.
        classes: Which classes have one, bool (classes,).
    """

    prototypes: Rows = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    classes: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))


def rows(classes: Mask, features: int) -> npt.NDArray[np.int64]:
    """Return the flat positions of the classes' rows in (classes, features), int64, increasing."""
    return np.flatnonzero(np.repeat(classes, features)).astype(np.int64)


def message(
    classes: Mask, prototypes: Rows, coding: ValueCoding, shares: Rows | None = None
) -> dict[str, SparseTensor]:
    """Return the tensors of a message: a mask of classes, and the rows of those classes.

    Args:
        classes: bool (classes,).
        prototypes: float32 (classes, F); rows of other classes are not sent.
        coding: How values are encoded.
        shares: float32 (classes,), sent alike; None: there are none.
    """
    tensors = {CLASSES: members(classes)}
    sent = {PROTOTYPES: prototypes} if shares is None else {PROTOTYPES: prototypes, SHARES: shares}
    for name, array in sent.items():
        index = rows(classes, array.size // len(classes))
        tensors[name] = SparseTensor(array.shape, index, array.reshape(-1)[index], Support.DERIVED, coding)
    return tensors


def message_schema(last: LastLayer, shares: bool, least: int) -> Schema:
    """Return the schema of :func:`message`: rows of the classes in the mask, no more and no fewer.

    Args:
        last: The last layer.
        shares: Whether there are shares.
        least: Fewest classes.
    """

    def at(shape: tuple[int, ...]) -> Callable[[Tensors], TensorSpec]:
        def spec(tensors: Tensors) -> TensorSpec:
            index = rows(tensors[CLASSES].mask(), int(np.prod(shape[1:])))
            return TensorSpec(shape, Support.DERIVED, min_count=index.size, index=index)

        return spec

    shapes: dict[str, tuple[int, ...]] = {PROTOTYPES: (last.outputs, last.features)}
    if shares:
        shapes[SHARES] = (last.outputs,)
    mask = TensorSpec((last.outputs,), values=False, min_count=least)
    return Schema({CLASSES: mask, **{name: at(shape) for name, shape in shapes.items()}})


class NoModel:
    """The exchanged tensors of the model: none."""

    def shared(self) -> Layout:
        """Return no tensor."""
        return ()


class FedProtoServer(NoModel, ServerBase[ServerState]):
    """Averages each class's prototype over the clients that have the class."""

    reads_uploads = "which classes each client has"

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        self.last = checked_last_layer(setup.make(), setup.layout, setup.input_shape, NAME)

    def init(self) -> ServerState:
        """Start without prototypes."""
        shape = (self.last.outputs, self.last.features)
        return ServerState(np.zeros(shape, np.float32), np.zeros(shape[0], np.bool_))

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the prototypes that there are."""
        return Payload(message(state.classes, state.prototypes, self.coding))

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit the prototypes and shares of one class or more."""
        return message_schema(self.last, True, 1)

    def reference(self, state: ServerState, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the prototypes, towards which clients train; 0 for classes without one."""
        return {PROTOTYPES: state.prototypes}

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Update the prototypes of the classes that were sent."""
        sums, totals = np.zeros(state.prototypes.shape), np.zeros(len(state.classes))
        for upload in uploads:
            tensors = upload.payload.tensors
            weights = tensors[CLASSES].mask().astype(np.float64)
            if self.hyper.weights == "examples":  # a share above 1 would count more examples than the client has
                weights = upload.client.examples * np.clip(tensors[SHARES].dense().astype(np.float64), 0, 1)
            sums += weights[:, None] * tensors[PROTOTYPES].dense()
            totals += weights
        sent = totals > 0
        prototypes = np.divide(sums, totals[:, None], out=state.prototypes.astype(np.float64), where=sent[:, None])
        classes = state.classes | sent
        return ServerState(prototypes.astype(np.float32), classes), {"classes": int(classes.sum())}

    def model(self, state: ServerState) -> Weights:
        """Return no model."""
        return {}


@dataclass(frozen=True)
class NearPrototypes(Capturable):
    """The loss with the distance to the prototypes.

    Attributes:
        prototypes: float32 (classes, F).
        present: float32 (classes,), 1 where there is a prototype.
        last: The layer whose input is compared.
        objective: The task's mean loss.
        strength: λ.
        squared: Whether the distance is squared and averaged over the features.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ("prototypes", "present")
    FILLED: ClassVar[bool] = False  # the distance is a mean over the batch

    prototypes: torch.Tensor
    present: torch.Tensor
    last: LastLayer
    objective: Objective
    strength: float
    squared: bool

    def __call__(self, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        outputs, features = self.last.read(module, x)
        difference = features - self.prototypes[y]
        distance = difference.square().mean(1) if self.squared else torch.linalg.vector_norm(difference, dim=1)
        return self.objective(outputs, y) + self.strength * (distance * self.present[y]).mean()


class FedProtoClient(NoModel, PartClient):
    """Trains its own model towards the prototypes."""

    batched = False
    dense_exchange = False
    needs_of_task = (LABELS,)

    def download_schema(self, state: ClientState, plan: Plan) -> Schema:
        """Admit the prototypes of any classes; in round 1 nothing."""
        return Schema() if plan.round == 1 else message_schema(self._last(), False, 0)

    def received_weights(self, state: ClientState, download: Payload, plan: Plan) -> Weights:
        """Return the client's own model."""
        return state.model

    def predictor(self, state: ClientState, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the client's own model; None for a download, which contains no model."""
        return super().predictor(state, None, plan) if download is None else None

    def adapt(self, state: ClientState, download: Payload, plan: Plan) -> ClientState:
        """Train the own model for E epochs, towards the prototypes."""
        if not download.tensors:
            return ClientState(self.fit(state.model, plan), state.rounds + 1)
        classes, prototypes = download.tensors[CLASSES].mask(), download.tensors[PROTOTYPES].dense()
        device, hooks = self.trainer.device, Hooks()
        if self.hyper.lam:
            present = torch.tensor(classes, dtype=torch.float32, device=device)
            loss = NearPrototypes(
                torch.tensor(prototypes, device=device),
                present,
                self._last(),
                self.trainer.loss,
                float(self.hyper.lam),
                self.hyper.distance == "squared",
            )
            hooks = Hooks(loss)
        model = self.fit(state.model, plan, hooks)
        if classes.any() and len(self.trainer.y_validation):
            self.trainer.report("prototype-accuracy", self._accuracy(model, classes, prototypes))
        return ClientState(model, state.rounds + 1)

    def upload(self, state: ClientState, plan: Plan) -> Payload:
        """Return the prototypes of the client's classes, and the classes' shares."""
        last = self._last()
        sums, counts = np.zeros((last.outputs, last.features)), np.zeros(last.outputs)
        for features, y in self._features(state.model, split(self.trainer.x, self.trainer.y)):
            np.add.at(sums, y, features)
            np.add.at(counts, y, 1)
        means = np.divide(sums, counts[:, None], out=sums, where=counts[:, None] > 0).astype(np.float32)
        network = self.trainer.network(NAME)
        self.trainer.account(network.module.requires_grad_(False), len(self.trainer.y))
        shares = (counts / counts.sum()).astype(np.float32)
        return Payload(message(counts > 0, means, self.coding, shares))

    def _accuracy(self, model: Weights, classes: Mask, prototypes: Rows) -> float:
        """Return the share of validation examples whose nearest prototype is that of their class."""
        hits, candidates = 0, np.flatnonzero(classes)
        centres = prototypes[candidates].astype(np.float64)
        for features, y in self._features(model, split(self.trainer.x_validation, self.trainer.y_validation)):
            squares = np.square(centres).sum(1) - 2 * features @ centres.T
            hits += int((candidates[squares.argmin(1)] == y).sum())
        return hits / len(self.trainer.y_validation)

    def _features(self, model: Weights, batches: Iterator[Batch]) -> Iterator[tuple[Doubles, npt.NDArray[np.int64]]]:
        """Yield the features, float64 (n, F), and labels of each batch, in evaluation mode."""
        network, last = self.trainer.network(NAME), self._last()
        network.load(model)
        network.module.eval()
        with torch.no_grad():
            for x, y in batches:
                yield last.read(network.module, x)[1].cpu().numpy().astype(np.float64), y.cpu().numpy()

    def _last(self) -> LastLayer:
        """Return the layer whose input is the features."""
        return last_layer(self.trainer.network(NAME).module, self.layout, NAME)


FedProto = register(
    NAME,
    "Means of features for each class, and no model, between clients that keep theirs",
    "Tan et al., AAAI 2022",
    FedProtoServer,
    FedProtoClient,
    Hyper,
    no_received_model="prototypes of classes are sent, so there is no received model",
)

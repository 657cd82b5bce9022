"""The interface of a method: its record, and the protocols of its server and client algorithms.

A method is a pair of plain objects. The *server algorithm* composes each client's download and turns a state and
uploads into a new state. The *client algorithm* turns a state and a download into a new state and an upload. Neither
handles Flower, messages, files or retries; :class:`sepal.server.strategy.SepalStrategy` and the client host do. What
both must agree on (names, shapes, the meaning of a mask) is the method's contract, in its ``contract.py``.

States are frozen dataclasses of arrays, numbers, strings and mappings of these (:mod:`sepal.storage.serialize`), so
any method's state can be stored, digested and restored. All functions of an algorithm must be pure: the same arguments
give the same result, bit for bit. Resuming a run and the equality of engines depend on it.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from sepal.errors import ModelError
from sepal.protocol.layout import Layout
from sepal.wire.tensors import SparseTensor, Tensors, TensorSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sepal.config import RunConfig, Settings

Scalar: TypeAlias = int | float | str | bool
Weights: TypeAlias = Mapping[str, npt.NDArray[np.float32]]
Metrics: TypeAlias = Mapping[str, float]
Predictor: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"
SpecLike: TypeAlias = TensorSpec | Callable[[Mapping[str, SparseTensor]], TensorSpec]


class Kind(StrEnum):
    """The three kinds of message."""

    QUERY = "query"  # send the roster entry
    TRAIN = "train"  # train, store the new state, send an upload
    ADAPT = "adapt"  # train and evaluate; no upload, and the new state is stored only if the order says so


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows about a client: its roster entry.

    Attributes:
        name: The client's name; unlike Flower's node id, it never changes.
        examples: n_i, number of training examples.
        capacity: Share of the full model that the client can hold, in (0, 1].
        device: Where it trains: ``cpu`` or ``cuda``.
        data: Digest of its data, the same in all of a run; empty if it reports none.
    """

    name: str
    examples: int
    capacity: float = 1.0
    device: str = "cpu"
    data: str = ""


@dataclass(frozen=True)
class Payload:
    """The content of one message: tensors, and scalars such as a rate or a flag."""

    tensors: Tensors = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Schema:
    """What a receiver accepts.

    Attributes:
        tensors: Name to spec, in the order of the payload. A spec may be a function of the tensors decoded before it,
            for example if a mask in the same payload determines another tensor's support.
        scalars: Name to (type, minimum, maximum); both bounds are None for str and bool.
    """

    tensors: Mapping[str, SpecLike] = field(default_factory=dict)
    scalars: Mapping[str, tuple[type, float | None, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What happens in one round. Server and clients both receive it, so shapes and schedules may depend on it.

    Attributes:
        round: From 1; the closing round is the last training round plus 1.
        phase: The method's own name of the round's phase.
        who: ``sampled`` (the run's sampling decides), ``all`` (the whole roster) or ``none`` (no message is sent, and
            ``aggregate`` gets no upload).
        scalars: Numbers that every participant needs, such as a rate or a flag.
        novel: Whether the receiving client is a novel one, which never trained and joins in the closing round.
    """

    round: int
    phase: str = ""
    who: Literal["sampled", "all", "none"] = "sampled"
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    novel: bool = False


@dataclass(frozen=True)
class Upload:
    """One accepted upload and the client that sent it."""

    client: ClientInfo
    payload: Payload


@runtime_checkable
class Uploads(Protocol):
    """A round's accepted uploads in the order of client names, decoded one at a time; may be iterated repeatedly."""

    @property
    def clients(self) -> Sequence[ClientInfo]:
        """The clients that uploaded, sorted by name; does not decode any upload."""
        ...

    def __iter__(self) -> Iterator[Upload]: ...

    def __len__(self) -> int: ...


def _no_module() -> nn.Module:
    raise ModelError("model", "a task with the model's module (sepal.strategies.assembly.assemble)", "weights alone")


@dataclass(frozen=True)
class Task:
    """The arguments from which a method's server and client algorithms are built.

    Attributes:
        layout: The model's tensors: name, shape and role, in order.
        weights: W_0, float32 by name: the same on the server and on every client.
        config: The run's configuration.
        hyper: The method's own hyperparameters (its ``contract.py`` declares the type).
        make: Builds the model's module; its weights are not W_0.
        input_shape: Shape of one example.
        given: Names of the tensors whose values in W_0 the user's ``build`` has set; the others are drawn.
        frozen: Tensors that the user's model freezes, by name. They are in neither layout nor weights.
    """

    layout: Layout
    weights: Weights
    config: RunConfig
    hyper: Any
    make: Callable[[], nn.Module] = _no_module
    input_shape: tuple[int, ...] = ()
    given: frozenset[str] = frozenset()
    frozen: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    @property
    def start(self) -> dict[str, npt.NDArray[Any]]:
        """W_0 and the frozen tensors: what the server and all clients must have in common."""
        return {**self.weights, **self.frozen}


S = TypeVar("S")
C = TypeVar("C")


class ServerAlgorithm(Protocol[S]):
    """The server side of a method, with states of type ``S``."""

    def init(self) -> S:
        """Return the state before round 1."""
        ...

    def plan(self, round: int) -> Plan:
        """Return the plan of ``round``. It must depend on the number only, so that a resumed run has the same plan."""
        ...

    def download(self, state: S, client: ClientInfo, plan: Plan) -> Payload:
        """Return the payload for ``client``, relative to its last accepted upload.

        Must return the same payload until the client's upload is accepted; what was prepared for a client is kept in
        the state until then.
        """
        ...

    def newcomer(self, state: S, client: ClientInfo, plan: Plan) -> Payload:
        """Return the payload for a client without an accepted upload; the client starts from its ``init``."""
        ...

    def upload_schema(self, state: S, client: ClientInfo, plan: Plan) -> Schema:
        """Return the schema of ``client``'s upload. Support SAME refers to the download that it answers."""
        ...

    def aggregate(self, state: S, uploads: Uploads, plan: Plan) -> tuple[S, Metrics]:
        """Return the state after the round, and figures for metrics.jsonl. Sums should run in float64."""
        ...

    def model(self, state: S) -> Weights:
        """Return the global model, float32 by name; empty if the server has none."""
        ...


@runtime_checkable
class LearnsRoster(Protocol[S]):
    """A server algorithm that is told when clients join, for example to create an embedding for each."""

    def joined(self, state: S, clients: Sequence[ClientInfo]) -> S:
        """Return the state with new clients added. Called before round 1, and between rounds when clients join.

        Novel clients, which never train, are added before the closing round. Must be pure: a resumed run calls it
        again with the same clients, sorted by name.
        """
        ...


@runtime_checkable
class ForgetsEvicted(Protocol[S]):
    """A server algorithm that stores something about each client that other clients' downloads depend on."""

    def evicted(self, state: S, names: Sequence[str]) -> S:
        """Return the state without anything about the clients ``names``, sorted; some may be unknown.

        Called at the end of the round in which they were evicted, after ``aggregate``. Must be pure.
        """
        ...


@runtime_checkable
class Learns(Protocol):
    """A server algorithm that learns more than its model, such as a hypernetwork."""

    def learned(self, state: Any) -> Mapping[str, npt.NDArray[Any]]:
        """Return every array that the server learned, by name. Without this method, the model's tensors are used."""
        ...


class ClientAlgorithm(Protocol[C]):
    """The client side of a method, with states of type ``C``."""

    def init(self) -> C:
        """Return the state of a client that has not yet taken part."""
        ...

    def download_schema(self, state: C, plan: Plan) -> Schema:
        """Return the schema of the download in this round."""
        ...

    def train(self, state: C, download: Payload, plan: Plan) -> tuple[C, Payload]:
        """Train from ``download`` and return the new state and the upload."""
        ...

    def adapt(self, state: C, download: Payload, plan: Plan) -> C:
        """Train for evaluation, without an upload, and return the new state.

        The closing round delivers the last downloads this way, so an error residual or anything else that a later
        upload needs must be kept.
        """
        ...

    def predictor(self, state: C, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return a function from a batch to logits (batch, classes), or None if there is no model.

        With a download: the *received* model, before any local step. Without: the model that the client would use now.
        """
        ...


ServerFactory: TypeAlias = Callable[[Task], "ServerAlgorithm[Any]"]
ClientFactory: TypeAlias = Callable[[Task, Any], "ClientAlgorithm[Any]"]


@dataclass(frozen=True)
class Method:
    """The record of a method.

    Attributes:
        name: Value of the run-config key ``method``.
        title: A description in one line.
        source: Authors, venue, year.
        hyper: Frozen pydantic model of the method's own keys (``NAME.key`` in the run config).
        server: The server algorithm's class, or ``"module:object"``, so that a client does not import it.
        client: The client algorithm's class, or ``"module:object"``.
        defaults: Defaults of shared keys that differ for this method.
        received: Why the method has no received model; empty if it has one.
        uses_capacity: Whether clients with a capacity below 1 get a smaller model. If not, such clients are refused
            unless ``width`` makes the model of all clients small enough.
        deployed: View of the model that a user of a deployed client predicts with: ``kept`` (the client's own after
            its last training), ``received`` (the server's newest) or ``trained`` (fine-tuned from that).
        draws: What the method starts from if it is not W_0, such as new factors; empty if it is W_0.
        private: Phases (:attr:`Plan.phase`) whose uploads ``privacy.*`` clips and noises. Empty: the method refuses
            these keys.
    """

    name: str
    title: str
    source: str
    hyper: type[Settings]
    server: ServerFactory | str
    client: ClientFactory | str
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    received: str = ""
    uses_capacity: bool = False
    private: tuple[str, ...] = ()
    deployed: Literal["kept", "received", "trained"] = "kept"
    draws: str = ""

    @property
    def server_state(self) -> type:
        """Type of the server algorithm's state: the return annotation of its ``init``."""
        return _returned(resolve(self.server).init)

    @property
    def client_state(self) -> type:
        """Type of the client algorithm's state: the return annotation of its ``init``."""
        return _returned(resolve(self.client).init)

    def make_server(self, task: Task) -> ServerAlgorithm[Any]:
        """Return the server algorithm for ``task``."""
        factory: ServerFactory = resolve(self.server)
        return factory(task)

    def make_client(self, task: Task, trainer: Any) -> ClientAlgorithm[Any]:
        """Return the client algorithm for ``task``, over its own data."""
        factory: ClientFactory = resolve(self.client)
        return factory(task, trainer)


def _returned(function: Callable[..., Any]) -> type:
    found: type = typing.get_type_hints(function)["return"]
    return found


def resolve(reference: Any) -> Any:
    """Return the object that ``"package.module:object"`` names; any other argument is returned unchanged."""
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)

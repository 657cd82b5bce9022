"""The interface of a method: its record, and what its server and client algorithms take and return.

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
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from sepal.errors import ConfigError, ModelError
from sepal.protocol import capabilities
from sepal.protocol.layout import Layout
from sepal.protocol.learned import Reader
from sepal.protocol.tasks.builtin import BY_CLASS
from sepal.protocol.tasks.learning import LearningTask
from sepal.storage.serialize import SPARING
from sepal.wire.tensors import SparseTensor, Tensors, TensorSpec

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sepal.config import RunConfig, Settings
    from sepal.protocol.algorithms import ClientAlgorithm, ServerAlgorithm

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
        device: Kind of the device on which it trains: ``cpu``, ``cuda``, …; without a number.
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
        halvings: How often clients' learning rates are halved; above 0 where a round is repeated because clients
            diverged (:mod:`sepal.server.recovery`).
    """

    round: int
    phase: str = ""
    who: Literal["sampled", "all", "none"] = "sampled"
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    novel: bool = False
    halvings: int = field(default=0, metadata=SPARING)


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

    Server and clients of a process share W_0 and the frozen tensors. So these arrays are read-only: NumPy stops who
    writes there, also in a worker that has received them.

    Attributes:
        layout: The model's tensors: name, shape and role, in order.
        weights: W_0, float32 by name: the same on the server and on every client.
        config: The run's configuration.
        hyper: The method's own hyperparameters (its ``contract.py`` declares the type).
        make: Builds the model's module; its weights are not W_0.
        input_shape: Shape of one example.
        given: Names of the tensors whose values in W_0 the user's ``build`` has set; the others are drawn.
        frozen: Tensors that the user's model freezes, by name. They are in neither layout nor weights.
        learning: Targets, loss and metrics: what the run key ``task`` names.
    """

    layout: Layout
    weights: Weights
    config: RunConfig
    hyper: Any
    make: Callable[[], nn.Module] = _no_module
    input_shape: tuple[int, ...] = ()
    given: frozenset[str] = frozenset()
    frozen: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    learning: LearningTask = BY_CLASS

    def __post_init__(self) -> None:
        for array in self.start.values():
            array.flags.writeable = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()  # arrays are writable again once they are unpickled

    @property
    def start(self) -> dict[str, npt.NDArray[Any]]:
        """W_0 and the frozen tensors: what the server and all clients must have in common."""
        return {**self.weights, **self.frozen}


@dataclass(frozen=True)
class Compression:
    """How a dense exchange is compressed (:mod:`sepal.protocol.compression`).

    Attributes:
        keep: p, fraction of the entries that are sent, in both directions.
        ternary: Whether entries are sent as ±μ; if not, as values.
        cache: Past rounds whose updates the server keeps for clients that missed them.
    """

    keep: float = 0.1
    ternary: bool = True
    cache: int = 20


ServerFactory: TypeAlias = Callable[[Task], "ServerAlgorithm[Any]"]
ClientFactory: TypeAlias = Callable[[Task, Any], "ClientAlgorithm[Any]"]


@dataclass(frozen=True)
class Method:
    """The record of a method.

    What it can do beyond plain rounds (``private``, ``robust``, ``dense``, ``batched``, …) is what the classes of its
    algorithms claim (:mod:`sepal.protocol.capabilities`).

    Attributes:
        name: Value of the run-config key ``method``.
        title: A description in one line.
        source: Authors, venue, year.
        hyper: Frozen pydantic model of the method's own keys (``NAME.key`` in the run config).
        server: The server algorithm's class, or ``"module:object"``, so that a client does not import it.
        client: The client algorithm's class, or ``"module:object"``.
        defaults: Defaults of shared keys that differ for this method.
        received: Why the method has no received model; empty if it has one.
        deployed: View of the model that a user of a deployed client predicts with: ``kept`` (the client's own after
            its last training), ``received`` (the server's newest) or ``trained`` (fine-tuned from that).
        draws: What the method starts from if it is not W_0, such as new factors; empty if it is W_0.
        compression: Returns how its dense exchange is compressed, from its own keys. ``compress.*`` is then refused.
        learned: Readers of what it has learned of each client, by kind (:mod:`sepal.protocol.learned`).
        scheduled: Whether what it does in a round depends on the run-config key ``rounds``: such a run is not extended.
        needs: What it needs of a task besides its loss (:attr:`sepal.protocol.tasks.LearningTask.offers`). With a task
            that lacks it, the method is refused before the run.
        fixed: Shared keys that it cannot take another value of than their default, each with the reason.
    """

    name: str
    title: str
    source: str
    hyper: type[Settings]
    server: ServerFactory | str
    client: ClientFactory | str
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    received: str = ""
    deployed: Literal["kept", "received", "trained"] = "kept"
    draws: str = ""
    compression: Callable[[Any], Compression] | None = None
    learned: Mapping[str, Reader] = field(default_factory=dict)
    scheduled: bool = False
    needs: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict)

    @property
    def private(self) -> tuple[str, ...]:
        """Phases whose uploads ``privacy.*`` clips and noises; if there is none, the keys are refused."""
        return tuple(capabilities.PRIVATE.of(resolve(self.client)))

    @property
    def robust(self) -> bool:
        """Whether ``robust-mean`` applies; if not, the key is refused."""
        return bool(capabilities.ROBUST.of(resolve(self.server)))

    @property
    def dense(self) -> bool:
        """Whether ``compress.*`` applies; if not, the keys are refused."""
        both = capabilities.DENSE_CLIENT.of(resolve(self.client)) and capabilities.DENSE_SERVER.of(resolve(self.server))
        return bool(both) and self.compression is None

    @property
    def batched(self) -> bool:
        """Whether clients of one process may train at once (``engine.batch``)."""
        return bool(capabilities.BATCHED.of(resolve(self.client)))

    @property
    def uses_capacity(self) -> bool:
        """Whether clients with a capacity below 1 get a smaller model.

        If not, such clients are refused unless ``width`` makes the model of all clients small enough.
        """
        return bool(capabilities.CAPACITY.of(resolve(self.server)))

    @property
    def combination(self) -> str:
        """``"module:function"`` that combines the logits of a predictor's networks; empty: none is exported."""
        return str(capabilities.COMBINATION.of(resolve(self.client)))

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
    found: type | None = typing.get_type_hints(function).get("return")
    if found is None:
        expected = "a return annotation, the type of the state: def init(self) -> MyState"
        raise ConfigError("method", expected, f"{function.__module__}:{function.__qualname__} without one")
    return found


def resolve(reference: Any) -> Any:
    """Return the object that ``"package.module:object"`` names; what is no text, or empty, is returned unchanged."""
    if not isinstance(reference, str) or not reference:
        return reference
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)

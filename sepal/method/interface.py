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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy.typing as npt

from sepal.errors import ConfigError, ModelError
from sepal.layout import Layout, Parameter
from sepal.method import capabilities
from sepal.method.readers import Reader
from sepal.tasks.builtin import BY_CLASS
from sepal.tasks.learning import Task

if TYPE_CHECKING:
    from torch import nn

    from sepal.config import RunConfig, Settings
    from sepal.method.algorithms import ClientAlgorithm, ServerAlgorithm
from sepal.protocol.types import Scalar, Weights

A = TypeVar("A")


def _no_module() -> nn.Module:
    raise ModelError("model", "a task with the model's module (sepal.strategies.assembly.assemble)", "weights alone")


@dataclass(frozen=True)
class RunSetup:
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
        user_set: Names of the tensors whose values in W_0 the user's ``build`` has set; the others are drawn.
        frozen: Tensors that the user's model freezes, by name. They are in neither layout nor weights.
        task: Targets, loss and metrics: what the run key ``task`` names.
    """

    layout: Layout
    weights: Weights
    config: RunConfig
    hyper: Any
    make: Callable[[], nn.Module] = _no_module
    input_shape: tuple[int, ...] = ()
    user_set: frozenset[str] = frozenset()
    frozen: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    task: Task = BY_CLASS

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
    """How a dense exchange is compressed (:mod:`sepal.method.compression`).

    Attributes:
        keep: p, fraction of the entries that are sent, in both directions.
        ternary: Whether entries are sent as ±μ; if not, as values.
        cache: Past rounds whose updates the server keeps for clients that missed them.
        drawn: Whether the entries of a round are drawn from the run's seed, so that all send the same ones and no
            position is sent; if not, they are the largest.
    """

    keep: float = 0.1
    ternary: bool = True
    cache: int = 20
    drawn: bool = False


ServerFactory: TypeAlias = Callable[[RunSetup], "ServerAlgorithm[Any]"]
ClientFactory: TypeAlias = Callable[[RunSetup, Any], "ClientAlgorithm[Any]"]


@dataclass(frozen=True)
class Method:
    """The record of a method.

    What it can do beyond plain rounds (``private_phases``, ``robust``, ``dense``, ``batched``, …) is what the classes
    of its algorithms claim (:mod:`sepal.method.capabilities`); so are its limits (``scheduled``, ``needs_of_task``,
    ``fixed_keys``).

    Attributes:
        name: Value of the run-config key ``method``.
        title: A description in one line.
        source: Authors, venue, year.
        hyper: Frozen pydantic model of the method's own keys (``NAME.key`` in the run config).
        server: The server algorithm's class, or ``"module:object"``, so that a client does not import it.
        client: The client algorithm's class, or ``"module:object"``.
        defaults: Defaults of shared keys that differ for this method.
        no_received_model: Why the method has no received model; empty if it has one.
        deployed: View of the model that a user of a deployed client predicts with: ``kept`` (the client's own after
            its last training), ``received`` (the server's newest) or ``trained`` (fine-tuned from that).
        starts_from: What the method starts from if it is not W_0, such as new factors; empty if it is W_0.
        compression: Returns how its dense exchange is compressed, from its own keys. ``compress.*`` is then refused.
        learned: Readers of what it has learned of each client, by kind (:mod:`sepal.method.readers`).
        one_model: Whether the received model is the same for all clients, so that the server's files are enough for it.
        model_variant: Ending of the name of the built-in model that is its default, such as ``-bn``, where the data
            set's own default has such a variant; empty: the data set's own.
    """

    name: str
    title: str
    source: str
    hyper: type[Settings]
    server: ServerFactory | str
    client: ClientFactory | str
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    no_received_model: str = ""
    deployed: Literal["kept", "received", "trained"] = "kept"
    starts_from: str = ""
    compression: Callable[[Any], Compression] | None = None
    learned: Mapping[str, Reader] = field(default_factory=dict)
    one_model: bool = False
    model_variant: str = ""

    @property
    def private_phases(self) -> tuple[str, ...]:
        """Phases whose uploads ``privacy.*`` clips and noises; if there is none, the keys are refused."""
        return tuple(capabilities.PRIVATE.of(resolve(self.client)))

    @property
    def robust(self) -> bool:
        """Whether ``robust-mean`` applies; if not, the key is refused."""
        return bool(capabilities.ROBUST.of(resolve(self.server)))

    @property
    def summed_phases(self) -> tuple[str, ...]:
        """Phases whose ``aggregate`` takes one weighted mean of the uploads, and nothing else of them.

        If there is none, ``secure = "sum"`` is refused.
        """
        return () if self.compression else tuple(capabilities.SUMMED.of(resolve(self.server)))

    @property
    def reads_uploads(self) -> str:
        """What its server reads of single uploads, in words; empty if it says nothing of that."""
        return str(getattr(resolve(self.server), capabilities.READS_UPLOADS, ""))

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
    def scheduled(self) -> bool:
        """Whether what it does in a round depends on the run-config key ``rounds``: such a run is not extended."""
        return bool(getattr(resolve(self.server), capabilities.DEPENDS_ON_ROUNDS, False))

    @property
    def chooses(self) -> bool:
        """Whether its server decides who trains (:class:`sepal.method.algorithms.ChoosesParticipants`)."""
        return hasattr(resolve(self.server), "participants")

    @property
    def needs_of_task(self) -> tuple[str, ...]:
        """What it needs of a task besides its loss (:attr:`sepal.tasks.Task.offers`); others are refused."""
        return tuple(getattr(resolve(self.client), capabilities.NEEDS_OF_TASK, ()))

    @property
    def fixed_keys(self) -> Mapping[str, str]:
        """Shared keys that it cannot take another value of than their default, or the method's; with the reason."""
        return dict(getattr(resolve(self.client), capabilities.FIXED_KEYS, {}))

    @property
    def server_state(self) -> type:
        """Type of the server algorithm's state: the return annotation of its ``init``."""
        return _returned(resolve(self.server).init)

    @property
    def client_state(self) -> type:
        """Type of the client algorithm's state: the return annotation of its ``init``."""
        return _returned(resolve(self.client).init)

    def make_server(self, setup: RunSetup) -> ServerAlgorithm[Any]:
        """Return the server algorithm for ``setup``."""
        factory: ServerFactory = resolve(self.server)
        return _with_tensors(factory(setup))

    def make_client(self, setup: RunSetup, trainer: Any) -> ClientAlgorithm[Any]:
        """Return the client algorithm for ``setup``, over its own data."""
        factory: ClientFactory = resolve(self.client)
        return _with_tensors(factory(setup, trainer))


def _with_tensors(algorithm: A) -> A:
    """Return an algorithm whose ``shared``, if it has one, returns tensors of the layout."""
    for part in algorithm.shared() if hasattr(algorithm, "shared") else ():
        if not isinstance(part, Parameter):
            raise ConfigError("method", f"{type(algorithm).__name__}.shared to return tensors of self.layout", part)
    return algorithm


def _returned(function: Callable[..., Any]) -> type:
    annotation: type | None = typing.get_type_hints(function).get("return")
    if annotation is None:
        expected = "a return annotation, the type of the state: def init(self) -> MyState"
        raise ConfigError("method", expected, f"{function.__module__}:{function.__qualname__} without one")
    return annotation


def resolve(reference: Any) -> Any:
    """Return the object that ``"package.module:object"`` names; what is no text, or empty, is returned unchanged."""
    if not isinstance(reference, str) or not reference:
        return reference
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)

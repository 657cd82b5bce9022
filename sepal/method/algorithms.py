"""The protocols of a method's server and client algorithms; :mod:`sepal.method.interface` has what they exchange.

:class:`sepal.method.server_base.ServerBase` and :class:`sepal.method.client_base.ClientBase` implement most of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from sepal.protocol.types import ClientInfo, Metrics, Payload, Plan, Predictor, Schema, Uploads, Weights

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

        With a download: the *received* model, before any local step. Without: the model that the client would use now;
        one that is a :class:`sepal.training.network.NetworkPredictor` can be exported.
        """
        ...


@runtime_checkable
class LearnsRoster(Protocol[S]):
    """A server algorithm that is told when clients join, for example to create an embedding for each."""

    def joined(self, state: S, clients: Sequence[ClientInfo]) -> S:
        """Return the state with new clients added. Called before round 1, and between rounds when clients join.

        Novel clients, which never train, are added before the closing round, unless the class says ``learns_novel =
        False``. Must be pure: a resumed run calls it again with the same clients, sorted by name.
        """
        ...


@runtime_checkable
class ChoosesParticipants(Protocol):
    """A server algorithm that decides from its state who trains in a round, in place of the run's sampling."""

    def participants(self, state: Any, plan: Plan) -> Sequence[str]:
        """Return the names of the clients that train: some that have joined and were not evicted, or nobody.

        Must be pure, and must not depend on whether a round evaluates all clients: evaluation changes no training.
        """
        ...


@runtime_checkable
class KeepsTime(Protocol):
    """A server algorithm with a clock of simulated time (:mod:`sepal.simulated_time`)."""

    def clock(self, state: Any) -> float:
        """Return the seconds of simulated time from the run's begin until there was the model of ``state``."""
        ...


@runtime_checkable
class HasReference(Protocol):
    """A server algorithm whose uploads are not differences; :class:`~sepal.method.server_base.ServerBase` is one."""

    def reference(self, state: Any, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return the tensors that ``client`` trained from, by name; see ``ServerBase.reference``."""
        ...


@runtime_checkable
class ForgetsEvicted(Protocol[S]):
    """A server algorithm that stores something about each client that other clients' downloads depend on."""

    def evicted(self, state: S, names: Sequence[str]) -> S:
        """Return the state without anything about the clients ``names``, sorted; some may be unknown.

        Called at the end of the round in which they were evicted, after ``aggregate``. Must be pure.
        """
        ...

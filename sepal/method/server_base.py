"""Base class of server algorithms. A method derives from it and overrides what differs."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from sepal.layout import Layout
from sepal.method.interface import RunSetup
from sepal.method.tensors import dense, dense_schema
from sepal.protocol.types import ClientInfo, Metrics, Payload, Plan, Schema, Upload, Uploads, Weights
from sepal.wire.tensors import ValueCoding

S = TypeVar("S")


class ServerBase(Generic[S]):
    """A server algorithm that exchanges the tensors of :meth:`shared` dense.

    A method implements ``init``, ``aggregate`` and ``model``.

    What it can do beyond, its class claims (:mod:`sepal.method.capabilities`): the last three attributes.

    Attributes:
        setup: Layout, initial weights W_0 and configuration.
        hyper: The method's own keys.
        layout: The model's tensors.
        coding: How values are encoded.
        robust: The run's ``robust-mean``, for :mod:`sepal.method.means`; ``none`` without ``robust_means``.
        robust_means: Whether every mean of uploads is :func:`sepal.method.means.weighted_mean` or ``sparse_mean``,
            and takes ``robust``: the key ``robust-mean`` applies.
        summed_phases: The phases (``Plan.phase``) in which ``aggregate`` takes one weighted mean of tensors of which
            all clients send the same entries, with weights that follow from the client alone, and nothing else of the
            uploads: ``secure = "sum"`` applies.
        reads_uploads: What it reads of single uploads otherwise, for the line that refuses ``secure``.
        dense_exchange: As :attr:`sepal.method.client_base.ClientBase.dense_exchange`.
        uses_capacity: Whether clients with a capacity below 1 get a smaller model.
    """

    robust_means: ClassVar[bool] = False
    summed_phases: ClassVar[tuple[str, ...]] = ()
    reads_uploads: ClassVar[str] = ""
    dense_exchange: ClassVar[bool] = False
    uses_capacity: ClassVar[bool] = False

    def __init__(self, setup: RunSetup) -> None:
        self.setup, self.layout = setup, setup.layout
        self.hyper: Any = setup.hyper
        self.coding = ValueCoding(setup.config.values)
        self.robust = setup.config.robust_mean

    def shared(self) -> Layout:
        """Return the tensors that are exchanged; by default all of them."""
        return self.layout

    def init(self) -> S:
        """Return the state before round 1."""
        raise NotImplementedError

    def plan(self, round: int) -> Plan:
        """Return the plan of ``round``; by default all rounds are the same."""
        return Plan(round)

    def download(self, state: S, client: ClientInfo, plan: Plan) -> Payload:
        """Return the model's shared tensors."""
        return Payload(dense(self.model(state), self.shared(), self.coding))

    def newcomer(self, state: S, client: ClientInfo, plan: Plan) -> Payload:
        """Return the same as :meth:`download`; in round 1 an empty payload, because the client derives W_0 itself."""
        return Payload() if plan.round == 1 else self.download(state, client, plan)

    def upload_schema(self, state: S, client: ClientInfo, plan: Plan) -> Schema:
        """Admit the shared tensors, dense."""
        return dense_schema(self.shared())

    def reference(self, state: S, client: ClientInfo, plan: Plan, download: Payload) -> Weights:
        """Return what ``max-update-norm`` subtracts from an upload: the tensors that ``client`` trained from, by name.

        By default the download's tensors, or W_0 for a payload that is empty because the client derives W_0 itself. A
        tensor of an upload that has no counterpart of its shape here counts as a difference: a method whose uploads are
        differences, under names that its download has too, returns nothing.
        """
        sent = {name: tensor.dense() for name, tensor in download.tensors.items() if tensor.values is not None}
        return sent or self.setup.weights

    def aggregate(self, state: S, uploads: Uploads, plan: Plan) -> tuple[S, Metrics]:
        """Return the state after the round, and figures for metrics.jsonl."""
        raise NotImplementedError

    def weigh(self, upload: Upload) -> float:
        """Return the weight of an upload in a mean; by default n_i."""
        return upload.client.examples

    def model(self, state: S) -> Weights:
        """Return the global model, float32 by name; empty where the server has none."""
        raise NotImplementedError

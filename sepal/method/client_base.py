"""Base class of client algorithms. A method derives from it and overrides what differs."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sepal.layout import Layout
from sepal.method.interface import RunSetup
from sepal.method.tensors import dense, dense_schema
from sepal.protocol.types import Payload, Plan, Predictor, Schema, Weights
from sepal.training.hooks import Hooks
from sepal.training.trainer import ParameterGroup, Trainer
from sepal.wire.tensors import ValueCoding

C = TypeVar("C")


class ClientBase(Generic[C]):
    """A client algorithm that exchanges the tensors of :meth:`shared` dense.

    A method implements ``init``, ``adapt`` and ``personal_weights``.

    What it can do beyond, its class claims (:mod:`sepal.method.capabilities` says when a subclass has it, too):
    ``private_phases``, ``batched``, ``dense_exchange`` and ``combination``.

    Attributes:
        private_phases: The phases (``Plan.phase``) whose uploads ``privacy.*`` clips and noises.
        batched: Whether clients of one process may train at once (``engine.batch``): all that the class keeps is in its
            state, and it trains with ``Trainer.fit`` with no loss of its own and with hooks that can be stacked
            (:class:`sepal.training.hooks.StackableHook`). A call that does otherwise trains alone.
        dense_exchange: Whether it exchanges the tensors of ``shared()`` of one model, dense, both ways, with the same
            download for all: ``compress.*`` applies if the server's class claims it, too.
        combination: ``"module:function"`` by which a predictor of several networks combines their logits
            (:class:`sepal.training.network.NetworkPredictor`), so that an exported model can.
        setup: Layout, initial weights W_0 and configuration.
        trainer: The client's data and the training loop.
        hyper: The method's own keys.
        layout: The model's tensors.
        coding: How values are encoded.
    """

    private_phases: ClassVar[tuple[str, ...]] = ()
    batched: ClassVar[bool] = False
    dense_exchange: ClassVar[bool] = False
    combination: ClassVar[str] = ""

    def __init__(self, setup: RunSetup, trainer: Trainer) -> None:
        self.setup, self.trainer, self.layout = setup, trainer, setup.layout
        self.hyper: Any = setup.hyper
        self.coding = ValueCoding(setup.config.values)

    @property
    def clips_uploads(self) -> bool:
        """Whether the method clips uploads, and noises them where ``privacy.noise`` is set."""
        return self.setup.config.privacy.by_clients

    def shared(self) -> Layout:
        """Return the tensors that are exchanged; by default all of them."""
        return self.layout

    def init(self) -> C:
        """Return the state of a client that has not yet taken part."""
        raise NotImplementedError

    def download_schema(self, state: C, plan: Plan) -> Schema:
        """Admit the shared tensors, dense; in round 1 an empty payload, because W_0 is known."""
        return Schema() if plan.round == 1 else dense_schema(self.shared())

    def received_weights(self, state: C, download: Payload, plan: Plan) -> Weights:
        """Return the downloaded model before any local step; empty if there is none."""
        if not download.tensors:
            return {p.name: self.setup.weights[p.name] for p in self.shared()}
        return {name: tensor.dense() for name, tensor in download.tensors.items()}

    def personal_weights(self, state: C) -> Weights:
        """Return the model that the client would use now; empty before it has one."""
        raise NotImplementedError

    def hooks(self, received: Weights, plan: Plan) -> Hooks | None:
        """Return the method's hooks for the training loop of :meth:`fit`; None for plain SGD."""
        return None

    def fit(
        self,
        start: Weights,
        plan: Plan,
        hooks: Hooks | None = None,
        *,
        epochs: int | None = None,
        purpose: str = "train",
        only: Layout | None = None,
        lr: float | None = None,
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Return the weights after training from ``start``.

        Args:
            start: float32 by name.
            plan: Its round determines batches and learning rate.
            hooks: By default those of :meth:`hooks`.
            epochs: Passes over the data; None for ``local-epochs``.
            purpose: Distinguishes several calls in one round; each purpose has its own batches.
            only: The tensors to train; None for all. No gradient is computed for the others.
            lr: Learning rate of the first round; None for the run's. ``lr-decay`` applies to it too.
        """
        network = self.trainer.network()
        network.load(start)
        named = dict(network.module.named_parameters())
        names = named.keys() if only is None else {p.name for p in only} & named.keys()
        chosen = [parameter for name, parameter in named.items() if name in names]
        for name, parameter in named.items():
            parameter.requires_grad_(name in names)
        if chosen:
            hooks = hooks or self.hooks(start, plan)
            groups = [ParameterGroup(chosen, lr)]
            self.trainer.fit(network.module, plan.round, hooks, epochs=epochs, purpose=purpose, parameters=groups)
        network.module.requires_grad_(True)
        return network.read()

    def adapt(self, state: C, download: Payload, plan: Plan) -> C:
        """Train from the download without an upload, and return the new state."""
        raise NotImplementedError

    def upload(self, state: C, plan: Plan) -> Payload:
        """Return the upload after :meth:`adapt`; by default the shared tensors of the client's model."""
        return Payload(dense(self.personal_weights(state), self.shared(), self.coding))

    def train(self, state: C, download: Payload, plan: Plan) -> tuple[C, Payload]:
        """Train from the download; return the new state and the upload."""
        after = self.adapt(state, download, plan)
        return after, self.upload(after, plan)

    def predictor(self, state: C, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return a predictor of the downloaded model, or without a download of the client's own model."""
        weights = self.personal_weights(state) if download is None else self.received_weights(state, download, plan)
        return self.trainer.predictor(weights) if weights else None

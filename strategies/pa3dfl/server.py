"""Pa3dFL, server algorithm: the mean of general parameters (equation 6), the hypernetwork's step (equation 7).

Wang et al., "Selective Knowledge Sharing for Personalized Federated Learning Under Capacity Heterogeneity", Algorithm
2. Deviations: see NOTES.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from sepal.errors import RoundError
from sepal.method import (
    ClientInfo,
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
    weighted_mean,
)
from sepal.method.means import equally, mean_of_prefixes
from sepal.models.decomposed import cut, initial_weights
from sepal.models.factors import width_for
from sepal.protocol.payloads import delivered
from sepal.strategies.pa3dfl.contract import DecomposedShape, Hyper, ServerState, State
from sepal.strategies.pa3dfl.hypernetwork import Hypernetwork

log = logging.getLogger("sepal")


class Pa3dFLServer(ServerBase[ServerState]):
    """Keeps general tensors, the hypernetwork and embeddings, and generates personal tensors for each download."""

    uses_capacity = True

    hyper: Hyper

    def __init__(self, setup: RunSetup) -> None:
        super().__init__(setup)
        self._of_width = cache(lambda width: DecomposedShape(setup, width))
        self.full = DecomposedShape(setup, 1.0)
        generated = self.hyper.personal == "hypernetwork"
        self.hypernetwork = Hypernetwork(self.full.personal, setup.config.seed, self.hyper) if generated else None

    def shape(self, client: ClientInfo) -> DecomposedShape:
        """Return the shape of a client's model; there are at most 1/p_min of them.

        Raises:
            ModelError: The capacity is below p_min² or above 1.
        """
        return self._of_width(width_for(client.capacity, self.hyper.least))

    def init(self) -> ServerState:
        """Draw general tensors, and personal ones as the decoders' initial biases, common to all clients."""
        first = initial_weights(self.full.module(), self.setup.config.seed)
        general, personal = cut(first, self.full.general), cut(first, self.full.personal)
        if self.hypernetwork:
            return ServerState(general, self.hypernetwork.init(personal))
        return ServerState(general, State({}, {}), personal if self.hyper.personal == "position" else {})

    def joined(self, state: ServerState, clients: Sequence[ClientInfo]) -> ServerState:
        """Return the state with initial embeddings for new clients, so that late ones take part at once."""
        if not self.hypernetwork:
            return state
        return replace(state, hypernetwork=self.hypernetwork.join(state.hypernetwork, [c.name for c in clients]))

    def evicted(self, state: ServerState, names: Sequence[str]) -> ServerState:
        """Return the state without the embeddings of evicted clients, so that nobody attends them."""
        embeddings = {name: array for name, array in state.hypernetwork.embeddings.items() if name not in names}
        return replace(state, hypernetwork=replace(state.hypernetwork, embeddings=embeddings))

    def download(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the general tensors and the client's personal ones, generated from the current state.

        The whole model is sent each time, so a client may miss any number of rounds.
        """
        shape = self.shape(client)
        personal: Weights = {}
        if self.hypernetwork:
            network = self.joined(state, [client]).hypernetwork
            personal = self.hypernetwork.generate(network, client.name, {p.name: p.shape for p in shape.personal})
        elif state.personal:
            personal = cut(state.personal, shape.personal)
        return Payload(dense({**state.general, **personal}, shape.shared, self.coding))

    def newcomer(self, state: ServerState, client: ClientInfo, plan: Plan) -> Payload:
        """Return the same as :meth:`download`; a client that joins late gets its initial embedding."""
        return self.download(state, client, plan)

    def upload_schema(self, state: ServerState, client: ClientInfo, plan: Plan) -> Schema:
        """Admit the tensors of the download, at the client's width."""
        return dense_schema(self.shape(client).shared)

    def aggregate(self, state: ServerState, uploads: Uploads, plan: Plan) -> tuple[ServerState, Metrics]:
        """Average the general tensors with equal weights, and take a step of the hypernetwork.

        Raises:
            RoundError: The step is not finite, and ``non-finite`` is ``end``.
        """
        if not len(uploads):
            return state, {}
        after = replace(state, general=weighted_mean(uploads, state.general, weigh=equally))
        if not self.hypernetwork:
            return replace(after, personal=mean_of_prefixes(uploads, state.personal).over(state.personal)), {}
        full = self.full.personal
        new = ((u.client.name, {p.name: u.payload.tensors[p.name].dense() for p in full}) for u in uploads)
        new_hypernetwork, figures = self.hypernetwork.step(
            state.hypernetwork, new, partial(delivered, coding=self.coding)
        )
        metrics = {f"hypernetwork.{n}": float(x) for n, x in figures._asdict().items() if math.isfinite(x)}
        if figures.finite:
            return replace(after, hypernetwork=new_hypernetwork), metrics
        where, got = f"round {plan.round}: the hypernetwork's step", f"loss {figures.loss:g}, norm {figures.norm:g}"
        if self.hyper.non_finite == "end":
            raise RoundError(where, "a finite loss and norm", got)
        log.warning("%s was not finite (%s): the state is kept", where, got)
        return state, metrics

    def model(self, state: ServerState) -> Weights:
        """Return all that the server learns: general tensors, and hypernetwork and embeddings under prefixes."""
        network = {f"hypernetwork/{name}": array for name, array in state.hypernetwork.weights.items()}
        embeddings = {f"embedding/{client}": array for client, array in state.hypernetwork.embeddings.items()}
        return {**state.general, **state.personal, **network, **embeddings}

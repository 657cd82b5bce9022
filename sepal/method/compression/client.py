"""The client's side of a compressed exchange: it catches up, trains, and sends an update without its residual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sepal.layout import statistics, trained
from sepal.masks.flat import Flat
from sepal.method.compression.updates import UPDATE, WEIGHTS, Supports, compress, less, plus, without
from sepal.method.interface import Compression, RunSetup
from sepal.method.tensors import dense, dense_specs
from sepal.protocol.types import Payload, Plan, Predictor, Schema, SpecLike
from sepal.wire.tensors import TensorSpec, ValueCoding, Values


@dataclass(frozen=True)
class ClientState:
    """A client's state besides the method's, which is the field ``inner`` of a class derived from this one.

    Attributes:
        held: R as of ``round``, float32 (d,).
        residual: A_i, float32 (d,): accumulated entries that were not sent.
        round: The last round included in ``held``.
    """

    held: Values
    residual: Values
    round: int = 0


class CompressedClient:
    """A method's client algorithm with compressed exchange.

    Args:
        inner: The method's client algorithm, a :class:`sepal.method.client_base.ClientBase`; its uploads must not be
            clipped and noised, because this is done here, before entries are selected.
        kind: Type of the state.
    """

    def __init__(self, inner: Any, setup: RunSetup, trainer: Any, how: Compression, kind: type) -> None:
        self.inner, self.setup, self.trainer, self.how, self.kind = inner, setup, trainer, how, kind
        self.coding = ValueCoding(setup.config.values)
        self.flat, self.fixed = Flat(trained(inner.shared())), statistics(inner.shared())
        self.supports = Supports(how, setup.config.seed, self.flat.size)

    def init(self) -> Any:
        """Start from W_0 with a residual of 0."""
        model = self.flat.join(self.setup.weights)
        return self.kind(model, np.zeros(model.size, np.float32), inner=self.inner.init())

    def download_schema(self, state: Any, plan: Plan) -> Schema:
        """Admit the missed updates, or new values instead."""
        missed = range(max(state.round + 1, plan.round - self.how.cache), plan.round)
        specs: dict[str, SpecLike] = {str(round): self.supports.spec(round, optional=True) for round in missed}
        specs[WEIGHTS] = TensorSpec((self.flat.size,), optional=True)
        return Schema({**specs, **dense_specs(self.fixed)})

    def caught_up(self, state: Any, download: Payload) -> Values:
        """Return the server's R, from new values or from the missed updates in the server's order."""
        model: Values = state.held
        fixed = {parameter.name for parameter in self.fixed}
        for name, tensor in download.tensors.items():  # the schema ensures the order of rounds
            if name == WEIGHTS:
                model = np.where(tensor.mask(), tensor.dense(), model)
            elif name not in fixed:
                model = plus(model, tensor)
        return model

    def _method_download(self, model: Values, download: Payload) -> Payload:
        """Return the download that the method would have got."""
        weights = dense(self.flat.cut(model), self.flat.layout, ValueCoding.FP32)
        both = {**weights, **{p.name: download.tensors[p.name] for p in self.fixed}}
        return Payload({p.name: both[p.name] for p in self.inner.shared()}, download.scalars)

    def train(self, state: Any, download: Payload, plan: Plan) -> tuple[Any, Payload]:
        """Train from R as the method says, and send compress(w_i - R + A_i); the rest is the new A_i (Algorithm 2).

        With ``privacy.*``, w_i - R + A_i is clipped and noised before entries are selected. A_i is then the clipped
        part without noise, 0 at all entries that were sent.
        """
        model = self.caught_up(state, download)
        inner, upload = self.inner.train(state.inner, self._method_download(model, download), plan)
        trained_weights = self.flat.join({p.name: upload.tensors[p.name].dense() for p in self.flat.layout})
        released = self.trainer.release(trained_weights - model + state.residual, plan.round)
        update = compress(released.noised, self.how, self.coding, self.supports.of(plan.round))
        private = self.setup.config.privacy.by_clients
        rest = without(released.clipped, update.positions()) if private else less(released.noised, update)
        fixed = {p.name: upload.tensors[p.name] for p in self.fixed}
        after = replace(state, inner=inner, held=model, residual=rest, round=plan.round - 1)
        return after, Payload({UPDATE: update, **fixed}, upload.scalars)

    def adapt(self, state: Any, download: Payload, plan: Plan) -> Any:
        """Train as the method does without an upload; the residual does not change."""
        model = self.caught_up(state, download)
        inner = self.inner.adapt(state.inner, self._method_download(model, download), plan)
        return replace(state, inner=inner, held=model, round=plan.round - 1)

    def predictor(self, state: Any, download: Payload | None, plan: Plan) -> Predictor | None:
        """Return the method's predictor."""
        method_download = None if download is None else self._method_download(self.caught_up(state, download), download)
        predictor: Predictor | None = self.inner.predictor(state.inner, method_download, plan)
        return predictor

"""Compressed exchange around a method that exchanges one dense model: sparse updates in both directions.

Sattler, Wiedemann, Müller, Samek, "Robust and Communication-Efficient Federated Learning from Non-IID Data", IEEE TNNLS
2019 (https://arxiv.org/abs/1903.02891): Algorithm 1 (STC: the k = p·d largest entries of the flattened update, each as
±μ, where μ is the mean of their magnitudes), Algorithm 2 (both directions, each with a residual), section V-B (a client
that missed rounds). Without ``ternary``, the entries keep their values (top-k with error feedback). With ``drawn``, the
k entries of a round are drawn from the run's seed instead (random k with error feedback; Stich, Cordonnier, Jaggi,
"Sparsified SGD with Memory", NeurIPS 2018, https://arxiv.org/abs/1809.07599): all clients send the same entries,
without positions, so a secure sum can add them up.

Let M be the method's global model, and R the model that a client holds that has missed nothing; R starts at W_0, as M
does. In a round,

1. a client trains from R as the method says, which gives w_i, and sends Δ̃_i = compress(w_i - R + A_i). What was not
   sent is its residual A_i;
2. the method's server gets M + Δ̃_i from each client, so that its own step (a mean, momentum, Adam) is unchanged, and
   returns the new M;
3. all clients get compress(M - R), which is added to R. What was not sent stays in M - R: the server's residual.

With FedAvg this is the paper's Algorithm 2: there M - R is its A.

When a client takes part, its R equals the server's bit for bit. A sum of float32 updates would not ensure this, because
float addition is not associative. So a client that missed s updates gets the s updates one by one and adds them in the
server's order, while s ≤ ``cache`` (the paper's bound H(P^(s)) ≤ s·H(P^(1)) is then what is sent). Otherwise it gets
the new values, fp32, of all entries that changed since. A newcomer missed all updates.

Deviations: top-k and μ are over all exchanged tensors, as in the paper (common implementations use each tensor
separately); positions are sent in Sepal's wire format, not in Golomb code; statistics of normalisation layers are
exchanged as values; a round without uploads sends no update.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from sepal.method.compression.client import ClientState, CompressedClient
from sepal.method.interface import Compression, Method, RunSetup

if TYPE_CHECKING:
    from sepal.config import RunConfig
    from sepal.method.compression.server import CompressedServer


@cache
def with_inner(kind: type, inner: type) -> type:
    """Return ``kind`` with a field ``inner`` of the type ``inner``; states are restored by their fields' types."""
    return make_dataclass(
        f"{kind.__name__}Of{inner.__name__}", [("inner", inner)], bases=(kind,), frozen=True, kw_only=True
    )


@dataclass(frozen=True)
class Compressed(Method):
    """The record of a method with compressed exchange.

    Attributes:
        inner: The method's own record.
        how: What is sent.
    """

    inner: Method = field(kw_only=True)
    how: Compression = field(kw_only=True)

    @property
    def server_state(self) -> type:
        """Type of the server algorithm's state."""
        from sepal.method.compression.server import ServerState  # a client needs none of it

        return with_inner(ServerState, self.inner.server_state)

    @property
    def client_state(self) -> type:
        """Type of the client algorithm's state."""
        return with_inner(ClientState, self.inner.client_state)

    def make_server(self, setup: RunSetup) -> CompressedServer:
        """Return the server algorithm for ``setup``."""
        from sepal.method.compression.server import CompressedServer

        return CompressedServer(self.inner.make_server(setup), setup, self.how, self.server_state)

    def make_client(self, setup: RunSetup, trainer: Any) -> CompressedClient:
        """Return the client algorithm for ``setup``, over its own data."""
        open_privacy = type(setup.config.privacy)()  # the update is clipped and noised once, here
        plain = replace(setup, config=setup.config.model_copy(update={"privacy": open_privacy}))
        return CompressedClient(self.inner.make_client(plain, trainer), setup, trainer, self.how, self.client_state)


def with_compression(method: Method, config: RunConfig, hyper: Any) -> Method:
    """Return the method as it exchanges models in this run: compressed by ``compress.*`` or its own keys, or plain."""
    how = method.compression(hyper) if method.compression else None
    if config.compress.name != "none":
        name = config.compress.name
        how = Compression(config.compress.keep, name == "stc", config.compress.cache, drawn=name == "randk")
    if how is None:
        return method
    record = {attribute.name: getattr(method, attribute.name) for attribute in fields(Method)}
    return Compressed(**record, inner=method, how=how)

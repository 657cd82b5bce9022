"""How much of a caller's message a SuperLink of Flower 1.39 takes into memory, before and after it knows the caller.

gRPC takes a whole message before Flower looks at the key, and Flower's limit for a message is 2 GiB. Here no message
may be larger than ``MOST_CALL``, and a caller whose key is not registered is refused before its message is read; only
the two calls by which a node introduces itself are read, a few at a time.

An option of ``flower-superlink`` for the size of a message, and a check of the key before the message is read, would
replace this. From 1.40 the Fleet API is HTTP: :mod:`sepal.flower.superlink`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import grpc
from flwr.common import constant as names
from flwr.supercore.error import rpc_error_translator

from sepal.flower.versions import unchanged

MOST_CALL = 16 << 20  # bytes: Flower cuts arrays into chunks of 5 MiB, and an app bundle has at most 10 MB
MOST_STRANGERS = 2  # calls without a registered key that are read at a time; each costs three times its message
INTRODUCTIONS = frozenset(f"/flwr.proto.Fleet/{name}" for name in ("ActivateNode", "RegisterNode"))
MOST_KNOWN = 100_000  # keys that are remembered as registered


class KnownCallers(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses callers without a registered key before their message is read.

    Flower's own check follows, with signature, clock and node. Here only the claim is looked at, which costs nothing.

    Args:
        node_of: Returns the id of the node with a public key, or None.
    """

    def __init__(self, node_of: Callable[[bytes], int | None]) -> None:
        self._node_of, self._registered = node_of, set[bytes]()
        self._places = threading.BoundedSemaphore(MOST_STRANGERS)

    def intercept_service(
        self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call, which for a stranger reads the message late or not at all."""
        handler = continuation(details)
        if handler is None or handler.unary_unary is None or self._is_known(details):
            return handler
        reads = details.method in INTRODUCTIONS

        def answer(messages: Iterator[Any], context: grpc.ServicerContext) -> Any:
            if not reads:  # a refusal by Flower needs no message: it is by the key alone
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "Not a registered key")
            if not self._places.acquire(blocking=False):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many callers without a registered key")
            if not context.add_callback(self._places.release):  # the call has ended already
                self._places.release()
                context.abort(grpc.StatusCode.CANCELLED, "ended")
            with rpc_error_translator(context, details.method):  # Flower's own wraps unary handlers alone
                return handler.unary_unary(next(messages), context)

        return grpc.stream_unary_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)

    def _is_known(self, details: grpc.HandlerCallDetails) -> bool:
        key = next((value for name, value in details.invocation_metadata if name == names.PUBLIC_KEY_HEADER), b"")
        if not isinstance(key, bytes) or not key:
            return False
        if key not in self._registered and self._node_of(key) is not None and len(self._registered) < MOST_KNOWN:
            self._registered.add(key)
        return key in self._registered


def limit(module: ModuleType) -> None:
    """Make ``module``, which starts the SuperLink, limit what is read.

    Args:
        module: ``flwr.superlink.cli.flower_superlink`` of Flower 1.39.
    """
    unchanged(module, "_run_fleet_api_grpc_rere")
    start = module._run_fleet_api_grpc_rere

    def start_limited(*, state_factory: Any, enable_supernode_auth: bool, **further: Any) -> Any:
        interceptors: list[Any] = []
        if enable_supernode_auth:
            interceptors = [KnownCallers(lambda key: state_factory.state().get_node_id_by_public_key(key))]
        further["interceptors"] = [*interceptors, *(further.get("interceptors") or [])]
        return start(state_factory=state_factory, enable_supernode_auth=enable_supernode_auth, **further)

    start_limited.flowers = start  # type: ignore[attr-defined]
    module._run_fleet_api_grpc_rere = start_limited  # type: ignore[attr-defined]
    module.GRPC_MAX_MESSAGE_LENGTH = MOST_CALL  # type: ignore[attr-defined]

"""A call to Flower's Fleet API that changes nothing. It uses private names of flwr 1.39.

Flower checks a call's signature and timestamp first, then the public key, then the arguments. So a node that asks to be
activated with an impossible heartbeat interval is always refused, and the error tells whether clock and key are good.
If Flower changes this order, `sepal deploy check` and `sepal join` name the wrong reason.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import grpc
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import PUBLIC_KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from sepal.errors import one_line

FLOWER = "1.39"
OLD, AHEAD = 305.0, 5.0  # seconds by which a call's timestamp may be older or newer than the server's clock
BAD_CLOCK = "Invalid timestamp"  # the server's answer to any other timestamp
BUSY = "busy: at its limit of calls, or too slow to answer"
KNOWN_KEY = int(ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL)


def activation(channel: grpc.Channel, key: ec.EllipticCurvePrivateKey, timeout: float) -> Callable[[float], int | str]:
    """Return a function that asks for an impossible activation and returns how it was refused.

    Its argument is the number of seconds by which the call's timestamp is ahead of this machine's clock. It returns the
    code of Flower's error, which is ``KNOWN_KEY`` if the key is registered, or a text.

    Args:
        channel: A channel to the Fleet API.
        key: The node's private key.
        timeout: Seconds for a call.
    """
    stub, public = FleetStub(channel), public_key_to_bytes(key.public_key())
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=-1.0)

    def ask(offset: float) -> int | str:
        stamp = (datetime.now(UTC) + timedelta(seconds=offset)).isoformat()
        signature = sign_message(key, stamp.encode("ascii"))
        metadata = ((PUBLIC_KEY_HEADER, public), (TIMESTAMP_HEADER, stamp), (SIGNATURE_HEADER, signature))
        try:
            stub.ActivateNode(request, timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            details = error.details() or ""
            known = FlowerError.from_json(details)
            if known is not None:
                return int(known.code)
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return details
            if error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED):
                return BUSY
            hint = {
                grpc.StatusCode.UNIMPLEMENTED: f"not the Fleet API of Flower {FLOWER}: another port or version",
                grpc.StatusCode.UNAVAILABLE: "no gRPC: another port, or a SuperLink of Flower 1.40 or later",
            }.get(error.code(), str(error.code()))
            return f"{hint} ({one_line(details, 120)})"
        return "an activation that should have been refused"

    return ask

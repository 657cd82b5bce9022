"""A call to Flower's Fleet API that changes nothing.

Flower checks a call's signature and timestamp first, then the public key, then the arguments. So a node that asks to be
activated with an impossible heartbeat interval is always refused, and the error tells whether clock and key are good.
If Flower changes this order, `sepal deploy check` and `sepal join` name the wrong reason. A status call of the Fleet
API would replace this.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common import constant as names
from flwr.proto.fleet_pb2 import ActivateNodeRequest
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from sepal.errors import one_line
from sepal.flower.versions import speaks_http

Ask: TypeAlias = Callable[[float], int | str]

OLD, AHEAD = 305.0, 5.0  # seconds by which a call's timestamp may be older or newer than the server's clock
BAD_CLOCK = "Invalid timestamp"  # the server's answer to any other timestamp
BUSY = "busy: at its limit of calls, or too slow to answer"
KNOWN_KEY = int(ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL)
FLEET_CODES = range(2000, 3000)  # others are about the call itself
MOST_ANSWER = 64 << 10  # bytes of an answer by HTTP; gRPC has a limit of its own
NOT_REFUSED = "an activation that should have been refused"


@contextlib.contextmanager
def activation(address: str, key: ec.EllipticCurvePrivateKey, authority: Path | None, timeout: float) -> Iterator[Ask]:
    """Yield a function that asks for an impossible activation and returns how it was refused.

    Its argument is the number of seconds by which the call's timestamp is ahead of this machine's clock. It returns the
    code of Flower's error, which is ``KNOWN_KEY`` if the key is registered, or a text.

    Args:
        address: HOST:PORT of the Fleet API.
        key: The node's private key.
        authority: CA certificate of the server's; None for plain text.
        timeout: Seconds for a call with its whole answer.
    """
    public = public_key_to_bytes(key.public_key())
    request = ActivateNodeRequest(public_key=public, heartbeat_interval=-1.0)

    def signed(offset: float) -> tuple[str, bytes]:
        stamp = (datetime.now(UTC) + timedelta(seconds=offset)).isoformat()
        return stamp, sign_message(key, stamp.encode("ascii"))

    trust = authority.read_bytes() if authority else None
    kind = _http if speaks_http() else _grpc
    with kind(address, trust, public, request, signed, timeout) as ask:
        yield ask


@contextlib.contextmanager
def _grpc(
    address: str,
    trust: bytes | None,
    public: bytes,
    request: ActivateNodeRequest,
    signed: Callable[[float], tuple[str, bytes]],
    timeout: float,
) -> Iterator[Ask]:
    import grpc
    from flwr.proto.fleet_pb2_grpc import FleetStub

    def ask(offset: float) -> int | str:
        stamp, signature = signed(offset)
        values = {names.PUBLIC_KEY_HEADER: public, names.TIMESTAMP_HEADER: stamp, names.SIGNATURE_HEADER: signature}
        try:
            stub.ActivateNode(request, timeout=timeout, metadata=tuple(values.items()))
        except grpc.RpcError as error:
            details = error.details() or ""
            flower_error = _flower_error(details)
            if flower_error is not None:
                return flower_error
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return details
            if error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED):
                return BUSY
            hint = {
                grpc.StatusCode.UNIMPLEMENTED: "not the Fleet API of Flower 1.39: another port or version",
                grpc.StatusCode.UNAVAILABLE: "no gRPC: another port, or a SuperLink of Flower 1.40 or later",
            }.get(error.code(), str(error.code()))
            return f"{hint} ({one_line(details, 120)})"
        return NOT_REFUSED

    credentials = grpc.ssl_channel_credentials(trust) if trust else None
    channel = grpc.secure_channel(address, credentials) if trust else grpc.insecure_channel(address)
    with channel:
        stub = FleetStub(channel)
        yield ask


@contextlib.contextmanager
def _http(
    address: str,
    trust: bytes | None,
    public: bytes,
    request: ActivateNodeRequest,
    signed: Callable[[float], tuple[str, bytes]],
    timeout: float,
) -> Iterator[Ask]:
    import ssl

    import httpx

    later: Any = importlib.import_module("flwr.supercore.constant")  # names that 1.39 lacks

    async def answered(headers: dict[str, str]) -> tuple[httpx.Response, bytes]:
        body = bytearray()
        content = request.SerializeToString()
        async with (
            asyncio.timeout(timeout),  # httpx itself limits only the wait for the next byte
            client.stream("POST", "/v1/fleet/activate-node", content=content, headers=headers) as answer,
        ):
            async for part in answer.aiter_raw():
                body += part
                if len(body) > MOST_ANSWER:
                    raise httpx.TransportError(f"an answer of more than {MOST_ANSWER} bytes")
        return answer, bytes(body)

    def ask(offset: float) -> int | str:
        stamp, signature = signed(offset)
        headers = {
            "content-type": "application/protobuf",
            "accept-encoding": "identity",
            later.FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public).decode(),
            names.TIMESTAMP_HEADER: stamp,
            later.FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
        }
        try:
            answer, body = runner.run(answered(headers))
        except (httpx.TimeoutException, TimeoutError):
            return BUSY
        except httpx.TransportError as error:
            return f"no HTTP: another port, or a SuperLink of Flower 1.39 ({one_line(str(error), 120)})"
        flower_error = _flower_error(body.decode(errors="replace"))
        if flower_error is not None and flower_error in FLEET_CODES:
            return flower_error
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return BAD_CLOCK  # key and signature are ours, so it is the timestamp
        if answer.status_code in (429, 502, 503, 504):
            return BUSY
        hint = "not the Fleet API of Flower 1.40 to 1.42: another port or version"
        return NOT_REFUSED if answer.is_success else f"{hint} (status {answer.status_code})"

    context = ssl.create_default_context(cadata=trust.decode()) if trust else False
    base = f"{'https' if trust else 'http'}://{address}"
    client = httpx.AsyncClient(base_url=base, verify=context, timeout=timeout, trust_env=False)
    with asyncio.Runner() as runner:
        try:
            yield ask
        finally:
            with contextlib.suppress(TimeoutError):
                runner.run(asyncio.wait_for(client.aclose(), timeout))


def _flower_error(text: str) -> int | None:
    """Return the code of one of Flower's errors; None if ``text`` is something else."""
    try:
        error = FlowerError.from_json(text)
    except (ValueError, RecursionError):  # a number of many digits; lists in lists
        return None
    return None if error is None else int(error.code)

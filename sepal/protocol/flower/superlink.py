"""``python -m sepal.protocol.flower.superlink HOST:PORT …``: ``flower-superlink`` with limits on what callers send.

HOST:PORT is the Fleet API's. With Flower 1.39 (gRPC) see :mod:`sepal.protocol.flower.admission`.

Later, Fleet, Control and Runtime share one address. Whoever reaches it may submit apps, which are code, to the server
and to every client. So Flower's own address stays on this machine, and HOST:PORT serves the same application behind
:class:`OnlyFleet`, with the same certificate. Both are in one process: a proxy would copy each upload once more.

An option of ``flower-superlink`` for an address of each API, as 1.39 had, would replace this.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from types import FrameType, SimpleNamespace
from typing import Any, TypeAlias

from sepal.errors import SepalError
from sepal.protocol.flower.admission import MOST_CALL, limit
from sepal.protocol.flower.versions import require_supported, speaks_http, unchanged

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = "/v1/fleet/"
MOST_BODY = MOST_CALL  # bytes of a request


class OnlyFleet:
    """An ASGI application that passes calls of the Fleet API on, and answers all others with 404.

    Args:
        app: Flower's. It routes by the same ``path`` of the scope that is checked here.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; a request whose body is too large is cut off."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        path = str(scope["path"])
        plain = path.startswith(FLEET) and "/" not in path[len(FLEET) :] and not scope.get("root_path")
        if not plain or scope["method"] != "POST":
            await refuse(send, 404)
            return
        if any(name == b"content-length" and int(value) > MOST_BODY for name, value in scope["headers"]):
            await refuse(send, 413)
            return
        got = 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal got
            part = await receive()
            got += len(part.get("body", b""))
            return part if got <= MOST_BODY else {"type": "http.disconnect"}

        await self._app(scope, counted, send)


async def refuse(send: Send, status: int) -> None:
    """Answer with a status and no content."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def run_both(uvicorn: Any, host: str, port: int) -> Callable[..., None]:
    """Return a replacement of ``uvicorn.run`` that also serves the Fleet API on ``host`` and ``port``."""

    class Server(uvicorn.Server):  # type: ignore[misc]
        """A server whose end, by a signal or an error, ends the other one, too."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            for server in servers:
                super(Server, server).handle_exit(sig, frame)

    servers: list[Server] = []

    def run(app: App, **options: Any) -> None:
        shared = {key: value for key, value in options.items() if key not in ("reload", "workers")}
        door = {**shared, "host": host, "port": port, "lifespan": "off", "proxy_headers": False, "access_log": False}
        servers[:] = [Server(uvicorn.Config(app, **shared)), Server(uvicorn.Config(OnlyFleet(app), **door))]
        asyncio.run(_serve(*servers))
        if not all(server.started for server in servers):
            raise SystemExit(3)  # uvicorn's exit code for a start that failed

    return run


async def _serve(own: Any, fleet: Any) -> None:
    running = [asyncio.ensure_future(own.serve())]
    while not own.started and not running[0].done():
        await asyncio.sleep(0.05)  # no call before the application has started
    if own.started:
        running.append(asyncio.ensure_future(fleet.serve()))
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    own.should_exit = fleet.should_exit = True
    await asyncio.gather(*running)


def main() -> None:
    """Run the SuperLink in this process."""
    door, *arguments = sys.argv[1:]
    host, _, port = door.rpartition(":")
    require_supported()
    module: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    if not speaks_http():
        limit(module)
        sys.argv = ["flower-superlink", "--fleet-api-address", door, *arguments]
        module.flower_superlink()
        return
    unchanged(module, "_run_superlink_http_api")
    module.uvicorn = SimpleNamespace(run=run_both(module.uvicorn, host.strip("[]"), int(port)))
    sys.argv = ["flower-superlink", *arguments]
    module.flower_superlink()


if __name__ == "__main__":
    try:
        main()
    except SepalError as reason:
        sys.exit(f"sepal: {reason}")

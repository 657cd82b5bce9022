"""``python -m sepal.flower.superlink [--door HOST:PORT] …``: ``flower-superlink``, closed and limited.

Whoever reaches the Control API may submit apps, which are code, to the server and to every client. It is HTTP without
a credential, so it stays on this machine and behind :class:`NoPages`: a browser on this machine sends requests for any
site that is open in it.

What callers may send is limited: with Flower 1.39 (gRPC) see :mod:`sepal.flower.admission`.

HOST:PORT is where clients connect. With Flower 1.39 it is the address of the Fleet API. From 1.40 on, Fleet, Control
and Runtime share one address; there HOST:PORT serves the same application behind :class:`OnlyFleet`, with the same
certificate. Both are in one process: a proxy would copy each upload once more.

Options of ``flower-superlink`` for an address of each API, as 1.39 had, and for the host names that it serves would
replace this.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, TypeAlias

from sepal.errors import SepalError
from sepal.flower.admission import MOST_CALL, limit
from sepal.flower.pauses import forgive_pauses
from sepal.flower.versions import require_supported, speaks_http, unchanged
from sepal.operation.expiry import check_not_expired, expiry
from sepal.operation.figures import CERTIFICATES

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
FLEET = "/v1/fleet/"
MOST_BODY = MOST_CALL  # bytes of a request


class NoPages:
    """An ASGI application that answers a request of a web page with 403, and passes the others on.

    Under DNS rebinding, a page's own site resolves to this machine, so its requests are of one origin; but they have
    the site's name as their ``Host``. All others that change something have an ``Origin``. No client of Flower sends
    one.

    Args:
        app: The application behind it.
        hosts: The names in ``Host``, without a port, that are answered; empty for any.
    """

    def __init__(self, app: App, hosts: frozenset[str] = frozenset()) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = [(name, value.decode("latin-1")) for name, value in scope.get("headers", ())]
        named = [_without_port(value) for name, value in headers if name == b"host"]
        strange = self._hosts and not (len(named) == 1 and named[0] in self._hosts)
        if scope["type"] == "http" and (strange or any(name == b"origin" for name, _ in headers)):
            await refuse(send, 403)
            return
        await self._app(scope, receive, send)


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


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


def run_closed(uvicorn: Any, door: str = "") -> Callable[..., None]:
    """Return a replacement of ``uvicorn.run`` that is closed to web pages.

    Args:
        uvicorn: The module.
        door: HOST:PORT on which it also serves the Fleet API; empty for nowhere.
    """

    class Server(uvicorn.Server):  # type: ignore[misc]
        """A server whose end, by a signal or an error, ends the other one, too."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            for server in servers:
                super(Server, server).handle_exit(sig, frame)

    servers: list[Server] = []

    def run(app: App, **options: Any) -> None:
        shared = {key: value for key, value in options.items() if key not in ("reload", "workers")}
        servers[:] = [Server(uvicorn.Config(NoPages(app, LOOPBACK), **shared))]
        if door:
            host, _, port = door.rpartition(":")
            where = {"host": host.strip("[]"), "port": int(port)}
            public = {**shared, **where, "lifespan": "off", "proxy_headers": False, "access_log": False}
            servers.append(Server(uvicorn.Config(NoPages(OnlyFleet(app)), **public)))
        asyncio.run(_serve(*servers))
        if not all(server.started for server in servers):
            raise SystemExit(3)  # uvicorn's exit code for a start that failed

    return run


async def _serve(application: Any, *doors: Any) -> None:
    running = [asyncio.ensure_future(application.serve())]
    while not application.started and not running[0].done():
        await asyncio.sleep(0.05)  # no call before the application has started
    if application.started:
        running += [asyncio.ensure_future(door.serve()) for door in doors]
    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for server in (application, *doors):
        server.should_exit = True
    await asyncio.gather(*running)


def options(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return HOST:PORT of the listener of our own, empty for none, and the options of ``flower-superlink``."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--door", default="")
    chosen, flower_options = parser.parse_known_args(arguments)
    if chosen.door and not speaks_http():
        return "", ["--fleet-api-address", chosen.door, *flower_options]
    return chosen.door, flower_options


def check_certificates(flower_options: Sequence[str]) -> None:
    """Refuse certificates that have expired; the ServerApp, which inherits the environment, shows the others' dates.

    Raises:
        ConfigError: One has expired.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--ssl-certfile", type=Path, default=Path())
    parser.add_argument("--ssl-ca-certfile", type=Path, default=Path())
    chosen, _ = parser.parse_known_args(flower_options)
    files = [file for file in (chosen.ssl_certfile, chosen.ssl_ca_certfile) if file.is_file()]  # Flower names others
    check_not_expired(files)
    os.environ[CERTIFICATES] = json.dumps({file.name: expiry(file).timestamp() for file in files})


def main() -> None:
    """Run the SuperLink in this process."""
    require_supported()
    door, arguments = options(sys.argv[1:])
    check_certificates(arguments)
    module: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    if not speaks_http():
        limit(module)
    forgive_pauses()
    unchanged(module, "_run_superlink_http_api")
    module.uvicorn = SimpleNamespace(run=run_closed(module.uvicorn, door))
    sys.argv = ["flower-superlink", *arguments]
    module.flower_superlink()


if __name__ == "__main__":
    try:
        main()
    except SepalError as reason:
        sys.exit(f"sepal: {reason}")

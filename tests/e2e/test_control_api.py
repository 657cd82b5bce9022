"""A web page in a browser on the server's machine gives no orders to the SuperLink.

Its APIs are HTTP, without a credential, on 127.0.0.1. A page of any site may send requests there: of its own origin, if
the name of its site resolves to 127.0.0.1 (DNS rebinding), or of another.
"""

from __future__ import annotations

import asyncio
import http.client

import pytest
from flwr.proto.control_pb2 import ListRunsRequest, ListRunsResponse

from sepal.engines.flower.engine import Flower
from sepal.flower.superlink import LOOPBACK, NoPages
from sepal.flower.versions import speaks_http

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def response_to(port: int, path: str = "/v1/control/list-runs", **headers: str) -> tuple[int, bytes]:
    """The answer that a request with these headers gets; by default to a list of the runs."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    metadata = {"content-type": "application/protobuf", **headers}
    connection.request("POST", path, ListRunsRequest().SerializeToString(), metadata)
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize("kind", ["start_superlink", "start_simulation"])
def test_a_web_page_gives_no_orders_to_the_superlink(kind):
    with Flower() as flower:
        getattr(flower, kind)(timeout=120)
        port = flower.ports.control
        status, answer = response_to(port)
        assert status == 200
        assert ListRunsResponse.FromString(answer).now, "this is an order that is obeyed"
        assert response_to(port, Host=f"localhost:{port}")[0] == 200
        assert response_to(port, Host=f"rebound.example:{port}")[0] == 403
        assert response_to(port, Origin="https://elsewhere.example")[0] == 403
        assert response_to(port, Origin=f"http://127.0.0.1:{port}")[0] == 403, "no page is served there"
        assert '"runs"' in flower.ask("flwr", "list", "sepal", "--format", "json")[0], "Flower's own commands go on"
        if kind == "start_superlink":
            refuses_pages_as_supernodes(flower.ports.fleet)


def refuses_pages_as_supernodes(port):
    """Browsers speak HTTP/2, which gRPC needs, over TLS alone; from Flower 1.40 on the Fleet API is HTTP."""
    if speaks_http():
        assert response_to(port, "/v1/fleet/pull-messages", Origin="https://elsewhere.example")[0] == 403
    else:
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            response_to(port, "/flwr.proto.Fleet/PullMessages")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("host", "127.0.0.1:9093")], 200),
        ([("host", "[::1]:9093")], 200),
        ([("host", "[::1]")], 200),
        ([("host", "LOCALHOST")], 200),
        ([], 403),
        ([("host", "127.0.0.1.rebound.example:9093")], 403),
        ([("host", "127.0.0.1"), ("host", "rebound.example")], 403),
        ([("host", "127.0.0.1"), ("origin", "null")], 403),
    ],
)
def test_who_is_answered(headers, expected):
    sent = []

    async def behind(scope, receive, send):
        await send({"status": 200})

    async def send(part):
        sent.append(part)

    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers]}
    asyncio.run(NoPages(behind, LOOPBACK)(scope, None, send))
    assert sent[0]["status"] == expected

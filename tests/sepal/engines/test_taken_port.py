"""Another user of the machine takes the port of a SuperNode that stops: its client process must not obey.

On the old code it spoke plain HTTP, with its secret, to whoever had the port, and ran what it was given.
"""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest

from sepal.engines.flower.protection import own_tls
from sepal.engines.flower.warm import connect


class Heard(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.heard.append(self.path)
        self.send_response(503)
        self.end_headers()

    def log_message(self, *words):
        pass


def options(directory):
    parts = own_tls(directory)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture
def listener():
    """Return a function that listens on a port, with the certificate in ``files`` or in plain text."""
    servers = []

    def listen(files=None):
        server = HTTPServer(("127.0.0.1", 0), Heard)
        server.heard = []
        if files:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files["--ssl-certfile"], files["--ssl-keyfile"])
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield listen
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server, authority):
    client = connect(f"localhost:{server.server_port}", False, authority, b"s" * 32)
    with pytest.raises(Exception, match=r".") as caught:
        client.AcquireTask(AcquireTaskRequest())
    client.close()
    return str(caught.value)


def test_a_client_process_speaks_only_to_its_own_node(listener, tmp_path):
    node_options, others = options(tmp_path / "ours"), options(tmp_path / "others")
    authority = Path(node_options["--ssl-ca-certfile"]).read_bytes()
    node = listener(node_options)
    ask(node, authority)
    assert node.heard, "the client process could not reach its own node"
    for thief in (listener(), listener(others)):
        ask(thief, authority)
        assert thief.heard == []


def test_nobody_can_make_a_second_certificate(tmp_path):
    files = options(tmp_path)
    assert not list(tmp_path.rglob("ca.key"))
    assert (tmp_path / "server" / "server.key").stat().st_mode & 0o077 == 0
    assert files["--ssl-keyfile"] == str(tmp_path / "server" / "server.key")

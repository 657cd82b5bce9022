"""``python -m sepal.flower.nodes CONNECTION``: the nodes of a SuperLink with digests of their keys, as JSON.

``flwr supernode list`` does not show the keys. Like ``flwr``, this needs ``FLWR_HOME``. :func:`names` asks for the
names of the keys over a ServerApp's own connection, which is to the same address. It uses private names of flwr 1.39.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterable
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.superlink.grid.http_grid import HttpGrid

from sepal.errors import one_line


def key_digest(public_key: bytes) -> str:
    """Return the digest of a key as Flower stores it, equal to ``credentials.fingerprint`` of its file."""
    line = bytes_to_public_key(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return hashlib.sha256(line).hexdigest()


def registered(connection: str) -> dict[str, str]:
    """Return the ids of the registered nodes by digest. Nodes without a valid key, of plain-text use, are left out."""
    ids_by_digest = {}
    for node in _listed(init_http_client_from_connection(read_superlink_connection(connection))):
        with contextlib.suppress(ValueError, UnsupportedAlgorithm):
            ids_by_digest[key_digest(node.public_key)] = str(node.node_id)
    return ids_by_digest


def names(grid: Grid) -> dict[int, str]:
    """Return under which name each node's key was registered (``flwr supernode register --name``), by node id.

    It is the operator's word for who has the key. Flower checks each call of a node with a key against it.

    Args:
        grid: A ServerApp's. Without a SuperLink, no node has a key.
    """
    if not isinstance(grid, HttpGrid):
        return {}
    client = ControlHttpClient.from_server_address(
        server_address=grid._addr,
        insecure=grid._insecure,
        root_certificates=grid._cert,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    return {int(node.node_id): str(node.name) for node in _listed(client) if node.name}


def _listed(client: ControlHttpClient) -> Iterable[Any]:
    """Return what the SuperLink knows of its nodes that are not unregistered, and close the client."""
    try:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    finally:
        client.close()
    return [node for node in nodes if node.status != NodeStatus.UNREGISTERED]


def main() -> None:
    """Print ``{"success": true, "nodes": {digest: id, …}}``, or why there is no answer."""
    try:
        answer: dict[str, object] = {"success": True, "nodes": registered(sys.argv[1])}
    except Exception as reason:  # the caller reports it in one line
        answer = {"success": False, "error-message": f"{type(reason).__name__}: {one_line(str(reason))}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

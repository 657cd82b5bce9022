"""``python -m sepal.protocol.flower.nodes CONNECTION``: the nodes of a SuperLink with digests of their keys, as JSON.

``flwr supernode list`` does not show the keys. Like ``flwr``, this needs ``FLWR_HOME``. It uses private names of flwr
1.39.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.supercore.constant import NodeStatus
from flwr.supercore.primitives.asymmetric import bytes_to_public_key

from sepal.errors import one_line


def key_digest(public_key: bytes) -> str:
    """Return the digest of a key as Flower stores it, equal to ``credentials.fingerprint`` of its file."""
    line = bytes_to_public_key(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return hashlib.sha256(line).hexdigest()


def registered(connection: str) -> dict[str, str]:
    """Return the ids of the registered nodes by digest. Nodes without a valid key, of plain-text use, are left out."""
    client = init_http_client_from_connection(read_superlink_connection(connection))
    try:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    finally:
        client.close()
    found = {}
    for node in nodes:
        if node.status != NodeStatus.UNREGISTERED:
            with contextlib.suppress(ValueError, UnsupportedAlgorithm):
                found[key_digest(node.public_key)] = str(node.node_id)
    return found


def main() -> None:
    """Print ``{"success": true, "nodes": {digest: id, …}}``, or why there is no answer."""
    try:
        answer: dict[str, object] = {"success": True, "nodes": registered(sys.argv[1])}
    except Exception as reason:  # the caller reports it in one line
        answer = {"success": False, "error-message": f"{type(reason).__name__}: {one_line(str(reason))}"}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

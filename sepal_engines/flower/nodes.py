"""``python -m sepal_engines.flower.nodes CONNECTION``: the nodes of a SuperLink with digests of their keys, as JSON.

``flwr supernode list`` does not show the keys. Like ``flwr``, this needs ``FLWR_HOME``.
"""

from __future__ import annotations

import hashlib
import json
import sys

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.cli.flower_config import read_superlink_connection
from flwr.cli.utils import init_http_client_from_connection
from flwr.proto.control_pb2 import ListNodesRequest
from flwr.supercore.primitives.asymmetric import bytes_to_public_key


def key_digest(public_key: bytes) -> str:
    """Return the digest of a key as Flower stores it, equal to ``credentials.fingerprint`` of its file."""
    line = bytes_to_public_key(public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return hashlib.sha256(line).hexdigest()


def main() -> None:
    """Print ``{"nodes": [{"id", "key", "status"}, …]}``, also of unregistered nodes."""
    client = init_http_client_from_connection(read_superlink_connection(sys.argv[1]))
    try:
        found = client.ListNodes(ListNodesRequest()).nodes_info
    finally:
        client.close()
    nodes = [{"id": str(node.node_id), "key": key_digest(node.public_key), "status": node.status} for node in found]
    print(json.dumps({"success": True, "nodes": nodes}))


if __name__ == "__main__":
    main()

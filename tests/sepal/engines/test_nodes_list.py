"""The SuperLink's nodes by the digests of their keys, with Flower's client replaced."""

from __future__ import annotations

from types import SimpleNamespace

from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.supercore.constant import NodeStatus
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.superlink.grid.http_grid import HttpGrid

from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import fingerprint
from sepal.flower import nodes


def test_registered_nodes_are_found_by_their_key_files_and_what_is_no_key_is_left_out(tmp_path, monkeypatch):
    """A SuperLink in plain-text use stores any bytes as a key: they must not keep the others from being found."""
    make_certificates(tmp_path, nodes=["a", "gone"])
    files = {name: tmp_path / "server" / "nodes" / f"{name}.pub" for name in ("a", "gone")}
    keys = {name: public_key_to_bytes(load_ssh_public_key(path.read_bytes())) for name, path in files.items()}
    listed = [(7, b"junk", "online"), (8, keys["a"], "offline"), (9, keys["gone"], NodeStatus.UNREGISTERED)]
    nodes_info = [SimpleNamespace(node_id=node, public_key=key, status=status) for node, key, status in listed]
    client = SimpleNamespace(ListNodes=lambda request: SimpleNamespace(nodes_info=nodes_info), close=lambda: None)
    monkeypatch.setattr(nodes, "read_superlink_connection", lambda name: name)
    monkeypatch.setattr(nodes, "init_http_client_from_connection", lambda connection: client)
    assert nodes.registered("sepal") == {fingerprint(files["a"]): "8"}


def test_a_grid_tells_under_which_names_keys_were_registered(monkeypatch):
    options = {}
    listed = [(7, "", "online"), (8, "site-a", "offline"), (9, "site-b", NodeStatus.UNREGISTERED)]
    nodes_info = [SimpleNamespace(node_id=node, name=name, status=status) for node, name, status in listed]

    def client(server_address, insecure, root_certificates, interceptors, retry_invoker):
        options.update(address=server_address, insecure=insecure, authority=root_certificates)
        return SimpleNamespace(ListNodes=lambda request: SimpleNamespace(nodes_info=nodes_info), close=lambda: None)

    monkeypatch.setattr(nodes.ControlHttpClient, "from_server_address", client)
    grid = HttpGrid("localhost:9093", root_certificates=b"authority", token="a run's")
    assert nodes.names(grid) == {8: "site-a"}
    assert options == {"address": "localhost:9093", "insecure": False, "authority": b"authority"}
    assert nodes.names(SimpleNamespace()) == {}, "where one process has all nodes, none has a key"

"""Keys in the server's directory and Flower's list of nodes, with ``flwr`` replaced."""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import pytest

from sepal.engines.flower import node_registry
from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import ServerCredentials
from sepal.engines.flower.node_registry import NodeRegistry
from sepal.engines.flower.processes import FlowerError


class Flwr(NodeRegistry):
    """Answers for ``flwr supernode``."""

    refused, damaged, refusal = (), "", "PERMISSION_DENIED"
    registered = MappingProxyType({})  # the SuperLink's registered nodes: id by key

    def _flwr(self, verb, *arguments):
        self.calls.append((verb, arguments[0]))
        if verb in self.refused or arguments[0] == self.damaged:
            return self.refusal
        return {"node-id": len(self.calls)}

    def _registered(self):
        if self.registered is None:
            raise FlowerError("the SuperLink's nodes", "a list", "no answer")
        return dict(self.registered)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    keys = {"a": tmp_path / "a.pub", "b": tmp_path / "b.pub"}
    for name, path in keys.items():
        path.write_text(f"key of {name}")
    monkeypatch.setattr(node_registry, "fingerprint", lambda path: path.read_text())
    monkeypatch.setattr(node_registry, "EVERY", 0.0)
    credentials = SimpleNamespace(
        directory=tmp_path,
        node_keys=lambda: {name: path for name, path in keys.items() if path.exists()},
        revoked=frozenset,
    )
    printed = []
    flwr = Flwr(credentials, {}, tmp_path / "nodes.json", printed.append)
    flwr.calls, flwr.printed = [], printed
    flwr.sync()
    flwr.calls.clear()
    printed.clear()
    return flwr, keys


def twice(flwr):
    """A key must be missing at two checks, as a file that is being replaced is not."""
    flwr.tick()
    flwr.tick()


def test_nothing_is_asked_while_the_keys_stay(registry):
    flwr, _ = registry
    flwr.tick()
    assert flwr.calls == []


def test_a_key_that_is_replaced_under_its_name_is_cut_off_and_the_new_one_registered(registry):
    """A leaked key is changed by copying the new one over it."""
    flwr, keys = registry
    keys["a"].write_text("new key of a")
    flwr.tick()
    flwr.tick()
    assert flwr.calls == [("register", str(keys["a"])), ("unregister", "1")]


def test_a_key_that_flower_refuses_stops_no_other(registry, tmp_path):
    """Otherwise one damaged file in the directory would keep all removed keys registered."""
    flwr, keys = registry
    keys |= {"c": tmp_path / "c.pub", "d": tmp_path / "d.pub"}
    keys["c"].write_text("another's key")
    keys["d"].write_text("key of d")
    flwr.damaged = str(keys["c"])
    flwr.tick()
    assert flwr.calls == [("register", str(keys["c"])), ("register", str(keys["d"]))]
    refused = f"sepal: flwr supernode register {keys['c']}: expected a registered key, got PERMISSION_DENIED"
    assert [line for line in flwr.printed if "PERMISSION" in line] == [refused]
    flwr.calls.clear()
    flwr.tick()
    assert flwr.calls == [("register", str(keys["c"]))], "tried again, and not told again"
    assert [line for line in flwr.printed if "PERMISSION" in line] == [refused]
    keys["c"].unlink()
    keys["b"].unlink()
    flwr.calls.clear()
    twice(flwr)
    assert flwr.calls == [("unregister", "2")]


@pytest.mark.parametrize(
    "reason", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file"), ValueError("no key")]
)
def test_a_file_that_cannot_be_read_ends_nothing_and_unregisters_nobody(registry, monkeypatch, reason):
    """It may hold the key of a client, which Flower would never take back: half copied, or a link to nowhere."""
    flwr, keys = registry
    read = node_registry.fingerprint

    def unreadable(path):
        if path == keys["a"]:
            raise reason
        return read(path)

    monkeypatch.setattr(node_registry, "fingerprint", unreadable)
    twice(flwr)
    flwr.sync()
    expected = "public keys that can be read; until then no key is unregistered"
    words = getattr(reason, "strerror", None) or str(reason)
    assert (flwr.calls, flwr.printed) == ([], [f"sepal: {keys['a']}: expected {expected}, got {words}"])
    monkeypatch.setattr(node_registry, "fingerprint", read)
    keys["a"].unlink()
    twice(flwr)
    assert flwr.calls == [("unregister", "1")]


def test_a_check_that_could_not_read_a_file_counts_for_no_key(registry, monkeypatch):
    """The key was in that file. At the next check it is momentarily absent: once, not twice."""
    flwr, keys = registry
    text, read = keys["a"].read_text(), node_registry.fingerprint
    keys["a"].write_text("half a key")

    def unreadable(path):
        if path == keys["a"]:
            raise ValueError("no key")
        return read(path)

    monkeypatch.setattr(node_registry, "fingerprint", unreadable)
    flwr.tick()
    monkeypatch.setattr(node_registry, "fingerprint", read)
    keys["a"].unlink()
    flwr.tick()
    keys["a"].write_text(text)
    flwr.tick()
    assert flwr.calls == []


def test_a_directory_that_is_gone_unregisters_nobody(registry, tmp_path):
    flwr, _ = registry
    flwr._credentials.node_keys = ServerCredentials(tmp_path / "elsewhere").node_keys
    twice(flwr)
    assert flwr.calls == []
    (line,) = flwr.printed
    assert "until then no key is unregistered, got No such file or directory" in line


def test_a_file_that_is_replaced_is_not_missing(registry):
    flwr, keys = registry
    text = keys["a"].read_text()
    keys["a"].unlink()
    flwr.tick()
    keys["a"].write_text(text)
    twice(flwr)
    assert flwr.calls == []


def test_an_unregistration_that_flower_refuses_is_said_and_tried_again(registry):
    flwr, keys = registry
    keys["b"].unlink()
    flwr.refused, flwr.registered = ("unregister",), {"key of b": "2"}
    twice(flwr)
    assert flwr.printed == ["sepal: flwr supernode unregister 2: expected an unregistered key, got PERMISSION_DENIED"]
    flwr.refused = ()
    flwr.tick()
    assert flwr.calls == [("unregister", "2"), ("unregister", "2")]
    assert flwr.printed[1].startswith("unregistered: node 2")


def test_the_first_look_goes_on_too(registry):
    flwr, keys = registry
    keys["a"].write_text("another")
    flwr.refused = ("register",)
    flwr.sync()
    assert flwr.printed == [
        f"sepal: flwr supernode register {keys['a']}: expected a registered key, got PERMISSION_DENIED"
    ]


def test_a_key_that_is_gone_at_the_start_is_unregistered_at_once(registry):
    flwr, keys = registry
    again = Flwr(flwr._credentials, {}, flwr._memory, flwr.printed.append)
    again.calls, again.registered = [], {"key of a": "1", "key of b": "2"}
    keys["b"].unlink()
    again.sync()
    assert again.calls == [("unregister", "2")]


def test_a_key_that_was_registered_before_the_memory_was_lost_is_unregistered_too(registry):
    """As after a new container on an old database: Flower refuses the key as in use, and lists its node."""
    flwr, keys = registry
    keys["a"].write_text("old key of a")
    flwr.refused, flwr.refusal, flwr.registered = ("register",), "Public key already in use", {"old key of a": "77"}
    flwr.sync()
    flwr.refused = ()
    keys["a"].unlink()
    flwr.calls.clear()
    twice(flwr)
    assert ("unregister", "77") in flwr.calls
    assert [line for line in flwr.printed if "stays refused" in line] == []


def test_a_key_that_was_removed_before_is_named_once(registry):
    flwr, keys = registry
    keys["a"].write_text("removed key")
    flwr.refused, flwr.refusal = ("register",), "Public key already in use"
    flwr.tick()
    flwr.tick()
    assert [line for line in flwr.printed if "stays refused" in line] == [
        "sepal: a: this key was removed before and stays refused: make a new one"
    ]


def test_nodes_that_nobody_asked_for_are_named_at_the_start(registry):
    flwr, keys = registry
    again = Flwr(flwr._credentials, {}, flwr._memory, flwr.printed.append)
    again.calls = []
    again.registered = {"key of a": "1", "key of b": "other", "strange": "9"}  # b was registered anew
    again.sync()
    assert flwr.printed[0] == f"sepal: 1 registered nodes whose keys are not in {keys['a'].parent / 'nodes'}: 9"
    assert [call[0] for call in again.calls] == ["register"]


def test_a_superlink_that_does_not_list_its_nodes_stops_nobody(registry):
    flwr, _ = registry
    again = Flwr(flwr._credentials, {}, flwr._memory, flwr.printed.append)
    again.calls, again.registered = [], None
    again.sync()
    assert flwr.printed == ["sepal: the SuperLink's nodes: expected a list, got no answer"]
    assert again.calls == []


def test_without_a_memory_all_keys_that_are_registered_are_noted_at_once(registry, tmp_path):
    flwr, keys = registry
    again = Flwr(flwr._credentials, {}, tmp_path / "other.json", flwr.printed.append)
    again.calls, again.refused, again.refusal = [], ("register",), "Public key already in use"
    again.registered = {"key of a": "1", "key of b": "2"}
    again.sync()
    assert again.calls == [("register", str(keys["a"]))]
    assert flwr.printed == []


def test_a_key_that_someone_else_has_unregistered_is_done_with(registry):
    flwr, keys = registry
    keys["b"].unlink()
    flwr.refused, flwr.refusal = ("unregister",), "Node ID not found"
    twice(flwr)
    flwr.tick()
    assert flwr.calls == [("unregister", "2")]


def test_a_revoked_key_is_cut_off_and_is_not_registered_again_where_a_copy_is_put_back(tmp_path, monkeypatch):
    """Also at a SuperLink that has lost its database, and the list of its nodes with it."""
    make_certificates(tmp_path, nodes=["a", "b"])
    nodes = tmp_path / "server" / "nodes"
    copy = (nodes / "a.pub").read_bytes()
    monkeypatch.setattr(node_registry, "EVERY", 0.0)
    registries = []
    for memory in ("before", "after"):
        flwr = Flwr(ServerCredentials.of(tmp_path), {}, tmp_path / memory)
        flwr.calls = []
        registries.append(flwr)
    registries[0].sync()
    ServerCredentials.of(tmp_path).revoke("a")
    assert not (tmp_path / "nodes" / "a").exists(), "the private key"
    (nodes / "a.pub").write_bytes(copy)
    twice(registries[0])
    assert registries[0].calls[2:] == [("unregister", "1")]
    registries[1].sync()
    assert registries[1].calls == [("register", str(nodes / "b.pub"))]
    make_certificates(tmp_path, nodes=["a"])
    registries[1].tick()
    assert registries[1].calls[1:] == [("register", str(nodes / "a.pub"))], "a new key of that name is another one"


def test_a_revoked_key_is_cut_off_also_beside_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    """Whoever gives the operator such a file would otherwise keep a thief's key in use."""
    make_certificates(tmp_path, nodes=["a", "b"])
    monkeypatch.setattr(node_registry, "EVERY", 0.0)
    flwr = Flwr(ServerCredentials.of(tmp_path), {}, tmp_path / "memory")
    flwr.calls = []
    flwr.sync()
    (tmp_path / "server" / "nodes" / "odd.pub").write_text("no key")
    ServerCredentials.of(tmp_path).revoke("a")
    twice(flwr)
    assert flwr.calls[2:] == [("unregister", "1")]


def test_one_key_under_two_names_keeps_its_first_and_is_told(registry, tmp_path):
    flwr, keys = registry
    keys["c"] = tmp_path / "c.pub"
    keys["c"].write_text("key of a")
    twice(flwr)
    assert flwr.calls == []
    assert [line for line in flwr.printed if "c.pub" in line and "the key of a, too: remove one" in line]

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

    refused, damaged, said = (), "", "PERMISSION_DENIED"
    there = MappingProxyType({})  # the SuperLink's registered nodes: id by key

    def _flwr(self, verb, *arguments):
        self.calls.append((verb, arguments[0]))
        if verb in self.refused or arguments[0] == self.damaged:
            return self.said
        return {"node-id": len(self.calls)}

    def _registered(self):
        if self.there is None:
            raise FlowerError("the SuperLink's nodes", "a list", "no answer")
        return dict(self.there)


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
    told = []
    made = Flwr(credentials, {}, tmp_path / "nodes.json", told.append)
    made.calls, made.told = [], told
    made.sync()
    made.calls.clear()
    told.clear()
    return made, keys


def twice(made):
    """A key must be missing at two checks, as a file that is being replaced is not."""
    made.tick()
    made.tick()


def test_nothing_is_asked_while_the_keys_stay(registry):
    made, _ = registry
    made.tick()
    assert made.calls == []


def test_a_key_that_is_replaced_under_its_name_is_cut_off_and_the_new_one_registered(registry):
    """A leaked key is changed by copying the new one over it."""
    made, keys = registry
    keys["a"].write_text("new key of a")
    made.tick()
    made.tick()
    assert made.calls == [("register", str(keys["a"])), ("unregister", "1")]


def test_a_key_that_flower_refuses_stops_no_other(registry, tmp_path):
    """Otherwise one damaged file in the directory would keep all removed keys registered."""
    made, keys = registry
    keys |= {"c": tmp_path / "c.pub", "d": tmp_path / "d.pub"}
    keys["c"].write_text("another's key")
    keys["d"].write_text("key of d")
    made.damaged = str(keys["c"])
    made.tick()
    assert made.calls == [("register", str(keys["c"])), ("register", str(keys["d"]))]
    refused = f"sepal: flwr supernode register {keys['c']}: expected a registered key, got PERMISSION_DENIED"
    assert [line for line in made.told if "PERMISSION" in line] == [refused]
    made.calls.clear()
    made.tick()
    assert made.calls == [("register", str(keys["c"]))], "tried again, and not told again"
    assert [line for line in made.told if "PERMISSION" in line] == [refused]
    keys["c"].unlink()
    keys["b"].unlink()
    made.calls.clear()
    twice(made)
    assert made.calls == [("unregister", "2")]


@pytest.mark.parametrize(
    "reason", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file"), ValueError("no key")]
)
def test_a_file_that_cannot_be_read_ends_nothing_and_unregisters_nobody(registry, monkeypatch, reason):
    """It may hold the key of a client, which Flower would never take back: half copied, or a link to nowhere."""
    made, keys = registry
    read = node_registry.fingerprint

    def unreadable(path):
        if path == keys["a"]:
            raise reason
        return read(path)

    monkeypatch.setattr(node_registry, "fingerprint", unreadable)
    twice(made)
    made.sync()
    expected = "public keys that can be read; until then no key is unregistered"
    words = getattr(reason, "strerror", None) or str(reason)
    assert (made.calls, made.told) == ([], [f"sepal: {keys['a']}: expected {expected}, got {words}"])
    monkeypatch.setattr(node_registry, "fingerprint", read)
    keys["a"].unlink()
    twice(made)
    assert made.calls == [("unregister", "1")]


def test_a_check_that_could_not_read_a_file_counts_for_no_key(registry, monkeypatch):
    """The key was in that file. At the next check it is momentarily absent: once, not twice."""
    made, keys = registry
    text, read = keys["a"].read_text(), node_registry.fingerprint
    keys["a"].write_text("half a key")

    def unreadable(path):
        if path == keys["a"]:
            raise ValueError("no key")
        return read(path)

    monkeypatch.setattr(node_registry, "fingerprint", unreadable)
    made.tick()
    monkeypatch.setattr(node_registry, "fingerprint", read)
    keys["a"].unlink()
    made.tick()
    keys["a"].write_text(text)
    made.tick()
    assert made.calls == []


def test_a_directory_that_is_gone_unregisters_nobody(registry, tmp_path):
    made, _ = registry
    made._credentials.node_keys = ServerCredentials(tmp_path / "elsewhere").node_keys
    twice(made)
    assert made.calls == []
    (line,) = made.told
    assert "until then no key is unregistered, got No such file or directory" in line


def test_a_file_that_is_replaced_is_not_missing(registry):
    made, keys = registry
    text = keys["a"].read_text()
    keys["a"].unlink()
    made.tick()
    keys["a"].write_text(text)
    twice(made)
    assert made.calls == []


def test_an_unregistration_that_flower_refuses_is_said_and_tried_again(registry):
    made, keys = registry
    keys["b"].unlink()
    made.refused, made.there = ("unregister",), {"key of b": "2"}
    twice(made)
    assert made.told == ["sepal: flwr supernode unregister 2: expected an unregistered key, got PERMISSION_DENIED"]
    made.refused = ()
    made.tick()
    assert made.calls == [("unregister", "2"), ("unregister", "2")]
    assert made.told[1].startswith("unregistered: node 2")


def test_the_first_look_goes_on_too(registry):
    made, keys = registry
    keys["a"].write_text("another")
    made.refused = ("register",)
    made.sync()
    assert made.told == [
        f"sepal: flwr supernode register {keys['a']}: expected a registered key, got PERMISSION_DENIED"
    ]


def test_a_key_that_is_gone_at_the_start_is_unregistered_at_once(registry):
    made, keys = registry
    again = Flwr(made._credentials, {}, made._memory, made.told.append)
    again.calls, again.there = [], {"key of a": "1", "key of b": "2"}
    keys["b"].unlink()
    again.sync()
    assert again.calls == [("unregister", "2")]


def test_a_key_that_was_registered_before_the_memory_was_lost_is_unregistered_too(registry):
    """As after a new container on an old database: Flower refuses the key as in use, and lists its node."""
    made, keys = registry
    keys["a"].write_text("old key of a")
    made.refused, made.said, made.there = ("register",), "Public key already in use", {"old key of a": "77"}
    made.sync()
    made.refused = ()
    keys["a"].unlink()
    made.calls.clear()
    twice(made)
    assert ("unregister", "77") in made.calls
    assert [line for line in made.told if "stays refused" in line] == []


def test_a_key_that_was_removed_before_is_named_once(registry):
    made, keys = registry
    keys["a"].write_text("removed key")
    made.refused, made.said = ("register",), "Public key already in use"
    made.tick()
    made.tick()
    assert [line for line in made.told if "stays refused" in line] == [
        "sepal: a: this key was removed before and stays refused: make a new one"
    ]


def test_nodes_that_nobody_asked_for_are_named_at_the_start(registry):
    made, keys = registry
    again = Flwr(made._credentials, {}, made._memory, made.told.append)
    again.calls = []
    again.there = {"key of a": "1", "key of b": "other", "strange": "9"}  # b was registered anew
    again.sync()
    assert made.told[0] == f"sepal: 1 registered nodes whose keys are not in {keys['a'].parent / 'nodes'}: 9"
    assert [call[0] for call in again.calls] == ["register"]


def test_a_superlink_that_does_not_list_its_nodes_stops_nobody(registry):
    made, _ = registry
    again = Flwr(made._credentials, {}, made._memory, made.told.append)
    again.calls, again.there = [], None
    again.sync()
    assert made.told == ["sepal: the SuperLink's nodes: expected a list, got no answer"]
    assert again.calls == []


def test_without_a_memory_all_keys_that_are_registered_are_noted_at_once(registry, tmp_path):
    made, keys = registry
    again = Flwr(made._credentials, {}, tmp_path / "other.json", made.told.append)
    again.calls, again.refused, again.said = [], ("register",), "Public key already in use"
    again.there = {"key of a": "1", "key of b": "2"}
    again.sync()
    assert again.calls == [("register", str(keys["a"]))]
    assert made.told == []


def test_a_key_that_someone_else_has_unregistered_is_done_with(registry):
    made, keys = registry
    keys["b"].unlink()
    made.refused, made.said = ("unregister",), "Node ID not found"
    twice(made)
    made.tick()
    assert made.calls == [("unregister", "2")]


def test_a_revoked_key_is_cut_off_and_is_not_registered_again_where_a_copy_is_put_back(tmp_path, monkeypatch):
    """Also at a SuperLink that has lost its database, and the list of its nodes with it."""
    make_certificates(tmp_path, nodes=["a", "b"])
    nodes = tmp_path / "server" / "nodes"
    copy = (nodes / "a.pub").read_bytes()
    monkeypatch.setattr(node_registry, "EVERY", 0.0)
    registries = []
    for memory in ("before", "after"):
        made = Flwr(ServerCredentials.of(tmp_path), {}, tmp_path / memory)
        made.calls = []
        registries.append(made)
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
    made = Flwr(ServerCredentials.of(tmp_path), {}, tmp_path / "memory")
    made.calls = []
    made.sync()
    (tmp_path / "server" / "nodes" / "odd.pub").write_text("no key")
    ServerCredentials.of(tmp_path).revoke("a")
    twice(made)
    assert made.calls[2:] == [("unregister", "1")]


def test_one_key_under_two_names_keeps_its_first_and_is_told(registry, tmp_path):
    made, keys = registry
    keys["c"] = tmp_path / "c.pub"
    keys["c"].write_text("key of a")
    twice(made)
    assert made.calls == []
    assert [line for line in made.told if "c.pub" in line and "the key of a, too: remove one" in line]

"""What the directory that a server's operator hands to a client, or a client's public key to a server, can do there."""

from __future__ import annotations

import base64
import os

import pytest
from typer.testing import CliRunner

from sepal.cli.main import app
from sepal.engines.flower import rejoining
from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import NodeCredentials, ServerCredentials, fingerprint
from sepal.engines.flower.node_registry import NodeRegistry
from sepal.errors import ConfigError, StateError
from tests.attacks.test_looking import patience

ODD_NAMES = ("../../Documents", "..", "a/b", "/tmp/a", ".hidden", "-x", "a\x1b[2J", "x" * 65)


@pytest.fixture
def handed(tmp_path):
    """A client's directory, and the server's, as `sepal certs` makes them."""
    make_certificates(tmp_path / "made", ["localhost"], ["alice"])
    return tmp_path / "made" / "nodes" / "alice", tmp_path / "made" / "server"


def write_name(folder, name):
    kind, key, _ = (folder / "key.pub").read_text().split()
    (folder / "key.pub").write_text(f"{kind} {key} {name}\n")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_behind_a_key_is_a_path_on_the_clients_machine(name, handed, tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    begun = []
    monkeypatch.setattr(rejoining, "stay", begun.append)
    write_name(handed[0], name)
    result = CliRunner().invoke(app, ["join", "localhost:9092", "--certs", str(handed[0])])
    assert result.exit_code == 2
    assert "key.pub: expected a client's name behind the key" in result.output
    assert "\x1b" not in result.output
    assert not begun
    write_name(handed[0], "alice")
    CliRunner().invoke(app, ["join", "localhost:9092", "--certs", str(handed[0])], catch_exceptions=False)
    assert [joined.client for joined in begun] == ["alice"], "or the test shows nothing"


def put(kind, file):
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file, 0o600)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.touch(0o600)
        os.truncate(file, 1 << 40)


@pytest.mark.parametrize("kind", ["pipe", "device", "hole"])
@pytest.mark.parametrize("name", ["ca.crt", "key", "key.pub"])
def test_no_file_of_credentials_keeps_a_client_waiting_or_fills_the_memory(name, kind, handed):
    put(kind, handed[0] / name)
    with patience(name):
        if name == "key.pub":
            assert NodeCredentials.of(handed[0], "alice").name == ""
            with pytest.raises(ValueError, match="expected"):
                fingerprint(handed[0] / name)
        else:
            with pytest.raises((ConfigError, StateError)):
                NodeCredentials.of(handed[0], "alice")


def test_no_public_key_ends_the_server_whose_operator_has_copied_it(handed):
    """Its point is compressed, for which the library has an error that is no ValueError."""
    kind, key, _ = (handed[0] / "key.pub").read_bytes().split()
    blob = base64.b64decode(key)
    at = blob.index(b"\x04", 20)  # of a point that is not
    (handed[1] / "nodes" / "eve.pub").write_bytes(kind + b" " + base64.b64encode(blob[:at] + b"\x02" + blob[at + 1 :]))
    said = []
    registry = NodeRegistry(ServerCredentials.of(handed[1]), {}, handed[1] / "nodes.json", said.append)
    registry._register = lambda digest, name, path, keys: said.append(name)
    registry._compare = lambda keys, forget: None
    registry.sync()
    assert said[0] == "alice", "the other keys go on"
    assert "eve.pub: expected public keys that can be read" in said[1]


@pytest.mark.parametrize("name", ["ca.crt", "server.pem", "server.key"])
def test_no_file_of_credentials_fills_the_memory_of_a_server(name, handed):
    put("hole", handed[1] / name)
    with patience(name), pytest.raises((ConfigError, StateError)):
        ServerCredentials.of(handed[1])


@pytest.mark.parametrize("name", ["-x", "a\x1b[2J", "a\nsepal: done", ".ok.lock", "x" * 65])
def test_no_directory_of_a_key_to_claim_has_another_name_than_a_client(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SEPAL_HOME", str(tmp_path / "home"))
    (tmp_path / "keys" / name).mkdir(parents=True)
    (tmp_path / "keys" / name / "key").touch(0o600)
    result = CliRunner().invoke(app, ["join", "localhost:9092", "--certs", str(tmp_path / "keys"), "--claim"])
    assert result.exit_code == 2
    assert "expected directories called like clients" in result.stderr.splitlines()[-1]
    assert len([line for line in result.stderr.splitlines() if line.startswith("sepal: ")]) == 2
    assert not (tmp_path / "home" / "slots").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "hole"])
def test_no_public_key_keeps_whoever_revokes_it_waiting_or_fills_the_memory(kind, handed):
    put(kind, handed[1] / "nodes" / "alice.pub")
    with patience(kind), pytest.raises(StateError):
        ServerCredentials.of(handed[1]).revoke("alice")

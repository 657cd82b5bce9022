"""Certificates and keys: what is made, what is kept, who may read it, and what the clock's search finds."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import NodeCredentials, ServerCredentials, fingerprint
from sepal.engines.flower.engine import Ports, superlink_command, supernode_command
from sepal.engines.flower.probe import clock_skew, split
from sepal.errors import ConfigError, StateError

NOW = datetime(2026, 3, 1, tzinfo=UTC)


ED25519 = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def server_certificate(directory):
    return x509.load_pem_x509_certificate((directory / "server" / "server.pem").read_bytes())


def names(certificate):
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in found}


def test_files_are_their_owners_alone(tmp_path):
    make_certificates(tmp_path / "certs", nodes=["a"], now=NOW)
    found = list((tmp_path / "certs").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in found if path.is_dir()} == {0o700}
    modes = {path: path.stat().st_mode & 0o777 for path in found if path.is_file()}
    assert {mode for path, mode in modes.items() if path.suffix != ".pub"} == {0o600}
    assert {mode for path, mode in modes.items() if path.suffix == ".pub"} == {0o644}
    assert (tmp_path / "certs").stat().st_mode & 0o777 == 0o700


def test_the_server_certificate_is_the_authoritys_and_has_every_name(tmp_path):
    make_certificates(tmp_path, ["fl.example", "10.0.0.5"], now=NOW)
    authority = x509.load_pem_x509_certificate((tmp_path / "ca" / "ca.crt").read_bytes())
    certificate = server_certificate(tmp_path)
    certificate.verify_directly_issued_by(authority)
    assert names(certificate) == {"localhost", "127.0.0.1", "::1", "fl.example", "10.0.0.5"}
    assert not (tmp_path / "server" / "ca.key").exists(), "the authority's key stays where it was made"


def test_a_second_call_keeps_what_is_there_and_adds_what_is_new(tmp_path):
    first = make_certificates(tmp_path, ["one.example"], ["a"], now=NOW)
    assert (first.ca, first.server, first.nodes) == (True, True, ("a",))
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    second = make_certificates(tmp_path, ["one.example"], ["a", "b"], now=NOW)
    assert (second.ca, second.server, second.nodes) == (False, False, ("b",))
    assert {path: path.read_bytes() for path in kept} == kept
    third = make_certificates(tmp_path, ["two.example"], now=NOW)
    assert (third.ca, third.server, third.nodes) == (False, True, ())
    assert {"one.example", "two.example"} <= names(server_certificate(tmp_path))
    assert (tmp_path / "ca" / "ca.crt").read_bytes() == kept[tmp_path / "ca" / "ca.crt"]


def test_a_certificate_that_ends_soon_is_renewed(tmp_path):
    make_certificates(tmp_path, days=90, now=NOW)
    assert not make_certificates(tmp_path, now=NOW + timedelta(days=59)).server
    assert make_certificates(tmp_path, now=NOW + timedelta(days=61)).server
    assert server_certificate(tmp_path).not_valid_after_utc > NOW + timedelta(days=400)


def test_node_keys_are_what_flower_reads(tmp_path):
    make_certificates(tmp_path, nodes=["site-0"], now=NOW)
    key = load_ssh_private_key((tmp_path / "nodes" / "site-0" / "key").read_bytes(), None)
    assert uses_nist_ec_curve(key.public_key())
    registered = (tmp_path / "server" / "nodes" / "site-0.pub").read_bytes()
    assert registered == (tmp_path / "nodes" / "site-0" / "key.pub").read_bytes()


@pytest.mark.parametrize("host", ["", "a..b", "host:9092", "a b", "a/b"])
def test_a_host_that_is_none_is_one_line(tmp_path, host):
    with pytest.raises(ConfigError, match=r"^--host: expected a DNS name or an IP address, without a port, got"):
        make_certificates(tmp_path, [host], now=NOW)


def test_a_nodes_name_that_is_a_path_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^--node: expected"):
        make_certificates(tmp_path, nodes=["../x"], now=NOW)


def test_one_option_finds_the_credentials(tmp_path):
    make_certificates(tmp_path, nodes=["a"], now=NOW)
    assert ServerCredentials.of(tmp_path) == ServerCredentials.of(tmp_path / "server")
    places = [tmp_path, tmp_path / "nodes", tmp_path / "nodes" / "a"]
    assert len({NodeCredentials.of(place, "a") for place in places}) == 1
    with pytest.raises(ConfigError, match=r"^--certs: expected a directory with a node's key"):
        NodeCredentials.of(tmp_path, "b")
    with pytest.raises(ConfigError, match=r"nodes/NAME/key .*, and --name NAME, got"):
        NodeCredentials.of(tmp_path, "")
    with pytest.raises(ConfigError, match=r"^--certs: expected a directory with server.pem"):
        ServerCredentials.of(tmp_path / "nodes")


def test_a_private_key_that_others_can_read_is_refused(tmp_path):
    make_certificates(tmp_path, nodes=["a"], now=NOW)
    (tmp_path / "nodes" / "a" / "key").chmod(0o640)
    with pytest.raises(ConfigError, match="expected mode 600: only its owner may read a private key, got mode 640"):
        NodeCredentials.of(tmp_path, "a")


@pytest.mark.parametrize(
    ("place", "name", "expected"),
    [
        ("nodes/a", "ca.crt", "a certificate in PEM"),
        ("nodes/a", "key", "a private key in OpenSSH's format"),
        ("server", "ca.crt", "a certificate in PEM"),
        ("server", "server.pem", "a certificate in PEM"),
        ("server", "server.key", "a private key in PEM"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, place, name, expected):
    make_certificates(tmp_path, nodes=["a"], now=NOW)
    (tmp_path / place / name).write_bytes(b"not this\n")
    with pytest.raises(ConfigError, match=rf"{place}/{name}: expected {expected}, got [^\n]+$"):
        ServerCredentials.of(tmp_path) if place == "server" else NodeCredentials.of(tmp_path, "a")


def test_commands_with_credentials_are_never_insecure(tmp_path):
    make_certificates(tmp_path, nodes=["a"], now=NOW)
    server = superlink_command(Ports(1, 2), "0.0.0.0", tmp_path, ServerCredentials.of(tmp_path))
    node = supernode_command("host:1", 3, {}, NodeCredentials.of(tmp_path, "a"))
    assert "--enable-supernode-auth" in server
    assert "--auth-supernode-private-key" in node
    assert "--insecure" not in server + node
    assert server[server.index("--host") + 1] == "127.0.0.1", "the Control API stays on this machine"


@pytest.mark.parametrize("skew", [0.0, 4.0, -4.0, -6.0, 400.0, -3600.0, 80_000.0, -80_000.0])
def test_the_clocks_difference_is_found_from_what_the_server_accepts(skew):
    """The server takes a timestamp that is at most 305 s older and at most 5 s newer than its clock says."""
    found = clock_skew(lambda offset: -5 < skew - offset < 305)
    assert found == pytest.approx(skew, abs=0.1)


def test_a_clock_that_is_off_by_more_than_a_day_is_not_measured():
    assert clock_skew(lambda offset: -5 < 200_000 - offset < 305) is None


def test_addresses_have_a_host_and_a_port():
    assert split("host:9092") == ("host", 9092)
    assert split("[::1]:9092") == ("::1", 9092)
    for bad in ("host", "host:", ":9092", "host:0", "host:99999", "host:x"):
        with pytest.raises(ConfigError, match=r"^address: expected HOST:PORT"):
            split(bad)


def test_without_its_authority_a_server_keeps_its_certificate(tmp_path):
    """A new authority would lock out every client."""
    make_certificates(tmp_path, ["localhost"], ["a"])
    before = (tmp_path / "server" / "server.pem").read_bytes()
    shutil.rmtree(tmp_path / "ca")
    with pytest.raises(StateError, match=r"ca: expected the authority that signed server/server\.pem, got none"):
        make_certificates(tmp_path, ["localhost"], ["b"])
    assert (tmp_path / "server" / "server.pem").read_bytes() == before


@pytest.mark.parametrize(
    "text", [b"", b"ecdsa-sha2-nistp384 AAAA", b"no key", ED25519], ids=["empty", "half", "text", "other"]
)
def test_what_is_no_key_of_a_node_has_no_fingerprint(tmp_path, text):
    """A file that is half copied must not look like another key: its client would be cut off for good."""
    (tmp_path / "a.pub").write_bytes(text)
    with pytest.raises(ValueError, match=r"\S"):
        fingerprint(tmp_path / "a.pub")


def test_a_fingerprint_leaves_out_the_comment(tmp_path):
    make_certificates(tmp_path, nodes=["a", "b"], now=NOW)
    file = tmp_path / "server" / "nodes" / "a.pub"
    before = fingerprint(file)
    file.write_bytes(b" ".join(file.read_bytes().split()[:2]) + b" another comment")
    assert fingerprint(file) == before
    assert fingerprint(file.with_name("b.pub")) != before

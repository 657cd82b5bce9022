"""Certificates and keys: what is made, what is kept, who may read it, and what the clock's search finds."""

from __future__ import annotations

import shutil
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from flwr.supercore.primitives.asymmetric import uses_nist_ec_curve

from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.commands import Ports, superlink_command, supernode_command
from sepal.engines.flower.credentials import NodeCredentials, ServerCredentials, fingerprint
from sepal.engines.flower.probe import clock_skew, split
from sepal.errors import ConfigError, StateError

NOW = datetime.now(UTC).replace(microsecond=0)


ED25519 = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


def server_certificate(directory):
    return x509.load_pem_x509_certificate((directory / "server" / "server.pem").read_bytes())


def names(certificate):
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in alternatives}


def test_files_are_their_owners_alone(tmp_path):
    make_certificates(tmp_path / "certs", nodes=["a"], now=NOW)
    paths = list((tmp_path / "certs").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    modes = {path: path.stat().st_mode & 0o777 for path in paths if path.is_file()}
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
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    second = make_certificates(tmp_path, ["one.example"], ["a", "b"], now=NOW)
    assert (second.ca, second.server, second.nodes) == (False, False, ("b",))
    assert {path: path.read_bytes() for path in contents} == contents
    third = make_certificates(tmp_path, ["two.one.example"], now=NOW)
    assert (third.ca, third.server, third.nodes) == (False, True, ())
    assert {"one.example", "two.one.example"} <= names(server_certificate(tmp_path))
    assert (tmp_path / "ca" / "ca.crt").read_bytes() == contents[tmp_path / "ca" / "ca.crt"]


def test_a_certificate_that_ends_soon_is_renewed(tmp_path):
    make_certificates(tmp_path, days=90, now=NOW)
    assert not make_certificates(tmp_path, now=NOW + timedelta(days=59)).server
    assert make_certificates(tmp_path, now=NOW + timedelta(days=61)).server
    assert server_certificate(tmp_path).not_valid_after_utc > NOW + timedelta(days=400)


@pytest.mark.parametrize("text", [None, b"", "another"])
def test_a_renewal_that_was_interrupted_between_its_two_files_is_made_again(text, tmp_path):
    """The server's key was another one than its certificate's, and the next call kept both."""
    make_certificates(tmp_path, now=NOW)
    key = tmp_path / "server" / "server.key"
    if text == "another":
        make_certificates(tmp_path / "b", now=NOW)
        text = (tmp_path / "b" / "server" / "server.key").read_bytes()
    key.unlink() if text is None else key.write_bytes(text)
    assert make_certificates(tmp_path, now=NOW).server
    public = load_pem_private_key(key.read_bytes(), None).public_key()
    assert public == server_certificate(tmp_path).public_key()


def authority(directory):
    return x509.load_pem_x509_certificate((directory / "ca" / "ca.crt").read_bytes())


def test_a_stolen_authority_cannot_pose_as_another_site(tmp_path):
    """With the key of ca/, a certificate of any name can be signed; none of other names is taken."""
    make_certificates(tmp_path, ["fl.example", "10.0.0.5"], permit=["spare.example"], now=NOW)
    constraints = authority(tmp_path).extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    assert [name.value for name in constraints.value.permitted_subtrees] == ["localhost", "fl.example", "spare.example"]
    for host in ("fl.example", "10.0.0.5", "localhost"):
        assert handshake(tmp_path, host) == ""
    for host in ("bank.example", "notfl.example"):
        forged = tmp_path / "forged" / host
        shutil.copytree(tmp_path / "ca", forged / "ca")
        with_constraints = (forged / "ca" / "ca.crt").read_bytes()
        plain(forged)  # as a thief does, with a certificate of his own for the same key
        make_certificates(forged, [host], now=NOW)
        (forged / "ca" / "ca.crt").write_bytes(with_constraints)
        assert "permitted subtree violation" in handshake(forged, host)


def plain(directory):
    """Replace the authority's certificate by one without constraints."""
    old, key = authority(directory), load_pem_private_key((directory / "ca" / "ca.key").read_bytes(), None)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(old.subject).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(old.not_valid_before_utc)
    builder = builder.not_valid_after(old.not_valid_after_utc)
    for extension in old.extensions:
        if not isinstance(extension.value, x509.NameConstraints):
            builder = builder.add_extension(extension.value, extension.critical)
    (directory / "ca" / "ca.crt").write_bytes(builder.sign(key, SHA384()).public_bytes(Encoding.PEM))


def handshake(directory, host):
    """What a client says that reaches the server under ``host``; empty if it trusts it."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    server.load_cert_chain(directory / "server" / "server.pem", directory / "server" / "server.key")
    client.load_verify_locations(directory / "ca" / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(down, up, server_hostname=host)
    server_end = server.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (client_side, server_end):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as reason:
                return reason.verify_message
    return ""


def test_a_host_that_the_authority_does_not_permit_is_one_line(tmp_path):
    make_certificates(tmp_path, ["fl.example"], now=NOW)
    assert make_certificates(tmp_path, ["A.fl.example", "192.0.2.7"], now=NOW).server
    for host in ("example", "notfl.example", "other.example"):
        with pytest.raises(ConfigError, match=rf"^--host: expected a name below localhost, fl.example, .* got {host}$"):
            make_certificates(tmp_path, [host], now=NOW)
    assert names(server_certificate(tmp_path)) >= {"fl.example", "A.fl.example", "192.0.2.7"}


def test_an_authority_of_before_permits_any_host(tmp_path):
    make_certificates(tmp_path, now=NOW)
    plain(tmp_path)
    assert make_certificates(tmp_path, ["any.example"], now=NOW).server


def test_the_authority_lives_two_years_and_no_certificate_outlives_it(tmp_path):
    certificates = make_certificates(tmp_path, now=NOW)
    assert certificates.until == authority(tmp_path).not_valid_after_utc == NOW + timedelta(days=730)
    make_certificates(tmp_path, now=NOW + timedelta(days=500))
    assert server_certificate(tmp_path).not_valid_after_utc == certificates.until
    assert not make_certificates(tmp_path, now=NOW + timedelta(days=715)).server, "it cannot be renewed any more"
    with pytest.raises(StateError, match=r"/ca: expected an authority that is valid \(renew it .*, got one until "):
        make_certificates(tmp_path, now=NOW + timedelta(days=731))


@pytest.mark.parametrize("days", [700, 800], ids=["before its end", "after it"])
def test_a_renewed_authority_and_its_server_are_trusted_by_who_has_either_certificate(days, tmp_path):
    make_certificates(tmp_path, ["fl.example"], ["a", "b"], now=NOW)
    before, server = authority(tmp_path), server_certificate(tmp_path)
    later = NOW + timedelta(days=days)
    renewed = make_certificates(tmp_path, now=later, renew_authority=True)
    assert (renewed.ca, renewed.renewed, renewed.server, renewed.nodes) == (False, True, True, ())
    after = authority(tmp_path)
    assert after.not_valid_after_utc == renewed.until == later + timedelta(days=730)
    assert list(after.extensions) == list(before.extensions), "the same limits"
    for certificate in (server, server_certificate(tmp_path)):
        for trusted in (before, after):
            certificate.verify_directly_issued_by(trusted)
    assert server_certificate(tmp_path).not_valid_after_utc == later + timedelta(days=365)
    assert names(server_certificate(tmp_path)) == names(server)
    written = {path: path.read_bytes() for path in tmp_path.rglob("ca.crt")}
    assert {path.parent.name for path in written} == {"ca", "server", "a", "b"}
    assert len(set(written.values())) == 1
    assert not make_certificates(tmp_path, now=later).server


def test_what_is_refused_renews_nothing(tmp_path):
    make_certificates(tmp_path, ["fl.example"], ["a"], now=NOW)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="--host: expected a name below"):
        make_certificates(tmp_path, ["other.example"], now=NOW, renew_authority=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_authority_is_not_renewed_with_another_key(tmp_path):
    for name in ("one", "two"):
        make_certificates(tmp_path / name, now=NOW)
    shutil.copy(tmp_path / "two" / "ca" / "ca.key", tmp_path / "one" / "ca" / "ca.key")
    with pytest.raises(StateError, match=r"ca\.key is not that of ca\.crt"):
        make_certificates(tmp_path / "one", now=NOW, renew_authority=True)


def test_the_authoritys_key_may_be_encrypted(tmp_path):
    passphrases = []

    def ask(word):
        passphrases.append(word)
        return word

    make_certificates(tmp_path, encrypt=True, passphrase=lambda: ask(b"right"), now=NOW)
    assert passphrases == [b"right"]
    assert b"ENCRYPTED" in (tmp_path / "ca" / "ca.key").read_bytes()
    assert make_certificates(tmp_path, nodes=["a"], passphrase=lambda: ask(b"not asked"), now=NOW).nodes == ("a",)
    assert passphrases == [b"right"], "nothing is signed for a node's key"
    with pytest.raises(StateError, match=r"ca.key: expected its passphrase, got another"):
        make_certificates(tmp_path, ["a.localhost"], passphrase=lambda: b"wrong", now=NOW)
    with pytest.raises(StateError, match=r"ca.key: expected its passphrase, got none"):
        make_certificates(tmp_path, ["a.localhost"], now=NOW)
    assert make_certificates(tmp_path, ["a.localhost"], passphrase=lambda: b"right", now=NOW).server


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
    assert len({NodeCredentials.of(directory, "a") for directory in places}) == 1
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
    ("part", "name", "expected"),
    [
        ("nodes/a", "ca.crt", "a certificate in PEM"),
        ("nodes/a", "key", "a private key in OpenSSH's format"),
        ("server", "ca.crt", "a certificate in PEM"),
        ("server", "server.pem", "a certificate in PEM"),
        ("server", "server.key", "a private key in PEM"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, part, name, expected):
    make_certificates(tmp_path, nodes=["a"], now=NOW)
    (tmp_path / part / name).write_bytes(b"not this\n")
    with pytest.raises(ConfigError, match=rf"{part}/{name}: expected {expected}, got [^\n]+$"):
        ServerCredentials.of(tmp_path) if part == "server" else NodeCredentials.of(tmp_path, "a")


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
    measured = clock_skew(lambda offset: -5 < skew - offset < 305)
    assert measured == pytest.approx(skew, abs=0.1)


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


def test_a_key_that_is_written_in_another_way_has_the_same_fingerprint(tmp_path):
    """The base64 of a key ends in four bits that no reader looks at: a revoked key must not come back by them."""
    make_certificates(tmp_path, nodes=["a"])
    file = tmp_path / "server" / "nodes" / "a.pub"
    kind, text, name = file.read_text().split()
    body, before = text.rstrip("="), fingerprint(file)
    respelled = f"{body[:-1]}{chr(ord(body[-1]) + 1)}=="
    file.write_text(f"{kind}\t{respelled} {name}\n")
    assert respelled != text
    assert fingerprint(file) == before


def test_a_fingerprint_leaves_out_the_comment(tmp_path):
    make_certificates(tmp_path, nodes=["a", "b"], now=NOW)
    file = tmp_path / "server" / "nodes" / "a.pub"
    before = fingerprint(file)
    file.write_bytes(b" ".join(file.read_bytes().split()[:2]) + b" another comment")
    assert fingerprint(file) == before
    assert fingerprint(file.with_name("b.pub")) != before

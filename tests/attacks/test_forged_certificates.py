"""Another process in a server's place, with certificates of its own making: what `deploy check` and `join` say."""

from __future__ import annotations

import contextlib
import datetime
import shutil
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

from sepal.engines.flower import probe, rejoining
from sepal.engines.flower.certificates import make_certificates
from sepal.engines.flower.credentials import NodeCredentials
from sepal.errors import ConfigError
from tests.attacks.test_hostile_servers import Server

KEY = ec.generate_private_key(ec.SECP256R1())
NAMES = ExtensionOID.SUBJECT_ALTERNATIVE_NAME


def written(names):
    """The extension of names, from its bytes."""
    return x509.UnrecognizedExtension(NAMES, names)


ELSEWHERE = x509.SubjectAlternativeName([x509.DNSName("elsewhere")])
ODD = [x509.DNSName("\x1b[31m"), x509.RegisteredID(x509.ObjectIdentifier("1.2.3"))]
# The names of a first certificate, and of the one that is shown when the probe asks what is wrong with it.
FORGED = {
    "no names": (None, None),
    "odd names": (x509.SubjectAlternativeName(ODD), x509.SubjectAlternativeName(ODD)),
    "no names when asked again": (ELSEWHERE, None),
    "a name that is no text when asked again": (ELSEWHERE, written(b"\x30\x04\x82\x02\xff\xfe")),
    "an address of three bytes when asked again": (ELSEWHERE, written(b"\x30\x05\x87\x03abc")),
    "many names when asked again": (
        ELSEWHERE,
        x509.SubjectAlternativeName([x509.DNSName(f"name-{number}") for number in range(500)]),
    ),
}


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certs")
    make_certificates(directory, nodes=["site"])
    return NodeCredentials.of(directory, "site")


def context(credentials, names, directory):
    """What a server needs to show a certificate that claims to be of the deployment's authority, which is public."""
    authority = x509.load_pem_x509_certificate(credentials.authority.read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    subject, day = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(authority.subject, subject, KEY.public_key(), 1, now - day, now + day)
    if names is not None:
        builder = builder.add_extension(names, critical=False)
    file = directory / "chain.pem"
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    leaf = builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    file.write_bytes(leaf + credentials.authority.read_bytes() + KEY.private_bytes(serialization.Encoding.PEM, *plain))
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(file)
    return server_context


@pytest.mark.parametrize("names", FORGED.values(), ids=FORGED.keys())
def test_a_forged_certificate_is_one_line_whatever_is_in_it(names, credentials, tmp_path):
    shown = iter([context(credentials, name, tmp_path) for name in names])

    def handshake(connection):
        with contextlib.suppress(OSError):  # the client does not trust it
            next(shown).wrap_socket(connection, server_side=True).recv(1)

    opened = []

    def answer(connection):
        opened.append(1)
        if len(opened) > 1:  # the first one only asks whether the port is open
            handshake(connection)

    with Server(answer, waits=False) as server:
        finding = list(probe.examine(f"localhost:{server.port}", credentials, 2.0))[-1]
    assert (finding.check, finding.good) == ("certificate", False)
    assert finding.words.isprintable()
    assert len(finding.words) < 500


@pytest.fixture
def waiting(monkeypatch):
    """Let a server be found as ``answers`` says, one a second; return that function's lines and a clock."""
    lines, now = [], [0.0]
    monkeypatch.setattr(rejoining.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(rejoining.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def wait(findings, credentials, again=True):
        answers = iter(findings)
        monkeypatch.setattr(rejoining, "examine", lambda *arguments: iter(next(answers)))
        rejoining.wait_until_welcome("h:1", credentials, 90.0, again, lines.append)
        return lines, now[0]

    return wait


@pytest.mark.parametrize("check", ["certificate", "TLS"])
def test_nobody_in_the_servers_place_ends_a_client_that_has_joined_before(check, credentials, waiting):
    """Whoever answers in the server's place has proved nothing, so its word counts no more than silence."""
    wrong = [probe.Finding(check, False, "of another authority")]
    lines, lasted = waiting([*[wrong] * 5000, []], credentials)
    assert lasted == 5000
    assert len(lines) == 1
    assert "of another authority" in lines[0]


@pytest.mark.parametrize("again", [False, True])
def test_a_client_that_comes_before_its_key_waits_until_it_is_registered(credentials, waiting, again):
    """As at a server with 1,000 keys, each of which takes a command of Flower's."""
    lines, lasted = waiting([*[[probe.Finding("key", False, "not registered")]] * 5, []], credentials, again)
    assert lasted > 5
    assert lines == ["sepal: not registered; waiting for it, for up to 2 minutes"]


def test_a_first_start_with_a_thousand_keys_is_waited_for():
    """A key took 10.7 s on a machine with a load of 20."""
    assert rejoining.REGISTERED >= 1000 * 10.7


def test_what_the_server_itself_says_ends_a_client_after_a_while(credentials, waiting):
    with pytest.raises(ConfigError, match="not registered"):
        waiting([[probe.Finding("key", False, "not registered")]] * 200, credentials)


@pytest.mark.parametrize("check", ["certificate", "TLS"])
def test_a_client_that_joins_for_the_first_time_ends_at_once(check, credentials, waiting):
    with pytest.raises(ConfigError, match="of another authority"):
        waiting([[probe.Finding(check, False, "of another authority")]] * 2, credentials, again=False)


@pytest.mark.parametrize("name", ["ca.crt", "key"])
def test_a_client_whose_certificates_vanish_ends_in_one_line(name, credentials, tmp_path):
    directory = tmp_path / "site"
    shutil.copytree(credentials.directory, directory)
    copy = NodeCredentials.of(directory, "site")
    (directory / name).unlink()
    with pytest.raises(ConfigError, match=r"site: expected ca\.crt and key") as ended:
        rejoining.wait_until_welcome("localhost:1", copy, 0.0, tell=pytest.fail)
    assert "No such file or directory" in str(ended.value)

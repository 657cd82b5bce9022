"""A private certificate authority for one deployment: its certificate, a server certificate, and the nodes' keys.

``sepal certs DIR`` writes three kinds of directories, each for another machine::

    DIR/ca/            ca.crt, ca.key: stays where it was made; whoever has ca.key can impersonate the server
    DIR/server/        ca.crt, server.pem, server.key, executor.secret, nodes/NAME.pub: goes to the server
    DIR/nodes/NAME/    ca.crt, key, key.pub: goes to the client NAME, and to nobody else

The authority's key may be encrypted. Its certificate names the domains for which it may sign, so that whoever steals
the key can pose as this server, but as no other site to those who trust the authority. Addresses are not limited: the
TLS of gRPC (BoringSSL) refuses all certificates of an authority with limits on them. A renewed authority has the same
key and name, so a server's certificate of before or after is good for clients with either ``ca.crt``, until that ends.

Files have mode 600, public keys 644, and directories 700. Node keys are on the curve P-384 in OpenSSH's format, the
only ones that Flower accepts.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sepal.errors import ConfigError, StateError
from sepal.names import NAME
from sepal.operation.expiry import read_certificate

LOOPBACK = ("localhost", "127.0.0.1", "::1")  # the server's own processes dial these
CA_DAYS = 730
RENEW_DAYS = 30  # a server certificate that expires sooner is renewed
_HOST = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\Z")
_SKEW = timedelta(hours=1)  # a client's clock may be behind

_PEM, _PKCS8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
_OPENSSH = serialization.PrivateFormat.OpenSSH
_PLAIN = serialization.NoEncryption()
Passphrase: TypeAlias = Callable[[], bytes]


@dataclass(frozen=True)
class MadeFiles:
    """What :func:`make_certificates` has written; existing files that are still good are not listed.

    Attributes:
        ca: Whether the authority is new.
        renewed: Whether the authority's certificate was signed again.
        server: Whether the server certificate is new.
        nodes: Names of the nodes whose keys are new.
        until: The end of the authority; no server certificate is valid for longer.
    """

    ca: bool
    server: bool
    nodes: tuple[str, ...]
    until: datetime
    renewed: bool = False


def make_certificates(
    directory: Path,
    hosts: Sequence[str] = (),
    nodes: Sequence[str] = (),
    days: int = 365,
    now: datetime | None = None,
    permit: Sequence[str] = (),
    authority_days: int = CA_DAYS,
    encrypt: bool = False,
    passphrase: Passphrase = bytes,
    renew_authority: bool = False,
) -> MadeFiles:
    """Write the authority, server certificate and node keys that are missing in ``directory``; keep existing ones.

    The server certificate is renewed if it lacks one of ``hosts`` or expires within 30 days. The new one is signed by
    the same authority and has all names of the old one, so clients are not affected.

    Args:
        directory: As described at the top of this module.
        hosts: DNS names and IP addresses at which clients reach the server; loopback addresses are always included.
        nodes: Names of clients that get a key.
        days: Validity of a new server certificate, in days.
        now: The current time; by default that of this machine's clock.
        permit: Further domains for which a new authority may sign certificates later.
        authority_days: Validity of a new authority, in days.
        encrypt: Whether the key of a new authority is encrypted.
        passphrase: Returns the passphrase of the authority's key; called if it is needed.
        renew_authority: Sign the certificate of an authority that is there again, valid from now on for
            ``authority_days``, and make a new server certificate; all nodes' ``ca.crt`` become the new one.

    Raises:
        ConfigError: A host or a node's name is invalid, or the authority may not sign for a host.
        StateError: The directory cannot be written, holds something else, or lacks the authority that signed its server
            certificate: a new one would lock out every client. Or the authority has expired, or the passphrase is not
            its key's.
    """
    time, passphrase = now or datetime.now(UTC), cache(passphrase)
    for node in nodes:
        if not NAME.match(node):
            raise ConfigError("--node", "at most 64 letters, digits, '.', '_' or '-'", node)
    names = [_general_name(host) for host in (*LOOPBACK, *hosts)]
    domains = [name for name in (*names, *map(_general_name, permit)) if isinstance(name, x509.DNSName)]
    try:
        new_ca = not (directory / "ca" / "ca.key").exists()
        if new_ca and (directory / "server" / "server.pem").exists():
            raise StateError(str(directory / "ca"), "the authority that signed server/server.pem", "none")
        if new_ca:
            _make_authority(directory / "ca", domains, authority_days, time, passphrase() if encrypt else b"")
        _check_permitted(read_certificate((directory / "ca" / "ca.crt").read_bytes()), names)
        renewed = renew_authority and not new_ca
        if renewed:
            _renew_authority(directory / "ca", authority_days, time, passphrase)
        authority = (directory / "ca" / "ca.crt").read_bytes()
        issuer = read_certificate(authority)
        _check_valid(directory / "ca", issuer, time)
        new_server = _make_server(directory, issuer, names, days, time, passphrase, renewed)
        _write(directory / "server" / "ca.crt", authority)
        if not (directory / "server" / "executor.secret").exists():
            _write(directory / "server" / "executor.secret", secrets.token_bytes(32))
        _make_directory(directory / "server" / "nodes")
        new_nodes = [node for node in dict.fromkeys(nodes) if _make_node(directory, node, authority)]
        _give_authority(directory, authority)
    except OSError as reason:
        raise StateError(str(directory), "a directory that can be written", reason.strerror or str(reason)) from None
    except ValueError as reason:
        raise StateError(str(directory), "certificates and keys that `sepal certs` made", str(reason)) from None
    return MadeFiles(new_ca, new_server, tuple(new_nodes), issuer.not_valid_after_utc, renewed)


def _make_authority(
    directory: Path, domains: Sequence[x509.DNSName], days: int, now: datetime, passphrase: bytes
) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Sepal deployment {secrets.token_hex(4)}")])
    builder = _builder(name, name, key.public_key(), now, now + timedelta(days=days))
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.NameConstraints(list(dict.fromkeys(domains)), None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    how = serialization.BestAvailableEncryption(passphrase) if passphrase else _PLAIN
    _write(directory / "ca.key", key.private_bytes(_PEM, _PKCS8, how))
    _write(directory / "ca.crt", certificate.public_bytes(_PEM))


def _renew_authority(directory: Path, days: int, now: datetime, passphrase: Passphrase) -> None:
    """Sign the authority's certificate again, with the same name, limits and key."""
    certificate, key = read_certificate((directory / "ca.crt").read_bytes()), _signer(directory / "ca.key", passphrase)
    if certificate.public_key() != key.public_key():
        raise ValueError("ca.key is not that of ca.crt")
    builder = _builder(certificate.subject, certificate.issuer, key.public_key(), now, now + timedelta(days=days))
    for extension in certificate.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    _write(directory / "ca.crt", builder.sign(key, hashes.SHA384()).public_bytes(_PEM))


def _make_server(
    directory: Path,
    issuer: x509.Certificate,
    names: Sequence[x509.GeneralName],
    days: int,
    now: datetime,
    passphrase: Passphrase,
    anew: bool,
) -> bool:
    """Create the server certificate, unless not ``anew`` and the old one is still good; return if it was created."""
    file, end = directory / "server" / "server.pem", issuer.not_valid_after_utc
    hosts = list(dict.fromkeys(names))
    if file.exists():
        existing = read_certificate(file.read_bytes())
        existing_hosts = list(existing.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        until = existing.not_valid_after_utc
        # A renewal may have been interrupted between its two files.
        fits = _is_key_of(directory / "server" / "server.key", existing)
        lasting = not anew and fits and (until == end or until - now > timedelta(days=RENEW_DAYS))
        if lasting and existing.issuer == issuer.subject and set(hosts) <= set(existing_hosts):
            return False
        hosts = list(dict.fromkeys([*existing_hosts, *hosts]))
    signer = _signer(directory / "ca" / "ca.key", passphrase)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Sepal server")])
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, min(end, now + timedelta(days=days)))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    _write(directory / "server" / "server.key", key.private_bytes(_PEM, _PKCS8, _PLAIN))
    _write(file, certificate.public_bytes(_PEM))
    return True


def _is_key_of(file: Path, certificate: x509.Certificate) -> bool:
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        return False
    return key.public_key() == certificate.public_key()


def _signer(file: Path, passphrase: Passphrase) -> ec.EllipticCurvePrivateKey:
    """Return the authority's key; the passphrase is asked for only if it is encrypted."""
    text = file.read_bytes()
    try:
        key = serialization.load_pem_private_key(text, None)
    except TypeError:  # it is encrypted
        secret = passphrase()
        try:
            key = serialization.load_pem_private_key(text, secret or b" ")
        except ValueError:
            raise StateError(str(file), "its passphrase", "another" if secret else "none") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("ca.key is not an elliptic curve's")
    return key


def _check_valid(directory: Path, issuer: x509.Certificate, now: datetime) -> None:
    """Raise StateError if the authority has expired."""
    if issuer.not_valid_after_utc < now:
        expected = "an authority that is valid (renew it with --renew-ca, then copy ca.crt to all machines)"
        raise StateError(str(directory), expected, f"one until {issuer.not_valid_after_utc:%Y-%m-%d}")


def _check_permitted(issuer: x509.Certificate, names: Sequence[x509.GeneralName]) -> None:
    """Raise ConfigError if clients would not trust a certificate of ``issuer`` for one of ``names``."""
    try:
        permitted = issuer.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or []
    except x509.ExtensionNotFound:  # an authority of before
        return
    domains = [str(subtree.value).lower() for subtree in permitted]
    for name in names:
        host = f".{name.value}".lower()
        if isinstance(name, x509.DNSName) and not any(host.endswith(f".{domain}") for domain in domains):
            expected = f"a name below {', '.join(domains)}, as the authority permits (others: one in a new directory)"
            raise ConfigError("--host", expected, name.value)


def _give_authority(directory: Path, authority: bytes) -> None:
    """Write the authority's certificate for the nodes that have another one."""
    for file in (directory / "nodes").glob("*/ca.crt"):
        if file.read_bytes() != authority:
            _write(file, authority)


def _make_node(directory: Path, name: str, authority: bytes) -> bool:
    """Create a node's key unless it exists; return whether it was created."""
    node_directory = directory / "nodes" / name
    is_new = not (node_directory / "key").exists()
    if is_new:
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _write(node_directory / "key", key.private_bytes(_PEM, _OPENSSH, _PLAIN))
        _write(node_directory / "key.pub", public + b" " + name.encode() + b"\n")
    _write(node_directory / "ca.crt", authority)
    _write(directory / "server" / "nodes" / f"{name}.pub", (node_directory / "key.pub").read_bytes())
    return is_new


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(end)


def _usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if not _HOST.match(host):
            raise ValueError
        return x509.DNSName(host)
    except ValueError:
        raise ConfigError("--host", "a DNS name or an IP address, without a port", host) from None


def _make_directory(path: Path) -> None:
    """Create ``path`` with mode 700, and its parents."""
    if not path.exists():
        _make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def _write(path: Path, data: bytes) -> None:
    """Write a file that nobody else can read, unless it is a node's public key.

    An administrator may copy a public key to the server as another user than the one who runs it.
    """
    _make_directory(path.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.fchmod(handle, 0o644 if path.suffix == ".pub" else 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)

"""Finds out, from the client's side, what keeps a client from joining: port, TLS, certificate, key, clock, version.

Nothing changes on the server: the calls (:mod:`sepal.flower.fleet`) are refused before they have an effect,
and the error tells what is wrong.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as installed
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sepal.engines.flower.credentials import NodeCredentials
from sepal.errors import ConfigError, one_line
from sepal.flower.fleet import AHEAD, BAD_CLOCK, BUSY, KNOWN_KEY, OLD, Ask, activation
from sepal.flower.versions import FlowerChangedError, require_supported, speaks_http, transport
from sepal.operation.addresses import is_host, is_port
from sepal.operation.expiry import AT_CLIENT, WARN_DAYS, expiry

DAY = 86_400
LONGEST = 100.0  # seconds for all calls of the Fleet API: the search for a clock may take hundreds
NOT_REGISTERED = (
    "not registered: put key.pub into server/nodes on the server as NAME.pub; "
    "a key that was removed there stays refused: make a new one (see `sepal certs`)"
)
_VERIFY = {
    9: "not valid yet",
    10: "expired",
    62: "for other names",
    64: "for other addresses",
}  # OpenSSL's X509_V_ERR_*
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # and empty SETTINGS
_SETTINGS = 4


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: ``port``, ``TLS``, ``certificate``, ``API``, ``clock``, ``curve``, ``key``, ``version``.
        good: Whether the check passed.
        words: What was found, in one line.
    """

    check: str
    good: bool
    words: str


def examine(address: str, credentials: NodeCredentials | None, timeout: float = 5.0) -> Iterator[Finding]:
    """Check what a client needs to join at ``address``, one step after another; stop when later steps cannot pass.

    Args:
        address: HOST:PORT of the Fleet API.
        credentials: The client's; None for plain text.
        timeout: Seconds for each check.

    Raises:
        ConfigError: ``address`` is invalid, or the client's certificates cannot be read any more.
    """
    try:
        for file in (credentials.authority, credentials.key) if credentials else ():
            file.read_bytes()
        yield from _examine(address, credentials, timeout)
    except (OSError, ValueError) as reason:
        if credentials is None:
            raise
        got = getattr(reason, "strerror", None) or one_line(str(reason), 120)
        raise ConfigError(str(credentials.directory), "ca.crt and key, as there were at the start", got) from None


def _examine(address: str, credentials: NodeCredentials | None, timeout: float) -> Iterator[Finding]:
    host, port = split(address)
    yield _versions()
    opened = _open(host, port, timeout)
    if isinstance(opened, str):
        yield Finding("port", False, f"{address}: {opened}")
        return
    opened.close()
    yield Finding("port", True, f"{address} is open")
    security = list(_security(host, port, credentials, timeout))
    yield from security
    if all(finding.good for finding in security):
        yield from _fleet(address, credentials, timeout)


def split(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address is in brackets.

    Raises:
        ConfigError: It has another form, or no machine can have the name.
    """
    host, _, port = address.rpartition(":")
    if not host or not is_port(port) or not is_host(host):
        raise ConfigError("address", "HOST:PORT", address)
    return host.strip("[]"), int(port)


def _versions() -> Finding:
    words = f"Flower {installed('flwr')} here"
    try:
        require_supported()
    except FlowerChangedError as reason:
        return Finding("version", False, f"{words}, expected {reason.expected}")
    return Finding("version", True, words)


def _other_transport() -> Finding:
    """Return that the server's Flower speaks the other transport than this machine's."""
    transport_there, versions = ("gRPC", "1.39") if speaks_http() else ("HTTP", "1.40 or later")
    words = (
        f"the server speaks {transport_there} (Flower {versions}), Flower {installed('flwr')} here speaks {transport()}"
    )
    return Finding("version", False, f"{words}: they do not talk, install the same release on both sides")


def _open(host: str, port: int, timeout: float) -> socket.socket | str:
    """Connect; return the connection, or why there is none."""
    try:
        return socket.create_connection((host, port), timeout)
    except socket.gaierror as reason:
        return f"the name cannot be resolved ({reason.strerror})"
    except TimeoutError:
        return f"no answer within {timeout:g} s: a firewall, or another machine"
    except ConnectionRefusedError:
        return "closed: no server listens there"
    except OSError as reason:
        return f"not reached: {reason.strerror or reason}"


def _security(host: str, port: int, credentials: NodeCredentials | None, timeout: float) -> Iterator[Finding]:
    """Check that server and client both use TLS or both plain text, and check the certificate."""
    if credentials is None:
        if isinstance(_handshake(host, port, None, timeout), ssl.SSLSocket):
            yield Finding("TLS", False, "the server speaks TLS: give the client its --certs")
        elif _plain(host, port, timeout) == ("gRPC" if speaks_http() else "HTTP"):
            yield _other_transport()
        else:
            yield Finding("TLS", True, "none: everybody on the way can read and change everything")
        return
    end = expiry(credentials.authority)
    days_left, authority = (end - datetime.now(UTC)).total_seconds() / DAY, credentials.authority
    if days_left <= 0:
        expired = f"{authority} expired on {end:%Y-%m-%d}, or this clock is wrong"
        yield Finding("certificate", False, f"{expired}: {AT_CLIENT}")
        return
    answer = _handshake(host, port, credentials.authority, timeout)
    if isinstance(answer, ssl.SSLSocket):
        certificate, grpc = answer.getpeercert(), answer.selected_alpn_protocol() == "h2"
        answer.close()
        ends = ssl.cert_time_to_seconds(str((certificate or {})["notAfter"]))
        days = (ends - time.time()) / DAY
        renew = ": renew it with `sepal certs`" if days <= max(WARN_DAYS) else ""
        yield Finding("certificate", True, f"valid for {host} for {days:.0f} more days{renew}")
        if days_left <= max(WARN_DAYS):
            yield Finding("certificate", True, f"{authority} expires on {end:%Y-%m-%d}: {AT_CLIENT}")
        if grpc == speaks_http():
            yield _other_transport()
    elif isinstance(answer, ssl.SSLCertVerificationError):
        yield Finding("certificate", False, _why(answer, host, port, credentials, timeout))
    elif _plain(host, port, timeout):
        yield Finding("TLS", False, "the server speaks plain text: start it with --certs")
    else:
        yield Finding("TLS", False, f"no TLS and no Fleet API there: {answer}")


def _handshake(host: str, port: int, authority: Path | None, timeout: float) -> ssl.SSLSocket | Exception:
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    if authority is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(socket.create_connection((host, port), timeout), server_hostname=host)
    except OSError as reason:  # an SSLError is one, too
        return reason


def _why(
    error: ssl.SSLCertVerificationError, host: str, port: int, credentials: NodeCredentials, timeout: float
) -> str:
    """Return why the server's certificate is refused."""
    reason = _VERIFY.get(error.verify_code)
    if reason is None:
        return f"of another authority than {credentials.authority}: the wrong server, or certificates of another set"
    shown = _handshake(host, port, None, timeout)
    data = shown.getpeercert(binary_form=True) if isinstance(shown, ssl.SSLSocket) else None
    if data is None:
        return reason
    try:
        return _refused(x509.load_der_x509_certificate(data), reason, host)
    except Exception:  # anybody may have made it, and no list of what the library raises for it would be complete
        return f"{reason}, and cannot be read: another server"


def _refused(certificate: x509.Certificate, reason: str, host: str) -> str:
    """Return why a certificate is refused: ``reason``, with the dates or names that the certificate has."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if reason == "expired":
        return f"expired on {ends:%Y-%m-%d}: run `sepal certs` again and restart the server (or this clock is wrong)"
    if reason == "not valid yet":
        return (
            f"valid from {begins:%Y-%m-%d %H:%M} UTC on, here it is {datetime.now(UTC):%Y-%m-%d %H:%M}: set the clock"
        )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    certified = one_line(", ".join(str(name.value) for name in names), 200)
    return f"for {certified}, not for {host}: run `sepal certs --host {host}` and restart the server"


def _plain(host: str, port: int, timeout: float) -> str:
    """Return ``gRPC`` or ``HTTP`` if a server without TLS is there, else ``""``.

    A gRPC server answers HTTP/2's preface with a SETTINGS frame, a server of HTTP/1.1 with a line of text.
    """
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(_PREFACE)
            answer = connection.recv(9)
    except OSError:
        return ""
    if answer.startswith(b"HTTP/1"):
        return "HTTP"
    return "gRPC" if len(answer) > 3 and answer[3] == _SETTINGS else ""


def _fleet(address: str, credentials: NodeCredentials | None, timeout: float) -> Iterator[Finding]:
    """Check whether the Fleet API answers, accepts this machine's clock, and knows the client's key."""
    if credentials is None:
        key: ec.EllipticCurvePrivateKey = ec.generate_private_key(ec.SECP384R1())
    else:
        loaded = serialization.load_ssh_private_key(credentials.key.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            yield Finding("curve", False, f"{credentials.key} is no key on a NIST curve, which Flower expects")
            return
        key = loaded
    with activation(address, key, credentials.authority if credentials else None, timeout) as call:
        ask = _limited(call)
        try:
            refusal = ask(0.0)
            if refusal == BAD_CLOCK:
                skew = clock_skew(lambda offset: ask(offset) != BAD_CLOCK)
                yield Finding("clock", False, _skew_words(skew))
                if skew is None:
                    return
                refusal = ask(skew)
            elif isinstance(refusal, int):  # from here on it is the Fleet API that answers
                skew = clock_skew(lambda offset: ask(offset) != BAD_CLOCK)
                yield Finding("clock", True, _skew_words(skew))
        except TimeoutError:
            yield Finding("port", False, f"{address}: {BUSY}")
            return
    if isinstance(refusal, str):
        yield Finding("API", False, refusal)
    elif credentials is None:
        yield Finding("API", True, "Flower's Fleet API answers")
    else:
        registered = refusal == KNOWN_KEY
        yield Finding("key", registered, "registered" if registered else NOT_REGISTERED)


def _limited(call: Ask) -> Ask:
    """Return ``call`` as it is for ``LONGEST`` seconds from now, for a server that is not busy.

    What it returns raises TimeoutError otherwise.
    """
    end = time.monotonic() + LONGEST

    def ask(offset: float) -> int | str:
        answer = call(offset)
        if answer == BUSY or time.monotonic() > end:
            raise TimeoutError
        return answer

    return ask


def clock_skew(accepted: Callable[[float], bool]) -> float | None:
    """Return the number of seconds by which the server's clock is ahead; None if it is off by more than a day.

    Args:
        accepted: Returns whether the server accepts a timestamp that is this many seconds ahead of this machine's
            clock. It does from ``skew - 305`` to ``skew + 5``; the upper end is found to a tenth of a second.
    """
    steps = sorted((sign * 300.0 * step for step in range(DAY // 300 + 1) for sign in (1, -1)), key=abs)
    low = next((offset for offset in steps if accepted(offset)), None)
    if low is None:
        return None
    high = low + OLD + AHEAD + 1
    while high - low > 0.1:
        middle = (low + high) / 2
        low, high = (middle, high) if accepted(middle) else (low, middle)
    return (low + high) / 2 - AHEAD


def _skew_words(skew: float | None) -> str:
    if skew is None:
        return "off by more than a day from the server's: set it"
    words = f"{abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the server's"
    if -AHEAD < skew < OLD:
        return words
    return f"{words}; it may be {AHEAD:g} s ahead and {OLD:g} s behind: set it"
